"""Cuts that run ahead: proposed before reports, kept behind their records, and completed behind them, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from boki.controller.plans import Plan
from boki.controller.term_change import TermChange
from boki.log.ids import NodeId
from boki.log.metalog import Cut, OpenShard, decode_entry, encode_entry
from boki.log.view import View
from boki.protocol.messages import (
    AppendEntry,
    BatchesFetched,
    Complete,
    Completed,
    EntriesStored,
    FetchMetalog,
    InstallView,
    Metalog,
    RequestEntry,
    Seal,
    StoreBatch,
)
from boki.sequencer.core import SequencerCore
from boki.storage.core import StorageCore
from tests.members import ENGINE, SHARD, batch, view
from tests.world import World

STORAGE = view().storage
AHEAD = view(beside=STORAGE)
PRIMARY, BACKUP, THIRD = AHEAD.sequencers
BESIDE_PRIMARY, BESIDE_BACKUP, BESIDE_THIRD = STORAGE
BATCH = StoreBatch(batch(0, b"one", b"two"))
CUT = ((SHARD, 2),)


def cluster(term: View = AHEAD, *, has_mates: bool = True) -> World:
    """Three nodes with both roles, one open shard, and an engine that listens."""
    world = World()
    for sequencer, storage in zip(term.sequencers, term.storage, strict=True):
        mates = (storage, sequencer) if has_mates else (None, None)
        world.add(sequencer, SequencerCore(sequencer, 1, world.disk(sequencer), mates[0]))
        world.add(storage, StorageCore(storage, 1, world.disk(storage), mate=mates[1]))
        world.tell(storage, InstallView((term,)))
        world.tell(sequencer, InstallView((term,)))
    world.run()
    world.tell(PRIMARY, FetchMetalog(1, 0, 0), ENGINE)
    world.tell(PRIMARY, RequestEntry(1, 0, OpenShard(SHARD, ENGINE, STORAGE)), ENGINE)
    world.run()
    world.tick(4)
    world.sent.clear()
    return world


def send(world: World, *storage: NodeId) -> None:
    for node in storage:
        world.tell(node, BATCH, ENGINE)
    world.run()


def cuts(world: World) -> list[Cut]:
    """What the engine was told to be ordered."""
    told = [message for _, to, message in world.sent if to == ENGINE and isinstance(message, Metalog)]
    return [entry for message in told for entry in message.entries if isinstance(entry, Cut)]


def length(world: World, sequencer: NodeId) -> int:
    core = world.cores[sequencer]
    assert isinstance(core, SequencerCore)
    return core._stores[1, 0].length


def test_a_cut_is_proposed_before_any_report() -> None:
    """The record and its cut are on their way at the same time, and no report is."""
    world = cluster()
    send(world, *STORAGE)
    assert [cut.until for cut in cuts(world)] == [CUT]
    assert cuts(world)[0].is_ahead
    assert not [message for _, _, message in world.sent if type(message).__name__ == "ShardProgress"]


def test_a_backup_stores_a_cut_only_behind_its_records() -> None:
    """It waits for them, and is not counted until then."""
    world = cluster()
    world.loses = lambda _sender, to, message: to in STORAGE and type(message).__name__ == "FetchBatches"
    before = length(world, BACKUP)
    send(world, BESIDE_PRIMARY)
    assert length(world, PRIMARY) == before + 1
    assert length(world, BACKUP) == length(world, THIRD) == before
    assert not cuts(world)
    send(world, BESIDE_BACKUP)
    assert length(world, BACKUP) == before + 1
    assert [cut.until for cut in cuts(world)] == [CUT]
    assert length(world, THIRD) == before


def test_records_that_do_not_come_are_fetched() -> None:
    """An engine that dies between two messages holds nobody up for long."""
    world = cluster()
    send(world, BESIDE_PRIMARY)
    world.tick(10)
    assert [cut.until for cut in cuts(world)] == [CUT]


def test_a_cut_counts_after_the_sync_alone() -> None:
    """The primary's own copy, too."""
    world = cluster()
    world.holds_syncs |= {PRIMARY, BACKUP, THIRD}
    send(world, *STORAGE)
    assert not cuts(world)
    world.sync(BACKUP)
    world.run()
    assert not cuts(world)
    world.sync(PRIMARY)
    world.run()
    assert [cut.until for cut in cuts(world)] == [CUT]


def test_reports_overtake_a_cut_that_backups_cannot_store() -> None:
    """A backup whose storage node is gone takes the cut in once a write quorum has reported the records."""
    world = cluster()
    world.crash(BESIDE_BACKUP)
    world.crash(THIRD)
    send(world, BESIDE_PRIMARY, BESIDE_THIRD)
    assert not cuts(world)
    world.tick(6)
    assert [cut.until for cut in cuts(world)] == [CUT]


def test_a_full_disk_of_the_primary_makes_cuts_by_reports() -> None:
    """What its storage node does not take in is ordered as where no cut runs ahead."""
    world = cluster()
    send(world, BESIDE_BACKUP, BESIDE_THIRD)
    assert not cuts(world)
    world.tick(6)
    (cut,) = cuts(world)
    assert not cut.is_ahead


def test_without_mates_all_goes_by_reports() -> None:
    """A view may say more than is so: a role that was moved to a process of its own knows of no log that it shares."""
    world = cluster(has_mates=False)
    send(world, *STORAGE)
    (cut,) = cuts(world)
    assert not cut.is_ahead


def test_a_shard_with_other_replicas_goes_by_reports() -> None:
    """A majority that holds the cut need not be a write quorum of them."""
    world = cluster()
    other = SHARD + 1
    world.tell(PRIMARY, RequestEntry(1, 0, OpenShard(other, ENGINE, STORAGE[:2])), ENGINE)
    world.run()
    for node in STORAGE[:2]:
        world.tell(node, StoreBatch(batch(0, b"one", shard=other)), ENGINE)
    world.run()
    world.tick(2)
    assert [(cut.until, cut.is_ahead) for cut in cuts(world)] == [(((other, 1),), False)]


# the end of a term


def holder_alone(world: World) -> int:
    """One backup has a cut that ran ahead and its records; the primary dies. → how many entries it has"""
    world.loses = lambda _sender, to, _message: to in (THIRD, BESIDE_THIRD)
    world.holds_syncs |= {PRIMARY}
    send(world, BESIDE_PRIMARY, BESIDE_BACKUP)
    world.crash(PRIMARY)
    world.crash(BESIDE_PRIMARY)
    world.holds_syncs.clear()
    return length(world, BACKUP)


def start_primary(world: World) -> None:
    """It is back, with what it had synced."""
    world.add(PRIMARY, SequencerCore(PRIMARY, 1, world.disk(PRIMARY), BESIDE_PRIMARY))
    world.add(BESIDE_PRIMARY, StorageCore(BESIDE_PRIMARY, 1, world.disk(BESIDE_PRIMARY), mate=PRIMARY))
    for node in (PRIMARY, BESIDE_PRIMARY):
        world.tell(node, InstallView((AHEAD,)))
    world.run()


def change(world: World, name: str = "controller-1") -> TermChange:
    core = TermChange(AHEAD, Plan(1, AHEAD.sequencers, AHEAD.incarnations, STORAGE, 3, 2, beside=STORAGE))
    world.add(name, core)
    return core


def holds(world: World, storage: NodeId) -> int:
    core = world.cores[storage]
    assert isinstance(core, StorageCore)
    return core.holdings.held_until((1, 0, SHARD), 0)


@pytest.mark.parametrize("delay", [0, 3])
def test_a_term_is_completed_behind_the_records(delay: int) -> None:
    """By the time a view is proposed a majority has the cut and the records, also if they come after the question for
    them was repeated.
    """
    world = cluster()
    end = holder_alone(world)
    change(world)
    world.tick_with_late(BatchesFetched, delay, 20)
    assert world.proposed is not None
    assert world.proposed.previous_ends == (end,)
    assert length(world, THIRD) == end
    assert holds(world, BESIDE_THIRD) == 2


def test_a_holder_that_dies_while_a_term_is_completed() -> None:
    """Nothing had been decided, so another majority ends the term where it can."""
    world = cluster()
    end = holder_alone(world)
    world.loses = lambda _sender, _to, message: type(message).__name__ == "FetchBatches"
    change(world)
    world.tick(20)
    assert world.proposed is None
    world.crash(BACKUP)
    world.crash(BESIDE_BACKUP)
    start_primary(world)
    world.tick(60)
    assert world.proposed is not None
    assert world.proposed.previous_ends == (end - 1,)


def test_a_holder_that_lives_and_cannot_give_its_records() -> None:
    """Any majority will do: the others end the term without it."""
    world = cluster()
    end = holder_alone(world)
    start_primary(world)
    world.loses = lambda sender, _to, message: (
        type(message).__name__ == "FetchBatches" or (sender == PRIMARY and len(world.sent) < 40)
    )
    change(world)
    world.tick(100)
    assert world.proposed is not None
    assert world.proposed.previous_ends == (end - 1,)


def test_two_controllers_judge_the_same_tail() -> None:
    """Each hears another majority: whichever view wins, a majority has what it names, with the records."""
    world = cluster()
    end = holder_alone(world)
    start_primary(world)
    ends: dict[str, int] = {}
    for name, deaf in (("controller-1", PRIMARY), ("controller-2", BACKUP)):
        world.loses = lambda sender, to, _message, deaf=deaf, name=name: name in (sender, to) and deaf in (sender, to)
        change(world, name)
        world.tick(20)
        assert world.proposed is not None
        ends[name] = world.proposed.previous_ends[0]
        world.proposed = None
        held = [node for node in AHEAD.sequencers if length(world, node) >= ends[name]]
        assert len(held) >= 2
        assert all(holds(world, STORAGE[AHEAD.sequencers.index(node)]) == 2 for node in held)
        world.cores.pop(NodeId(name))
    assert ends["controller-1"] == end


@pytest.mark.parametrize("committed", [0, 9])
def test_a_completion_needs_no_records_of_what_is_committed(committed: int) -> None:
    """One that was away for long does not wait for all that it has missed."""
    world = cluster()
    world.loses = lambda _sender, to, message: to in STORAGE and type(message).__name__ == "FetchBatches"
    world.tell(BACKUP, Seal(1), "controller-1")
    first = length(world, BACKUP)
    world.tell(BACKUP, Complete(1, 0, first, (Cut(9, CUT, is_ahead=True),), committed), "controller-1")
    world.run()
    assert bool(world.messages(Completed)) is (committed > first)


def test_entries_that_wait_are_taken_in_as_far_as_they_are_committed() -> None:
    """A backup that lacks records of the newest cut still catches up with all before it."""
    world = cluster()
    world.loses = lambda _sender, to, message: to in STORAGE and type(message).__name__ == "FetchBatches"
    first = length(world, BACKUP)
    entries = (Cut(9, CUT, is_ahead=True), Cut(10, ((SHARD, 3),), is_ahead=True))
    world.tell(BACKUP, AppendEntry(1, 0, first, entries, first + 1), PRIMARY)
    world.run()
    assert length(world, BACKUP) == first + 1
    (stored,) = [m for _, to, m in world.sent if to == PRIMARY and isinstance(m, EntriesStored)]
    assert stored.stored_until == first + 1


@pytest.mark.parametrize("make", [lambda: Cut(1, CUT), lambda: Cut(1, CUT, is_ahead=True)])
def test_a_disk_tells_which_cuts_ran_ahead(make: Callable[[], Cut]) -> None:
    """And a version that would overlook it refuses the entry by its first byte."""
    cut = make()
    data = encode_entry(cut)
    assert decode_entry(data) == cut
    assert data[0] == (3 if cut.is_ahead else 2)
