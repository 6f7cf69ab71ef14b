"""The controller: whatever dies, appends continue within a second or so, and nothing that was told is ever untold."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import msgspec
import pytest

from boki.controller.core import ControllerConfig
from boki.controller.heartbeats import Heartbeats
from boki.controller.inputs import ConnectionEnded, Installed
from boki.controller.lifecycle import NEXT, Phase
from boki.log.ids import NodeId
from boki.log.view import View
from boki.protocol.effects import Send
from boki.protocol.follower import COORDINATOR
from boki.protocol.messages import AskTail, DropEntries, Pong, TellTail
from boki.sequencer.core import SequencerCore
from boki.sequencer.primary import NEARLY_FULL
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


def test_the_end_of_a_connection_ends_the_calm() -> None:
    """The process at its other end may be dead: all are asked at the next tick, and not up to half a second later."""
    cluster = ready()
    cluster.tick(400)
    core, now_us = cluster.controller(), cluster.now_us
    assert core.rests_until(now_us) > now_us + 100_000
    assert not list(core.receive(core.node, ConnectionEnded(), now_us))
    assert core.rests_until(now_us) < now_us + 100_000


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
    """One hung replica must not hold up a seal (hazard H6); when it continues it learns that its term is over (H7)."""
    cluster = ready()
    cluster.pause(PRIMARY)
    cluster.tick(60)
    assert cluster.term == 2
    assert cluster.writer.longest_stall_us <= STALL_US
    cluster.resume(PRIMARY)
    cluster.tick(60)
    assert cluster.term == 2
    cluster.check()


@pytest.mark.parametrize("hung", [BACKUP, THIRD])
def test_a_hung_backup_does_not_hold_up_a_change(hung: str) -> None:
    """Two of three are enough for every step (hazard H6: done in less than two seconds)."""
    cluster = ready()
    cluster.pause(hung)
    cluster.want(logs=2)
    cluster.tick(10)
    assert cluster.term == 2
    cluster.until_ready()
    assert cluster.writer.longest_stall_us <= 2_000_000
    cluster.resume(hung)
    cluster.check()


def test_the_tail_that_an_old_primary_tells_is_not_taken_for_the_current_one() -> None:
    """It was stopped while the next term began: its answer names its own term, which is over (hazard H14)."""
    cluster = ready()
    cluster.loses = lambda sender, to, _: PRIMARY in (sender, to)
    cluster.tick(60)
    cluster.loses = lambda *_: False
    cluster.tell(PRIMARY, AskTail(1, 0), "engine-9")
    cluster.run()
    (answer,) = cluster.messages(TellTail)
    assert answer.term < cluster.term


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
    """Sealing a minority would only stop what could continue."""
    cluster = ready()
    cluster.kill(PRIMARY)
    cluster.kill(BACKUP)
    cluster.tick(100)
    assert cluster.term == 1
    assert "no majority" in cluster.controller().status()["waiting"]
    assert not cluster.controller().reaches_quorum
    cluster.start_sequencer(BACKUP)
    cluster.tick(60)
    cluster.until_ready()
    assert cluster.term == 2
    assert cluster.controller().reaches_quorum
    cluster.check()


@pytest.mark.parametrize("steps", range(40))
def test_a_leader_that_dies_at_any_step_is_followed_by_another(steps: int) -> None:
    """The next one begins with what the nodes say and finishes; appends wait a little longer, that is all."""
    cluster = ready(controllers=2)
    cluster.kill(PRIMARY)
    cluster.tick(8)
    cluster.dies_after[NodeId("controller-1")] = steps
    cluster.tick(8)
    cluster.crash("controller-1")
    cluster.unregister("controller-1")
    cluster.lead("controller-2")
    cluster.tick(60)
    cluster.until_ready()
    assert cluster.term in (2, 3)
    cluster.check()


def test_two_leaders_at_once_make_one_chain() -> None:
    """Both see the loss, both act: one view wins, and the other takes it over (hazard H29)."""
    cluster = ready(controllers=2)
    cluster.lead("controller-2")
    cluster.kill(PRIMARY)
    cluster.tick(60)
    assert cluster.term == 2
    assert {cluster.controller(f"controller-{n}").phase for n in (1, 2)} == {Phase.WATCHING}
    cluster.check()


def test_the_word_on_an_older_proposal_is_not_taken_for_the_one_of_now() -> None:
    """Of two proposals of a term the first may have won, when the second is waited for: what stands is asked for.

    A controller that took its own for it would continue from a view that nobody else has (simulator, seed 326).
    """
    cluster = ready()
    held: list[View] = []
    cluster.coordinator.install = lambda view: bool(held.append(view))  # type: ignore[method-assign,func-returns-value]
    cluster.kill(PRIMARY)
    cluster.tick(40)
    older = msgspec.structs.replace(held[-1], start_time_us=held[-1].start_time_us + 1)
    cluster.tell("controller-1", Installed(older, True), COORDINATOR)
    cluster.run()
    assert cluster.controller("controller-1").chain.current.term == 1


def test_a_leader_without_the_coordinator_seals_nothing() -> None:
    """It could not install what follows; the data path continues in the current view."""
    cluster = ready()
    cluster.lead("controller-1", connected=False)
    cluster.kill(BACKUP)
    cluster.want(logs=2)
    cluster.tick(60)
    assert cluster.term == 1
    cluster.lead("controller-1")
    cluster.tick(60)
    cluster.until_ready()
    assert cluster.term == 2
    assert cluster.view.log_count == 2


def test_a_controller_that_was_stopped_itself_blames_nobody() -> None:
    """After ten seconds of not running it asks first, and nothing is sealed."""
    cluster = ready()
    cluster.pause("controller-1")
    cluster.tick(200)
    cluster.resume("controller-1")
    cluster.tick(60)
    assert cluster.term == 1


def test_a_controller_whose_ticks_come_late_still_notices_a_dead_primary() -> None:
    """A busy machine makes it slower, not blind."""
    heartbeats = Heartbeats(100_000, 500_000)
    now_us = 1_000_000
    for _ in range(5):
        heartbeats.tick({NodeId(PRIMARY): NodeId(PRIMARY)}, now_us, leads=True)
        now_us += 400_000
    assert heartbeats.silent() == [PRIMARY]


def test_one_role_answers_for_its_process() -> None:
    """A leader pings it in each round and the others seldom; a process that dies is missed with all its roles, soon."""
    names = {NodeId(f"{role}-{n}"): NodeId(f"node-{n}") for n in (1, 2) for role in ("sequencer", "storage", "engine")}
    heartbeats, pings, now_us = Heartbeats(100_000, 500_000), Counter[NodeId](), 1_000_000
    for round_number in range(57):
        now_us += 100_000
        for effect in heartbeats.tick(names, now_us, leads=True):
            assert isinstance(effect, Send)
            if round_number < 50:
                pings[effect.to] += 1
            if round_number < 50 or names[effect.to] == "node-1":
                heartbeats.hear(effect.to, Pong(1, 1, 1, applied={0: round_number}), now_us)
    assert set(pings.values()) == {50, 13}
    assert pings["sequencer-1"] == pings["sequencer-2"] == 50
    assert heartbeats.silent() == ["engine-2", "sequencer-2", "storage-2"]


def test_a_controller_that_follows_pings_seldom_and_knows_who_is_silent() -> None:
    """Before it leads, its predecessor's session has run out."""
    heartbeats, pings, now_us = Heartbeats(100_000, 500_000), 0, 1_000_000
    for _ in range(20):
        now_us += 100_000
        for effect in heartbeats.tick({NodeId(n): NodeId(n) for n in (PRIMARY, THIRD)}, now_us, leads=False):
            pings += 1
            assert isinstance(effect, Send)
            if effect.to == THIRD:
                heartbeats.hear(effect.to, Pong(1, 1, 1), now_us)
    assert pings == 10
    assert heartbeats.silent() == [PRIMARY]


def test_a_partitioned_primary_is_replaced_and_serves_nothing_when_it_is_back() -> None:
    """Five seconds alone: nothing of its term is published any more, its requests are refused (hazard H7)."""
    cluster = ready()
    cluster.loses = lambda sender, to, _: PRIMARY in (sender, to)
    cluster.tick(100)
    assert cluster.term == 2
    assert cluster.writer.longest_stall_us <= STALL_US
    cluster.loses = lambda *_: False
    before = len(cluster.history.entries)
    cluster.tick(20)
    assert len(cluster.history.entries) > before
    assert cluster.term == 2
    cluster.check()


def test_a_wiped_sequencer_counts_again_after_one_more_term() -> None:
    """With another disk it is another one: its word counts for nothing until a view names it (hazard H18)."""
    cluster = ready()
    cluster.kill(THIRD)
    cluster.disks.pop(NodeId(THIRD))
    cluster.start_sequencer(THIRD, incarnation=2)
    cluster.tick(60)
    cluster.until_ready()
    assert cluster.term == 2
    assert cluster.view.incarnations[NodeId(THIRD)] == 2
    cluster.kill(BACKUP)
    cluster.tick(60)
    cluster.check()


def test_a_wiped_primary_leads_nothing_and_forgets_nothing() -> None:
    """It must not begin its term again from an empty disk: the others hold what was told."""
    cluster = ready()
    cluster.kill(PRIMARY)
    cluster.disks.pop(NodeId(PRIMARY))
    cluster.start_sequencer(PRIMARY, incarnation=2)
    cluster.tick(60)
    cluster.until_ready()
    assert cluster.term == 2
    cluster.check()


def test_the_operator_changes_the_number_of_logs() -> None:
    """A new term with more logs, then one with fewer; appends continue in all of them."""
    cluster = ready()
    for logs in (4, 2):
        cluster.want(logs=logs)
        cluster.tick(20)
        cluster.until_ready()
        assert cluster.view.log_count == logs
        cluster.check()


def test_the_operator_changes_sequencers_by_name_and_by_number() -> None:
    """One change at a time; old terms are still read from their old sequencers (hazard H19)."""
    cluster = ready()
    for number in (4, 5):
        cluster.start_sequencer(f"sequencer-{number}")
    cluster.tick(20)
    assert cluster.term == 1, "a spare sequencer is no reason for a new term"
    cluster.want(sequencers=5)
    cluster.tick(20)
    cluster.until_ready()
    assert len(cluster.view.sequencers) == 5
    names = tuple(NodeId(f"sequencer-{n}") for n in (3, 4, 5))
    cluster.want(sequencers=3, sequencer_names=names)
    cluster.tick(20)
    cluster.until_ready()
    assert cluster.view.sequencers == names
    cluster.check()
    assert cluster.controller().status()["former_sequencers_needed"] == [PRIMARY, BACKUP]
    cluster.tell(names[1], DropEntries(cluster.term, 0, 0))
    cluster.tick(10)
    assert cluster.controller().status()["former_sequencers_needed"] == []


def test_a_plan_that_must_wait_says_so_and_breaks_nothing() -> None:
    """What cannot be yet, or ever, is told; the term continues."""
    cluster = ready()
    for changes, words in (
        ({"sequencers": 5}, "there are 3"),
        ({"sequencers": 4}, "odd number"),
        ({"sequencers": 3, "sequencer_names": ("nobody",)}, "nobody must answer"),
        ({"sequencer_names": (), "replicas": 3, "write_quorum": 2}, "as many storage nodes"),
        ({"replicas": 1, "write_quorum": 2}, "write_quorum 2"),
    ):
        cluster.want(**changes)
        cluster.tick(20)
        assert words in cluster.controller().status()["waiting"]
        assert cluster.term == 1


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_sequencer_that_leaves_is_given_no_log(is_gone: bool) -> None:
    """Its last answer is still young: it would be noticed a second later, and the term changed again."""
    cluster = ready()
    member = cluster.members[NodeId(PRIMARY)]
    cluster.members[member.node] = msgspec.structs.replace(member, is_leaving=True)
    if is_gone:
        cluster.kill(PRIMARY)
        cluster.unregister(PRIMARY)
    cluster.want(logs=2)
    cluster.tick(10)
    assert cluster.term == 2
    assert PRIMARY not in cluster.view.primaries


def test_a_sequencer_gone_for_long_gives_its_place_to_a_spare_one() -> None:
    """So that the next loss finds a majority again; without a spare it stays named."""
    cluster = Cluster(config=ControllerConfig(repair_after_us=5_000_000))
    cluster.until_ready()
    cluster.kill(THIRD)
    cluster.tick(200)
    assert cluster.term == 1
    cluster.start_sequencer("sequencer-4")
    cluster.tick(20)
    cluster.until_ready()
    assert cluster.view.sequencers == (PRIMARY, BACKUP, "sequencer-4")
    cluster.kill(PRIMARY)
    cluster.tick(60)
    cluster.until_ready()
    cluster.check()


def test_a_log_that_nears_its_last_position_gets_a_new_term() -> None:
    """35 bits are many, not endless."""
    cluster = ready()
    primary = cluster.cores[NodeId(PRIMARY)]
    assert isinstance(primary, SequencerCore)
    primary._primaries[0].ordered_count = NEARLY_FULL
    cluster.tick(60)
    cluster.until_ready()
    assert cluster.term == 2


def test_a_new_primary_that_dies_before_it_leads_is_replaced_at_once_after_many_terms_too() -> None:
    """The pause after terms that ended soon, 16 s at last, is for those who are alive, and slow."""
    cluster = Cluster(sequencers=5)
    cluster.until_ready()
    for _ in range(4):
        name = cluster.view.primaries[0]
        cluster.kill(name)
        cluster.until_ready()
        cluster.start_sequencer(name)
        cluster.tick(30)
    controller, term = cluster.controller(), cluster.term
    cluster.kill(cluster.view.primaries[0])
    while cluster.term == term:
        cluster.tick()
    cluster.kill(cluster.view.primaries[0])
    assert controller.phase is Phase.RESTING
    began_at = cluster.now_us
    cluster.until_ready()
    assert cluster.now_us - began_at <= STALL_US + 1_000_000
    assert cluster.term == term + 2


def test_losses_one_after_another_are_all_survived() -> None:
    """Kill, restart, kill the next: each time a term more, and nothing lost."""
    cluster = ready(controllers=2)
    for number in range(1, 7):
        name = cluster.view.primaries[0]
        cluster.kill(name)
        cluster.tick(40)
        cluster.start_sequencer(name)
        cluster.tick(20)
        cluster.until_ready()
        assert cluster.term == number + 1
    cluster.check()


def test_status_tells_who_is_silent_and_how_long_changes_took() -> None:
    """An operator sees the reason and the duration of each change; controllers hear each other, too."""
    cluster = ready(controllers=2)
    cluster.kill(PRIMARY)
    cluster.tick(60)
    status = cluster.controller().status()
    assert status["silent"] == [PRIMARY]
    (change,) = status["changes"]
    assert PRIMARY in change["reason"]
    assert change["duration_ms"] <= 150


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_can_be_reached(phase: Phase) -> None:
    """The table has no state that nothing leads to."""
    assert phase in {Phase.FOLLOWING, *NEXT.values()}
