"""A book in the index: its rows, its floors, and what trimming does to them.

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

from boki.engine.index.book_row import UNTAGGED, BookRow
from boki.engine.index.layout import TAG_FLOORS, TAG_ROWS, after_prefix, book_key, tags_prefix
from boki.engine.index.parts import END, RECORD_BYTES
from boki.engine.index.residence import IsOver, Residence
from boki.engine.index.rows import Row, Shelf
from boki.errors import CorruptData
from boki.log.chunk import Chunk
from boki.log.ids import KEY_TAG_PREFIX, is_system_tag
from boki.log.metalog import ForgetTags, Trims
from boki.protocol.effects import Delete, Put

_BOOK: Final = Struct("<6q")
_BOOK_BYTES: Final = 700
_FRONT_PARTS: Final = 2000
_BOOK_RECORD_BYTES: Final = RECORD_BYTES + 2

_LISTED: Final = 1
_WRITING: Final = 2


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
        self.whole.add_one(seqnum, len(tags) or UNTAGGED, payload_bytes)
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
            marks = array("H", (shared or UNTAGGED,)) * count
        else:
            marks = array("H", [tag_count or UNTAGGED for tag_count in chunk.tag_counts()])
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
