"""How requests from outside reach the log: admitted, with what their caller has seen, and cut short by a shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from aiohttp.web import BaseRequest

from boki.api.append_gatherer import AppendGatherer
from boki.api.deadline import DEFAULT_TIMEOUT_S, Caller, Deadline
from boki.api.http.exchange import POSITION
from boki.api.logbook import LogSession
from boki.errors import Outcome, Unavailable
from boki.gateway.backend import Backend
from boki.gateway.config import GatewayConfig
from boki.gateway.core import GatewayCore
from boki.gateway.server.http import arguments
from boki.log.metalog import Positions
from boki.log.operations import Answer, Operation, Read


class LogDoor:
    """A `LogPort` over the backend. Appends of all requests that arrive together share one chunk."""

    def __init__(self, backend: Backend, core: GatewayCore, config: GatewayConfig) -> None:
        self.core = core
        self.config = config
        self._backend = backend
        self.appends = AppendGatherer(self, config.limits)
        self._closed: asyncio.Future[Answer] | None = None
        self._polls: set[asyncio.Task[object]] = set()

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """See `boki.api.port.LogPort`. A read that waits ends as `Unavailable` when the gateway drains."""
        if not (isinstance(operation, Read) and operation.wait_us):
            return await self._backend.request(operation, positions, timeout_s)
        answer = asyncio.ensure_future(self._backend.request(operation, positions, timeout_s))
        try:
            await asyncio.wait((answer, self._closing()), return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
        finally:
            answer.cancel()
        raise _shutting_down()

    def close(self) -> None:
        """End the reads that wait, and what else does."""
        closed = self._closing()
        if not closed.done():
            closed.cancel()
            for poll in self._polls:
                poll.cancel()

    @contextmanager
    def polling(self, outcome: Outcome) -> Iterator[None]:
        """What is awaited here ends as `Unavailable` with that outcome when the gateway drains.

        Unlike a read that is ended, it is cancelled, and may give back what it was about to get.
        """
        poll = asyncio.current_task()
        assert poll is not None, "a handler"
        if self._closing().done():
            raise _shutting_down()  # nothing was begun
        self._polls.add(poll)
        try:
            yield
        except asyncio.CancelledError:
            if not self._closing().done() or poll.uncancel():  # its client has left
                raise
            raise _shutting_down(outcome) from None
        finally:
            self._polls.discard(poll)

    def access(self, request: BaseRequest, wait_s: float = 0.0) -> LogSession:
        """The log for one request: what its caller has seen, and the deadline that it has."""
        return LogSession(self, self.appends, self._caller(request, wait_s))

    def lasting_access(self, request: BaseRequest, wait_s: float = 0.0) -> LogSession:
        """The same for who must finish what it has begun while the gateway drains, and waits in `polling`."""
        return LogSession(self._backend, self.appends, self._caller(request, wait_s))

    def _caller(self, request: BaseRequest, wait_s: float) -> Caller:
        asked_us = arguments.timeout_us(request.headers)
        timeout_s = DEFAULT_TIMEOUT_S + wait_s if asked_us is None else asked_us / 1e6
        return Caller(self.positions(request), Deadline.after(timeout_s), self.config.limits)

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

    def admitted(self, size_bytes: int = 0, *, waits: bool = False) -> AbstractContextManager[None]:
        """See `GatewayCore.admitted`."""
        return self.core.admitted(size_bytes, waits=waits)

    def _closing(self) -> asyncio.Future[Answer]:
        if self._closed is None:
            self._closed = asyncio.get_running_loop().create_future()
        return self._closed


def _shutting_down(outcome: Outcome = "not_applied") -> Unavailable:
    return Unavailable("this gateway is shutting down", outcome=outcome)
