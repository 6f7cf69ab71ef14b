"""Completion in a shell: commands, options, choices, and what a running system knows."""

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from boki.cli import completion
from boki.cli.app import app
from boki.errors import Unavailable
from boki.protocol.calls import FunctionInfo

ROOT = typer.main.get_command(app)


class Client:
    """Knows two functions, two books and two nodes."""

    url = "http://127.0.0.1:8080"

    def functions(self) -> list[FunctionInfo]:
        return [
            FunctionInfo(name="greet", module="app", is_async=True, doc="Greet somebody.\n\nMore."),
            FunctionInfo(name="gather", module="app", is_async=True),
        ]

    def books(self, *, limit: int) -> list[Any]:
        return [SimpleNamespace(name=name, record_count=1234) for name in ("guests", "orders")][:limit]

    def status(self) -> dict[str, Any]:
        return {"members": [{"node": "storage-1", "role": "storage"}, {"node": "engine-1", "role": "engine"}]}


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """A system that answers at once; where it was looked for."""
    asked: list[tuple[str, str]] = []

    def connect(url: str, token: str) -> Any:
        asked.append((url, token))
        return nullcontext(Client())

    for name in ("BOKI_URL", "BOKI_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(completion, "connect", connect)
    monkeypatch.setattr(
        "boki.libs.bokiqueue.face.commands.names_of", lambda _url, _token, book: [f"{book}-1", f"{book}-2"]
    )
    return asked


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("inv", ["invoke"]),
        ("log re", ["read", "retention"]),
        ("log read --ta", ["--tag"]),
        ("invoke gr", ["greet"]),
        ("invoke ", ["greet", "gather"]),
        ("invoke greet ", []),
        ("invoke --key k g", ["greet", "gather"]),
        ("invoke --key=k ga", ["gather"]),
        ("invoke --book ", ["guests", "orders"]),
        ("invoke -- g", ["greet", "gather"]),
        ("log read o", ["orders"]),
        ("queue push shop ", ["shop-1", "shop-2"]),
        ("drain s", ["storage-1"]),
        ("dev --durability ", ["fsync", "memory"]),
        ("dev --durability=memory --dura", []),
        ("bench ap", ["append"]),
        ("bench append re", ["read", "restart", "repair"]),
        ("completion z", ["zsh"]),
        ("dev --durability=m", ["--durability=memory"]),
        ("invoke --book=g", ["--book=guests"]),
        ("dev --nonsense=", []),
        ("nonsense ", []),
        ("invoke --nonsense g", ["greet", "gather"]),
        ("deploy src", []),
    ],
)
def test_the_last_word_is_completed(system: list[tuple[str, str]], typed: str, expected: list[str]) -> None:
    """By what the parser would take there; where that is a file, the shell completes it."""
    assert [value for value, _ in completion.candidates(ROOT, typed.split(" "))] == expected


def test_candidates_say_what_they_are(system: list[tuple[str, str]]) -> None:
    """The summary of a command, the help of an option, the docstring of a function, the size of a book."""
    found = dict(completion.candidates(ROOT, [""]))
    assert found["invoke"] == "Call a function and print its result"
    assert dict(completion.candidates(ROOT, ["invoke", "gr"])) == {"greet": "Greet somebody."}
    assert dict(completion.candidates(ROOT, ["log", "read", "g"])) == {"guests": "1,234 records"}
    assert dict(completion.candidates(ROOT, ["invoke", "--as"])) == {
        "--async": "Log the call, print its id, do not wait."
    }


def test_the_system_that_was_named_is_asked(system: list[tuple[str, str]]) -> None:
    """With the flags that were typed before."""
    completion.candidates(ROOT, ["invoke", "--url", "http://x:1", "--token", "t", ""])
    assert system == [("http://x:1", "t")]


def test_nothing_is_completed_where_nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is printed over what was typed."""

    def connect(_url: str, _token: str) -> Any:
        raise Unavailable("nothing answers")

    monkeypatch.setattr(completion, "connect", connect)
    done = CliRunner().invoke(app, ["completion", "bash", "--", "invoke", ""])
    assert (done.exit_code, done.output) == (0, "")


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("bash", "greet"),
        ("zsh", "greet:Greet somebody."),
        ("fish", "greet\tGreet somebody."),
    ],
)
def test_each_shell_gets_lines_in_its_form(system: list[tuple[str, str]], shell: str, line: str) -> None:
    """With descriptions where it shows them."""
    assert CliRunner().invoke(app, ["completion", shell, "--", "invoke", "gr"]).output == f"{line}\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["dev", "--durability", "=", "m"], "memory"),
        (["dev", "--durability", "=", ""], "fsync"),
        (["log", "read", "shop", ":", "t"], "teas"),
        (["log", "read", "shop", ":"], "teas"),
        (["log", "read", "shop:t"], "shop:teas"),
        (["log", "read", "--tag", "a", ":", "b", "shop"], "shop:teas"),
    ],
)
def test_bash_breaks_words_at_colons_and_replaces_the_rest(
    monkeypatch: pytest.MonkeyPatch, system: list[tuple[str, str]], words: list[str], line: str
) -> None:
    """Unless its user has told it otherwise: then the word comes whole."""
    monkeypatch.setattr(Client, "books", lambda _self, limit: [SimpleNamespace(name="shop:teas", record_count=1)])
    assert CliRunner().invoke(app, ["completion", "bash", "--", *words]).output.splitlines()[0] == line


def test_an_unknown_shell_is_refused() -> None:
    """With those that there are."""
    done = CliRunner().invoke(app, ["completion", "tcsh"])
    assert (done.output, done.exit_code) == (
        "error: there is no completion for 'tcsh': there is one for bash, zsh, fish\n",
        2,
    )


TYPED = {
    "boki que": "queue",
    "boki queue red": "queue redrive",
    "boki dev --durability m": "dev --durability memory",
    "boki dev --durability=m": "dev --durability=memory",
    "boki dev --insec": "dev --insecure",
    "boki deploy fold": "deploy folder",
}
"""What is typed before the tab key, and the words of the command that runs then."""
STARTS = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"], "fish": ["--no-config", "-i"]}
SHELLS = [shell for shell in STARTS if shutil.which(shell)]
"""Those that are installed here; bash always is."""


def in_terminal(shell: str, folder: Path, lines: list[str], wanted: list[str]) -> str:
    """What the shell writes to a terminal in which the lines are typed, until it has written all that is wanted."""
    environment = {**os.environ, "HOME": str(folder), "PS1": "", "TERM": "dumb", "BOKI_URL": "http://127.0.0.1:9"}
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe(shell, [shell, *STARTS[shell]], environment)
    written = ""
    deadline = time.monotonic() + 60
    try:
        for line, said in zip(lines, wanted, strict=True):
            os.write(terminal, line.encode())
            while said not in written:
                left_s = deadline - time.monotonic()
                assert left_s > 0, written
                if select.select([terminal], [], [], left_s)[0]:
                    written += os.read(terminal, 65_536).decode(errors="replace")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.close(terminal)
        os.waitpid(pid, 0)
    return written


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_completes_what_is_typed_in_a_terminal(shell: str, tmp_path: Path) -> None:
    """A real shell with its script, and a tab key. The command that runs is the completed one."""
    (tmp_path / "folder").mkdir()
    boki = f"{sys.executable} -m boki"
    script = subprocess.run([*boki.split(), "completion", shell], capture_output=True, text=True, check=True).stdout
    if shell == "fish":
        script += f'function boki; if [ $argv[1] = completion ]; {boki} $argv; else; echo "ran<$argv>"; end; end\n'
    else:
        script += f'boki() {{ if [ $1 = completion ]; then {boki} "$@"; else echo "ran<$*>"; fi; }}\n'
    (tmp_path / "script").write_text(script)
    setup = {"zsh": "autoload -Uz compinit; compinit -u; "}.get(shell, "")
    lines = [f"{setup}. ./script; echo re''ady\r", *(f"{line}\t\r" for line in TYPED)]
    in_terminal(shell, tmp_path, lines, ["ready", *(f"ran<{words}" for words in TYPED.values())])
