"""Completion in a shell: commands, options, choices, and what a running system knows."""

import shutil
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from boki.calls import FunctionInfo
from boki.cli import completion
from boki.cli.app import app
from boki.errors import Unavailable

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
    monkeypatch.setattr("boki.cli.queue.names_of", lambda _url, _token, book: [f"{book}-1", f"{book}-2"])
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


def test_an_unknown_shell_is_refused() -> None:
    """With those that there are."""
    done = CliRunner().invoke(app, ["completion", "tcsh"])
    assert (done.output, done.exit_code) == (
        "error: there is no completion for 'tcsh': there is one for bash, zsh, fish\n",
        2,
    )


def test_bash_completes_with_the_script() -> None:
    """A real bash, which calls a real boki."""
    bash = shutil.which("bash")
    assert bash is not None
    script = f"""
boki() {{ {sys.executable} -m boki "$@"; }}
eval "$(boki completion bash)"
COMP_WORDS=(boki queue re); COMP_CWORD=2; _boki_completion; echo "${{COMPREPLY[*]}}"
COMP_WORDS=(boki dev --durability ''); COMP_CWORD=3; _boki_completion; echo "${{COMPREPLY[*]}}"
"""
    done = subprocess.run([bash, "--norc", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["redrive", "replay", "fsync", "memory"]
