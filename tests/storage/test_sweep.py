"""Sweeping: all that is free is freed, nothing else, and what has nothing to free is not read again."""

from __future__ import annotations

from collections import Counter, deque
from random import Random
from typing import Any

import pytest

from boki.log.batch import Batch, encode_batch
from boki.log.chunk import Group, encode_chunk
from boki.log.floors import Floors
from boki.log.ids import MAX_SEQNUM, NodeId, make_seqnum
from boki.log.metalog import Trim
from boki.protocol.effects import Load
from boki.protocol.messages import BatchesFetched, StoreBatch
from boki.storage import sweep as sweeps
from boki.storage.shards import ShardKey, batch_key
from boki.storage.sweep import STEP_BYTES, Sweep, SweepStep
from tests.members import ENGINE
from tests.storage.cluster import Cluster

NODE = "storage-1"


class Swept(Cluster):
    """One node, one shard; counts what its sweeps load. `books` in order of local id."""

    def __init__(self, nodes: int = 3) -> None:
        super().__init__(nodes=nodes)
        self.key: ShardKey = self.open(*self.names[:3])
        self.world.tick(30)
        self.lid = 0
        self.books: list[tuple[str, str]] = []
        self.loads: Counter[int] = Counter()
        self.read_bytes = 0
        plain = self.world.perform

        def perform(node: NodeId, effects: Any) -> None:
            for effect in effects:
                if node == NODE and isinstance(effect, Load) and isinstance(effect.token, SweepStep):
                    self.loads[effect.token.first_lid] += 1
                    rows = self.world.disk(node).load(effect).rows
                    self.read_bytes += sum(len(value) for _, value in rows)
                plain(node, (effect,))

        self.world.perform = perform  # type: ignore[method-assign]

    def fill(self, *records: tuple[str, str], size_bytes: int = 100) -> None:
        """One batch, a chunk for each (book, tag)."""
        chunks = [(encode_chunk(book, [Group([(bytes(size_bytes), (tag,))])]), 1) for book, tag in records]
        data = encode_batch(1, 0, self.key[2], self.lid, chunks)
        for node in self.names:
            self.world.tell(node, StoreBatch(data), ENGINE)
        self.lid += len(records)
        self.books += records
        self.batches[self.key].append(data)

    def trim(self, book: str, tag: str | None = None, before_lid: int | None = None) -> None:
        before = MAX_SEQNUM if before_lid is None else make_seqnum(1, 0, before_lid)
        self.primary.add(Trim(book, tag, before, False, ENGINE, 1))

    def save(self) -> None:
        """Every index has been saved past all that there is."""
        for node in self.names:
            self.core(node).saved.cover(99, {})
            self.core(node).sweep.look_again()

    def freed(self) -> set[int]:
        """Local ids whose payloads are gone."""
        found = set(range(self.lid))
        for _, value in self.world.disk(NODE).scan(batch_key(self.key, 0), b"c"):
            batch = Batch(value)
            lid = batch.header.first_lid
            for chunk in batch.chunks:
                found -= {lid + i for i in range(chunk.count) if not chunk.is_freed(i)}
                lid += chunk.count
        return found

    def settle_sweeps(self) -> None:
        for _ in range(30):
            self.world.tick(45)
            if self.core(NODE).sweep.is_idle:
                return
        raise AssertionError("the sweep does not come to an end")


@pytest.mark.parametrize("seed", range(20))
def test_sweeps_that_skip_free_as_much_as_one_that_looks_at_everything(seed: int) -> None:
    """Random books, tags, trims and saves: a sweep without notes finds nothing that the others have overlooked."""
    luck = Random(seed)
    cluster = Swept()
    floors = Floors()
    for _ in range(25):
        for _ in range(luck.randrange(8)):
            records = [(luck.choice("abcdef"), luck.choice("xyz")) for _ in range(luck.randrange(1, 5))]
            cluster.fill(*records, size_bytes=luck.choice([100, 100, 60_000]))
        cluster.world.tick(2)
        for _ in range(luck.randrange(3)):
            book, tag, lid = luck.choice("abcdef"), luck.choice([None, "x", "y", "z"]), luck.randrange(cluster.lid + 1)
            cluster.trim(book, tag, lid)
            floors.apply(Trim(book, tag, make_seqnum(1, 0, lid), False, ENGINE, 1), make_seqnum(1, 0, cluster.lid))
        if luck.random() < 0.3:
            cluster.save()
        cluster.world.tick(luck.randrange(60))
    cluster.settle_sweeps()
    may_be_freed = {
        lid
        for lid, (book, tag) in enumerate(cluster.books)
        if make_seqnum(1, 0, lid) < max(floors.of(book).get(None, 0), floors.of(book).get(tag, 0))
    }
    assert cluster.freed() <= may_be_freed
    if luck.random() < 0.5:
        cluster.save()
        cluster.settle_sweeps()
    freed = cluster.freed()
    left = [(book, tag, make_seqnum(1, 0, lid)) for lid, (book, tag) in enumerate(cluster.books) if lid not in freed]
    for row in cluster.core(NODE).floors.rows():
        stands_over = [b for b, tag, seqnum in left if b == row[0] and row[1] in (None, tag) and seqnum < row[2]]
        assert stands_over, f"nothing is left below {row}"
    rows = dict(cluster.world.disk(NODE).rows)
    core = cluster.core(NODE)
    core.sweep = Sweep(Floors(floors.rows()), core.holdings, core.saved.covers, core._on_damage)
    cluster.settle_sweeps()
    batches = {row: value for row, value in rows.items() if row.startswith(b"b")}
    assert {row: v for row, v in cluster.world.disk(NODE).rows.items() if row.startswith(b"b")} == batches


def test_a_trim_reads_only_the_stretches_that_hold_its_book() -> None:
    """A busy book's trims do not read a large quiet one over and over."""
    cluster = Swept()
    for book in ("quiet", "busy", "quiet"):
        for _ in range(120):
            cluster.fill((book, "tag"), size_bytes=60_000)
    cluster.world.tick(30)
    cluster.trim("busy", None, 130)
    cluster.settle_sweeps()
    first = cluster.read_bytes
    assert first > 130 * 60_000
    cluster.read_bytes = 0
    for until in range(140, 240, 20):
        cluster.trim("busy", None, until)
        cluster.settle_sweeps()
    assert cluster.freed() == set(range(120, 220))
    assert cluster.read_bytes < first
    cluster.save()
    cluster.settle_sweeps()
    cluster.loads.clear()
    cluster.trim("busy")
    cluster.settle_sweeps()
    assert cluster.freed() == set(range(120, 240))
    assert not [lid for lid in cluster.loads if lid < 90], "the quiet stretch before is known to have nothing to free"


@pytest.mark.parametrize("chained", [1, 2])
def test_a_trim_by_tag_costs_what_it_trims(chained: int) -> None:
    """One tag of a book continues, as that of a queue or of a sink does; what is left of the book is not read again.

    If half of each batch is free, its bytes stay, and the floor; if it is more, both go.
    """
    cluster = Swept()
    width = chained + 1
    for _ in range(200):
        cluster.fill(*[("book", "chain")] * chained, ("book", "kept"), size_bytes=30_000)
    cluster.save()
    cluster.world.tick(30)
    for until in range(20, 200, 10):
        cluster.trim("book", "chain", width * until)
        cluster.save()
        cluster.settle_sweeps()
    whole = 200 * width * 30_000
    assert cluster.read_bytes < 3 * whole, "the book is looked at a few times, not once for each trim"
    if chained == 1:
        assert cluster.freed() == set()
        assert cluster.core(NODE).floors.rows() == [("book", "chain", make_seqnum(1, 0, width * 190))]
    else:
        assert cluster.freed() == {lid for lid in range(width * 190) if lid % width != chained}
        assert cluster.core(NODE).floors.rows() == []


def test_shards_that_have_nothing_left_to_free_are_not_read() -> None:
    """Engines come and go and leave many shards: a sweep passes those by without a look at the disk."""
    cluster = Swept()
    for _ in range(30):
        cluster.fill(("book", "tag"))
        cluster.world.tick(3)
        cluster.close(cluster.key)
        cluster.key = cluster.open(*cluster.names)
        cluster.lid = 0
        cluster.world.tick(3)
    cluster.save()
    cluster.trim("book")
    cluster.settle_sweeps()
    assert cluster.count_on_disk(NODE, cluster.key) == 0
    cluster.loads.clear()
    cluster.fill(("book", "tag"))
    cluster.world.tick(10)
    cluster.trim("book")
    cluster.settle_sweeps()
    assert sum(cluster.loads.values()) <= 2


def test_a_sweep_takes_small_steps_while_appends_arrive() -> None:
    """Whoever appends does not wait for a sweep: one small step a tick."""
    cluster = Swept()
    for _ in range(100):
        cluster.fill(("book", "tag"), size_bytes=30_000)
    cluster.world.tick(30)
    cluster.trim("book", None, 100)
    for _ in range(60):
        cluster.fill(("other", "tag"))
        before = sum(cluster.loads.values()), cluster.read_bytes
        cluster.world.tick(1)
        assert sum(cluster.loads.values()) - before[0] <= 1
        assert cluster.read_bytes - before[1] <= STEP_BYTES // 2
    cluster.settle_sweeps()
    assert cluster.freed() == set(range(100))


def test_what_arrives_late_in_a_stretch_is_swept_too() -> None:
    """A batch that repair brings after a sweep has passed its place is not overlooked."""
    cluster = Swept()
    cluster.fill(("book", "tag"))
    cluster.world.tick(10)
    cluster.world.loses = lambda _sender, to, message: to == NODE and isinstance(message, BatchesFetched)
    late = len(cluster.batches[cluster.key])
    cluster.fill(("late", "tag"), ("late", "tag"))
    cluster.world.queue = deque(
        entry for entry in cluster.world.queue if entry[1] != NODE or not isinstance(entry[2], StoreBatch)
    )
    cluster.fill(("book", "tag"))
    cluster.world.tick(10)
    cluster.trim("book")
    cluster.settle_sweeps()
    assert cluster.core(NODE).holdings.shards[cluster.key].stored_until == late
    assert cluster.freed() == set(range(4)), "what is not there counts as freed here"
    cluster.world.loses = lambda _sender, _to, _message: False
    cluster.world.tick(60)
    assert cluster.freed() == {0, 3}
    cluster.trim("late")
    cluster.settle_sweeps()
    assert cluster.freed() == {0, 1, 2, 3}


def lacks_late(cluster: Swept, *, others_know_trims: bool = True) -> None:
    """NODE lacks the batch of local ids 1 and 2, of the book "late", and cannot fetch it; the others do not sweep."""
    cluster.fill(("book", "tag"))
    cluster.world.tick(10)
    cluster.world.loses = lambda _sender, to, message: to == NODE and isinstance(message, BatchesFetched)
    cluster.fill(("late", "tag"), ("late", "tag"))
    cluster.world.queue = deque(
        entry for entry in cluster.world.queue if entry[1] != NODE or not isinstance(entry[2], StoreBatch)
    )
    cluster.fill(("book", "tag"))
    cluster.world.tick(10)
    for node in cluster.names[1:]:
        core = cluster.core(node)
        core.sweep.tick = lambda *_args, **_options: []  # type: ignore[method-assign]
        if not others_know_trims:  # without floors nothing is free there
            core.answers._floors = Floors()


@pytest.mark.parametrize("others_know_trims", [False, True])
def test_what_is_lacking_while_its_trim_is_swept_is_freed_when_it_comes(others_know_trims: bool) -> None:
    """Its floor is kept although nothing is below it here: the replica that gives it may not know of the trim."""
    cluster = Swept()
    lacks_late(cluster, others_know_trims=others_know_trims)
    cluster.trim("late")
    cluster.settle_sweeps()
    cluster.world.tick(100)
    cluster.world.loses = lambda _sender, _to, _message: False
    cluster.world.tick(60)
    assert cluster.core(NODE).holdings.shards[cluster.key].is_whole
    assert cluster.freed() == ({1, 2} if others_know_trims else set())
    cluster.world.tick(700)
    assert cluster.freed() == {1, 2}
    assert cluster.core(NODE).floors.rows() == [], "it is retired then"


def test_books_with_floors_above_what_is_lacking_are_not_swept_all_the_time() -> None:
    """It may be lacking for long: they are looked at again each half minute."""
    cluster = Swept()
    lacks_late(cluster)
    cluster.trim("late")
    cluster.settle_sweeps()
    cluster.loads.clear()
    cluster.world.tick(2400)
    assert 1 <= cluster.loads.total() <= 16


def test_late_floors_of_all_sweeps_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is lacking may be lacking forever, while ever more books are trimmed."""
    monkeypatch.setattr(sweeps, "_LATE_FLOORS", 5)
    cluster = Swept()
    lacks_late(cluster)
    for number in range(20):
        cluster.trim(f"book-{number}")
        cluster.world.tick(45)
    cluster.settle_sweeps()
    assert len(cluster.core(NODE).floors.rows()) == 5


def test_floors_that_stand_take_no_place_of_those_that_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are kept anyway, and on a node with many partly trimmed books nothing else would be."""
    monkeypatch.setattr(sweeps, "_LATE_FLOORS", 5)
    cluster = Swept()
    lacks_late(cluster, others_know_trims=False)
    for number in range(6):
        cluster.fill(*[(f"kept-{number}", "tag")] * 3)
        cluster.world.tick(4)
        cluster.trim(f"kept-{number}", "tag", cluster.lid - 2)  # a third: too little to write the batch again
    cluster.settle_sweeps()
    assert len(cluster.core(NODE).floors.rows()) == 6
    cluster.trim("late")
    cluster.settle_sweeps()
    cluster.world.tick(100)
    cluster.world.loses = lambda _sender, _to, _message: False
    cluster.world.tick(760)
    assert {1, 2} <= cluster.freed()


def test_a_sweep_of_many_books_passes_stretches_of_many_by_at_once() -> None:
    """Such a stretch does not name its books; that does not mean to look at all that the sweep is about."""
    cluster = Swept()
    for _ in range(4):
        cluster.fill(*[(f"kept-{number}", "tag") for number in range(40)], size_bytes=60_000)
        cluster.world.tick(4)
    for number in range(200):
        cluster.trim(f"gone-{number}")
    cluster.trim("kept-0", before_lid=0)
    cluster.settle_sweeps()

    class Counting(dict[str, int]):
        looks = 0

        def __getitem__(self, book: str) -> int:
            Counting.looks += 1
            return super().__getitem__(book)

    sweep = cluster.core(NODE).sweep
    begin = sweep._begin

    def counted(now_us: int) -> None:
        begin(now_us)
        sweep._lows = Counting(sweep._lows)

    sweep._begin = counted  # type: ignore[method-assign]
    for number in range(200):
        cluster.trim(f"gone-{number}")
    cluster.settle_sweeps()
    assert Counting.looks < 200


@pytest.mark.parametrize("trims", [("book", "late"), ("late", "book")])
def test_what_is_not_written_yet_when_a_sweep_passes_is_swept_later(trims: tuple[str, str]) -> None:
    """Its place is not taken for seen, and no floor is retired that it needs."""
    cluster = Swept()
    cluster.fill(("book", "tag"))
    cluster.world.tick(10)
    cluster.world.holds_syncs.add(NodeId(NODE))
    cluster.fill(("late", "tag"))
    cluster.world.tick(10)
    cluster.trim(trims[0])
    cluster.world.tick(100)
    assert cluster.loads
    cluster.world.holds_syncs.clear()
    cluster.world.sync(NODE)
    cluster.world.run()
    cluster.trim(trims[1])
    cluster.settle_sweeps()
    assert cluster.freed() == {0, 1}


def test_the_next_sweep_of_any_book_ends_what_an_earlier_one_found_damaged() -> None:
    """The batch is whole again by then, and its own book may never be trimmed again: its floor is retired."""
    cluster = Swept()
    cluster.fill(("book", "tag"))
    cluster.fill(("other", "tag"))
    cluster.fill(("kept", "tag"))
    cluster.world.tick(10)
    row = batch_key(cluster.key, 0)
    cluster.world.disk(NODE).rows[row] = cluster.world.disk(NODE).rows[row][:-1]
    cluster.trim("book")
    cluster.settle_sweeps()
    cluster.trim("other")
    cluster.settle_sweeps()
    assert cluster.freed() == {0, 1}
    assert cluster.core(NODE).floors.rows() == []


def test_floors_below_what_is_not_written_yet_are_retired() -> None:
    """A disk that lags keeps those above alone."""
    cluster = Swept()
    cluster.fill(("book", "tag"))
    cluster.fill(("kept", "tag"))
    cluster.world.tick(10)
    cluster.world.holds_syncs.add(NodeId(NODE))
    cluster.fill(("late", "tag"))
    cluster.world.tick(10)
    cluster.trim("book", None, 1)
    cluster.trim("late")
    cluster.world.tick(100)
    assert [book for book, _, _ in cluster.core(NODE).floors.rows()] == ["late"]


def test_batches_that_wait_for_an_index_are_deleted_as_far_as_it_is_saved() -> None:
    """Each time that more has been saved, more goes, and nothing is forgotten in between."""
    cluster = Swept()
    for _ in range(12):
        cluster.fill(("book", "tag"))
    cluster.fill(("kept", "tag"))
    cluster.world.tick(10)
    cluster.trim("book")
    cluster.settle_sweeps()
    for saved in (4, 8, 8, 12):
        for node in cluster.names:
            cluster.core(node).saved.cover(1, {0: make_seqnum(1, 0, saved)})
            cluster.core(node).sweep.look_again()
        cluster.settle_sweeps()
        assert cluster.count_on_disk(NODE, cluster.key) == 13 - saved
