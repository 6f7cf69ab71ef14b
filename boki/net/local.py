"""Unix sockets between processes of one machine, next to ZeroMQ: a message crosses in one wake-up and not in three.

ZeroMQ sends and receives in a thread of its own, so a message that crosses it wakes that thread on both sides, and then
the loop. Between two processes of one machine a Unix socket needs none of that. It carries the same packs, which the
same inlet judges.

**ZeroMQ introduces.** A process that has connected to a lane, and sees from the registration that its peer runs on the
same machine, asks for a *ticket* on that connection. So with keys both are proven, and the ticket is secret: it names
the listening socket, and holds a random secret that both sides prove to know when the connecting one comes with it.
The stream then stands for the connection that the ticket came on: its packs are judged by the name that the
key there has proved. A ticket is good for one stream. Without a stream, or when it ends, packs go over ZeroMQ.

Streams are not encrypted: what they carry stays in this machine's kernel. Both sides also ask the kernel for the user
on the other side, and accept only their own: a process of that user can read this one's memory and keys anyway.

A pack on a new stream may arrive before the last ones that ZeroMQ carries: order is mostly kept, as on all links.

The socket has a name of Linux's abstract namespace: it is in no directory, and gone when its process is.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import socket
import struct
import sys
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from boki.net.codec import MAGIC
from boki.net.notices import Notices
from boki.net.stream import Stream

ASK: Final = MAGIC + b"\xff"
"""The frame that asks for a ticket. Only processes that register a machine are asked."""
TICKET: Final = MAGIC + b"\xfe"
"""How the answer begins."""
_ID_BYTES: Final = 16
_SECRET_BYTES: Final = 32
_PROOF_BYTES: Final = 32
_HELLO_BYTES: Final = _ID_BYTES + _PROOF_BYTES
_MAX_TICKETS: Final = 1024
_MAX_WAITING: Final = 64
_MAX_STREAMS: Final = 1024
_AGAIN_S: Final = 1.0
_NAME: Final = "\0boki-"
"""How the names of our sockets begin: a ticket makes its receiver connect to nothing else."""
_CREDENTIALS: Final = struct.Struct("3i")

Answer = Callable[[bytes], bool]
Take = Callable[[list[bytes], str, Answer], None]
"""Gets a pack's frames, the name that its sender has proved, and a way to answer it."""


def this_machine() -> str:
    """What processes have in common that may connect to each other here; empty where there is no such thing.

    That is the kernel as it was booted, the network in which abstract names are known, and the user.
    """
    if not sys.platform.startswith("linux"):
        return ""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        network = Path("/proc/self/ns/net").stat().st_ino
    except OSError:
        return ""
    return f"{boot}/{network}/{os.geteuid()}"


class _Ticket(NamedTuple):
    secret: bytes
    user: str
    take: Take


class LocalDoor:
    """Listens for processes of this machine, and knows the tickets that it gave. `OSError` if it cannot listen."""

    def __init__(self, loop: AbstractEventLoop, max_pack_bytes: int, notices: Notices) -> None:
        self._loop = loop
        self._max_pack_bytes = max_pack_bytes
        self._notices = notices
        self._name = _NAME + secrets.token_hex(16)
        self._tickets: dict[bytes, _Ticket] = {}
        self._waiting: dict[int, Stream] = {}
        """Streams that have shown no ticket yet, the oldest first."""
        self._streams: dict[int, Stream] = {}
        self._numbers = 0
        self._pause: TimerHandle | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            self._socket.bind(self._name)
            self._socket.listen()
        except OSError:
            self._socket.close()
            raise
        loop.add_reader(self._socket.fileno(), self._accept)

    @property
    def stream_count(self) -> int:
        """How many streams are open that have shown a ticket."""
        return len(self._streams)

    def ticket(self, user: str, take: Take) -> bytes:
        """A new ticket for the process that has proved to be `user`, as it travels; `take` gets what it brings."""
        if len(self._tickets) >= _MAX_TICKETS:
            del self._tickets[next(iter(self._tickets))]
        number, secret = secrets.token_bytes(_ID_BYTES), secrets.token_bytes(_SECRET_BYTES)
        self._tickets[number] = _Ticket(secret, user, take)
        return TICKET + number + secret + self._name.encode()

    def _accept(self) -> None:
        try:
            connected, _ = self._socket.accept()
        except BlockingIOError:
            return
        except OSError as error:  # no descriptor is left: what waits to be accepted would wake this at once again
            self._notices.say(logging.WARNING, f"cannot accept a connection of this machine: {error}")
            self._loop.remove_reader(self._socket.fileno())
            self._pause = self._loop.call_later(_AGAIN_S, self._resume)
            return
        if not _is_own_user(connected) or len(self._streams) >= _MAX_STREAMS:
            connected.close()
            return
        if len(self._waiting) >= _MAX_WAITING:
            self._waiting.pop(next(iter(self._waiting))).close()
        self._numbers += 1
        number = self._numbers

        def forget(_why: str) -> None:
            self._waiting.pop(number, None)
            self._streams.pop(number, None)

        def hear(frames: list[bytes]) -> None:
            known = held[0]
            if known is None:
                held[0] = self._admit(number, stream, frames)
            else:
                known.take(frames, known.user, answer)

        def answer(frame: bytes) -> bool:
            return stream.send([frame])

        held: list[_Ticket | None] = [None]
        stream = Stream(connected, self._loop, _HELLO_BYTES, on_pack=hear, on_room=lambda: None, on_end=forget)
        self._waiting[number] = stream

    def _admit(self, number: int, stream: Stream, frames: list[bytes]) -> _Ticket | None:
        """Look at a stream's first pack: a ticket that is good makes it one of ours, and anything else ends it."""
        del self._waiting[number]
        hello = frames[0] if len(frames) == 1 and len(frames[0]) == _HELLO_BYTES else b""
        ticket = self._tickets.get(hello[:_ID_BYTES]) if hello else None
        if ticket is None or not hmac.compare_digest(hello[_ID_BYTES:], _proof(ticket.secret, b"connects")):
            self._notices.say(logging.WARNING, "refused a connection of this machine: it has no ticket that is known")
            stream.close()
            return None
        del self._tickets[hello[:_ID_BYTES]]
        stream.allow(self._max_pack_bytes)
        self._streams[number] = stream
        stream.send([_proof(ticket.secret, b"listens")])
        return ticket

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Take nothing more."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for stream in [*self._waiting.values(), *self._streams.values()]:
            stream.close()
        self._waiting.clear()
        self._streams.clear()


def open_door(loop: AbstractEventLoop, max_pack_bytes: int, notices: Notices) -> LocalDoor | None:
    """A door for this machine; None where there can be none, and then ZeroMQ carries everything."""
    if not this_machine():
        return None
    try:
        return LocalDoor(loop, max_pack_bytes, notices)
    except OSError as error:
        notices.say(logging.WARNING, f"cannot listen for processes of this machine, so ZeroMQ carries all: {error}")
        return None


class Shortcut:
    """The connecting side. `on_change` is called when the stream is open, takes more again, or has ended.

    `on_answer` gets each frame that comes back on it.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        max_frame_bytes: int,
        on_change: Callable[[], None],
        on_answer: Callable[[bytes], None],
    ) -> None:
        self.is_open = False
        self._loop = loop
        self._max_frame_bytes = max_frame_bytes
        self._on_change = on_change
        self._on_answer = on_answer
        self._stream: Stream | None = None
        self._secret = b""

    def use(self, ticket: bytes) -> None:
        """Connect with a ticket that has come; nothing happens if one was used already, or it cannot be."""
        body = ticket[len(TICKET) :]
        number, secret = body[:_ID_BYTES], body[_ID_BYTES : _ID_BYTES + _SECRET_BYTES]
        name = body[_ID_BYTES + _SECRET_BYTES :]
        if self._stream is not None or not name.startswith(_NAME.encode()):
            return
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.setblocking(False)
            connected.connect(name)
            if not _is_own_user(connected):
                raise PermissionError
        except OSError:
            connected.close()
            return
        self._secret = secret
        self._stream = Stream(
            connected,
            self._loop,
            self._max_frame_bytes,
            on_pack=self._hear,
            on_room=self._on_change,
            on_end=self._end,
        )
        self._stream.send([number + _proof(secret, b"connects")])

    def _hear(self, frames: list[bytes]) -> None:
        if self.is_open:
            self._on_answer(frames[0])
        elif hmac.compare_digest(frames[0], _proof(self._secret, b"listens")):
            self.is_open = True
            self._on_change()
        else:
            self.close()

    def _end(self, _why: str) -> None:
        was_open, self.is_open, self._stream = self.is_open, False, None
        if was_open:
            self._on_change()

    @property
    def has_room(self) -> bool:
        """Whether `send` takes something now."""
        return self._stream is not None and self._stream.has_room

    def send(self, *packs: Sequence[bytes | memoryview]) -> bool:
        """Send packs, each as its frames; False if it takes none now."""
        return self._stream is not None and self._stream.send(*packs)

    def close(self) -> None:
        """Close it; a pack that waits is lost."""
        self.is_open = False
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _proof(secret: bytes, side: bytes) -> bytes:
    return hmac.digest(secret, side, "sha256")


def _is_own_user(connected: socket.socket) -> bool:
    """Whether the process on the other side runs as this one's user, by the kernel's word."""
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(told)[1] == os.geteuid())
