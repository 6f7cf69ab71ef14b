"""BokiFlow in the simulator: workflows as users write them, on engines that die, in virtual time.

Some processes behind gateways start errands (`boki.verify.sim.flow_work`), signal them before and after the start, and
cancel those that would wait forever. What is promised stands in `boki.verify.workloads.errand_checks`, and of the
calls that the workflows are in `boki.verify.sim.call_promises`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from boki import Context
from boki.api.append_gatherer import AppendGatherer
from boki.errors import BokiError, ConnectionLost, FunctionFailed, NotFound
from boki.extending import CallsById
from boki.libs.bokiflow import Handle, WorkflowEnded
from boki.log.record import Record
from boki.protocol.calls import OVER, Call, CallChange, InvocationState, Outcome, Payload
from boki.verify.histories.facts import Violation
from boki.verify.sim.calls import CallLedger, doors_of
from boki.verify.sim.flow_work import context_of, to_be_logged
from boki.verify.sim.processes import Process
from boki.verify.workloads.errand_checks import Run, find_wrong_flows
from boki.verify.workloads.errands import BOOK, ITEM, Errand, chore, draw_errand, errand

if TYPE_CHECKING:
    from boki.verify.sim.nodes import World

T = TypeVar("T")
_QUOTA: Final = 2
"""Errands that a user runs, one after the other."""
_TIMEOUT_S: Final = 3.0
_PAUSE_S: Final = 0.1
_POLL_S: Final = 0.5


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
        self.ids: list[tuple[str, str]] = []
        """Of each errand: its id, and that of the logged call that it is."""
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
            await self._run(ctx, Run(f"errand-{number}-{count}", draw_errand(self._rng)))
        self._busy -= 1

    def _context(self, process: Process, number: int) -> Context:
        call = Call(f"{number:032x}", "user", Payload("json", b"null"), BOOK, 10**12)
        return context_of(call, process, AppendGatherer(process), _CallsOfUser(self._world), lambda: self._clock.now_us)

    async def _run(self, ctx: Context, run: Run) -> None:
        self._runs.append(run)
        self._clock.note(f"{run.id} begins", run.order)
        handle = errand.handle(ctx, run.id)
        self.ids.append((run.id, handle.invocation_id))
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
            run.child, _ = await self._until_done(lambda: _end_of(left, may_lack=True))
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


async def _end_of(handle: Handle[Any], *, may_lack: bool = False) -> tuple[str, Any]:
    """How a workflow has ended, once it has. `may_lack`: or "" if it was never started."""
    while True:
        try:
            state = await handle.status()
        except NotFound:
            if may_lack:
                return "", None
            raise
        if state.status in OVER:
            break
        await asyncio.sleep(_POLL_S)
    try:
        return "done", await handle.result(wait_s=0)
    except FunctionFailed as error:
        return str(error.details.get("error_type")), None


class _CallsOfUser:
    """`boki.api.port.CallPort` of a process that asks any gateway or engine, and another one if it is silent."""

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
        if isinstance(change, int):
            return await self._ask(lambda ledger: ledger.cancel(invocation_id, change))
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
            async with asyncio.timeout(_TIMEOUT_S):
                return await answer
        except TimeoutError:
            raise ConnectionLost(f"{door.name} does not answer") from None
