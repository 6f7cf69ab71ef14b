"""Streamed results on their way from workers to gateways: what is sent, kept until it is taken, and sent again.

Messages between nodes may be lost. Chunks are numbered, and the gateway says how many it has taken; when it says the
same again, because nothing came for a while, it is sent again what it lacks. A call that has ended well counts as ended
once all of its chunks are taken, so that a gateway that hears of the end has had everything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from boki.protocol.calls import Outcome, ResultChunk, TakeChunk
from boki.worker.frames import Frame, Streamed, Taken

FORGET_US: Final = 60_000_000
"""A gateway that has taken nothing for this long is gone, or its reader is."""


@dataclass(slots=True)
class _Open:
    take: TakeChunk
    worker: int | None = None
    """The worker that runs the call, once it has sent a chunk."""


class Streams:
    """The streams of one engine's workers. `send(worker, frame)` tells a worker something."""

    def __init__(self, send: Callable[[int, Frame], None]) -> None:
        self._send = send
        self._open: dict[int, _Open] = {}

    def open(self, ticket: int, take: TakeChunk | None) -> None:
        """The call of that ticket may stream; None: its caller takes no stream."""
        if take is not None:
            self._open[ticket] = _Open(take)

    def close(self, ticket: int) -> None:
        """The call has ended for its caller."""
        self._open.pop(ticket, None)

    def deliver(self, worker: int, frame: Streamed) -> None:
        """A chunk has come from a worker. One whose caller has left is dropped."""
        stream = self._open.get(frame.ticket)
        if stream is not None:
            stream.worker = worker
            stream.take(frame.chunk)

    def taken(self, ticket: int, count: int) -> None:
        """The caller has taken this many chunks: the function may continue."""
        stream = self._open.get(ticket)
        if stream is not None and stream.worker is not None:
            self._send(stream.worker, Taken(ticket, count))


@dataclass(slots=True)
class Outgoing:
    """One stream on its way to a gateway, which has taken `count` chunks."""

    ticket: int = 0
    count: int = 0
    kept: deque[ResultChunk] = field(default_factory=deque)
    """Sent and not taken: at most `WINDOW`."""
    ended: Outcome | None = None
    """How the call has ended, if not all is taken yet."""
    heard_us: int = 0

    def taken(self, count: int, now_us: int) -> list[ResultChunk]:
        """The gateway has taken this many; returns what is to be sent again, because it says so for the second time."""
        self.heard_us = now_us
        is_repeated = count == self.count
        self.count = max(self.count, count)
        while self.kept and self.kept[0].number <= self.count:
            self.kept.popleft()
        return list(self.kept) if is_repeated else []
