"""Connections that cannot be abused: how many, how long a head or a body may take, how long a reader may stall.

aiohttp parses; this file sets the bounds that it leaves open and gives its own errors (a head that is not HTTP, a head
that is too large) the form of all others. A handler continues when its client leaves, so that what was begun is
finished; only waiting ends then, where a handler says so (`while_connected`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, cast

from aiohttp.http_exceptions import LineTooLong
from aiohttp.web import BaseRequest, RequestHandler, Response, Server, StreamResponse

from boki.errors import BokiError, DeadlineExceeded, InvalidArgument, TooLarge, Unavailable
from boki.gateway.arrivals import Arrivals
from boki.gateway.config import Timeouts
from boki.gateway.core import Share
from boki.gateway.server.http.answers import refusal
from boki.gateway.server.http.browsers import EVERY_ANSWER, dress
from boki.gateway.server.http.crowd import Crowd
from boki.gateway.server.http.routing import is_head
from boki.host.line_budget import LineBudget
from boki.log.limits import KIB

_log = logging.getLogger("boki.gateway")

_SMALL_ANSWER_BYTES: Final = 16 * KIB
"""An answer up to this is written in one go, and not counted: a connection holds at most one that is not taken."""
_PIECE_BYTES: Final = 64 * KIB
_SHOWN_PATH_CHARS: Final = 200
_LONG_LINE: Final = "its URL, or one of its headers, has more than 8,190 bytes: send what is long in the body"
REQUEST: Final = "a request body may have at most {limit:,} bytes: send several requests"


class Connections(Server):
    """Makes the protocol of each connection, and bounds their number: see `boki.gateway.server.http.crowd`."""

    def __init__(self, handler: Any, *, timeouts: Timeouts, max_count: int) -> None:
        super().__init__(handler)
        self.timeouts = timeouts
        self.crowd: Crowd[_Connection] = Crowd(max_count)
        self.arrivals = Arrivals(timeouts.body_stall_s, timeouts.body_bytes_per_s, self._loop.time)
        self._refusals = LineBudget(1, partial(_log.warning, "%d more connections were refused in the last second"))
        self._departures = LineBudget(1, partial(_log.info, "%d more clients left before their request was answered"))

    def __call__(self) -> RequestHandler:
        """A protocol for a new connection."""
        return _Connection(
            self,
            loop=self._loop,
            keepalive_timeout=self.timeouts.head_s,
            lingering_time=self.timeouts.linger_s,
            access_log=cast("logging.Logger", None),
            auto_decompress=False,  # a body is what was sent: nobody can make us unpack a bomb
        )

    def arrive(self, connection: _Connection, transport: asyncio.Transport) -> None:
        """A new connection, perhaps in place of another one."""
        self._put_out(self.crowd.arrive(connection, _peer(transport), self._loop.time()))

    def let_in(self, connection: _Connection) -> None:
        """The connection becomes a member, perhaps in place of a stranger. `Unavailable`: all places are members'."""
        self._put_out(self.crowd.know(connection))
        if connection.is_guest:
            raise self.refuse(connection.transport)

    def _put_out(self, out: _Connection | None) -> None:
        if out is not None and out.transport is not None:
            out.transport.write(_raw(refusal(self.refuse(out.transport))))
            out.transport.close()

    def refuse(self, transport: asyncio.BaseTransport | None) -> Unavailable:
        """Why a connection is not served."""
        error = Unavailable(f"{self.crowd.max_count} connections are open, as many as this gateway takes")
        if self._refusals.admit():
            _log.warning("a connection from %s was refused: %s", _peer(transport), error.message)
        return error

    def note_departure(self, request: BaseRequest) -> None:
        """A client has closed its connection before its request was answered. Strangers can do that without limit, so
        it has one line a second at the most.
        """
        if self._departures.admit():
            path = request.rel_url.raw_path[:_SHOWN_PATH_CHARS]
            _log.info("a client left before its request %s %s was answered", request.method, path)

    async def shutdown(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - aiohttp's name
        """See `Server`."""
        await super().shutdown(timeout)
        self._refusals.close()
        self._departures.close()


def _peer(transport: asyncio.BaseTransport | None) -> str:
    name = transport is not None and transport.get_extra_info("peername")
    return f"{name[0]}" if name else "an unknown address"


def _raw(response: Response) -> bytes:
    body = bytes(cast("bytes", response.body))
    head = f"HTTP/1.1 {response.status} {response.reason}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    fields = "".join(f"{name}: {value}\r\n" for name, value in response.headers.items() if name != "Content-Length")
    return (head + fields + "\r\n").encode() + body


class _Connection(RequestHandler):
    __slots__ = ("_connections", "_first_timer", "answer_headers", "share", "waiting")

    _connections: Connections
    _first_timer: asyncio.TimerHandle | None
    """Ends the connection if its first request does not come."""
    share: Share
    """What the request that is answered now holds of the budget."""
    waiting: asyncio.Task[object] | None
    """The handler that has nothing to do but wait, if it does: there is one handler at a time."""
    answer_headers: Mapping[str, str]
    """What the answer to the request at hand gets, see `boki.gateway.server.http.browsers`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.waiting = None
        self.answer_headers = EVERY_ANSWER
        assert isinstance(self._manager, Connections), "made by it"
        self._connections = self._manager
        self._connections.arrive(self, cast("asyncio.Transport", transport))
        self._first_timer = self._loop.call_later(self._connections.timeouts.first_head_s, self._give_up)
        super().connection_made(transport)

    @property
    def arrivals(self) -> Arrivals:
        """The bodies that are coming, of all connections."""
        return self._connections.arrivals

    @property
    def is_guest(self) -> bool:
        """Whether it has no place of its own: only probes are answered on it."""
        return self._connections.crowd.is_guest(self)

    def begin(self, share: Share) -> None:
        """A request is answered from now on, and holds this share."""
        self.share = share
        if self._first_timer is not None:
            self._first_timer.cancel()
            self._first_timer = None

    def let_in(self) -> None:
        """The request at hand may have what it asks for; `Unavailable` if there is no place for its connection."""
        self._connections.let_in(self)

    def _give_up(self) -> None:
        """The first request has not come in time."""
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.crowd.leave(self)
        super().connection_lost(exc)
        if self._first_timer is not None:
            self._first_timer.cancel()
        if self.waiting is not None:
            self.waiting.cancel()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> StreamResponse:
        """Answer what aiohttp itself refuses."""
        if isinstance(exc, ConnectionError) and request.transport is None:
            self._connections.note_departure(request)
            raise exc
        if request.writer.output_size > 0:
            raise ConnectionError("an answer was under way")
        if status == 500:
            _log.error("answering %s failed", request.path, exc_info=exc)
            response = refusal(BokiError("the gateway failed to answer; its log says why", outcome="unknown"))
        else:
            _log.debug("a request was refused by the HTTP parser: %s", message)
            why = _LONG_LINE if isinstance(exc, LineTooLong) else message
            response = refusal(InvalidArgument(f"not a valid HTTP request: {why}"[:300], field="request"))
            response.set_status(status)
        response.force_close()
        dress(request, response)
        return response


async def read_body(request: BaseRequest, limit: int, timeouts: Timeouts, what: str = REQUEST) -> bytes:
    """The whole body, held in the request's share of the budget as it arrives.

    `TooLarge` before a byte of it is read if it says so itself; `DeadlineExceeded` if it does not arrive in time, or
    has stalled while others need its room.
    """
    _check_head(request, limit, what)
    content = request.content
    share = share_of(request)
    if content.is_eof() and content.exception() is None:
        # Small bodies arrive with the head: no timer, no waiting.
        body = content.read_nowait(-1)
        if len(body) > limit:
            raise _too_large(limit, what)
        share.take(len(body))
        return body
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    parts = bytearray()
    now = asyncio.get_running_loop().time
    last = now() + timeouts.body_s
    slow = now() + timeouts.body_idle_s
    arrivals = connection_of(request).arrivals
    timeout = asyncio.timeout_at(min(last, slow))
    arrival = arrivals.begin(share, lambda: None if timeout.expired() else timeout.reschedule(now()))
    try:
        async with timeout:
            while (chunk := await content.readany()) and not arrivals.has_ended(arrival):
                if len(parts) + len(chunk) > limit:
                    raise _too_large(limit, what)
                arrivals.note(arrival, len(chunk))
                share.take(len(chunk))  # which may end bodies, this one too
                if arrivals.has_ended(arrival):
                    break
                parts += chunk
                timeout.reschedule(min(last, slow + len(parts) / timeouts.body_bytes_per_s))
            if arrivals.has_ended(arrival):
                raise TimeoutError
    except TimeoutError:
        waited_s = round(now() - last + timeouts.body_s, 1)
        why = "while others needed its room " if arrivals.has_ended(arrival) else ""
        raise DeadlineExceeded(
            f"the body did not arrive within {waited_s:g} s {why}({len(parts):,} bytes of it did): nothing was done",
            outcome="not_applied",
        ) from None
    finally:
        arrivals.finish(arrival)
    return bytes(parts)


def _check_head(request: BaseRequest, limit: int, what: str) -> None:
    """Refuse by the request's head what need not be read."""
    if encoding := request.headers.get("Content-Encoding"):
        raise InvalidArgument(f"send the body as it is: Content-Encoding {encoding[:20]!r} is not taken", field="body")
    size = request.content_length
    if size is not None and size > limit:
        raise _too_large(limit, what)


def share_of(request: BaseRequest) -> Share:
    """What the request holds of the budget."""
    return connection_of(request).share


def connection_of(request: BaseRequest) -> _Connection:
    """The request's connection."""
    connection = request.protocol
    assert isinstance(connection, _Connection), "made by Connections"
    return connection


def _too_large(limit: int, what: str) -> TooLarge:
    return TooLarge(what.format(limit=limit), field="body", limit=limit)


@contextmanager
def while_connected(request: BaseRequest) -> Iterator[None]:
    """For a long poll: what is awaited here is cancelled if the connection closes. Its answer would reach no client."""
    connection = connection_of(request)
    if request.transport is None:
        raise ConnectionResetError("the client has left")
    connection.waiting = asyncio.current_task()
    try:
        yield
    finally:
        connection.waiting = None


async def send(request: BaseRequest, response: Response, timeouts: Timeouts, *, is_repeatable: bool) -> StreamResponse:
    """Send the answer now if it is large: in pieces, counted in the budget, and a reader who stalls is cut off.

    Small ones are left to aiohttp. `Overloaded`: no room (see `Share.exchange`).
    """
    body = response.body
    if not isinstance(body, bytes) or len(body) <= _SMALL_ANSWER_BYTES or response.prepared or is_head(request):
        return response
    share_of(request).exchange(len(body), is_repeatable=is_repeatable)
    if request.transport is not None:
        request.transport.set_write_buffer_limits(high=_SMALL_ANSWER_BYTES)
    answer = StreamResponse(status=response.status, reason=response.reason, headers=response.headers)
    answer.content_length = len(body)
    try:
        async with asyncio.timeout(timeouts.reader_s):
            dress(request, answer)
            await answer.prepare(request)
            for start in range(0, len(body), _PIECE_BYTES):
                await answer.write(body[start : start + _PIECE_BYTES])
            await answer.write_eof()
    except TimeoutError:
        cut_off(request)
    finally:
        # Where a reader has left, the error's traceback keeps these frames until the garbage collector comes by.
        response.body = body = None
    return answer


def cut_off(request: BaseRequest) -> None:
    """End the connection at once, whatever is still to be sent."""
    if request.transport is not None:
        request.transport.abort()
