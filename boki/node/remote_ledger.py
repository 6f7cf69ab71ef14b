"""Logged calls for an engine without the index: they are accepted, run and looked at by an engine that has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from boki.errors import CorruptData, DeadlineExceeded
from boki.host.links import NodeLinks
from boki.log.ids import NodeId
from boki.log.membership import Member, Membership, Role
from boki.protocol.call_messages import AcceptCall, AskCall, CallAccepted, ChangeCall, TellCall
from boki.protocol.calls import Call, CallChange, InvocationState
from boki.protocol.messages import Message

_TIMEOUT_S: Final = 30.0
_REPEAT_S: Final = 1.0
_LIFE_BITS: Final = 32
_UPPER_HALF: Final = 1 << 31
"""The relay's core numbers its own requests from the lower half of the same range: two alike would be one."""

R = TypeVar("R", CallAccepted, TellCall)


class RemoteLedger:
    """Asks engines with the index to log calls. Asked twice they log once: calls are logged under their ids."""

    def __init__(self, links: NodeLinks, node: NodeId, incarnation: int) -> None:
        self._links = links
        self._node = node
        self._engines: Sequence[Member] = ()
        self._numbers = incarnation << _LIFE_BITS | _UPPER_HALF
        self._waiting: dict[int, asyncio.Future[CallAccepted | TellCall]] = {}

    def on_membership(self, membership: Membership) -> None:
        """Who is registered now."""
        self._engines = [member for member in membership.of(Role.ENGINE) if member.has_index]

    def deliver(self, _sender: NodeId, message: Any) -> None:
        """An answer has come."""
        if isinstance(message, CallAccepted | TellCall) and message.request in self._waiting:
            answered = self._waiting[message.request]
            if not answered.done():
                answered.set_result(message)

    async def accept(self, call: Call, *, key: str | None, delay_s: float) -> str:
        """See `boki.books.calls.logged_calls.LoggedCalls.accept`."""
        accepted = await self._answer(
            lambda number: AcceptCall(number, call, key, int(delay_s * 1e6)),
            CallAccepted,
            _TIMEOUT_S,
            DeadlineExceeded(
                f"whether call {call.id} is in the log is not known: no engine with the index has answered",
                invocation=call.id,
            ),
        )
        if accepted.failure is not None:
            raise accepted.failure.error()
        return accepted.invocation

    async def asked(self, invocation_id: str, wait_s: float, change: CallChange) -> InvocationState:
        """See `boki.books.calls.logged_calls.LoggedCalls.asked`."""

        def request(number: int) -> AskCall | ChangeCall:
            return (
                ChangeCall(number, invocation_id, change)
                if change
                else AskCall(number, invocation_id, int(wait_s * 1e6))
            )

        late = DeadlineExceeded(
            f"no engine with the index has said what became of call {invocation_id}: ask again",
            outcome="unknown" if change else "not_applied",
            invocation=invocation_id,
        )
        told = await self._answer(request, TellCall, wait_s + _TIMEOUT_S, late)
        if told.failure is not None:
            raise told.failure.error()
        assert told.state is not None, "either is there"
        return told.state

    async def _answer(
        self, request: Callable[[int], Message], kind: type[R], timeout_s: float, late: DeadlineExceeded
    ) -> R:
        """Ask one engine after the other, every second another one, until one has answered."""
        self._numbers += 1
        number = self._numbers
        message = request(number)
        answered = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                turn = number
                while not answered.done():
                    if self._engines:
                        self._links.send(self._node, self._engines[turn % len(self._engines)].node, message)
                    turn += 1
                    await asyncio.wait([answered], timeout=_REPEAT_S)
        except TimeoutError:
            raise late from None
        finally:
            del self._waiting[number]
        answer = answered.result()
        if not isinstance(answer, kind):
            raise CorruptData(f"an engine answered request {number} with {type(answer).__name__}")
        return answer
