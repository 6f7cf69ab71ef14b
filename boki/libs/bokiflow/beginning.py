"""How handles start logged calls: of workflows that are rewound or forked, and of those that close others."""

from __future__ import annotations

from functools import partial
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from boki import Context, DeadlineExceeded, NoSuchInvocation
from boki.extending import OVER, Attribute, CallsById, InvocationState, Payload, WakeOn, changes_of
from boki.libs.fold.retrying import until_answered

ATTENDED_S: Final = 60.0
"""The longest that a request waits for an attendant of its own."""


class Beginning(NamedTuple):
    """A logged call that is to be started."""

    function: str
    book: str
    invocation_id: str
    start: str
    """See `boki.extending.CallsById.start`, as for the fields below."""
    name: str
    attributes: dict[str, Attribute]
    payload: Payload | None = None
    """None: that of the call which it copies."""
    copies: str = ""
    watcher: str = ""
    if_running: Literal["use", "fail"] = "fail"
    if_ended: Literal["use", "fail", "again"] = "fail"


class QueryRequest(msgspec.Struct, frozen=True, array_like=True):
    """What is asked of the code of a workflow: one of its queries."""

    invocation_id: str
    flow_id: str
    query: str
    payload: Payload


class KnownCalls(Protocol):
    """Logged calls that were started: those of `CallsById` in a function, or a gateway's."""

    async def state(self, invocation_id: str, wait_s: float = 0) -> InvocationState:
        """What is known of a call, after waiting at most `wait_s` for its end. `NoSuchInvocation`"""

    async def cancel(self, invocation_id: str, life_us: int = 0) -> InvocationState:
        """End a call if it has that `life_us` (0: whichever it has). `WrongState` if it has another one, or has ended
        otherwise. `NoSuchInvocation`.
        """


async def has_ended(calls: KnownCalls, invocation_id: str) -> bool | None:
    """Whether a call has ended by now; None: the engine or gateway does not know it, not yet or not any more."""
    try:
        return (await calls.state(invocation_id)).state in OVER
    except NoSuchInvocation:
        return None


async def next_change(ctx: Context, call: str) -> WakeOn:
    """What wakes a call when that other one has a record that is not here yet."""
    changes = changes_of(call)
    last = await until_answered(partial(ctx.logbook_named(changes.book).check_tail, changes.tag))
    return changes if last is None else changes_of(call, last.next_seqnum)


class Calls(KnownCalls, Protocol):
    """Logged calls: those of a function (`FunctionCalls`), or a gateway's."""

    async def begin(self, call: Beginning) -> None:
        """Start a call. `AlreadyExists` if there is one of its id, and the policies say so."""


async def ended_attendant(calls: Calls, call: Beginning, late: str) -> Payload | None:
    """The result of a call that attends to something of a workflow, which is started here. Raises what it failed with,
    or `DeadlineExceeded`, which says `late`, after a minute.
    """
    await calls.begin(call)
    state = await calls.state(call.invocation_id, ATTENDED_S)
    if state.state not in OVER:
        raise DeadlineExceeded(f"{late} within {ATTENDED_S:g} s: ask again", invocation=call.invocation_id)
    if state.failure is not None:
        raise state.failure.error()
    return state.result


class FunctionCalls(CallsById):
    """The logged calls, for handles inside of functions."""

    async def begin(self, call: Beginning) -> None:
        """See `Calls`."""
        await self.start(
            call.invocation_id,
            call.function,
            call.payload or Payload("bytes", b""),
            if_running=call.if_running,
            if_ended=call.if_ended,
            book=call.book,
            start=call.start,
            name=call.name,
            attributes=call.attributes,
            watcher=call.watcher,
            copies=call.copies,
        )
