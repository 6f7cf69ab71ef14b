"""The row of all records of a book, and its parts.

With the seqnums it keeps two things. Of each record, how many of its tags no trim has passed yet: when the last one
goes, so does the record (`trim` of a tag). And where such records are missing, so that `get` can tell a trimmed record
from one that never was. A part that trims of tags have emptied is merged into the one before it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final

import msgspec

from boki.engine.index.layout import BOOK_ROWS, number_bytes, row_prefix
from boki.engine.index.parts import END, PART_RECORDS, SCATTERED, Part
from boki.engine.index.rows import Row
from boki.log.cuts import pack_column, unpack_column

GAP_AT_END: Final = 32
"""Of a part: after its last record, others were trimmed."""
_GAP_BEFORE: Final = 0x8000
"""Of a record: between it and the one before, others were trimmed."""
_TAGS_LEFT: Final = 0x7FFF
UNTAGGED: Final = _TAGS_LEFT
"""Of a record without tags: only the book's floor takes it away."""

_PART: Final = Struct("<IBxxxq")


class BookPart(Part, gc=False):
    """A part of the row of a whole book: of each record also a mark, and the bytes of all payloads, about."""

    marks: array[int] = msgspec.field(default_factory=lambda: array("H"))
    payload_bytes: int = 0

    def encode(self) -> bytes:
        """See `Part.encode`."""
        header = _PART.pack(len(self.seqnums), bool(self.flags & GAP_AT_END), self.payload_bytes)
        return header + pack_column(self.seqnums) + pack_column(self.marks)

    def take(self, value: bytes) -> None:
        """See `Part.take`."""
        count, has_gap_at_end, payload_bytes = _PART.unpack_from(value)
        until = _PART.size + 8 * count
        self.add(unpack_column("q", value[_PART.size : until]), unpack_column("H", value[until:]))
        self.payload_bytes += payload_bytes
        if has_gap_at_end:
            self.flags |= GAP_AT_END

    def add(self, seqnums: Iterable[int], marks: Sequence[int]) -> None:
        """Let these records follow."""
        if not marks:
            return
        at = len(self.marks)
        self.seqnums.extend(seqnums)
        self.marks.extend(marks)
        if self.flags & GAP_AT_END:
            self.marks[at] |= _GAP_BEFORE
            self.flags &= ~GAP_AT_END

    def drop_below(self, floor: int) -> None:
        """See `Part.drop_below`."""
        count = bisect_left(self.seqnums, floor)
        if count:
            self.payload_bytes -= self.share(count)
            del self.seqnums[:count]
            del self.marks[:count]

    def share(self, count: int) -> int:
        """How many payload bytes this many of its records have, about."""
        return self.payload_bytes * count // len(self.seqnums) if count else 0

    def release(self, seqnums: Sequence[int]) -> tuple[int, int]:
        """One tag of each of these records is gone: drop those that have no other. → (how many, their bytes)"""
        at = 0
        is_empty = False
        for seqnum in seqnums:
            at = bisect_left(self.seqnums, seqnum, at)
            assert self.seqnums[at] == seqnum, "a record that a tag can reach stands in the row of its book"
            self.marks[at] -= 1
            is_empty |= not self.marks[at] & _TAGS_LEFT
        if not is_empty:
            return 0, 0
        old = self.seqnums, self.marks
        self.seqnums, self.marks = array("q"), array("H")
        has_gap = False
        for seqnum, mark in zip(*old, strict=True):
            if not mark & _TAGS_LEFT:
                has_gap = True
                continue
            self.seqnums.append(seqnum)
            self.marks.append(mark | _GAP_BEFORE if has_gap else mark)
            has_gap = False
        if has_gap:
            self.flags |= GAP_AT_END
        count = len(old[0]) - len(self.seqnums)
        size = self.payload_bytes * count // len(old[0])
        self.payload_bytes -= size
        return count, size

    @property
    def is_hollow(self) -> bool:
        """See `Part.is_hollow`."""
        return not self.seqnums and not self.flags & GAP_AT_END

    @property
    def size_bytes(self) -> int:
        """See `Part.size_bytes`."""
        return super().size_bytes + 80 + 2 * len(self.marks)


class BookRow(Row):
    """The row of all records of a book."""

    __slots__ = ()

    def _new_part(self, start: int, until: int) -> BookPart:
        return BookPart(start, until)

    def part_at(self, seqnum: int, *, backward: bool = False) -> BookPart:
        """See `Row.part_at`."""
        part = super().part_at(seqnum, backward=backward)
        assert isinstance(part, BookPart)
        return part

    def add_one(self, seqnum: int, mark: int, payload_bytes: int) -> None:
        """Let a record follow, whose mark tells how many tags it has."""
        part = self._grow(seqnum)
        assert isinstance(part, BookPart)
        if part.flags & GAP_AT_END:
            mark |= _GAP_BEFORE
            part.flags &= ~GAP_AT_END
        part.seqnums.append(seqnum)
        part.marks.append(mark)
        part.payload_bytes += payload_bytes

    def add(self, seqnums: Sequence[int], marks: Sequence[int], payload_bytes: int) -> None:
        """The same for many."""
        at = 0
        while at < len(seqnums):
            part = self._grow(seqnums[at])
            assert isinstance(part, BookPart)
            until = min(len(seqnums), at + PART_RECORDS - len(part.seqnums))
            part.add(seqnums[at:until], marks[at:until])
            part.payload_bytes += payload_bytes * (until - at) // len(seqnums)
            at = until

    def _grow(self, seqnum: int) -> Part:
        newest = self._newest
        part = super()._grow(seqnum)
        if part is not newest and isinstance(self.older, list) and self.older and not self.older[-1].seqnums:
            closed = self.older[-1]
            assert isinstance(closed, BookPart)
            self._merge(closed)
        return part

    def release(self, seqnums: Sequence[int]) -> tuple[int, int]:
        """See `BookPart.release`."""
        count = size = at = 0
        residence = self.shelf.residence
        while at < len(seqnums):
            part = self.part_at(seqnums[at])
            until = bisect_left(seqnums, part.until, at)
            residence.used_bytes -= part.size_bytes
            dropped = part.release(seqnums[at:until])
            residence.used_bytes += part.size_bytes
            residence.dirty_bytes += part.size_bytes
            self._touch(part)
            count, size, at = count + dropped[0], size + dropped[1], until
            if not part.seqnums and part.until != END:
                self._merge(part)
        return count, size

    def _merge(self, part: BookPart) -> None:
        """Let the part before this one, which has no record left, cover it and tell that records are missing there.

        Else every part that trims of tags empty would stay on the disk.
        """
        before = self.part_at(part.start - 1) if part.start > self._floors.hidden else part
        if before.says_nothing or before is part:
            return  # there is none
        assert isinstance(self.older, list)
        self.older.remove(part)
        self.shelf.residence.used_bytes -= part.size_bytes
        first = row_prefix(self.shelf.name, self.tag) + number_bytes(part.start)
        stop = row_prefix(self.shelf.name, self.tag) + number_bytes(part.until)
        self.shelf.residence.delete(first, stop if part.flags & SCATTERED else first + b"\x00")
        before.until = part.until
        before.flags |= GAP_AT_END
        self._touch(before)  # it stays in memory until the disk has forgotten the other

    def drop_below(self, floor: int) -> Part:
        """See `Row.drop_below`."""
        holder = super().drop_below(floor)
        self._floors = self._floors.but(hidden=floor)
        return holder

    def cut_off(self, low: int, floor: int) -> tuple[int, int]:
        """Forget all records below `floor`. → (how many were not below `low`, their payload bytes)"""
        count = size = 0
        while low < floor:
            part = self.part_at(low)
            found = bisect_left(part.seqnums, floor) - bisect_left(part.seqnums, low)
            count, size, low = count + found, size + part.share(found), part.until
            self._drop_parts(part.start)  # a long trim must not bring the whole row into memory
        holder = self.drop_below(floor)
        if not holder.is_hollow:
            self._touch(holder)
        return count, size

    def was_trimmed(self, seqnum: int) -> bool:
        """Whether trims of tags have taken away a record at `seqnum`, or next to it, where there is none now."""
        part = self.part_at(seqnum)
        at = bisect_left(part.seqnums, seqnum)
        if at == len(part.seqnums):
            return bool(part.flags & GAP_AT_END)
        return part.seqnums[at] != seqnum and bool(part.marks[at] & _GAP_BEFORE)


def row_seqnums(key: bytes, value: bytes) -> array[int]:
    """The seqnums in a part of a row as it stands on the disk, of whichever kind."""
    if not key.startswith(BOOK_ROWS):
        return unpack_column("q", value)
    return unpack_column("q", value[_PART.size : _PART.size + 8 * _PART.unpack_from(value)[0]])
