"""The gateway as the faces of libraries see it: one object in front of the log, the functions and the budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from aiohttp.web import BaseRequest

from boki.api.deadline import Caller
from boki.api.logbook import LogSession
from boki.errors import Outcome
from boki.faces import Ledger
from boki.gateway.backend import Backend
from boki.gateway.server.http.calls import FunctionCalls
from boki.gateway.server.http.connections import REQUEST, read_body, while_connected
from boki.gateway.server.http.events import EventStream
from boki.gateway.server.http.log_access import LogDoor
from boki.log.limits import Limits
from boki.protocol.calls import Call, FunctionInfo
from boki.protocol.calls import Outcome as CallOutcome


class LibraryPort:
    """See `boki.faces.GatewayPort`."""

    def __init__(self, door: LogDoor, calls: FunctionCalls, backend: Backend) -> None:
        self._door = door
        self._calls = calls
        self._backend = backend

    @property
    def limits(self) -> Limits:
        """See `GatewayPort`."""
        return self._door.config.limits

    @property
    def functions(self) -> Mapping[str, FunctionInfo]:
        """See `GatewayPort`."""
        return self._backend.functions

    async def look_for(self, request: BaseRequest, function: str) -> FunctionInfo | None:
        """See `GatewayPort`."""
        return await self._calls.lookup.look_for(request, function)

    @property
    def ledger(self) -> Ledger:
        """See `GatewayPort`."""
        return self._backend.ledger

    async def run(self, call: Call) -> CallOutcome:
        """See `GatewayPort`."""
        return await self._calls.run(call)

    def admitted(self, size_bytes: int = 0, *, waits: bool = False) -> AbstractContextManager[None]:
        """See `GatewayPort`."""
        return self._door.admitted(size_bytes, waits=waits)

    async def body(self, request: BaseRequest, max_bytes: int | None = None, too_large: str = REQUEST) -> bytes:
        """See `GatewayPort`."""
        limit = self.limits.request_bytes if max_bytes is None else max_bytes
        return await read_body(request, limit, self._door.config.timeouts, too_large)

    def session(self, request: BaseRequest, wait_s: float = 0.0) -> LogSession:
        """See `GatewayPort`."""
        return self._door.access(request, wait_s)

    def lasting_session(self, request: BaseRequest, wait_s: float = 0.0) -> LogSession:
        """See `GatewayPort`."""
        return self._door.lasting_access(request, wait_s)

    def polling(self, outcome: Outcome) -> AbstractContextManager[None]:
        """See `GatewayPort`."""
        return self._door.polling(outcome)

    def connected(self, request: BaseRequest) -> AbstractContextManager[None]:
        """See `GatewayPort`."""
        return while_connected(request)

    @contextmanager
    def events(self, request: BaseRequest) -> Iterator[EventStream]:
        """See `GatewayPort`."""
        self._door.core.begin_stream()
        try:
            yield EventStream(request, self._door.config.timeouts)
        finally:
            self._door.core.end_stream()

    def own_session(self) -> LogSession:
        """See `GatewayPort`. It does not pass the door, which ends waiting reads when the gateway drains."""
        return LogSession(self._backend, self._door.appends, Caller(limits=self.limits))
