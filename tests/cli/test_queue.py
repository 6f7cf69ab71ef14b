"""`boki queue` against a running system."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from boki.cli.app import app
from boki.cli.terminal import data_text
from boki.client import Client
from boki.config.loading import DevConfig
from boki.launch.child import Child
from boki.libs.bokiqueue import Queue

pytestmark = pytest.mark.xdist_group("one running system for queues")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("queues")
    (folder / "functions").mkdir()
    with Child(DevConfig(data=folder / "data", functions=folder / "functions", port=0, reload=False)).start() as child:
        yield child.url


def boki(url: str, *words: str, code: int = 0, stdin: str | bytes = "") -> Result:
    done = CliRunner().invoke(app, [*words, "--url", url], input=stdin)
    assert done.exit_code == code, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


def shown(done: Result) -> list[Any]:
    """The bodies of messages or dead letters that were printed as JSON."""
    bodies = []
    for line in done.stdout.removesuffix("\n").split("\n"):
        shape = json.loads(line)
        bodies.append(next((name, shape[name]) for name in ("text", "json", "base64") if name in shape))
    return bodies


def test_what_is_pushed_is_popped(url: str) -> None:
    """One by one, by lines, as JSON; an empty queue ends with code 1; peeking takes nothing."""
    boki(url, "queue", "push", "shop", "orders", "tea")
    boki(url, "queue", "push", "shop", "orders", "--lines", "--json-value", stdin='{"n": 1}\n[2]\n')
    assert boki(url, "queue", "list", "shop").stdout == "orders\n"
    peeked = shown(boki(url, "queue", "peek", "shop", "orders", "--json"))
    popped = shown(boki(url, "queue", "pop", "shop", "orders", "-n", "9", "--json"))
    assert peeked == [("text", "tea"), ("json", {"n": 1}), ("json", [2])]
    assert peeked == popped
    boki(url, "queue", "pop", "shop", "orders", code=1)
    for typed in (('{"n": 1}',), ("[1, 2]",), ("7",), ("[draft] tea",), ("--text", "[1]")):
        boki(url, "queue", "push", "shop", "typed", *typed)
    typed_back = shown(boki(url, "queue", "pop", "shop", "typed", "-n", "9", "--json"))
    assert typed_back == [("json", {"n": 1}), ("json", [1, 2]), ("text", "7"), ("text", "[draft] tea"), ("text", "[1]")]
    (stats,) = boki(url, "queue", "stats", "shop", "orders", "--json").stdout.splitlines()
    assert (json.loads(stats)["pushed"], json.loads(stats)["depth"]) == (3, 0)
    figures = boki(url, "queue", "stats", "shop", "orders").stdout
    assert "3 pushed" in figures
    assert "10 deliveries, then a dead letter · no maximum length · nothing retained" in figures


async def bury_all(url: str) -> None:
    async with Client(url) as client:
        queue: Queue[str] = Queue(client.logbook("shop"), "bad")
        for message in await queue.lease_many(9):
            await queue.bury(message, reason=f"cannot read {message.value}")


def test_dead_letters_are_listed_redriven_and_purged(url: str) -> None:
    """With the reason, by their handles or all; taking them away permanently asks first."""
    for text in ("a", "b", "c"):
        boki(url, "queue", "push", "shop", "bad", text)
    asyncio.run(bury_all(url))
    assert "cannot read b" in boki(url, "queue", "dlq", "shop", "bad").stdout
    letters = [json.loads(line) for line in boki(url, "queue", "dlq", "shop", "bad", "--json").stdout.splitlines()]
    assert [(one["text"], one["reason"]) for one in letters] == [(text, f"cannot read {text}") for text in "abc"]
    boki(url, "queue", "redrive", "shop", "bad", "0-99", code=1)
    boki(url, "queue", "purge", "shop", "bad", code=2)
    boki(url, "queue", "redrive", "shop", "bad", letters[1]["handle"])
    boki(url, "queue", "purge", "shop", "bad", "--yes", letters[0]["handle"])
    boki(url, "queue", "redrive", "shop", "bad")
    popped = shown(boki(url, "queue", "pop", "shop", "bad", "-n", "9", "--json"))
    assert popped == [("text", "b"), ("text", "c")]


def test_many_lines_are_pushed_in_parts(url: str) -> None:
    """More than one push takes; under a key they are the same again. Nothing is left under way at the end."""
    lines = "".join(f"{number}\n" for number in range(10_001))
    push = ("queue", "push", "shop", "many", "--lines", "--key", "all")
    first = boki(url, *push, stdin=lines).stdout.splitlines()
    assert len(set(first)) == 10_001
    assert boki(url, *push, stdin=lines).stdout.splitlines() == first
    popped = boki(url, "queue", "pop", "shop", "many", "-n", "3", "--json")
    assert shown(popped) == [("text", "0"), ("text", "1"), ("text", "2")]
    assert popped.stderr == ""


def test_a_group_is_replayed(url: str) -> None:
    """From the earliest message that is kept, or from now on."""
    boki(url, "queue", "push", "shop", "log", "one")
    assert "is new" in boki(url, "queue", "replay", "shop", "log", "--group", "audit").stderr
    assert "one" in boki(url, "queue", "pop", "shop", "log", "--group", "audit").stdout
    boki(url, "queue", "pop", "shop", "log", "--group", "nobody", code=1)
    now = boki(url, "queue", "replay", "shop", "log", "--group", "audit", "--start", "now")
    assert now.stderr == "group audit begins again from now\n"
    boki(url, "queue", "pop", "shop", "log", "--group", "audit", code=1)
    boki(url, "queue", "replay", "shop", "log", "--start", "then", code=2)


def test_a_group_that_was_a_slip_of_the_pen_is_dropped(url: str) -> None:
    """Else all messages were kept for it, forever; it asks first."""
    boki(url, "queue", "push", "shop", "slips", "one")
    boki(url, "queue", "replay", "shop", "slips", "--group", "audti")
    assert "audti" in boki(url, "queue", "stats", "shop", "slips").stdout
    boki(url, "queue", "drop-group", "shop", "slips", "audti", code=2)
    boki(url, "queue", "drop-group", "shop", "slips", "audti", "--yes")
    assert "audti" not in boki(url, "queue", "stats", "shop", "slips").stdout
    assert "no group 'audti'" in boki(url, "queue", "drop-group", "shop", "slips", "audti", "-y", code=1).stderr


def test_a_queue_that_is_not_there_is_said_so(url: str) -> None:
    """And an empty list is printed for a book without queues."""
    assert "there is no queue" in boki(url, "queue", "pop", "shop", "nothing", code=1).stderr
    assert boki(url, "queue", "list", "empty").stdout == ""


@pytest.mark.parametrize(
    ("pushed", "shape"),
    [
        (b"\xff\xfe\x00", ("base64", "//4A")),
        (b"x" * 3_000 + b"END", ("text", "x" * 3_000 + "END")),
        ("two\nlines\u2028\n".encode(), ("text", "two\nlines\u2028\n")),
    ],
    ids=["bytes", "long", "lines"],
)
def test_what_is_taken_for_good_is_printed_whole(url: str, pushed: bytes, shape: tuple[str, str]) -> None:
    """It is nowhere else any more. One in a pipe is the message itself; as JSON bytes are told from text."""
    push = ("queue", "push", "shop", "whole")
    for _ in range(4):
        boki(url, *push, stdin=pushed)
    assert boki(url, "queue", "pop", "shop", "whole").stdout_bytes == pushed
    assert shown(boki(url, "queue", "peek", "shop", "whole", "-n", "1", "--json")) == [shape]
    assert shown(boki(url, "queue", "pop", "shop", "whole", "--json")) == [shape]
    (_, first, second) = boki(url, "queue", "pop", "shop", "whole", "-n", "9").stdout.splitlines()
    in_line = data_text(pushed, limit=None)
    assert [line.split("\t")[2] for line in (first, second)] == [in_line, in_line]


def test_lines_end_with_line_feeds_alone(url: str) -> None:
    """What else breaks lines on some screens belongs to the text; so do bytes that are no text."""
    lines = "one\u2028still one\ntwo\x0cstill two\n\nfour\r\n".encode() + b"\xff"
    boki(url, "queue", "push", "shop", "lines", "--lines", stdin=lines)
    assert shown(boki(url, "queue", "pop", "shop", "lines", "-n", "9", "--json")) == [
        ("text", "one\u2028still one"),
        ("text", "two\x0cstill two"),
        ("text", ""),
        ("text", "four\r"),
        ("base64", "/w=="),
    ]
    boki(url, "queue", "push", "shop", "lines", "--lines", "--json-value", stdin='{"a":"x\u2028y"}\n')
    assert shown(boki(url, "queue", "pop", "shop", "lines", "--json")) == [("json", {"a": "x\u2028y"})]


@pytest.mark.parametrize(
    "words",
    [
        ("replay", "shop", "q", "--start", "9" * 5_000),
        ("push", "shop", "q", "--json-value", "[" * 200_000),
        ("push", "shop", "q", "--json-value", "--lines", "[" * 200_000),
        ("push", "shop", "q", "--json-value", "[" * 900 + "]" * 900 + "]"),
        ("push", "shop", "q", "--json-value", "{"),
    ],
    ids=["digits", "deep", "deep lines", "deep and wrong", "no JSON"],
)
def test_what_cannot_be_is_refused_in_a_sentence(url: str, words: tuple[str, ...]) -> None:
    """No traceback, whatever was typed, and not all of it again."""
    boki(url, "queue", "push", "shop", "q", "one")
    told = boki(url, "queue", *words, code=2).stderr
    assert told
    assert "Traceback" not in told
    assert len(told) < 1_000


def rows(done: Result) -> list[dict[str, Any]]:
    """What was printed as JSON."""
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_queue_is_created_and_configured(url: str) -> None:
    """With all its settings printed; creating it again changes nothing and says so; what is left out stays."""
    made = boki(url, "queue", "create", "shop", "made", "--shards", "2", "--max-deliveries", "3")
    assert made.output == "made: 2 shards · 3 deliveries, then a dead letter · no maximum length · nothing retained\n"
    for words in ((), ("--max-deliveries", "3", "--shards", "2")):
        same = boki(url, "queue", "create", "shop", "made", *words)
        assert (same.stdout, same.stderr) == (made.stdout, "queue made is there already\n")
    other = boki(url, "queue", "create", "shop", "made", "--max-length", "5", "--max-deliveries", "4", code=1)
    assert (other.stdout, other.stderr) == (
        made.stdout,
        (
            "queue made is there already, with --max-deliveries 3, --max-length 0: `boki queue configure shop made "
            "--max-deliveries 4 --max-length 5` changes that\n"
        ),
    )
    other = boki(url, "queue", "create", "shop", "made", "--shards", "1", code=1)
    assert "is there already, with --shards 2: the number of shards is fixed: create another queue" in other.stderr
    changed = boki(url, "queue", "configure", "shop", "made", "--retain-s", "86400", "--json")
    assert rows(changed) == [{"queue": "made", "shards": 2, "max_deliveries": 3, "max_length": 0, "retain_s": 86400.0}]
    assert "retained for 24h" in boki(url, "queue", "configure", "shop", "made").output
    missing = boki(url, "queue", "configure", "shop", "nothing", "--max-deliveries", "3", code=1)
    assert "there is no queue 'nothing' in book 'shop'" in missing.output
    other = boki(url, "queue", "create", "shop", "made", "--shards", "4", code=2)
    assert "was created with 2 shards" in other.output


def test_a_queue_that_nothing_was_taken_from_has_no_table_of_groups(url: str) -> None:
    """Column names without a row said nothing."""
    boki(url, "queue", "push", "shop", "fresh", "one")
    stats = boki(url, "queue", "stats", "shop", "fresh")
    assert stats.stderr == "no consumer group yet: the first pop or lease makes the default one\n"
    assert "in flight" not in stats.stdout


def test_receipts_are_good_in_later_commands(url: str) -> None:
    """Lease, then ack or nack what was leased, each by a process of its own; a receipt that is over is told."""
    boki(url, "queue", "create", "shop", "leased", "--max-deliveries", "2")
    for text in ("tea", "milk", "honey"):
        boki(url, "queue", "push", "shop", "leased", text)
    tea, milk = rows(boki(url, "queue", "lease", "shop", "leased", "-n", "2", "--lease-s", "600", "--json"))
    assert (tea["text"], milk["text"], tea["deliveries"]) == ("tea", "milk", 1)
    acked = boki(url, "queue", "ack", "shop", "leased", tea["receipt"], "--json")
    assert rows(acked) == [{"queue": "leased", "receipt": tea["receipt"], "verb": "ack", "done": True}]
    boki(url, "queue", "nack", "shop", "leased", "-", "--reason", "no cow", stdin=f"{milk['receipt']}\n")
    (again,) = rows(boki(url, "queue", "lease", "shop", "leased", "--json"))
    assert (again["text"], again["deliveries"]) == ("milk", 2)
    old = boki(url, "queue", "ack", "shop", "leased", tea["receipt"], code=1)
    assert "error: the message of queue 'leased' is not leased by this consumer any more: nothing was" in old.output
    both = boki(url, "queue", "nack", "shop", "leased", again["receipt"], tea["receipt"], "--json", code=1)
    assert [row["done"] for row in rows(both)[:2]] == [True, False]
    assert "are not leased by this consumer any more" in both.output
    (letter,) = rows(boki(url, "queue", "dlq", "shop", "leased", "--json"))
    assert letter["text"] == "milk"
    table = boki(url, "queue", "lease", "shop", "leased").stdout
    assert table.startswith("receipt\tdeliveries\tleased until (UTC)\tdata\n")
    assert table.endswith("\thoney\n")
    boki(url, "queue", "lease", "shop", "leased", code=1)
    wrong = boki(url, "queue", "ack", "shop", "leased", "tea", code=2)
    assert "a receipt has the form 0-17-8796093022208, not 'tea'" in wrong.output


def test_queues_of_a_book_that_is_not_there_are_not_an_empty_list(url: str) -> None:
    """A slip of the pen is told, with names that are close (found.md, A15)."""
    boki(url, "queue", "push", "shop", "orders", "tea")
    assert "there is no book shopp that has records: did you mean shop?" in boki(url, "queue", "list", "shopp").stderr
    boki(url, "log", "append", "plain", "x")
    assert "no queues in plain" in boki(url, "queue", "list", "plain").stderr
