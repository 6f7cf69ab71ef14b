"""One history applied to the index and to the naive one, and every question put to both.

A history is a list of steps, plain values that Hypothesis draws. `History` interprets them: it keeps a disk, lets the
index checkpoint to it, starts it again from there, and takes its memory away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from boki.engine.index import book as book_module
from boki.engine.index import book_row as book_row_module
from boki.engine.index import history as history_module
from boki.engine.index import pages as pages_module
from boki.engine.index import rows as rows_module
from boki.engine.index.book import Book
from boki.engine.index.index import Index
from boki.engine.index.layout import TAG_FLOORS, TAG_ROWS, read_number, read_tag_key
from boki.log.batch import Batch, encode_batch
from boki.log.chunk import Group, encode_chunk
from boki.log.cuts import unpack_column
from boki.log.ids import MAX_SEQNUM, NodeId, make_shard
from boki.log.metalog import Cut, ForgetTags, Trim, Trims, split_position
from boki.log.record import Expect
from boki.log.view import place_book
from tests.engine.naive_index import NaiveIndex, group
from tests.members import view
from tests.world import MemoryDisk

BOOKS = ("a", "b", "ab", "log:7")
FENCE = "!fence"
TAGS = ("x", "y", "xy", FENCE)
KEYS = ("k", "l")
WINDOW_US = 100


@dataclass(frozen=True)
class Condition:
    """`Expect(tag, ...)` of what is so (`guess` 0), of nothing (1), or of what is surely wrong (2).

    Of the fence's tag also conditions on its count: `guess` + 3.
    """

    tag: str
    guess: int


@dataclass(frozen=True)
class DrawnGroup:
    book: str
    tags: tuple[tuple[str, ...], ...]
    when: tuple[Condition, ...] = ()
    key: str | None = None


@dataclass(frozen=True)
class CutStep:
    """Batches of chunks of groups, for some shards; what does not live in the log is left out."""

    log: int
    later_us: int
    shards: tuple[tuple[tuple[tuple[DrawnGroup, ...], ...], ...], ...]


@dataclass(frozen=True)
class TrimStep:
    book: str
    tag: str | None
    place: float
    """Where: 0 is before all that was ordered, 1 after it, 2 is MAX."""
    everything: bool = False
    forgets: bool = False
    also: tuple[str, ...] = ()
    """Other tags that are forgotten with it."""


@dataclass(frozen=True)
class TermStep:
    log_count: int


@dataclass(frozen=True)
class CheckpointStep:
    """Write a checkpoint; `is_stored` says so to the index; then `is_restarted` starts it again from the disk."""

    is_stored: bool = True
    is_restarted: bool = False


Step = CutStep | TrimStep | TermStep | CheckpointStep


@contextmanager
def small_parts() -> Iterator[None]:
    """Parts, pages and reads so small that a few records fill several."""
    with (
        patch.object(rows_module, "PART_RECORDS", 4),
        patch.object(rows_module, "CLOSE_RECORDS", 2),
        patch.object(rows_module, "_READ_BYTES", 24),
        patch.object(book_row_module, "PART_RECORDS", 4),
        patch.object(history_module, "PAGE_ENTRIES", 3),
        patch.object(pages_module, "_LEAST", 1),
        patch.object(pages_module, "_GROWTH", 1),
    ):
        yield


class History:
    """The index and the naive one, side by side."""

    def __init__(self, *, memory_bytes: int, log_count: int = 2) -> None:
        self.memory_bytes = memory_bytes
        self.disk = MemoryDisk()
        self.naive = NaiveIndex(WINDOW_US)
        self.index = self._start()
        self.term = 0
        self.log_count = log_count
        self.lids: dict[tuple[int, int, int], int] = {}
        self.time_us = 1_000
        self.unstored = False
        self._since_checkpoint: list[Step] = []
        self._begin_term(log_count)

    def _start(self) -> Index:
        return Index(self.disk, memory_bytes=self.memory_bytes, key_window_us=WINDOW_US)

    def _begin_term(self, log_count: int) -> None:
        names = tuple(NodeId(f"sequencer-{n}") for n in range(1, 4))
        ends = tuple(split_position(self.index.applied[log])[1] for log in range(self.log_count)) if self.term else ()
        self.term += 1
        self.log_count = log_count
        next_view = view(self.term, log_count=log_count, primaries=(names[0],) * log_count, previous_ends=ends)
        self.index.begin_term(next_view)
        self.index.begin_term(next_view)
        assert self.index.current_term == self.term

    def perform(self, step: Step) -> None:
        match step:
            case CutStep():
                self._cut(step)
            case TrimStep():
                self._trim(step)
            case TermStep(log_count):
                self._begin_term(log_count)
            case CheckpointStep(is_stored, is_restarted):
                self._checkpoint(is_stored, is_restarted)

    # steps

    def _cut(self, step: CutStep) -> None:
        log = step.log % self.log_count
        self.time_us += step.later_us
        batches: list[Batch] = []
        until: list[tuple[int, int]] = []
        ordered: list[tuple[int, list[tuple[str, Sequence[Group]]]]] = []
        for ordinal, drawn_batches in enumerate(step.shards):
            shard = make_shard(3, ordinal)
            place = (self.term, log, shard)
            chunks: list[tuple[str, Sequence[Group]]] = []
            for drawn_chunks in drawn_batches:
                encoded: list[tuple[bytes, int]] = []
                for drawn in drawn_chunks:
                    if drawn and place_book(drawn[0].book, self.log_count) == log:
                        groups = [self._group(each, drawn[0].book) for each in drawn]
                        chunks.append((drawn[0].book, groups))
                        count = sum(len(each.records) for each in groups)
                        encoded.append((encode_chunk(drawn[0].book, groups), count))
                if encoded:
                    batches.append(Batch(encode_batch(*place, self.lids.get(place, 0), encoded)))
                    self.lids[place] = batches[-1].header.until_lid
            if chunks:
                until.append((shard, self.lids[place]))
                ordered.append((shard, chunks))
        cut = Cut(self.time_us, tuple(until))
        previewed = self.index.pieces(log, cut)
        applied = self.index.apply(log, cut, batches)
        pieces, refusals, books = self.naive.order(self.term, log, self.time_us, ordered)
        assert previewed == pieces
        assert applied.refusals == refusals
        assert applied.books == books

    def _group(self, drawn: DrawnGroup, book: str) -> Group:
        when = []
        for condition in drawn.when:
            if condition.guess >= 3:
                count = self.naive.count(book, FENCE)
                when.append(Expect(FENCE, count=(count, 0, count + 1)[condition.guess - 3]))
                continue
            last = self.naive.last(book, condition.tag)
            when.append(Expect(condition.tag, (last, 0, last + 1)[condition.guess]))
        return group(*drawn.tags, when=when, key=drawn.key)

    def _trim(self, step: TrimStep) -> None:
        log = place_book(step.book, self.log_count)
        seqnums = [0, *sorted(record.seqnum for record in self.naive.ordered), MAX_SEQNUM - 1]
        at = int(step.place * (len(seqnums) - 2)) if step.place <= 1 else len(seqnums) - 1
        trim: Trims = Trim(step.book, step.tag, seqnums[at] + 1, step.everything, NodeId("engine-1"), 1)
        if step.forgets and step.tag is not None:
            trim = ForgetTags(step.book, (step.tag, *step.also), seqnums[at] + 1, NodeId("engine-1"), 1)
        applied = self.index.apply(log, trim)
        moved = self.naive.trim(trim, self.naive.next_seqnum(self.term, log))
        assert applied.books == ({step.book} if moved else set())
        assert applied.refusals == []

    def _checkpoint(self, is_stored: bool, is_restarted: bool) -> None:
        if self.unstored:
            # one at a time: what was written before is told first
            self.index.checkpoint_stored()
        self.disk.write(self.index.checkpoint())
        self.unstored = not is_stored
        if is_stored:
            self.index.checkpoint_stored()
        if is_restarted:
            self.unstored = False
            applied, term = dict(self.index.applied), self.index.current_term
            self.index = self._start()
            assert (self.index.applied, self.index.current_term) == (applied, term)

    # questions

    def compare(self) -> None:
        """Put every question to both."""
        index, naive = self.index, self.naive
        seqnums = sorted(record.seqnum for record in naive.ordered)
        places = [0, *seqnums[:: max(1, len(seqnums) // 5)], MAX_SEQNUM]
        for book in (*BOOKS, "nowhere"):
            found_book = index._book(book)
            assert (0 if found_book is None else found_book.count(FENCE)) == naive.count(book, FENCE)
            for tag in (None, *TAGS, "never"):
                assert index.floor(book, tag) == naive.floor(book, tag)
                assert index.last(book, tag) == naive.last(book, tag), (book, tag)
                for start in places:
                    for stop, limit in ((MAX_SEQNUM, 1), (MAX_SEQNUM, 1000), (places[len(places) // 2], 3)):
                        for backward in (False, True):
                            found = index.page(book, tag, start, stop, limit, backward=backward)
                            expected = naive.page(book, tag, start, stop, limit, backward=backward)
                            assert list(found) == expected, (
                                book,
                                tag,
                                start,
                                stop,
                                limit,
                                backward,
                                list(found),
                                expected,
                            )
            self._compare_book(book)
        for record in naive.ordered:
            if not naive.is_needed(record.seqnum):
                continue  # where it was may be forgotten
            assert index.time_of(record.seqnum) == record.time_us
            term, log, shard, lid, run = index.locate(record.seqnum)
            assert (term, log, shard, lid) == (record.term, record.log, record.shard, record.lid)
            followers = [r for r in naive.ordered if record.seqnum <= r.seqnum < record.seqnum + run]
            assert [(r.shard, r.lid) for r in followers] == [(shard, lid + i) for i in range(run)]
        infos = [
            (i.name, i.record_count, i.first_seqnum, i.last_seqnum, i.last_time_us, i.size_bytes)
            for i in index.books("", "", 100)
        ]
        assert infos == list(naive.books())
        assert [i.name for i in index.books("a", "a", 1)] == [row[0] for row in infos if row[0] == "ab"]
        audit(index)

    def _compare_book(self, book: str) -> None:
        index, naive = self.index, self.naive
        row = naive.row(book, None)
        for record in naive.kept:
            if record.book == book:
                assert index.has(book, record.seqnum) == naive.is_in_book(record)
                assert index.was_trimmed(book, record.seqnum) == (not naive.is_in_book(record))
            else:
                assert not index.has(book, record.seqnum)
        times = {r.seqnum: r.time_us for r in naive.kept if r.book == book and naive.is_needed(r.seqnum)}
        for time_us in {0, *(time_us + later for time_us in times.values() for later in (0, 1))}:
            first = index.first_seqnum_at(book, time_us)
            assert all((seqnum >= first) == (times[seqnum] >= time_us) for seqnum in times)
            before = index.retention_floor(book, older_than_us=time_us, keep_bytes=None)
            assert all((seqnum < before) == (times[seqnum] < time_us) for seqnum in row)
            assert before == naive.floor(book, None) or before > row[0]
            both = index.retention_floor(book, older_than_us=time_us, keep_bytes=25)
            assert both == max(before, index.retention_floor(book, older_than_us=None, keep_bytes=25))
        before = index.retention_floor(book, older_than_us=None, keep_bytes=25)
        assert sum(seqnum >= before for seqnum in row) == min(2, len(row)), (book, before, row, index._book(book).state)

    def tidy(self) -> None:
        """After some more checkpoints, nothing stands on the disk that no answer depends on."""
        for _ in range(4):
            self._checkpoint(is_stored=True, is_restarted=False)
        naive = self.naive
        for key, value in self.disk.rows.items():
            if key.startswith(TAG_FLOORS):
                book, tag, _ = read_tag_key(key)
                assert read_number(value) == naive.trimmed_below[book, tag]
                assert read_number(value) == naive.floor(book, tag)
            elif key.startswith(TAG_ROWS):
                book, tag, _ = read_tag_key(key)
                last = unpack_column("q", value)[-1]
                assert last >= naive.floor(book, tag)


def audit(index: Index) -> None:
    """The memory that the index says it uses is that of what it holds."""
    residence = index._residence
    used = 0
    for history in index._history._logs.values():
        used += history_module._HISTORY_BYTES
        used += sum(page.size_bytes + history_module._PAGE_BYTES for page in history._pages if page is not None)
    for name, book in index._books.items():
        assert isinstance(book, Book)
        assert book.name == name
        used += book_module._BOOK_BYTES
        for tag, row in book.rows.items():
            assert row.tag == tag
            used += rows_module._ROW_BYTES + sum(part.size_bytes for part in row.parts())
            places = [place for part in row.parts() for place in (part.start, part.until)]
            assert places == sorted(places)
    assert residence.used_bytes == used
