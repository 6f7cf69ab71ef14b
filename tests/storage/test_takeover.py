"""A node that has fallen behind what sequencers keep continues from what a peer knows."""

from __future__ import annotations

import pytest

from boki.log.ids import NodeId, make_seqnum
from boki.log.metalog import CloseShard, Trim
from boki.protocol.effects import Send
from boki.protocol.messages import FetchState, Holding, StateFetched
from boki.storage.shards import batch_key
from boki.storage.state import Checkpoint, load_state
from boki.storage.takeover import Takeover
from tests.members import ENGINE
from tests.storage.cluster import Cluster

FIRST = ("storage-1", "storage-2", "storage-3")


@pytest.mark.parametrize("wiped", [False, True])
@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("ends_term", [False, True])
def test_a_node_behind_what_is_kept_takes_a_peers_state_and_becomes_whole(
    wiped: bool, silent: bool, ends_term: bool
) -> None:
    """Orders, closings, floors and positions come from a peer, records by repair; its own are kept if ordered."""
    cluster = Cluster()
    cluster.primary.is_silent = silent
    old = cluster.open(*FIRST)
    unordered = cluster.open(*FIRST)
    cluster.world.tick(30)
    cluster.append(old, 5)
    cluster.world.tick(10)
    cluster.append(unordered, 2, only=("storage-1",))
    cluster.world.tick(2)
    cluster.crash("storage-1")
    cluster.append(old, 20)
    cluster.world.tick(30)
    cluster.close(old)
    cluster.close(unordered)
    if ends_term:
        cluster.world.tick(30)
        cluster.end_term()
    new = cluster.open(*FIRST)
    cluster.world.tick(30)
    cluster.append(new, 6)
    cluster.world.tick(30)
    term = cluster.views[-1].term
    half = make_seqnum(term, 0, 3)
    cluster.primary.add(Trim("book", None, half, False, ENGINE, 1))
    cluster.trimmed |= {old: cluster.primary.ends[old] if ends_term else 3, new: 3 if ends_term else 0}
    cluster.world.tick(30)
    cluster.drop_entries()
    if wiped:
        cluster.wipe("storage-1")
    cluster.start("storage-1")
    cluster.world.tick(300)
    for key in (old, unordered, new):
        cluster.check("storage-1", key)
        assert cluster.has_all("storage-1", key)
    assert cluster.fetch("storage-1", unordered, 0).holding is Holding.NEVER
    assert cluster.count_on_disk("storage-1", unordered) == 0
    cluster.world.tick(500)  # floors above what it lacked are kept for half a minute
    assert cluster.core("storage-1").floors.rows() == cluster.core("storage-2").floors.rows()
    assert (
        cluster.world.disk("storage-1").rows[batch_key(old, 0)]
        == cluster.world.disk("storage-2").rows[batch_key(old, 0)]
    )
    cluster.append(new, 3)
    cluster.world.tick(30)
    assert cluster.has_all("storage-1", new)
    cluster.world.perform(NodeId("storage-1"), [cluster.core("storage-1").checkpoint()])
    cluster.crash("storage-1")
    cluster.start("storage-1")
    cluster.world.tick(10)
    assert all(cluster.has_all("storage-1", key) for key in (old, unordered, new))


def test_a_node_that_takes_over_refuses_what_was_fenced_while_it_was_away() -> None:
    """A lost engine's batch for a shard that nobody has heard of is late: nothing of it will ever be ordered."""
    cluster = Cluster()
    key = cluster.open(*FIRST)
    unopened = (1, 0, key[2] + 1)
    cluster.batches[unopened] = []
    cluster.world.tick(30)
    cluster.crash("storage-1")
    cluster.primary.add(CloseShard(key[2] + 2, is_lost=True))
    cluster.world.tick(30)
    cluster.drop_entries()
    cluster.start("storage-1")
    cluster.world.tick(100)
    assert cluster.core("storage-1").holdings.shards[key].is_closed, "it has not taken over"
    cluster.append(unopened, only=("storage-1",))
    cluster.world.tick(5)
    assert cluster.count_on_disk("storage-1", unopened) == 0


def test_a_large_state_comes_in_parts_of_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are of one snapshot, however the peer continues meanwhile, and one that is lost only begins it again."""
    monkeypatch.setattr("boki.storage.takeover._PART_BYTES", 40)
    cluster = Cluster(seed=3)
    cluster.world.luck = None
    keys = [cluster.open(*FIRST) for _ in range(5)]
    cluster.world.tick(30)
    cluster.crash("storage-1")
    for key in keys:
        cluster.append(key, 3)
    cluster.world.tick(30)
    cluster.drop_entries()
    cluster.start("storage-1")
    cluster.world.luck = cluster.luck
    for _ in range(100):
        cluster.append(keys[0])
        cluster.world.tick(3)
        cluster.resend(keys[0])
    cluster.world.luck = None
    assert len({m.offset for m in cluster.world.messages(StateFetched)}) > 3
    cluster.world.tick(100)
    for key in keys:
        cluster.check("storage-1", key)
        assert cluster.has_all("storage-1", key)


def test_a_state_comes_however_long_its_parts_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part took longer than a second, over a slow link or from a busy peer: the next peer was asked from the
    beginning, the part came too late for its question, and the state never came.
    """
    monkeypatch.setattr("boki.storage.takeover._PART_BYTES", 20)
    cluster = Cluster()
    cluster.append(cluster.open(*FIRST), 3)
    cluster.world.tick(30)
    asking = cluster.core("storage-1")
    taking, members, came = Takeover(), asking._membership, list[object]()
    under_way: list[tuple[int, NodeId, StateFetched]] = []
    taking.need()
    for now_us in range(1_000_000, 60_000_000, 100_000):
        asked = list(taking.ask(NodeId("storage-1"), members, asking.follower, now_us))
        for at_us, sender, part in [one for one in under_way if one[0] <= now_us]:
            under_way.remove((at_us, sender, part))
            match taking.take(sender, part, now_us):
                case Send() as question:
                    asked.append(question)
                case Checkpoint() as state:
                    came.append(state)
                    taking.done()
        for question in asked:
            assert isinstance(question.message, FetchState)
            part = cluster.core(question.to)._snapshots.give(question.message, now_us)
            assert part.size_bytes > 3 * 20
            under_way.append((now_us + 1_500_000, question.to, part))
    assert len(came) == 1
    assert taking._repeat_us == 1_000_000


def test_a_node_that_is_ahead_takes_nothing() -> None:
    """An answer that comes late, from a peer that knows less, changes nothing."""
    cluster = Cluster()
    key = cluster.open(*FIRST)
    cluster.world.tick(30)
    cluster.append(key, 3)
    cluster.world.tick(5)
    late = cluster.core("storage-2")._state(cluster.core("storage-2").holdings.shards)
    cluster.append(key, 3)
    cluster.world.tick(30)
    before = cluster.core("storage-1").follower.position(0)
    assert list(cluster.core("storage-1")._take_over(late)) == []
    assert cluster.core("storage-1").follower.position(0) == before


def test_a_checkpoint_writes_only_what_has_changed() -> None:
    """Many lives of engines make many shards: a checkpoint rewrites those that moved, and a start finds all of them."""
    cluster = Cluster()
    keys = [cluster.open(*FIRST) for _ in range(50)]
    cluster.world.tick(30)
    for key in keys:
        cluster.append(key, 2)
    cluster.world.tick(30)
    node = NodeId("storage-1")
    first = cluster.core(node).checkpoint()
    cluster.world.perform(node, [first])
    cluster.append(keys[7], 1)
    cluster.world.tick(30)
    second = cluster.core(node).checkpoint()
    assert len(second.writes) < 6 < 100 < len(first.writes)
    cluster.world.perform(node, [second])
    _, shards = load_state(cluster.world.disk(node))
    for key in keys:
        shard, mine = shards[key], cluster.core(node).holdings.shards[key]
        assert shard.order.runs() == mine.order.runs()
        assert (shard.order.until_lid, shard.stored_until) == (mine.order.until_lid, mine.stored_until)
        assert (shard.engine, shard.replicas, shard.is_closed) == (mine.engine, mine.replicas, mine.is_closed)


def test_long_orders_are_saved_in_pages() -> None:
    """Two engines that take turns make a run with every cut; a checkpoint writes the last page, a start finds all."""
    cluster = Cluster()
    one, two = cluster.open(*FIRST), cluster.open(*FIRST)
    cluster.world.tick(30)
    node = NodeId("storage-1")
    for turn in range(2600):
        cluster.append(one)
        cluster.append(two)
        cluster.world.run()
        if turn % 900 == 0:
            cluster.world.tick(2)
            cluster.world.perform(node, [cluster.core(node).checkpoint()])
    cluster.world.tick(30)
    cluster.world.perform(node, [cluster.core(node).checkpoint()])
    mine = cluster.core(node).holdings.shards[one].order
    assert mine.run_count > 2048
    cluster.crash(node)
    cluster.start(node)
    for key in (one, two):
        again = cluster.core(node).holdings.shards[key].order
        assert again.until_lid == cluster.primary.ends[key]
        assert again.runs() == load_state(cluster.world.disk(node))[1][key].order.runs()
    assert cluster.core(node).holdings.shards[one].order.runs() == mine.runs()
