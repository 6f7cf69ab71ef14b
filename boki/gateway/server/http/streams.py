"""Streamed results over HTTP: chunk by chunk, no faster than the client reads.

What is taken from the engine is counted only when it is written, so that a client that reads slowly makes the function
wait; one that does not read at all for `Timeouts.reader_s`, or leaves, has it cancelled. A failure in the middle shows
as an `error` event, or, in other streams, as a chunked body that is never ended (a reset, under HTTP/1.0).
"""

from __future__ import annotations

import asyncio
from collections import deque
from socket import SO_LINGER, SOL_SOCKET
from struct import pack
from typing import Final

import msgspec
from aiohttp import HttpVersion11
from aiohttp.web import BaseRequest, StreamResponse

from boki.api.http.exchange import END_OF_EVENT, ERROR_EVENT, OUTCOME, STREAMED
from boki.api.http.response import parts_of
from boki.gateway.backend import StreamControl
from boki.gateway.config import Timeouts
from boki.gateway.server.http.answers import error_body
from boki.gateway.server.http.browsers import dress
from boki.gateway.server.http.connections import cut_off
from boki.gateway.server.http.routing import is_head
from boki.log.operations import Failure
from boki.protocol.calls import CHUNK_BYTES, WINDOW, Outcome, Payload, ResultChunk

WINDOW_BYTES: Final = WINDOW * CHUNK_BYTES
"""Maximum that one stream holds in the gateway."""
_REPEAT_S: Final = 1.0
"""How often an engine that sends nothing is told how far the client is: a message may be lost."""
_RESET: Final = pack("ii", 1, 0)
"""Of `SO_LINGER`: closing the socket resets the connection."""
_WRITE_BUFFER_BYTES: Final = 32 * 1024


class Incoming:
    """The chunks of one call that its client has yet to take, and the call's end."""

    def __init__(self, ended: asyncio.Future[Outcome]) -> None:
        self.control: StreamControl | None = None
        """The way back to the engine that has the call."""
        self._ended = ended
        self._chunks: deque[ResultChunk] = deque()
        self._changed = asyncio.Event()
        self._count = 0
        self._is_writing = False
        ended.add_done_callback(lambda _: self._changed.set())

    def take(self, chunk: ResultChunk) -> None:
        """A chunk has come."""
        self._chunks.append(chunk)
        self._changed.set()

    @property
    def is_being_read(self) -> bool:
        """Whether the client has yet to take something: until then an engine elsewhere holds back that all is well."""
        return self._is_writing or bool(self._chunks)

    async def next(self) -> ResultChunk | None:
        """The next chunk, once there is one; None: the call has ended. The one before it is taken now."""
        self._is_writing = False
        if self._count:
            self._tell()
        while not self._chunks:
            if self._ended.done():
                return None
            self._changed.clear()
            try:
                async with asyncio.timeout(_REPEAT_S):
                    await self._changed.wait()
            except TimeoutError:
                self._tell()
        chunk = self._chunks.popleft()
        self._count = chunk.number
        self._is_writing = True
        return chunk

    def _tell(self) -> None:
        if self.control is not None:
            self.control.taken(self._count)

    def stop(self) -> None:
        """The client has left."""
        if self.control is not None and not self._ended.done():
            self.control.stop()


class StreamedAnswer:
    """The answer that chunks are written to."""

    def __init__(self, request: BaseRequest, headers: dict[str, str], timeouts: Timeouts) -> None:
        self.response: StreamResponse | None = None
        """None until something was streamed."""
        self._request = request
        self._headers = headers
        self._timeouts = timeouts
        self._is_events = False

    async def write(self, chunk: ResultChunk) -> StreamResponse:
        """Send one more chunk, the first one behind the head. `ConnectionError` if the client has left, or does not
        read.
        """
        try:
            async with asyncio.timeout(self._timeouts.reader_s):
                if self.response is None:
                    self.response = await self._begin(chunk.head)
                if chunk.data and not is_head(self._request):
                    await self.response.write(chunk.data)
                return self.response
        except TimeoutError:
            cut_off(self._request)
            raise ConnectionResetError("the client of a stream does not read") from None

    async def _begin(self, head: bytes) -> StreamResponse:
        status, own, _ = parts_of(Payload("response", head))
        response = StreamResponse(status=status, headers=own)
        response.headers.update(self._headers)
        response.headers[OUTCOME] = STREAMED
        self._is_events = response.headers.get("Content-Type", "").startswith("text/event-stream")
        if self._request.transport is not None:
            self._request.transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        dress(self._request, response)
        await response.prepare(self._request)
        return response

    async def fail(self, failure: Failure) -> None:
        """What was begun cannot be ended well, and the client must see it."""
        assert self.response is not None, "else the failure is the answer"
        if self._is_events:
            told = msgspec.json.encode(error_body(failure.error()), enc_hook=str)
            await self.write(ResultChunk(0, ERROR_EVENT + told + END_OF_EVENT))
        elif (transport := self._request.transport) is not None:
            if self._request.version < HttpVersion11:  # whose body ends with its connection: only a reset is no end
                transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, _RESET)
            transport.close()  # what was written goes out, and the end of the body does not
