"""Repair: whatever is ordered and is to be on a node gets there, and nothing is told of it that is not so."""

from __future__ import annotations

import pytest

from boki.log.ids import MAX_SEQNUM, NodeId
from boki.log.membership import Member, Membership, Role
from boki.log.metalog import CloseShard, Trim, make_position
from boki.protocol.effects import DiskRoom
from boki.protocol.messages import (
    BatchesFetched,
    FetchBatches,
    Holding,
    InstallMembership,
    InstallPlacement,
    Ping,
    Pong,
    StoreBatch,
)
from boki.storage.repair import PAGE_BYTES
from boki.storage.shards import ShardKey, batch_key, split_batch_key
from tests.members import ENGINE, batch
from tests.storage.cluster import Cluster

FIRST = ("storage-1", "storage-2", "storage-3")


def filled(count: int = 10, *, closed: bool = True, size_bytes: int = 20, **settings: int) -> tuple[Cluster, ShardKey]:
    """A shard of `count` batches on the first three of four nodes."""
    cluster = Cluster(**settings)
    key = cluster.open(*FIRST)
    cluster.world.tick(30)
    cluster.append(key, count, size_bytes=size_bytes)
    cluster.world.tick(30)
    if closed:
        cluster.close(key)
        cluster.world.tick(30)
    return cluster, key


def trim(cluster: Cluster, key: ShardKey) -> None:
    """Everything that is ordered is trimmed, and every index has been saved."""
    cluster.trimmed[key] = cluster.primary.ends[key]
    cluster.primary.add(Trim("book", None, MAX_SEQNUM, False, ENGINE, 1))
    for node in cluster.names:
        if node in cluster.world.cores:
            core = cluster.core(node)
            core.saved.cover(99, {})
    cluster.world.tick(100)


def test_a_heartbeat_is_answered_by_the_core() -> None:
    """A node says which incarnation it is, the newest term that it knows, and how far it has applied the metalogs."""
    cluster = Cluster()
    cluster.incarnations[NodeId("storage-1")] = 5
    cluster.crash("storage-1")
    cluster.start("storage-1")
    cluster.world.tell("storage-1", Ping(7), "controller-1")
    cluster.world.run()
    applied = {0: make_position(1, len(cluster.primary.entries[1]))}
    assert cluster.world.messages(Pong) == [Pong(7, 1, 5, applied=applied)]


@pytest.mark.parametrize("closed", [False, True])
def test_a_wiped_node_refills_itself(closed: bool) -> None:
    """A new incarnation under an old name gets back all that is ordered, also of open shards (hazard H18)."""
    cluster, key = filled(closed=closed)
    cluster.wipe("storage-2")
    cluster.start("storage-2")
    cluster.world.tick(100)
    assert cluster.has_all("storage-2", key)
    cluster.check("storage-2", key)


def test_shards_whose_records_nobody_has_now_do_not_keep_others_from_repair() -> None:
    """They may use all lanes, and their other replica may be away for long."""
    cluster = Cluster()
    keys = [cluster.open("storage-1", other) for other in ("storage-2", "storage-2", "storage-3")]
    cluster.world.tick(30)
    for key in keys:
        cluster.batches[key].append(batch(0, *[b"x"] * 5000, shard=key[2]))
        cluster.send(key, 0)
    cluster.world.tick(30)
    for key in keys:
        cluster.close(key)
    cluster.world.tick(30)
    cluster.crash("storage-2")
    cluster.wipe("storage-1")
    cluster.start("storage-1")
    cluster.world.tick(100)
    assert [cluster.has_all("storage-1", key) for key in keys] == [False, False, True]
    cluster.start("storage-2")
    cluster.world.tick(100)
    assert all(cluster.has_all("storage-1", key) for key in keys)


def test_a_node_that_lacks_something_never_says_that_it_was_freed_or_never_existed() -> None:
    """Before it has refilled itself, a wiped node answers *unknown* for all that is ordered (hazard H5)."""
    cluster, key = filled()
    cluster.world.loses = lambda _sender, to, message: to == "storage-2" and isinstance(message, BatchesFetched)
    cluster.wipe("storage-2")
    cluster.start("storage-2")
    cluster.world.tick(60)
    for lid in range(cluster.primary.ends[key]):
        assert cluster.fetch("storage-2", key, lid).holding is Holding.UNKNOWN
    assert cluster.fetch("storage-2", key, cluster.primary.ends[key]).holding is Holding.NEVER


def test_a_gap_before_what_is_here_is_not_taken_for_freed() -> None:
    """What lies between a freed stretch and a batch beyond a gap is unknown, not freed (hazard H5)."""
    cluster, key = filled(8, closed=False)
    trim(cluster, key)
    cluster.world.loses = lambda _sender, to, message: to == "storage-2" and isinstance(message, BatchesFetched)
    cluster.append(key, 3, only=("storage-1", "storage-3"))
    cluster.append(key, 1)
    cluster.world.tick(30)
    answer = cluster.fetch("storage-2", key, 0, 1000)
    assert (answer.holding, answer.freed_until) == (Holding.FREED, cluster.trimmed[key])
    cluster.check("storage-2", key)


def test_a_freed_stretch_ends_where_the_next_batch_begins_however_large_its_predecessor_is() -> None:
    """A load that its first row fills does not tell where the gap ends; the answer must not guess."""
    cluster = Cluster()
    key = cluster.open(*FIRST)
    cluster.world.tick(30)
    cluster.append(key, 1, size_bytes=2 << 20)
    cluster.append(key, 6)
    cluster.world.tick(30)
    disk = cluster.world.disk("storage-1")
    gone = [row for row, _ in disk.scan(batch_key(key, 1), batch_key(key, 5))]
    assert len(gone) == 3
    for row in gone:
        disk.rows.pop(row)
        disk._keys.remove(row)
    answer = cluster.fetch("storage-1", key, 1, 1000)
    assert (answer.holding, answer.freed_until) == (Holding.FREED, 6)


def test_an_answer_that_a_write_has_overtaken_does_not_say_freed() -> None:
    """A disk that was read before the batch reached it proves nothing, whenever the answer is made."""
    cluster, key = filled(1, closed=False)
    core = cluster.core("storage-1")
    lid = cluster.primary.ends[key]
    (load,) = core.receive(NodeId("reader"), FetchBatches(1, *key, lid, lid + 1, 1 << 20), 0)
    loaded = cluster.world.disk("storage-1").load(load)  # type: ignore[arg-type]
    cluster.append(key)
    cluster.world.tick(10)
    (answer,) = core.receive(NodeId("storage-1"), loaded, 0)
    assert answer.message.holding is Holding.UNKNOWN  # type: ignore[union-attr]


def test_an_answer_that_a_removal_has_overtaken_does_not_say_freed() -> None:
    """What was deleted because its shard was sent away is unknown, even if the shard has come back meanwhile."""
    cluster, key = filled()
    core = cluster.core("storage-1")
    (load,) = core.receive(NodeId("reader"), FetchBatches(1, *key, 0, 1, 1 << 20), 0)
    cluster.place(key, *FIRST[1:])
    cluster.world.tick(10)
    loaded = cluster.world.disk("storage-1").load(load)  # type: ignore[arg-type]
    cluster.place(key, *FIRST)
    cluster.world.tick(60)
    assert cluster.is_whole("storage-1", key)
    (answer,) = core.receive(NodeId("storage-1"), loaded, 0)
    assert answer.message.holding is Holding.UNKNOWN  # type: ignore[union-attr]


def test_one_answer_spans_what_was_freed_in_between() -> None:
    """A shard with many gaps is refilled by a few questions, not by one for each gap."""
    cluster, count = Cluster(), 60
    key = cluster.open(*FIRST)
    cluster.world.tick(30)
    for lid in range(count):
        cluster.batches[key].append(batch(lid, b"%d" % lid, tags=("odd" if lid % 2 else "even",), shard=key[2]))
        cluster.send(key, lid)
    cluster.world.tick(30)
    cluster.close(key)
    cluster.primary.add(Trim("book", "odd", MAX_SEQNUM, False, ENGINE, 1))
    for node in FIRST:
        cluster.core(node).saved.cover(99, {})
    cluster.world.tick(100)
    cluster.wipe("storage-2")
    before = len(cluster.world.messages(FetchBatches))
    cluster.start("storage-2")
    cluster.world.tick(100)
    assert cluster.is_whole("storage-2", key)
    assert len(cluster.world.messages(FetchBatches)) - before <= 8
    rows = cluster.world.disk("storage-2").scan(batch_key(key, 0), batch_key(key, count))
    assert [split_batch_key(row)[1] for row, _ in rows] == list(range(0, count, 2))


def test_repair_from_a_replica_that_has_partly_freed() -> None:
    """What one replica freed counts as repaired, what another still has is copied, and a restart remembers both."""
    cluster, key = filled(40)
    cluster.crash("storage-3")
    trim(cluster, key)
    assert cluster.count_on_disk("storage-1", key) == 0
    cluster.wipe("storage-2")
    cluster.start("storage-2")
    cluster.world.tick(100)
    assert cluster.is_whole("storage-2", key)
    cluster.crash("storage-1")
    cluster.crash("storage-2")
    cluster.start("storage-2")
    cluster.world.tick(100)
    assert cluster.is_whole("storage-2", key), "nobody is left who could tell again what was freed"
    cluster.start("storage-3")
    cluster.world.tick(100)
    for node in FIRST[1:]:
        cluster.check(node, key)


def test_a_shard_moves_when_its_placement_says_so_and_is_deleted_where_it_was() -> None:
    """Old + new, copied, old - gone + new: then the node that is gone from it answers *unknown* (hazard H30)."""
    cluster, key = filled(200)
    cluster.place(key, *FIRST, "storage-4")
    cluster.world.tick(60)
    assert cluster.is_whole("storage-4", key)
    cluster.place(key, *FIRST[1:], "storage-4")
    cluster.world.tick(10)
    assert cluster.count_on_disk("storage-1", key) == 0
    assert cluster.row("storage-1", key) is None
    assert cluster.fetch("storage-1", key, 0).holding is Holding.UNKNOWN
    for node in FIRST[1:]:
        cluster.crash(node)
    cluster.crash("storage-4")
    cluster.start("storage-4")
    cluster.world.tick(30)
    assert cluster.has_all("storage-4", key)


def test_a_node_that_was_sent_away_stays_so_after_a_restart_until_it_is_sent_back() -> None:
    """Before it has heard of the placement again it neither copies nor answers; when it is named again, it refills."""
    cluster, key = filled()
    cluster.place(key, *FIRST[1:], "storage-4")
    cluster.world.tick(60)
    cluster.crash("storage-1")
    cluster.world.sent.clear()
    cluster.start("storage-1", tells_placement=False)
    cluster.world.tell("storage-1", StoreBatch(cluster.batches[key][0]), ENGINE)
    cluster.world.tick(60)
    assert cluster.count_on_disk("storage-1", key) == 0, "a batch that was late must not come back to life"
    assert not [m for sender, _, m in cluster.world.sent if sender == "storage-1" and isinstance(m, FetchBatches)]
    cluster.world.tell("storage-1", InstallPlacement(cluster.placement))
    cluster.place(key, "storage-1", "storage-4")
    cluster.world.tick(60)
    assert cluster.is_whole("storage-1", key)
    assert cluster.has_all("storage-1", key)


def test_a_node_counts_only_under_the_placement_that_it_has_seen() -> None:
    """Who has not heard yet that it was sent away calls complete what it is going to delete: its rows say so."""
    cluster, key = filled()
    rest = tuple(cluster.names[1:])
    cluster.place(key, "storage-2", "storage-4", tell=rest)
    stale = cluster.placement
    cluster.world.tick(60)
    cluster.place(key, "storage-1", "storage-2", "storage-4", tell=rest)
    cluster.world.loses = lambda _sender, to, message: to == "storage-1" and isinstance(message, BatchesFetched)
    row = cluster.row("storage-1", key)
    assert row is not None
    assert row.stored_until == row.ordered_until
    assert not cluster.is_whole("storage-1", key)
    cluster.world.tell("storage-1", InstallPlacement(stale))
    cluster.world.tick(10)
    cluster.world.tell("storage-1", InstallPlacement(cluster.placement))
    cluster.world.tick(10)
    assert not cluster.is_whole("storage-1", key)
    cluster.world.loses = lambda _sender, _to, _message: False
    cluster.world.tick(60)
    assert cluster.is_whole("storage-1", key)


def test_a_node_that_is_sent_away_while_it_copies_stops_asking() -> None:
    """The controller changes its mind before anything has arrived: nobody is asked any more."""
    cluster, key = filled()
    cluster.world.loses = lambda _sender, to, message: to == "storage-4" and isinstance(message, BatchesFetched)
    cluster.place(key, *FIRST, "storage-4")
    cluster.world.tick(40)
    cluster.place(key, *FIRST)
    cluster.world.run()
    cluster.world.sent.clear()
    cluster.world.tick(80)
    assert not [message for _, _, message in cluster.world.sent if isinstance(message, FetchBatches)]
    assert cluster.core("storage-4").status()["repair"]["lacking_shards"] == 0


def test_a_placement_that_came_late_changes_nothing() -> None:
    """Of two maps the one with the larger version counts, in whatever order they come."""
    cluster, key = filled()
    cluster.place(key, *FIRST[1:], tell=())
    old = cluster.placement
    cluster.place(key, *FIRST, "storage-4")
    for node in cluster.names:
        cluster.world.tell(node, InstallPlacement(old))
    cluster.world.tick(60)
    assert all(cluster.has_all(node, key) for node in cluster.names)


def test_nothing_above_the_end_of_a_closed_shard_is_kept_or_accepted() -> None:
    """What was never ordered is dropped, also of other shards of a lost incarnation, and a restart does not forget."""
    for is_lost in (False, True):
        cluster, key = filled(3, closed=False)
        end = cluster.primary.ends[key]
        cluster.append(key, 2, only=("storage-1",))
        cluster.world.run()
        assert cluster.fetch("storage-1", key, end).holding is Holding.HAVE
        cluster.close(key, is_lost=is_lost)
        cluster.primary.add(CloseShard(key[2], is_lost))  # twice does no harm
        cluster.world.tick(30)
        assert cluster.core("storage-1").holdings.shards[key].stored_until == end
        for _ in range(2):
            cluster.world.tell("storage-1", StoreBatch(cluster.batches[key][3]), ENGINE)
            cluster.world.tick(5)
            assert cluster.fetch("storage-1", key, end).holding is Holding.NEVER
            assert cluster.count_on_disk("storage-1", key) == 3
            cluster.world.perform(NodeId("storage-1"), [cluster.core("storage-1").checkpoint()])
            cluster.crash("storage-1")
            cluster.start("storage-1")
            cluster.world.tick(10)


def test_a_fence_refuses_shards_of_its_incarnation_that_were_never_opened() -> None:
    """A lost engine's batches for a shard that nobody has heard of are not kept, also after a restart."""
    cluster, key = filled(1)
    unopened = (1, 0, key[2] + 1)
    cluster.batches[unopened] = []
    cluster.primary.add(CloseShard(key[2] + 2, is_lost=True))
    cluster.world.tick(30)
    for _ in range(2):
        cluster.append(unopened, only=("storage-1",))
        cluster.world.tick(5)
        assert cluster.count_on_disk("storage-1", unopened) == 0
        cluster.world.perform(NodeId("storage-1"), [cluster.core("storage-1").checkpoint()])
        cluster.crash("storage-1")
        cluster.start("storage-1")


def test_repair_of_closed_shards_keeps_to_its_budget_and_says_how_far_it_is() -> None:
    """This many bytes a second and no more; what is lacking goes down to nothing."""
    cluster = Cluster(repair_bytes_per_s=1 << 20)
    key = cluster.open(*FIRST)
    cluster.world.tick(30)
    cluster.append(key, 64, size_bytes=48 << 10)
    cluster.world.tick(30)
    cluster.close(key)
    cluster.world.tick(30)
    total = sum(len(data) for data in cluster.batches[key])
    cluster.wipe("storage-1")
    cluster.start("storage-1")
    cluster.world.tick(4)
    status = cluster.core("storage-1").status()["repair"]
    assert 0 < status["copied_bytes"] < (1 << 20)
    assert status["lacking_records"] > 0
    cluster.world.tick(40)
    copied = cluster.core("storage-1").status()["repair"]["copied_bytes"]
    assert copied < 3 * (1 << 20) + 4 * PAGE_BYTES
    cluster.world.tick(20 * (total >> 20) + 60)
    status = cluster.core("storage-1").status()["repair"]
    assert (status["lacking_shards"], status["lacking_records"], status["lacking_bytes"]) == (0, 0, 0)
    assert cluster.has_all("storage-1", key)


def test_fresh_gaps_of_open_shards_do_not_wait_for_the_budget() -> None:
    """A batch that was lost on its way comes at once, however much else is to be copied."""
    cluster, old = filled(9, size_bytes=100 << 10, repair_bytes_per_s=1)
    key = cluster.open(*FIRST)
    cluster.world.tick(30)
    cluster.wipe("storage-1")
    cluster.append(key, 5, only=FIRST[1:])
    cluster.world.tick(30)
    cluster.start("storage-1")
    cluster.world.tick(10)
    assert cluster.has_all("storage-1", key)
    assert not cluster.has_all("storage-1", old)


def test_several_lanes_fetch_a_large_gap_and_a_silent_replica_costs_a_second() -> None:
    """A long gap is divided; whoever is silent or gone is not asked again while others answer."""
    cluster, key = filled(6000)
    cluster.world.tick(100)
    cluster.crash("storage-2")
    cluster.wipe("storage-1")
    cluster.start("storage-1")
    cluster.world.tick(2)
    asked = [m.first_lid for m in cluster.world.messages(FetchBatches)]
    assert len({lid // (cluster.primary.ends[key] // 4) for lid in asked}) > 1
    cluster.world.tick(80)
    assert cluster.has_all("storage-1", key)


def test_registered_replicas_are_asked_first() -> None:
    """Membership is a hint: it saves the wait for a node that is known to be gone."""
    cluster, key = filled(10)
    cluster.crash("storage-2")
    members = tuple(
        Member(node=node, role=Role.STORAGE, incarnation=1) for node in cluster.names if node != "storage-2"
    )
    cluster.wipe("storage-1")
    cluster.world.sent.clear()
    cluster.start("storage-1")
    cluster.world.tell("storage-1", InstallMembership(Membership(number=1, members=members)))
    cluster.world.tick(60)
    assert cluster.has_all("storage-1", key)
    assert not [to for _, to, m in cluster.world.sent if isinstance(m, FetchBatches) and to == "storage-2"]


def test_a_damaged_batch_is_replaced_by_a_good_one_of_another_replica() -> None:
    """Bytes that rot are found by whoever reads them, and repaired from a peer (hazard H21)."""
    cluster, key = filled(5)
    row = batch_key(key, 0)
    good = cluster.world.disk("storage-1").rows[row]
    cluster.world.disk("storage-1").rows[row] = good[:-1] + bytes((good[-1] ^ 1,))
    assert cluster.fetch("storage-1", key, 0).holding is Holding.UNKNOWN
    cluster.world.tick(5)
    assert cluster.world.disk("storage-1").rows[row] == good
    assert cluster.fetch("storage-1", key, 0).holding is Holding.HAVE


def test_a_full_disk_copies_nothing_until_there_is_room() -> None:
    """Repair does not take what is left of a disk (hazard H20)."""
    cluster, key = filled(5)
    cluster.wipe("storage-1")
    cluster.world.loses = lambda _sender, to, message: to == "storage-1" and isinstance(message, BatchesFetched)
    cluster.start("storage-1")
    cluster.world.tell("storage-1", DiskRoom(False, may_store=False))
    cluster.world.run()
    cluster.world.loses = lambda _sender, _to, _message: False
    cluster.world.tick(60)
    assert cluster.count_on_disk("storage-1", key) == 0
    cluster.world.tell("storage-1", DiskRoom(True))
    cluster.world.tick(60)
    assert cluster.has_all("storage-1", key)
