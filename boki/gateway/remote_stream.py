"""The gateway's end of a stream whose function runs at an engine elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from boki.protocol.call_messages import StopCall, StreamTaken
from boki.protocol.calls import ResultChunk, TakeChunk
from boki.protocol.messages import Message


class RemoteStream:
    """`boki.gateway.backend.StreamControl` over messages, any of which may be lost or come twice.

    `send` reaches the engine. Of the chunks only the next one is taken; what is lost is sent again when the engine is
    told for the second time how far this end is.
    """

    def __init__(self, send: Callable[[Message], None], request: int, take: TakeChunk | None) -> None:
        self._send = send
        self._request = request
        self._take = take
        self._received = 0

    def deliver(self, chunk: ResultChunk) -> None:
        """A chunk has come."""
        if chunk.number == self._received + 1 and self._take is not None:
            self._received = chunk.number
            self._take(chunk)

    def taken(self, count: int) -> None:
        """See `StreamControl`."""
        self._send(StreamTaken(self._request, count))

    def stop(self) -> None:
        """See `StreamControl`."""
        self._send(StopCall(self._request))
