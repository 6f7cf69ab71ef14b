"""Runs the processes of a cluster: starts them, sees them end, keeps their logs and tells the state in a file.

Nothing outlives the supervisor: the kernel kills its children with it, however it ends (on Linux; elsewhere the next
`boki up` or `boki down` ends what a killed one has left). It has no threads, so that a child may be prepared between
fork and exec.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from boki.cluster import identity, logs
from boki.cluster.core import Action, End, Process, Row, Start, SupervisorCore
from boki.cluster.state import ProcessState, SupervisorState, read_state, write_state
from boki.errors import Unavailable
from boki.runtime.confine import die_with_parent

OnEvent = Callable[[str, str, dict[str, Any]], None]
"""Told what has happened: a name for programs, a text for people, and the facts."""

_CANNOT_START: Final = 127
_LOG_CHECK_S: Final = 2.0
_GONE_S: Final = 10.0


class Supervisor:
    """One cluster on this machine. `run` returns when a stop has been asked for and everything has ended."""

    def __init__(
        self,
        folder: Path,
        processes: Iterable[Process],
        about: SupervisorState,
        *,
        environment: Mapping[str, str],
        on_event: OnEvent,
    ) -> None:
        """`about` says what the file in `folder` is to tell beside the processes; their logs are in `folder`/logs."""
        self.core = SupervisorCore(processes)
        self._folder = folder
        self._about = about
        self._environment = dict(environment)
        self._on_event = on_event
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._marks: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._pid = os.getpid()

    def log_file(self, node: str) -> Path:
        """Where that process writes what it has to say."""
        return self._folder / "logs" / f"{node}.log"

    def stop(self) -> None:
        """Begin to stop everything."""
        self._about = msgspec.structs.replace(self._about, is_stopping=True)
        self._perform(self.core.stop(_now_us()))
        self._changed.set()

    def kill(self) -> None:
        """End every process at once."""
        for child in self._children.values():
            if child.poll() is None:
                child.kill()

    async def run(self) -> None:
        """Start everything and keep it running until `stop`."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._changed.set)
        logs_checked_s = 0.0
        try:
            while not self.core.is_done:
                self._reap()
                self._perform(self.core.tick(_now_us()))
                if time.monotonic() - logs_checked_s > _LOG_CHECK_S:
                    logs_checked_s = time.monotonic()
                    for node in self.core.rows:
                        logs.bound(self.log_file(node))
                if not self.core.is_done:
                    await self._pause()
        finally:
            loop.remove_signal_handler(signal.SIGCHLD)
            self.kill()
            self._tell()

    async def _pause(self) -> None:
        """Until something happens or is due."""
        self._tell()
        due_us = self.core.next_due_us()
        left_s = _LOG_CHECK_S if due_us is None else min(_LOG_CHECK_S, max(0.0, (due_us - _now_us()) / 1e6))
        try:
            async with asyncio.timeout(left_s):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()

    def _reap(self) -> None:
        for node, child in list(self._children.items()):
            exit_code = child.poll()
            if exit_code is not None:
                del self._children[node]
                self._exited(node, exit_code)

    def _exited(self, node: str, exit_code: int) -> None:
        actions = self.core.exited(node, exit_code, _now_us())
        how = ending_text(exit_code)
        if self.core.is_stopping:
            self._on_event("stopped", f"{node} has stopped ({how})", {"node": node, "exit_code": exit_code})
        else:
            said = logs.last_lines(self.log_file(node), 1)
            last = f"; it said: {said[0]}" if said else ""
            self._on_event("exited", f"{node} {how}{last}", {"node": node, "exit_code": exit_code})
        self._perform(actions)

    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Start(process):
                    self._start(process)
                case End(process, is_kill):
                    child = self._children[process.node]
                    # One that was halted with SIGSTOP is to stop, too.
                    child.send_signal(signal.SIGCONT)
                    child.send_signal(signal.SIGKILL if is_kill else signal.SIGTERM)
                    if is_kill:
                        self._on_event("killed", f"{process.node} did not stop in time: killed", {"node": process.node})

    def _start(self, process: Process) -> None:
        log = logs.open_log(self.log_file(process.node))
        try:
            child = subprocess.Popen(
                process.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for the supervisor, which stops the others in order
                preexec_fn=self._confine,
            )
        except (OSError, subprocess.SubprocessError) as error:
            os.write(log, f"cannot be started: {error}\n".encode())
            self._exited(process.node, _CANNOT_START)
            return
        finally:
            os.close(log)
        self._children[process.node] = child
        self._marks[process.node] = identity.start_mark(child.pid)
        restarts = self.core.rows[process.node].restarts
        facts = {"node": process.node, "pid": child.pid, "restarts": restarts}
        self._on_event("started", f"{process.node} {'started again' if restarts else 'started'}", facts)
        self._perform(self.core.started(process.node, child.pid, _now_us()))

    def _confine(self) -> None:
        die_with_parent(self._pid)

    def _tell(self) -> None:
        processes = tuple(self._state_of(row) for row in self.core.rows.values())
        state = msgspec.structs.replace(self._about, processes=processes)
        write_state(self._folder, state)

    def _state_of(self, row: Row) -> ProcessState:
        node = row.process.node
        return ProcessState(
            node=node,
            role=row.process.role,
            state=row.state.value,
            pid=row.pid,
            mark=self._marks.get(node, "") if row.pid else "",
            restarts=row.restarts,
            exit_code=row.exit_code,
            log=str(self.log_file(node)),
        )


def ending_text(exit_code: int) -> str:
    """How a process ended, for people.

    >>> ending_text(-9), ending_text(1)
    ('was ended by SIGKILL', 'ended with code 1')
    """
    if exit_code >= 0:
        return f"ended with code {exit_code}"
    try:
        return f"was ended by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was ended by signal {-exit_code}"


def end_leftovers(folder: Path) -> list[str]:
    """Kill what a supervisor that is no more has left running; the nodes' names. `Unavailable` if one does not end."""
    state = read_state(folder)
    if state is None or state.is_running:
        return []
    left = [one for one in state.processes if identity.send(one.pid, one.mark, signal.SIGKILL)]
    for one in left:
        if not identity.wait_gone(one.pid, one.mark, _GONE_S):
            raise Unavailable(f"{one.node} (process {one.pid}) of an earlier `boki up` does not end", pid=one.pid)
    return [one.node for one in left]


def _now_us() -> int:
    return time.monotonic_ns() // 1_000
