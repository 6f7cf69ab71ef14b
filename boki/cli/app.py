"""The commands, and how an error ends one: its message and what to do next, never a traceback."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from boki.cli import (
    bench,
    chaos,
    demo,
    deploy,
    dev,
    functions,
    ingest,
    invoke,
    keygen,
    log,
    new,
    queue,
    reconfigure,
    sim,
    start,
    status,
    up,
)
from boki.cli.terminal import errors
from boki.errors import BokiError, InvalidArgument, Unauthorized, Unavailable

FAILED = 1
USAGE = 2
INTERRUPTED = 130


class _Group(TyperGroup):
    """Turns Boki's errors into messages and exit codes, also under a test runner."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BokiError as error:
            explain(error)
            raise typer.Exit(USAGE if isinstance(error, InvalidArgument) else FAILED) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def explain(error: BokiError) -> None:
    """Print the error for people: what happened, whether it took effect, what to do next."""
    console = errors()
    console.print(f"[bold red]error[/]: {_escape(error.message)}", highlight=False)
    if error.outcome == "unknown":
        console.print("It may have taken effect: look before you repeat it, or repeat it under the same --key.")
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


def _escape(text: str) -> str:
    return text.replace("[", r"\[")


app = typer.Typer(
    cls=_Group,
    help="Serverless Python functions over a replicated, totally ordered shared log.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"boki {version('boki')}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """See the help text of `app`."""


app.command("dev")(dev.command)
app.command("demo")(demo.command)
app.command("new")(new.command)
app.command("invoke")(invoke.command)
app.add_typer(log.app, name="log")
app.add_typer(queue.app, name="queue")
app.command("status")(status.command)
app.command("up")(up.command)
app.command("down")(up.down)
app.add_typer(start.app, name="start")
app.command("deploy")(deploy.command)
app.add_typer(functions.app, name="functions")
app.command("keygen")(keygen.command)
app.command("reconfigure")(reconfigure.command)
app.command("drain")(reconfigure.drain)
app.command("undrain")(reconfigure.undrain)
app.add_typer(ingest.app, name="ingest")
app.command("bench")(bench.command)
app.command("chaos")(chaos.command)
app.command("sim")(sim.command)
