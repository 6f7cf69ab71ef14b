"""Batches that come from another node, moved here or repaired: what was trimmed of them, or will be, is freed."""

from __future__ import annotations

import pytest

from boki.log.batch import Batch, encode_batch
from boki.log.chunk import Group, encode_chunk
from boki.protocol.messages import StoreBatch
from boki.storage.shards import batch_key
from tests.members import ENGINE
from tests.storage.test_sweep import NODE, Swept


@pytest.mark.parametrize("size_bytes", [0, 100])
def test_a_partly_free_batch_that_is_moved_is_deleted_when_the_rest_is_free(size_bytes: int) -> None:
    """The floor of its free part has been retired long since where it comes to: the batch itself says what is free."""
    cluster = Swept(nodes=4)
    node = cluster.names[3]
    chunks = [(encode_chunk("small", [Group([(bytes(size_bytes), ("tag",))])]), 1)]
    chunks.append((encode_chunk("large", [Group([(bytes(9_000), ("tag",))])]), 1))
    data = encode_batch(1, 0, cluster.key[2], 0, chunks)
    cluster.batches[cluster.key].append(data)
    for name in cluster.names[:3]:
        cluster.world.tell(name, StoreBatch(data), ENGINE)
    cluster.world.tick(10)
    cluster.close(cluster.key)
    cluster.trim("small")
    cluster.world.tick(100)
    assert not cluster.core(node).floors.rows()
    assert cluster.core(NODE).floors.rows(), "it stands over half of the batch"
    cluster.place(cluster.key, *cluster.names[1:])
    cluster.world.tick(100)
    assert cluster.count_on_disk(node, cluster.key) == 1
    cluster.trim("large")
    cluster.save()
    cluster.world.tick(100)
    assert cluster.count_on_disk(node, cluster.key) == 0


def test_a_record_of_two_tags_that_is_moved_between_their_trims_is_deleted() -> None:
    """There nothing stood below the first floor, which was retired: the source tells it again."""
    cluster = Swept(nodes=4)
    node = cluster.names[3]
    data = encode_batch(1, 0, cluster.key[2], 0, [(encode_chunk("book", [Group([(b"x", ("a", "b"))])]), 1)])
    cluster.batches[cluster.key].append(data)
    for name in cluster.names[:3]:
        cluster.world.tell(name, StoreBatch(data), ENGINE)
    cluster.lid = 1
    cluster.world.tick(10)
    cluster.close(cluster.key)
    cluster.trim("book", "a")
    cluster.world.tick(100)
    assert not cluster.core(node).floors.rows()
    cluster.place(cluster.key, *cluster.names[1:])
    cluster.world.tick(100)
    assert cluster.count_on_disk(node, cluster.key) == 1
    cluster.trim("book", "b")
    cluster.world.tick(100)
    cluster.save()
    cluster.world.tick(100)
    assert cluster.count_on_disk(node, cluster.key) == 0
    assert cluster.core(node).floors.rows() == []


def test_a_damaged_batch_that_the_others_have_deleted_is_deleted_here_too() -> None:
    """Else no sweep would ever come to its end, and no floor be retired."""
    cluster = Swept()
    cluster.fill(("book", "tag"))
    cluster.fill(("kept", "tag"))
    cluster.world.tick(10)
    row = batch_key(cluster.key, 0)
    cluster.world.disk(NODE).rows[row] = cluster.world.disk(NODE).rows[row][:-1]
    sweep = cluster.core(NODE).sweep
    tick = sweep.tick
    sweep.tick = lambda *_args, **_options: []  # type: ignore[method-assign]
    cluster.trim("book")
    cluster.save()
    cluster.world.tick(100)
    assert cluster.count_on_disk(cluster.names[1], cluster.key) == 1
    sweep.tick = tick  # type: ignore[method-assign]
    cluster.settle_sweeps()
    cluster.world.tick(100)
    assert cluster.count_on_disk(NODE, cluster.key) == 1
    cluster.trim("other")
    cluster.settle_sweeps()
    assert cluster.core(NODE).floors.rows() == []


def test_a_damaged_batch_that_a_sweep_finds_is_mended() -> None:
    """No floor is retired while one cannot be looked at; the next sweep of its book can. What is free comes without its
    payload.
    """
    cluster = Swept()
    cluster.fill(("book", "tag"), ("kept", "tag"))
    cluster.fill(("book", "tag"))
    cluster.world.tick(10)
    row = batch_key(cluster.key, 0)
    whole = cluster.world.disk(NODE).rows[row]
    cluster.world.disk(NODE).rows[row] = whole[:-1]
    cluster.trim("book", None, 1)
    cluster.settle_sweeps()
    mended = Batch(cluster.world.disk(NODE).rows[row])
    mended.verify()
    assert mended.header.record_count == 2
    assert cluster.freed() == {0}
    cluster.trim("book")
    cluster.save()
    cluster.settle_sweeps()
    assert cluster.freed() == {0, 2}
