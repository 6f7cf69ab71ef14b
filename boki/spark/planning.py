"""Planning: what an index says about where books begin and end, turned into offsets and tasks.

A plan begins with a **tail**: of each physical log the seqnum below which everything that was acknowledged before lies.
Readers of the plan see exactly what lies below, however much is appended meanwhile.
"""

from __future__ import annotations

from typing import Final

from boki.errors import NotFound, Trimmed, Unavailable
from boki.log.ids import MAX_SEQNUM, make_seqnum, split_seqnum
from boki.log.metalog import split_position
from boki.log.operations import BookInfo, Found
from boki.log.view import place_book
from boki.spark.columns import LEDGER
from boki.spark.gateway import Gateway
from boki.spark.offsets import Offset, advance
from boki.spark.options import OnTrimmed, ReadOptions
from boki.spark.ranges import RECORDS_A_TASK, Extent, Segment, Task, share_out

_MOST_PROBED: Final = 256
"""Of so many books the planner asks for the first and the last record; of more the list of books must do."""
_MOST_TERMS: Final = 64
"""Extents of one book that are looked for one by one; what lies behind is one piece."""
_TRIES: Final = 20
_NAMED: Final = 20


class Planner:
    """Plans the reads of one query."""

    def __init__(self, options: ReadOptions, gateway: Gateway) -> None:
        self._options = options
        self._gateway = gateway

    # where the log ends

    def tail(self) -> Offset:
        """The tail of every physical log, as of now."""
        for _ in range(_TRIES):
            if not self._gateway.positions:
                self._gateway.tail("boki:calls")  # any book tells; this one is there in every system
            self._gateway.some_books("", 1)
            newest = max(split_position(position)[0] for position in self._gateway.positions.values())
            count = sum(split_position(position)[0] == newest for position in self._gateway.positions.values())
            tails = [self._gateway.tail(book) for book in _books_of(count)]
            if [split_seqnum(seqnum)[:2] for seqnum in tails] == [(newest, log) for log in range(count)]:
                return Offset(tuple(tails))
            # a new term has begun between two questions
        raise Unavailable("the log changes its shape faster than it can be asked; try again", retryable=True)

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
        listed = self._gateway.books(books.prefix)
        return [(info.name, info) for info in listed if info.name != LEDGER or books.prefix == LEDGER]

    # steps of a stream

    def step(self, start: Offset, tail: Offset, limit: int | None) -> Offset:
        """How far the next micro-batch goes; `start` if there is nothing new."""
        first: dict[str, int] = {}
        for name, info in self.books():
            low, high = max(start.bound(name), self._options.start.seqnum), tail.bound(name)
            if low >= high or (info is not None and info.last_seqnum < low):
                continue
            found = self._first(name, low, high)
            if found.slabs:
                first[name] = found.next_start - 1
                if limit is None:
                    return tail
        return start if not first else tail if limit is None else advance(start, tail, first, limit)

    def _first(self, name: str, low: int, high: int) -> Found:
        options = self._options
        return self._gateway.first(name, options.tag, low, high, options.start.time_us)

    # tasks

    def tasks(self, start: Offset, end: Offset) -> list[Task]:
        """Everything between the offsets, shared out. `start` of a batch read is 0; whoever comes from further on has
        a claim to all that lies above: `Trimmed` if that is gone, unless the options say to skip it.
        """
        extents: list[Extent] = []
        books = self.books()
        for name, info in books:
            low = max(start.bound(name), self._options.start.seqnum)
            high = min(end.bound(name), self._stop_of(name))
            if low >= high or (info is not None and info.last_seqnum < low):
                continue
            claim = start.bound(name) > 0
            if claim and high - low <= RECORDS_A_TASK:
                # one task, which looks for itself: a micro-batch is soon planned
                extents.append(Extent(Segment(name, low, high, low), high - low))
            elif len(books) > _MOST_PROBED and info is not None:
                segment = Segment(name, low, high, low if claim else None)
                extents.append(Extent(segment, info.record_count, is_divisible=False))
            else:
                extents += self._probed(name, low, high, claim=claim)
        return share_out(extents, dict(self._gateway.positions), self._options.partitions)

    def _stop_of(self, book: str) -> int:
        stop = self._options.stop
        if stop is None:
            return MAX_SEQNUM
        if not stop.time_us:
            return stop.seqnum
        found = self._gateway.first(book, None, 0, start_time_us=stop.time_us)
        return found.next_start - 1 if found.slabs else MAX_SEQNUM

    def _probed(self, name: str, low: int, high: int, *, claim: bool) -> list[Extent]:
        """What the book has between its first and its last record, one extent for each term."""
        tag = self._options.tag
        found = self._first(name, low, high)
        if claim and found.first_seqnum > low:
            note_gap(name, low, min(found.first_seqnum, high), self._options.on_trimmed)
        floor = found.first_seqnum
        extents: list[Extent] = []
        while found.slabs and len(extents) < _MOST_TERMS:
            first = found.next_start - 1
            next_term = make_seqnum(split_seqnum(first)[0] + 1, 0, 0)
            end = self._gateway.last_seqnum(name, tag, min(next_term, high)) + 1
            extents.append(Extent(Segment(name, first, end, floor), end - first))
            if high <= next_term:
                return extents
            found = self._first(name, next_term, high)
        if found.slabs:
            rest = Segment(name, found.next_start - 1, high, floor)
            extents.append(Extent(rest, RECORDS_A_TASK, is_divisible=False))
        return extents


def note_gap(book: str, start: int, stop: int, on_trimmed: OnTrimmed) -> None:
    """Records of the book from `start` until `stop` have been trimmed before they were read: `Trimmed`, or nothing."""
    if on_trimmed == "fail":
        raise Trimmed(
            f"book {book!r}: records with {start} <= seqnum < {stop} were trimmed before this query had read them, as "
            f"far as there were any. Start it from {stop} with a new checkpoint, or say onTrimmed=skip",
            book=book,
            next_seqnum=stop,
        )


def _books_of(count: int) -> list[str]:
    """For each physical log the name of a book, which need not be there, that lives in it."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < count:
        name = f"log-{number}"
        found.setdefault(place_book(name, count), name)
        number += 1
    return [found[log] for log in range(count)]
