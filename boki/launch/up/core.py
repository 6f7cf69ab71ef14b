"""Which processes of a cluster should run now: the supervisor's decisions, without a process or a clock.

A process that ends is started again: at once the first time, later each time after twice as long, until it has run
for a while. A stop goes by ranks: a process is gone before those that serve it are told to stop, so that calls can
end and shards can be closed. A process that does not stop in time is killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

FIRST_DELAY_US: Final = 100_000
LAST_DELAY_US: Final = 10_000_000
SETTLED_US: Final = 10_000_000
"""A process that has run for this long counts as healthy: its next end is a first one again."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process that is to run: a program with its arguments, or (`is_boki`) the arguments of a `boki`.

    Those of a lower `stop_rank` are gone before this one is told to stop.
    """

    node: str
    role: str
    command: tuple[str, ...]
    stop_rank: int = 0
    stop_us: int = 5_000_000
    """How long it may take to stop before it is killed."""
    is_boki: bool = False
    plays: tuple[str, ...] = ()
    """The names of the roles of a node that plays several."""


class State(StrEnum):
    """What a process does, as far as its supervisor knows."""

    WAITING = "waiting"
    """Not started yet, or ended and to be started again."""
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Event(StrEnum):
    """What may happen to a process."""

    START = "start"
    STARTED = "started"
    EXITED = "exited"
    STOP = "stop"


NEXT: Final[dict[tuple[State, Event], State]] = {
    (State.WAITING, Event.START): State.STARTING,
    (State.WAITING, Event.STOP): State.STOPPED,
    (State.STARTING, Event.STARTED): State.RUNNING,
    (State.STARTING, Event.EXITED): State.WAITING,  # it could not even be started
    (State.RUNNING, Event.EXITED): State.WAITING,
    (State.RUNNING, Event.STOP): State.STOPPING,
    (State.STOPPING, Event.EXITED): State.STOPPED,
}


@dataclass(frozen=True, slots=True)
class Start:
    """Start this process; then say `started`, or `exited` if that failed."""

    process: Process


@dataclass(frozen=True, slots=True)
class End:
    """Tell the process to stop; `is_kill`: end it at once."""

    process: Process
    is_kill: bool


Action = Start | End


@dataclass(slots=True)
class Row:
    """One process and its story. Times are microseconds of the caller's clock."""

    process: Process
    state: State = State.WAITING
    pid: int = 0
    """0 while it does not run."""
    restarts: int = 0
    exit_code: int | None = None
    """How its last run ended; below 0: by that signal. None: it never ended."""
    started_us: int = 0
    start_at_us: int = 0
    quick_ends: int = 0
    """How many runs in a row were short."""
    kill_at_us: int = 0

    def move(self, event: Event) -> None:
        """Continue as the table says; what is not in it is a bug of ours."""
        self.state = NEXT[self.state, event]


class SupervisorCore:
    """The processes of one cluster. Methods take the time and return what is to be done, in order."""

    def __init__(self, processes: Iterable[Process]) -> None:
        self.rows: dict[str, Row] = {process.node: Row(process) for process in processes}
        self.is_stopping = False

    @property
    def is_done(self) -> bool:
        """Everything has stopped, as it was told to."""
        return self.is_stopping and all(row.state is State.STOPPED for row in self.rows.values())

    def started(self, node: str, pid: int, now_us: int) -> list[Action]:
        """The process runs."""
        row = self.rows[node]
        row.move(Event.STARTED)
        row.pid, row.started_us = pid, now_us
        return self.tick(now_us) if self.is_stopping else []  # the stop may have come while it was being started

    def exited(self, node: str, exit_code: int, now_us: int) -> list[Action]:
        """The process has ended, or could not be started."""
        row = self.rows[node]
        ran_us = now_us - row.started_us if row.pid else 0
        row.move(Event.EXITED)
        row.pid, row.exit_code = 0, exit_code
        if row.state is State.WAITING and self.is_stopping:
            row.move(Event.STOP)
        elif row.state is State.WAITING:
            row.quick_ends = 0 if ran_us >= SETTLED_US else row.quick_ends + 1
            delay_us = FIRST_DELAY_US << min(max(row.quick_ends - 1, 0), 16)
            row.start_at_us = now_us + min(delay_us, LAST_DELAY_US)
            row.restarts += 1
        return list(self._stops(now_us)) if self.is_stopping else []

    def stop(self, now_us: int) -> list[Action]:
        """End everything, rank by rank. `is_done` says when that has happened."""
        self.is_stopping = True
        for row in self.rows.values():
            if row.state is State.WAITING:
                row.move(Event.STOP)
        return self.tick(now_us)

    def tick(self, now_us: int) -> list[Action]:
        """What is due. Call it often enough for delays to mean something."""
        return list(self._stops(now_us)) if self.is_stopping else list(self._starts(now_us))

    def next_due_us(self) -> int | None:
        """When `tick` will have something to do, if nothing happens before; None: never."""
        if self.is_stopping:
            dues = [row.kill_at_us for row in self.rows.values() if row.state is State.STOPPING]
        else:
            dues = [row.start_at_us for row in self.rows.values() if row.state is State.WAITING]
        return min(dues, default=None)

    def _starts(self, now_us: int) -> Iterator[Action]:
        for row in self.rows.values():
            if row.state is State.WAITING and row.start_at_us <= now_us:
                row.move(Event.START)
                yield Start(row.process)

    def _stops(self, now_us: int) -> Iterator[Action]:
        left = [row for row in self.rows.values() if row.state is not State.STOPPED]
        rank = min((row.process.stop_rank for row in left), default=0)
        for row in left:
            if row.process.stop_rank != rank:
                continue
            if row.state is State.RUNNING:
                row.move(Event.STOP)
                yield self._end(row, now_us)
            elif row.state is State.STOPPING and row.kill_at_us <= now_us:
                row.kill_at_us = now_us + row.process.stop_us
                yield End(row.process, is_kill=True)

    def _end(self, row: Row, now_us: int) -> End:
        row.kill_at_us = now_us + row.process.stop_us
        return End(row.process, is_kill=False)
