"""BokiFlow in the simulator: workflows as users write them, on engines that die, in virtual time.

Some processes behind gateways start errands (`boki.sim.flow_work`), signal them before and after the start, and cancel
those that would wait for ever. Promised is:

- all executions of a workflow agree on every step: whatever follows from an outcome follows from the same one;
- an effect under a step's key is there once, and none is missing;
- each signal is taken once and in order, also while the workflow is suspended or continues as new;
- a workflow that is cancelled undoes what it has done, and so does the child that it leaves behind;
- whatever becomes of its engines, a workflow ends.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from boki import Context
from boki.calls import OVER, Call, CallChange, InvocationState, Outcome, Payload
from boki.errors import BokiError, ConnectionLost, FunctionFailed
from boki.extending import CallsById
from boki.histories.facts import Violation
from boki.libs.bokiflow import Handle, WorkflowEnded
from boki.log.record import Record
from boki.runtime.append_gatherer import AppendGatherer
from boki.sim.calls import CallLedger, doors_of
from boki.sim.flow_work import BOOK, ITEM, UNDO, Deed, Errand, chore, context_of, errand, to_be_logged
from boki.sim.processes import Process

if TYPE_CHECKING:
    from boki.sim.nodes import World

T = TypeVar("T")
_QUOTA: Final = 2
"""Errands that a user runs, one after the other."""
_PATIENCE_S: Final = 3.0
_PAUSE_S: Final = 0.1
_POLL_S: Final = 0.5


@dataclass(slots=True)
class Run:
    """An errand as its user knows it."""

    id: str
    order: Errand
    sent: list[int] = field(default_factory=list)
    ended: str = ""
    """How it has ended: "done", or what it failed with."""
    done: Errand | None = None
    child: str = ""
    """How the child has ended that an endless errand leaves behind."""


class FlowClients:
    """The users of a run's workflows, if it has any."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._clock = world.clock
        self._rng = world.clock.flow_rng
        self._runs: list[Run] = []
        self.deeds: list[Record] = []
        """What each run of a step's body has left in the log, once that is read in the end."""
        self.keyed_deeds: list[Record] = []
        """What was left under each step's key."""
        self._processes: list[Process] = []
        self._busy = world.options.flows
        self._is_calm = False
        for number in range(world.options.flows):
            process = Process(world, f"user-{number + 1}", self._rng, None)
            self._processes.append(process)
            process.loop.create_task(self._use(process, number + 1))

    def calm(self) -> None:
        """Everything is healed: what was begun comes to its end, and nothing more is begun."""
        self._is_calm = True

    @property
    def is_over(self) -> bool:
        """Whether every errand has ended."""
        return not self._busy

    def end(self) -> None:
        """All processes end here."""
        for process in self._processes:
            process.die()

    # what users do

    async def _use(self, process: Process, number: int) -> None:
        ctx = self._context(process, number)
        for count in range(_QUOTA):
            await asyncio.sleep(self._rng.random() * 0.5)
            if self._is_calm:
                break
            await self._run(ctx, Run(f"errand-{number}-{count}", self._draw()))
        self._busy -= 1

    def _context(self, process: Process, number: int) -> Context:
        call = Call(f"{number:032x}", "user", Payload("json", b"null"), BOOK, 10**12)
        return context_of(call, process, AppendGatherer(process), _CallsOfUser(self._world), lambda: self._clock.now_us)

    def _draw(self) -> Errand:
        rng = self._rng
        is_endless = rng.random() < 0.25
        return Errand(
            rounds=rng.choice((1, 2, 3)),
            items=rng.choice((0, 1, 2)),
            handles=rng.random() < 0.5,
            nap_s=round(rng.choice((0.0, 0.2, 1.0)) * rng.random(), 3),
            has_child=rng.random() < 0.3 and not is_endless,
            is_endless=is_endless,
        )

    async def _run(self, ctx: Context, run: Run) -> None:
        self._runs.append(run)
        self._clock.note(f"{run.id} begins", run.order)
        handle = errand.handle(ctx, run.id)
        order = run.order
        early = self._rng.choice((0, 0, order.items))
        await self._signal(handle, run, early)
        await self._until_done(
            lambda: CallsById(ctx).start(
                handle.invocation_id, errand, order, start=f"start {run.id}", name=run.id, book=BOOK
            )
        )
        await self._signal(handle, run, order.items * order.rounds - early)
        if order.is_endless:
            await asyncio.sleep(self._rng.random() * 1.5)
            await self._until_done(lambda: self._cancel(handle))
        run.ended, run.done = await self._until_done(lambda: _end_of(handle))
        if order.is_endless:
            left = chore.handle(ctx, f"{run.id}/chore", book=BOOK)
            run.child, _ = await self._until_done(lambda: _end_of(left))
        self._clock.note(f"{run.id} has ended", run.ended)

    async def _signal(self, handle: Handle[Errand], run: Run, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(self._rng.random() * 0.6)
            run.sent.append(number := len(run.sent))
            await self._until_done(lambda number=number: handle.signal(ITEM, number, key=str(number)))  # type: ignore[misc]

    @staticmethod
    async def _cancel(handle: Handle[Errand]) -> None:
        with suppress(WorkflowEnded):
            await handle.cancel("enough")

    async def _until_done(self, act: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await act()
            except BokiError as error:
                self._clock.note(f"a user is refused: {error.code}")
                await asyncio.sleep(_PAUSE_S * (1 + self._rng.random()))

    # judging

    def check(self) -> list[Violation]:
        """What users were told, and what steps have left in the log."""
        ended = [run for run in self._runs if run.ended]
        if any(run.ended == "done" and run.order.rounds > 1 and run.sent for run in ended):
            self._clock.sometimes("a workflow with signals continued as new")
        if any(run.order.is_endless for run in ended):
            self._clock.sometimes("a workflow was cancelled, and undid what it had done")
        return find_wrong_flows(self._runs, self.deeds, self.keyed_deeds)


def find_wrong_flows(runs: list[Run], deeds: list[Record], keyed: list[Record]) -> list[Violation]:
    """What breaks a promise: see the module. `deeds` and `keyed` are the records of both tags."""
    stuck, ended = [run for run in runs if not run.ended], [run for run in runs if run.ended]
    found = [Violation("workflows end", f"{run.id} has not ended: {run.order}") for run in stuck]
    found += [Violation("executions agree on every step", text) for text in _find_disagreements(deeds)]
    found += [Violation("signals are taken once, in order", text) for text in _find_wrong_signals(ended)]
    found += [Violation("each keyed effect is there once", text) for text in _find_wrong_effects(ended, keyed)]
    found += [Violation("workflows end as they should", text) for text in _find_wrong_ends(ended, deeds)]
    return found


async def _end_of(handle: Handle[Any]) -> tuple[str, Any]:
    """How a workflow has ended, once it has."""
    while True:
        state = await handle.status()
        if state.status in OVER:
            break
        await asyncio.sleep(_POLL_S)
    try:
        return "done", await handle.result(wait_s=0)
    except FunctionFailed as error:
        return str(error.details.get("error_type")), None


def _find_disagreements(deeds: list[Record]) -> Iterator[str]:
    before: dict[tuple[str, str], set[tuple[int, ...]]] = defaultdict(set)
    for seen in deeds:
        what = _deed_of(seen)
        before[what.errand, what.label].add(tuple(what.before))
    for (flow_id, label), found in before.items():
        if len(found) > 1:
            yield f"{flow_id}: '{label}' was begun after {sorted(found)}"


def _find_wrong_signals(ended: list[Run]) -> Iterator[str]:
    for run in ended:
        if run.done is not None and run.done.taken != run.sent:
            yield f"{run.id} was sent {run.sent} and took {run.done.taken}"


def _find_wrong_effects(ended: list[Run], keyed: list[Record]) -> Iterator[str]:
    counts = Counter((what.errand, what.label) for what in map(_deed_of, keyed))
    for (flow_id, label), count in counts.items():
        if count > 1:
            yield f"{flow_id}: '{label}' is there {count} times"
    for run in ended:
        if run.done is None and not run.order.is_endless:
            continue
        wanted = [f"{number} {what}" for number in range(run.order.rounds) for what in ("first", "a", "b", "last")]
        if run.order.is_endless:
            wanted = [UNDO]
        for label in wanted:
            if not counts[run.id, label]:
                yield f"{run.id}: '{label}' is missing"


def _find_wrong_ends(ended: list[Run], deeds: list[Record]) -> Iterator[str]:
    values = {seen.seqnum: _deed_of(seen) for seen in deeds}
    for run in ended:
        if run.order.is_endless:
            if (run.ended, run.child) != ("WorkflowCancelled", "WorkflowCancelled"):
                yield f"{run.id} was cancelled and ended as {run.ended}, its child as {run.child}"
        elif run.done is None:
            yield f"{run.id} ended as {run.ended}"
        elif strange := [value for value in run.done.said if value not in values]:
            yield f"{run.id} says that it did {strange}, which nothing in the log is"


def _deed_of(seen: Record) -> Deed:
    return msgspec.json.decode(seen.data, type=Deed)


class _CallsOfUser:
    """`boki.runtime.port.CallPort` of a process that asks any gateway or engine, and another one if it is silent."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def invoke(self, call: Call) -> Outcome:
        """Refused: every call of this workload is a logged one."""
        raise AssertionError(f"{call.function} was called without being logged")

    async def invoke_later(self, call: Call, delay_s: float, key: str | None) -> str:
        """See `CallPort`."""
        assert not delay_s
        return await self._ask(lambda ledger: ledger.accept(to_be_logged(call), key=key))

    async def ask_call(self, invocation_id: str, wait_s: float, change: CallChange) -> InvocationState:
        """See `CallPort`."""
        if change == "cancel":
            return await self._ask(lambda ledger: ledger.cancel(invocation_id))
        return await self._ask(lambda ledger: ledger.state(invocation_id, min(wait_s, _POLL_S)))

    async def _ask(self, act: Callable[[CallLedger], Coroutine[Any, Any, T]]) -> T:
        """What one of them answers. It does so in its own loop, and dies in it."""
        doors = doors_of(self._world, self._world.clock.flow_rng)
        if not doors:
            raise ConnectionLost("nobody is there whom one could ask")
        door = self._world.clock.flow_rng.choice(doors)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def told(task: asyncio.Task[T]) -> None:
            error = ConnectionLost(f"{door.name} is gone") if task.cancelled() else task.exception()
            if answer.done():
                return  # nobody waits any more
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(task.result())

        door.loop.create_task(act(door.ledger)).add_done_callback(told)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await answer
        except TimeoutError:
            raise ConnectionLost(f"{door.name} does not answer") from None
