"""How requests from outside reach the log: admitted, with what their caller has seen, and cut short by a shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp.web import BaseRequest

from boki.errors import Unavailable
from boki.gateway.backend import Backend
from boki.gateway.config import GatewayConfig
from boki.gateway.core import GatewayCore
from boki.gateway.http import arguments
from boki.log.metalog import Positions
from boki.log.operations import Answer, Operation, Read
from boki.runtime.append_gatherer import AppendGatherer
from boki.runtime.deadline import DEFAULT_TIMEOUT_S, Caller, Deadline
from boki.runtime.http_exchange import POSITION
from boki.runtime.logbook import LogAccess


class LogDoor:
    """A `LogPort` over the backend. Appends of all requests that arrive together share one chunk."""

    def __init__(self, backend: Backend, core: GatewayCore, config: GatewayConfig) -> None:
        self.core = core
        self.config = config
        self._backend = backend
        self.appends = AppendGatherer(self, config.limits)
        self._closed: asyncio.Future[Answer] | None = None

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """See `boki.runtime.port.LogPort`. A read that waits ends as `Unavailable` when the gateway drains."""
        if not (isinstance(operation, Read) and operation.wait_us):
            return await self._backend.request(operation, positions, timeout_s)
        answer = asyncio.ensure_future(self._backend.request(operation, positions, timeout_s))
        try:
            await asyncio.wait((answer, self._closing()), return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
        finally:
            answer.cancel()
        raise Unavailable("this gateway is shutting down")

    def close(self) -> None:
        """End the reads that wait."""
        closed = self._closing()
        if not closed.done():
            closed.cancel()

    def access(self, request: BaseRequest, wait_s: float = 0.0) -> LogAccess:
        """The log for one request: what its caller has seen, and the deadline that it has."""
        asked_us = arguments.timeout_us(request.headers)
        timeout_s = DEFAULT_TIMEOUT_S + wait_s if asked_us is None else asked_us / 1e6
        return LogAccess(
            self, self.appends, Caller(self.positions(request), Deadline.after(timeout_s), self.config.limits)
        )

    def positions(self, request: BaseRequest) -> Positions:
        """What the caller says that it has seen; `InvalidArgument` if there is no such place in the log."""
        positions = arguments.positions(request.headers)
        self.check_positions(positions)
        return positions

    def check_positions(self, positions: Positions) -> None:
        """`InvalidArgument` if there is no such place in the log."""
        if positions:
            arguments.check_positions(positions, POSITION)
            self._backend.check_positions(positions)

    @contextmanager
    def admitted(self, size_bytes: int = 0) -> Iterator[None]:
        """Within the budget of requests; `Overloaded` or `Unavailable` if there is no room."""
        self.core.begin_request(size_bytes)
        try:
            yield
        finally:
            self.core.end_request(size_bytes)

    def _closing(self) -> asyncio.Future[Answer]:
        if self._closed is None:
            self._closed = asyncio.get_running_loop().create_future()
        return self._closed
