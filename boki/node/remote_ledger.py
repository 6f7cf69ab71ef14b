"""Logged calls for an engine without the index: they are accepted, and run, by an engine that has it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from boki.calls import Call
from boki.errors import DeadlineExceeded
from boki.host.links import NodeLinks
from boki.log.ids import NodeId
from boki.log.membership import Member, Membership, Role
from boki.remote import AcceptCall, CallAccepted

_TIMEOUT_S: Final = 30.0
_REPEAT_S: Final = 1.0
_LIFE_BITS: Final = 32
_UPPER_HALF: Final = 1 << 31
"""The relay's core numbers its own requests from the lower half of the same range: two alike would be one."""


class RemoteLedger:
    """Asks engines with the index to log calls. Asked twice they log once: calls are logged under their ids."""

    def __init__(self, links: NodeLinks, node: NodeId, incarnation: int) -> None:
        self._links = links
        self._node = node
        self._engines: Sequence[Member] = ()
        self._numbers = incarnation << _LIFE_BITS | _UPPER_HALF
        self._waiting: dict[int, asyncio.Future[CallAccepted]] = {}

    def on_membership(self, membership: Membership) -> None:
        """Who is registered now."""
        self._engines = [member for member in membership.of(Role.ENGINE) if member.has_index]

    def deliver(self, _sender: NodeId, message: Any) -> None:
        """An answer has come."""
        if isinstance(message, CallAccepted) and message.request in self._waiting:
            answered = self._waiting[message.request]
            if not answered.done():
                answered.set_result(message)

    async def accept(self, call: Call, *, key: str | None, delay_s: float) -> str:
        """See `boki.engine.calls.logged_calls.LoggedCalls.accept`."""
        self._numbers += 1
        number = self._numbers
        request = AcceptCall(number, call, key, int(delay_s * 1e6))
        answered = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                turn = number
                while not answered.done():
                    if self._engines:
                        self._links.send(self._node, self._engines[turn % len(self._engines)].node, request)
                    turn += 1
                    await asyncio.wait([answered], timeout=_REPEAT_S)
        except TimeoutError:
            raise DeadlineExceeded(
                f"whether call {call.id} is in the log is not known: no engine with the index has answered",
                invocation=call.id,
            ) from None
        finally:
            del self._waiting[number]
        accepted: CallAccepted = answered.result()
        if accepted.failure is not None:
            raise accepted.failure.error()
        return accepted.invocation
