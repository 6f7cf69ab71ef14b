"""The running system that a command talks to.

`--url` and `--token` win over BOKI_URL and BOKI_TOKEN, those over BOKI_HOST and BOKI_PORT, those over `boki.toml`: in a
project's folder, commands find the `boki dev` that runs there. The token of a `boki.toml` is sent nowhere but to the
address that goes with it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from boki.config import Address, load
from boki.errors import ConfigError

if TYPE_CHECKING:
    from boki.client import BlockingClient

Url = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="BOKI_URL",
        metavar="URL",
        help="Where the system listens; else where BOKI_HOST, BOKI_PORT and boki.toml say that it does.",
    ),
]
Token = Annotated[str, typer.Option("--token", envvar="BOKI_TOKEN", metavar="TEXT", help="Its bearer token.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]


def connect(url: str, token: str) -> BlockingClient:
    """A client of that system, or if there is no `url` of the configured one; nothing is sent before the first request.

    `ConfigError` if the configured address is none.
    """
    from boki.client import BlockingClient

    if not url:
        address = load(Address, flags={}, environment=os.environ, allow_others=True)
        url, token = address.url, token or address.token
    return BlockingClient(url, token=token)


def needed_flags(url: str, token: str) -> str:
    """What a command in the same folder, with no variables set, must say to reach the system at `url`: a text to put
    behind it, empty if its `boki.toml` is enough. A token is not spelled out: it is expected in BOKI_TOKEN.
    """
    parts = urlsplit(url)
    listening = Address(host=parts.hostname or "", port=parts.port or 0, token=token)
    try:
        configured = load(Address, flags={}, environment={}, allow_others=True)
        is_there = configured.url == listening.url
    except ConfigError:
        configured, is_there = Address(), False
    url_flag = "" if is_there else f" --url {listening.url}"
    has_token = not token or (is_there and configured.token == token)
    return url_flag if has_token else f"{url_flag} --token $BOKI_TOKEN"
