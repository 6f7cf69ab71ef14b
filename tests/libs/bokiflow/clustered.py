"""A context like that of `boki.testing`, on a simulated cluster: storage nodes, sequencers, engines and gateways.

Virtual time passes there as in the simulator, a second in some milliseconds: it is not for cases that take hours.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from threading import Thread
from typing import Any
from unittest.mock import patch

from boki import BokiError, Context, FunctionFailed
from boki.api.append_gatherer import AppendGatherer
from boki.api.call_state import UNHURRIED_US, CallState
from boki.api.function import Function
from boki.libs.bokiflow import WorkflowEnded
from boki.libs.bokiflow.execution import WRITER_NAMES
from boki.log.ids import NodeId
from boki.log.metalog import Positions
from boki.log.operations import Answer, Operation
from boki.protocol.calls import OVER, Call, CallChange, InvocationState, Payload
from boki.verify.sim import calls, flow_work, hearing
from boki.verify.sim.clockwork import START_US
from boki.verify.sim.faults import Faults
from boki.verify.sim.flows import _CallsOfUser
from boki.verify.sim.loops import SimulatedLoop
from boki.verify.sim.options import Options
from boki.verify.sim.processes import Process
from boki.verify.sim.simulation import Simulation
from tests.libs.bokiflow.crashes import timer

CLUSTER = Options(
    seed=1, clients=0, flows=1, engines=2, storage=3, sequencers=3, spare_sequencers=0, controllers=1, link_us=200
)
ALONE = Options(
    seed=1,
    clients=0,
    flows=1,
    engines=1,
    storage=1,
    replicas=1,
    write_quorum=1,
    sequencers=1,
    spare_sequencers=0,
    controllers=1,
    link_us=200,
)
"""One engine that runs one call at a time, one log and one replica of it."""
LONGEST_S = 600.0
"""More virtual time takes too long to simulate."""
_STEP_US = 100_000
_DOWN_US = 1_000_000


class TooLong(Exception):
    """A case needs more virtual time than there is."""


def _engines(simulation: Simulation) -> list[Any]:
    return [simulation.nodes[name] for name in sorted(simulation.nodes) if name.startswith("engine")]


def _run_in_thread(loop: SimulatedLoop, _executor: None, work: Callable[[], Any]) -> asyncio.Future[Any]:
    """`run_in_executor` of a simulated loop: a thread that it waits for; virtual time stops meanwhile."""
    future = loop.create_future()

    def in_thread() -> None:
        try:
            result, error = work(), None
        except BaseException as raised:  # noqa: BLE001 - the future has it
            result, error = None, raised
        if not future.done():
            future.set_exception(error) if error is not None else future.set_result(result)

    def begin() -> None:
        thread = Thread(target=in_thread, name="boki-sim-step")
        thread.start()
        thread.join()

    loop.call_soon(begin)
    return future


class _Clock:
    """The clock of `boki.testing`, as far as cases use it."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.began_us = self.now_us

    @property
    def now_us(self) -> int:
        """The time of the cluster."""
        return self._simulation.clock.now_us

    async def advance(self, seconds: float) -> None:
        """Let time pass."""
        await timer(seconds)


class ClusterContext(Context):
    """What a case is given."""

    __slots__ = ("_simulation", "clock")

    def __init__(self, simulation: Simulation, process: Process, book: str) -> None:
        def now_s() -> float:
            return simulation.clock.now_us / 1e6

        call = Call("c" * 32, "user", Payload("json", b"null"), book, UNHURRIED_US)
        state = _Learning(call, clock=now_s, wall_clock=now_s, longest_poll_s=5.0)
        port = _Patient(process)
        super().__init__(state, port, AppendGatherer(port), _Calls(simulation))
        self.clock = _Clock(simulation)
        self._simulation = simulation

    async def stop_engines(self, seconds: float) -> None:
        """Crash every engine, and start them again after this time."""
        clock = self._simulation.clock
        for engine in _engines(self._simulation):
            clock.after(0, engine.crash)
            clock.after(round(seconds * 1e6), engine.start)
        await timer(seconds)


class _Patient:
    """The log of a client that waits as long as its poll does: nothing fails here."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """See `LogPort`."""
        return await self._process.request(operation, positions, timeout_s)


class _Calls(_CallsOfUser):
    """Logs calls with a delay, too, and waits for the end of one as long as it is asked to."""

    async def invoke_later(self, call: Call, delay_s: float, key: str | None) -> str:
        """See `CallPort`."""
        return await self._ask(lambda ledger: ledger.accept(flow_work.to_be_logged(call), key=key, delay_s=delay_s))  # type: ignore[call-arg]

    async def ask_call(self, invocation_id: str, wait_s: float, change: CallChange) -> InvocationState:
        """See `CallPort`."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        while True:
            state = await super().ask_call(invocation_id, max(0.0, until_s - loop.time()), change)
            if change == "cancel" or state.state in OVER or loop.time() >= until_s:
                return state


class _Learning(CallState):
    """Tells the simulated engines of the functions that it sees."""

    __slots__ = ()

    def later(self, function: Callable[..., Any] | str, *rest: Any, **options: Any) -> Call:
        if not isinstance(function, str):
            known = Function.of(function)
            flow_work.WORKFLOWS[known.info.name] = function  # type: ignore[assignment]
            flow_work.WORKFLOWS_INFO[known.info.name] = known.info
        return super().later(function, *rest, **options)


def run_clustered(
    work: Callable[[Any], Awaitable[None]],
    options: Options = CLUSTER,
    book: str = "test",
    crash_us: int = 0,
    crashing: str = "",
    zombies: float = 0.0,
) -> Counter[str]:
    """Do the work with a context on a cluster of its own; what situations it has met. Raises what the work raises, and
    `TooLong`.

    `crash_us`: an engine crashes this long after the cluster is ready (`ctx.clock.began_us`), and is back a second
    later: the one of the name `crashing`, or the first. The faults of the options strike from then on, until `chaos_us`
    have passed. `zombies`: how often a workflow runs in a second worker as well, which its engine believes to be gone.
    """
    with ExitStack() as stack:
        stack.enter_context(patch.dict(flow_work.WORKFLOWS))
        stack.enter_context(patch.dict(flow_work.WORKFLOWS_INFO))
        stack.enter_context(patch.object(flow_work, "CallState", _Learning))
        stack.enter_context(patch.object(SimulatedLoop, "run_in_executor", _run_in_thread))
        stack.enter_context(patch.object(calls, "_ZOMBIES", zombies))
        if options is ALONE:
            stack.enter_context(patch.object(calls, "_RUNNING", 1))
        WRITER_NAMES.seed(options.seed)
        simulation = Simulation(options)
        for logger in ("boki.protocol.calls", "boki.gateway", "boki.engine"):
            stack.enter_context(hearing.heard(simulation, logger, logger))
        assert simulation._wait(simulation._is_ready), "the cluster starts"
        process = Process(simulation, "case", simulation.clock.flow_rng, None)
        context = ClusterContext(simulation, process, book)
        task = process.loop.create_task(_run(work, context))
        clock = simulation.clock
        if crash_us:
            engine = simulation.nodes[NodeId(crashing)] if crashing else _engines(simulation)[0]
            clock.after(crash_us, engine.crash)
            clock.after(crash_us + _DOWN_US, engine.start)
        if options.faults:
            clock.after(options.chaos_us, Faults(simulation).end)
        while not task.done():
            clock.run_until(clock.now_us + _STEP_US, task.done)
            if clock.now_us - START_US > LONGEST_S * 1e6:
                raise TooLong(f"more than {LONGEST_S:g} s of virtual time")
        process.die()
        for node in simulation.nodes.values():
            node.end()
        clock.run_until(clock.now_us)
        assert simulation.raised == []
        task.result()
        return clock.seen


async def until_known(act: Callable[[], Awaitable[Any]], pause: Callable[[], Awaitable[None]]) -> Any:
    """Repeat it while a cluster under faults refuses it, or does not tell its outcome; or while nobody answers."""
    while True:
        try:
            return await act()
        except BokiError as error:
            is_open = error.retryable or error.outcome == "unknown"
            if not is_open or isinstance(error, FunctionFailed | WorkflowEnded):
                raise
            await pause()


async def _run(work: Callable[[Any], Awaitable[None]], context: ClusterContext) -> None:
    await work(context)
