"""Rows against a plain list: whatever is in memory, on the disk, or in between."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from boki.engine.index.layout import read_number, read_tag_key, row_prefix, tag_floor_key
from boki.engine.index.parts import END, RECORD_BYTES
from boki.engine.index.residence import Residence
from boki.engine.index.rows import Row, Shelf
from boki.log.ids import KEY_TAG_PREFIX
from tests.engine.index_history import small_parts
from tests.world import MemoryDisk

BOOK, TAG = "book", "tag"


class SpyDisk(MemoryDisk):
    """Counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def get(self, key: bytes) -> bytes | None:
        self.reads += 1
        return super().get(key)

    def scan(self, start: bytes, stop: bytes, *, backward: bool = False) -> list[tuple[bytes, bytes]]:
        self.reads += 1
        return list(super().scan(start, stop, backward=backward))


class RowWorld:
    """One row with its disk, and the list that it should equal."""

    def __init__(self, limit_bytes: int = 0) -> None:
        self.disk = SpyDisk()
        self.residence = Residence(self.disk, limit_bytes)
        self.shelf = Shelf(BOOK, self.residence)
        self.seqnums: list[int] = []
        self.floor = 0
        self.removed = 0

    @property
    def row(self) -> Row:
        return self.shelf.rows.get(TAG) or Row(self.shelf, TAG)

    def append(self, gaps: list[int]) -> None:
        for gap in gaps:
            self.seqnums.append((self.seqnums[-1] if self.seqnums else self.floor) + gap)
        new = self.seqnums[len(self.seqnums) - len(gaps) :]
        if len(new) == 1:
            self.row.append(new[0])
        else:
            self.row.extend(new)
        self.residence.used_bytes += RECORD_BYTES * len(new)

    def trim(self, floor: int) -> None:
        self.floor = max(self.floor, floor)
        kept = [seqnum for seqnum in self.seqnums if seqnum >= self.floor]
        self.removed += len(self.seqnums) - len(kept)
        self.seqnums = kept
        self.row.trim(self.floor, self.removed)

    def checkpoint(self) -> None:
        self.disk.write(self.residence.writes())
        self.residence.stored()

    def restart(self) -> None:
        self.residence = Residence(self.disk, 0)
        self.shelf = Shelf(BOOK, self.residence)

    def evict(self) -> None:
        self.residence.evict()


steps = st.one_of(
    st.tuples(st.just("append"), st.lists(st.integers(1, 3), min_size=1, max_size=9)),
    st.tuples(st.just("trim"), st.floats(0, 1.1)),
    st.tuples(st.just("checkpoint"), st.booleans()),
    st.tuples(st.just("evict"), st.none()),
    st.tuples(st.just("page"), st.tuples(st.floats(0, 1.1), st.floats(0, 1.1), st.integers(1, 20), st.booleans())),
    st.tuples(st.just("last"), st.none()),
    st.tuples(st.just("count"), st.none()),
)


@settings(max_examples=300)
@given(st.lists(steps, max_size=30))
def test_a_row_is_the_list_of_what_was_added_and_not_trimmed(drawn: list[tuple[str, object]]) -> None:
    """Pages forward and backward, the last one, and how many there have been, after any appends, trims, checkpoints,
    evictions and restarts.
    """
    with small_parts():
        world = RowWorld()
        for step, value in drawn:
            tail = (world.seqnums[-1] if world.seqnums else world.floor) + 1
            match step, value:
                case "append", list(gaps):
                    world.append(gaps)
                case "trim", float(place):
                    world.trim(min(int(place * tail), tail))
                case "checkpoint", bool(is_restarted):
                    world.checkpoint()
                    if is_restarted:
                        world.restart()
                case "page", (float(low), float(stop), int(limit), bool(backward)):
                    low_seqnum, stop_seqnum = max(int(low * tail), world.floor), int(stop * tail)
                    page = world.row.page(low_seqnum, stop_seqnum, limit, backward=backward)
                    expected = [seqnum for seqnum in world.seqnums if low_seqnum <= seqnum < stop_seqnum]
                    assert list(page) == (expected[-limit:] if backward else expected[:limit])
                case "last", None:
                    assert world.row.last(world.floor) == (world.seqnums[-1] if world.seqnums else 0)
                case "count", None:
                    assert world.row.count(0) == world.removed + len(world.seqnums)
                case _:
                    world.evict()
        assert world.row.count(0) == world.removed + len(world.seqnums)
        assert list(world.row.page(world.floor, END, 1000)) == world.seqnums
        assert world.row.floor == world.floor


def test_appending_to_a_row_that_is_not_in_memory_reads_nothing() -> None:
    """A row that is cold costs no more to append to than a new one."""
    world = RowWorld()
    world.append([1] * 700)
    world.checkpoint()
    world.restart()
    world.disk.reads = 0
    world.append([1])
    world.append([1] * 600)
    world.checkpoint()
    assert world.disk.reads == 0
    assert world.row.last(0) == 1301
    assert world.disk.reads == 0
    assert len(world.row.page(0, END, 10_000)) == 1301


def test_a_slow_row_does_not_rewrite_itself_with_each_checkpoint() -> None:
    """However long a row is, one more record writes less than two kilobytes."""
    world = RowWorld(limit_bytes=1 << 30)
    for _ in range(1_500):
        world.append([1])
        writes = world.residence.writes()
        world.disk.write(writes)
        world.residence.stored()
        assert sum(len(write.value) for write in writes if hasattr(write, "value")) < 2_000
    assert len(world.disk.rows) < 20
    world.restart()
    assert list(world.row.page(0, END, 10_000)) == world.seqnums


def test_a_checkpoint_writes_only_what_is_new() -> None:
    """Parts that have not changed since the last one are not written again."""
    world = RowWorld(limit_bytes=1 << 30)
    world.append([1] * 100_000)
    world.checkpoint()
    world.append([1])
    writes = world.residence.writes()
    assert len(writes) == 1
    world.residence.stored()
    assert world.residence.writes() == []


def test_what_is_not_stored_stays_in_memory() -> None:
    """Until the disk can be read as the checkpoint left it, rows are answered from memory."""
    world = RowWorld()
    world.append([1] * 5)
    writes = world.residence.writes()
    for _ in range(3):
        world.residence.evict()
    world.disk.reads = 0
    assert list(world.row.page(1, END, 10)) == [1, 2, 3, 4, 5]
    assert world.disk.reads == 0
    world.disk.write(writes)
    world.residence.stored()
    for _ in range(3):
        world.residence.evict()
    assert world.shelf.rows == {}
    assert world.residence.used_bytes == 0


def test_a_trimmed_row_leaves_nothing_but_its_floor() -> None:
    """The next checkpoint removes from the disk what a trim of the tag has taken away."""
    world = RowWorld()
    world.append([1] * 3_000)
    world.checkpoint()
    world.trim(2_000)
    world.checkpoint()
    prefix = row_prefix(BOOK, TAG)
    assert sum(len(value) for key, value in world.disk.rows.items() if key.startswith(prefix)) < 8 * 1_600
    world.trim(3_001)
    world.checkpoint()
    assert set(world.disk.rows) == {tag_floor_key(BOOK, TAG)}


def test_a_row_in_many_small_pieces_becomes_one_when_it_is_read_and_grows() -> None:
    """Blind appends leave small parts behind; whoever reads the row joins them, and the disk follows."""
    world = RowWorld()
    for _ in range(50):
        world.append([2])
        world.checkpoint()
        world.restart()
    assert len(world.disk.rows) == 50
    assert list(world.row.page(0, END, 100)) == world.seqnums
    world.append([1])
    world.checkpoint()
    assert len(world.disk.rows) == 1
    world.restart()
    assert list(world.row.page(0, END, 100)) == world.seqnums


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


@given(names, names, names, names, st.integers(0, END - 1))
def test_keys_of_different_rows_are_different(book: str, tag: str, other_book: str, other_tag: str, start: int) -> None:
    """Whatever characters names hold, no key of one row starts with the prefix of another, and a key tells its row."""
    key = row_prefix(book, tag) + start.to_bytes(8, "big")
    assert read_tag_key(key) == (book, tag, key[-8:])
    assert read_number(key) == start
    if (book, tag) != (other_book, other_tag):
        assert not key.startswith(row_prefix(other_book, other_tag))
    assert not key.startswith(row_prefix(book, None))
    assert read_tag_key(tag_floor_key(book, KEY_TAG_PREFIX + tag))[1] == KEY_TAG_PREFIX + tag
