"""The running system that a command talks to: `--url` and `--token`, or BOKI_URL and BOKI_TOKEN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from boki.client import BlockingClient

DEFAULT_URL = "http://127.0.0.1:8080"

Url = Annotated[str, typer.Option("--url", envvar="BOKI_URL", metavar="URL", help="Where the system listens.")]
Token = Annotated[str, typer.Option("--token", envvar="BOKI_TOKEN", metavar="TEXT", help="Its bearer token.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]


def connect(url: str, token: str) -> BlockingClient:
    """A client of that system; nothing is sent before the first request."""
    from boki.client import BlockingClient

    return BlockingClient(url, token=token)
