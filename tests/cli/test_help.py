"""The help of every command: short summaries, examples that the real parser takes, screens that fit."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from boki.cli.app import app
from boki.cli.help import Command, Group, examples_of, summary_of

MAX_SUMMARY = 60
GROUPS = {
    "Develop": ["new", "dev", "invoke", "calls", "status", "log", "queue", "store", "flow", "demo"],
    "Cluster": ["up", "down", "deploy", "functions", "logs", "reconfigure", "drain", "undrain", "keygen", "start"],
    "Spark": ["ingest"],
    "Measure and test": ["bench", "chaos", "sim", "doctor", "completion"],
}


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of the tree, with the words that name it."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, (*path, name))


TREE = dict(walk(typer.main.get_command(app)))
LINES = [line for command in TREE.values() for line in examples_of(command)]


def help_of(path: tuple[str, ...], width: int) -> str:
    """The screen on a terminal of that width. The tree is built once: that is what takes time."""
    context = None
    for at in range(len(path) + 1):
        command = TREE[path[:at]]
        context = command.context_class(command, parent=context, info_name=path[at - 1] if at else "boki")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        return str(command.get_help(context))


def words_of(line: str) -> list[str]:
    """The words behind `boki` of one example, without what the shell makes of the rest of the line."""
    words = shlex.split(line, comments=True)
    words = words[words.index("boki") + 1 :]
    end = next((at for at, word in enumerate(words) if word in ("|", "<", ">", "&&")), len(words))
    return words[:end]


def parse(words: list[str]) -> None:
    """Parse the words as the program does, and run nothing."""
    command, path = TREE[()], "boki"
    context = command.make_context(path, list(words))
    while isinstance(command, Group):
        rest = [*context._protected_args, *context.args]
        if not rest:
            assert command.invoke_without_command, "a group without a command"
            return
        name, command, args = command.resolve_command(context, rest)
        assert command is not None
        if args[:1] == ["-h"]:
            return
        context = command.make_context(name, args, parent=context)


@pytest.mark.parametrize("path", TREE, ids=" ".join)
def test_a_command_has_a_short_summary_and_examples_of_its_own(path: tuple[str, ...]) -> None:
    """No list of commands cuts a summary, and every screen shows what to type."""
    command = TREE[path]
    assert isinstance(command, Command | Group), f"make it with boki.cli.help.Commands: {path}"
    if path:
        assert 0 < len(summary_of(command)) < MAX_SUMMARY, summary_of(command)
    assert examples_of(command), f"boki {' '.join(path)} has no examples: give it some with @examples(...)"
    if not isinstance(command, Group):
        for line in examples_of(command):
            assert f"boki {' '.join(path)}" in line


@pytest.mark.parametrize("line", LINES)
def test_every_example_is_taken_by_the_parser(line: str) -> None:
    """What help shows can be typed as it stands."""
    parse(words_of(line))


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("path", TREE, ids=" ".join)
def test_a_screen_fits_and_names_what_to_type(path: tuple[str, ...], width: int) -> None:
    """No line is longer than the screen, no value is named by a type of the program, no default is a raw number."""
    text = help_of(path, width)
    examples = {f"  {line}" for line in examples_of(TREE[path])}
    for line in text.splitlines():
        assert len(line) <= width, line
        if line not in examples:
            assert not re.search(r"<(?:str|int|float|path|list|bool)|\{[a-z_]+\}|\[;|Optional", line), line
    assert not re.search(r"default: (?:86400|\d{7,}(?<!000000))", text), text


def test_commands_stand_in_groups() -> None:
    """What is used every day comes first; the order is that of the work."""
    found: dict[str, list[str]] = {}
    for line in help_of((), 80).splitlines():
        if line.endswith(":"):
            title = line[:-1]
        elif match := re.match(r"  ([a-z]+)  ", line):
            found.setdefault(title, []).append(match[1])
    for title, names in GROUPS.items():
        assert found[title] == names
    assert list(found)[: len(GROUPS)] == list(GROUPS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["devv"], "error: there is no command 'devv'; did you mean dev?\n`boki -h` shows how it is used."),
        (["zzz"], "error: there is no command 'zzz'\n`boki -h` shows how it is used."),
        (
            ["dev", "--prot", "8124"],
            "error: there is no option --prot; did you mean --host or --port?\n`boki dev -h` shows how it is used.",
        ),
        (["--foo"], "error: there is no option --foo\n`boki -h` shows how it is used."),
        (
            ["invoke", "slow_def", "-1"],
            "error: there is no option -1; to pass it as a value, write -- -1\n`boki invoke -h` shows how it is used.",
        ),
        (["invoke"], "error: NAME is missing\n`boki invoke -h` shows how it is used."),
        (["invoke", "a", "b", "c"], "error: too many arguments: c\n`boki invoke -h` shows how it is used."),
        (["invoke", "--key"], "error: --key needs a value"),
        (
            ["log", "read", "b", "--limit", "0"],
            "error: --limit must be at least 1, not 0\n`boki log read -h` shows how it is used.",
        ),
        (
            ["log", "read", "b", "--limit", "many"],
            "error: --limit must be a whole number, not 'many'\n`boki log read -h` shows how it is used.",
        ),
        (
            ["invoke", "f", "--timeout-s", "soon"],
            "error: --timeout-s must be a number, not 'soon'\n`boki invoke -h` shows how it is used.",
        ),
        (
            ["reconfigure", "--logs", "256"],
            "error: --logs must be at most 255, not 256\n`boki reconfigure -h` shows how it is used.",
        ),
        (
            ["sim", "--seed", "3", "--seeds", "4"],
            "error: --seeds: that is for a batch of seeds; --seed runs one\n`boki sim -h` shows how it is used.",
        ),
    ],
)
def test_what_the_parser_refuses_is_said_in_the_one_voice(words: list[str], message: str) -> None:
    """`error:` with the thing, the limit and the value, then where to look; exit code 2."""
    done = CliRunner().invoke(app, words, prog_name="boki")
    assert (done.exit_code, done.output.strip()) == (2, message)
