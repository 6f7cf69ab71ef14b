"""`boki invoke`: call a function and print its result."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from boki.cli.connection import DEFAULT_URL, Token, Url, connect
from boki.cli.terminal import results


def command(
    name: Annotated[str, typer.Argument(help="The function.", show_default=False)],
    payload: Annotated[
        str, typer.Argument(help="JSON, or text if it is no JSON; - reads it from stdin.", show_default=False)
    ] = "",
    book: Annotated[str, typer.Option(help="Run it with this LogBook instead of its own.")] = "",
    key: Annotated[str, typer.Option(help="Idempotency key: the same key runs it once.")] = "",
    is_async: Annotated[bool, typer.Option("--async", help="Log the call, print its id, do not wait.")] = False,
    delay_s: Annotated[float, typer.Option(help="With --async: run it after so many seconds.")] = 0.0,
    timeout_s: Annotated[float | None, typer.Option(help="Give up after so many seconds.")] = None,
    url: Url = DEFAULT_URL,
    token: Token = "",
) -> None:
    """Call a function and print its result, JSON indented for people and on one line in a pipe."""
    if delay_s and not is_async:
        raise typer.BadParameter("a delay needs --async", param_hint="--delay-s")
