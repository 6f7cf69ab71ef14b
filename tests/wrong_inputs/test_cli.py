"""Wrong commands, and every word of what they print; the ids are the rows of the finding that they come from."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from boki.cli.app import app
from boki.client import BlockingClient, Client
from boki.config.loading import DevConfig
from boki.errors import BokiError, InvalidArgument, Unavailable
from boki.host.data_directory import DataDirectory
from boki.launch.child import Child
from boki.launch.up.identity import start_mark
from boki.launch.up.state import SupervisorState, write_state

KEPT = "what has ended is kept for 24 h; `boki calls list` shows all"
PROBLEM = "error: the configuration has 1 problem:\n  - "


class Row(NamedTuple):
    """A command, with what stands around it, and all that it prints."""

    words: list[str]
    said: str
    exit_code: int = 2
    toml: str | None = None
    environment: dict[str, str] = {}


def usage(command: str, message: str) -> str:
    return f"error: {message}\n`{command} -h` shows how it is used."


ROWS = {
    "B1": Row(["devv"], usage("boki", "there is no command 'devv'; did you mean dev?")),
    "B2": Row(
        ["dev", "--prot", "8124"], usage("boki dev", "there is no option --prot; did you mean --host or --port?")
    ),
    "B3 text": Row(["dev", "--port", "abc"], f"{PROBLEM}port = 'abc' (--port): expected int"),
    "B3 large": Row(["dev", "--port", "70000"], f"{PROBLEM}port = '70000' (--port): expected int <= 65535"),
    "seconds": Row(
        ["dev", "--drain-s", "10s"],
        f"{PROBLEM}drain_s = '10s' (--drain-s): expected float; write seconds without a unit",
    ),
    "calls since ever": Row(["calls", "list", "--since-s", "inf"], "error: --since-s must be finite, not inf"),
    "calls until never": Row(["calls", "list", "--until-s", "inf"], "error: --until-s must be finite, not inf"),
    "bytes": Row(
        ["dev", "--cache-bytes", "256 MiB"],
        f"{PROBLEM}cache_bytes = '256 MiB' (--cache-bytes): expected int; write bytes without a unit",
    ),
    "B4": Row(
        ["dev", "--replicas", "x", "--logs", "y"],
        "error: the configuration has 2 problems:\n  - replicas = 'x' (--replicas): expected int\n"
        "  - logs = 'y' (--logs): expected int",
    ),
    "B5": Row(
        ["dev", "--sequencers", "2"],
        f"{PROBLEM}sequencers is 2: an even number tolerates no more losses than one less",
    ),
    "B6": Row(
        ["dev", "--host", "0.0.0.0"],
        f"{PROBLEM}host 0.0.0.0 is open to others: set BOKI_TOKEN, or pass --insecure if anybody may use it",
    ),
    "B7": Row(
        ["dev", "--host", "256.1.1.1"],
        f"{PROBLEM}host 256.1.1.1 is not an address: four numbers of at most 255, as in 127.0.0.1, or a name",
    ),
    "B8": Row(
        ["dev", "--data", "file", "--port", "0"],
        "error: data directory file is a file, and must be a directory: choose another with --data",
    ),
    "B11 near": Row(["dev"], f"{PROBLEM}unknown setting prot (boki.toml); did you mean port?", toml="prot = 1"),
    "B11 type": Row(
        ["dev"],
        f"{PROBLEM}replicas = 'three' (boki.toml): expected int, got str",
        toml='replicas = "three"',
    ),
    "B12": Row(
        ["dev"],
        f"{PROBLEM}limits (boki.toml) is a table: write [limits] and below it one line for each, as record_bytes = ...",
        toml="limits = 5",
    ),
    "B13": Row(
        ["dev"],
        f"{PROBLEM}unknown setting BOKI_PROT (the environment); did you mean BOKI_PORT?",
        environment={"BOKI_PROT": "1"},
    ),
    "B14": Row(["dev"], f"{PROBLEM}boki.toml is not TOML: Invalid value (at line 1, column 7)", toml="port ="),
    "B15 dev": Row(["dev", "--functions", "nofolder"], "error: --functions nofolder: there is no such folder"),
    "B15 up": Row(["up", "--functions", "nofolder"], "error: --functions nofolder: there is no such folder"),
    "B16 held": Row(["new", "."], "error: . is not empty, it holds file: choose another name"),
    "B16 name": Row(["new", "a b"], "error: 'a b' cannot be a project's name: use letters, digits, '.', '_' and '-'"),
    "B26": Row(
        ["invoke", "slow_def", "-1"],
        usage("boki invoke", "there is no option -1; to pass it as a value, write -- -1"),
    ),
    "B33 reserved": Row(
        ["log", "append", "b", "x", "--tag", "!q:jobs"],
        "error: tag '!q:jobs' belongs to library bokiqueue: choose another",
    ),
    "B36": Row(["log", "read", "b", "-n", "-1"], usage("boki log read", "--limit must be at least 1, not -1")),
    "retry of a plain call": Row(
        ["invoke", "f", "--retry", "{}"],
        usage("boki invoke", "--retry: only logged calls run again: it needs --key or --async"),
    ),
    "retry that is no JSON": Row(
        ["invoke", "f", "--async", "--retry", "thrice"],
        'error: --retry must be a JSON object such as {"attempts": 3, "first_s": 1}, not \'thrice\'',
    ),
    "retry with a wrong field": Row(
        ["invoke", "f", "--async", "--retry", '{"attempt": 3}'],
        "error: Retry has no field attempt; did you mean attempts? Its fields: attempts, first_s, factor, max_s, "
        "jitter, deadline_s, errors, never, should_retry",
    ),
    "negative delay": Row(["invoke", "f", "--async", "--delay-s", "-5"], "error: --delay-s must be at least 0, not -5"),
    "no time": Row(["invoke", "f", "--timeout-s", "0"], "error: --timeout-s must be above 0, not 0"),
    "little time": Row(
        ["log", "retention", "b", "--age-s", "0", "--url", "http://127.0.0.1:9"],
        "error: --age-s must be above 0, not 0",
    ),
    "B43": Row(
        ["status", "--url", "127.0.0.1:8123"],
        "error: the URL of a gateway looks like http://127.0.0.1:8080, not like '127.0.0.1:8123'",
    ),
    "large port": Row(
        ["status", "--url", "http://127.0.0.1:99999"],
        "error: the URL of a gateway looks like http://127.0.0.1:8080, not like 'http://127.0.0.1:99999'",
    ),
    "less than nothing": Row(
        ["calls", "list", "--since-s", "-3"], usage("boki calls list", "--since-s must be at least 0, not -3")
    ),
    "B44": Row(
        ["status", "--url", "http://127.0.0.1:9"],
        "error: nothing answers at http://127.0.0.1:9 (Connection refused): is the system running?\n"
        "Nothing happened. The same command may work later.\n"
        "`boki dev` or `boki up` starts a system on this machine.",
        exit_code=1,
    ),
    "nothing answers": Row(
        ["log", "books", "--url", "http://127.0.0.1:9"],
        "error: nothing answers at http://127.0.0.1:9 (Connection refused): is the system running?\n"
        "Nothing happened. The same command may work later.\n"
        "`boki status` shows what is up; `boki dev` or `boki up` starts a system on this machine.",
        exit_code=1,
    ),
    "A14 near": Row(["status"], f"{PROBLEM}unknown setting prot (boki.toml); did you mean port?", toml="prot = 8124"),
    "A14 value": Row(
        ["log", "books"],
        f"{PROBLEM}replicas = 'three' (boki.toml): expected int, got str",
        toml='replicas = "three"\nengines = 4',
    ),
    "A14 text": Row(
        ["invoke", "f"], f"{PROBLEM}boki.toml is not TOML: Invalid value (at line 1, column 7)", toml="port ="
    ),
    "A16": Row(
        ["status", "--url", "http://127.0.0.1:9", "--token", "a\nb"],
        "error: the token must be printable ASCII without spaces: it is sent in a header; does it end in a line feed?",
    ),
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in with one file in it, and no variables set."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("BOKI_")]:
        monkeypatch.delenv(name)
    (tmp_path / "file").write_text("")
    return tmp_path


@pytest.mark.parametrize("name", ROWS)
def test_a_wrong_command_is_answered_word_for_word(project: Path, name: str) -> None:
    """What is wrong, with which limit, and what to do."""
    row = ROWS[name]
    if row.toml is not None:
        (project / "boki.toml").write_text(row.toml + "\n")
    done = CliRunner().invoke(app, row.words, env=row.environment, prog_name="boki")
    assert (done.output.strip(), done.exit_code) == (row.said, row.exit_code)


def test_a_port_in_use_is_said_without_the_advice_to_wait(project: Path) -> None:
    """B10: nothing promises that it will be free later."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        done = CliRunner().invoke(app, ["dev", "--port", str(port)])
    assert (done.output.strip(), done.exit_code) == (
        (
            f"error: cannot listen at 127.0.0.1:{port}: address already in use; choose another with --port, or 0 for "
            "any free one"
        ),
        1,
    )


def test_clients_refuse_a_token_that_no_header_can_carry() -> None:
    """A16: with an error of Boki's, and without the token in it."""
    for kind in (BlockingClient, Client):
        with pytest.raises(InvalidArgument) as raised:
            kind("http://127.0.0.1:9", token="sec\nret")
        assert "sec" not in raised.value.message


def test_both_clients_name_a_refused_connection_alike() -> None:
    """B44: in the system's words, not in a library's."""
    said = "nothing answers at http://127.0.0.1:9 (Connection refused): is the system running?"

    async def ask() -> None:
        async with Client("http://127.0.0.1:9") as client:
            await client.status()

    with pytest.raises(Unavailable) as blocking:
        BlockingClient("http://127.0.0.1:9").status()
    with pytest.raises(Unavailable) as raised:
        asyncio.run(ask())
    assert (raised.value.message, blocking.value.message) == (said, said)


FUNCTIONS = '''"""Functions of a test."""
from dataclasses import dataclass

from boki import Context, function


@dataclass
class Order:
    item: str
    count: int = 1


@function(name="place-order")
async def place_order(ctx: Context, order: Order) -> str:
    return order.item


@function
async def resolve(ctx: Context, text: str) -> str:
    return text


@function
async def chatty(ctx: Context) -> None: ...


@function
async def square(ctx: Context, n: int) -> int:
    return n * n


@function
async def maybe(ctx: Context, who: str = "you") -> str:
    return who


@function
async def reverse(ctx: Context, data: bytes) -> bytes:
    return data[::-1]


@function(timeout_s=0.05)
async def hang(ctx: Context) -> None:
    import asyncio

    await asyncio.Event().wait()
'''


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevConfig]:
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "functions").mkdir()
    (folder / "functions/app.py").write_text(FUNCTIONS)
    config = DevConfig(data=folder / "data", functions=folder / "functions", port=0, reload=False)
    with Child(config).start() as child:
        yield DevConfig(data=config.data, port=int(child.url.rpartition(":")[2]))


CALLS: dict[str, tuple[list[str], str, int]] = {
    "B22 few": (
        ["invoke", "zzz"],
        "error: there is no function 'zzz'; there are: chatty, hang, maybe, place-order, resolve, reverse, square",
        1,
    ),
    "B22 near": (["invoke", "resolv"], "error: there is no function 'resolv'; did you mean resolve?", 1),
    "B23": (
        ["invoke", "place-order", "tea"],
        """error: place-order takes an object like {"item": str, "count": int = 1}, and 'tea' is text""",
        2,
    ),
    "B24": (["invoke", "chatty", "extra"], "error: chatty takes no payload: leave it out", 2),
    "no payload, text": (
        ["invoke", "resolve"],
        (
            "error: resolve needs a payload (str): write `boki invoke resolve Ada`, or - to read it from stdin; '' is "
            "an empty one"
        ),
        2,
    ),
    "no payload, bytes": (
        ["invoke", "reverse", "--async"],
        (
            "error: reverse needs a payload (bytes): write `boki invoke reverse Ada`, or - to read it from stdin; '' "
            "is an empty one"
        ),
        2,
    ),
    "no payload, JSON": (
        ["invoke", "place-order"],
        """error: place-order needs a payload (an object like {"item": str, "count": int = 1})""",
        2,
    ),
    "empty payload": (["invoke", "resolve", ""], "", 0),
    "default payload": (["invoke", "maybe"], "you", 0),
    "nothing to append": (
        ["log", "append", "guests"],
        "error: there is nothing on stdin: if it is to be empty, write `boki log append guests ''`",
        2,
    ),
    "nothing to push": (
        ["queue", "push", "shop", "orders", "-"],
        "error: there is nothing on stdin: if it is to be empty, write `boki queue push shop orders ''`",
        2,
    ),
    "shards": (
        ["queue", "configure", "shop", "orders", "--shards", "4"],
        (
            "error: the number of shards of queue orders is fixed when it is created: create another queue, as in "
            "`boki queue create shop orders-4 --shards 4`"
        ),
        2,
    ),
    "B26 taken": (["invoke", "square", "--", "-3"], "9", 0),
    "B34": (
        ["log", "append", "a b", "x"],
        "error: book must be 1 to 128 characters of A-Z a-z 0-9 . _ : -, not 'a b'",
        2,
    ),
    "A15": (
        ["log", "trim", "flights", "end", "--yes"],
        "there is no book flights that has records: `boki log books` lists those that have",
        1,
    ),
    "short id": (
        ["calls", "show", "b22f9395"],
        "error: no logged call has the id 'b22f9395': an id has 32 hex digits; `boki calls list` shows all",
        1,
    ),
    "old id": (
        ["calls", "result", "0" * 32],
        f"error: no logged call has the id '{'0' * 32}': {KEPT}",
        1,
    ),
    "D trim": (
        ["log", "trim", "flights", "abc", "--yes"],
        "error: 'abc' is not a seqnum: write a number, or `end` for all records that are there now",
        2,
    ),
}


def run(system: DevConfig, *words: str) -> tuple[str, int]:
    done = CliRunner().invoke(app, list(words), env={"BOKI_URL": f"http://127.0.0.1:{system.port}", "BOKI_TOKEN": ""})
    return done.output.strip(), done.exit_code


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_request_is_answered_word_for_word(system: DevConfig, name: str) -> None:
    """By a system that runs."""
    words, said, exit_code = CALLS[name]
    assert run(system, *words) == (said, exit_code)


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (
            ["invoke", "hang"],
            (
                "It may have taken effect: look before you repeat it. Give it a --key next time: then it can be "
                "repeated without doing it twice."
            ),
        ),
        (
            ["invoke", "hang", "--key", "k1"],
            "It may have taken effect: the same command, under the same --key, does it once.",
        ),
    ],
)
def test_what_to_do_about_an_unknown_outcome_depends_on_the_key(
    system: DevConfig, words: list[str], advice: str
) -> None:
    """B45: nobody is told of a --key that was not given."""
    said, exit_code = run(system, *words)
    first, second = said.split("\n")
    assert (first.startswith("error: "), second, exit_code) == (True, advice, 1)


def test_a_closed_blocking_client_says_so(system: DevConfig) -> None:
    """A10: as the async one does; nothing was sent, and trying again is no use."""
    with BlockingClient(f"http://127.0.0.1:{system.port}") as client:
        assert client.invoke("square", 3) == 9
    with pytest.raises(Unavailable) as raised:
        client.invoke("square", 3)
    error: BokiError = raised.value
    said: Any = (error.message, error.outcome, error.retryable)
    assert said == ("this client is closed: make another one", "not_applied", False)


def test_commands_find_the_boki_dev_of_their_folder_wherever_it_listens(
    system: DevConfig, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A13: by the file beside its lock; one that was left by a process that is gone counts for nothing."""
    (project / "boki.toml").write_text(f'data = "{system.data}"\n')
    done = CliRunner().invoke(app, ["invoke", "square", "4"])
    assert (done.output.strip(), done.exit_code) == ("16", 0)
    left = (system.data / "url").read_text()
    (project / "boki.toml").write_text('data = "other"\nport = 9\n')
    (project / "other").mkdir()
    (project / "other/url").write_text(left.replace('"mark":"', '"mark":"x'))
    done = CliRunner().invoke(app, ["invoke", "square", "4"])
    assert "nothing answers at http://127.0.0.1:9 " in done.output


def test_a_second_boki_dev_is_told_who_uses_the_data(system: DevConfig) -> None:
    """B9: which process, and what to do."""
    done = CliRunner().invoke(app, ["dev", "--data", str(system.data), "--port", "0"])
    assert done.exit_code == 1
    said = " ".join(done.output.split())
    assert said.startswith(f"error: data directory {system.data} is in use by process ")
    assert said.endswith(": stop it, or choose another with --data")


def test_a_boki_dev_beside_a_cluster_is_told_how_to_stop_it(project: Path) -> None:
    """B9: by `boki down`, not by a kill."""
    directory = DataDirectory(project / "data")
    try:
        (project / "data/cluster").mkdir()
        me = os.getpid()
        state = SupervisorState(pid=me, mark=start_mark(me), url="http://127.0.0.1:7", zookeeper="", chroot="")
        write_state(project / "data/cluster", state)
        done = CliRunner().invoke(app, ["dev", "--data", "data", "--port", "0"])
    finally:
        directory.close()
    assert (done.output.strip(), done.exit_code) == (
        (
            "error: data directory data is in use by the cluster of `boki up` at http://127.0.0.1:7: stop it with "
            "`boki down`, or choose another directory with --data"
        ),
        1,
    )


def test_a_project_can_be_made_in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B16: `boki new .`, named after the folder."""
    (tmp_path / "shop").mkdir()
    monkeypatch.chdir(tmp_path / "shop")
    done = CliRunner().invoke(app, ["new", "."])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("Made shop. Next:\n\n  pip install")
    assert 'name = "shop"' in (tmp_path / "shop/pyproject.toml").read_text()
