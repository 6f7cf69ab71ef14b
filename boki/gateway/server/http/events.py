"""Server-sent events to one client, no faster than it reads: one that stalls is cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec
from aiohttp.web import BaseRequest, StreamResponse

from boki.errors import BokiError
from boki.gateway.config import Timeouts
from boki.gateway.server.http import answers
from boki.gateway.server.http.browsers import dress
from boki.gateway.server.http.connections import cut_off
from boki.gateway.server.http.routing import is_head

HEARTBEAT: Final = b": still here\n\n"
"""A comment, which shows whether the client is still connected."""

_PIECE_BYTES: Final = 64 * 1024
_WRITE_BUFFER_BYTES: Final = 16 * 1024
_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # a proxy must not collect events
}
_encode = msgspec.json.Encoder(enc_hook=str).encode


class EventStream:
    """The answer to one request. After `begin` nothing can be refused: what goes wrong is an event `error`."""

    def __init__(self, request: BaseRequest, timeouts: Timeouts) -> None:
        self.response = StreamResponse(headers=_HEADERS)
        self.is_head = is_head(request)
        """Whether the client wants the head only: then no event follows."""
        self._request = request
        self._timeouts = timeouts

    async def begin(self) -> None:
        """Send the head."""
        if self._request.transport is not None:
            self._request.transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        dress(self._request, self.response)
        await self.response.prepare(self._request)
        if not self.is_head:
            await self.send(b": boki\n\n")

    async def send(self, events: bytes) -> None:
        """Send events. `ConnectionResetError` if the client has left, or takes none for `Timeouts.reader_s`."""
        try:
            async with asyncio.timeout(self._timeouts.reader_s):
                for start in range(0, len(events), _PIECE_BYTES):
                    await self.response.write(memoryview(events)[start : start + _PIECE_BYTES])
        except TimeoutError:
            cut_off(self._request)
            raise ConnectionResetError("a client of server-sent events does not read") from None

    async def follow(self, events: AsyncIterator[bytes]) -> None:
        """Send events as they come, and heartbeats while none does."""
        while True:
            coming = asyncio.ensure_future(anext(events, None))
            try:
                while not (await asyncio.wait([coming], timeout=self._timeouts.heartbeat_s))[0]:
                    await self.send(HEARTBEAT)
                event = coming.result()
            finally:
                coming.cancel()
                await asyncio.wait([coming])  # else its iterator cannot be closed
            if event is None:
                return
            await self.send(event)


def error_event(name: str, error: BokiError, last_id: int | None = None) -> bytes:
    """An event that tells an error. `last_id`: after which a client that reconnects continues."""
    place = b"" if last_id is None else b"id: %d\n" % last_id
    return b"event: %b\n%bdata: %b\n\n" % (name.encode(), place, _encode(answers.error_body(error)))
