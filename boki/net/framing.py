"""Packs on a stream of bytes: how many frames, how long each is, and then the frames.

All numbers are four bytes, big-endian. What a length says is checked before a byte of its frame is kept.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from boki.net.codec import MAX_FRAMES, Refusal

_COUNT: Final = struct.Struct(">I")


def frame_head(sizes_bytes: Sequence[int]) -> bytes:
    r"""What stands before frames of these sizes.

    >>> frame_head([3, 258])
    b'\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x01\x02'
    """
    return struct.pack(f">{len(sizes_bytes) + 1}I", len(sizes_bytes), *sizes_bytes)


class PackReader:
    """Cuts a stream into packs. `max_pack_bytes` may be raised when the sender is known."""

    def __init__(self, max_pack_bytes: int) -> None:
        self.max_pack_bytes = max_pack_bytes
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._needed_bytes = _COUNT.size
        """How much must be there before there is more to learn."""

    def feed(self, data: bytes) -> list[list[bytes]]:
        """The packs that end in `data`. `Refusal` if it is no stream of packs, or one is too large."""
        self._kept.append(data)
        self._kept_bytes += len(data)
        if self._kept_bytes < self._needed_bytes:
            return []
        whole = data if len(self._kept) == 1 else b"".join(self._kept)
        packs: list[list[bytes]] = []
        at = 0
        while (taken := self._next(whole, at)) is not None:
            frames, at = taken
            packs.append(frames)
        self._kept = [whole[at:]] if at < len(whole) else []
        self._kept_bytes = len(whole) - at
        return packs

    def _next(self, whole: bytes, at: int) -> tuple[list[bytes], int] | None:
        """The pack that begins at `at`, and where it ends; None, and how much it needs, if not all of it is there."""
        here_bytes = len(whole) - at
        self._needed_bytes = _COUNT.size
        if here_bytes < self._needed_bytes:
            return None
        (count,) = _COUNT.unpack_from(whole, at)
        if not 0 < count <= MAX_FRAMES:
            raise Refusal(f"a pack of {count} frames, over the limit or none at all")
        self._needed_bytes = _COUNT.size * (1 + count)
        if here_bytes < self._needed_bytes:
            return None
        sizes_bytes = struct.unpack_from(f">{count}I", whole, at + _COUNT.size)
        size_bytes = sum(sizes_bytes)
        if size_bytes > self.max_pack_bytes:
            raise Refusal(f"a pack of {size_bytes} bytes, and {self.max_pack_bytes} are allowed")
        begin = at + self._needed_bytes
        self._needed_bytes += size_bytes
        if here_bytes < self._needed_bytes:
            return None
        frames = []
        for frame_bytes in sizes_bytes:
            frames.append(whole[begin : begin + frame_bytes])
            begin += frame_bytes
        return frames, begin
