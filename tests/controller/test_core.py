"""The controller: whatever dies, appends go on within a second or so, and nothing that was told is ever untold."""

from __future__ import annotations

from itertools import combinations

import pytest

from boki.controller.core import NEXT, Phase
from boki.log.ids import NodeId
from tests.controller.cluster import Cluster

PRIMARY, BACKUP, THIRD = "sequencer-1", "sequencer-2", "sequencer-3"
STALL_US = 1_500_000


def ready(**settings: int) -> Cluster:
    cluster = Cluster(**settings)
    cluster.until_ready()
    return cluster


def test_the_first_view_is_installed_when_enough_nodes_are_there() -> None:
    """As many sequencers as the plan wants, and as many storage nodes as there are replicas; not before."""
    cluster = Cluster()
    cluster.kill(THIRD)
    cluster.tick(20)
    assert cluster.term == 0
    cluster.start_sequencer(THIRD)
    cluster.until_ready()
    assert cluster.term == 1
    assert cluster.view.sequencers == (PRIMARY, BACKUP, THIRD)


def test_a_healthy_cluster_is_left_alone() -> None:
    """Nothing is sealed without a reason."""
    cluster = ready()
    cluster.tick(400)
    assert cluster.term == 1
    assert cluster.writer.longest_stall_us <= 100_000


@pytest.mark.parametrize("count", [3, 5])
def test_appends_go_on_after_the_loss_of_any_minority(count: int) -> None:
    """Within a second and a half, detection included, for every set of f sequencers lost at once."""
    names = [f"sequencer-{n}" for n in range(1, count + 1)]
    for lost in (set_ for size in range(1, count // 2 + 1) for set_ in combinations(names, size)):
        cluster = ready(sequencers=count)
        for name in lost:
            cluster.kill(name)
        cluster.tick(60)
        assert cluster.view.primaries[0] not in lost
        assert cluster.term == (2 if PRIMARY in lost else 1)
        assert cluster.writer.longest_stall_us <= STALL_US
        cluster.check()


def test_only_the_lost_primarys_logs_move() -> None:
    """Logs of other sequencers keep their primary, and the lost one's are spread."""
    cluster = ready(logs=6)
    before = cluster.view.primaries
    cluster.kill(PRIMARY)
    cluster.tick(60)
    after = cluster.view.primaries
    assert [b for a, b in zip(before, after, strict=True) if a != PRIMARY] == [p for p in before if p != PRIMARY]
    assert sorted(after.count(NodeId(name)) for name in (BACKUP, THIRD)) == [3, 3]


def test_a_stopped_sequencer_blocks_neither_the_seal_nor_appends() -> None:
    """One hung replica must not hold up a seal (hazard H6); when it goes on it learns that its term is over (H7)."""
    cluster = ready()
    cluster.pause(PRIMARY)
    cluster.tick(60)
    assert cluster.term == 2
    assert cluster.writer.longest_stall_us <= STALL_US
    cluster.resume(PRIMARY)
    cluster.tick(60)
    assert cluster.term == 2
    cluster.check()


@pytest.mark.parametrize("inward", [True, False])
def test_a_primary_cut_off_one_way_is_replaced(inward: bool) -> None:
    """It answers the controller, and none of its entries reaches the backups, or no answer of theirs reaches it."""
    cluster = ready()
    others = {BACKUP, THIRD}
    cluster.loses = lambda sender, to, _: (
        (sender in others and to == PRIMARY) if inward else (sender == PRIMARY and to in others)
    )
    cluster.tick(100)
    assert cluster.view.primaries[0] in others
    assert cluster.writer.longest_stall_us <= 3_000_000
    cluster.loses = lambda *_: False
    cluster.check()


def test_a_restarted_primary_leads_nothing_until_the_next_term() -> None:
    """It has its disk and answers, but has forgotten what it sent: a new term begins (hazard H8)."""
    cluster = ready()
    cluster.crash(PRIMARY)
    cluster.start_sequencer(PRIMARY)
    cluster.tick(60)
    assert cluster.term == 2
    assert cluster.writer.longest_stall_us <= STALL_US
    cluster.check()


def test_all_sequencers_restart_at_once() -> None:
    """A power cut of everything: the next term begins by itself."""
    cluster = ready()
    for name in (PRIMARY, BACKUP, THIRD):
        cluster.crash(name)
    cluster.crash("controller-1")
    for name in (PRIMARY, BACKUP, THIRD):
        cluster.start_sequencer(name)
    cluster.start_controller("controller-1", leads=True)
    cluster.tick(60)
    cluster.until_ready()
    assert cluster.term == 2
    cluster.check()


def test_without_a_majority_nothing_is_sealed_and_all_goes_on_when_it_is_back() -> None:
    """Sealing a minority would only stop what could go on."""
    cluster = ready()
    cluster.kill(PRIMARY)
    cluster.kill(BACKUP)
    cluster.tick(100)
    assert cluster.term == 1
    assert "no majority" in cluster.controller().status()["waiting"]
    cluster.start_sequencer(BACKUP)
    cluster.tick(60)
    cluster.until_ready()
    assert cluster.term == 2
    cluster.check()


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_can_be_reached(phase: Phase) -> None:
    """The table has no state that nothing leads to."""
    assert phase in {Phase.FOLLOWING, *NEXT.values()}
