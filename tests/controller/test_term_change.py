"""The controller: a term ends with everything acknowledged in it, however messages are lost."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from boki.controller.plans import Plan
from boki.controller.term_change import NEXT, Step, TermChange
from boki.coordination.coordinator import LocalCoordinator
from boki.errors import ConfigError
from boki.log.ids import NodeId
from boki.log.metalog import Cut, OpenShard, make_position
from boki.log.view import View
from boki.protocol.messages import AppendEntry, Complete, InstallView, Seal, SealedEntries
from boki.sequencer.core import SequencerCore
from tests.members import ENGINE, SHARD, view
from tests.world import MemoryDisk, World

NODES = view().sequencers
ENTRIES = [OpenShard(SHARD, ENGINE, view().storage), *(Cut(n, ((SHARD, n),)) for n in range(1, 6))]


def plan() -> Plan:
    last = view()
    return Plan(1, last.sequencers, last.incarnations, last.storage, 3, 2)


def world_with(lengths: tuple[int, ...]) -> World:
    """Three sequencers of term 1 that hold this many of the entries."""
    world = World()
    for node, length in zip(NODES, lengths, strict=True):
        core = SequencerCore(node, 1, world.disk(node))
        world.add(node, core)
        world.tell(node, InstallView((view(),)))
        world.run()
        # as a backup of a primary elsewhere would: straight into the store, durably
        world.perform(node, [_store(core, length)])  # type: ignore[list-item]
    return world


def _store(core: SequencerCore, length: int) -> object:
    from boki.protocol.effects import Store

    return Store(core._stores[1, 0].add("append", 0, ENTRIES[:length]))


def change(world: World, node: str = "controller-1") -> TermChange:
    core = TermChange(view(), plan())
    world.add(node, core)
    return core


def view_of(world: World) -> View:
    assert world.proposed is not None
    return world.proposed


@pytest.mark.parametrize("lengths", list(product((0, 2, 6), repeat=3)))
def test_the_next_term_starts_after_everything_that_a_majority_held(lengths: tuple[int, ...]) -> None:
    """Whatever was on two of three sequencers is kept, and the end is durable on a majority."""
    world = world_with(lengths)
    change(world)
    world.tick(10)
    installed = view_of(world)
    (end,) = installed.previous_ends
    assert end >= sorted(lengths)[1]
    assert installed.term == 2
    held = [node for node in NODES if world.cores[node]._stores[1, 0].length >= end]  # type: ignore[attr-defined]
    assert len(held) >= 2


@pytest.mark.parametrize("lost", NODES)
def test_one_lost_sequencer_stops_nothing(lost: NodeId) -> None:
    """A majority is enough to end a term."""
    world = world_with((6, 6, 2))
    world.crash(lost)
    change(world)
    world.tick(10)
    assert view_of(world).previous_ends == (6,)


def test_two_lost_sequencers_stop_the_change_and_it_goes_on_when_one_is_back() -> None:
    """Without a majority nothing is decided, and nothing wrong is."""
    world = world_with((6, 6, 2))
    world.crash(NODES[0])
    world.crash(NODES[1])
    change(world)
    world.tick(20)
    assert world.proposed is None
    world.add(NODES[1], SequencerCore(NODES[1], 1, world.disk(NODES[1])))
    world.tell(NODES[1], InstallView((view(),)))
    world.run()
    world.tick(20)
    assert view_of(world).previous_ends == (6,)


def test_a_wiped_sequencer_does_not_count() -> None:
    """A disk that is not the one that the view names may have forgotten what it acknowledged (hazard H18)."""
    world = world_with((6, 0, 6))
    world.crash(NODES[0])
    world.crash(NODES[2])
    world.disks.pop(NODES[2])
    world.add(NODES[2], SequencerCore(NODES[2], 2, world.disk(NODES[2])))
    world.tell(NODES[2], InstallView((view(),)))
    world.run()
    change(world)
    world.tick(20)
    assert world.proposed is None


@pytest.mark.parametrize("seed", range(10))
def test_lost_messages_only_cost_time(seed: int) -> None:
    """Each step is repeated until it is answered, though every second message is lost."""
    world = world_with((2, 6, 0))
    dice = Random(seed)
    world.loses = lambda *_: dice.random() < 0.5
    change(world)
    world.tick(400)
    assert view_of(world).previous_ends[0] >= 2


@pytest.mark.parametrize("lengths", [(6, 6, 0), (6, 2, 0)])
def test_a_change_whose_disks_take_longer_than_a_stall_comes_to_its_end(lengths: tuple[int, ...]) -> None:
    """What a sequencer has confirmed stays so when the change begins again."""
    world = world_with(lengths)
    world.crash(NODES[2])
    world.holds_syncs |= set(NODES[:2])
    world.loses = lambda _sender, _to, message: isinstance(message, AppendEntry)
    change(world)
    for _ in range(4):
        world.tick(24)
        for node in NODES[:2]:
            world.sync(node)
        world.run()
    assert view_of(world).previous_ends == (6,)


def test_a_seal_that_is_told_late_counts_for_a_completion() -> None:
    """One of the majority dies before it is completed, and another has as much."""
    world = world_with((6, 2, 6))
    world.holds_syncs.add(NODES[2])
    world.loses = lambda _sender, _to, message: isinstance(message, AppendEntry | Complete)
    change(world)
    world.tick(5)
    assert world.messages(Complete)
    assert world.proposed is None
    world.sync(NODES[2])
    world.run()
    assert view_of(world).previous_ends == (6,)


def test_a_node_that_was_lost_since_a_stall_counts_no_more() -> None:
    """The one that has the longest log dies with it: the next one is copied before a view stands."""
    world = world_with((6, 2, 5))
    world.holds_syncs.add(NODES[2])
    world.loses = lambda _sender, _to, message: isinstance(message, AppendEntry | SealedEntries)
    change(world)
    world.tick(5)
    world.sync(NODES[2])
    world.run()
    world.crash(NODES[0])
    world.holds_syncs.clear()
    world.loses = lambda _sender, _to, message: isinstance(message, AppendEntry)
    world.tick(60)
    assert view_of(world).previous_ends == (5,)
    assert world.cores[NODES[1]]._stores[1, 0].length == 5  # type: ignore[attr-defined]


@pytest.mark.parametrize(("applied", "is_lost"), [(6, False), (7, True)])
def test_a_term_does_not_end_below_what_a_node_has_applied(applied: int, is_lost: bool) -> None:
    """What was applied was committed: if a majority of the sequencers has less, a disk has forgotten, and no view is
    proposed that would forget the records, too.
    """
    world = world_with((6, 6, 2))
    core = change(world)
    core.note_applied([(NodeId("storage-2"), {0: make_position(1, applied)}), (ENGINE, {0: make_position(2, 9)})])
    world.tick(10)
    assert (world.proposed is not None) is not is_lost
    assert bool(core.lost) is is_lost
    if is_lost:
        assert core.lost.startswith("storage-2 has applied 7 entries of log 0 in term 1, and a majority of the")
        core.note_applied([(NodeId("storage-2"), {0: make_position(1, 5)})])  # a claim is not taken back
        world.tick(40)
        assert world.proposed is None


def test_two_controllers_at_once_name_an_end_that_keeps_what_was_acknowledged() -> None:
    """Both may seal, complete and propose; the compare-and-set takes the first, and both ends are safe."""
    world = world_with((6, 2, 6))
    change(world, "controller-1")
    change(world, "controller-2")
    world.tick(20)
    assert view_of(world).previous_ends == (6,)


def test_after_the_seal_of_a_majority_the_old_term_commits_nothing() -> None:
    """The seal race: an append that comes after the seal is refused, so the chosen end stays true."""
    world = world_with((2, 2, 2))
    change(world)
    world.tick(10)
    for backup in NODES[1:]:
        world.tell(backup, AppendEntry(1, 0, 2, (ENTRIES[2],), 2), NODES[0])
    world.run()
    assert all(world.cores[node]._stores[1, 0].length == 2 for node in NODES)  # type: ignore[attr-defined]
    assert world.messages(Seal)


@pytest.mark.parametrize("step", list(Step))
def test_every_step_can_be_reached(step: Step) -> None:
    """The table of steps has no step that nothing leads to."""
    assert step in {Step.SEALING, *NEXT.values()}


def test_views_are_installed_by_compare_and_set() -> None:
    """The second view of a term is refused; the chain survives; incarnations never repeat."""
    disk = MemoryDisk()
    coordinator = LocalCoordinator(disk)
    assert coordinator.install(view(1))
    assert not coordinator.install(view(1, storage=1))
    assert not coordinator.install(view(3))
    assert coordinator.install(view(2))
    again = LocalCoordinator(disk)
    assert [installed.term for installed in again.views()] == [1, 2]
    assert [coordinator.next_incarnation(), again.next_incarnation()] == [1, 2]


def test_a_plan_that_cannot_work_is_refused_with_every_problem() -> None:
    """A view is checked when it is made."""
    with pytest.raises(ConfigError, match=r"write_quorum 4.*storage nodes"):
        Plan(1, NODES, {}, view().storage[:1], 3, 4).first_view()
