"""The index: which records each tag of each book has, where they are, and which conditional appends held.

It applies the metalogs of all physical logs, entry by entry, and answers from memory, or from rows that it reads back
from its own disk. Three laws make all indexes of a cluster agree, so that any of them may answer:

1. Entries of one log are applied in order; those of different logs of a term in any order, because a book lives in one
   log per term. Entries of the next term come only after every log of this one has reached its end, because a book may
   have moved (`begin_term`).
2. A group of records is kept or skipped by what its own book looks like at its own place in the order, and by the time
   of its cut: never by a clock, a cache or what happens to be in memory.
3. What is on the disk is a copy of what was applied until the last checkpoint. Memory is a cache of the disk, plus what
   came after. Deleting any of the clean part changes no answer.

The work is done by the files beside: `book` and `rows` (what records a book and a tag have), `history` (where and
when), `residence` (memory and checkpoints), `sweep` and `pages` (what to delete), `layout` (keys).
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from struct import Struct
from typing import Final, NamedTuple

from boki.engine.index.book import Book, BookState
from boki.engine.index.history import OrderHistory
from boki.engine.index.layout import (
    BOOKS,
    TAG_FLOORS,
    after_prefix,
    book_key,
    read_number,
    read_tag_key,
)
from boki.engine.index.pages import PageSweep
from boki.engine.index.parts import END
from boki.engine.index.residence import Residence
from boki.engine.index.small_state import read_small_state, write_small_state
from boki.engine.index.sweep import Sweep
from boki.errors import Overloaded
from boki.log.batch import Batch
from boki.log.chunk import Chunk, Span
from boki.log.cuts import Piece
from boki.log.ids import KEY_TAG_PREFIX, MAX_SEQNUM, LogId, ShardId, Term, split_seqnum
from boki.log.metalog import CloseShard, Cut, ForgetTags, MetalogEntry, OpenShard, Positions, Trim, Trims, make_position
from boki.log.operations import BookInfo
from boki.log.record import Expect
from boki.log.view import View, place_book
from boki.protocol.effects import Delete, DiskReader, Put

_ENTRY_BYTES: Final = 16
_SWEPT_KEYS: Final = 500
_LAST_SEQNUM: Final = Struct("<q")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A group that was skipped. With `seqnums`, its key had been used: those are the records of the first use.

    Otherwise the condition on `tag` failed: its last record is `actual_seqnum`. If it was a condition on the count,
    `expected_count` and `actual_count` are not negative. `seqnum`: of the group's first record.
    """

    seqnum: int
    tag: str
    expected_seqnum: int
    actual_seqnum: int
    seqnums: tuple[int, ...] = ()
    expected_count: int = -1
    actual_count: int = -1


class Applied(NamedTuple):
    """What an entry did: the groups that were skipped, and the books that got records or whose floors moved."""

    refusals: list[Refusal]
    books: set[str]
    watched: set[tuple[str, str]]
    """Rows of `Index.watched` that may have got records."""


class Index:
    """All physical logs of an engine. `disk` holds the last checkpoint; memory beyond `memory_bytes` is given back.

    Raises `VersionTooNew` if a newer Boki wrote the checkpoint.
    """

    def __init__(self, disk: DiskReader, *, memory_bytes: int, key_window_us: int) -> None:
        self._disk = disk
        self._residence = Residence(disk, memory_bytes)
        self._history = OrderHistory(self._residence)
        self._sweep = Sweep(disk)
        self._page_sweep = PageSweep(disk, self._history)
        self._key_window_us = key_window_us
        self._books: dict[str, Book] = {}
        self._new_books: set[str] = set()
        self._log_times: dict[LogId, int] = {}
        state = read_small_state(disk)
        self.applied: Positions = dict(state.applied)
        """Per log, the metalog position until which it has been applied."""
        self.watched: tuple[Mapping[str, Container[str]], ...] = ()
        """By book, the tags that `Applied.watched` names: those of each who watches."""
        self._log_counts = list(state.log_counts)
        self._first_term = state.first_term

    # following the metalogs

    @property
    def current_term(self) -> Term:
        """The term whose entries are being applied; 0 before the first."""
        return self._first_term + len(self._log_counts) - 1 if self._log_counts else 0

    def begin_term(self, view: View) -> None:
        """Continue with the next term, now that every log of this one has been applied to its end. Repeatable."""
        term = self.current_term
        if view.term == term:
            return
        if term:
            assert view.term == term + 1, "terms follow one another"
            ends = {log: make_position(term, end) for log, end in enumerate(view.previous_ends)}
            assert all(self.applied[log] == end for log, end in ends.items()), "every log must be applied to its end"
        else:
            self._first_term = view.term
        self._log_counts.append(view.log_count)
        for log in range(view.log_count):
            self.applied[log] = make_position(view.term, 0)
        self._residence.dirty_bytes += _ENTRY_BYTES

    def pieces(self, log: LogId, cut: Cut) -> list[Piece]:
        """What the log's next entry would order, if it is this cut. Changes nothing."""
        return self._history.log(self.current_term, log).pieces(cut)

    def apply(self, log: LogId, entry: MetalogEntry, batches: Sequence[Batch] = ()) -> Applied:
        """Apply the next entry of that log in the current term.

        With a cut come the batches that it orders, whole and in the order of their seqnums.
        """
        assert log < self._log_counts[-1], f"term {self.current_term} has no log {log}"
        applied = Applied([], set(), set())
        match entry:
            case Cut():
                self._apply_cut(log, entry, batches, applied)
            case Trim() | ForgetTags():
                self._apply_trim(log, entry, applied)
            case OpenShard() | CloseShard():
                pass
        self.applied[log] += 1
        self._residence.dirty_bytes += _ENTRY_BYTES
        self._settle()
        return applied

    def _apply_cut(self, log: LogId, cut: Cut, batches: Sequence[Batch], applied: Applied) -> None:
        term = self.current_term
        for batch in batches:
            _ = batch.chunks  # whatever is damaged is found before anything changes
        remaining = iter(batches)
        for shard, lid, until, seqnum in self._history.log(term, log).apply_cut(cut):
            while lid < until:
                batch = next(remaining)
                header = batch.header
                assert header[:4] == (term, log, shard, lid), "batches stand in the order of their seqnums"
                for chunk in batch.chunks:
                    self._apply_chunk(log, chunk, seqnum, cut.time_us, applied)
                    seqnum += chunk.count
                lid += header.record_count
            assert lid == until, "a cut orders whole batches"
        assert next(remaining, None) is None, "these batches are not of this cut"
        self._log_times[log] = cut.time_us

    def _apply_chunk(self, log: LogId, chunk: Chunk, first: int, time_us: int, applied: Applied) -> None:
        name = chunk.book
        assert self._is_at_home(name, log), f"book {name!r} does not live in log {log}"
        for watched in self.watched:
            tags = watched.get(name)
            if tags is not None:
                applied.watched.update([(name, tag) for tag in chunk.strings if tag in tags])
        book = self._book_to_change(name)
        if _hold_all(book, chunk):
            _keep_all(book, chunk, first)
            applied.books.add(name)
            return
        sizes = chunk.payload_sizes()
        for span in chunk.groups():
            refusal = self._judge(book, span, first, time_us)
            if refusal is not None:
                applied.refusals.append(refusal)
                continue
            applied.books.add(name)
            if span.key_tag is None and span.stop - span.start == chunk.count:
                _keep_all(book, chunk, first)
                return
            if span.key_tag is not None:
                self._sweep.want()
            for i in range(span.start, span.stop):
                book.append(first + i, chunk.tags(i), sizes[i], span.key_tag)

    def _is_at_home(self, book: str, log: LogId) -> bool:
        count = self._log_counts[-1]
        return count == 1 or place_book(book, count) == log

    def _judge(self, book: Book, span: Span, first: int, time_us: int) -> Refusal | None:
        """Why the group is skipped; None if it is kept. The key comes first: a repetition may have changed its tag."""
        seqnum = first + span.start
        if span.key_tag is not None:
            used = book.last(span.key_tag)
            if used:
                first_of_cut, used_us = self._history.cut_of(used)
                if used_us > time_us - self._key_window_us:
                    # one key is used once in a cut, so this is all that is left of the first use and nothing else
                    return Refusal(seqnum, "", 0, 0, tuple(book.page(span.key_tag, first_of_cut, used + 1, END)))
        for expect in span.when:
            if _holds(book, expect):
                continue
            last = book.last(expect.tag)
            if expect.count is not None:
                return Refusal(seqnum, expect.tag, 0, last, (), expect.count, book.count(expect.tag))
            return Refusal(seqnum, expect.tag, expect.last_seqnum or 0, last)
        return None

    def _apply_trim(self, log: LogId, trim: Trims, applied: Applied) -> None:
        assert self._is_at_home(trim.book, log), f"book {trim.book!r} does not live in log {log}"
        book = self._book_to_change(trim.book)
        if book.trim(trim, self._history.log(self.current_term, log).next_seqnum):
            applied.books.add(trim.book)
            if isinstance(trim, Trim) and (trim.tag is None or trim.everything):
                self._sweep.want()

    def _book_to_change(self, name: str) -> Book:
        book = self._book(name)
        if book is None:
            book = Book(name, self._residence, self._books, BookState())
            self._new_books.add(name)
        return book

    def _book(self, name: str) -> Book | None:
        book = self._books.get(name)
        if book is None:
            stored = self._disk.get(book_key(name))
            if stored is not None:
                book = Book(name, self._residence, self._books, BookState.decode(stored))
        return book

    def _settle(self) -> None:
        """An operation is over: nobody holds a row any more."""
        if self._residence.is_over_budget:
            self._residence.evict()

    def rest(self) -> None:
        """Time has passed: give back memory beyond the budget, and that of rows which are over."""
        self._residence.rest(self._is_over)

    @property
    def is_at_work(self) -> bool:
        """Whether `rest` has something to do."""
        return self._residence.is_at_work

    def check_room(self) -> None:
        """`Overloaded` far beyond the budget, until memory has been given back."""
        if self._residence.is_far_over_budget:
            raise Overloaded(
                f"the index holds {self._residence.used_bytes} bytes, far more than index_memory_bytes "
                f"({self._residence.limit_bytes}): it is being written to disk; append more slowly, or raise it",
                retry_after_s=0.2,
            )

    # reading. `tag=None` is the whole book; nothing below a floor and nothing that was skipped is ever found

    def page(
        self, book: str, tag: str | None, start: int, stop: int, limit: int, *, backward: bool = False
    ) -> array[int]:
        """Seqnums in `start <= seqnum < stop`, ascending: the first `limit` of them, or the last if `backward`."""
        found = self._books.get(book) or self._book(book)
        if found is None:
            return array("q")
        page = found.page(tag, start, stop, limit, backward=backward)
        self._settle()
        return page

    def last(self, book: str, tag: str | None) -> int:
        """The last seqnum of the tag, as conditions see it; 0 if there is none, or all are trimmed."""
        found = self._book(book)
        last = 0 if found is None else found.last(tag)
        self._settle()
        return last

    def has(self, book: str, seqnum: int) -> bool:
        """Whether the book has that record, and it can be read."""
        found = self._book(book)
        has = found is not None and found.has(seqnum)
        self._settle()
        return has

    def floor(self, book: str, tag: str | None) -> int:
        """Seqnums below this are trimmed, in that tag's row or in the whole book."""
        found = self._book(book)
        floor = 0 if found is None else found.floor_of(tag)
        self._settle()
        return floor

    def was_trimmed(self, book: str, seqnum: int) -> bool:
        """Whether a record that is not there was there, and trims have taken it away.

        Above the book's floor this is known of gaps, not of numbers: in a gap that trims of tags have left, the answer
        is yes also for the seqnums of other books and of skipped records.
        """
        found = self._book(book)
        if found is None:
            return False
        was_trimmed = seqnum < found.floor or found.whole.was_trimmed(seqnum)
        self._settle()
        return was_trimmed

    def next_seqnum(self, log: LogId) -> int:
        """Every record that the log orders from now on, in this term or a later one, stands at or above this."""
        return self._history.log(self.current_term, log).next_seqnum

    def locate(self, seqnum: int) -> tuple[Term, LogId, ShardId, int, int]:
        """(term, log, shard, local id, how many records at least follow it there, itself included, without a gap).

        `KeyError` if that seqnum was never ordered.
        """
        shard, lid, run_length = self._history.table_of(seqnum).locate(seqnum)
        term, log, _ = split_seqnum(seqnum)
        self._settle()
        return term, log, shard, lid, run_length

    def time_of(self, seqnum: int) -> int:
        """When it was ordered, in microseconds since the epoch; `KeyError` if it never was, or that is forgotten."""
        time_us = self._history.time_of(seqnum)
        self._settle()
        return time_us

    def first_seqnum_at(self, book: str, time_us: int) -> int:
        """Every record of the book ordered at or after that time stands at or above this, and all others below.

        `MAX_SEQNUM` if nothing was ordered that late.
        """
        first = self._first_at(book, time_us)
        self._settle()
        return first

    def _first_at(self, book: str, time_us: int) -> int:
        terms = range(self.current_term, self._first_term - 1, -1)
        places = ((term, place_book(book, self._log_counts[term - self._first_term])) for term in terms)
        found = self._history.first_seqnum_at(time_us, places)
        return MAX_SEQNUM if found is None else found

    def retention_floor(self, book: str, *, older_than_us: int | None, keep_bytes: int | None) -> int:
        """The `before` of the trim that a retention asks for now: the floor as it is, if for none.

        Records ordered before `older_than_us` are to go, and the first ones, as long as more than `keep_bytes` of data
        (about) would be left.
        """
        found = self._book(book)
        if found is None or not found.record_count:
            return 0 if found is None else found.floor
        before = 0
        if older_than_us is not None:
            before = min(self._first_at(book, older_than_us), found.last_seqnum + 1)
        if keep_bytes is not None:
            before = max(before, found.front(found.payload_bytes - keep_bytes))
        self._settle()
        return before if before > found.first_seqnum else found.floor

    def books(self, prefix: str, after: str, limit: int) -> list[BookInfo]:
        """The books that have records, by name: the first `limit` that start with `prefix` and come after `after`."""
        infos: list[BookInfo] = []
        last_name = None
        for name, stored in merge(self._new_names(prefix, after), self._stored_names(prefix, after)):
            if len(infos) == limit:
                break
            book = self._books.get(name)
            state = BookState.decode(stored) if book is None else book.state
            if name == last_name or not state.record_count:
                continue
            last_name = name
            time_us = self._history.time_of(state.last_seqnum)
            infos.append(
                BookInfo(name, state.record_count, state.first_seqnum, state.last_seqnum, time_us, state.payload_bytes)
            )
        self._settle()
        return infos

    def _new_names(self, prefix: str, after: str) -> list[tuple[str, bytes]]:
        names = (name for name in self._new_books if name in self._books)  # one that stayed empty may be gone already
        return sorted((name, b"") for name in names if name > after and name.startswith(prefix))

    def _stored_names(self, prefix: str, after: str) -> Iterator[tuple[str, bytes]]:
        start = max(book_key(prefix), book_key(after) + b"\x00")
        for key, value in self._disk.scan(start, after_prefix(book_key(prefix))):
            yield key[len(BOOKS) :].decode(), value

    # persistence: see `boki.engine.index.residence`

    @property
    def dirty_bytes(self) -> int:
        """How much the next checkpoint would write, about."""
        return self._residence.dirty_bytes

    @property
    def memory_bytes_used(self) -> int:
        """Memory held, about."""
        return self._residence.used_bytes

    def checkpoint(self) -> list[Put | Delete]:
        """Writes that bring the disk to the state now: in this order, all or none. Then `checkpoint_stored`."""
        writes = self._residence.writes()
        swept = [Delete(*keys) for keys in self._sweep.go_on(_SWEPT_KEYS + len(writes), self._is_dead)]
        swept += self._page_sweep.go_on(_SWEPT_KEYS + len(writes), writes)
        return [*swept, *writes, write_small_state(self.applied, self._log_counts, self._first_term)]

    def checkpoint_stored(self) -> None:
        """The disk can be read as the last checkpoint left it: memory may be given back."""
        self._residence.stored()
        self._new_books = {name for name in self._new_books if not self._is_stored(name)}
        self._settle()

    def _is_stored(self, name: str) -> bool:
        """Whether a book need not be listed from memory. One without records may never have been written."""
        book = self._books.get(name)
        return book is None or not (book.is_dirty or not book.record_count)

    def _is_dead(self, key: bytes, value: bytes) -> bool:
        """Whether no answer depends any more on that part or floor of a tag."""
        name, tag, _ = read_tag_key(key)
        state = self._state_of(name)
        if key.startswith(TAG_FLOORS):
            return read_number(value) <= state.spared_from(tag)
        if not value:
            return True
        last: int = _LAST_SEQNUM.unpack_from(value, len(value) - _LAST_SEQNUM.size)[0]
        return self._is_over(name, tag, last)

    def _is_over(self, name: str, tag: str, last: int) -> bool:
        """Whether the records of a row until that last one can be asked for by nobody any more."""
        if last < self._state_of(name).spared_from(tag):
            return True
        if not tag.startswith(KEY_TAG_PREFIX):
            return False
        # whatever is judged later is judged at a later time
        now_us = self._log_times.get(place_book(name, self._log_counts[-1]), 0)
        return self._history.cut_of(last)[1] <= now_us - self._key_window_us

    def _state_of(self, name: str) -> BookState:
        book = self._books.get(name)
        if book is not None:
            return book.state
        stored = self._disk.get(book_key(name))
        return BookState() if stored is None else BookState.decode(stored)


def _hold_all(book: Book, chunk: Chunk) -> bool:
    """Whether all its groups are kept, as one look at the book can tell: most chunks have no condition, or a few."""
    conditions = chunk.outer_conditions()
    return conditions is not None and all(_holds(book, expect) for expect in conditions)


def _holds(book: Book, expect: Expect) -> bool:
    if expect.count is not None:
        return book.count(expect.tag) == expect.count
    return book.last(expect.tag) == expect.last_seqnum


def _keep_all(book: Book, chunk: Chunk, first: int) -> None:
    if chunk.count == 1:
        book.append(first, chunk.tags(0), chunk.payload_bytes)
    else:
        book.append_chunk(first, chunk)
