"""The running system that a command talks to.

`--url` and `--token` win over BOKI_URL and BOKI_TOKEN, those over BOKI_HOST and BOKI_PORT. Without them, in a project's
folder, commands find what runs there: the cluster of a `boki up`, wherever it listens, else the `boki dev` that listens
where `boki.toml` says. The token of a `boki.toml` is sent nowhere but to the address that goes with it, or to that
cluster.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from boki.config import Address, Config, load
from boki.errors import ConfigError

if TYPE_CHECKING:
    from boki.client import BlockingClient, Client
    from boki.cluster.state import SupervisorState

Url = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="BOKI_URL",
        metavar="URL",
        help="Where the system listens; else the one that runs in this folder.",
    ),
]
Token = Annotated[str, typer.Option("--token", envvar="BOKI_TOKEN", metavar="TEXT", help="Its bearer token.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]


class _Data(Config, frozen=True, kw_only=True):
    """Where data is, as all configurations call it."""

    data: Path = Path(".boki")


def connect(url: str, token: str) -> BlockingClient:
    """A client of that system, or if there is no `url` of the configured one; nothing is sent before the first request.

    `ConfigError` if the configured address is none.
    """
    from boki.client import BlockingClient

    url, token = _meant(url, token)
    return BlockingClient(url, token=token)


def connect_async(url: str, token: str) -> Client:
    """The same for `async` code."""
    from boki.client import Client

    url, token = _meant(url, token)
    return Client(url, token=token)


def _meant(url: str, token: str) -> tuple[str, str]:
    """The address that a command talks to, and its token."""
    if not url:
        address = load(Address, flags={}, environment=os.environ, allow_others=True)
        url, token = running_here(os.environ) or address.url, token or address.token
    return url, token


def running_here(environment: Mapping[str, str]) -> str:
    """Where the cluster listens that a supervisor runs in the configured data directory; empty: none does, or the
    variables name another address.
    """
    if "BOKI_HOST" in environment or "BOKI_PORT" in environment:
        return ""
    state = supervisor_of(None, environment)
    return state.url if state is not None else ""


def data_directory(data: Path | None, environment: Mapping[str, str]) -> Path:
    """That data directory, or else the configured one."""
    return data if data is not None else load(_Data, flags={}, environment=environment, allow_others=True).data


def supervisor_of(data: Path | None, environment: Mapping[str, str]) -> SupervisorState | None:
    """The supervisor that runs in that data directory, or else in the configured one; None: there is none."""
    from boki.cluster.state import read_state

    state = read_state(data_directory(data, environment) / "cluster")
    return state if state is not None and state.is_running else None


def needed_flags(url: str, token: str) -> str:
    """What a command in the same folder, with no variables set, must say to reach the system at `url`: a text to put
    behind it, empty if its `boki.toml` is enough. A token is not spelled out: it is expected in BOKI_TOKEN.
    """
    parts = urlsplit(url)
    listening = Address(host=parts.hostname or "", port=parts.port or 0, token=token)
    try:
        configured = load(Address, flags={}, environment={}, allow_others=True)
        is_there = running_here({}) == listening.url or configured.url == listening.url
    except ConfigError:
        configured, is_there = Address(), False
    url_flag = "" if is_there else f" --url {listening.url}"
    has_token = not token or (is_there and configured.token == token)
    return url_flag if has_token else f"{url_flag} --token $BOKI_TOKEN"
