"""Logged calls, as a gateway reaches them: any engine with the index answers, and another if that one is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, Protocol

import msgspec

from boki.errors import BokiError
from boki.log.ids import NodeId
from boki.protocol.call_messages import (
    AcceptCall,
    AskCall,
    CallAccepted,
    CallOnce,
    CallOnceEnded,
    ChangeCall,
    ListCalls,
    TellCall,
    TellCalls,
)
from boki.protocol.calls import Call, CallFilter, CallPage, InvocationState, Outcome
from boki.protocol.messages import Message

_ACCEPT_TIMEOUT_S: Final = 30.0
_OWNER_ANSWER_S: Final = 1.0
_ANSWER_S: Final = 10.0
"""How long an engine may take to read what it is asked for."""


class Ask(Protocol):
    """See `boki.gateway.server.cluster.ClusterBackend.ask`."""

    async def __call__(
        self,
        make: Callable[[int, int], Message],
        timeout_s: float,
        *,
        is_repeatable: bool,
        changes: bool,
        book: str = "",
        first: NodeId | None = None,
    ) -> Message:
        """Ask an engine (`first`, if it is up), another one if that one is lost and the request `is_repeatable`."""


class ClusterLedger:
    """`boki.gateway.backend.CallLedger` over messages, which may all be repeated: calls are logged under their ids."""

    def __init__(self, ask: Ask, prefer: Callable[[Call], NodeId | None]) -> None:
        self._ask = ask
        self._prefer = prefer

    async def accept(self, call: Call, *, key: str | None = None, delay_s: float = 0.0) -> str:
        """See `CallLedger`."""
        delay_us = int(delay_s * 1e6)
        answer = await self._ask(
            lambda number, _left_us: AcceptCall(number, call, key, delay_us),
            _ACCEPT_TIMEOUT_S,
            book=call.id,
            is_repeatable=True,
            changes=True,
        )
        assert isinstance(answer, CallAccepted)
        return answer.invocation

    async def call_once(self, call: Call, key: str) -> tuple[str, Outcome]:
        """See `CallLedger`."""
        answer = await self._ask(
            lambda number, left_us: CallOnce(number, msgspec.structs.replace(call, timeout_us=left_us), key),
            call.timeout_us / 1e6,
            book=call.id,
            first=self._prefer(call),
            is_repeatable=True,
            changes=True,
        )
        assert isinstance(answer, CallOnceEnded)
        assert answer.outcome is not None, "else it has a failure, which is raised"
        return answer.invocation, answer.outcome

    async def state(self, invocation_id: str, wait_s: float = 0.0) -> InvocationState:
        """See `CallLedger`."""
        answer = await self._ask(
            lambda number, left_us: AskCall(number, invocation_id, max(left_us - int(_ANSWER_S * 1e6), 0)),
            wait_s + _ANSWER_S,
            book=invocation_id,
            is_repeatable=True,
            changes=False,
        )
        assert isinstance(answer, TellCall)
        assert answer.state is not None, "else it has a failure, which is raised"
        if answer.owner is not None:
            return await self._state_at(answer.owner, answer.state)
        return answer.state

    async def page(self, wanted: CallFilter) -> CallPage:
        """See `CallLedger`."""
        answer = await self._ask(
            lambda number, _left_us: ListCalls(number, wanted),
            _ANSWER_S,
            book=wanted.function,
            is_repeatable=True,
            changes=False,
        )
        assert isinstance(answer, TellCalls)
        assert answer.page is not None, "else it has a failure, which is raised"
        return answer.page

    async def cancel(self, invocation_id: str, life_us: int = 0) -> InvocationState:
        """See `CallLedger`."""
        return await self._change(invocation_id, life_us or "cancel")

    async def retry(self, invocation_id: str) -> InvocationState:
        """See `CallLedger`."""
        return await self._change(invocation_id, "retry")

    async def _change(self, invocation_id: str, change: Literal["cancel", "retry"] | int) -> InvocationState:
        answer = await self._ask(
            lambda number, _left_us: ChangeCall(number, invocation_id, change),
            _ACCEPT_TIMEOUT_S,
            book=invocation_id,
            is_repeatable=True,
            changes=True,
        )
        assert isinstance(answer, TellCall)
        assert answer.state is not None, "else it has a failure, which is raised"
        return answer.state

    async def _state_at(self, owner: NodeId, known: InvocationState) -> InvocationState:
        """What the engine that runs the call says: whether a worker has it is in no record. Else what is known."""
        try:
            answer = await self._ask(
                lambda number, _left_us: AskCall(number, known.id, 0),
                _OWNER_ANSWER_S,
                book=known.id,
                is_repeatable=False,
                changes=False,
                first=owner,
            )
        except BokiError:
            return known
        return answer.state if isinstance(answer, TellCall) and answer.state is not None else known
