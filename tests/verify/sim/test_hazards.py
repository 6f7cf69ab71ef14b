"""What logs of this kind got wrong in production, each as a scenario in the simulator, by its number.

A scenario is a cluster without drawn faults, under the ordinary workload, to which one thing is done; then all the
promises are checked. Tested elsewhere, beside the code that they concern: H3 and H4 message by message in
test_seal_race.py; H9 does not arise (a cut never leaves a hole, and nobody writes to a position); H13: an engine's
appends are independent of each other, there is no session whose order could break; H24, H25 and H26 with the storage
node's recovery; H28: a book is there with its first append, and is deleted by an entry of the metalog, so appends stand
before or behind that; the swarm deletes books, and the checkers catch it; H30 with repair; H31 and H32 are about
processes and clients, and stand with the links and with conditions (`when=` is a mandatory token).

That a scenario fails when its remedy is off is tested in test_hazards_ablated.py.
"""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest

from boki.errors import DiskFull
from boki.log.ids import NodeId
from boki.log.membership import Role
from boki.log.quorum import majority
from boki.protocol.call_messages import LogReply
from boki.protocol.effects import DiskRoom
from boki.protocol.messages import AppendEntry, Metalog, Seal
from boki.verify.histories.checkers import find_violations
from boki.verify.histories.cursors import Wakes
from boki.verify.histories.facts import Violation
from boki.verify.histories.history import Appending, Refused
from boki.verify.sim.coordinator import NAME as ZOOKEEPER
from boki.verify.sim.log_nodes import StorageNode
from boki.verify.sim.nodes import Node
from boki.verify.sim.simulation import Simulation
from tests.verify.sim.stage import (
    SECOND,
    backups,
    cut,
    later,
    names,
    nothing,
    play,
    primary,
    slowest_gap_us,
    withhold,
)


def fill(world: Simulation, room: DiskRoom) -> None:
    for node in world.of(Role.STORAGE):
        assert isinstance(node, StorageNode)
        node.set_room(room)


@pytest.mark.parametrize("count", range(1, 6))
def test_h1_after_a_seal_no_quorum_of_unsealed_nodes_is_left(count: int) -> None:
    """Every majority that is sealed shares a member with every majority that could acknowledge."""
    for sealed in combinations(range(count), majority(count)):
        assert len(set(range(count)) - set(sealed)) < majority(count)


def test_h2_a_seal_that_one_node_never_gets() -> None:
    """The node that was not sealed, and the old primary with it, can complete nothing any more."""

    def script(world: Simulation) -> None:
        left = [str(primary(world).name), str(backups(world)[0].name)]
        cut(world, names(world.of(Role.CONTROLLER)), left[1:], 3)
        cut(world, names(world.of(Role.CONTROLLER)), left[:1], 3)
        cut(world, left[:1], names(world.of(Role.CONTROLLER)), 3)

    play(script, sequencers=5, spare_sequencers=0)


def test_h2_an_old_primary_whose_backup_comes_back_after_the_seal() -> None:
    """It continues after its term, and a backup that was sealed restarts before anybody knows of the next one."""
    _, outcome = play(nothing, faults={"handover": 2.0}, storage=3, spare_sequencers=0)
    assert outcome.seen["a primary that nobody had told went on after its term"]


def test_h5_what_one_replica_has_is_not_acknowledged() -> None:
    """It loses its disk before the others can fetch anything: then nobody was told that those records are there."""

    def script(world: Simulation) -> None:
        node, *rest = world.of(Role.STORAGE)
        first, others = [str(node.name)], names(rest)

        def begin() -> None:
            for sources, targets in ((names(world.of(Role.ENGINE)), others), (first, others), (others, first)):
                cut(world, sources, targets, 0.5)

        def wipe() -> None:
            node.crash()
            node.disk.wipe()
            node.start()

        later(world, 1.5, begin)
        later(world, 1.9, wipe)

    play(script, storage=3)


@pytest.mark.parametrize("seed", range(3))
def test_h5_a_damaged_tail_cuts_nothing_off(seed: int) -> None:
    """A storage node that lost everything says that it does not know, and the only one that has it is awaited."""

    def script(world: Simulation) -> None:
        empty, full, behind = world.of(Role.STORAGE)

        def wipe() -> None:
            full.crash()
            later(world, 1.5, full.start)
            empty.crash()
            empty.disk.wipe()
            empty.start()
            for engine in world.of(Role.ENGINE):
                engine.crash()
                later(world, 0.1, engine.start)

        senders = [*world.of(Role.ENGINE), empty, full]
        later(world, 1, cut, world, names(senders), names([behind]), 0.6)
        later(world, 1.55, wipe)

    play(script, seed=seed, storage=3)


def test_h6_a_hung_replica_blocks_neither_seal_nor_recovery() -> None:
    """With one of three sequencers stopped a term is changed, and appends hardly notice."""

    def script(world: Simulation) -> None:
        backups(world)[0].pause()
        later(world, 1, lambda: world.coordinator.change_plan(logs=2))

    world, outcome = play(script, deadline_us=10 * SECOND)
    assert outcome.terms > 1
    assert slowest_gap_us(world) < 2 * SECOND


def test_h7_appends_go_on_at_once_after_a_partition_of_the_leader() -> None:
    """Nobody drains for long: the others continue without it, and it rejoins without a pause."""

    def script(world: Simulation) -> None:
        lonely = [str(primary(world).name)]
        others = [str(name) for name in world.nodes if name != lonely[0]] + [ZOOKEEPER]
        cut(world, lonely, others, 4)
        cut(world, others, lonely, 4)

    world, outcome = play(script, chaos_us=6 * SECOND, deadline_us=10 * SECOND)
    assert outcome.terms > 1
    assert slowest_gap_us(world) < 2 * SECOND


@pytest.mark.parametrize("seed", range(6))
def test_h8_a_failover_at_any_moment_reuses_no_position(seed: int) -> None:
    """The primary dies five times at times that the seed draws; H10: whatever was read stays readable.

    It has sent what it has not stored, and is back before anybody misses it.
    """

    def script(world: Simulation) -> None:
        rng = Random(seed)

        def kill() -> None:
            node = primary(world)
            node.disk.stalled_until_us = world.clock.now_us + SECOND // 5
            later(world, 0.05, lambda: node.crash(keeps_some=False))
            later(world, 0.06, node.start)

        for number in range(5):
            later(world, number + rng.random(), kill)

    _, outcome = play(script, seed=seed, chaos_us=6 * SECOND)
    assert outcome.terms > 2


def test_h11_lost_answers_are_unknown_and_keys_make_them_safe() -> None:
    """Engines are heard of by nobody for a while: what is repeated under its key stands in the order once (H12)."""

    def script(world: Simulation) -> None:
        for number in range(4):
            engine = str(world.of(Role.ENGINE)[number % 2].name)
            later(world, number, cut, world, [engine], names(world.of(Role.GATEWAY)), 0.9)
        later(world, 2.5, primary(world).crash)

    play(script, mix={"keyed": 9, "trim": 0})


def test_h11_a_refusal_does_not_speak_for_an_engine_that_was_asked_before_and_lost() -> None:
    """One appends, its answer is lost, and it restarts; by then all disks are full, and the next one asked refuses."""

    def script(world: Simulation) -> None:
        for number in range(2):
            engine = world.of(Role.ENGINE)[number % 2]
            later(world, number, withhold, world, [str(engine.name)], names(world.of(Role.GATEWAY)), LogReply, 0.2)
            later(world, number + 0.1, fill, world, DiskRoom(False, False))
            later(world, number + 0.2, engine.crash)
            later(world, number + 0.21, engine.start)
            later(world, number + 0.5, fill, world, DiskRoom(True))

    _, outcome = play(script, mix={"keyed": 9, "trim": 0}, clients=16, pause_us=15_000, chaos_us=2 * SECOND)
    assert outcome.seen["an engine refused what a lost one may have done"]


def test_h14_a_tail_that_an_old_primary_tells_is_not_the_current_one() -> None:
    """It is alone with an engine while the others append in the next term: there, fresh reads wait for a majority."""

    def script(world: Simulation) -> None:
        lonely = [str(primary(world).name), str(world.of(Role.ENGINE)[1].name)]
        others = [
            str(name) for name, node in world.nodes.items() if node.role is not Role.GATEWAY and name not in lonely
        ]
        later(world, 1, cut, world, lonely, [*others, ZOOKEEPER], 2.5)
        later(world, 1, cut, world, [*others, ZOOKEEPER], lonely, 2.5)

    _, outcome = play(script, seed=1, mix={"tail": 9, "read": 4, "trim": 0})
    assert outcome.terms > 1


def test_h14_an_index_that_is_behind_answers_no_fresh_read() -> None:
    """An engine hears how long the metalog is, and for a while not what is in it."""

    def script(world: Simulation) -> None:
        engine = [str(world.of(Role.ENGINE)[1].name)]
        for number in range(4):
            later(world, 1 + number, withhold, world, names(world.of(Role.SEQUENCER)), engine, Metalog, 0.6)

    play(script, seed=4, mix={"append": 4, "tail": 9, "trim": 0})


def test_h15_an_entry_that_one_backup_has_is_completed_on_others_before_the_next_term() -> None:
    """That backup loses its disk as soon as engines have gone by the entry."""
    _, outcome = play(nothing, faults={"handover": 2.0}, storage=3, spare_sequencers=0, seed=2)
    assert outcome.seen["the one backup with an entry of the term before lost its disk"]


def test_h15_a_primary_that_dies_before_it_can_tell_the_others_how_far_it_was() -> None:
    """It publishes an entry to readers and is cut off from its backups: the entry is kept, a majority has it."""

    def script(world: Simulation) -> None:
        node = primary(world)
        cut(world, [str(node.name)], names(backups(world)), 2)
        later(world, 0.05, node.crash)

    play(script)


def test_h16_the_last_replica_standing_decides_nothing_alone() -> None:
    """It lacks what the others have acknowledged and restarts while they are down: they are awaited."""

    def script(world: Simulation) -> None:
        node = primary(world)
        full, short = backups(world)
        withhold(world, [str(node.name)], [str(short.name)], AppendEntry, 1)
        for first, second, third, at in ((node, full, short, 1), (*world.of(Role.STORAGE), 3.5)):
            for each in (first, second):
                later(world, at, each.crash)
                later(world, at + 2, each.start)
            later(world, at + 0.2, third.crash)
            later(world, at + 0.4, third.start)

    _, outcome = play(script, seed=12, storage=3, spare_sequencers=0)
    assert outcome.terms == 2


def test_h16_a_backup_that_lacks_entries_does_not_end_a_term_alone() -> None:
    """It is the only one that is sealed for a while; the others, who have more, are awaited."""

    def script(world: Simulation) -> None:
        node = primary(world)
        short, long = (str(backup.name) for backup in backups(world))
        withhold(world, [str(node.name)], [short], AppendEntry, 2)
        later(world, 1, node.crash)
        controllers = names(world.of(Role.CONTROLLER))
        later(world, 1, withhold, world, controllers, [long, str(node.name)], Seal, 1)
        later(world, 2.5, node.start)

    _, outcome = play(script, spare_sequencers=0)
    assert outcome.terms > 1


@pytest.mark.parametrize("seed", range(4))
def test_h17_the_power_fails_everywhere_at_once(seed: int) -> None:
    """All disks are slow, much is not synced, and everything is lost but what was: nothing acknowledged is missing."""

    def script(world: Simulation) -> None:
        def slow() -> None:
            for node in world.nodes.values():
                node.disk.stalled_until_us = world.clock.now_us + SECOND // 2

        def fail() -> None:
            for node in world.nodes.values():
                if node.role is not Role.GATEWAY:
                    node.crash()
                    later(world, 0.1, node.start)

        later(world, 1, slow)
        later(world, 1.1 + 0.1 * seed, fail)
        later(world, 3, fail)

    _, outcome = play(script, seed=seed, storage=3)
    assert outcome.seen["a crash lost what was not synced"]


def test_h18_a_replica_comes_back_at_the_same_address_with_an_empty_disk() -> None:
    """It fills itself again, and then another one may be lost: in the end nobody has the disk that it began with."""

    def script(world: Simulation) -> None:
        def wipe(name: str) -> None:
            node = world.nodes[NodeId(name)]
            node.crash()
            node.disk.wipe()
            node.start()

        for number in (1, 2, 3):
            later(world, 1.5 * number - 0.5, wipe, f"storage-{number}")
            later(world, 1.5 * number, wipe, f"sequencer-{number}")

    _, outcome = play(script, storage=3, spare_sequencers=0, chaos_us=6 * SECOND, checkpoint_us=1000 * SECOND)
    assert outcome.terms > 3


def test_h18_what_a_lost_disk_has_said_counts_no_more() -> None:
    """A replica says that it has a batch and loses it; then another one gets it, and loses it, too."""
    _, outcome = play(nothing, faults={"swap": 2.0}, storage=3, seed=3)
    assert outcome.seen["disks were wiped one after the other"]


def test_h18_what_a_sequencer_said_before_it_lost_its_disk_counts_no_more() -> None:
    """The only one that has all that was acknowledged is down, so the term does not end before it is back."""

    def script(world: Simulation) -> None:
        node = primary(world)
        full, short = backups(world)
        withhold(world, [str(node.name)], [str(short.name)], AppendEntry, 3)

        def blow() -> None:
            node.crash()
            full.crash()
            full.disk.wipe()
            full.start()

        later(world, 1, blow)
        later(world, 3.5, node.start)

    _, outcome = play(script, spare_sequencers=0)
    assert outcome.terms == 2


def test_h19_membership_changes_while_nodes_are_cut_off_and_die() -> None:
    """A node is drained, another one is cut off, three are killed, and the number of logs changes."""

    def script(world: Simulation) -> None:
        others = [str(name) for name in world.nodes if name != "storage-1"]
        cut(world, ["storage-1"], others, 2)
        cut(world, others, ["storage-1"], 2)
        for name in ("storage-2", "sequencer-1", "engine-1"):
            later(world, 1, world.nodes[NodeId(name)].crash)
            later(world, 2.5, world.nodes[NodeId(name)].start)
        later(world, 1.2, lambda: world.coordinator.change_plan(draining=(NodeId("storage-4"),), logs=2))

    _, outcome = play(script, storage=5)
    assert outcome.terms > 1


def test_h20_a_failed_sync_stops_the_node_and_a_full_disk_only_refuses() -> None:
    """Each kind of node meets a failed sync; none repeats it, and the others carry on. Then all storage nodes do."""

    def script(world: Simulation) -> None:
        def fail(*nodes: str) -> None:
            for name in nodes:
                world.nodes[NodeId(name)].disk.fail_next_sync = True

        for number, name in enumerate(("storage-1", "sequencer-1", "storage-2", "sequencer-2")):
            later(world, 1 + number, fail, name)
        later(world, 4.5, fail, *names(world.of(Role.STORAGE)))

    _, outcome = play(script)
    assert outcome.seen["a sync failed"] >= 3


def test_h20_a_write_that_finds_no_space_stops_the_node_until_there_is_some() -> None:
    """All disks of storage nodes are full before anybody could be told: nothing counts that was not written."""

    def script(world: Simulation) -> None:
        def take_space(nodes: list[Node], is_full: bool) -> None:
            for node in nodes:
                node.disk.is_full = is_full

        for number, nodes in enumerate((world.of(Role.STORAGE), world.of(Role.SEQUENCER)[:1], world.of(Role.ENGINE))):
            later(world, 1 + number, take_space, nodes, True)
            later(world, 1.5 + number, take_space, nodes, False)

    _, outcome = play(script)
    assert outcome.seen["a write found no space"] >= 4


def test_h20_when_all_disks_are_full_appends_are_refused_at_once() -> None:
    """Nobody waits until a deadline to be told; and when there is room again, all continue without a restart."""

    def script(world: Simulation) -> None:
        later(world, 1, fill, world, DiskRoom(False, False))
        later(world, 3, fill, world, DiskRoom(True))
        full_us.append(world.clock.now_us + SECOND * 3 // 2)

    full_us: list[int] = []
    _, outcome = play(script)
    asked = [
        call
        for call in outcome.history.calls
        if isinstance(call.request, Appending) and 0 <= call.start_us - full_us[0] < SECOND and not call.is_abandoned
    ]
    waited = [call for call in asked if call.end_us - call.start_us > SECOND // 4]
    assert [Violation("full disks refuse", str(call)) for call in waited] == []
    refused = [call for call in asked if isinstance(call.result, Refused) and call.result.code == DiskFull.code]
    assert refused, "no operations were refused: all clients wait"


def test_h21_bits_rot_on_a_minority() -> None:
    """Every batch of one storage node is damaged; what is read is right, and the node is repaired by its peers."""
    sound: dict[bytes, bytes] = {}

    def script(world: Simulation) -> None:
        node = world.nodes[NodeId("storage-1")]

        def rot() -> None:
            for _ in range(200):
                node.disk.rot(b"b")

        def look() -> None:
            sound.update(node.disk.scan(b"b", b"c"))

        def rot_again() -> None:
            """What is damaged now, no restart finds."""
            rot()
            for key in [key for key, value in sound.items() if node.disk.get(key) == value]:
                del sound[key]

        later(world, 2, rot)
        later(world, 3, node.crash)
        later(world, 3.2, node.start)
        later(world, 4, look)
        later(world, 4.5, rot_again)

    world, outcome = play(script, storage=3)
    assert outcome.seen["damaged bytes were noticed"]
    assert outcome.seen["a storage node was repaired from a peer"]
    disk = world.nodes[NodeId("storage-1")].disk
    mended = [key for key, value in sound.items() if disk.get(key) == value]
    assert mended, "no damaged batch was mended"


@pytest.mark.parametrize("seed", range(3))
def test_h22_trims_under_readers_who_wait(seed: int) -> None:
    """Many trims, long polls and page readers at once, across a term: nobody hangs, nothing rises again (H23)."""

    def script(world: Simulation) -> None:
        later(world, 1, primary(world).crash)
        later(world, 2, world.of(Role.ENGINE)[0].crash)
        later(world, 2.2, world.of(Role.ENGINE)[0].start)

    play(script, seed=seed, mix={"trim": 3, "poll": 6, "read": 3})


def test_h27_a_parked_reader_is_woken_across_a_change_of_terms() -> None:
    """It waits while nothing comes, the term changes, and what is appended then reaches it."""

    def script(world: Simulation) -> None:
        for number in range(4):
            later(world, 1 + number, lambda: world.coordinator.change_plan(logs=1 + world.coordinator.plan.logs % 3))

    world, outcome = play(
        script, seed=10, mix={"poll": 9, "trim": 0}, pause_us=70_000, poll_us=4 * SECOND, deadline_us=8 * SECOND
    )
    assert outcome.terms > 3
    assert outcome.seen["a reader was parked across a term change"]
    assert find_violations(world.history, [Wakes(1_500_000)]) == []


def test_h29_two_controllers_change_terms_at_once() -> None:
    """Both believe that they lead and want different views, with answers in doubt: one chain comes of it."""

    def script(world: Simulation) -> None:
        first, second = world.of(Role.CONTROLLER)

        def begin() -> None:
            first.hear_leadership(True)
            second.hear_leadership(True)
            # for the second one a backup is lost, so it wants another instead
            cut(world, names(backups(world)[:1]), [str(second.name)], 1)
            later(world, 0.7, primary(world).crash)

        for number in range(3):
            later(world, 0.2 + 1.5 * number, begin)
            later(world, 1.6 + 1.5 * number, lambda: [node.start() for node in world.of(Role.SEQUENCER)] and None)

    _, outcome = play(script, seed=5, faults={"doubt": 0.5, "stale": 0.5})
    assert outcome.terms > 1
    assert outcome.seen["a view lost the compare-and-set"]
