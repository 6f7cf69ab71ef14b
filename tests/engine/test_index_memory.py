"""What the index costs: memory for a record, writes for a checkpoint, reads for a start; and what it cleans up."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from boki.engine.index.book_row import row_seqnums
from boki.engine.index.index import Index
from boki.engine.index.layout import BOOK_ROWS, HISTORY_PAGES, SMALL_STATE_KEY, TAG_FLOORS, TAG_ROWS
from boki.errors import CorruptData, Overloaded, VersionTooNew
from boki.log.batch import Batch, encode_batch
from boki.log.chunk import Group, encode_chunk
from boki.log.ids import MAX_SEQNUM, NodeId, make_shard
from boki.log.metalog import Cut, ForgetTags, Trim
from boki.log.record import Expect
from boki.protocol.effects import Put
from tests.engine.index_history import small_parts
from tests.engine.test_rows import SpyDisk
from tests.members import view

SHARD = make_shard(7, 0)
AMPLE = 1 << 40
WINDOW_US = 1_000


class Feed:
    """An index with its disk, and single-record cuts for it, 10 µs apart."""

    def __init__(self, memory_bytes: int = AMPLE) -> None:
        self.disk = SpyDisk()
        self.index = Index(self.disk, memory_bytes=memory_bytes, key_window_us=WINDOW_US)
        self.index.begin_term(view())
        self.lid = 0
        self.time_us = 1_000_000

    def append(self, *tags: str, book: str = "book", key: str | None = None, when: tuple[Expect, ...] = ()) -> None:
        chunk = encode_chunk(book, [Group([(b"0123456789", tags)], when, key)])
        batch = Batch(encode_batch(1, 0, SHARD, self.lid, [(chunk, 1)]))
        self.lid += 1
        self.time_us += 10
        self.index.apply(0, Cut(self.time_us, ((SHARD, self.lid),)), [batch])

    def append_many(self, records: list[tuple[bytes, list[str]]]) -> None:
        chunk = encode_chunk("book", [Group(records)])
        batch = Batch(encode_batch(1, 0, SHARD, self.lid, [(chunk, len(records))]))
        self.lid += len(records)
        self.time_us += 10
        self.index.apply(0, Cut(self.time_us, ((SHARD, self.lid),)), [batch])

    def trim(self, before: int = MAX_SEQNUM, tag: str | None = None, *, everything: bool = False) -> None:
        self.index.apply(0, Trim("book", tag, before, everything, NodeId("engine-1"), 1))

    def checkpoint(self) -> list[Put]:
        writes = self.index.checkpoint()
        self.disk.write(writes)
        self.index.checkpoint_stored()
        return [write for write in writes if isinstance(write, Put)]

    def keys(self, *kinds: bytes) -> list[bytes]:
        return [key for key in self.disk.rows if key.startswith(kinds)]


def test_a_record_takes_at_most_64_bytes_of_memory() -> None:
    """With two tags that 100 records share, ordered by a cut of its own: rows, tables and all (issue 1 of 5)."""
    feed = Feed()
    gc.collect()
    tracemalloc.start()
    count = 6_000
    for number in range(count):
        feed.append(f"user:{number // 100}", f"item:{number % 60}")
    gc.collect()
    held_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held_bytes / count <= 64
    assert feed.index.memory_bytes_used == pytest.approx(held_bytes, rel=0.25)


def test_memory_stays_near_its_budget() -> None:
    """However much is appended and read, what is stored leaves memory when the budget is used up."""
    feed = Feed(memory_bytes=300_000)
    for number in range(30_000):
        feed.append(f"user:{number}", "all")
        if feed.index.dirty_bytes > 100_000:
            feed.checkpoint()
        assert feed.index.memory_bytes_used < 600_000
    for number in range(0, 30_000, 10):
        assert len(feed.index.page("book", f"user:{number}", 0, MAX_SEQNUM, 10)) == 1
        assert feed.index.memory_bytes_used < 600_000
    assert len(feed.index.page("book", "all", 0, MAX_SEQNUM, 100_000)) == 30_000


def test_large_appends_keep_the_budget_too() -> None:
    """Records of 16 tags of their own, 100 at a time: the hand keeps up, and continues at rest."""
    feed = Feed(memory_bytes=1_000_000)
    for number in range(30):
        tags = [[f"{number}:{record}:{tag}".ljust(255) for tag in range(16)] for record in range(100)]
        feed.append_many([(b"x", record_tags) for record_tags in tags])
        feed.checkpoint()
        feed.index.rest()
        assert feed.index.memory_bytes_used < 3_000_000
    while (before := feed.index.memory_bytes_used) > 1_000_000:
        feed.index.rest()
        assert feed.index.memory_bytes_used < before
    assert len(feed.index.page("book", "7:42:3".ljust(255), 0, MAX_SEQNUM, 10)) == 1


def test_far_beyond_the_budget_no_more_is_taken_until_memory_was_given_back() -> None:
    """What is not stored yet cannot be evicted, so appends are refused for a while, for certain and by name."""
    feed = Feed(memory_bytes=100_000)
    feed.index.check_room()
    feed.index._residence.used_bytes += 70 << 20  # as if so much had come since the last checkpoint began
    with pytest.raises(Overloaded, match=r"the index holds \d+ bytes, far more than index_memory_bytes \(100000\)"):
        feed.index.check_room()
    feed.index._residence.used_bytes -= 70 << 20
    feed.index.check_room()


def test_a_start_reads_little_and_a_checkpoint_writes_what_is_new() -> None:
    """However long the history is: a few reads to start, a few writes for a few records (a million cuts included)."""
    feed = Feed()
    for _ in range(20_000):
        feed.append("a", "b")
    feed.checkpoint()
    assert len(feed.keys(HISTORY_PAGES)) >= 9
    feed.append("a", "b")
    assert sum(len(write.value) for write in feed.checkpoint()) < 60_000
    feed.disk.reads = 0
    index = Index(feed.disk, memory_bytes=AMPLE, key_window_us=WINDOW_US)
    assert feed.disk.reads == 2
    assert index.memory_bytes_used < 20_000
    last = index.page("book", "a", 0, MAX_SEQNUM, 1, backward=True)[0]
    assert index.locate(last)[2:] == (SHARD, 20_000, 1)
    assert feed.disk.reads < 10


def test_an_append_to_a_cold_index_reads_only_what_its_conditions_need() -> None:
    """Appending to rows that are not in memory reads nothing of them; a condition reads the end of its row."""
    feed = Feed()
    for number in range(2_000):
        feed.append("a", f"only:{number}")
    feed.checkpoint()
    feed.index = Index(feed.disk, memory_bytes=AMPLE, key_window_us=WINDOW_US)
    feed.append("warm", book="other")
    feed.disk.reads = 0
    feed.append("a", "only:5", "only:6")
    assert feed.disk.reads == 1, "what is known of the book as a whole"
    last = feed.index.last("book", "a")
    feed.append("a", when=(Expect("a", last), Expect("only:9", 1)))
    assert feed.index.last("book", "a") == last
    assert feed.disk.reads < 8


def test_keys_that_are_out_of_date_leave_the_disk() -> None:
    """A key is remembered for its window, and what it takes is given back some checkpoints later."""
    feed = Feed(memory_bytes=0)
    for number in range(2_000):
        feed.append(key=f"key:{number}")
        if number % 50 == 0:
            feed.checkpoint()
    for _ in range(10):
        feed.checkpoint()
    assert len(feed.keys(TAG_ROWS)) <= WINDOW_US // 10 + 1
    feed.append("again", key="key:1999")
    feed.append("again", key="key:5")
    assert len(feed.index.page("book", "again", 0, MAX_SEQNUM, 10)) == 1


def test_a_trimmed_book_leaves_the_disk() -> None:
    """Rows and floors of tags go some checkpoints after the book's floor has passed them."""
    feed = Feed(memory_bytes=0)
    for number in range(3_000):
        feed.append(f"user:{number}")
        if number % 100 == 0:
            feed.trim(tag=f"user:{number}")
    feed.checkpoint()
    feed.trim()
    feed.append("user:1")
    for _ in range(10):
        feed.checkpoint()
    assert len(feed.keys(TAG_ROWS)) == 1
    assert feed.keys(TAG_FLOORS) == []
    assert len(feed.keys(BOOK_ROWS)) == 1


def test_a_deleted_book_leaves_only_that_it_was_there() -> None:
    """Its rows go with the next checkpoint, system tags and keys too; old seqnums are reported as trimmed forever."""
    feed = Feed()
    feed.append("a", "!fence", key="k")
    first = feed.index.last("book", None)
    feed.checkpoint()
    feed.append("a", "!fence")
    feed.trim(everything=True)
    feed.checkpoint()
    assert feed.keys(TAG_ROWS, TAG_FLOORS, BOOK_ROWS) == []
    assert feed.index.books("", "", 10) == []
    assert feed.index.was_trimmed("book", first)
    assert feed.index.last("book", "!fence") == 0
    feed.append("a", key="k")
    assert [info.record_count for info in feed.index.books("", "", 10)] == [1]


def test_what_trims_of_tags_have_emptied_takes_no_room_on_the_disk() -> None:
    """As of short workflows: however many come and go, the row of their book has a part for what is left and one more.
    Still each of their seqnums is told as trimmed, also after a start."""
    feed = Feed()
    with small_parts():
        seqnums = []
        for number in range(200):
            feed.append(f"flow:{number}")
            seqnums.append(feed.index.last("book", None))
            if number >= 10:
                feed.trim(tag=f"flow:{number - 10}")
            if number % 7 == 0:
                feed.checkpoint()
                assert len(feed.keys(BOOK_ROWS)) <= 5
        feed.checkpoint()
        started = Index(feed.disk, memory_bytes=AMPLE, key_window_us=WINDOW_US)
        for index in (feed.index, started):
            assert [index.was_trimmed("book", seqnum) for seqnum in seqnums] == [True] * 190 + [False] * 10
            assert list(index.page("book", None, 0, MAX_SEQNUM, 1_000)) == seqnums[190:]


def test_a_newer_checkpoint_is_refused_by_name() -> None:
    """Rather than read by guess."""
    feed = Feed()
    feed.append("a")
    feed.checkpoint()
    stored = feed.disk.rows[SMALL_STATE_KEY]
    feed.disk.write([Put(SMALL_STATE_KEY, stored[:1] + b"\x02" + stored[2:])])
    with pytest.raises(VersionTooNew, match="version 2"):
        Index(feed.disk, memory_bytes=AMPLE, key_window_us=WINDOW_US)


def test_a_damaged_batch_changes_nothing() -> None:
    """It is found before anything of its cut is applied, so that the cut can be applied with a good copy."""
    feed = Feed()
    feed.append("a")
    good = encode_batch(1, 0, SHARD, 1, [(encode_chunk("book", [Group([(b"x", ["a"])])]), 1)])
    cut = Cut(feed.time_us + 1, ((SHARD, 2),))
    with pytest.raises(CorruptData):
        feed.index.apply(0, cut, [Batch(good[:-20] + bytes([good[-20] ^ 1]) + good[-19:])])
    feed.index.apply(0, cut, [Batch(good)])
    assert len(feed.index.page("book", "a", 0, MAX_SEQNUM, 10)) == 2


def test_entries_out_of_order_are_a_bug_of_the_caller() -> None:
    """Batches of another place, cuts that go back, terms before their time: asserted, because answers would diverge."""
    feed = Feed()
    feed.append("a")
    batch = Batch(encode_batch(1, 0, SHARD, 2, [(encode_chunk("book", [Group([(b"x", ["a"])])]), 1)]))
    with pytest.raises(AssertionError, match="order of their seqnums"):
        Feed().index.apply(0, Cut(5, ((SHARD, 1),)), [batch])
    with pytest.raises(AssertionError, match="forward"):
        Feed().index.apply(0, Cut(5, ((SHARD, 0),)))
    with pytest.raises(AssertionError, match="to its end"):
        feed.index.begin_term(view(2, previous_ends=(5,)))
    with pytest.raises(AssertionError, match="follow one another"):
        feed.index.begin_term(view(3, previous_ends=(1,)))
    with pytest.raises(AssertionError, match="has no log 1"):
        feed.index.apply(1, Cut(5, ()))


@pytest.mark.parametrize("how", ["tag", "book", "key"])
def test_rows_that_are_over_leave_memory_within_the_budget(how: str) -> None:
    """Tags that are used once and trimmed, rows below a book's floor, and keys that have aged: what grows is the order
    history, by less than a tenth of what a row takes.
    """
    feed = Feed()
    held = []
    for turn in range(6):
        for number in range(turn * 200, (turn + 1) * 200):
            tag = f"!run:{number}" if how == "tag" else f"call:{number}"
            feed.append(tag, "all", key=str(number) if how == "key" else None)
            if how == "tag":
                feed.trim(tag=tag)
        if how != "tag":
            feed.trim()
        feed.trim(tag="all")
        feed.checkpoint()
        feed.append("all")  # time passes for keys
        feed.checkpoint()
        for _ in range(5):
            feed.index.rest()
        held.append(feed.index.memory_bytes_used)
    assert (held[-1] - held[1]) / 800 < 40
    assert feed.index.last("book", "!run:3") == 0


def test_a_row_that_has_left_memory_is_what_it_was() -> None:
    """Its count and its floor are read from the disk, and it takes records again."""
    feed = Feed()
    feed.append("!run")
    feed.append("!run")
    feed.trim(tag="!run")
    before = feed.index.floor("book", "!run")
    feed.checkpoint()
    held = feed.index.memory_bytes_used
    feed.index.rest()
    assert feed.index.memory_bytes_used < held
    feed.append("!run", when=(Expect("!run", count=1),))
    assert feed.index.last("book", "!run") == 0
    feed.append("!run", when=(Expect("!run", count=2),))
    assert feed.index.last("book", "!run") > before == feed.index.floor("book", "!run")


def test_rows_with_records_stay_in_memory_within_the_budget() -> None:
    """They are asked for again, and there is room: nothing is read from the disk for them."""
    feed = Feed()
    for number in range(300):
        feed.append(f"user:{number}")
    feed.checkpoint()
    held = feed.index.memory_bytes_used
    for _ in range(3):
        feed.index.rest()
    assert feed.index.memory_bytes_used == held


def test_rows_of_few_records_take_little_once_they_are_stored() -> None:
    """As of calls and workflows: each has a tag of its own. The index knows about how much they take."""
    feed = Feed()
    feed.append("warm")
    gc.collect()
    tracemalloc.start()
    count = 5_000
    for number in range(count):
        feed.append(f"id:{number:032x}")
        feed.append(f"id:{number:032x}")
    writes = feed.index.checkpoint()
    feed.index.checkpoint_stored()  # so that what the disk of this test holds is not counted
    del writes
    gc.collect()
    held_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held_bytes / count < 445
    assert feed.index.memory_bytes_used == pytest.approx(held_bytes, rel=0.3)
    assert len(feed.index.page("book", f"id:{7:032x}", 0, MAX_SEQNUM, 10)) == 2


def test_rows_that_were_looked_at_are_packed_again() -> None:
    """Where the hand comes by, within the budget; a row that is asked for all the time costs it no more turns."""
    feed = Feed()
    for number in range(300):
        feed.append(f"user:{number}")
    feed.checkpoint()
    held = feed.index.memory_bytes_used
    for number in range(300):
        feed.append("other")
        assert len(feed.index.page("book", f"user:{number}", 0, MAX_SEQNUM, 10)) == 1
    feed.checkpoint()
    assert feed.index.memory_bytes_used > held + 60_000
    for _ in range(5):
        feed.index.rest()
    assert feed.index.memory_bytes_used < held + 20_000
    residence = feed.index._residence
    assert residence._owed == 0


def test_bursts_that_are_trimmed_before_the_next_ones_leave_no_parts() -> None:
    """Also where all records of a part go while it is the newest: it is merged when it ends."""
    feed = Feed()
    with small_parts():
        for burst in range(20):
            for number in range(10):
                feed.append(f"{burst}.{number}")
            feed.checkpoint()
            for number in range(10):
                feed.trim(tag=f"{burst}.{number}")
            feed.checkpoint()
    assert len(feed.keys(BOOK_ROWS)) <= 2


def test_what_a_trim_of_the_book_has_taken_does_not_come_back_to_the_disk() -> None:
    """A part that is emptied above the floor is merged into none that lies below it."""
    feed = Feed()
    with small_parts():
        seqnums = []
        for number in range(40):
            feed.append(f"{number}")
            seqnums.append(feed.index.last("book", None))
        feed.checkpoint()
        feed.index = Index(feed.disk, memory_bytes=AMPLE, key_window_us=WINDOW_US)
        feed.trim(before=seqnums[8])
        for number in range(8, 20):
            feed.trim(tag=f"{number}")
        feed.checkpoint()
        kept = [one for key in feed.keys(BOOK_ROWS) for one in row_seqnums(key, feed.disk.rows[key])]
        assert kept == seqnums[20:]


def test_a_late_trim_of_a_forgotten_tag_brings_nothing_back() -> None:
    """What a higher floor hid stays hidden until the disk has forgotten it: else records lose one tag twice."""
    feed = Feed()
    seqnums = []
    for _ in range(6):
        feed.append("once", "other")
        seqnums.append(feed.index.last("book", None))
    feed.checkpoint()
    feed.index = Index(feed.disk, memory_bytes=AMPLE, key_window_us=WINDOW_US)
    for before in (seqnums[5] + 1, seqnums[1]):
        feed.trim(tag="once", before=before)
        feed.index.apply(0, ForgetTags("book", ("once",), before, NodeId("engine-1"), 1))
    row = feed.index._books["book"].rows["once"]
    row.older, row._newest = (), None  # as the residence may drop what the disk has
    feed.trim(tag="once", before=seqnums[5] + 1)
    assert list(feed.index.page("book", "other", 0, MAX_SEQNUM, 10)) == seqnums
    assert list(feed.index.page("book", None, 0, MAX_SEQNUM, 10)) == seqnums
