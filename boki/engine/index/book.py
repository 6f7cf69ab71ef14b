"""A book in the index: its rows, its floors, and what trimming does to them.

The row of the whole book carries two things beside the seqnums. Of each record, how many of its tags no trim has passed
yet: when the last one goes, so does the record (`trim` of a tag). And where such records are missing, so that `get` can
tell a trimmed record from one that never was.

There are two floors. Below `floor` the row of the whole book is empty, and so are those of ordinary tags. Below
`deleted_below`, where the book was deleted as a whole, there is nothing at all: between the two, system tags and keys
keep their rows, so that what fences outlives a trim of the book (design section 2, "Conditions").
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from boki.engine.index.layout import BOOK_ROWS, TAG_FLOORS, TAG_ROWS, after_prefix, book_key, tags_prefix
from boki.engine.index.parts import END, PART_RECORDS, RECORD_BYTES, Part
from boki.engine.index.residence import IsOver, Residence
from boki.engine.index.rows import Row, Shelf
from boki.errors import CorruptData
from boki.log.chunk import Chunk
from boki.log.cuts import pack_column, unpack_column
from boki.log.ids import KEY_TAG_PREFIX, is_system_tag
from boki.log.metalog import ForgetTags, Trims
from boki.protocol.effects import Delete, Put

GAP_AT_END: Final = 32
"""Of a part: after its last record, others were trimmed."""
_GAP_BEFORE: Final = 0x8000
"""Of a record: between it and the one before, others were trimmed."""
_TAGS_LEFT: Final = 0x7FFF
_UNTAGGED: Final = _TAGS_LEFT
"""Of a record without tags: only the book's floor takes it away."""

_PART: Final = Struct("<IBxxxq")
_BOOK: Final = Struct("<6q")
_BOOK_BYTES: Final = 700
_FRONT_PARTS: Final = 2000
_BOOK_RECORD_BYTES: Final = RECORD_BYTES + 2

_LISTED: Final = 1
_WRITING: Final = 2


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
        return count, size

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
        """Whether trims of tags have taken away a record at `seqnum`, or beside it, where there is none now."""
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


class BookState(NamedTuple):
    """What is known of a book as a whole. The last four count what can be read; seqnums are 0 if nothing can."""

    floor: int = 0
    deleted_below: int = 0
    record_count: int = 0
    payload_bytes: int = 0
    first_seqnum: int = 0
    last_seqnum: int = 0

    def encode(self) -> bytes:
        """The state as a value on the disk."""
        return _BOOK.pack(*self)

    @staticmethod
    def decode(value: bytes) -> BookState:
        """The state behind `encode`'s bytes; `CorruptData` if these are none."""
        if len(value) != _BOOK.size:
            raise CorruptData(f"the state of a book has {_BOOK.size} bytes, not {len(value)}")
        return BookState(*_BOOK.unpack(value))

    def spared_from(self, tag: str) -> int:
        """From where on the row of that tag has outlived the trims of the book as a whole."""
        return self.deleted_below if is_system_tag(tag) else self.floor


class Book(Shelf):
    """One book. `books` is where it stands while it is in memory; `state` is what the disk knows of it."""

    __slots__ = (
        "_books",
        "_flags",
        "deleted_below",
        "first_seqnum",
        "floor",
        "last_seqnum",
        "payload_bytes",
        "record_count",
        "whole",
    )

    def __init__(self, name: str, residence: Residence, books: dict[str, Book], state: BookState) -> None:
        super().__init__(name, residence)
        self.floor = state.floor
        self.deleted_below = state.deleted_below
        self.record_count = state.record_count
        self.payload_bytes = state.payload_bytes
        self.first_seqnum = state.first_seqnum
        self.last_seqnum = state.last_seqnum
        self._flags = 0
        self._books = books
        books[name] = self
        residence.used_bytes += _BOOK_BYTES
        residence.admit(self)
        self.whole = BookRow(self, None)

    @property
    def state(self) -> BookState:
        """What is known of the book as a whole."""
        return BookState(
            self.floor,
            self.deleted_below,
            self.record_count,
            self.payload_bytes,
            self.first_seqnum,
            self.last_seqnum,
        )

    def row(self, tag: str | None) -> Row:
        """The row of a tag, or of the whole book."""
        return self.rows.get(tag) or Row(self, tag)

    # appending

    def append(self, seqnum: int, tags: Sequence[str], payload_bytes: int, key_tag: str | None = None) -> None:
        """Add one record. Its seqnum is above all others of the book."""
        self.whole.add_one(seqnum, len(tags) or _UNTAGGED, payload_bytes)
        rows = self.rows
        for tag in tags:
            (rows.get(tag) or Row(self, tag)).append(seqnum)
        if key_tag is not None:
            (rows.get(key_tag) or Row(self, key_tag)).append(seqnum)
        self._count(seqnum, seqnum, 1, len(tags) + (key_tag is not None), payload_bytes)

    def append_chunk(self, first: int, chunk: Chunk) -> None:
        """Add all records of a chunk that has no keys, at consecutive seqnums from `first`."""
        count = chunk.count
        tags = chunk.tag_rows()
        rows = self.rows
        entries = shared = 0
        for tag, indexes in tags.items():
            row = rows.get(tag) or Row(self, tag)
            entries += len(indexes)
            if len(indexes) == count:
                shared += 1
                row.extend(range(first, first + count))
            else:
                row.extend([first + i for i in indexes])
        if entries == shared * count:
            marks = array("H", (shared or _UNTAGGED,)) * count
        else:
            marks = array("H", [tag_count or _UNTAGGED for tag_count in chunk.tag_counts()])
        self.whole.add(range(first, first + count), marks, chunk.payload_bytes)
        self._count(first, first + count - 1, count, entries, chunk.payload_bytes)

    def _count(self, first: int, last: int, count: int, entries: int, payload_bytes: int) -> None:
        assert first > self.last_seqnum, "records of a book are applied in the order of their seqnums"
        if not self.record_count:
            self.first_seqnum = first
        self.last_seqnum = last
        self.record_count += count
        self.payload_bytes += payload_bytes
        size = RECORD_BYTES * entries + _BOOK_RECORD_BYTES * count
        self.residence.used_bytes += size
        self.residence.dirty_bytes += size
        self._list()

    def _list(self) -> None:
        if not self._flags & _LISTED:
            self._flags |= _LISTED
            self.residence.changed(self)

    @property
    def is_dirty(self) -> bool:
        """Whether the disk does not have its state as it is."""
        return bool(self._flags)

    # looking

    def floor_of(self, tag: str | None) -> int:
        """No record of that row below this can be read any more. System tags outlive trims of the book as a whole."""
        if tag is None:
            return self.floor
        if not is_system_tag(tag):
            return max(self.floor, self.row(tag).floor)
        if tag.startswith(KEY_TAG_PREFIX):
            return self.deleted_below  # nobody trims a key
        return max(self.deleted_below, self.row(tag).floor)

    def last(self, tag: str | None) -> int:
        """The last seqnum of a row, 0 if it is empty: what conditions look at."""
        if tag is None:
            return self.last_seqnum
        return self.row(tag).last(self.floor_of(tag))

    def count(self, tag: str) -> int:
        """How many records of a system tag have ever been appended, since the book was last deleted."""
        return self.row(tag).count(self.deleted_below)

    def has(self, seqnum: int) -> bool:
        """Whether the row of the whole book has that record."""
        if seqnum < self.floor:
            return False
        column = self.whole.part_at(seqnum).seqnums
        at = bisect_left(column, seqnum)
        return at < len(column) and column[at] == seqnum

    def page(self, tag: str | None, start: int, stop: int, limit: int, *, backward: bool = False) -> array[int]:
        """See `boki.engine.index.index.Index.page`."""
        return self.row(tag).page(max(start, self.floor_of(tag)), stop, limit, backward=backward)

    # trimming

    def trim(self, trim: Trims, tail_seqnum: int) -> bool:
        """Move floors, as the entry says; False if nothing moves. `tail_seqnum`: the log's next seqnum at the entry."""
        floor = min(trim.before, tail_seqnum)
        if isinstance(trim, ForgetTags):
            has_moved = [self._trim_tag(tag, floor) for tag in trim.tags]
            for tag in trim.tags:
                self._forget(tag)
            return any(has_moved)
        if trim.tag is not None and not trim.everything:
            return self._trim_tag(trim.tag, floor)
        moved = False
        if floor > self.floor:
            moved = True
            if floor > self.last_seqnum:
                gone = self.record_count, self.payload_bytes
                self.whole.drop_below(floor)
            else:
                gone = self.whole.cut_off(self.floor, floor)
            self.floor = floor
            self._shorten(*gone)
        if trim.everything and floor > self.deleted_below:
            moved = True
            self.deleted_below = floor
            if floor == tail_seqnum:
                self._clear()
            else:
                for row in self.rows.values():
                    row.forget_count()
        if moved:
            self._list()
        return moved

    def _trim_tag(self, tag: str, floor: int) -> bool:
        start = self.floor_of(tag)
        if tag.startswith(KEY_TAG_PREFIX) or floor <= start:
            return False
        row = self.row(tag)
        gone = row.page(start, floor, END)
        if floor > self.floor:
            # each record loses this tag; below the book's floor the marks of records are of no use
            self._shorten(*self.whole.release(gone[bisect_left(gone, self.floor) :]))
            self._list()
        row.trim(floor, row.removed(self.deleted_below) + len(gone) if is_system_tag(tag) else 0)
        return True

    def _forget(self, tag: str) -> None:
        """Drop floor and count of the tag if no record of it is left. It is then as if it never had one."""
        if not tag.startswith(KEY_TAG_PREFIX) and not self.last(tag):
            self.row(tag).forget()

    def _shorten(self, count: int, payload_bytes: int) -> None:
        """This many records have gone."""
        if not count:
            return
        self.record_count -= count
        self.payload_bytes = max(0, self.payload_bytes - payload_bytes)
        if not self.record_count:
            self.first_seqnum = self.last_seqnum = self.payload_bytes = 0
            return
        self.first_seqnum = self.whole.page(self.floor, END, 1)[0]
        self.last_seqnum = self.whole.last(self.floor)

    def _clear(self) -> None:
        """The book was deleted and nothing of it is left: neither are its rows."""
        for tag, row in list(self.rows.items()):
            if tag is not None:
                row.discard()
        for kind in (TAG_ROWS, TAG_FLOORS):
            prefix = tags_prefix(kind, self.name)
            self.residence.delete(prefix, after_prefix(prefix))

    def front(self, payload_bytes: int) -> int:
        """The smallest `before` of a trim that takes away this many payload bytes, about, or as many as there are.

        Not more than a million records at once or so: this looks at all of them.
        """
        before = at = self.floor
        for _ in range(_FRONT_PARTS):
            if payload_bytes <= 0 or at > self.last_seqnum:
                break
            part = self.whole.part_at(at)
            # a part that was read back may still hold what the floor hides
            first = bisect_left(part.seqnums, self.floor)
            count = len(part.seqnums) - first
            size = part.share(count)
            if count:
                if size > payload_bytes:
                    # taking the part's records for equally long, this many, rounded up
                    count = -(-count * payload_bytes // size)
                before = part.seqnums[first + count - 1] + 1
            payload_bytes -= size
            at = part.until
        return before

    # checkpoints and eviction: see `boki.engine.index.residence.Resident`

    def writes(self) -> Iterable[Put | Delete]:
        """See `Resident.writes`."""
        self._flags = self._flags & ~_LISTED | _WRITING
        return (Put(book_key(self.name), self.state.encode()),)

    def stored(self) -> None:
        """See `Resident.stored`."""
        self._flags &= ~_WRITING

    def shrink(self) -> bool:
        """See `Resident.shrink`."""
        whole = self.whole
        if self._flags or len(self.rows) > 1 or whole.newest is not None or whole.older:
            return True
        whole.discard()
        self.residence.used_bytes -= _BOOK_BYTES
        del self._books[self.name]
        return False

    def leave_if_over(self, is_over: IsOver) -> bool:  # noqa: ARG002
        """See `Resident.leave_if_over`. Books are few."""
        return False
