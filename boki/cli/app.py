"""The commands, and how an error ends one: its message and what to do next, never a traceback."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer

from boki.cli import (
    bench,
    calls,
    chaos,
    completion,
    demo,
    deploy,
    dev,
    doctor,
    functions,
    ingest,
    invoke,
    keygen,
    log,
    logs,
    new,
    reconfigure,
    sim,
    start,
    status,
    up,
)
from boki.cli.explaining import INTERRUPTED, USAGE, escape, exit_code_of, explain
from boki.cli.help import Commands, Group, examples
from boki.cli.libraries import commands_of, groups_besides, say_problems
from boki.cli.terminal import errors, stop_writing
from boki.cli.usage import PARSER_ERROR, hint_of, is_help, message_of
from boki.errors import BokiError

UNREAD = 141
"""Nobody reads stdout any more (`boki … | head`): what a shell says of `cat` there, which SIGPIPE ends. The signal is
not let through, because it would also end a command whose connection breaks."""
_DEVELOP = ("new", "dev", "invoke", "calls", "status", "log")
_OTHERS = (
    "demo",
    *("up", "down", "deploy", "functions", "logs", "reconfigure", "drain", "undrain", "keygen", "start"),
    "ingest",
    *("bench", "chaos", "sim", "doctor", "completion"),
)
_OWN = (*_DEVELOP, *_OTHERS)
_GROUPS = groups_besides(_OWN)


class _Root(Group):
    """Turns Boki's errors and the parser's into messages and exit codes, also under a test runner."""

    order = (*_DEVELOP, *(group.name for group in _GROUPS), *_OTHERS)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """See `typer.core.TyperGroup`."""
        try:
            return super().parse_args(ctx, args)
        except PARSER_ERROR as error:
            raise _refused(error) from None
        except BrokenPipeError:
            raise _unread() from None

    def invoke(self, ctx: Any) -> Any:
        """See `typer.core.TyperGroup`."""
        say_problems(_OWN)
        words = [*ctx._protected_args, *ctx.args]  # noqa: SLF001 - what the parser has read is told nowhere else
        try:
            return _written(super().invoke(ctx))
        except PARSER_ERROR as error:
            raise _refused(error) from None
        except BokiError as error:
            explain(error, words, _command_of(self, words))
            raise typer.Exit(exit_code_of(error)) from None
        except BrokenPipeError:
            raise _unread() from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def _written(result: Any) -> Any:
    """The result of a command, once all that it has printed has left; `BrokenPipeError`"""
    sys.stdout.flush()
    return result


def _unread() -> typer.Exit:
    """End a command whose output nobody reads any more."""
    stop_writing()
    return typer.Exit(UNREAD)


def _refused(error: Exception) -> Exception:
    """Say what the parser refuses; what to raise then."""
    if is_help(error):
        return error
    console = errors()
    console.print(f"[bold red]error[/]: {escape(message_of(error))}", highlight=False)
    if hint := hint_of(error):
        console.print(hint, style="dim", highlight=False, markup=False)
    return typer.Exit(USAGE)


def _command_of(root: Any, words: Sequence[str]) -> Any:
    """The command that was typed."""
    command = root
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    return command


app = Commands("Serverless Python functions over a replicated, totally ordered shared log.", cls=_Root)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"boki {version('boki')}")
        raise typer.Exit


@app.callback()
@examples("boki new hello", "boki dev", "boki invoke greet Ada", "boki up --detach", "boki log -h")
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """See the help text of `app`."""


DEVELOP = "Develop"
CLUSTER = "Cluster"
SPARK = "Spark"
MEASURE = "Measure and test"

app.command("new", rich_help_panel=DEVELOP)(new.command)
app.command("dev", rich_help_panel=DEVELOP)(dev.command)
app.command("invoke", rich_help_panel=DEVELOP)(invoke.command)
app.add_typer(calls.app, name="calls", rich_help_panel=DEVELOP)
app.command("status", rich_help_panel=DEVELOP)(status.command)
app.add_typer(log.app, name="log", rich_help_panel=DEVELOP)
for _group in _GROUPS:
    app.add_typer(commands_of(_group), name=_group.name, rich_help_panel=DEVELOP)
app.command("demo", rich_help_panel=DEVELOP)(demo.command)
app.command("up", rich_help_panel=CLUSTER)(up.command)
app.command("down", rich_help_panel=CLUSTER)(up.down)
app.command("logs", rich_help_panel=CLUSTER)(logs.command)
app.command("deploy", rich_help_panel=CLUSTER)(deploy.command)
app.add_typer(functions.app, name="functions", rich_help_panel=CLUSTER)
app.command("reconfigure", rich_help_panel=CLUSTER)(reconfigure.command)
app.command("drain", rich_help_panel=CLUSTER)(reconfigure.drain)
app.command("undrain", rich_help_panel=CLUSTER)(reconfigure.undrain)
app.command("keygen", rich_help_panel=CLUSTER)(keygen.command)
app.add_typer(start.app, name="start", rich_help_panel=CLUSTER)
app.add_typer(ingest.app, name="ingest", rich_help_panel=SPARK)
app.command("bench", rich_help_panel=MEASURE)(bench.command)
app.command("chaos", rich_help_panel=MEASURE)(chaos.command)
app.command("sim", rich_help_panel=MEASURE)(sim.command)
app.command("doctor", rich_help_panel=MEASURE)(doctor.command)
app.command("completion", rich_help_panel=MEASURE)(completion.command)
