"""`boki up` and `boki down`: a whole cluster on this machine.

`boki up` reads its flags and becomes the supervisor (`boki.cli.supervise`), which stays and shows who is alive; with
`--detach` it starts that, and leaves when the cluster is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from boki.cli.connection import data_directory, tries
from boki.cli.dev import check_functions
from boki.cli.flags import command_of, load_flags
from boki.cli.help import examples
from boki.cli.terminal import errors, progress, results
from boki.config.loading import ENV_PREFIX, DevConfig
from boki.config.up import UpConfig
from boki.errors import BokiError, ConfigError, Unavailable
from boki.host.address import check_address

if TYPE_CHECKING:
    from boki.launch.up.state import SupervisorState

_START_TIMEOUT_S: Final = 90.0
_POLL_S: Final = 0.1
_STOP_MARGIN_S: Final = 10.0
_KILL_S: Final = 60.0
_SHOWN_LINES: Final = 15
_MAX_STARTS: Final = 5
"""A process that ended so often before the cluster was ready will not run: its delays are over two seconds by then."""
_STOPPING: Final = frozenset({"draining", "stopping", "stopped", "exited", "started"})


@examples("boki up", "boki up --detach --engines 3", "boki up --storage 5 --replicas 3 --write-quorum 2")
def run(**flags: Any) -> None:
    """Run a whole cluster on this machine.

    Three nodes that play all roles, watched and started again when they end.

    Each flag can also be set as BOKI_NAME in the environment or as a key of boki.toml; flags win over both.
    """
    is_detached = flags.pop("detach")
    config = load_flags(UpConfig, flags, flags.pop("config"), shares_with=DevConfig)
    check_functions(flags["functions"], config.functions)
    refuse_second(config)
    check_address(config.host, config.port)
    if config.zookeeper:
        from boki.launch.up.probe import check_zookeeper

        check_zookeeper(config.zookeeper)
    else:
        from boki.launch.zookeeper.parts import find_parts

        find_parts()
    if is_detached:
        _detach(config)
    else:
        _become_supervisor(config)


def refuse_second(config: UpConfig) -> None:
    """`Unavailable` if a cluster runs on that data already."""
    from boki.launch.up.state import readable_state

    state = readable_state(config.folder)
    if state is not None and state.is_running:
        raise Unavailable(
            f"a cluster on {config.data} runs already, at {state.url} (process {state.pid}): `boki status` shows it, "
            "`boki down` stops it",
            retryable=False,
            pid=state.pid,
        )


def _become_supervisor(config: UpConfig) -> NoReturn:
    from boki.cli import supervise
    from boki.host.data_directory import starting_on

    with starting_on(config.data):
        command, link = supervise.command(config)
    os.set_inheritable(link, True)
    sys.stdout.flush()
    os.execv(command[0], command)  # noqa: S606 - it is this very program


def _detach(config: UpConfig) -> None:
    """Start a supervisor of its own session, and wait until its cluster is ready."""
    from boki.host.data_directory import starting_on

    log_file = config.folder / "logs" / "supervisor.log"
    with starting_on(config.data):
        process, begin_bytes = _start_supervisor(config, log_file)
    try:
        state = _wait_ready(process, config)
    except BaseException as error:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2 * config.drain_s + _KILL_S)
        if isinstance(error, BokiError):
            _explain(log_file, begin_bytes, config)
        raise
    results().print(f"[bold green]Boki[/] is listening on [bold]{state.url}[/] (supervisor: process {state.pid})")
    results().print(f"  data       {config.folder}\n  logs       {config.folder / 'logs'}", markup=False)
    commands = tries(["boki status", "boki log books"], state.url, config.token)
    results().print(f"{commands}\n             {down_command(config.data)}", style="dim", markup=False)


def _start_supervisor(config: UpConfig, log_file: Path) -> tuple[subprocess.Popen[bytes], int]:
    """The process, and how long its log was before."""
    from boki.cli import supervise
    from boki.host.data_directory import DataDirectory
    from boki.launch.up.logs import open_log

    DataDirectory(config.data).close()  # refuses here what the supervisor could only write into its log
    log = open_log(log_file)
    begin_bytes = log_file.stat().st_size
    command, link = supervise.command(config)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)},
        pass_fds=(link,),
        start_new_session=True,
    )
    os.close(link)
    os.close(log)
    return process, begin_bytes


def down_command(data: Path) -> str:
    """What stops the cluster on that data from the same folder, with no variables set."""
    try:
        is_found = data_directory(None, {}) == data
    except ConfigError:
        is_found = False
    return "boki down" if is_found else f"boki down --data {data}"


def _wait_ready(process: subprocess.Popen[bytes], config: UpConfig) -> SupervisorState:
    from boki.launch.up.probe import is_ready
    from boki.launch.up.state import readable_state

    deadline = time.monotonic() + _START_TIMEOUT_S
    with progress(counted=False) as bar:
        bar.add_task("starting the cluster", total=None)
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise Unavailable("the supervisor ended before the cluster was ready", retryable=False)
            state = readable_state(config.folder)
            if state is not None and state.pid == process.pid:
                if asyncio.run(is_ready(state.url)):
                    return state
                if failure := failed_start(state):
                    raise Unavailable(failure, retryable=False)
            time.sleep(_POLL_S)
    raise Unavailable(f"the cluster was not ready after {_START_TIMEOUT_S:g} s", retryable=False)


def failed_start(state: SupervisorState) -> str:
    """Why the cluster will not become ready: a process that ends again and again. Empty: none does."""
    from boki.launch.up.logs import last_lines

    for row in state.processes:
        if row.restarts >= _MAX_STARTS:
            said = last_lines(Path(row.log), 1)
            reason = f": {said[0]}" if said else ""
            return f"{row.node} has ended {row.restarts} times and the cluster cannot start{reason}"
    return ""


def said_by_supervisor(text: str) -> list[str]:
    """Its lines for people: events as their texts, without those that only say that it stops."""
    lines = []
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            lines.append(line)
        elif event.get("event") not in _STOPPING:
            lines.append(str(event.get("text", line)))
    return lines[-_SHOWN_LINES:]


def _explain(log_file: Path, begin_bytes: int, config: UpConfig) -> None:
    """What the supervisor and those roles that could not run have said last."""
    from boki.launch.up.logs import last_lines
    from boki.launch.up.state import readable_state

    with log_file.open("rb") as stream:
        stream.seek(begin_bytes)
        said = stream.read().decode(errors="replace")
    for line in said_by_supervisor(said):
        errors().print(line, style="dim", markup=False)
    state = readable_state(config.folder)
    for row in state.processes if state else ():
        if row.restarts or row.node == "controller-1":  # it says what all wait for
            often = f"was started {row.restarts + 1} times" if row.restarts else "has said last"
            errors().print(f"{row.node} {often}; {row.log}:", markup=False)
            for line in last_lines(Path(row.log)):
                errors().print(f"  {line}", style="dim", markup=False)


@examples("boki down", "boki down --data data")
def down(
    data: Annotated[Path | None, typer.Option(metavar="PATH", envvar="BOKI_DATA", help="The data directory.")] = None,
) -> None:
    """Stop the cluster that `boki up` runs here.

    What was acknowledged is durable and stays.
    """
    from boki.launch.up import identity
    from boki.launch.up.server import end_leftovers
    from boki.launch.up.state import readable_state

    directory = data_directory(data, os.environ)
    folder = UpConfig(data=directory).folder
    state = readable_state(folder)
    if state is None or not state.is_running:
        left = end_leftovers(folder)
        if left:
            results().print(f"The supervisor was gone; ended what it had left: {', '.join(left)}", markup=False)
            return
        raise Unavailable(
            f"no cluster runs on {directory}: name its directory with --data", retryable=False, folder=str(folder)
        )
    if not state.is_stopping:  # a second signal would end everything at once
        identity.send(state.pid, state.mark, signal.SIGTERM)
    with progress(counted=False) as bar:
        bar.add_task("stopping the cluster", total=None)
        is_gone = identity.wait_gone(state.pid, state.mark, state.stop_s + _STOP_MARGIN_S)
    if not is_gone:
        raise Unavailable(
            f"the cluster still stops after {state.stop_s + _STOP_MARGIN_S:g} s: "
            f"`kill -9 {state.pid}` ends it at once, and loses nothing acknowledged",
            outcome="unknown",
            retryable=False,
            pid=state.pid,
        )
    results().print("The cluster has stopped.")


_detach_option = inspect.Parameter(
    "detach",
    inspect.Parameter.KEYWORD_ONLY,
    default=typer.Option(False, "--detach", help="Leave when the cluster is ready; `boki down` stops it."),
    annotation=bool,
)
command = command_of(run, UpConfig, more=[_detach_option])
