"""A disk that falls behind: what a storage node has handed to it is bounded, and what it dropped comes later."""

from __future__ import annotations

from boki.log.batch import read_header
from boki.log.metalog import OpenShard
from boki.protocol.effects import Put
from boki.protocol.messages import InstallView, StoreBatch
from boki.storage.core import StorageCore
from tests.members import ENGINE, SHARD, batch, view
from tests.storage.cluster import Cluster
from tests.storage.test_core import NODE, REPLICAS, publish, reports
from tests.world import World

KIB = 1 << 10
LIMIT_BYTES = 256 * KIB
BATCH_BYTES = 32 * KIB
PAGES_BYTES = 4 * 128 * KIB
"""What had been asked for, of other replicas, before the budget was used up."""


def held_bytes(world: World, node: str) -> int:
    """What waits for the disk, in bytes."""
    writes = [write for store in world.unsynced[node] for write in store.writes]  # type: ignore[index]
    return sum(len(write.value) for write in writes if isinstance(write, Put))


def test_a_slow_replica_holds_no_more_than_its_budget_and_catches_up() -> None:
    """The other two order what it drops, so no engine slows down for it; then it fetches that (promise 5)."""
    cluster = Cluster(nodes=3, unwritten_bytes=LIMIT_BYTES)
    world, slow = cluster.world, cluster.names[2]
    key = cluster.open(*cluster.names)
    world.run()
    world.holds_syncs.add(slow)
    most = 0
    for _ in range(100):
        cluster.append(key, size_bytes=BATCH_BYTES)
        world.run()
        world.tick()
        most = max(most, held_bytes(world, slow))
    assert most <= LIMIT_BYTES + PAGES_BYTES
    assert cluster.primary.ends[key] == read_header(cluster.batches[key][-1]).until_lid
    assert cluster.core(slow).status()["intake"]["dropped_batches"] > 50
    world.sent.clear()
    world.tick(40)  # nothing spins: the disk is still stuck
    sent = len([None for sender, _, _ in world.sent if sender == slow])
    assert sent < 200, sent
    world.holds_syncs.discard(slow)
    world.sync(slow)
    world.run()
    world.tick(200)
    assert cluster.has_all(slow, key)
    assert cluster.core(slow).status()["intake"]["unwritten_bytes"] == 0


def test_what_one_node_drops_is_taken_when_it_is_sent_again() -> None:
    """Where it is the only replica, the engine's own buffer fills meanwhile. A batch that it has is reported again."""
    world = World()
    core = StorageCore(NODE, 1, world.disk(NODE), unwritten_bytes=LIMIT_BYTES)  # type: ignore[arg-type]
    world.add(NODE, core)
    world.tell(NODE, InstallView((view(),)))
    world.run()
    publish(world, 0, OpenShard(SHARD, ENGINE, REPLICAS))
    batches = [batch(lid, bytes(BATCH_BYTES)) for lid in range(20)]
    world.holds_syncs.add(NODE)
    for _ in range(3):
        for data in batches:
            world.tell(NODE, StoreBatch(data), ENGINE)
        world.run()
    kept = LIMIT_BYTES // BATCH_BYTES - 1  # a batch is a little larger than its payload
    assert held_bytes(world, NODE) < LIMIT_BYTES
    world.holds_syncs.clear()
    world.sync(NODE)
    world.run()
    assert reports(world)[-1].stored_until == kept
    for data in batches:
        world.tell(NODE, StoreBatch(data), ENGINE)
        world.run()
    assert reports(world)[-1].stored_until == len(batches)


def test_a_batch_larger_than_the_budget_is_taken_alone() -> None:
    """Or it could never be stored."""
    world = World()
    world.add(NODE, StorageCore(NODE, 1, world.disk(NODE), unwritten_bytes=1))  # type: ignore[arg-type]
    world.tell(NODE, InstallView((view(),)))
    world.tell(NODE, StoreBatch(batch(0, bytes(BATCH_BYTES))), ENGINE)
    world.run()
    world.tell(NODE, StoreBatch(batch(1, bytes(BATCH_BYTES))), ENGINE)
    world.run()
    assert [report.stored_until for report in reports(world)] == [1, 2]
