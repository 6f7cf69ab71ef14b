"""The whole log in about a hundred obvious lines: one list of records, and every question goes through all of it.

It is the test double of `boki.testing` and the oracle that every other implementation is compared with, so it has no
index, no cache and no cleverness: where it and a faster implementation disagree, read this one to see what is meant.

Operations are the values of `boki.log.operations`, checked by whoever calls. Time is an argument. Nothing waits here:
a read that finds nothing says so, and the caller asks again after the log has changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from struct import pack
from typing import assert_never

from boki.errors import NotFound, Trimmed
from boki.log.chunk import Chunk, Group, Span, encode_chunk
from boki.log.ids import is_system_tag, make_seqnum
from boki.log.limits import DEFAULT_LIMITS, Limits
from boki.log.operations import (
    Answer,
    Append,
    Appended,
    BookInfo,
    Books,
    Compare,
    Compared,
    Done,
    Found,
    Get,
    ListBooks,
    Operation,
    Read,
    Rejected,
    SetAuxdata,
    SetRetention,
    Slab,
    Sync,
    TrimBook,
)


@dataclass(frozen=True, slots=True)
class _Stored:
    seqnum: int
    book: str
    tags: tuple[str, ...]
    data: bytes
    time_us: int
    key_tag: str | None


@dataclass(slots=True)
class _Book:
    floors: dict[str | None, int] = field(default_factory=dict)
    """Per tag, and under None for the whole book, the seqnum below which trims have taken the records away."""
    deleted_below: int = 0
    """The same for a deletion, which spares nothing, neither system tags nor keys."""
    forgotten: dict[str, int] = field(default_factory=dict)
    """Per tag, the next seqnum when it was last forgotten: what it had before is as if it had never been."""
    age_s: float | None = None
    size_bytes: int | None = None


class MemoryLog:
    """All books of one log in one order. `answer` is the only way in."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self.next_seqnum = make_seqnum(1, 0, 0)
        self.time_us = 0
        self._records: list[_Stored] = []
        self._books: dict[str, _Book] = {}
        self._aux: dict[tuple[str, int], bytes] = {}

    def answer(self, operation: Operation, now_us: int) -> Answer:
        """Carry out one operation at the time `now_us`. Raises `NotFound` and `Trimmed`."""
        self.time_us = max(self.time_us, now_us)
        for name in self._books:
            self._apply_retention(name)
        match operation:
            case Append():
                return self._append(Chunk(operation.chunk))
            case Read():
                return self._read(operation)
            case Compare():
                return self._compare(operation)
            case Get():
                return self._get(operation)
            case TrimBook():
                self._trim(operation)
            case SetAuxdata():
                self._aux[operation.book, operation.seqnum] = operation.data
            case SetRetention():
                book = self._book(operation.book)
                book.age_s, book.size_bytes = operation.age_s, operation.size_bytes
            case ListBooks():
                return self._list(operation)
            case Sync():
                pass
            case _:
                assert_never(operation)
        return Done()

    def _book(self, name: str) -> _Book:
        return self._books.setdefault(name, _Book())

    # Who can be seen

    def _floor(self, name: str, tag: str | None) -> int:
        """Readers are told that records of the row below this are gone. Trims of the whole book spare system tags."""
        book = self._book(name)
        is_spared = tag is not None and is_system_tag(tag)
        return max(book.floors.get(tag, 0), 0 if is_spared else book.floors.get(None, 0), book.deleted_below)

    def _kept_from(self, name: str, tag: str | None) -> int:
        """Records of the row below this are gone. A tag that was forgotten tells nobody."""
        return max(self._floor(name, tag), 0 if tag is None else self._book(name).forgotten.get(tag, 0))

    def _is_gone(self, record: _Stored) -> bool:
        """Nobody can read a record that all its tags have lost (without tags: its book)."""
        return all(record.seqnum < self._kept_from(record.book, row) for row in record.tags or (None,))

    def _row(self, name: str, tag: str | None) -> list[_Stored]:
        floor = self._kept_from(name, tag)
        row = [record for record in self._records if record.book == name and (tag is None or tag in record.tags)]
        return [record for record in row if record.seqnum >= floor and not self._is_gone(record)]

    def _last(self, name: str, tag: str) -> int:
        row = self._row(name, tag)
        return row[-1].seqnum if row else 0

    # What can be done

    def _append(self, chunk: Chunk) -> Appended:
        first = self.next_seqnum
        self.next_seqnum += chunk.count  # what is rejected has had its place in the order, too
        rejected: list[Rejected] = []
        for number, group in enumerate(chunk.groups()):
            verdict = self._reject(chunk.book, number, group)
            if verdict is not None:
                rejected.append(verdict)
                continue
            for i in range(group.start, group.stop):
                self._records.append(
                    _Stored(first + i, chunk.book, chunk.tags(i), chunk.payload(i), self.time_us, group.key_tag)
                )
        self._book(chunk.book)
        return Appended(first, tuple(rejected))

    def _reject(self, name: str, number: int, group: Span) -> Rejected | None:
        """Why a group is not appended. The key comes first: a repetition succeeds, though it changed its own tag."""
        oldest_us = self.time_us - int(self.limits.key_window_s * 1_000_000)
        if group.key_tag is not None:
            same = [record for record in self._records if (record.book, record.key_tag) == (name, group.key_tag)]
            deleted_below = self._book(name).deleted_below
            first_use = [r.seqnum for r in same if r.time_us > oldest_us and r.seqnum >= deleted_below]
            if first_use:
                return Rejected(number, "", 0, 0, tuple(first_use))
        for expect in group.when:
            last = max((record.seqnum for record in self._row(name, expect.tag)), default=0)
            if expect.count is not None:
                count = self._count(name, expect.tag)
                if count != expect.count:
                    return Rejected(number, expect.tag, 0, last, (), expect.count, count)
            elif last != expect.last_seqnum:
                return Rejected(number, expect.tag, expect.last_seqnum or 0, last)
        return None

    def _count(self, name: str, tag: str) -> int:
        """How many records of the tag the book has ever had, since it was last deleted, or forgot the tag: trims do not
        lower it.
        """
        start = max(self._book(name).deleted_below, self._book(name).forgotten.get(tag, 0))
        return sum(tag in record.tags and record.seqnum >= start for record in self._records if record.book == name)

    def _read(self, read: Read) -> Found:
        row = [record for record in self._row(read.book, read.tag) if read.start <= record.seqnum < read.stop]
        row = [record for record in row if record.time_us >= read.start_time_us]
        page: list[_Stored] = []
        size = 0
        for record in reversed(row) if read.backward else row:
            if len(page) == read.limit or size >= self.limits.page_bytes:
                break
            page.append(record)
            size += len(record.data)
        page.sort(key=lambda record: record.seqnum)
        is_end = len(page) == len(row)
        if read.backward:
            next_start = page[0].seqnum if page else read.start
        elif is_end:
            next_start = max(read.start, min(read.stop, self.next_seqnum))
        else:
            next_start = page[-1].seqnum + 1
        return Found(self._slabs(page), next_start, self._floor(read.book, read.tag), is_end)

    def _compare(self, compare: Compare) -> Compared:
        rows = enumerate(zip(compare.tags, compare.lasts, strict=True))
        changed = tuple(number for number, (tag, last) in rows if self._last(compare.book, tag) != last)
        return Compared(changed, self.next_seqnum)

    def _slabs(self, records: Iterable[_Stored]) -> tuple[Slab, ...]:
        slabs = []
        for time_us, together in groupby(records, lambda record: record.time_us):
            same = list(together)
            seqnums = [record.seqnum for record in same]
            book = same[0].book
            chunk = encode_chunk(book, [Group([(record.data, record.tags)]) for record in same])
            aux = {seqnum: self._aux[book, seqnum] for seqnum in seqnums if (book, seqnum) in self._aux}
            slabs.append(Slab(pack(f"<{len(seqnums)}q", *seqnums), time_us, chunk, aux))
        return tuple(slabs)

    def _get(self, get: Get) -> Found:
        """The book's own row decides: what a trim of the book has passed is only found by its system tags."""
        floor = self._floor(get.book, None)
        for record in self._records:
            if (record.book, record.seqnum) == (get.book, get.seqnum):
                if record.seqnum >= floor and not self._is_gone(record):
                    return Found(self._slabs([record]), record.seqnum + 1, floor)
                floor = max(floor, record.seqnum + 1)
        if get.seqnum < floor:
            raise Trimmed(f"record {get.seqnum} of book {get.book!r} has been trimmed", next_seqnum=floor)
        raise NotFound(f"book {get.book!r} has no record {get.seqnum}")

    def _trim(self, trim: TrimBook) -> None:
        book, before = self._book(trim.book), min(trim.before, self.next_seqnum)
        if trim.everything:
            self._books[trim.book] = _Book(deleted_below=max(before, book.deleted_below))
        else:
            for tag in trim.forgets or (trim.tag,):
                book.floors[tag] = max(book.floors.get(tag, 0), before)
        for tag in trim.forgets:
            if not self._row(trim.book, tag):
                book.floors.pop(tag, None)
                book.forgotten[tag] = self.next_seqnum

    def _apply_retention(self, name: str) -> None:
        book, size = self._book(name), 0
        if book.age_s is None and book.size_bytes is None:
            return
        for record in reversed(self._row(name, None)):
            size += len(record.data)
            is_old = book.age_s is not None and record.time_us < self.time_us - int(book.age_s * 1_000_000)
            if is_old or (book.size_bytes is not None and size > book.size_bytes):
                self._trim(TrimBook(name, record.seqnum + 1))
                break

    def _list(self, listing: ListBooks) -> Books:
        infos = []
        for name, book in sorted(self._books.items()):
            row = self._row(name, None)
            if row and name.startswith(listing.prefix) and name > listing.after:
                size = sum(len(record.data) for record in row)
                places = (row[0].seqnum, row[-1].seqnum, row[-1].time_us)
                infos.append(BookInfo(name, len(row), *places, size, book.age_s, book.size_bytes))
        return Books(tuple(infos[: listing.limit]))
