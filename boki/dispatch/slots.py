"""Who may run where: the workers of one pool, their life cycle, their slots and the calls that wait for one.

A **pool** is what runs one version of one module's functions of one kind. A call **holds a slot** while it runs; while
it waits for a child call it holds none, so that a function that calls itself cannot starve itself:

- In an `async` worker a function has `concurrency` slots per process. A call that waits stays in the process, and
  another takes its slot; when its last child has ended, it continues once it has a slot again.
- A blocking worker runs one call and is of no use to others while that call waits. The pool has `most` slots, and as
  many extra workers as calls wait in it, up to a cap.

This file counts and picks; `boki.dispatch.core` decides when.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from boki.protocol.calls import MAX_WORKERS, MEMORY_BYTES, Call, FunctionInfo, Outcome, version_of


class Phase(Enum):
    """Where a worker process is in its life."""

    STARTING = "starting"
    """It has been asked for and has not said that it takes calls."""
    READY = "ready"
    DRAINING = "draining"
    """It finishes its calls, and gets no new ones."""
    LEAVING = "leaving"
    """It has no calls and has been told to go."""
    KILLED = "killed"
    """It has been killed, and its exit has not been seen."""
    GONE = "gone"


class Event(Enum):
    """What moves a worker through its life."""

    HELLO = "hello"
    RETIRE = "retire"
    EMPTY = "empty"
    KILL = "kill"
    EXIT = "exit"


NEXT: Final[dict[tuple[Phase, Event], Phase]] = {
    (Phase.STARTING, Event.HELLO): Phase.READY,
    (Phase.READY, Event.RETIRE): Phase.DRAINING,
    (Phase.DRAINING, Event.EMPTY): Phase.LEAVING,
    (Phase.STARTING, Event.KILL): Phase.KILLED,
    (Phase.READY, Event.KILL): Phase.KILLED,
    (Phase.DRAINING, Event.KILL): Phase.KILLED,
    (Phase.LEAVING, Event.KILL): Phase.KILLED,
    (Phase.STARTING, Event.EXIT): Phase.GONE,
    (Phase.READY, Event.EXIT): Phase.GONE,
    (Phase.DRAINING, Event.EXIT): Phase.GONE,
    (Phase.LEAVING, Event.EXIT): Phase.GONE,
    (Phase.KILLED, Event.EXIT): Phase.GONE,
}


class State(Enum):
    """Where a call is."""

    QUEUED = "queued"
    RUNNING = "running"
    """In a worker, holding a slot."""
    WAITING = "waiting"
    """In a worker, for at least one child call; it holds no slot."""
    RESUMING = "resuming"
    """In a worker; its last child has ended, and it waits for a slot to be told."""
    OVER = "over"


BEGUN: Final = -1
"""The order of a call that its worker has begun without being sent it."""


@dataclass(slots=True, eq=False)
class LiveCall:
    """A call that has not left its worker (or the queue). `answered`: its outcome is decided, and its caller told, or
    it is told when nothing of the call is left (`until_gone`).
    """

    ticket: int
    call: Call
    info: FunctionInfo
    pool: Pool
    depth: int
    size_bytes: int
    timeout_us: int
    deadline_us: int
    parent: LiveCall | None = None
    request: int = 0
    """By which number the parent's worker knows this call."""
    state: State = State.QUEUED
    answered: bool = False
    until_gone: bool = False
    """Its caller may run it again, and must not while its function still runs, or a call that it has made."""
    untold: Outcome | None = None
    worker: Worker | None = None
    order: int = 0
    """How many calls its worker had been sent before it."""
    sent_us: int = 0
    children: dict[int, LiveCall] = field(default_factory=dict)
    """By the request ids of its worker."""
    top: LiveCall | None = None
    """The call `until_gone` that has made it, or one above it."""
    below: dict[int, LiveCall] = field(default_factory=dict)
    """Of such a call: all that are below it, also those that it waits for no longer. By ticket."""
    held: list[tuple[int, Outcome]] = field(default_factory=list)
    """Outcomes of children (by request id) that wait for a slot."""

    @property
    def version(self) -> int:
        """The deployed version that it is pinned to; 0: it is not."""
        return 0 if self.call.chosen is None else version_of(self.call.chosen.attributes)

    def as_sent(self, now_us: int) -> Call:
        """The call as its worker gets it."""
        return msgspec.structs.replace(
            self.call,
            book=self.info.book_of(self.call),
            timeout_us=max(self.deadline_us - now_us, 1),
            depth=self.depth,
            caller_book="",
            retry=None,
        )


class PoolKey(NamedTuple):
    """What a pool runs: one version of a module's functions of one kind."""

    module: str
    is_async: bool
    version: int


@dataclass(slots=True, eq=False)
class Worker:
    """A worker process as dispatch sees it."""

    id: int
    pool: Pool
    since_us: int
    """When it was started; later, when it last had nothing to do, or was told to go."""
    phase: Phase = Phase.STARTING
    calls: dict[int, LiveCall] = field(default_factory=dict)
    """By ticket, in the order in which they were sent."""
    slots: dict[str, int] = field(default_factory=dict)
    """Slots held, by function."""
    running: int = 0
    sent: int = 0
    begun: int = 0
    """How many of the calls sent it had begun when somebody last looked."""
    stalled: bool = False
    """It does not begin what it is sent: something blocks it."""
    has_started: bool = False
    """It has said that it takes calls."""
    was_let_go: bool = False
    """It has been told to go, so that its end is no failure."""
    reason: str = ""
    """Why it was killed, for the callers whose calls are lost with it."""

    def move(self, event: Event) -> None:
        """Continue in the life cycle; an event that the table does not have is a bug of ours."""
        phase = NEXT.get((self.phase, event))
        assert phase is not None, f"worker {self.id} is {self.phase.value}: {event.value} cannot happen"
        self.pool.phases[self.phase] -= 1
        self.pool.phases[phase] += 1
        self.phase = phase


class Pool:
    """The workers of one version of a module's functions of one kind, and the calls that wait for them."""

    def __init__(self, key: PoolKey, functions: dict[str, FunctionInfo], waiting_per_worker: int, extra: int) -> None:
        self.key = key
        self.functions = functions
        self.least = max(info.min_workers for info in functions.values())
        self.most = max(1, self.least, _smallest((i.max_workers for i in functions.values()), MAX_WORKERS))
        self.memory_bytes = _smallest((i.memory_bytes for i in functions.values()), MEMORY_BYTES)
        self.workers: dict[int, Worker] = {}
        self.phases: Counter[Phase] = Counter()
        """How many workers are in each phase; a pool may have hundreds, and is asked at every call."""
        self._children: dict[str, OrderedDict[int, LiveCall]] = {name: OrderedDict() for name in functions}
        self._others: dict[str, OrderedDict[int, LiveCall]] = {name: OrderedDict() for name in functions}
        self.queued = 0
        self.held_bytes = 0
        self.running = 0
        self.retired = False
        self.failures = 0
        """Workers in a row that ended before they were of any use."""
        self.broken = ""
        """Why the last of them ended."""
        self.retry_us = 0
        """No worker is started before this time."""
        self.resuming: OrderedDict[int, LiveCall] = OrderedDict()
        self._extra = 0 if key.is_async else extra
        self._calls_per_worker = sum(i.concurrency for i in functions.values()) + waiting_per_worker

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"module {self.key.module!r}"

    # slots

    def has_slot(self, worker: Worker, function: str) -> bool:
        """Whether a call of the function may run in this worker, which has it or has room for it."""
        if self.key.is_async:
            return worker.slots.get(function, 0) < self.functions[function].concurrency
        return self.running < self.most

    def take_slot(self, live: LiveCall) -> None:
        """The call runs from now on."""
        worker = live.worker
        assert worker is not None and live.state is not State.RUNNING
        live.state = State.RUNNING
        worker.slots[live.info.name] = worker.slots.get(live.info.name, 0) + 1
        worker.running += 1
        self.running += 1

    def free_slot(self, live: LiveCall, state: State) -> None:
        """The call runs no longer; what it does instead is `state`."""
        worker = live.worker
        assert worker is not None and live.state is State.RUNNING
        live.state = state
        worker.slots[live.info.name] -= 1
        worker.running -= 1
        self.running -= 1

    def can_take(self, worker: Worker, function: str) -> bool:
        """Whether a new call of the function may be sent to this worker."""
        if worker.phase is not Phase.READY or worker.stalled or not self.has_slot(worker, function):
            return False
        return len(worker.calls) < self._calls_per_worker if self.key.is_async else not worker.calls

    def may_begin(self, worker_id: int, function: str) -> bool:
        """Whether this worker is one of the pool, and may take a new call of the function."""
        worker = self.workers.get(worker_id)
        return worker is not None and self.can_take(worker, function)

    def pick(self, function: str) -> Worker | None:
        """The least busy worker that may take a new call of the function."""
        best = None
        for worker in self.workers.values():
            if (best is None or worker.running < best.running) and self.can_take(worker, function):
                best = worker
        return best

    # the queue

    def enqueue(self, live: LiveCall, *, first: bool = False) -> None:
        """Let the call wait for a worker; `first` if it had already been on its way."""
        live.state = State.QUEUED
        live.pool = self
        live.worker = None
        queue = self._queue_of(live)
        queue[live.ticket] = live
        if first:
            queue.move_to_end(live.ticket, last=False)
        self.queued += 1

    def dequeue(self, live: LiveCall) -> None:
        """The call waits no longer."""
        del self._queue_of(live)[live.ticket]
        self.queued -= 1

    def _queue_of(self, live: LiveCall) -> OrderedDict[int, LiveCall]:
        return (self._others if live.parent is None else self._children)[live.info.name]

    def waiting(self) -> list[LiveCall]:
        """All calls in the queue."""
        lines = (*self._children.values(), *self._others.values())
        return [live for queue in lines for live in queue.values()]

    def next_placeable(self) -> tuple[LiveCall, Worker] | None:
        """A call that need not wait any longer, and the worker for it: the oldest one that another call waits for,
        else the oldest. Else those who wait would gather, and with them the workers that they keep.
        """
        for queues in (self._children, self._others):
            best: tuple[LiveCall, Worker] | None = None
            for function, queue in queues.items():
                if not queue:
                    continue
                first = next(iter(queue.values()))
                if best is not None and best[0].ticket < first.ticket:
                    continue
                worker = self.pick(function)
                if worker is not None:
                    best = (first, worker)
            if best is not None:
                return best
        return None

    def next_resumable(self) -> LiveCall | None:
        """A call that has waited for a slot to continue, and may now."""
        for live in self.resuming.values():
            assert live.worker is not None
            if self.has_slot(live.worker, live.info.name):
                return live
        return None

    def await_slot(self, live: LiveCall) -> None:
        """The call continues once it has a slot again."""
        live.state = State.RESUMING
        self.resuming[live.ticket] = live

    # size

    def add(self, worker: Worker) -> None:
        """One more worker, which starts."""
        self.workers[worker.id] = worker
        self.phases[worker.phase] += 1

    def count(self, *phases: Phase) -> int:
        """How many workers are in one of these phases."""
        return sum(self.phases[phase] for phase in phases)

    def count_starting(self) -> int:
        """How many workers may yet become ready, or will yet be seen to have failed."""
        starting = self.phases[Phase.STARTING]
        if self.phases[Phase.KILLED]:
            killed = (worker for worker in self.workers.values() if worker.phase is Phase.KILLED)
            starting += sum(1 for worker in killed if not worker.has_started)
        return starting

    def missing(self) -> int:
        """How many workers should be started now, for the calls in the queue and for the least that was asked for."""
        if self.retired:
            return 0
        starting = self.count_starting()
        alive = starting + self.count(Phase.READY)
        if self.key.is_async:
            wanted = max(
                -(-(len(self._children[name]) + len(self._others[name])) // info.concurrency)
                for name, info in self.functions.items()
            )
            room = self.most - alive
        else:
            wanted = min(self.queued, self.most - self.running)
            room = self.most + self._extra - alive
        return max(min(wanted - starting, room), self.least - alive, 0)

    def is_hopeless(self, now_us: int) -> bool:
        """No worker is there or may be started now: the calls in the queue need not wait."""
        return now_us < self.retry_us and not self.count_starting() and not self.count(Phase.READY)

    def is_choked(self, *, may_grow: bool) -> bool:
        """Every worker is there and all that its calls do is wait for other calls: no room comes until those end."""
        if not self.workers or (may_grow and self.missing()) or self.count(Phase.READY) < len(self.workers):
            return False
        return not any(worker.running or worker.stalled or not worker.calls for worker in self.workers.values())


def blocks(live: LiveCall, worker: Worker, now_us: int) -> bool:
    """Whether an overdue call is to blame: it has been begun, or nothing else can be what holds it up."""
    return live.order < worker.begun or not any(
        other.order < worker.begun and now_us < other.deadline_us for other in worker.calls.values()
    )


def _smallest(values: Iterable[int | None], default: int) -> int:
    """The smallest bound that somebody has set: one that is larger, or the default, must not lift it."""
    return min((value for value in values if value is not None), default=default)
