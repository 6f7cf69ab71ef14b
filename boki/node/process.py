"""A node as a process: its log, its signals, and how it ends.

`boki start` runs one with the command line's parser in front. What a supervisor's zygote forks runs `main`: that parser
would take 12 MiB in each node.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from boki.config.loading import flag, settings
from boki.config.node import ALL_CONFIGS, CONFIGS, GatewayNodeConfig, NodeConfig, load_host, load_node
from boki.errors import BokiError, InvalidArgument
from boki.host.address import check_address
from boki.host.private_files import keep_private
from boki.host.process import prepare_process, spare_the_collector
from boki.log.membership import Role
from boki.node.console import log_to
from boki.node.run import incarnation_of, run_node

_NODE: Final = "node"
"""What is started to play several roles."""
_INTERRUPTED: Final = 130
_FAILED: Final = 1
_REFUSED: Final = 2

_log = logging.getLogger("boki.node")


def run_process(config: NodeConfig, roles: Mapping[Role, NodeConfig]) -> int:
    """Run the node in this process until a signal or a failure ends it; the exit code.

    SIGTERM or SIGINT: drain with a limit, 0. A second one ends the process at once with 130. `Unavailable` if its
    gateway could not listen, before any role takes part.
    """
    gateway = roles.get(Role.GATEWAY)
    if isinstance(gateway, GatewayNodeConfig):
        check_address(gateway.host, gateway.port, reuse_port=gateway.reuse_port)
    log_to(sys.stdout, config.log_format, config.name)
    import uvloop

    for role in roles:
        incarnation_of(role)  # imports it before `spare_the_collector` counts its objects as permanent
    prepare_process()
    exit_code: int = uvloop.run(_serve(config, roles))
    return exit_code


def main(arguments: Sequence[str]) -> int:
    """Run the node that a supervisor starts by these arguments of `boki`; the exit code. Each setting has its flag, as
    text: only switches of the command line that turn a setting off are not known here.
    """
    parser = ArgumentParser("boki", allow_abbrev=False)
    parser.add_argument("command", choices=["start"])
    parser.add_argument("role", choices=[_NODE, *CONFIGS])
    parser.add_argument("--config", required=True, type=Path)
    names = {setting.name for kind in ALL_CONFIGS for setting in settings(kind)}
    for name in sorted(names):
        parser.add_argument(flag(name), dest=name)
    given = parser.parse_args(arguments)
    flags = {name: value for name in names if (value := getattr(given, name)) is not None}
    file: Path = given.config
    try:
        if given.role == _NODE:
            config, roles = load_host(flags=flags, environment=os.environ, file=file)
            return run_process(config, roles)
        role = Role(given.role)
        own = load_node(role, flags=flags, environment=os.environ, file=file)
        return run_process(own, {role: own})
    except BokiError as error:
        print(f"error: {error}", file=sys.stderr)
        return _REFUSED if isinstance(error, InvalidArgument) else _FAILED


async def _serve(config: NodeConfig, roles: Mapping[Role, NodeConfig]) -> int:
    """Run the node until a signal or a failure ends it; the exit code."""
    keep_private()
    stop = asyncio.Event()

    def on_signal(name: str) -> None:
        if stop.is_set():
            os._exit(_INTERRUPTED)
        _log.info("%s: %s: stopping; once more ends at once", config.name, name)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number.name)
    spare_the_collector()
    exit_code = await run_node(config, roles, stop)
    _log.info("%s has %s", config.name, "failed" if exit_code else "stopped")
    return exit_code
