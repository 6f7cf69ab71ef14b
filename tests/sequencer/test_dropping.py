"""Old entries go when a checkpoint covers them, and a restart, a fetch, a backup and a seal still find their way."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from boki.log.ids import NodeId
from boki.log.metalog import Cut
from boki.protocol.messages import (
    AppendEntry,
    AskTail,
    Complete,
    Completed,
    DropEntries,
    EntriesDropped,
    FetchMetalog,
    FetchSealed,
    InstallView,
    Metalog,
    Ping,
    Pong,
    Seal,
    Sealed,
    TellTail,
)
from boki.sequencer.core import SequencerCore
from tests.members import SHARD, view
from tests.sequencer.test_core import BACKUP, NODES, PRIMARY, THIRD, cluster, published, report, start
from tests.world import World


def grown(count: int = 5) -> World:
    """A cluster whose log has an `OpenShard` and `count - 1` cuts."""
    world = cluster()
    for until in range(1, count):
        world.now_us += 1
        report(world, 1, until)
        report(world, 2, until)
    world.tick(10)
    return world


def drop(world: World, node: str, until: int, term: int = 1) -> None:
    world.tell(node, DropEntries(term, 0, until), "engine-1")
    world.run()


def restart(world: World, node: str, installed: int = 1) -> None:
    world.crash(node)
    start(world, node, installed=installed)


def fetch(world: World, node: str, first_index: int, term: int = 1) -> list[object]:
    world.sent.clear()
    world.tell(node, FetchMetalog(term, 0, first_index), "reader-1")
    world.run()
    return [message for sender, to, message in world.sent if to == "reader-1" and sender == node]


@pytest.mark.parametrize("restarts", [False, True])
def test_what_is_dropped_is_told_and_the_rest_is_read(restarts: bool) -> None:
    """A reader below the checkpoint is sent to it; the log's length and time are known also after a restart."""
    world = grown()
    last = published(world)[-1]
    assert isinstance(last, Cut)
    drop(world, BACKUP, 3)
    if restarts:
        restart(world, BACKUP)
        assert fetch(world, BACKUP, 1) == [EntriesDropped(1, 0, 3)]
    world.tell(BACKUP, AskTail(1, 0), "engine-1")
    world.tell(BACKUP, Seal(1), "controller-1")
    world.run()
    assert world.messages(TellTail)[-1].stored_until == 5
    assert world.messages(Sealed)[-1].stored_until == (5,)
    assert world.messages(Sealed)[-1].last_time_us == last.time_us


@pytest.mark.parametrize("until", [3, 5])
def test_dropped_entries_leave_the_disk(until: int) -> None:
    """Space comes back; even if nothing is left the length is."""
    world = grown()
    before = len(world.disk(BACKUP).rows)
    drop(world, BACKUP, until)
    drop(world, BACKUP, 2)
    assert before - len(world.disk(BACKUP).rows) == until - 2  # two rows say what was dropped
    restart(world, BACKUP)
    world.tell(BACKUP, AskTail(1, 0), "engine-1")
    world.run()
    assert world.messages(TellTail)[-1].stored_until == 5


def test_appends_go_on_after_everything_was_dropped_everywhere() -> None:
    """The next entry has the next index."""
    world = grown()
    for node in NODES:
        drop(world, node, 5)
    restart(world, BACKUP)
    report(world, 1, 9)
    report(world, 2, 9)
    assert published(world)[-1] == Cut(world.now_us, ((SHARD, 9),))
    assert len(published(world)) == 6


def test_a_backup_that_lacks_dropped_entries_goes_on_from_there() -> None:
    """It was away while they came and went; nobody will ask it for them, and it counts again (availability)."""
    world = cluster()
    world.crash(THIRD)
    for until in (1, 2, 3):
        report(world, 1, until)
        report(world, 2, until)
    for node in (PRIMARY, BACKUP):
        drop(world, node, 4)
    core = world.cores[PRIMARY]
    core._stores[1, 0]._recent.clear()  # type: ignore[attr-defined]
    start(world, THIRD)
    world.tick(20)
    world.crash(BACKUP)
    report(world, 1, 8)
    report(world, 2, 8)
    assert len(published(world)) == 5, "the third one's word makes the majority"


def test_a_completion_goes_on_above_what_was_dropped() -> None:
    """A controller is told, and a shorter node is told by it, before it completes."""
    world = grown()
    drop(world, BACKUP, 3)
    restart(world, BACKUP)
    world.tell(BACKUP, Seal(1), "controller-1")
    world.run()
    world.cores[BACKUP]._stores[1, 0]._recent.clear()  # type: ignore[attr-defined]
    world.sent.clear()
    world.tell(BACKUP, FetchSealed(1, 0, 1), "controller-1")
    world.run()
    assert world.messages(EntriesDropped) == [EntriesDropped(1, 0, 3)]
    world.add("short", SequencerCore(NodeId(THIRD), 1, world.disk("short")))
    world.tell("short", InstallView((view(),)))
    world.tell("short", Seal(1), "controller-1")
    world.tell("short", EntriesDropped(1, 0, 3), "controller-1")
    world.tell("short", Complete(1, 0, 3, (Cut(5, ((SHARD, 4),)),)), "controller-1")
    world.run()
    assert world.messages(Completed)[-1].stored_until == 4


def test_a_checkpoint_of_a_later_term_drops_earlier_terms_whole() -> None:
    """Their entries leave the disk, a fetch is answered with the term's end, and their stores are not made again."""
    world = grown()
    second = view(2, previous_ends=(5,))
    for node in NODES:
        world.tell(node, InstallView((second,)))
    world.run()
    drop(world, BACKUP, 0, term=2)
    assert fetch(world, BACKUP, 0) == [EntriesDropped(1, 0, 5)]
    world.crash(BACKUP)
    world.add(BACKUP, SequencerCore(NodeId(BACKUP), 1, world.disk(BACKUP)))
    world.tell(BACKUP, InstallView((view(), second)))
    world.run()
    assert fetch(world, BACKUP, 0) == [EntriesDropped(1, 0, 5)]
    world.tell(BACKUP, Seal(1), "controller-1")
    world.run()
    assert {key[0] for key in world.cores[BACKUP]._stores} == {2}  # type: ignore[attr-defined]
    assert world.messages(Sealed) == []


def test_a_term_that_was_dropped_is_never_led_again() -> None:
    """A restart that hears of an old view first must not take it for the current one and begin it again."""
    world = grown()
    drop(world, THIRD, 0, term=1)
    later = view(3, previous_ends=(0,))
    for term in (view(2, previous_ends=(5,)), later):
        world.tell(THIRD, InstallView((term,)))
    drop(world, THIRD, 0, term=3)
    world.crash(THIRD)
    core = SequencerCore(NodeId(THIRD), 1, world.disk(THIRD))
    world.add(THIRD, core)
    world.tell(THIRD, InstallView((view(primaries=(THIRD,)),)))
    world.run()
    assert core._primaries == {}


def test_a_spare_sequencer_lives_with_views_that_do_not_name_it() -> None:
    """It answers pings, nothing else, and takes its place when a view names it."""
    world = cluster()
    start(world, "sequencer-9")
    for message in (Ping(1), Seal(1), AskTail(1, 0), FetchMetalog(1, 0, 0), AppendEntry(1, 0, 0, (), 0)):
        world.tell("sequencer-9", message, PRIMARY)
    world.tick(10)
    said = [message for sender, _, message in world.sent if sender == "sequencer-9"]
    assert said == [Pong(1, 1, 1)]
    names = (NodeId("sequencer-9"), BACKUP, THIRD)
    incarnations = dict.fromkeys(names, 1)
    second = replace(view(2), sequencers=names, primaries=names[:1], incarnations=incarnations, previous_ends=(1,))
    world.tell("sequencer-9", InstallView((second,)))
    world.run()
    world.tell("sequencer-9", Ping(2), "controller-1")
    world.run()
    assert world.messages(Pong)[-1] == Pong(2, 2, 1, leads=(0,))


def test_a_node_that_took_no_part_in_a_term_says_nothing_of_it() -> None:
    """Silence is not an end: whoever was there is asked next."""
    world = cluster()
    core = SequencerCore(NodeId("sequencer-9"), 1, world.disk("sequencer-9"))
    world.add("sequencer-9", core)
    world.tell("sequencer-9", InstallView((view(), view(2, previous_ends=(1,)))))
    world.run()
    assert fetch(world, "sequencer-9", 0) == []


def test_a_ping_tells_the_term_the_seal_and_what_is_led() -> None:
    """The controller decides by it."""
    world = cluster()
    world.tell(PRIMARY, Ping(1), "controller-1")
    world.tell(BACKUP, Seal(1), "controller-1")
    world.tell(BACKUP, Ping(2), "controller-1")
    world.run()
    assert world.messages(Pong) == [Pong(1, 1, 1, leads=(0,)), Pong(2, 1, 1, is_sealed=True)]


def test_a_primary_that_reaches_no_majority_asks_for_a_new_term() -> None:
    """It lives, and nobody hears it: a second of waiting, and it says so."""
    world = cluster()
    world.loses = lambda sender, to, message: isinstance(message, AppendEntry)
    report(world, 1, 1)
    report(world, 2, 1)
    world.tick(30)
    world.tell(PRIMARY, Ping(1), "controller-1")
    world.run()
    assert world.messages(Pong)[-1].wants_new_term


def test_an_idle_primarys_last_commit_reaches_its_backups() -> None:
    """So that a reader who can only reach a backup is not left behind."""
    world = cluster()
    world.tick(10)
    (answer,) = fetch(world, BACKUP, 0)
    assert isinstance(answer, Metalog)
    assert answer.committed == 1
