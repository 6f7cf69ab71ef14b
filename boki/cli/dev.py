"""`boki dev`: the whole system in this process, until it is told to stop.

SIGTERM or Ctrl-C: not ready any more, drain with a limit, exit 0. A second one ends the process at once with 130; what
was acknowledged is durable, so that nothing is lost by it. If the log cannot continue, because a disk failed: exit 1.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boki.cli.explaining import FAILED, INTERRUPTED
from boki.cli.flags import command_of, load_flags
from boki.cli.help import examples
from boki.cli.url_file import announced
from boki.config.loading import DevConfig
from boki.config.up import UpConfig
from boki.errors import DataDirectoryInUse, InvalidArgument, Unavailable
from boki.host.address import check_address
from boki.host.process import prepare_process, spare_the_collector

if TYPE_CHECKING:
    from boki.cli.console import Screen
    from boki.launch.dev import Dev


@examples("boki dev", "boki dev --port 8123 --functions src/functions", "boki dev --replicas 3 --data data")
def run(**flags: Any) -> None:
    """Run the whole system on this machine, in one process.

    Log, functions and gateway share one data directory; modules are loaded again when their files change.

    Each flag can also be set as BOKI_NAME in the environment or as a key of boki.toml; flags win over both.
    """
    config = load_flags(DevConfig, flags, flags.pop("config"), shares_with=UpConfig)
    check_functions(flags["functions"], config.functions)
    import uvloop

    prepare_process()
    uvloop.run(serve(config))


async def serve(config: DevConfig) -> None:
    """Start the system, show it, and stop it when a signal says so."""
    from boki.cli.console import Screen
    from boki.host.private_files import keep_private
    from boki.launch.dev import Dev

    keep_private()
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
    screen.show_log(quiet=config.quiet)
    check_address(config.host, config.port)
    try:
        dev = await Dev.start(config, screen.line, None if config.quiet else screen.call_lines())
    except DataDirectoryInUse as error:
        raise _in_use_by_cluster(config.data) or error from None
    except OSError as error:
        raise Unavailable(
            f"cannot start at {config.host}:{config.port} with {config.data}: {error.strerror or error}",
            errno=error.errno,
        ) from error
    spare_the_collector()
    with announced(config.data, dev.url):
        screen.started(dev.url, config, dev.functions.modules)
        await _until_stopped(dev, stop, screen)
    await dev.stop(config.drain_s)
    screen.event("stopped", "stopped")


async def _until_stopped(dev: Dev, stop: asyncio.Event, screen: Screen) -> None:
    """Return when a signal says so; the process ends here if the log cannot continue."""
    stopping, broken = asyncio.create_task(stop.wait()), asyncio.create_task(dev.wait_for_outage())
    await asyncio.wait({stopping, broken}, return_when=asyncio.FIRST_COMPLETED)
    if broken.done():
        screen.event("failed", f"{broken.result()}: ending; the lines above say why")
        await dev.stop(0)
        raise SystemExit(FAILED)
    broken.cancel()


def _in_use_by_cluster(data: Path) -> DataDirectoryInUse | None:
    """What to do if it is a cluster that uses the data."""
    from boki.launch.up.state import read_state

    state = read_state(data / "cluster")
    if state is None or not state.is_running:
        return None
    return DataDirectoryInUse(
        f"data directory {data} is in use by the cluster of `boki up` at {state.url}: stop it with `boki down`, or "
        "choose another directory with --data"
    )


def check_functions(flag: object, folder: Path) -> None:
    """A folder that was named on the command line is there; the default one may be missing."""
    if flag is not None and not folder.is_dir():
        raise InvalidArgument(f"--functions {folder}: there is no such folder", field="functions")


command = command_of(run, DevConfig)
