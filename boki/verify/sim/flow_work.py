"""What runs the workflows of `boki.verify.workloads.errands` on a simulated engine: the library as workers have it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, Protocol

import msgspec

from boki import Context
from boki.api.append_gatherer import AppendGatherer
from boki.api.call_state import CallState
from boki.api.port import CallPort, LogPort
from boki.extending import Function, Suspend, failure_of
from boki.libs.bokiflow import Workflow
from boki.libs.bokistore.memory import Memory
from boki.log.metalog import Positions
from boki.log.operations import Answer, Append, Operation, Read
from boki.protocol.calls import Call, CallChange, InvocationState, Outcome
from boki.verify.workloads.errands import chore, errand

_LONGEST_POLL_S: Final = 5.0
WORKFLOWS: Final[dict[str, Workflow[Any, Any]]] = {each.name: each for each in (errand, chore)}


class LoggedCallsOf(Protocol):
    """Where calls are logged: `boki.books.calls.logged_calls.LoggedCalls`."""

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
    """`boki.api.port.CallPort` of what runs on an engine."""

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
    nonces = Random(f"{ctx.invocation_id} {ctx.run_number}")
    ctx.logbook.session.shared(Memory).draw = nonces.randbytes
    try:
        result = await known.run(ctx, *known.arguments_of(ctx._state.call))  # noqa: SLF001 - as a worker does
    except Suspend as suspend:
        return Outcome(None, None, ctx.positions, suspend.suspension)
    except Exception as error:  # noqa: BLE001 - whatever a function raises ends its call
        return Outcome(None, failure_of(known.info.name, error), ctx.positions, appends=left_by(ctx))
    return Outcome(known.encode_result(result), None, ctx.positions, appends=left_by(ctx))


def left_by(ctx: Context) -> tuple[Append, ...]:
    """What the run has left to its engine."""
    return tuple(ctx.logbook.session.caller.last_appends or ())
