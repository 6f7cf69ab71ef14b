"""Planning: what an index says about where books begin and end, turned into offsets and tasks.

A plan begins with a **tail**: of each physical log the seqnum below which everything that was acknowledged before lies.
Readers of the plan see exactly what lies below, however much is appended meanwhile. Whatever is asked after the tail is
answered by an index that has come as far, so a book that has a record below the tail is in the list of books.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from boki.errors import InvalidArgument, NotFound, Unavailable
from boki.log.ids import MAX_SEQNUM, make_seqnum, split_seqnum
from boki.log.metalog import split_position
from boki.log.operations import BookInfo, Found, Read
from boki.log.view import place_book
from boki.spark.gaps import note_gap
from boki.spark.gateway import Gateway, Pauses, first_seqnum
from boki.spark.offsets import Offset, advance
from boki.spark.options import ReadOptions
from boki.spark.ranges import RECORDS_A_TASK, Extent, Segment, Task, share_out

_MOST_PROBED: Final = 256
"""Of this many books the planner asks for the first and the last record; of more the list of books must do."""
_MOST_KEPT: Final = 4096
"""Of this many books an offset says which they are; a checkpoint keeps a hundred offsets."""
_MOST_TERMS: Final = 64
"""Extents of one book that are looked for one by one; what lies behind is one piece."""
_NAMED: Final = 20


class Planner:
    """Plans the reads of one query."""

    def __init__(self, options: ReadOptions, gateway: Gateway) -> None:
        self._options = options
        self._gateway = gateway

    # where the log ends

    def tail(self) -> Offset:
        """The tail of every physical log, as of now."""
        pauses = Pauses()
        while True:
            if not self._gateway.positions:
                self._gateway.tail("boki:calls")  # any book tells; this one is there in every system
            self._gateway.some_books("", 1)
            newest = max(split_position(position)[0] for position in self._gateway.positions.values())
            count = sum(split_position(position)[0] == newest for position in self._gateway.positions.values())
            tails = [self._gateway.tail(book) for book in _books_of(count)]
            if [split_seqnum(seqnum)[:2] for seqnum in tails] == [(newest, log) for log in range(count)]:
                return Offset(tuple(tails))
            # a new term has begun between two questions
            if not pauses.pause():
                raise Unavailable("the log changes its shape faster than it can be asked; try again", retryable=True)

    def check_reached(self, offset: Offset, tail: Offset) -> None:
        """`InvalidArgument` if the logs have never come to that offset: it would be waited for without limit."""
        if not offset.is_reached_by(tail):
            raise InvalidArgument(
                f"the checkpoint is ahead of the log, which ends at {tail.to_json()}: it is of another system, or this "
                "one's data was wiped. Use the gateway of this query, or a new checkpoint",
                field="offset",
            )

    # which books

    def check_books(self) -> None:
        """`NotFound` if a book that is named has no records and never had any."""
        for name in self._options.books.names:
            found = self._gateway.first(name, None, 0)
            if not found.slabs and not found.first_seqnum:
                known = [info.name for info in self._gateway.some_books("", _NAMED)]
                there = f"there are {', '.join(known)}" if known else "there is none yet"
                raise NotFound(
                    f"there is no book {name!r}: {there}. A book exists from its first append; a prefix, "
                    f"{name + '*'!r}, also takes books that are still to come",
                    book=name,
                )

    def books(self) -> list[tuple[str, BookInfo | None]]:
        """The books that are meant; those of a prefix with what the list says about them."""
        books = self._options.books
        if books.prefix is None:
            return [(name, None) for name in books.names]
        return [(info.name, info) for info in self._gateway.books(books.prefix) if books.takes(info.name)]

    # steps of a stream

    def step(self, start: Offset, tail: Offset, limit: int | None) -> Offset:
        """How far the next micro-batch goes; `start` if there is nothing new."""
        books = self.books()
        since = dict(start.books or ())
        if self._options.books.prefix is not None:
            self._check_gone(since.keys() - {name for name, _ in books}, start, tail)
        is_told = start.is_beginning and len(books) <= _MOST_KEPT
        first: dict[str, int] = {}
        for name, info in books:
            low, high = self._low(start, name, since), tail.bound(name)
            if low >= high or (info is not None and info.last_seqnum < low):
                continue
            found = self._first(name, low, high)
            if low and found.first_seqnum > low:
                note_gap(name, low, min(found.first_seqnum, high), self._options.on_trimmed)
            if found.slabs:
                first[name] = first_seqnum(found)
                if limit is None and not is_told:
                    break
            if is_told:
                since[name] = first.get(name, high)
        if not first:
            return start
        end = tail if limit is None else advance(start, tail, first, limit)
        return msgspec.structs.replace(end, books=self._kept([name for name, _ in books], since, start))

    def _kept(self, names: list[str], since: dict[str, int], start: Offset) -> tuple[tuple[str, int], ...] | None:
        """What the end of the batch after `start` says of these books, if it need say anything."""
        kept = tuple((name, since.get(name, 0) if since.get(name, 0) > start.bound(name) else 0) for name in names)
        is_needed = self._options.books.prefix is not None or any(low for _, low in kept)
        return kept if is_needed and len(names) <= _MOST_KEPT else None

    def _check_gone(self, names: Iterable[str], start: Offset, tail: Offset) -> None:
        """Books that were there when the stream came to `start`, and have no records now."""
        for name in sorted(names):
            low, high = self._low(start, name, dict(start.books or ())), tail.bound(name)
            found = self._first(name, low, high)
            if low < min(found.first_seqnum, high):
                note_gap(name, low, min(found.first_seqnum, high), self._options.on_trimmed)

    def _low(self, start: Offset, name: str, since: dict[str, int]) -> int:
        """From where on a batch has the records of that book. Unless it is 0, they are promised from there on."""
        return max(start.bound(name), self._options.start.seqnum, since.get(name, 0))

    def _first(self, name: str, low: int, high: int) -> Found:
        options = self._options
        return self._gateway.first(name, options.tag, low, high, options.start.time_us)

    # tasks

    def tasks(self, start: Offset, end: Offset) -> list[Task]:
        """Everything between the offsets, shared out. Whoever comes from further on than the log's beginning has a
        claim to all that lies above: `Trimmed` if that is gone, unless the options say to skip it.

        A micro-batch that is run again is shared out as before, whatever books have got since: sinks know their rows by
        the partition in which they came.
        """
        extents: list[Extent] = []
        listed = dict(self.books())
        since = dict(end.books or ())
        is_kept = end.books is not None and self._options.books.prefix is not None
        names = list(since if is_kept else listed)
        is_many = len(names) > _MOST_PROBED
        may_come_again = is_kept or not start.is_beginning
        for name in names:
            info = listed.get(name)
            low = self._low(start, name, since)
            high = min(end.bound(name), self._stop_of(name))
            if low >= high:
                continue
            if info is not None and (is_many or self._options.tag is None):
                if info.last_seqnum < low:
                    continue
                if may_come_again and info.last_seqnum >= high and not self._has_any(name, low, high):
                    continue  # what the list says came later
            if low and high - low <= RECORDS_A_TASK:
                # one task, which looks for itself: a micro-batch is soon planned
                extents.append(Extent(Segment(name, low, high, low), high - low))
            elif is_many and info is not None and (low or self._options.tag is None):
                segment = Segment(name, low, high, low or info.first_seqnum)
                weight = RECORDS_A_TASK if may_come_again else info.record_count
                extents.append(Extent(segment, weight, is_divisible=False))
            else:
                extents += self._probed(name, low, high)
        return share_out(extents, dict(self._gateway.positions), self._options.partitions)

    def _has_any(self, name: str, low: int, high: int) -> bool:
        """Whether the book has records there, or had: then whoever reads it finds the gap."""
        found = self._gateway.first(name, None, low, high)
        return bool(found.slabs) or low < found.first_seqnum

    def _stop_of(self, book: str) -> int:
        stop = self._options.stop
        if stop is None:
            return MAX_SEQNUM
        if not stop.time_us:
            return stop.seqnum
        found = self._gateway.first(book, None, 0, start_time_us=stop.time_us)
        return first_seqnum(found) if found.slabs else MAX_SEQNUM

    def _probed(self, name: str, low: int, high: int) -> list[Extent]:
        """What the book has between its first and its last record, one extent for each term.

        Each answer tells what trims had taken by then: what goes while this is planned must not be passed over.
        """
        found = self._first(name, low, high)
        floor = self._passed(name, low or found.first_seqnum, high, found)
        extents: list[Extent] = []
        while found.slabs:
            first = first_seqnum(found)
            if len(extents) == _MOST_TERMS:
                rest = Segment(name, first, high, floor)
                return [*extents, Extent(rest, RECORDS_A_TASK, is_divisible=False)]
            next_term = make_seqnum(split_seqnum(first)[0] + 1, 0, 0)
            last = self._gateway.find(Read(name, self._options.tag, first, min(next_term, high), backward=True))
            floor = self._passed(name, floor, high, last)
            if last.slabs:
                end = first_seqnum(last) + 1
                extents.append(Extent(Segment(name, first, end, floor), end - first))
            if high <= next_term:
                break
            found = self._first(name, next_term, high)
            floor = self._passed(name, floor, high, found)
        return extents

    def _passed(self, name: str, floor: int, high: int, found: Found) -> int:
        """How far trims have come now; a gap is noted."""
        if floor < min(found.first_seqnum, high):
            note_gap(name, floor, min(found.first_seqnum, high), self._options.on_trimmed)
        return max(floor, found.first_seqnum)


def _books_of(count: int) -> list[str]:
    """For each physical log the name of a book, which need not be there, that lives in it."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < count:
        name = f"log-{number}"
        found.setdefault(place_book(name, count), name)
        number += 1
    return [found[log] for log in range(count)]
