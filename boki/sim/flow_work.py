"""Workflows of the simulator, and what runs them on a simulated engine: the library as workers have it.

An errand does deeds: steps that leave two records each, one as often as the step's body runs and one under the step's
key. A deed's record says what the errand had come to before it, and its value is the seqnum of that record, so another
run of the body is another value: if two executions of an errand ever disagreed, some deed would tell of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from boki import Context, Retry
from boki.calls import Call, CallChange, InvocationState, Outcome
from boki.extending import Function, Suspend, failure_of
from boki.libs.bokiflow import Workflow, flow, step, workflow
from boki.log.metalog import Positions
from boki.log.operations import Answer, Append, Operation, Read
from boki.runtime.append_gatherer import AppendGatherer
from boki.runtime.call_state import CallState
from boki.runtime.port import CallPort, LogPort

BOOK: Final = "errands"
DEEDS: Final = "deeds"
DONE, KEYED = "done", "keyed"
"""Tags of `DEEDS`: a record for each run of a step's body, and one for each `step.key`."""
ITEM: Final = "item"
UNDO: Final = "undo"
_LONGEST_POLL_S: Final = 5.0
_TRYING: Final = Retry(attempts=1_000, first_s=0.1, max_s=0.4)


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """What an errand is to do in each of its rounds, and how far it has come."""

    rounds: int = 1
    items: int = 0
    """Signals that it takes in each round."""
    handles: bool = False
    """Whether a handler takes them, at any time, or the body, when it comes to it."""
    nap_s: float = 0.0
    has_child: bool = False
    is_endless: bool = False
    """Whether it waits for its cancellation in the end."""
    round: int = 0
    taken: list[int] = []
    said: list[int] = []
    """The value of each deed of the errand itself."""


class Deed(msgspec.Struct, frozen=True):
    """What a record of `DEEDS` says."""

    errand: str
    label: str
    before: list[int]
    """What the errand had come to when it began this."""


@step(retry=_TRYING)
async def deed(errand: str, label: str, before: list[int]) -> int:
    """Leave both records; the seqnum of the one that each run of this leaves."""
    book = step.ctx.logbook_named(DEEDS)
    data = msgspec.json.encode(Deed(errand, label, before))
    seqnum = await book.append(data, [DONE])
    await book.append(data, [KEYED], key=f"deed {step.key}")
    return seqnum


@step(pure=True)
async def total(values: list[int]) -> int:
    """What takes no effect, and no record of its own."""
    return sum(values)


@workflow
async def chore(order: Errand) -> int:
    """The child of an errand."""
    if order.is_endless:
        flow.compensate(deed, flow.id, UNDO, [])
        await flow.receive("never")
    await flow.sleep(order.nap_s)
    return await deed(flow.id, f"chore {order.round}", [])


@workflow
async def errand(order: Errand) -> Errand:
    """Deeds one after the other and side by side, a timer, signals, a child, and then the next round."""
    taken = list(order.taken)
    wanted = order.items * (order.round + 1)
    if order.handles:
        flow.on_signal(ITEM, taken.append)
    if order.is_endless:
        flow.compensate(deed, flow.id, UNDO, [])
        await flow.start(chore, order, id=f"{flow.id}/chore", parent_close="cancel")
    first = await deed(flow.id, f"{order.round} first", [len(taken), *order.said])
    napping = asyncio.create_task(flow.sleep(order.nap_s))
    both = await asyncio.gather(*(deed(flow.id, f"{order.round} {side}", [first, len(taken)]) for side in "ab"))
    await napping
    if order.has_child:
        both.append(await flow.call(chore, order))
    if order.handles:
        await flow.wait_for(lambda: len(taken) >= wanted)
    else:
        for _ in range(order.items):
            taken.append(await flow.receive(ITEM))
    if order.is_endless:
        await flow.receive("never")
    summed = await total([first, *both])
    last = await deed(flow.id, f"{order.round} last", [summed, *taken])
    done = msgspec.structs.replace(order, round=order.round + 1, taken=taken, said=[*order.said, first, *both, last])
    if done.round < done.rounds:
        flow.continue_as_new(done)
    return done


WORKFLOWS: Final[dict[str, Workflow[Any, Any]]] = {each.name: each for each in (errand, chore)}


class LoggedCallsOf(Protocol):
    """Where calls are logged: `boki.engine.calls.logged_calls.LoggedCalls`."""

    async def accept(self, call: Call, *, key: str | None = None, delay_s: float = 0.0) -> str:
        """Log a call."""

    async def asked(self, invocation_id: str, wait_s: float, change: CallChange) -> InvocationState:
        """What a function asks about a call."""


def to_be_logged(call: Call) -> Call:
    """The call as the shells of an engine and of a gateway have it logged; the same in each run of a seed."""
    call = WORKFLOWS_INFO[call.function].to_be_logged(call)
    return msgspec.structs.replace(call, traceparent="")  # it names a random id


WORKFLOWS_INFO: Final = {name: Function.of(each).info for name, each in WORKFLOWS.items()}


class CallsOfEngine:
    """`boki.runtime.port.CallPort` of what runs on an engine."""

    def __init__(self, calls: LoggedCallsOf) -> None:
        self._calls = calls

    async def invoke(self, call: Call) -> Outcome:
        """Refused: every call of this workload is a logged one."""
        raise AssertionError(f"{call.function} was called without being logged")

    async def invoke_later(self, call: Call, delay_s: float, key: str | None) -> str:
        """See `CallPort`."""
        return await self._calls.accept(to_be_logged(call), key=key, delay_s=delay_s)

    async def ask_call(self, invocation_id: str, wait_s: float, change: CallChange) -> InvocationState:
        """See `CallPort`."""
        return await self._calls.asked(invocation_id, min(wait_s, _LONGEST_POLL_S), change)


class ImpatientLog:
    """A way to the log that is no more patient than the other clients of the run."""

    def __init__(self, port: LogPort, deadline_us: int) -> None:
        self._port = port
        self._deadline_s = deadline_us / 1e6

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """See `LogPort`."""
        wait_s = operation.wait_us / 1e6 if isinstance(operation, Read) else 0.0
        return await self._port.request(operation, positions, min(timeout_s, wait_s + self._deadline_s))


def context_of(
    call: Call, log: LogPort, appends: AppendGatherer, calls: CallPort, now_us: Callable[[], int]
) -> Context:
    """What a function is given that runs in virtual time."""

    def now_s() -> float:
        return now_us() / 1e6

    state = CallState(call, clock=now_s, wall_clock=now_s, longest_poll_s=_LONGEST_POLL_S)
    state.caller.last_appends = []
    return Context(state, log, appends, calls)


async def run_on_engine(ctx: Context) -> Outcome:
    """One run of a workflow, as a worker tells its engine of it."""
    known = Function.of(WORKFLOWS[ctx.function_name])
    try:
        result = await known.run(ctx, *known.arguments_of(ctx._state.call))  # noqa: SLF001 - as a worker does
    except Suspend as suspend:
        return Outcome(None, None, ctx.positions, suspend.suspension)
    except Exception as error:  # noqa: BLE001 - whatever a function raises ends its call
        return Outcome(None, failure_of(known.info.name, error), ctx.positions, appends=_left_by(ctx))
    return Outcome(known.encode_result(result), None, ctx.positions, appends=_left_by(ctx))


def _left_by(ctx: Context) -> tuple[Append, ...]:
    """What the run has left to its engine."""
    return tuple(ctx.logbook.session.caller.last_appends or ())
