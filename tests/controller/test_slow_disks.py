"""Disks that take longer than a second for each sync: slow, and neither dead nor cut off."""

from __future__ import annotations

import pytest

from boki.log.ids import NodeId
from boki.protocol.messages import AppendEntry, Pong, SealedEntries
from tests.controller.cluster import Cluster
from tests.world import TICK_US

SEQUENCERS = tuple(NodeId(f"sequencer-{number}") for number in (1, 2, 3))
MINUTE = 60_000_000 // TICK_US


class SlowDisks:
    """A sync takes `sync_us`; what comes during one waits for the next, as in a group commit."""

    def __init__(self, cluster: Cluster, sync_us: int, *nodes: NodeId) -> None:
        self._cluster = cluster
        self._sync_us = sync_us
        self._under_way: dict[NodeId, tuple[int, int]] = {}
        """Of each node whose disk syncs: until when, and how many stores."""
        self._nodes = nodes
        cluster.holds_syncs |= set(nodes)

    def tick(self, count: int) -> None:
        """As the cluster's."""
        cluster = self._cluster
        for _ in range(count):
            cluster.tick()
            for node in self._nodes:
                waiting = cluster.unsynced[node]
                until_us, stores = self._under_way.get(node, (0, 0))
                if stores and cluster.now_us >= until_us:
                    done = [waiting.popleft() for _ in range(stores)]
                    for store in done:
                        cluster.disk(node).write(store.writes)
                    for store in done:
                        cluster.perform(node, store.then)
                    cluster.run()
                    stores = 0
                if not stores and waiting:
                    until_us, stores = cluster.now_us + self._sync_us, len(waiting)
                self._under_way[node] = until_us, stores


@pytest.mark.parametrize("sync_us", [1_200_000, 1_500_000, 3_000_000])
@pytest.mark.parametrize("count", [1, 3])
def test_a_cluster_whose_disks_take_longer_than_a_second_appends(count: int, sync_us: int) -> None:
    """The term stands, and each append takes two syncs at most: a new term would have the same disks."""
    cluster = Cluster(sequencers=count)
    disks = SlowDisks(cluster, sync_us, *SEQUENCERS[:count])
    disks.tick(MINUTE)
    assert cluster.moves_everywhere()
    term, applied = cluster.term, cluster.writer.applied
    assert term < 10
    disks.tick(MINUTE)
    assert cluster.term == term
    assert cluster.writer.applied >= applied + 60_000_000 // (2 * sync_us) - 1


def test_disks_that_become_slow_end_a_term_and_not_one_after_the_other() -> None:
    """The first entry that waits longer than a second may be cut off; the next primary has measured its disk."""
    cluster = Cluster()
    cluster.until_ready()
    disks = SlowDisks(cluster, 1_500_000, *SEQUENCERS)
    disks.tick(MINUTE)
    term, applied = cluster.term, cluster.writer.applied
    assert term <= 4
    disks.tick(MINUTE)
    assert cluster.term == term
    assert cluster.writer.applied >= applied + 19


@pytest.mark.parametrize("sync_us", [1_500_000, 4_000_000])
def test_a_quick_primary_leaves_the_log_to_one_of_the_slow_majority(sync_us: int) -> None:
    """It cannot know whether its backups are slow or cut off; they can."""
    cluster = Cluster()
    cluster.until_ready()
    SlowDisks(cluster, sync_us, *SEQUENCERS[1:]).tick(2 * MINUTE)
    assert cluster.term <= 8
    assert cluster.moves_everywhere()
    assert cluster.view.primaries[0] != SEQUENCERS[0]


def test_a_primary_that_was_slow_and_is_cut_off_is_replaced_within_a_second_or_so() -> None:
    """Its patience is that of its disk's last sync, not of the slowest one."""
    cluster = Cluster(sequencers=3)
    disks = SlowDisks(cluster, 1_500_000, *SEQUENCERS)
    disks.tick(MINUTE)
    term, primary = cluster.term, cluster.view.primaries[0]
    cluster.holds_syncs.clear()
    for node in SEQUENCERS:
        cluster.sync(node)
    cluster.tick(10)
    cluster.loses = lambda sender, _to, message: sender == primary and isinstance(message, AppendEntry)
    cluster.tick(30)
    assert cluster.term == term + 1
    assert cluster.view.primaries[0] != primary


def test_primaries_that_stand_still_at_the_beginning_of_each_term_get_the_time_they_need() -> None:
    """They load what they lead, for longer than silence is allowed: another term would begin in the same way."""
    cluster = Cluster()
    cluster.until_ready()
    cluster.kill(SEQUENCERS[0])
    began_at, term = cluster.now_us, cluster.term

    def stands_still(_sender: NodeId, _to: NodeId, message: object) -> bool:
        nonlocal began_at, term
        if cluster.term != term:
            began_at, term = cluster.now_us, cluster.term
        return isinstance(message, Pong) and term > 1 and cluster.now_us - began_at < 700_000

    cluster.loses = stands_still
    cluster.tick(MINUTE)
    assert cluster.term <= 6
    assert cluster.moves_everywhere()


@pytest.mark.parametrize("page_us", [200_000, 1_100_000])
def test_a_change_of_terms_that_gets_on_slowly_is_not_begun_again(
    monkeypatch: pytest.MonkeyPatch, page_us: int
) -> None:
    """A sequencer lacks many pages, and each takes a while: another try would fetch the same pages."""
    monkeypatch.setattr("boki.sequencer.core.PAGE_ENTRIES", 1)
    cluster = Cluster()
    cluster.until_ready()
    cluster.loses = lambda _sender, to, message: to == SEQUENCERS[2] and isinstance(message, AppendEntry)
    cluster.tick(50)
    last_at = cluster.now_us

    def is_late(_sender: str, _to: str, message: object) -> bool:
        nonlocal last_at
        if not isinstance(message, SealedEntries) or cluster.now_us - last_at >= page_us:
            last_at = cluster.now_us if isinstance(message, SealedEntries) else last_at
            return False
        return True

    cluster.loses = is_late
    cluster.kill(SEQUENCERS[0])
    cluster.tick(2 * MINUTE)
    cluster.until_ready()
    assert cluster.term == 2
    (change,) = cluster.controller().status()["changes"]
    assert change["duration_ms"] > 6_000
