"""What `boki up` becomes once its flags are read: the supervisor, with what it shows.

It is a program of its own, because it stays: the parser of the command line would take a third of its memory. The first
SIGTERM or Ctrl-C stops the nodes in order, so that calls can end; a second one ends everything at once, which loses
nothing acknowledged. A closed terminal (SIGHUP) begins a stop, too, unless `nohup` has it ignored, and never is a
second one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

import msgspec

from boki.cli.explaining import INTERRUPTED, exit_code_of, explain
from boki.cli.up_screen import UpScreen
from boki.config.up import UpConfig
from boki.errors import BokiError
from boki.host.data_directory import DataDirectory, starting_on
from boki.host.private_files import keep_private
from boki.launch.up.launch import prepare
from boki.launch.up.probe import is_ready, status_of
from boki.launch.up.server import Supervisor, end_leftovers
from boki.launch.up.state import SupervisorState

_REMIND_S: Final = 30.0
_POLL_S: Final = 0.1
_STATUS_EVERY_S: Final = 1.0


def command(config: UpConfig) -> tuple[list[str], int]:
    """What starts this program, and the file descriptor that it is to inherit, of an unnamed file with the
    configuration: others on this machine can see flags, and it holds secrets. The other words are for people who look
    at the list of processes.
    """
    with TemporaryFile() as file:
        file.write(msgspec.json.encode(config, enc_hook=str))
        file.seek(0)
        link = os.dup(file.fileno())
    return [sys.executable, "-P", "-m", "boki.cli.supervise", str(link), "up", "--data", str(config.data)], link


def main() -> None:
    """Read the configuration, and run the cluster until a signal ends it; see `boki.cli.main` for exit codes."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # until there is a loop that hears it
    with os.fdopen(int(sys.argv[1]), "rb") as link:
        config = msgspec.json.decode(link.read(), type=UpConfig, dec_hook=_path)
    try:
        asyncio.run(serve(config))
    except BokiError as error:
        explain(error, ["up"])
        sys.exit(exit_code_of(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _path(_kind: type, text: Any) -> Path:
    return Path(text)


async def serve(config: UpConfig) -> None:
    """Start the cluster, show it, and stop it when a signal says so."""
    keep_private()
    with starting_on(config.data):
        directory = DataDirectory(config.data)
    try:
        with starting_on(config.data):
            ended = end_leftovers(config.folder)
            launch = prepare(config)
        supervisor = Supervisor(
            config.folder,
            launch.processes,
            launch.about,
            environment=launch.environment,
            on_event=lambda event, text, facts: screen.event(event, text, facts),
        )
        screen = UpScreen(config.log_format, supervisor.core, launch.facts)
        if ended:
            screen.event("ended", f"ended what a killed supervisor had left: {', '.join(ended)}", {"nodes": ended})
        _listen(supervisor, screen, config)
        screen.start()
        watcher = asyncio.create_task(_watch(screen, launch.about, config))
        try:
            await supervisor.run()
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
            screen.stop()
        screen.event("stopped", "the cluster has stopped", {})
    finally:
        directory.close()


def _listen(supervisor: Supervisor, screen: UpScreen, config: UpConfig) -> None:
    def stop(name: str) -> None:
        text = f"{name}: stopping, calls have {config.drain_s:g} s to end; once more ends everything at once"
        supervisor.stop()
        screen.event("draining", text, {})

    def on_signal(name: str) -> None:
        if not supervisor.core.is_stopping:
            stop(name)
            return
        supervisor.kill()
        screen.stop()
        screen.event("interrupted", f"second {name}: ending everything at once", {})
        os._exit(INTERRUPTED)

    def on_hangup() -> None:
        """The terminal is gone, which asks for nothing more if a stop has begun."""
        if not supervisor.core.is_stopping:
            stop(signal.SIGHUP.name)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number.name)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as `nohup` has it, to outlive the terminal
        loop.add_signal_handler(signal.SIGHUP, on_hangup)


async def _watch(screen: UpScreen, about: SupervisorState, config: UpConfig) -> None:
    """Tell when the cluster is ready, and keep the screen fresh."""
    started = told_at = time.monotonic()
    while not await is_ready(about.url):
        screen.refresh()
        if time.monotonic() - told_at > _REMIND_S:
            told_at = time.monotonic()
            text = f"not ready after {told_at - started:.0f} s: {config.folder / 'logs'} say what is waited for"
            screen.event("waiting", text, {})
        await asyncio.sleep(_POLL_S)
    screen.is_ready = True
    facts = {"url": about.url, "zookeeper": about.zookeeper, "data": str(config.data.resolve())}
    took_s = time.monotonic() - started
    screen.event("ready", f"listening on {about.url}, ready after {took_s:.1f} s", facts)
    while screen.is_live:
        screen.status = await status_of(about.url, config.token)
        screen.is_ready = bool(screen.status and screen.status.get("ready"))
        screen.refresh()
        await asyncio.sleep(_STATUS_EVERY_S)


if __name__ == "__main__":
    main()
