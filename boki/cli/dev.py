"""`boki dev`: the whole system in this process, until it is told to stop.

SIGTERM or Ctrl-C: not ready any more, drain with a limit, exit 0. A second one ends the process at once with 130; what
was acknowledged is durable, so that nothing is lost by it.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import inspect
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer

from boki.config import DevConfig, Setting, flag, load, settings
from boki.errors import Unavailable

INTERRUPTED = 130


def run(**flags: Any) -> None:
    """Run everything on this machine: log, functions and gateway, over one data directory.

    Each flag can also be set as BOKI_NAME in the environment or as a key of boki.toml; flags win over both.
    """
    file = flags.pop("config")
    names = {_parameter_name(setting): setting.name for setting in settings(DevConfig)}
    config = load(
        DevConfig, flags={names[name]: value for name, value in flags.items()}, environment=os.environ, file=file
    )
    import uvloop

    uvloop.run(serve(config))


async def serve(config: DevConfig) -> None:
    """Start the system, show it, and stop it when a signal says so."""
    from boki.cli.console import Screen
    from boki.dev import Dev

    screen = Screen(config.log_format)
    stop = asyncio.Event()

    def on_signal(name: str) -> None:
        if stop.is_set():
            screen.event("interrupted", f"second {name}: ending at once")
            sys.stdout.flush()
            os._exit(INTERRUPTED)
        stop.set()
        screen.event("draining", f"{name}: stopping, calls have {config.drain_s:g} s to end; once more ends at once")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number.name)
    screen.show_log()
    _check_address(config)
    try:
        dev = await Dev.start(config, screen.line)
    except OSError as error:
        raise Unavailable(
            f"cannot start at {config.host}:{config.port} with {config.data}: {error.strerror or error}",
            errno=error.errno,
        ) from error
    _spare_the_collector()
    screen.started(dev.url, config, dev.functions.modules)
    await stop.wait()
    await dev.stop(config.drain_s)
    screen.event("stopped", "stopped")


def _check_address(config: DevConfig) -> None:
    """`Unavailable` if nobody could listen there: found out before the data directory is made or opened."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        number = error.errno or 0  # of a name that leads nowhere it is negative, and no number of the system's
        why = os.strerror(number).lower() if number > 0 else error.strerror or str(error)
        other = {errno.EADDRINUSE: "choose another with --port, or 0 for any free one", errno.EACCES: "try --port 8080"}
        remedy = other.get(number, "is --host an address of this machine?")
        raise Unavailable(f"cannot listen at {config.host}:{config.port}: {why}; {remedy}", errno=number) from None


def _spare_the_collector() -> None:
    """Rows and batches live long and hold no cycles: a full collection of millions of them would only hold up calls."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 200)


def _parameter_name(setting: Setting) -> str:
    return setting.name.replace(".", "_")


def _command() -> Callable[..., None]:
    """The command with one flag for each setting, so that a new one is written down in one place."""
    parameters = [
        inspect.Parameter(
            "config",
            inspect.Parameter.KEYWORD_ONLY,
            default=typer.Option(None, "--config", metavar="FILE", help="Read this file instead of boki.toml."),
            annotation=Path | None,
        )
    ]
    for setting in settings(DevConfig):
        is_limit = setting.name.startswith("limits.")
        spelled = flag(setting.name)
        is_switch = isinstance(setting.default, bool)
        option = typer.Option(
            None,
            f"{spelled}/{spelled.replace('--', '--no-', 1)}" if is_switch else spelled,
            metavar=None if is_switch else _metavar(setting),
            help=f"{setting.description or 'One of the limits of every request.'} [{_default_text(setting)}]",
            hidden=is_limit,  # there to be set, but not what one looks for in the help text
        )
        # Values stay text: the configuration checks them, and lists every problem at once.
        annotation = bool | None if is_switch else str | None
        parameters.append(
            inspect.Parameter(
                _parameter_name(setting), inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation
            )
        )
    command: Any = lambda **flags: run(**flags)  # noqa: E731 - `run` itself keeps its own signature
    command.__doc__ = run.__doc__
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command  # type: ignore[no-any-return]


def _metavar(setting: Setting) -> str:
    kind = get_args(setting.type)[0] if get_args(setting.type) else setting.type
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    return {int: "N", float: "SECONDS", Path: "PATH"}.get(kind, "TEXT")


def _default_text(setting: Setting) -> str:
    if isinstance(setting.default, bool):
        return "on" if setting.default else "off"
    if isinstance(setting.default, int):
        return f"{setting.default:,}" if setting.name.endswith("_bytes") else str(setting.default)
    return "none" if setting.default == "" else f"{setting.default}"


command = _command()
