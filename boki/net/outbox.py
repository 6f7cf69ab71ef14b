"""What goes to one process on one lane: a queue bounded in bytes, and the connection that empties it.

Messages of one turn of the event loop travel together, as a pack for each pair of names that speak to each other; while
the connection takes no more, packs grow by themselves. When the queue is full the oldest go: numbers are absolute, so
the newest tell the most.

To a process of this machine packs take a shortcut as soon as there is one (`boki.net.local`); what is queued here, and
how much that may be, is the same.
"""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop, TimerHandle
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final

import zmq

from boki.net.codec import REFUSAL, join_pack
from boki.net.connection import RENEW_S, Connection
from boki.net.local import ASK, TICKET, Shortcut
from boki.net.notices import LaneCounts, Notices
from boki.net.sockets import NOBLOCK, POLLIN, POLLOUT

PACK_BYTES: Final = 256 << 10
"""A pack ends with the message that crosses this."""
_PACK_MESSAGES: Final = 512
_PACKS: Final = 16
"""The most packs that go to the kernel in one call."""
_MAX_ANSWER_BYTES: Final = 4096
_MAX_ASK_S: Final = 64.0


class Parcel:
    """An encoded message: its place in a pack's body, and its frames, which all peers that it goes to share."""

    __slots__ = ("_frames", "attached", "place", "size_bytes")

    def __init__(self, place: bytes, attached: Sequence[bytes]) -> None:
        self.place = place
        self.attached = attached
        self.size_bytes = len(place) + sum(map(len, attached))
        self._frames: list[zmq.Frame] | None = None

    @property
    def frames(self) -> list[zmq.Frame]:
        """What is attached, for ZeroMQ. It is copied once, here, and then shared by all sockets: measured to be cheaper
        than ZeroMQ's own sending without copies, which hands each buffer back through another thread.
        """
        if self._frames is None:
            self._frames = [zmq.Frame(data, copy=True) for data in self.attached]
        return self._frames


class Outbox:
    """Sends to `address` over sockets from `make`. `what` names the peer in the log; `is_near`: it is on this machine.

    Parcels wait with their envelopes, encoded: messages under one that follow each other share a pack.

    `zmq.ZMQError` if the address cannot be one.
    """

    def __init__(
        self,
        make: Callable[[], zmq.Socket[bytes]],
        address: str,
        loop: AbstractEventLoop,
        what: str,
        budget_bytes: int,
        counts: LaneCounts,
        notices: Notices,
        *,
        is_near: bool = False,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        """`lost` is called when the connection has ended."""
        self.queued_bytes = 0
        self.is_dirty = False
        """For the owner: whether `flush` is due."""
        self._what = what
        self._budget_bytes = budget_bytes
        self._counts = counts
        self._notices = notices
        self._queue: deque[tuple[bytes, Parcel]] = deque()
        self._later: list[tuple[bytes, Parcel]] = []
        """What the next flush sends behind all else."""
        self._prefix = b""
        """The envelope of `_pack`."""
        self._pack: list[Parcel] = []
        self._is_blocked = False
        self._is_closed = False
        self._loop = loop
        self._shortcut = Shortcut(loop, _MAX_ANSWER_BYTES, self._on_shortcut, self._hear) if is_near else None
        self._asking: TimerHandle | None = None
        self._ask_again_s = RENEW_S
        self._connection = Connection(make, address, loop, self._ready, what, notices, self._on_open, lost)

    def put(self, prefix: bytes, parcel: Parcel, *, is_last: bool = False) -> None:
        """Let the parcel be sent under that envelope by the next `flush`, or as soon as the connection takes it.

        `is_last`: behind what else that flush sends, but for what comes under the same envelope.
        """
        self.queued_bytes += parcel.size_bytes
        if is_last:
            self._later.append((prefix, parcel))
        else:
            if self._later and any(envelope == prefix for envelope, _ in self._later):
                self._take_later()
            self._queue.append((prefix, parcel))
        while self.queued_bytes > self._budget_bytes and len(self._queue) + len(self._pack) > 1 and self._queue:
            self.queued_bytes -= self._queue.popleft()[1].size_bytes
            self._counts.dropped_count += 1
            self._notices.say(
                logging.WARNING,
                f"{self._what} takes messages more slowly than they come: the oldest are dropped and will be repeated",
            )

    def flush(self) -> None:
        """Give what is queued to the connection, as far as it takes it."""
        self._take_later()
        if self._is_blocked or self._is_closed:
            return
        while True:
            while self._pack or self._queue:
                if not (self._send_near() if self.has_shortcut else self._send()):
                    self._is_blocked = True
                    break
            if self.has_shortcut:
                return
            events = self._read()  # sending may have taken the descriptor's sign away
            if not (self._is_blocked and events & POLLOUT):
                return
            self._is_blocked = False

    def _ready(self) -> None:
        if self._is_closed:
            return
        events = self._read()
        if self._is_blocked and events & POLLOUT and not self.has_shortcut:
            self._is_blocked = False
            self.flush()

    # the shortcut

    @property
    def has_shortcut(self) -> bool:
        """Whether packs go over a stream of this machine, and not over ZeroMQ."""
        return self._shortcut is not None and self._shortcut.is_open

    def _on_open(self) -> None:
        if self._shortcut is not None and not self._is_closed:
            self._ask_again_s = RENEW_S
            self._ask()

    def _ask(self) -> None:
        """Ask for a ticket, and more and more seldom again until one has led to a stream."""
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
        if self.has_shortcut:
            return
        self._asking = self._loop.call_later(self._ask_again_s, self._ask)
        self._ask_again_s = min(2 * self._ask_again_s, _MAX_ASK_S)
        with suppress(zmq.Again):  # there is no connection, or it takes nothing now
            self._connection.watched.socket.send(ASK, NOBLOCK)
        self._loop.call_soon(self._ready)  # sending may have taken the descriptor's sign away

    def _on_shortcut(self) -> None:
        """It is open, takes packs again, or has ended: then ZeroMQ carries them, until there is another one."""
        if self._is_closed:
            return
        if not self.has_shortcut and self._asking is None:
            self._asking = self._loop.call_later(RENEW_S, self._ask)
        self._is_blocked = False
        self.flush()

    def _take_later(self) -> None:
        """Queue what can wait, the messages of each envelope together, so that they share a pack."""
        if self._later:
            by_envelope: dict[bytes, list[tuple[bytes, Parcel]]] = {}
            for item in self._later:
                by_envelope.setdefault(item[0], []).append(item)
            for items in by_envelope.values():
                self._queue += items
            self._later = []

    def _send(self) -> bool:
        """Send one pack. False if the connection takes none now, or there is none."""
        pack = self._pack or self._next_pack()
        frames = [frame for parcel in pack for frame in parcel.frames]
        if not self._send_zmq(join_pack(self._prefix, [parcel.place for parcel in pack]), frames):
            self._pack = pack
            return False
        self._note_sent(pack)
        return True

    def _send_near(self) -> bool:
        """Send some packs in one call, which wakes the peer once. False if the stream takes none now."""
        assert self._shortcut is not None
        if not self._shortcut.has_room:
            return False
        packs: list[list[bytes]] = []
        size_bytes = 0
        while (self._pack or self._queue) and size_bytes < PACK_BYTES and len(packs) < _PACKS:
            pack = self._pack or self._next_pack()
            first = join_pack(self._prefix, [parcel.place for parcel in pack])
            packs.append([first, *[data for parcel in pack for data in parcel.attached]])
            size_bytes += self._note_sent(pack)
        return self._shortcut.send(*packs)

    def _note_sent(self, pack: list[Parcel]) -> int:
        """The pack has gone: its size."""
        size_bytes = sum([parcel.size_bytes for parcel in pack])
        self._pack = []
        self.queued_bytes -= size_bytes
        self._counts.sent_count += len(pack)
        self._counts.sent_bytes += size_bytes + len(self._prefix)
        return size_bytes

    def _send_zmq(self, first: bytes, frames: list[zmq.Frame]) -> bool:
        send = self._connection.watched.socket.send
        try:
            if not frames:
                send(first, NOBLOCK)
            else:
                send(first, NOBLOCK | zmq.SNDMORE)
                last = frames.pop()
                for frame in frames:
                    send(frame, NOBLOCK | zmq.SNDMORE, copy=False)
                send(last, NOBLOCK, copy=False)
        except zmq.Again:
            return False  # if the connection broke amid the frames, ZeroMQ forgets those that it has
        return True

    def _next_pack(self) -> list[Parcel]:
        queue = self._queue
        self._prefix, first = queue.popleft()
        pack = [first]
        size_bytes = first.size_bytes
        while queue and queue[0][0] == self._prefix and size_bytes < PACK_BYTES and len(pack) < _PACK_MESSAGES:
            _, parcel = queue.popleft()
            size_bytes += parcel.size_bytes
            pack.append(parcel)
        return pack

    def _read(self) -> int:
        """Take in what has come back, which can only be why the peer refuses what it was sent, or a ticket.

        Returns the events that were seen last: to look again would be to miss one.
        """
        watched = self._connection.watched
        while (events := watched.events) & POLLIN:
            self._hear(watched.socket.recv_multipart(NOBLOCK)[0])
        return events

    def _hear(self, frame: bytes) -> None:
        if frame.startswith(REFUSAL):
            reason = frame[len(REFUSAL) :].decode(errors="replace")
            self._notices.say(logging.WARNING, f"{self._what} refuses what this node sends: {reason}")
        elif frame.startswith(TICKET) and self._shortcut is not None:
            self._shortcut.use(frame)

    def forget(self, prefixes: Collection[bytes]) -> None:
        """Give up what waits under these envelopes: who it was for has ended."""
        self._take_later()
        kept = [item for item in self._queue if item[0] not in prefixes]
        self.queued_bytes -= sum(parcel.size_bytes for prefix, parcel in self._queue if prefix in prefixes)
        self._queue = deque(kept)
        if self._pack and self._prefix in prefixes:
            self.queued_bytes -= sum(parcel.size_bytes for parcel in self._pack)
            self._pack = []

    def close(self) -> None:
        """Forget what was not sent, and close the connection."""
        self._is_closed = True
        if self._asking is not None:
            self._asking.cancel()
        if self._shortcut is not None:
            self._shortcut.close()
        self._connection.close()
        self._queue.clear()
        self._later = []
        self._pack = []
        self.queued_bytes = 0
