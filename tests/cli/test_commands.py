"""The commands against a running system: what they print for people and for programs, and how they fail."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from boki.cli.app import app
from boki.cli.invoke import _content
from boki.config.loading import DevConfig
from boki.launch.child import Child

pytestmark = pytest.mark.xdist_group("one running system")

FUNCTIONS = '''"""Functions of a test."""
from collections.abc import AsyncIterator

from boki import Context, Event, function


@function
async def greet(ctx: Context, who: str) -> str:
    await ctx.logbook.append(who.encode())
    return f"Hello {who}"


@function
async def add(ctx: Context, numbers: list[int]) -> dict[str, int]:
    return {"sum": sum(numbers)}


@function
async def reverse(ctx: Context, data: bytes) -> bytes:
    return data[::-1]


@function
async def book_name(ctx: Context) -> str:
    return ctx.logbook.name


@function
async def lines(ctx: Context, first: str) -> AsyncIterator[str]:
    yield first + "\\n"
    record = await ctx.logbook.read_next(wait_s=50)
    yield f"{record.data.decode()}\\n"
    if first == "bad":
        raise ValueError("on purpose")


@function
async def events(ctx: Context, count: int) -> AsyncIterator[Event]:
    for number in range(abs(count)):
        yield Event({"n": number}, event="error" if number == 1 else "")
    if count < 0:
        raise ValueError("on purpose")


@function
async def fail(ctx: Context) -> None:
    raise ValueError("on [purpose]")
'''


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("cli")
    (folder / "functions").mkdir()
    (folder / "functions/app.py").write_text(FUNCTIONS)
    (folder / "functions/broken.py").write_text('"""Broken."""\nimport no_such_module\n')
    config = DevConfig(data=folder / "data", functions=folder / "functions", port=0, token="secret", reload=False)
    with Child(config).start() as child:
        yield child.url


def run(url: str, *words: str, stdin: bytes | None = None, token: str = "secret") -> Result:
    return CliRunner().invoke(app, list(words), input=stdin, env={"BOKI_URL": url, "BOKI_TOKEN": token})


def good(url: str, *words: str, stdin: bytes | None = None) -> str:
    done = run(url, *words, stdin=stdin)
    assert done.exit_code == 0, done.output
    return done.stdout


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["greet", "Ada"], "Hello Ada"),
        (["greet", "42"], "Hello 42"),
        (["add", "[1, 2]"], '{"sum": 3}'),
        (["book_name"], "book_name"),
        (["book_name", "--book", "other"], "other"),
        (["reverse", "abc"], "cba"),
    ],
)
def test_a_function_gets_what_was_typed_as_it_takes_it(url: str, words: list[str], expected: str) -> None:
    """Text for a str, JSON for a list, bytes for bytes, and nothing for nothing."""
    assert good(url, "invoke", *words).rstrip("\n") == expected


def test_a_payload_may_come_from_stdin(url: str) -> None:
    """Without the line end that `echo` adds; bytes that are no text stay as they are."""
    assert good(url, "invoke", "greet", "-", stdin=b"Ada\n") == "Hello Ada\n"
    done = subprocess.run(
        [sys.executable, "-m", "boki", "invoke", "reverse", "-", "--url", url, "--token", "secret"],
        input=b"\xff\x00\x01",
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"\x01\x00\xff"


def test_a_payload_need_not_be_utf_8(url: str) -> None:
    """What is typed as $'\\xe9' reaches the function as that byte."""
    assert _content("\udce9") == b"\xe9"
    command: list[str | bytes] = [
        sys.executable,
        "-m",
        "boki",
        "invoke",
        "reverse",
        b"\xe9A",
        "--url",
        url,
        "--token",
        "secret",
    ]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"A\xe9"


@pytest.mark.parametrize(("first", "code"), [("good", 0), ("bad", 1)])
def test_a_stream_is_printed_as_it_arrives(url: str, first: str, code: int) -> None:
    """The second line waits for what happens once the first one was read; a failure after it shows at the end."""
    book = f"lines-{first}"
    words = ["invoke", "lines", first, "--book", book, "--url", url, "--token", "secret"]
    with subprocess.Popen(
        [sys.executable, "-m", "boki", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{first}\n"
        good(url, "log", "append", book, "second")
        out, told = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, "second\n")
    assert ("its function raised" in told) is bool(code)


@pytest.mark.parametrize(("count", "code"), [("3", 0), ("-3", 1)])
def test_events_are_printed_and_the_last_one_may_be_an_error(url: str, count: str, code: int) -> None:
    """The gateway's is the command's own error; one of the function that has the same name is only printed."""
    done = run(url, "invoke", "events", "--", count)
    assert done.exit_code == code
    assert done.stdout == 'data: {"n":0}\n\nevent: error\ndata: {"n":1}\n\ndata: {"n":2}\n\n'
    assert ("events: ValueError: on purpose" in done.stderr) is bool(code)


def test_logged_calls_are_listed_shown_cancelled_and_run_again(url: str) -> None:
    """By the ids that they were given; the result is printed as that of a plain call."""
    done = run(url, "invoke", "greet", "Kim", "--async")
    first = done.stdout.strip()
    assert done.stderr == f"its result: boki calls result {first} --wait-s 60 --url {url}\n"
    assert good(url, "calls", "result", first, "--wait-s", "20") == "Hello Kim\n"
    later = good(url, "invoke", "greet", "Lea", "--async", "--delay-s", "3600").strip()
    waits = run(url, "calls", "result", later)
    assert (waits.exit_code, f"call {later} has not ended: it is accepted, due at" in waits.stderr) == (1, True)
    assert good(url, "calls", "cancel", later) == f"{later} greet is cancelled\n"
    refused = run(url, "calls", "cancel", first)
    assert (refused.exit_code, "has ended (done) and cannot be cancelled" in refused.stderr) == (1, True)
    gone = run(url, "calls", "result", later)
    assert (gone.exit_code, "was cancelled before it had begun" in gone.stderr) == (1, True)
    shown = [(call["id"], call["state"]) for call in objects(good(url, "calls", "list", "--json"))]
    assert {(first, "done"), (later, "cancelled")} <= set(shown)
    assert [one["id"] for one in objects(good(url, "calls", "list", "--state", "cancelled", "--json"))] == [later]
    assert "state     cancelled" in good(url, "calls", "show", later)
    assert later in good(url, "calls", "retry", later)
    assert good(url, "calls", "result", later, "--wait-s", "20") == "Hello Lea\n"
    several = run(url, "calls", "retry", first, "0" * 32)
    assert (several.exit_code, len(several.stderr.splitlines())) == (1, 2)
    assert run(url, "calls", "list", "--state", "lost").exit_code == 2


def test_a_logged_call_prints_its_id_and_a_key_runs_it_once(url: str) -> None:
    """The id is all that is printed, so that a script can take it; the same key gives the same call."""
    first = good(url, "invoke", "greet", "Bob", "--async", "--key", "k1").strip()
    assert len(first) == 32
    assert good(url, "invoke", "greet", "Bob", "--async", "--key", "k1").strip() == first
    for _ in range(2):
        assert good(url, "invoke", "greet", "Eve", "--key", "k2", "--book", "keyed").strip() == "Hello Eve"
    assert len(objects(good(url, "log", "read", "keyed", "--json"))) == 1


def test_a_logged_call_takes_a_policy_from_the_command_line(url: str) -> None:
    """Under a key, and asynchronous: it runs as often as that says."""
    policy = ("--retry", '{"attempts": 2, "first_s": 0}')
    assert run(url, "invoke", "fail", "--key", "k3", *policy).exit_code == 1
    later = good(url, "invoke", "fail", "--async", *policy).strip()
    run(url, "calls", "result", later, "--wait-s", "20")
    calls = objects(good(url, "calls", "list", "--function", "fail", "--json"))
    assert [(call["state"], call["attempts"]) for call in calls] == [("failed", 2)] * 2


def test_what_is_appended_is_read_followed_listed_and_trimmed(url: str) -> None:
    """One record's way through all commands of `boki log`, in JSON."""
    seqnum = good(url, "log", "append", "orders", "tea", "--tag", "a", "--tag", "b", "--key", "k").strip()
    assert good(url, "log", "append", "orders", "tea", "--tag", "a", "--tag", "b", "--key", "k").strip() == seqnum
    more = objects(good(url, "log", "append", "orders", "--lines", "--json", stdin=b"x\ny\n"))
    assert [one["book"] for one in more] == ["orders", "orders"]
    (record,) = objects(good(url, "log", "read", "orders", "--tag", "a", "--json"))
    assert (record["seqnum"], record["text"], record["tags"]) == (seqnum, "tea", ["a", "b"])
    assert [one["text"] for one in objects(good(url, "log", "tail", "orders", "-n", "2", "--no-follow", "--json"))] == [
        "x",
        "y",
    ]
    (book,) = objects(good(url, "log", "books", "--prefix", "orders", "--json"))
    assert (book["record_count"], book["last_seqnum"]) == (3, more[-1]["seqnum"])
    refused = run(url, "log", "trim", "orders", "end", stdin=b"")
    assert (refused.exit_code, "--yes" in refused.output) == (2, True)
    good(url, "log", "trim", "orders", more[0]["seqnum"], "--yes")
    assert [one["text"] for one in objects(good(url, "log", "read", "orders", "--json"))] == ["x", "y"]


def test_one_record_is_printed_whole(url: str) -> None:
    """Into a pipe its data as it was appended; as JSON with its tags; one that is not there is told."""
    data = b"\xff\x00 line\nend"
    seqnum = good(url, "log", "append", "whole", "--tag", "t", stdin=data).strip()
    assert run(url, "log", "get", "whole", seqnum).stdout_bytes == data
    (record,) = objects(good(url, "log", "get", "whole", seqnum, "--json"))
    assert (record["seqnum"], record["tags"], record["base64"]) == (seqnum, ["t"], "/wAgbGluZQplbmQ=")
    assert run(url, "log", "get", "whole", str(int(seqnum) + 1)).exit_code == 1


def test_retention_is_set_shown_and_lifted(url: str) -> None:
    """A bound that is not named is lifted; a book that is not there has none."""
    good(url, "log", "append", "kept", "x")
    assert good(url, "log", "retention", "kept") == "kept keeps all records\n"
    good(url, "log", "retention", "kept", "--age-s", "86400", "--size-bytes", str(5 << 30))
    assert good(url, "log", "retention", "kept") == "kept trims records older than 24h and the oldest beyond 5.0 GiB\n"
    good(url, "log", "retention", "kept", "--age-s", "3600")
    shown = {"book": "kept", "age_s": 3600.0, "size_bytes": None}
    assert objects(good(url, "log", "retention", "kept", "--json")) == [shown]
    good(url, "log", "retention", "kept", "--off")
    assert good(url, "log", "retention", "kept") == "kept keeps all records\n"
    assert "there is no book kep that has records: did you mean kept?" in run(url, "log", "retention", "kep").output


def test_a_book_is_deleted_when_that_is_meant(url: str) -> None:
    """Without a terminal it wants --yes; what was never there is told."""
    good(url, "log", "append", "gone", "x", "--tag", "!lasting")
    refused = run(url, "log", "delete", "gone", stdin=b"")
    assert (refused.exit_code, "pass --yes if you mean it" in refused.output) == (2, True)
    good(url, "log", "delete", "gone", "--yes")
    assert good(url, "log", "read", "gone", "--tag", "!lasting", "--json") == ""
    again = run(url, "log", "delete", "gone", "--yes").output
    assert "there is no book gone that has records" in again
    assert "keys and retention of gone, if there were any, are deleted" in again


def test_people_get_tables(url: str) -> None:
    """With the same facts: tags, data, sizes."""
    good(url, "log", "append", "notes", "remember", "--tag", "todo")
    text = good(url, "log", "read", "notes")
    assert "todo" in text
    assert "remember" in text
    assert "notes" in good(url, "log", "books")


def test_a_page_that_is_not_all_says_where_to_go_on(url: str) -> None:
    """The hint is on stderr, out of a pipe's way, and following it shows the rest."""
    good(url, "log", "append", "pages", "--lines", stdin=b"1\n2\n3\n")
    done = run(url, "log", "read", "pages", "--limit", "2", "--json")
    assert [one["text"] for one in objects(done.stdout)] == ["1", "2"]
    start = done.stderr.split("--start ")[1].split(",")[0]
    rest = run(url, "log", "read", "pages", "--start", start, "--json")
    assert [one["text"] for one in objects(rest.stdout)] == ["3"]
    assert "more" not in rest.stderr


def test_a_book_that_is_not_there_is_told_with_close_names(url: str) -> None:
    """On stderr, where it spoils no pipe; a book that only has no such records is told apart."""
    good(url, "log", "append", "invoices", "1", "--tag", "a")
    for words in (["read", "invoises"], ["tail", "invoises", "--no-follow"], ["read", "invoises", "--json"]):
        done = run(url, "log", *words)
        assert (done.exit_code, done.stdout) == (0, "")
        assert "no book invoises" in done.stderr
        assert "invoices" in done.stderr
    assert "boki log books" in run(url, "log", "read", "zzzzzz").stderr
    assert "no such records in invoices" in run(url, "log", "read", "invoices", "--tag", "b").stderr


def test_tail_follows_what_comes(url: str) -> None:
    """Records show up as they are appended; the reader is a process of its own, as a user's is."""
    good(url, "log", "append", "followed", "one")
    words = [sys.executable, "-m", "boki", "log", "tail", "followed", "--json", "--url", url, "--token", "secret"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        try:
            assert json.loads(reader.stdout.readline())["text"] == "one"
            good(url, "log", "append", "followed", "two")
            assert json.loads(reader.stdout.readline())["text"] == "two"
        finally:
            reader.terminate()


def test_status_is_one_screen_or_one_object(url: str) -> None:
    """What is up, and the functions."""
    status = json.loads(good(url, "status", "--json"))
    assert status["ready"] is True
    assert set(status["functions"]) == {"add", "book_name", "events", "fail", "greet", "lines", "reverse"}
    text = good(url, "status")
    for word in ("ready", "storage-1", "sequencer-1", "greet", "fsync"):
        assert word in text


def test_a_function_that_raises_shows_its_type_message_and_place(url: str) -> None:
    """The caller sees where in the function it was; brackets in a message are no markup."""
    done = run(url, "invoke", "fail")
    assert done.exit_code == 1
    assert "ValueError: on [purpose]" in done.output
    assert "app.py" in done.output


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (["invoke", "gret", "Ada"], 1, "greet"),
        (
            ["invoke", "add", "{"],
            2,
            "add takes a list like [int, ...], and '{' is not JSON: it ends at",
        ),
        (["invoke", "boom"], 1, "module broken is broken"),
        (["invoke", "boom"], 1, "no_such_module"),
        (["invoke", "add", '["a"]'], 2, "int"),
        (["log", "read", "bad name"], 2, "A-Z"),
        (["log", "append", "boki:calls", "x"], 2, "boki:"),
        (["log", "trim", "orders", "soon", "--yes"], 2, "seqnum"),
        (["log", "read", "orders", "--limit", "0"], 2, "--limit"),
        (["invoke", "greet", "x", "--delay-s", "1"], 2, "--async"),
        (["invoke", "greet", "x", "--async", "--delay-s", "inf"], 2, "--delay-s must be finite"),
        (["invoke", "greet", "x", "--timeout-s", "nan"], 2, "--timeout-s must be finite"),
        (["invoke", "greet", "x", "--timeout-s", "inf"], 2, "--timeout-s must be finite"),
        (["invoke", "greet", "x", "--timeout-s", "-1"], 2, "--timeout-s must be above 0, not -1"),
    ],
)
def test_mistakes_are_explained_without_a_traceback(url: str, words: list[str], code: int, hint: str) -> None:
    """1: it failed. 2: it was asked wrongly. Either way the message helps."""
    done = run(url, *words)
    assert done.exit_code == code, done.output
    assert hint in done.output
    assert "Traceback" not in done.output


def test_a_wrong_token_says_how_to_give_one(url: str) -> None:
    """Without leaking anything else."""
    done = run(url, "status", token="wrong")
    assert done.exit_code == 1
    assert "BOKI_TOKEN" in done.output


def test_nobody_there_says_how_to_start_one(tmp_path: Path) -> None:
    """The address that was tried, and `boki dev`."""
    done = run("http://127.0.0.1:9", "status")
    assert done.exit_code == 1
    assert "127.0.0.1:9" in done.output
    assert "boki dev" in done.output


def test_boki_dev_is_not_deployed_to(url: str, tmp_path: Path) -> None:
    """It runs the functions of its folder, and says what deploying is for."""
    (tmp_path / "app.py").write_text("x = 1\n")
    for words in (("deploy", str(tmp_path)), ("functions", "use", "1")):
        done = run(url, *words)
        assert done.exit_code == 2, done.output
        assert "boki dev runs the functions of its folder" in done.output
    assert good(url, "invoke", "greet", "Ada") == "Hello Ada\n"


def test_the_functions_of_boki_dev_are_listed_with_their_signatures(url: str) -> None:
    """There are no versions to list, and so no lecture about them."""
    assert good(url, "functions").splitlines() == [
        "function\tmodule",
        "add([int, ...]) -> {str: int}\tapp",
        "book_name() -> str\tapp",
        "events(int) -> stream\tapp",
        "fail() -> None\tapp",
        "greet(str) -> str\tapp",
        "lines(str) -> stream\tapp",
        "reverse(bytes) -> bytes\tapp",
    ]
    assert [one["name"] for one in objects(good(url, "functions", "--json"))] == [
        "add",
        "book_name",
        "events",
        "fail",
        "greet",
        "lines",
        "reverse",
    ]
