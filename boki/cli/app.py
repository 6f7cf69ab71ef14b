"""The commands, and how an error ends one: its message and what to do next, never a traceback."""

from __future__ import annotations

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
    queue_leases,
    reconfigure,
    sim,
    start,
    status,
    up,
)
from boki.cli.help import Commands, Group, examples
from boki.cli.terminal import errors
from boki.cli.usage import PARSER_ERROR, hint_of, is_help, message_of
from boki.errors import BokiError, InvalidArgument, Unauthorized, Unavailable
from boki.host.lines import printable

FAILED = 1
USAGE = 2
INTERRUPTED = 130
_KEYED = (("invoke",), ("log", "append"), ("queue", "push"))
"""Commands that take a --key."""


class _Root(Group):
    """Turns Boki's errors and the parser's into messages and exit codes, also under a test runner."""

    order = (
        *("new", "dev", "invoke", "calls", "status", "log", "queue", "demo"),
        *("up", "down", "deploy", "functions", "logs", "reconfigure", "drain", "undrain", "keygen", "start"),
        "ingest",
        *("bench", "chaos", "sim", "doctor", "completion"),
    )

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """See `typer.core.TyperGroup`."""
        try:
            return super().parse_args(ctx, args)
        except PARSER_ERROR as error:
            raise _refused(error) from None

    def invoke(self, ctx: Any) -> Any:
        """See `typer.core.TyperGroup`."""
        words = [*ctx._protected_args, *ctx.args]  # noqa: SLF001 - what the parser has read is told nowhere else
        try:
            return super().invoke(ctx)
        except PARSER_ERROR as error:
            raise _refused(error) from None
        except BokiError as error:
            explain(error, words)
            raise typer.Exit(USAGE if isinstance(error, InvalidArgument) else FAILED) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def _refused(error: Exception) -> Exception:
    """Say what the parser refuses; what to raise then."""
    if is_help(error):
        return error
    console = errors()
    console.print(f"[bold red]error[/]: {_escape(message_of(error))}", highlight=False)
    if hint := hint_of(error):
        console.print(hint, style="dim", highlight=False, markup=False)
    return typer.Exit(USAGE)


def explain(error: BokiError, words: Sequence[str] = ()) -> None:
    """Print the error for people: what happened, whether it took effect, what to do next. `words`: what was typed."""
    console = errors()
    console.print(f"[bold red]error[/]: {_escape(error.message)}", highlight=False)
    if error.outcome == "unknown" and "call" not in error.details:
        console.print(_uncertain(words))
    elif error.retryable:
        console.print("Nothing happened. The same command may work later.")
    if isinstance(error, Unauthorized):
        console.print("Give the server's token with --token or in BOKI_TOKEN.")
    elif isinstance(error, Unavailable) and not error.details:
        console.print(
            "`boki status` shows what is up; `boki dev` or `boki up` starts a system on this machine.", highlight=False
        )
    if traceback := error.details.get("traceback"):
        console.print(_escape(str(traceback).rstrip()), style="dim", highlight=False)


def _uncertain(words: Sequence[str]) -> str:
    """What to do about a request whose outcome is unknown."""
    if any(word == "--key" or word.startswith("--key=") for word in words):
        return "It may have taken effect: the same command, under the same --key, does it once."
    advice = "It may have taken effect: look before you repeat it."
    if any(tuple(words[: len(keyed)]) == keyed for keyed in _KEYED):
        advice += " Give it a --key next time: then it can be repeated without doing it twice."
    return advice


def _escape(text: str) -> str:
    """The text of an error, which may be a function's: neither markup nor control characters have a meaning in it."""
    return "\n".join(map(printable, text.split("\n"))).replace("[", r"\[")


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
app.add_typer(queue_leases.app, name="queue", rich_help_panel=DEVELOP)
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
