"""Workers as a test sees them: carries out what dispatch asks, and watches that it asks for nothing forbidden.

Every rule that must hold in any order of events is asserted here, so that directed tests and random ones share it: a
call is answered once; a call that has begun is never sent again, and never told that it was not applied; no slot is
given twice; nothing is sent to a process that is not there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from boki.dispatch.catalog import Change, Install, Withdraw
from boki.dispatch.core import Dispatch
from boki.dispatch.orders import (
    AnswerCall,
    Budget,
    DispatchEffect,
    KillWorker,
    RetireWorker,
    SendCall,
    SendCancel,
    SendChild,
    StartWorker,
)
from boki.dispatch.slots import PoolKey
from boki.log.limits import Limits
from boki.protocol.calls import MAX_WORKERS, Call, FunctionInfo, Outcome, Payload
from boki.protocol.effects import Trace

SECOND_US = 1_000_000
DONE = Outcome(Payload("json", b"null"), None)


def info(name: str, module: str = "m", *, is_async: bool = True, **options: object) -> FunctionInfo:
    return FunctionInfo(name=name, module=module, is_async=is_async, **options)


def call_of(
    function: str, *, timeout_us: int = 10 * SECOND_US, data: bytes = b"", depth: int = 0, **more: object
) -> Call:
    return Call("0" * 32, function, Payload("bytes", data), "", timeout_us, depth, **more)


@dataclass
class Inside:
    """A call in a fake worker."""

    ticket: int
    call: Call
    order: int
    begun: bool = False
    cancelled: bool = False
    children: set[int] = field(default_factory=set)
    is_loose: bool = False
    """It has given up a child, and so continues at once: beside its slot, until it has one again."""


@dataclass
class FakeWorker:
    """A process that does only what a test tells it."""

    id: int
    pool: PoolKey
    state: str = "starting"
    begun: int = 0
    sent: int = 0
    calls: dict[int, Inside] = field(default_factory=dict)


class Shell:
    """A dispatch, its workers, a clock, and all that callers have been told."""

    def __init__(self, budget: Budget | None = None, limits: Limits | None = None) -> None:
        self.dispatch = Dispatch(limits or Limits(call_depth=3), budget or Budget())
        self.now_us = SECOND_US
        self.workers: dict[int, FakeWorker] = {}
        self.functions: dict[PoolKey, dict[str, FunctionInfo]] = {}
        self.outcomes: dict[int, Outcome] = {}
        self.submitted: set[int] = set()
        self.waiting: set[int] = set()
        self.begun: set[int] = set()
        self.until_gone: set[int] = set()
        self.cancelled: set[int] = set()
        self.above: dict[int, int] = {}
        """Tickets of child calls -> of their parents."""
        self.requests: dict[tuple[int, int], int] = {}
        """Child requests under way: (worker, request) -> the parent's ticket."""
        self.told: dict[int, Outcome] = {}
        """Outcomes of children, by request."""
        self.traces: list[str] = []
        self._next = 0

    # what a test may do

    def install(self, module: str, version: int, *functions: FunctionInfo) -> None:
        for function in functions:
            key = PoolKey(module, function.is_async, version)
            self.functions.setdefault(key, {})[function.name] = function
        self.update(Install(module, version, functions))

    def withdraw(self, module: str, error: str = "") -> None:
        self.update(Withdraw(module, error))

    def update(self, *changes: Change) -> None:
        self.perform(self.dispatch.update(changes, self.now_us))

    def submit(self, function: str, *, until_gone: bool = False, **options: object) -> int:
        ticket = self.number()
        self.submitted.add(ticket)
        self.waiting.add(ticket)
        if until_gone:
            self.until_gone.add(ticket)
        call = call_of(function, **options)
        self.perform(self.dispatch.submit(ticket, call, self.now_us, until_gone=until_gone))
        return ticket

    def begin_try(self, worker: int, function: str, **options: object) -> int:
        """The worker begins to try a call by itself, and says so; its ticket. Refused calls are not remembered."""
        ticket = -self.number()
        self.submitted.add(ticket)
        self.waiting.add(ticket)
        self.until_gone.add(ticket)
        call = call_of(function, is_tried=True, **options)
        process = self.workers[worker]
        process.calls[ticket] = Inside(ticket, call, -1, begun=True)
        effects = self.dispatch.submit(ticket, call, self.now_us, until_gone=True, begun_by=worker)
        if any(isinstance(effect, AnswerCall) and effect.ticket == ticket for effect in effects):
            del process.calls[ticket]
        else:
            self.begun.add(ticket)
        self.perform(effects)
        return ticket

    def cancel(self, ticket: int) -> None:
        self.cancelled.add(ticket)
        if ticket not in self.until_gone:
            self.waiting.discard(ticket)
        self.perform(self.dispatch.cancel(ticket, self.now_us))

    def hello(self, worker: int) -> None:
        if self.workers[worker].state == "starting":
            self.workers[worker].state = "ready"
        self.perform(self.dispatch.worker_ready(worker, self.now_us))

    def begin(self, worker: int) -> Inside | None:
        """The worker takes up the next call that it was sent."""
        process = self.workers[worker]
        for inside in process.calls.values():
            if not inside.begun:
                inside.begun = True
                process.begun = inside.order + 1
                self.begun.add(inside.ticket)
                return inside
        return None

    def invoke(self, worker: int, parent: int, function: str, **options: object) -> int:
        """A call in the worker makes a child call; its request id."""
        request, child = self.number(), self.number()
        inside = self.workers[worker].calls[parent]
        inside.children.add(request)
        self.requests[worker, request] = parent
        self.above[child] = parent
        call = call_of(function, depth=inside.call.depth + 1, **options)
        self.perform(self.dispatch.child_called(worker, parent, request, child, call, self.now_us))
        return request

    def abandon(self, worker: int, parent: int, request: int) -> None:
        inside = self.workers[worker].calls[parent]
        inside.children.discard(request)
        inside.is_loose = True
        self.requests.pop((worker, request), None)
        self.perform(self.dispatch.child_abandoned(worker, parent, request, self.now_us))

    def end(self, worker: int, ticket: int, outcome: Outcome = DONE) -> None:
        inside = self.workers[worker].calls.pop(ticket)
        for request in inside.children:
            self.requests.pop((worker, request), None)
        self.perform(self.dispatch.call_ended(worker, ticket, outcome, self.now_us))

    def exit(self, worker: int, how: str = "exited with status 1") -> None:
        process = self.workers.pop(worker)
        self.requests = {key: parent for key, parent in self.requests.items() if key[0] != worker}
        self.perform(self.dispatch.worker_exited(worker, how, process.begun, self.now_us))

    def progress(self, worker: int) -> None:
        self.perform(self.dispatch.worker_progress(worker, self.workers[worker].begun, self.now_us))

    def tick(self, seconds: float = 0.0) -> None:
        self.now_us += int(seconds * SECOND_US)
        for worker in list(self.workers):
            self.progress(worker)
        self.perform(self.dispatch.tick(self.now_us))

    def number(self) -> int:
        self._next += 1
        return self._next

    # how effects are carried out

    def perform(self, effects: list[DispatchEffect]) -> None:
        for effect in effects:
            match effect:
                case AnswerCall(ticket, outcome):
                    self._answer(ticket, outcome)
                case StartWorker(worker, pool):
                    assert worker not in self.workers
                    self.workers[worker] = FakeWorker(worker, pool)
                case SendCall(worker, ticket, call):
                    self._send(self.workers[worker], ticket, call)
                case SendCancel(worker, ticket):
                    if worker in self.workers:
                        self.workers[worker].calls[ticket].cancelled = True
                case SendChild(worker, request, outcome):
                    self._tell(worker, request, outcome)
                case RetireWorker(worker):
                    assert self.workers[worker].state == "ready"
                    assert not self.workers[worker].calls
                    self.workers[worker].state = "retired"
                case KillWorker(worker):
                    assert self.workers[worker].state != "killed"
                    self.workers[worker].state = "killed"
                case Trace(_, text):
                    self.traces.append(text)
        self.check_slots()

    def _answer(self, ticket: int, outcome: Outcome) -> None:
        assert ticket in self.waiting, "answered twice, or after it was cancelled"
        self.waiting.remove(ticket)
        self.outcomes[ticket] = outcome
        if outcome.failure is not None and outcome.failure.outcome == "not_applied":
            assert ticket not in self.begun, "a call that has begun may have done something"
        if ticket in self.until_gone:
            left = {inside for process in self.workers.values() for inside in process.calls}
            assert not any(self._is_in(each, ticket) for each in left), "something of it is left"

    def _is_in(self, ticket: int, top: int) -> bool:
        """Whether it is this call, or one that it has made, at any depth."""
        return ticket == top or (ticket in self.above and self._is_in(self.above[ticket], top))

    def _send(self, process: FakeWorker, ticket: int, call: Call) -> None:
        assert process.state == "ready"
        assert ticket not in self.begun, "a call that has begun never runs again"
        assert ticket not in process.calls
        assert ticket not in self.cancelled, "nobody waits for it"
        assert ticket in self.waiting or ticket not in self.submitted, "its caller has been told"
        assert call.timeout_us > 0
        assert call.book
        process.calls[ticket] = Inside(ticket, call, process.sent)
        process.sent += 1

    def _tell(self, worker: int, request: int, outcome: Outcome) -> None:
        if worker not in self.workers:
            return
        parent = self.requests.pop((worker, request), None)
        assert parent is not None, "a child's end is told once"
        self.told[request] = outcome
        inside = self.workers[worker].calls.get(parent)
        if inside is not None:
            inside.children.discard(request)

    def check_slots(self) -> None:
        """Calls that wait for no child hold a slot, and there are only this many. Those cancelled may be late."""
        held: dict[PoolKey, int] = {}
        alive: dict[PoolKey, int] = {}
        for process in self.workers.values():
            functions = self.functions[process.pool]
            running = [inside for inside in process.calls.values() if not inside.children and not inside.is_loose]
            held[process.pool] = held.get(process.pool, 0) + len(running)
            alive[process.pool] = alive.get(process.pool, 0) + (process.state in ("starting", "ready"))
            if process.pool.is_async:
                for name, function in functions.items():
                    assert sum(inside.call.function == name for inside in running) <= function.concurrency
            else:
                assert len(process.calls) <= 1
        for pool, count in alive.items():
            set_bounds = [bound for function in self.functions[pool].values() if (bound := function.max_workers)]
            most = min(set_bounds, default=MAX_WORKERS)
            if pool.is_async:
                assert count <= most
            else:
                assert held[pool] <= most
                assert count <= most + self.dispatch._budget.extra_workers


# what most tests need


def failure(shell: Shell, ticket: int) -> tuple[str, str]:
    found = shell.outcomes[ticket].failure
    assert found is not None
    return found.code, found.outcome


def message(shell: Shell, ticket: int) -> str:
    found = shell.outcomes[ticket].failure
    assert found is not None
    return found.message


def only(shell: Shell) -> int:
    """The one worker that there is."""
    (worker,) = shell.workers
    return worker


def ready_shell(*functions: object, budget: Budget | None = None, limits: Limits | None = None) -> Shell:
    shell = Shell(budget, limits)
    shell.install("m", 1, *functions)
    return shell


def run(shell: Shell, function: str, **options: object) -> tuple[int, int]:
    """A call that a worker has begun: (worker, ticket)."""
    ticket = shell.submit(function, **options)
    for worker in list(shell.workers.values()):
        if worker.state == "starting":
            shell.hello(worker.id)
    worker = next(worker for worker in shell.workers.values() if ticket in worker.calls)
    while not worker.calls[ticket].begun:
        shell.begin(worker.id)
    return worker.id, ticket
