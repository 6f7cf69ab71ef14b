"""Ended terms become whole on every sequencer that took part, also on one that lost its disk."""

from __future__ import annotations

from boki.log.ids import NodeId
from boki.protocol.messages import DropEntries, FetchMetalog, InstallView
from boki.sequencer.core import SequencerCore
from tests.members import view
from tests.sequencer.test_core import BACKUP, NODES, PRIMARY, THIRD, cluster, report
from tests.world import World

SECOND = view(2, previous_ends=(4,))


def ended(*, without: str) -> World:
    """Term 1 has ended with four entries, and one sequencer was away since its first."""
    world = cluster()
    world.crash(without)
    for until in (1, 2, 3):
        report(world, 1, until)
        report(world, 2, until)
    for node in NODES:
        world.tell(node, InstallView((SECOND,)))
    world.run()
    return world


def come_back(world: World, node: str, incarnation: int = 1) -> SequencerCore:
    core = SequencerCore(NodeId(node), incarnation, world.disk(node))
    world.add(node, core)
    world.tell(node, InstallView((view(), SECOND)))
    world.run()
    world.tick(30)
    return core


def length(core: SequencerCore) -> int:
    return core._stores[1, 0].length


def test_a_sequencer_that_was_away_fetches_the_end_of_a_term() -> None:
    """What a majority held when the term ended, everybody holds soon after."""
    world = ended(without=THIRD)
    assert length(come_back(world, THIRD)) == 4


def test_a_wiped_sequencer_fetches_everything_so_that_the_next_loss_loses_nothing() -> None:
    """Two disks lost one after the other, with time in between: the term is still read (hazard H18)."""
    world = ended(without=THIRD)
    come_back(world, THIRD)
    for node in (PRIMARY, BACKUP):
        world.crash(node)
        world.disks.pop(NodeId(node))
        assert length(come_back(world, node, incarnation=2)) == 4
    world.crash(THIRD)
    world.tell(BACKUP, FetchMetalog(1, 0, 0), "reader-1")
    world.run()
    answer = next(message for _, to, message in world.sent if to == "reader-1")
    assert len(answer.entries) == 4


def test_what_is_whole_is_not_looked_at_again_after_a_restart() -> None:
    """A start costs the same however many terms there have been."""
    world = ended(without=THIRD)
    come_back(world, THIRD)
    world.crash(THIRD)
    core = come_back(world, THIRD)
    assert core.history.term == 2
    assert (1, 0) not in core._stores


def test_what_the_others_have_dropped_is_skipped() -> None:
    """Nobody will ask for it: a checkpoint covers it."""
    world = ended(without=THIRD)
    for node in (PRIMARY, BACKUP):
        world.tell(node, DropEntries(2, 0, 0), "engine-1")
    world.run()
    core = come_back(world, THIRD)
    assert core.history.term == 2


def test_entries_above_the_end_of_a_term_are_not_taken_over() -> None:
    """They never existed."""
    world = cluster()
    world.crash(THIRD)
    for until in (1, 2, 3, 4, 5):
        report(world, 1, until)
        report(world, 2, until)
    for node in NODES:
        world.tell(node, InstallView((SECOND,)))
    world.run()
    assert length(come_back(world, THIRD)) == 4
