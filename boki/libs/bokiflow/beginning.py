"""How handles start logged calls: of workflows that are rewound or forked, and of those that close others."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from boki.extending import Attribute, CallsById, InvocationState, Payload


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
    if_running: Literal["use", "fail"] = "fail"
    if_ended: Literal["use", "fail", "again"] = "fail"


class KnownCalls(Protocol):
    """Logged calls that were started: those of `CallsById` in a function, or a gateway's."""

    async def state(self, invocation_id: str, wait_s: float = 0) -> InvocationState:
        """What is known of a call, after waiting at most `wait_s` for its end. `NoSuchInvocation`"""

    async def cancel(self, invocation_id: str) -> InvocationState:
        """End a call. `WrongState` if it has ended otherwise, `NoSuchInvocation`."""


class Calls(KnownCalls, Protocol):
    """Logged calls: those of a function (`FunctionCalls`), or a gateway's."""

    async def begin(self, call: Beginning) -> None:
        """Start a call. `AlreadyExists` if there is one of its id, and the policies say so."""


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
            copies=call.copies,
        )
