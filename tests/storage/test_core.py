"""The storage node: what it reports, when; what it answers; and what it drops."""

from __future__ import annotations

import pytest

from boki.log.batch import HEADER_BYTES, Batch
from boki.log.ids import MAX_SEQNUM, make_seqnum
from boki.log.metalog import Cut, MetalogEntry, OpenShard, Trim
from boki.protocol.effects import DiskRoom
from boki.protocol.messages import (
    BatchesFetched,
    FetchBatches,
    Holding,
    IndexSaved,
    InstallView,
    Metalog,
    ShardProgress,
    StoreBatch,
)
from boki.storage.core import StorageCore
from boki.storage.shards import batch_key
from tests.members import ENGINE, SHARD, batch, view
from tests.world import World

NODE = "storage-1"
REPLICAS = view().storage


def make(world: World, *, incarnation: int = 1, node: str = NODE) -> StorageCore:
    core = StorageCore(node, incarnation, world.disk(node), is_alone=True)  # type: ignore[arg-type]
    world.add(node, core)
    world.tell(node, InstallView((view(),)))
    world.run()
    return core


def publish(world: World, first_index: int, *entries: MetalogEntry, term: int = 1) -> None:
    for node in list(world.cores):
        world.tell(node, Metalog(term, 0, first_index, entries, first_index + len(entries)), "sequencer-1")
    world.run()


def reports(world: World) -> list[ShardProgress]:
    """What the primary was told."""
    return [message for _, to, message in world.sent if to == "sequencer-1" and isinstance(message, ShardProgress)]


def fetch(world: World, first_lid: int, until_lid: int, node: str = NODE) -> BatchesFetched:
    world.sent.clear()
    world.tell(node, FetchBatches(1, 1, 0, SHARD, first_lid, until_lid, 1 << 20), "engine-1")
    world.run()
    (answer,) = world.messages(BatchesFetched)
    return answer


def test_a_report_leaves_only_after_the_sync() -> None:
    """Nothing is reported as stored while a power cut could still take it."""
    world = World()
    make(world)
    world.holds_syncs.add(NODE)
    world.tell(NODE, StoreBatch(batch(0, b"a", b"b")))
    world.run()
    assert reports(world) == []
    world.sync(NODE)
    assert [progress.stored_until for progress in reports(world)] == [2]


def test_a_crash_before_the_sync_forgets_the_batch_and_after_it_keeps_it() -> None:
    """What is reported after a restart is what is on the disk (hazards H24, H25)."""
    world = World()
    make(world)
    world.tell(NODE, StoreBatch(batch(0, b"kept")))
    world.run()
    world.holds_syncs.add(NODE)
    world.tell(NODE, StoreBatch(batch(1, b"lost")))
    world.run()
    world.crash(NODE)
    world.holds_syncs.clear()
    world.sent.clear()
    make(world)
    world.tick(5)
    assert {progress.stored_until for progress in reports(world)} == {1}


def test_reports_are_contiguous_whatever_the_order_of_arrival() -> None:
    """A batch beyond a gap counts only when the gap is closed; one that comes twice does no harm."""
    world = World()
    make(world)
    for first, data in [(2, (b"c",)), (0, (b"a",)), (2, (b"c",)), (1, (b"b",))]:
        world.tell(NODE, StoreBatch(batch(first, *data)))
        world.run()
    assert [progress.stored_until for progress in reports(world)] == [0, 1, 1, 3]


def test_reports_are_repeated_until_a_cut_covers_them() -> None:
    """A lost report costs time, never progress."""
    world = World()
    make(world)
    publish(world, 0, OpenShard(SHARD, ENGINE, REPLICAS))
    world.tell(NODE, StoreBatch(batch(0, b"a")))
    world.run()
    world.sent.clear()
    world.tick(10)
    assert len(reports(world)) >= 2
    publish(world, 1, Cut(5, ((SHARD, 1),)))
    world.sent.clear()
    world.tick(10)
    assert reports(world) == []


def test_a_full_disk_refuses_batches_and_says_so_and_takes_them_again_when_there_is_room() -> None:
    """ENOSPC is answered before it happens: reads continue, nothing is half written (hazard H20)."""
    world = World()
    make(world)
    publish(world, 0, OpenShard(SHARD, ENGINE, REPLICAS))
    world.tell(NODE, StoreBatch(batch(0, b"a")))
    world.run()
    for room, first, stored in [
        (DiskRoom(False), 1, 2),  # what is on its way is taken, so that nobody is left in doubt
        (DiskRoom(False, may_store=False), 2, 2),
        (DiskRoom(True), 2, 3),
    ]:
        world.tell(NODE, room)
        world.tell(NODE, StoreBatch(batch(first, b"b")))
        world.run()
        last = reports(world)[-1]
        assert (last.stored_until, last.has_room) == (stored, room.has_room)
        assert fetch(world, 0, 1).holding is Holding.HAVE


def test_a_fetch_gets_the_bytes_that_were_stored() -> None:
    """Disk bytes are wire bytes, found by any local id inside a batch."""
    world = World()
    make(world)
    batches = [batch(0, b"a", b"b"), batch(2, b"c"), batch(3, b"d")]
    for data in batches:
        world.tell(NODE, StoreBatch(data))
    world.run()
    assert fetch(world, 1, 4).batches == tuple(batches)
    assert fetch(world, 2, 3).batches == (batches[1],)
    assert fetch(world, 9, 10).holding is Holding.UNKNOWN


def test_a_corrupt_batch_is_never_given_out_and_is_named() -> None:
    """A flipped byte anywhere is an error that says which batch, never data (hazard H21)."""
    world = World()
    make(world)
    good = batch(0, b"precious")
    world.tell(NODE, StoreBatch(good))
    world.run()
    for position in range(0, len(good), 7):
        rotten = bytearray(good)
        rotten[position] ^= 0x10
        world.disk(NODE).rows[batch_key((1, 0, SHARD), 0)] = bytes(rotten)
        answer = fetch(world, 0, 1)
        assert answer.batches == ()
        assert answer.holding is Holding.UNKNOWN
        assert f"batch 0 of shard {SHARD}" in answer.error


def test_a_node_says_of_every_open_shard_how_far_it_has_it_even_if_that_is_nothing() -> None:
    """Or what a disk that is gone once said would count on, and a record would be on one disk (simulator, seed 243)."""
    world = World()
    make(world)
    publish(world, 0, OpenShard(SHARD, ENGINE, REPLICAS))
    assert [(report.stored_until, report.incarnation) for report in reports(world)] == [(0, 1)]


def test_a_node_starts_whatever_bit_of_a_header_has_flipped() -> None:
    """A batch that cannot be read is not here, even if it looks like one of a newer version (hazard H21, seed 42)."""
    world = World()
    make(world)
    good = batch(0, b"precious")
    world.tell(NODE, StoreBatch(good))
    world.run()
    for bit in range(8 * HEADER_BYTES):
        rotten = bytearray(good)
        rotten[bit // 8] ^= 1 << bit % 8
        world.disk(NODE).rows[batch_key((1, 0, SHARD), 0)] = bytes(rotten)
        world.crash(NODE)
        make(world)


def test_a_replica_that_is_behind_a_cut_fetches_from_its_peers() -> None:
    """What is ordered and not here comes from the other replicas, without the engine."""
    world = World()
    for node in REPLICAS:
        make(world, node=node)
    publish(world, 0, OpenShard(SHARD, ENGINE, REPLICAS))
    for node in REPLICAS[1:]:
        world.tell(node, StoreBatch(batch(0, b"a", b"b")))
    world.run()
    publish(world, 1, Cut(5, ((SHARD, 2),)))
    world.tick(10)
    assert fetch(world, 0, 2).holding is Holding.HAVE


def test_what_an_ended_term_never_ordered_is_dropped_and_refused() -> None:
    """After the end of its term a batch that no cut covers never existed (design section 4, step 4)."""
    world = World()
    make(world)
    publish(world, 0, OpenShard(SHARD, ENGINE, REPLICAS), Cut(5, ((SHARD, 1),)))
    for first, data in [(0, b"ordered"), (1, b"unordered")]:
        world.tell(NODE, StoreBatch(batch(first, data)))
    world.run()
    world.tell(NODE, InstallView((view(2, previous_ends=(2,)),)))
    world.run()
    assert fetch(world, 0, 1).holding is Holding.HAVE
    assert fetch(world, 1, 2).holding is Holding.NEVER
    world.tell(NODE, StoreBatch(batch(1, b"unordered")))
    world.run()
    assert fetch(world, 1, 2).holding is Holding.NEVER


@pytest.mark.parametrize("restarts", [False, True])
def test_trimmed_space_is_freed_and_answers_freed(restarts: bool) -> None:
    """Whole batches go, mostly free ones are rewritten, and a fetch says that it was there (hazards H22, H26)."""
    world = World()
    make(world)
    publish(world, 0, OpenShard(SHARD, ENGINE, REPLICAS))
    world.tell(NODE, StoreBatch(batch(0, b"a" * 1000, b"b" * 1000)))
    world.tell(NODE, StoreBatch(batch(2, b"c" * 1000, b"d" * 1000, b"e")))
    world.run()
    entries = (
        OpenShard(SHARD, ENGINE, REPLICAS),
        Cut(5, ((SHARD, 5),)),
        Trim("book", None, make_seqnum(1, 0, 4), False, ENGINE, 1),
    )
    publish(world, 1, *entries[1:])
    world.tick(100)
    unsaved = Batch(fetch(world, 0, 1).batches[0]).chunks[0]
    assert unsaved.is_freed(0), "the payload is gone; the columns stay until no index needs them any more"
    world.tell(NODE, IndexSaved(1, {0: make_seqnum(1, 0, 5)}), "engine-1")
    world.tick(100)
    if restarts:
        world.crash(NODE)
        make(world)
        assert fetch(world, 0, 1).holding is Holding.UNKNOWN, "it has not followed the metalog that far again"
        publish(world, 0, *entries)
    assert fetch(world, 0, 1).holding is Holding.FREED
    (rest,) = fetch(world, 2, 5).batches
    chunk = Batch(rest).chunks[0]
    assert [chunk.payload(i) for i in range(3)] == [b"", b"", b"e"]
    assert chunk.is_freed(0)
    assert not chunk.is_freed(2)


def test_a_tags_floor_is_forgotten_when_nothing_is_left_below_it() -> None:
    """A million trimmed tags must not be remembered forever; one that still hides a record must."""
    world = World()
    core = make(world)
    publish(world, 0, OpenShard(SHARD, ENGINE, REPLICAS))
    world.tell(NODE, StoreBatch(batch(0, b"a", tags=("done",))))
    world.tell(NODE, StoreBatch(batch(1, b"b", tags=("half", "other"))))
    world.run()
    publish(world, 1, Cut(5, ((SHARD, 2),)))
    publish(
        world,
        2,
        Trim("book", "done", MAX_SEQNUM, False, ENGINE, 1),
        Trim("book", "half", MAX_SEQNUM, False, ENGINE, 2),
    )
    world.tick(200)
    assert [row[1] for row in core.floors.rows()] == ["half"]
    assert fetch(world, 1, 2).holding is Holding.HAVE


def test_a_checkpoint_spares_the_metalog_before_it() -> None:
    """After a restart the node continues where its checkpoint was."""
    world = World()
    core = make(world)
    publish(world, 0, OpenShard(SHARD, ENGINE, REPLICAS))
    world.tell(NODE, StoreBatch(batch(0, b"a")))
    world.run()
    publish(world, 1, Cut(5, ((SHARD, 1),)))
    world.perform(NODE, [core.checkpoint()])  # type: ignore[arg-type]
    world.crash(NODE)
    again = make(world)
    assert again.follower.position(0) == core.follower.position(0)
    world.tell(NODE, StoreBatch(batch(1, b"b")))
    world.run()
    assert reports(world)[-1].stored_until == 2
