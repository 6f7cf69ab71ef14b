"""Checkpoints of the index on storage nodes: whole or not at all, whatever crash comes between, and never backwards."""

from __future__ import annotations

from random import Random

import pytest

from boki.log.ids import NodeId, make_seqnum
from boki.log.membership import Member, Membership, Role
from boki.log.metalog import Trim, make_position
from boki.protocol.effects import DiskRoom, Store
from boki.protocol.messages import (
    CheckpointFetched,
    CheckpointStored,
    FetchCheckpoint,
    IndexSaved,
    InstallMembership,
    StoreCheckpoint,
)
from boki.storage.checkpoints import Kept
from tests.members import ENGINE
from tests.storage.cluster import Cluster

NODE = "storage-1"
Rows = dict[bytes, bytes]
LEASE_TICKS = 50


def page(
    lineage: int,
    number: int,
    index: int = 0,
    rows: Rows | None = None,
    *,
    is_last: bool = True,
    deleted: tuple[tuple[bytes, bytes], ...] = (),
    position: int = 0,
    seqnum: int = 0,
) -> StoreCheckpoint:
    positions = {0: make_position(1, position)}
    return StoreCheckpoint(
        lineage, number, index, is_last, tuple((rows or {}).items()), deleted, positions, {0: make_seqnum(1, 0, seqnum)}
    )


def store(cluster: Cluster, message: StoreCheckpoint) -> CheckpointStored:
    cluster.world.sent.clear()
    cluster.world.tell(NODE, message, ENGINE)
    cluster.world.run()
    return cluster.world.messages(CheckpointStored)[-1]  # type: ignore[no-any-return]


def ask(cluster: Cluster, lineage: int = 0, number: int = 0, after: bytes = b"", size: int = 1) -> CheckpointFetched:
    cluster.world.sent.clear()
    cluster.world.tell(NODE, FetchCheckpoint(1, lineage, number, after, size), "engine-9")
    cluster.world.run()
    (answer,) = cluster.world.messages(CheckpointFetched)
    return answer  # type: ignore[no-any-return]


def fetch(cluster: Cluster, size: int = 1) -> tuple[tuple[int, int], Rows]:
    """The whole newest checkpoint, page by page."""
    found: Rows = {}
    answer = ask(cluster, size=size)
    name = (answer.lineage, answer.number)
    while True:
        found |= dict(answer.rows)
        if answer.is_last:
            return name, found
        answer = ask(cluster, *name, answer.rows[-1][0], size)
        assert (answer.lineage, answer.number) == name


def test_a_whole_index_and_what_changes_are_given_out_as_they_were_sent() -> None:
    """Pages in order, ranges deleted before rows are put, and rows fetched in pages of any size."""
    cluster = Cluster()
    assert ask(cluster).lineage == 0
    answer = store(cluster, page(7, 1, 0, {b"i/a": b"1", b"i/b": b"2"}, is_last=False))
    assert (answer.pages, answer.is_complete) == (1, False)
    assert ask(cluster).lineage == 0
    answer = store(cluster, page(7, 1, 1, {b"i/c": b"3"}))
    assert (answer.pages, answer.is_complete, answer.incarnation) == (2, True, 1)
    assert fetch(cluster) == ((7, 1), {b"i/a": b"1", b"i/b": b"2", b"i/c": b"3"})
    cluster.world.tick(LEASE_TICKS)
    store(cluster, page(7, 2, 0, {b"i/b": b"two", b"i/d": b"4"}, deleted=((b"i/a", b"i/b\x00"),), is_last=False))
    store(cluster, page(7, 2, 1, {b"i/e": b"5"}, deleted=((b"i/c", b"i/d"),), is_last=False))
    assert fetch(cluster)[0] == (7, 1)
    cluster.world.tick(LEASE_TICKS)
    assert store(cluster, page(7, 2, 2)).is_complete
    for size in (1, 5, 1 << 20):
        assert fetch(cluster, size) == ((7, 2), {b"i/b": b"two", b"i/d": b"4", b"i/e": b"5"})


def test_an_answer_leaves_only_when_its_page_is_durable() -> None:
    """Others forget what a checkpoint covers: nobody is told of one that a power cut could take."""
    cluster = Cluster()
    cluster.world.holds_syncs.add(NodeId(NODE))
    for message in (page(7, 1, 0, {b"i/a": b"1"}, is_last=False), page(7, 1, 1)):
        cluster.world.tell(NODE, message, ENGINE)
    cluster.world.run()
    assert not cluster.world.messages(CheckpointStored)
    cluster.world.sync(NODE)
    assert [answer.is_complete for answer in cluster.world.messages(CheckpointStored)] == [False, True]


def test_pages_twice_late_or_out_of_order_do_no_harm() -> None:
    """Each answer says what is here, so that the engine knows what to send; the old never comes back."""
    cluster = Cluster()
    first = page(7, 1, 0, {b"i/a": b"1"}, is_last=False)
    assert store(cluster, page(7, 1, 1, {b"i/b": b"2"})).pages == 0
    assert store(cluster, first).pages == 1
    assert store(cluster, first).pages == 1
    assert store(cluster, page(7, 1, 2)).pages == 1
    assert store(cluster, page(7, 1, 1, {b"i/b": b"2"})).is_complete
    assert store(cluster, page(7, 2, 0, {b"i/a": b"new"})).is_complete
    assert store(cluster, first).is_complete
    assert store(cluster, page(7, 1, 1, {b"i/b": b"2"})).is_complete
    assert fetch(cluster) == ((7, 2), {b"i/a": b"new", b"i/b": b"2"})
    answer = store(cluster, page(7, 4))
    assert (answer.lineage, answer.number) == (7, 2), "it cannot build on what it lacks"
    assert store(cluster, page(8, 2)).lineage == 7
    assert store(Cluster(), page(8, 2)).lineage == 0


@pytest.mark.parametrize("seed", range(20))
def test_a_crash_at_any_step_leaves_a_checkpoint_as_it_was_or_as_it_is_to_be(seed: int) -> None:
    """A random chain of checkpoints with crashes between and within; whatever is given out is one of them, entire."""
    luck = Random(seed)
    cluster = Cluster()
    node = NodeId(NODE)
    truth: dict[int, Rows] = {0: {}}
    acknowledged = 0
    for number in range(1, 12):
        rows = dict(truth[number - 1])
        pages: list[StoreCheckpoint] = []
        for index in range(count := luck.randrange(1, 4)):
            cut = sorted(b"i/%02d" % luck.randrange(30) for _ in range(2))
            deleted = ((cut[0], cut[1]),) if number > 1 else ()
            new = {b"i/%02d" % luck.randrange(30): b"%d" % luck.randrange(1000) for _ in range(4)}
            rows = {key: value for key, value in rows.items() if not (deleted and cut[0] <= key < cut[1])} | new
            pages.append(page(7, number, index, new, is_last=index == count - 1, deleted=deleted))
        truth[number] = rows
        at = 0
        while True:
            if luck.random() < 0.3:
                cluster.world.holds_syncs.add(node)
            for message in pages[at:]:
                cluster.world.tell(NODE, message, ENGINE)
            cluster.world.run()
            if luck.random() < 0.4:
                cluster.crash(NODE)
                cluster.start(NODE)
            cluster.world.holds_syncs.clear()
            cluster.world.sync(NODE)
            cluster.world.run()
            told = store(cluster, pages[min(at, len(pages) - 1)])
            acknowledged = max(acknowledged, number if told.is_complete else 0)
            if luck.random() < 0.3:
                name, found = fetch(cluster, luck.choice([1, 20, 1 << 20]))
                assert name[1] >= acknowledged
                assert found == truth[name[1]]
                cluster.world.tick(LEASE_TICKS)
            if told.is_complete:
                break
            at = told.pages
    assert fetch(cluster) == ((7, 11), truth[11])


def test_a_checkpoint_is_complete_only_when_the_node_knows_what_it_covers() -> None:
    """Entries are dropped on the strength of it: the node's own state of at least those entries is durable with it."""
    cluster = Cluster()
    for _ in range(5):
        cluster.open("storage-1", "storage-2", "storage-3")
    cluster.world.loses = lambda sender, _to, _message: sender == "sequencer-1"
    cluster.crash(NODE)
    cluster.start(NODE)
    assert not store(cluster, page(7, 1, position=5)).is_complete
    cluster.world.loses = lambda _sender, _to, _message: False
    cluster.world.tick(30)
    cluster.world.holds_syncs.add(NodeId(NODE))
    cluster.world.tell(NODE, page(7, 1, position=5), ENGINE)
    cluster.world.run()
    (keeping,) = [s for s in cluster.world.unsynced[NodeId(NODE)] if isinstance(s, Store) and s.writes]
    cluster.world.disk(NODE).write(keeping.writes)
    cluster.crash(NODE)
    cluster.world.holds_syncs.clear()
    cluster.world.loses = lambda sender, _to, _message: sender == "sequencer-1"
    cluster.start(NODE)
    assert cluster.core(NODE).follower.position(0) >= make_position(1, 5)
    assert ask(cluster).lineage == 7


def test_of_two_lineages_the_one_that_covers_more_is_given_out_and_the_other_is_dropped() -> None:
    """Another engine takes over with an index of its own; one that is behind never takes the newest one's place."""
    cluster = Cluster()
    for _ in range(5):
        cluster.open("storage-1", "storage-2", "storage-3")
    cluster.world.tick(30)
    store(cluster, page(7, 1, 0, {b"i/old": b"1"}, position=3))
    assert store(cluster, page(8, 1, 0, {b"i/new": b"1"}, position=2)).is_complete
    assert fetch(cluster) == ((7, 1), {b"i/old": b"1"})
    cluster.world.tick(LEASE_TICKS)
    assert store(cluster, page(8, 2, 0, {b"i/more": b"1"}, position=4)).is_complete
    assert fetch(cluster) == ((8, 2), {b"i/new": b"1", b"i/more": b"1"})
    assert not [key for key in cluster.world.disk(NODE).rows if b"i/old" in key]


def test_checkpoints_that_cannot_be_compared_do_not_replace_each_other() -> None:
    """Entries are dropped log by log: one that covers more of one log and less of another would leave a hole."""
    cluster = Cluster()
    checkpoints = cluster.core(NODE).checkpoints
    applied = {0: make_position(1, 9), 1: make_position(1, 9)}

    def complete(lineage: int, *entries: int) -> bool:
        positions = {log: make_position(1, count) for log, count in enumerate(entries)}
        kept = checkpoints.store(ENGINE, StoreCheckpoint(lineage, 1, 0, True, (), (), positions), applied, 10**9)
        assert isinstance(kept, Kept)
        return bool(kept.answer.message.is_complete)

    assert complete(1, 5, 3)
    assert not complete(2, 4, 4)
    assert complete(3, 5, 4)


def test_lineages_that_nobody_goes_on_building_are_dropped() -> None:
    """Engines that die in the middle leave no heap of halves behind."""
    cluster = Cluster()
    store(cluster, page(1, 1, 0, {b"i/a": b"1"}))
    for lineage in range(2, 12):
        store(cluster, page(lineage, 1, 0, {b"i/%d" % lineage: b"1"}, is_last=False))
    assert len([key for key in cluster.world.disk(NODE).rows if key.startswith(b"xr")]) <= 3
    assert fetch(cluster)[0] == (1, 1)


def test_a_whole_index_does_not_use_up_the_reserve_of_a_disk_that_is_nearly_full() -> None:
    """It is refused from its first page on, half of one is dropped, and changes come only while they may be stored."""
    cluster = Cluster()

    def rows(kind: bytes) -> set[int]:
        return {row[9] for row in cluster.world.disk(NODE).rows if row.startswith(kind)}

    assert store(cluster, page(1, 1, 0, {b"i/a": b"1"})).is_complete
    half = page(2, 1, 0, {b"i/a": b"1"}, is_last=False)
    assert store(cluster, half).pages == 1
    assert rows(b"xr") == {1, 2}
    cluster.world.tell(NODE, DiskRoom(False))
    cluster.world.run()
    assert rows(b"xr") == rows(b"xm") == {1}
    for message in (half, page(2, 1, 1, {b"i/b": b"2"}), page(3, 1, 0, {b"i/a": b"1"})):
        answer = store(cluster, message)
        assert (answer.lineage, answer.number, answer.pages) == (message.lineage, 1, 0)
        assert not answer.is_complete
    assert rows(b"xr") == {1}
    assert store(cluster, page(1, 1, 0, {b"i/a": b"1"})).is_complete, "that one is here"
    assert store(cluster, page(1, 2, 0, {b"i/b": b"2"})).is_complete
    cluster.world.tell(NODE, DiskRoom(False, False))
    assert not store(cluster, page(1, 3, 0, {b"i/c": b"3"})).is_complete
    assert fetch(cluster) == ((1, 2), {b"i/a": b"1", b"i/b": b"2"})
    cluster.world.tick(LEASE_TICKS)
    cluster.world.tell(NODE, DiskRoom(True))
    assert store(cluster, page(1, 3, 0, {b"i/c": b"3"})).is_complete
    assert store(cluster, page(4, 1, 0, {b"i/a": b"1"})).is_complete


def halves(cluster: Cluster) -> set[int]:
    """The lineages on the disk but the newest, by number."""
    found = {row[9] for row in cluster.world.disk(NODE).rows if row.startswith((b"xm", b"xr"))}
    return found - {fetch(cluster)[0][0]}


def test_a_small_index_fits_into_the_reserve_of_a_disk_that_is_nearly_full() -> None:
    """Else nothing that is trimmed could be deleted after an engine has started again; of all of them a quarter."""
    cluster = Cluster()
    room = DiskRoom(False, reserve_bytes=40_000)
    assert store(cluster, page(2, 1, 0, {b"i/a": bytes(9_000)}, is_last=False)).pages == 1
    assert store(cluster, page(2, 1, 1, {b"i/b": bytes(900)}, is_last=False)).pages == 2
    cluster.world.tell(NODE, room)
    cluster.world.run()
    cluster.crash(NODE)
    cluster.start(NODE)
    cluster.world.tell(NODE, room)
    assert store(cluster, page(2, 1, 2, {b"i/c": bytes(200)})).pages == 0, "it is counted from the disk"
    assert not halves(cluster), "what is too large gives its space back"
    assert store(cluster, page(2, 1, 0, {b"i/a": bytes(9_000)}, is_last=False)).pages == 1
    assert store(cluster, page(3, 1, 0, {b"i/a": bytes(9_000)}, is_last=False)).pages == 1, "nobody continues the other"
    assert halves(cluster) == {3}
    assert store(cluster, page(3, 1, 1, {b"i/c": bytes(10)})).is_complete
    cluster.world.tick(LEASE_TICKS)
    assert store(cluster, page(4, 1, 0, {b"i/a": bytes(9_900)}, is_last=False)).pages == 1
    assert store(cluster, page(4, 1, 1, {b"i/b": bytes(10)})).is_complete
    assert fetch(cluster)[0] == (4, 1)
    assert store(cluster, page(5, 1, 0, {b"i/a": bytes(9_900)}, is_last=False)).pages == 1
    cluster.world.tell(NODE, DiskRoom(False, False, 40_000))
    cluster.world.run()
    assert not halves(cluster)
    assert store(cluster, page(6, 1, 0, {b"i/a": b"1"})).pages == 0


def test_nothing_takes_a_checkpoint_away_while_it_is_being_fetched() -> None:
    """An engine that fetches a large index comes to its end, however often new checkpoints come."""
    cluster = Cluster()
    store(cluster, page(7, 1, 0, {b"i/%02d" % n: b"x" for n in range(10)}))
    answer = ask(cluster)
    assert store(cluster, page(7, 2)).is_complete, "whoever only asks what there is holds up nobody"
    answer = ask(cluster, 7, 2)
    for _ in range(5):
        assert not store(cluster, page(7, 3, 0, {b"i/05": b"new"})).is_complete
        cluster.world.tick(20)
        answer = ask(cluster, 7, 2, answer.rows[-1][0])
        assert answer.lineage == 7
    cluster.world.tick(LEASE_TICKS)
    assert store(cluster, page(7, 3, 0, {b"i/05": b"new"})).is_complete
    answer = ask(cluster, 7, 2, answer.rows[-1][0])
    assert (answer.lineage, answer.rows) == (0, ()), "begin again"


def test_a_checkpoint_is_given_out_only_once_its_rows_are_on_the_disk() -> None:
    """An engine that asks while the write waits would take a page of the checkpoint before, and then the new ones."""
    cluster = Cluster()
    store(cluster, page(7, 1, 0, {b"i/b": b"old", b"i/s": b"old"}))
    cluster.world.holds_syncs.add(NodeId(NODE))
    cluster.world.tell(NODE, page(7, 2, 0, {b"i/b": b"new", b"i/s": b"new"}), ENGINE)
    cluster.world.run()
    cluster.world.tell(NODE, FetchCheckpoint(1, 7, 2, b"", 1), "engine-9")
    cluster.world.run()
    assert not cluster.world.messages(CheckpointFetched)
    cluster.world.holds_syncs.clear()
    cluster.world.sync(NODE)
    cluster.world.run()
    (first,) = cluster.world.messages(CheckpointFetched)
    assert first.rows == ((b"i/b", b"new"),)
    assert ask(cluster, 7, 2, b"i/b").rows == ((b"i/s", b"new"),)


def test_what_a_complete_checkpoint_covers_may_be_deleted_and_nothing_else() -> None:
    """In a cluster a start takes the checkpoint from here; engines that are gone hold up nothing (hazard H23)."""
    cluster = Cluster()
    key = cluster.open("storage-1", "storage-2", "storage-3")
    cluster.world.tick(30)
    cluster.append(key, 10)
    cluster.world.tick(30)
    end = cluster.primary.ends[key]
    cluster.primary.add(Trim("book", None, make_seqnum(1, 0, end), False, ENGINE, 1))
    engine = Member(node=ENGINE, role=Role.ENGINE, incarnation=1, has_index=True)
    cluster.world.tell(NODE, InstallMembership(Membership(number=1, members=(engine,))))
    cluster.world.tell(NODE, IndexSaved(1, {0: make_seqnum(1, 0, end)}), ENGINE)
    cluster.world.tick(100)
    assert cluster.count_on_disk(NODE, key) == 10, "an engine that starts with nothing could not come to its verdicts"
    half = len(cluster.batches[key][0]) and 4
    store(cluster, page(7, 1, position=2, seqnum=half))
    cluster.world.tick(100)
    assert 0 < cluster.count_on_disk(NODE, key) < 10
    slow = Member(node=NodeId("engine-slow"), role=Role.ENGINE, incarnation=1, has_index=True)
    cluster.world.tell(NODE, InstallMembership(Membership(number=2, members=(engine, slow))))
    cluster.world.tell(NODE, IndexSaved(1, {0: make_seqnum(1, 0, half)}), "engine-slow")
    store(cluster, page(7, 2, position=2, seqnum=end))
    cluster.world.tick(100)
    left = cluster.count_on_disk(NODE, key)
    assert left > 0, "an engine that runs would have to start again"
    cluster.world.tell(NODE, InstallMembership(Membership(number=3, members=(engine,))))
    cluster.world.tell(NODE, IndexSaved(1, {0: make_seqnum(1, 0, half)}), "engine-slow")
    cluster.world.tick(100)
    assert cluster.count_on_disk(NODE, key) == left, "it may be starting again"
    cluster.world.now_us += 600_000_000
    cluster.world.tick(10)
    cluster.world.tell(NODE, IndexSaved(1, {0: make_seqnum(1, 0, end)}), ENGINE)
    cluster.world.tick(100)
    assert cluster.count_on_disk(NODE, key) == 0
