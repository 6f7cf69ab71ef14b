"""Logged calls, for handles of workflows that are in a gateway."""

from __future__ import annotations

from boki.faces import GatewayPort
from boki.libs.bokiflow.beginning import Beginning
from boki.libs.bokiflow.face.registered import workflow_info
from boki.protocol.calls import Call, ChosenId, InvocationState, Payload


class GatewayCalls:
    """See `boki.libs.bokiflow.beginning.Calls`."""

    def __init__(self, gateway: GatewayPort) -> None:
        self._gateway = gateway

    async def state(self, invocation_id: str, wait_s: float = 0) -> InvocationState:
        """See `Calls`."""
        return await self._gateway.ledger.state(invocation_id, wait_s)

    async def cancel(self, invocation_id: str, life_us: int = 0) -> InvocationState:
        """See `Calls`."""
        return await self._gateway.ledger.cancel(invocation_id, life_us)

    async def begin(self, call: Beginning) -> None:
        """See `Calls`."""
        info = workflow_info(self._gateway, call.function)
        chosen = ChosenId(
            call.start,
            call.if_running,
            call.if_ended,
            call.name,
            attributes=call.attributes,
            watcher=call.watcher,
            copies=call.copies,
        )
        payload = call.payload or Payload("bytes", b"")
        timeout_us = int(info.timeout_s * 1e6)
        logged = Call(call.invocation_id, call.function, payload, call.book, timeout_us, chosen=chosen)
        await self._gateway.ledger.accept(info.to_be_logged(logged))
