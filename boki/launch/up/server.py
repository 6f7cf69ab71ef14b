"""Runs the processes of a cluster: starts them, notes their ends, bounds their logs, tells the state in a file.

Nothing outlives the supervisor: the kernel kills its children with it, however it ends (on Linux; elsewhere the next
`boki up` or `boki down` ends what a killed one has left). It has no threads, so that a child may be prepared between
fork and exec.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from boki.errors import Unavailable
from boki.launch.up import identity, logs, zygote
from boki.launch.up.core import Action, End, Process, Row, Start, SupervisorCore
from boki.launch.up.spawning import Spawner
from boki.launch.up.state import FILE_NAME, ProcessState, SupervisorState, readable_state, write_state

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
        zygote_program: Sequence[str] = zygote.PROGRAM,
    ) -> None:
        """`about` says what the file in `folder` is to tell besides the processes; their logs are in `folder`/logs.
        `zygote_program`: see `zygote.command`.
        """
        self.core = SupervisorCore(processes)
        self._folder = folder
        self._about = about
        self._on_event = on_event
        self._spawner = Spawner(environment, self._on_started, self.log_file("zygote"), zygote_program)
        self._nodes: dict[int, str] = {}
        """Those that run, by process id."""
        self._marks: dict[str, str] = {}
        self._told: SupervisorState | None = None
        """What the file says."""
        self._unwritable: set[Path] = set()
        """Files that could not be written the last time, as was told."""
        self._changed = asyncio.Event()

    def log_file(self, node: str) -> Path:
        """Where that process writes what it has to say."""
        return self._folder / "logs" / f"{node}.log"

    def stop(self) -> None:
        """Begin to stop everything."""
        self._about = msgspec.structs.replace(self._about, is_stopping=True)
        self._perform(self.core.stop(_now_us()))
        self._spawner.close()
        self._changed.set()

    def kill(self) -> None:
        """End every process at once."""
        for pid in self._nodes:
            os.kill(pid, signal.SIGKILL)  # not reaped yet, so the number is still its own

    async def run(self) -> None:
        """Start everything and keep it running until `stop`."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._changed.set)
        logs_checked_s = 0.0
        try:
            while not self.core.is_done:
                self._reap()
                self._perform(self.core.tick(_now_us()))
                self._spawner.rest(time.monotonic())
                if time.monotonic() - logs_checked_s > _LOG_CHECK_S:
                    logs_checked_s = time.monotonic()
                    for name in (*self.core.rows, "zygote", "supervisor"):
                        with self._writing(self.log_file(name)):
                            logs.bound(self.log_file(name))
                if not self.core.is_done:
                    await self._pause()
        finally:
            loop.remove_signal_handler(signal.SIGCHLD)
            self.kill()
            self._spawner.close()
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
        for pid, exit_code in self._spawner.reap():
            self._exited(self._nodes.pop(pid), exit_code)

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
                    self._spawner.start(process, self.log_file(process.node))
                case End(process, is_kill):
                    self._end(process, is_kill)

    def _end(self, process: Process, is_kill: bool) -> None:
        pid = self.core.rows[process.node].pid
        os.kill(pid, signal.SIGKILL if is_kill else signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)  # one that was halted with SIGSTOP is to stop, too
        if is_kill:
            self._on_event("killed", f"{process.node} did not stop in time: killed", {"node": process.node})

    def _on_started(self, node: str, pid: int, error: str) -> None:
        self._changed.set()
        if not pid:
            with self._writing(self.log_file(node)):
                logs.append(self.log_file(node), f"cannot be started: {error}")
            self._on_event("failed", f"{node} cannot be started: {error}", {"node": node, "error": error})
            self._perform(self.core.exited(node, _CANNOT_START, _now_us()))
            return
        self._nodes[pid] = node
        self._marks[node] = identity.start_mark(pid)
        restarts = self.core.rows[node].restarts
        facts = {"node": node, "pid": pid, "restarts": restarts}
        self._on_event("started", f"{node} {'started again' if restarts else 'started'}", facts)
        self._perform(self.core.started(node, pid, _now_us()))

    def _tell(self) -> None:
        processes = tuple(self._state_of(row) for row in self.core.rows.values())
        state = msgspec.structs.replace(self._about, processes=processes)
        if state != self._told:
            with self._writing(self._folder / FILE_NAME):
                write_state(self._folder, state)
                self._told = state

    @contextlib.contextmanager
    def _writing(self, file: Path) -> Iterator[None]:
        """A write that may fail, which is told once: nodes handle a full disk, and must not end because of it."""
        try:
            yield
        except OSError as error:
            if file not in self._unwritable:
                self._unwritable.add(file)
                reason = error.strerror or str(error)
                self._on_event(
                    "unwritable",
                    f"cannot write {file}: {reason}; trying again until it can be written",
                    {"file": str(file), "error": reason},
                )
        else:
            self._unwritable.discard(file)

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
            plays=row.process.plays,
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
    state = readable_state(folder)
    if state is None or state.is_running:
        return []
    left = [one for one in state.processes if identity.send(one.pid, one.mark, signal.SIGKILL)]
    for one in left:
        if not identity.wait_gone(one.pid, one.mark, _GONE_S):
            raise Unavailable(f"{one.node} (process {one.pid}) of an earlier `boki up` does not end", pid=one.pid)
    return [one.node for one in left]


def _now_us() -> int:
    return time.monotonic_ns() // 1_000
