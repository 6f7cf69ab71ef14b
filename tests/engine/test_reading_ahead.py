"""Records that stand apart in their shards are asked for several at a time: nobody reads a cold log one by one."""

from __future__ import annotations

import msgspec
import pytest

from boki.engine.cache import RecordCache
from boki.log.ids import NodeId
from boki.log.operations import Get, Read
from boki.protocol.messages import BatchesFetched, FetchBatches
from tests.engine.cluster import CONFIG, Cluster

COUNT = 60
MIB = 1 << 20


def made(cache_bytes: int) -> Cluster:
    """A book that two engines have written in turns, so that no run is longer than one record; and cold caches."""
    cluster = Cluster(is_registered=True, engines=2, config=msgspec.structs.replace(CONFIG, cache_bytes=cache_bytes))
    cluster.until_ready()
    for number in range(COUNT):
        cluster.append(f"{number}", engine=f"engine-{1 + number % 2}")
    core = cluster.core_of("engine-1")
    core.cache = core.reads._cache = RecordCache(cache_bytes)
    return cluster


def asked_at_once(cluster: Cluster, operation: Read | Get) -> int:
    """How many batches are asked for before the first has come."""
    asked: list[FetchBatches] = []

    def loses(_sender: NodeId, _to: NodeId, message: object) -> bool:
        if isinstance(message, FetchBatches):
            asked.append(message)
        return isinstance(message, BatchesFetched)

    cluster.loses = loses
    cluster.submit(operation)
    cluster.loses = lambda *_: False
    assert len({(message.shard, message.first_lid) for message in asked}) == len(asked)
    return len(asked)


@pytest.mark.parametrize("backward", [False, True])
def test_a_page_asks_for_many_at_once(backward: bool) -> None:
    """As many as are bounded; and everything comes, in order."""
    cluster = made(256 * MIB)
    assert asked_at_once(cluster, Read("book", limit=1000, backward=backward)) == 17
    assert cluster.texts() == [f"{number}" for number in range(COUNT)]


def test_who_wants_one_record_gets_one() -> None:
    """Nothing is fetched that nobody has asked for."""
    cluster = made(256 * MIB)
    (seqnum, _), *_ = cluster.read()
    core = cluster.core_of("engine-1")
    core.cache = core.reads._cache = RecordCache(256 * MIB)
    assert asked_at_once(cluster, Get("book", seqnum)) == 1
    assert asked_at_once(cluster, Read("book", start=seqnum, limit=1)) == 0  # the same one, which is on its way


def test_a_small_cache_is_not_read_ahead_into() -> None:
    """What comes must not push out what is waited for."""
    cluster = made(MIB)
    assert asked_at_once(cluster, Read("book", limit=1000)) == 1
    assert cluster.texts() == [f"{number}" for number in range(COUNT)]


def test_what_was_asked_ahead_in_vain_is_forgotten() -> None:
    """When nobody waits any more, nothing is asked again; who comes later asks again."""
    cluster = made(256 * MIB)
    cluster.loses = lambda _sender, _to, message: isinstance(message, BatchesFetched)
    cluster.submit(Read("book", limit=1000), timeout_s=0.5)
    cluster.tick(200)
    assert not cluster.core_of("engine-1").reads._fetches
    cluster.loses = lambda *_: False
    assert cluster.texts() == [f"{number}" for number in range(COUNT)]


def test_a_damaged_record_ahead_harms_no_page_before_it() -> None:
    """The page ends in front of it; who asks for it is told."""
    cluster = made(256 * MIB)
    for node in ("storage-1", "storage-2", "storage-3"):
        rows = cluster.disk(node).rows
        key = max(key for key in rows if key.startswith(b"b"))
        rows[key] = rows[key][:-1] + bytes([rows[key][-1] ^ 1])
    page = cluster.do(Read("book", limit=1000))
    assert page.slabs
