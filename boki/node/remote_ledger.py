"""Logged calls for an engine without the index: they are accepted, run and looked at by an engine that has it."""

from __future__ import annotations

from typing import Final

from boki.engine.server.port import EnginePort
from boki.errors import DeadlineExceeded
from boki.protocol.call_messages import AcceptCall, AskCall, CallAccepted, ChangeCall, TellCall
from boki.protocol.calls import Call, CallChange, InvocationState
from boki.protocol.messages import Message

_TIMEOUT_S: Final = 30.0


class RemoteLedger:
    """Asks engines with the index to log calls. Asked twice they log once: calls are logged under their ids."""

    def __init__(self, port: EnginePort) -> None:
        self._port = port

    async def accept(self, call: Call, *, key: str | None, delay_s: float) -> str:
        """See `boki.books.calls.logged_calls.LoggedCalls.accept`."""
        try:
            accepted = await self._port.ask(
                lambda number, _left_us: AcceptCall(number, call, key, int(delay_s * 1e6)), _TIMEOUT_S, changes=True
            )
        except DeadlineExceeded as error:
            raise DeadlineExceeded(
                f"whether call {call.id} is in the log is not known: {error}", invocation=call.id
            ) from None
        assert isinstance(accepted, CallAccepted), "nothing else answers it"
        return accepted.invocation

    async def asked(self, invocation_id: str, wait_s: float, change: CallChange) -> InvocationState:
        """See `boki.books.calls.logged_calls.LoggedCalls.asked`."""

        def make(number: int, _left_us: int) -> Message:
            if change:
                return ChangeCall(number, invocation_id, change)
            return AskCall(number, invocation_id, int(wait_s * 1e6))

        try:
            told = await self._port.ask(make, wait_s + _TIMEOUT_S, changes=bool(change), wait_s=wait_s)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(
                f"what became of call {invocation_id} is not known: {error}; ask again",
                outcome=error.outcome,
                invocation=invocation_id,
            ) from None
        assert isinstance(told, TellCall), "nothing else answers it"
        assert told.state is not None, "there is a state or a failure"
        return told.state
