"""Parts of rows: the records of a row between two seqnums, in memory as an array, and packed where they are few and
nobody uses them.

Most rows have one record or two: those of a call, of a workflow, of an order. Of such a row the objects take ten times
what the seqnums take. So a part that holds few records, and that the disk has as it is, is packed into one short value
until it is used again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from struct import Struct
from typing import Final

import msgspec

from boki.log.cuts import pack_column, unpack_column
from boki.log.ids import MAX_SEQNUM

END: Final = MAX_SEQNUM
"""Where the newest part of a row ends: above every seqnum."""

PART_RECORDS: Final = 512
"""A part that holds this many grows no more."""
CLOSE_RECORDS: Final = 128
"""Nor does a part on the disk that holds this many, so that a row that grows slowly does not rewrite much."""

DIRTY: Final = 1
"""The disk does not have it as it is."""
WRITING: Final = 2
"""It is in a checkpoint that cannot be read back yet."""
SCATTERED: Final = 4
"""The disk has it under several keys, or under another one than its start."""
CLOSED: Final = 8
"""It grows no more."""
USED: Final = 16
"""Somebody looked at it since the hand of the eviction came by."""

_PART_BYTES: Final = 176
RECORD_BYTES: Final = 9
"""What a record costs in a part: eight bytes, and what arrays keep in reserve."""
_FEW: Final = 4
_PACKED: Final = Struct("<Bq")
_VALUE_BYTES: Final = 42


class Part(msgspec.Struct, gc=False):
    """The records of a row from `start` until `until`, as far as memory knows: all of them.

    A struct that the garbage collector does not visit, because there may be a million of them and none is in a cycle.
    """

    start: int
    until: int
    flags: int = 0
    seqnums: array[int] = msgspec.field(default_factory=lambda: array("q"))

    def encode(self) -> bytes:
        """The part as a value on the disk."""
        return pack_column(self.seqnums)

    def take(self, value: bytes) -> None:
        """Add what a value on the disk holds: the part that follows."""
        self.seqnums.extend(unpack_column("q", value))

    def drop_below(self, floor: int) -> None:
        """Forget the records below the floor."""
        del self.seqnums[: bisect_left(self.seqnums, floor)]

    @property
    def is_hollow(self) -> bool:
        """Whether it need not stand on the disk, because it says nothing."""
        return not self.seqnums

    @property
    def says_nothing(self) -> bool:
        """Whether it only tells that the disk has no record there."""
        return not self.flags & ~USED and self.is_hollow

    @property
    def size_bytes(self) -> int:
        """Memory held, about."""
        return _PART_BYTES + RECORD_BYTES * len(self.seqnums)


def pack_few(part: Part) -> bytes | None:
    """The newest part of a row as one value; None if it is not like the disk's, or has more than a few records."""
    if part.flags & ~USED or len(part.seqnums) > _FEW:
        return None
    return _PACKED.pack(part.flags, part.start) + part.seqnums.tobytes()


def unpack_few(packed: bytes) -> Part:
    """The part that was packed."""
    flags, start = _PACKED.unpack_from(packed)
    return Part(start, END, flags, array("q", packed[_PACKED.size :]))


def packed_bytes(packed: bytes) -> int:
    """Memory held by a packed part, about."""
    return _VALUE_BYTES + len(packed)


def without_use(packed: bytes) -> bytes | None:
    """The same as if nobody had used it; None: nobody has."""
    return bytes((packed[0] & ~USED,)) + packed[1:] if packed[0] & USED else None
