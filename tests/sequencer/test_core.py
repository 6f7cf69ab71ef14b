"""The sequencer: one value for one index, nothing published before a majority holds it, sealed forever."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from boki.log.ids import NodeId
from boki.log.metalog import Cut, ForgetTags, MetalogEntry, OpenShard, Trim, Trims
from boki.protocol.effects import DiskUnreadable, Load, Loaded
from boki.protocol.messages import (
    AppendEntry,
    AskTail,
    Complete,
    Completed,
    EntriesStored,
    FetchMetalog,
    FetchSealed,
    InstallView,
    Metalog,
    RequestEntry,
    Seal,
    Sealed,
    ShardProgress,
    TellTail,
)
from boki.sequencer.core import SequencerCore
from boki.sequencer.metalog_store import NEXT, MetalogStore, Phase
from boki.sequencer.primary import Primary
from tests.members import ENGINE, SHARD, view
from tests.world import World

NODES = view().sequencers
PRIMARY, BACKUP, THIRD = NODES
REPLICAS = view().storage


def start(world: World, *names: str, installed: int = 1) -> None:
    for name in names:
        world.add(name, SequencerCore(NodeId(name), 1, world.disk(name)))
        world.tell(name, InstallView(tuple(view(term) for term in range(1, installed + 1))))
    world.run()


def cluster(**changes: object) -> World:
    world = World()
    start(world, *NODES)
    world.tell(PRIMARY, FetchMetalog(1, 0, 0), "engine-1")
    world.tell(PRIMARY, RequestEntry(1, 0, OpenShard(SHARD, ENGINE, REPLICAS)), "engine-1")
    world.run()
    return world


def report(world: World, storage: int, until: int, incarnation: int = 1) -> None:
    world.tell(PRIMARY, ShardProgress(1, 0, SHARD, incarnation, until, True), f"storage-{storage}")
    world.run()


def published(world: World) -> list[object]:
    """The entries that the engine was told, by index."""
    entries: dict[int, object] = {}
    for _, to, message in world.sent:
        if to == ENGINE and isinstance(message, Metalog):
            for index, entry in enumerate(message.entries, message.first_index):
                assert entries.setdefault(index, entry) == entry, "one index, two values"
    return [entries[index] for index in sorted(entries)]


def test_a_cut_takes_what_the_write_quorum_has_reached() -> None:
    """Two of three replicas decide; the slowest does not hold anybody up."""
    world = cluster()
    report(world, 1, 5)
    assert published(world) == [OpenShard(SHARD, ENGINE, REPLICAS)]
    report(world, 2, 3)
    assert published(world)[1:] == [Cut(world.now_us, ((SHARD, 3),))]
    report(world, 3, 4)
    assert published(world)[2:] == [Cut(world.now_us, ((SHARD, 4),))]


def test_a_wiped_replica_counts_for_nothing_that_it_once_said() -> None:
    """A new incarnation starts from zero, and an old one is not heard any more (hazard H18)."""
    world = cluster()
    report(world, 1, 5)
    report(world, 1, 0, incarnation=2)
    report(world, 1, 9, incarnation=1)
    report(world, 2, 5)
    assert len(published(world)) == 1
    report(world, 1, 2, incarnation=2)
    assert published(world)[1:] == [Cut(world.now_us, ((SHARD, 2),))]


def test_reports_of_strangers_do_not_count() -> None:
    """Only the replicas that the shard was opened with are asked."""
    world = cluster()
    report(world, 1, 5)
    report(world, 9, 5)
    assert len(published(world)) == 1


def test_nothing_is_published_before_a_majority_has_synced_it() -> None:
    """A reader never sees an entry that a new term could forget (hazard H10)."""
    world = cluster()
    world.holds_syncs |= {BACKUP, THIRD}
    report(world, 1, 1)
    report(world, 2, 1)
    assert len(published(world)) == 1
    world.sync(BACKUP)
    world.run()
    assert published(world)[1:] == [Cut(world.now_us, ((SHARD, 1),))]


def test_the_primarys_own_sync_counts_like_anybodys() -> None:
    """Two backups are a majority too, even if the primary's disk hangs."""
    world = cluster()
    world.holds_syncs.add(PRIMARY)
    report(world, 1, 1)
    report(world, 2, 1)
    assert len(published(world)) == 2


def test_one_entry_is_in_flight_and_the_next_cut_takes_all_that_gathered() -> None:
    """The batch finds its size: no timer, no queue of cuts."""
    world = cluster()
    world.holds_syncs |= {BACKUP, THIRD}
    for until in (1, 2, 3, 4):
        report(world, 1, until)
        report(world, 2, until)
    world.holds_syncs.clear()
    world.sync(BACKUP)
    world.run()
    cuts = [entry.until for entry in published(world) if isinstance(entry, Cut)]
    assert cuts == [((SHARD, 1),), ((SHARD, 4),)]


def test_storage_nodes_hear_of_cuts_later_and_of_all_else_at_once() -> None:
    """Nobody waits for what they learn from cuts; they are told of several at once, and nothing is left out."""
    world = cluster()
    storage = NodeId("storage-1")
    world.tell(PRIMARY, FetchMetalog(1, 0, 0), storage)
    world.run()

    def told(node: NodeId) -> list[tuple[int, int]]:
        news = [each for _, to, each in world.sent if to == node and isinstance(each, Metalog) and each.entries]
        return [(each.first_index, each.first_index + len(each.entries)) for each in news]

    before = told(storage)
    for until in (1, 2, 3):
        report(world, 1, until)
        report(world, 2, until)
        world.run()
    assert told(ENGINE)[-3:] == [(1, 2), (2, 3), (3, 4)]
    assert told(storage) == before
    world.tick()
    assert told(storage) == [*before, (1, 4)]
    world.tell(PRIMARY, RequestEntry(1, 0, Trim("book", None, 5, False, ENGINE, 1)), ENGINE)
    world.run()
    assert told(storage)[-1] == (4, 5)


@pytest.mark.parametrize("trim", [Trim("book", None, 5, False, ENGINE, 77), ForgetTags("book", ("!t",), 5, ENGINE, 77)])
def test_requests_are_appended_once_however_often_they_come(trim: Trims) -> None:
    """An engine repeats until it sees its entry; the metalog holds it once."""
    world = cluster()
    for _ in range(3):
        world.tell(PRIMARY, RequestEntry(1, 0, trim), "engine-1")
        world.tell(PRIMARY, RequestEntry(1, 0, trim), "engine-1")
        world.tell(PRIMARY, RequestEntry(1, 0, OpenShard(SHARD, ENGINE, REPLICAS)), "engine-1")
        world.run()
    assert published(world)[1:] == [trim]


def test_a_trim_that_is_remembered_no_longer_is_not_made_again() -> None:
    """Made late, it would free what was appended since; newer ones of that engine are made, and any of another's."""
    primary = Primary(view(), lambda _shard, lid: lid)

    def take(engine: NodeId, number: int) -> Sequence[MetalogEntry]:
        primary.request(Trim("book", None, 1 << 62, False, engine, number))
        return primary.take_proposal(0)

    for number in range(10, 10_012):
        assert take(ENGINE, number)
    for number in (9, 10, 11, 10_011):
        assert not take(ENGINE, number)
    assert take(ENGINE, 10_012)
    assert take(NodeId("engine-2"), 11)


def test_nobody_can_request_a_cut() -> None:
    """Cuts come from reports alone."""
    world = cluster()
    world.tell(PRIMARY, RequestEntry(1, 0, Cut(1, ((SHARD, 9),))), "engine-1")
    world.run()
    assert len(published(world)) == 1


def test_lost_entries_are_sent_again_and_a_backup_catches_up() -> None:
    """A lost message costs time; a backup never takes an entry beyond a gap."""
    world = cluster()
    world.loses = lambda _sender, to, message: to == BACKUP and isinstance(message, AppendEntry)
    for until in (1, 2):
        report(world, 1, until)
        report(world, 2, until)
    assert len(published(world)) == 3
    world.loses = lambda *_: False
    world.tick(20)
    world.tell(BACKUP, AskTail(1, 0), "engine-1")
    world.run()
    assert world.messages(TellTail)[-1].stored_until == 3


def test_a_primary_that_restarts_never_appends_in_its_term_again() -> None:
    """It has forgotten what it sent, so it could give a second value to an index."""
    world = World()
    start(world, *NODES)
    world.holds_syncs.add(PRIMARY)
    world.tell(PRIMARY, FetchMetalog(1, 0, 0), "engine-1")
    world.loses = lambda _sender, to, message: to == THIRD and isinstance(message, AppendEntry)
    world.tell(PRIMARY, RequestEntry(1, 0, OpenShard(SHARD, ENGINE, REPLICAS)), "engine-1")
    world.run()
    world.crash(PRIMARY)
    world.holds_syncs.clear()
    world.loses = lambda *_: False
    start(world, PRIMARY)
    world.tell(PRIMARY, FetchMetalog(1, 0, 0), "engine-1")
    world.tell(PRIMARY, RequestEntry(1, 0, OpenShard(SHARD + 1, ENGINE, REPLICAS)), "engine-1")
    world.run()
    world.tick(20)
    assert published(world) == []


def test_a_seal_is_durable_before_it_is_answered_and_holds_after_a_restart() -> None:
    """BookKeeper's lost fence: a backup that said "sealed" must refuse forever (hazards H2 and H4)."""
    world = cluster()
    world.holds_syncs.add(BACKUP)
    world.tell(BACKUP, Seal(1), "controller-1")
    world.run()
    assert world.messages(Sealed) == []
    world.sync(BACKUP)
    assert [sealed.stored_until for sealed in world.messages(Sealed)] == [(1,)]
    world.crash(BACKUP)
    world.holds_syncs.clear()
    start(world, BACKUP)
    world.sent.clear()
    world.tell(BACKUP, AppendEntry(1, 0, 1, (Cut(5, ((SHARD, 1),)),), 1), PRIMARY)
    world.run()
    assert world.messages(EntriesStored) == []
    world.tell(BACKUP, AskTail(1, 0), "engine-1")
    world.run()
    assert world.messages(TellTail)[-1].sealed


def test_a_sealed_primary_publishes_nothing_more_of_its_term() -> None:
    """Even an acknowledgement that comes late makes no entry visible after the seal."""
    world = cluster()
    world.holds_syncs |= {BACKUP, THIRD}
    report(world, 1, 1)
    report(world, 2, 1)
    world.tell(PRIMARY, Seal(1), "controller-1")
    world.run()
    world.sync(BACKUP)
    world.run()
    world.tick(10)
    assert len(published(world)) == 1


def test_who_cannot_read_what_only_it_may_have_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller asks whoever holds most, again and again: without that node it continues with what others have."""
    world = cluster()
    world.tell(PRIMARY, Seal(1), "controller-1")
    world.run()
    monkeypatch.setattr(MetalogStore, "recent", lambda *_: None)  # as if it were long ago
    core = world.cores[PRIMARY]
    asked = {}
    for question in (FetchSealed(1, 0, 0), FetchMetalog(1, 0, 0)):
        (load,) = core.receive(NodeId("somebody"), question, world.now_us)
        assert isinstance(load, Load)
        asked[question] = Loaded(load.token, [], "a block fails its checksum")
    assert list(core.receive(PRIMARY, asked[FetchMetalog(1, 0, 0)], world.now_us)) == []  # others have the same
    with pytest.raises(DiskUnreadable, match="checksum"):
        core.receive(PRIMARY, asked[FetchSealed(1, 0, 0)], world.now_us)


def test_completion_is_no_acknowledgement() -> None:
    """What a controller completes is stored, and no primary takes the answer for a vote."""
    world = cluster()
    for node in NODES:
        world.tell(node, Seal(1), "controller-1")
    world.run()
    world.sent.clear()
    world.tell(BACKUP, Complete(1, 0, 1, (Cut(5, ((SHARD, 1),)),)), "controller-1")
    world.run()
    assert [done.stored_until for done in world.messages(Completed)] == [2]
    assert world.messages(EntriesStored) == []


def test_an_unsealed_node_refuses_a_completion() -> None:
    """Completing is for sealed terms; before that it would be a second writer."""
    world = cluster()
    world.tell(BACKUP, Complete(1, 0, 1, (Cut(5, ((SHARD, 1),)),)), "controller-1")
    world.run()
    assert world.messages(Completed) == []


def test_an_ended_term_is_read_up_to_its_end_only() -> None:
    """Entries above the end that the next view names never existed."""
    world = cluster()
    for until in (1, 2):
        report(world, 1, until)
        report(world, 2, until)
    world.tell(THIRD, InstallView((view(2, previous_ends=(2,)),)))
    world.run()
    world.sent.clear()
    world.tell(THIRD, FetchMetalog(1, 0, 0), "storage-1")
    world.run()
    (answer,) = world.messages(Metalog)
    assert (len(answer.entries), answer.committed, answer.ended) == (2, 2, True)


def test_time_never_goes_back_also_across_terms() -> None:
    """The first cut of a term is no earlier than the last one of the term before, whatever the clock says."""
    world = World()
    later = view(storage=1, sequencers=1, start_time_us=world.now_us + 10_000_000)
    world.add(PRIMARY, SequencerCore(PRIMARY, 1, world.disk(PRIMARY)))
    world.tell(PRIMARY, InstallView((later,)))
    world.run()
    world.tell(PRIMARY, FetchMetalog(1, 0, 0), "engine-1")
    world.tell(PRIMARY, RequestEntry(1, 0, OpenShard(SHARD, ENGINE, REPLICAS[:1])), "engine-1")
    world.run()
    report(world, 1, 1)
    assert published(world)[-1] == Cut(later.start_time_us, ((SHARD, 1),))


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_can_be_reached(phase: Phase) -> None:
    """The life cycle's table has no state that nothing leads to."""
    assert phase in {Phase.OPEN, *NEXT.values()}
