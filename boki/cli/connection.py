"""The running system that a command talks to.

`--url` and `--token` win over BOKI_URL and BOKI_TOKEN, those over BOKI_HOST and BOKI_PORT. Without them, in a project's
folder, commands find what runs there: the cluster of a `boki up`, wherever it listens, else the `boki dev` that listens
where `boki.toml` says. The token of a `boki.toml` is sent nowhere but to the address that goes with it, or to that
cluster.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from boki.cli.url_file import url_of
from boki.config.loading import Address, Config, load, refusal
from boki.errors import ConfigError, Unavailable

if TYPE_CHECKING:
    from boki.api.http.blocking_port import BlockingHttpPort
    from boki.client import BlockingClient, Client
    from boki.launch.up.state import SupervisorState

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


def connect_port(url: str, token: str) -> BlockingHttpPort:
    """The same for single requests."""
    from boki.api.http.blocking_port import BlockingHttpPort

    url, token = _meant(url, token)
    return BlockingHttpPort(url, token)


def connect_async(url: str, token: str) -> Client:
    """The same for `async` code."""
    from boki.client import Client

    url, token = _meant(url, token)
    return Client(url, token=token)


def _meant(url: str, token: str) -> tuple[str, str]:
    """The address that a command talks to, and its token."""
    if not url:
        check_file(os.environ)
        address = load(Address, flags={}, environment=os.environ, allow_others=True)
        url, token = running_here(os.environ) or address.url, token or address.token
    return url, token


def check_file(environment: Mapping[str, str]) -> None:
    """`ConfigError` if the project's `boki.toml` has an error, even where a command could do without: it means that
    another command will fail, or look elsewhere than its user expects.
    """
    from boki.config.loading import DevConfig, file_problems
    from boki.config.node import ALL_CONFIGS
    from boki.config.up import UpConfig

    if problems := file_problems([DevConfig, UpConfig, *ALL_CONFIGS], environment):
        raise refusal(problems)


def running_here(environment: Mapping[str, str]) -> str:
    """Where the system listens that runs on the configured data directory, a cluster or a `boki dev`; empty: none
    does, or the variables name another address.
    """
    if "BOKI_HOST" in environment or "BOKI_PORT" in environment:
        return ""
    data = data_directory(None, environment)
    state = supervisor_of(data, environment)
    return state.url if state is not None else url_of(data)


def data_directory(data: Path | None, environment: Mapping[str, str]) -> Path:
    """That data directory, or else the configured one."""
    return data if data is not None else load(_Data, flags={}, environment=environment, allow_others=True).data


def supervisor_of(data: Path | None, environment: Mapping[str, str]) -> SupervisorState | None:
    """The supervisor that runs in that data directory, or else in the configured one; None: there is none."""
    from boki.launch.up.state import read_state

    state = read_state(data_directory(data, environment) / "cluster")
    return state if state is not None and state.is_running else None


def gateway_of(data: Path) -> tuple[str, str]:
    """URL and token of the cluster that `boki up` runs on that data directory. `Unavailable` if none runs."""
    supervisor = supervisor_of(data, {})
    if supervisor is None:
        raise Unavailable(f"no cluster of `boki up` runs on {data}", retryable=False, folder=str(data))
    file = data / "cluster" / "boki.toml"
    if not file.exists():
        return supervisor.url, ""
    return supervisor.url, load(Address, flags={}, environment={}, file=file, allow_others=True).token


def tries(commands: Sequence[str], url: str, token: str) -> str:
    """Lines under each other with commands that reach the system at `url` from the same folder, with no variables set.

    A token is expected in BOKI_TOKEN, never on a command line, where every user of the machine can read it.
    """
    flag, needs_token = _needed(url, token)
    comment = ["             (with the token in BOKI_TOKEN)"] if needs_token else []
    lines = [f"             {command}{flag}" for command in commands]
    return "\n".join([*lines, *comment]).replace("             ", "  try        ", 1)


def _needed(url: str, token: str) -> tuple[str, bool]:
    """The flag that a command must be given, if any, and whether it needs a token that `boki.toml` does not have."""
    parts = urlsplit(url)
    listening = Address(host=parts.hostname or "", port=parts.port or 0, token=token)
    try:
        configured = load(Address, flags={}, environment={}, allow_others=True)
        is_there = running_here({}) == listening.url or configured.url == listening.url
    except ConfigError:
        configured, is_there = Address(), False
    has_token = not token or (is_there and configured.token == token)
    return "" if is_there else f" --url {listening.url}", not has_token
