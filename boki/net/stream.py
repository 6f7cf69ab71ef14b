"""A connected stream socket that carries packs both ways, read and written from the event loop.

There is no thread between the loop and the kernel: what is sent is in the kernel when `send` returns, and what comes
wakes the loop itself. At most one pack waits here; the sender keeps more.
"""

from __future__ import annotations

import socket
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from typing import Final

from boki.net.codec import Refusal
from boki.net.framing import PackReader, frame_head

_READ_BYTES: Final = 256 << 10
"""How much is taken in one go; then others have their turn."""
_SNDBUFFORCE: Final = 32
_MAX_BUFFERS: Final = 512
"""The kernel takes 1,024 in one call."""


_BUFFER_BYTES: Final = 1 << 20
"""What the kernel is to hold of a stream, so that a large pack leaves in one go and not with the loop's next turns."""


def _widen(connected: socket.socket) -> None:
    """Ask for a large send buffer: any size with the right to it, else as much as `net.core.wmem_max` allows."""
    try:
        connected.setsockopt(socket.SOL_SOCKET, _SNDBUFFORCE, _BUFFER_BYTES)
    except OSError:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)


class Stream:
    """Owns `socket`, which is connected. `on_pack` gets each pack's frames; the other two are called when a pack that
    waited has gone, and, once, when the other side ends the stream, breaks it, or sends what is no pack.
    """

    def __init__(
        self,
        connected: socket.socket,
        loop: AbstractEventLoop,
        max_pack_bytes: int,
        *,
        on_pack: Callable[[list[bytes]], None],
        on_room: Callable[[], None],
        on_end: Callable[[str], None],
    ) -> None:
        connected.setblocking(False)
        _widen(connected)
        self._socket = connected
        self._descriptor = connected.fileno()
        self._loop = loop
        self._on_pack = on_pack
        self._on_room = on_room
        self._on_end = on_end
        self._reader = PackReader(max_pack_bytes)
        self._unsent: list[bytes | memoryview] = []
        self._is_closed = False
        loop.add_reader(self._descriptor, self._readable)

    def allow(self, max_pack_bytes: int) -> None:
        """Let packs be as large as this from now on."""
        self._reader.max_pack_bytes = max_pack_bytes

    @property
    def has_room(self) -> bool:
        """Whether `send` takes something now."""
        return not (self._unsent or self._is_closed)

    def send(self, *packs: Sequence[bytes | memoryview]) -> bool:
        """Send packs, each as its frames. False: none is taken now, and `on_room` says when. Of a broken stream
        `on_end` tells.
        """
        if not self.has_room:
            return False
        for frames in packs:
            self._unsent.append(frame_head([len(frame) for frame in frames]))
            self._unsent += frames
        self._push()
        if self._unsent and not self._is_closed:
            self._loop.add_writer(self._descriptor, self._writable)
        return True

    def _push(self) -> None:
        """Give the kernel what it takes of what is unsent."""
        while self._unsent:
            try:
                sent_bytes = self._socket.sendmsg(self._unsent[:_MAX_BUFFERS])
            except BlockingIOError:
                return
            except OSError as error:  # what is unsent stays: else more would be taken, and lost with it
                self._loop.call_soon(self._end, str(error))
                return
            for index, part in enumerate(self._unsent[:_MAX_BUFFERS]):
                if sent_bytes < len(part):
                    self._unsent[index] = memoryview(part)[sent_bytes:]
                    del self._unsent[:index]
                    break
                sent_bytes -= len(part)
            else:
                del self._unsent[:_MAX_BUFFERS]

    def _writable(self) -> None:
        self._push()
        if not self._unsent and not self._is_closed:
            self._loop.remove_writer(self._descriptor)
            self._on_room()

    def _readable(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
            packs = self._reader.feed(data) if data else None
        except BlockingIOError:
            return
        except (OSError, Refusal) as error:
            self._end(str(error))
            return
        if packs is None:
            self._end("it was closed")
            return
        for pack in packs:
            if self._is_closed:
                return
            self._on_pack(pack)

    def _end(self, why: str) -> None:
        if not self._is_closed:
            self.close()
            self._on_end(why)

    def close(self) -> None:
        """Close it; a pack that waits is lost. Repeatable."""
        if self._is_closed:
            return
        self._is_closed = True
        self._unsent = []
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._descriptor)
        self._socket.close()
