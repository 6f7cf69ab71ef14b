"""Numbers that no shard can have: refused before they are stored, and borne where an earlier version stored them."""

from __future__ import annotations

import pytest

from boki.errors import CorruptData
from boki.log.batch import encode_batch, read_header
from boki.log.chunk import Group, encode_chunk
from boki.log.ids import NodeId
from boki.protocol.effects import Load, Put, Send, Trace
from boki.protocol.messages import BatchesFetched, FetchBatches, Holding, InstallView, StoreBatch
from boki.storage.core import StorageCore
from boki.storage.shards import batch_key, find_shards
from tests.members import SHARD, batch, view
from tests.world import MemoryDisk

CHUNK = encode_chunk("book", [Group([(b"x", ("tag",))])])
ENGINE = NodeId("engine-1")


def made(disk: MemoryDisk) -> StorageCore:
    core = StorageCore(NodeId("storage-1"), 1, disk)
    list(core.receive(ENGINE, InstallView((view(),)), 0))
    return core


@pytest.mark.parametrize(
    ("term", "shard", "first_lid"),
    [(1, SHARD, (1 << 64) - 1), (1, SHARD, (1 << 63) - 1), (1, 1 << 63, 0), (1 << 20, SHARD, 0)],
)
def test_a_batch_with_impossible_numbers_is_refused(term: int, shard: int, first_lid: int) -> None:
    """Nothing of it reaches the disk; the log says whose it was not."""
    data = encode_batch(term, 0, shard, first_lid, [(CHUNK, 1)])
    with pytest.raises(CorruptData, match=r"there are no such numbers"):
        read_header(data)
    core = made(MemoryDisk())
    (trace,) = core.receive(ENGINE, StoreBatch(data), 1)
    assert isinstance(trace, Trace)
    assert not core.holdings.shards


def test_a_batch_of_a_log_that_the_term_does_not_have_is_refused() -> None:
    """Its reports would go to a primary that there is not."""
    core = made(MemoryDisk())
    (trace,) = core.receive(ENGINE, StoreBatch(encode_batch(1, 3, SHARD, 0, [(CHUNK, 1)])), 1)
    assert trace == Trace(30, "refused a batch of engine-1: term 1 has no log 3")


def test_a_disk_that_was_poisoned_before_starts() -> None:
    """The last possible key is no reason to look at it forever; what is in order beside it is there."""
    disk = MemoryDisk()
    key = (1, 0, SHARD)
    disk.write([Put(batch_key(key, 0), batch(0, b"a", b"b"))])
    disk.write([Put(batch_key(key, (1 << 64) - 1), encode_batch(1, 0, SHARD, (1 << 64) - 1, [(CHUNK, 1)]))])
    assert list(find_shards(disk, 0)) == [key]
    core = made(disk)
    assert core.holdings.shards[key].stored_until == 2
    list(core.tick(50_000))


@pytest.mark.parametrize("until_lid", [2, 1 << 62])
def test_a_fetch_of_no_bytes_is_answered(until_lid: int) -> None:
    """It was a question that the core put to itself forever."""
    disk = MemoryDisk()
    disk.write([Put(batch_key((1, 0, SHARD), 0), batch(0, b"a"))])
    core = made(disk)
    effects = list(core.receive(ENGINE, FetchBatches(1, 1, 0, SHARD, 1, until_lid, 0), 1))
    for _ in range(3):
        effects = [
            following
            for effect in effects
            for following in (core.receive(core.node, disk.load(effect), 1) if isinstance(effect, Load) else (effect,))
        ]
    (answer,) = effects
    assert isinstance(answer, Send)
    assert isinstance(answer.message, BatchesFetched)
    assert answer.message.holding is Holding.UNKNOWN
