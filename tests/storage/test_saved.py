"""Which records no index will ask for again: whose word counts, and for how long."""

from __future__ import annotations

from boki.log.ids import NodeId, make_seqnum
from boki.log.membership import Member, Membership, Role
from boki.protocol.messages import IndexSaved
from boki.storage.saved import SavedIndexes

KEY = (2, 0, 7)
LATER_US = 700_000_000


def seqnum(position: int) -> int:
    return make_seqnum(2, 0, position)


def members(number: int, *engines: str) -> Membership:
    rows = tuple(Member(node=NodeId(name), role=Role.ENGINE, incarnation=1, has_index=True) for name in engines)
    return Membership(number=number, members=rows)


def test_in_one_process_the_engines_word_is_enough() -> None:
    """Without any registration its own disk is the only checkpoint there is; without its word nothing is covered."""
    saved = SavedIndexes(is_alone=True)
    assert not saved.covers(KEY, seqnum(0))
    saved.note(NodeId("engine"), IndexSaved(2, {0: seqnum(5)}), 0)
    assert saved.covers(KEY, seqnum(4))
    assert not saved.covers(KEY, seqnum(5))
    assert saved.covers((1, 3, 7), make_seqnum(1, 3, 99)), "earlier terms are covered whole"
    assert not saved.covers((2, 1, 7), make_seqnum(2, 1, 0)), "a log that it does not name is not covered"
    assert not saved.covers((3, 0, 7), make_seqnum(3, 0, 0))


def test_a_node_that_has_just_started_in_a_cluster_does_not_take_itself_for_alone() -> None:
    """Engines tell it how far their own copies are before it is told that they are registered. It would delete what a
    start from an earlier checkpoint still needs (seed 3804201 of the simulator).
    """
    saved = SavedIndexes()
    saved.note(NodeId("engine-1"), IndexSaved(2, {0: seqnum(9)}), 0)
    assert not saved.covers(KEY, seqnum(0))
    saved.note_members(members(1, "engine-1"), 0)
    assert not saved.covers(KEY, seqnum(0))


def test_in_a_cluster_a_checkpoint_on_this_node_is_needed() -> None:
    """Engines that run may have saved what they like: one that begins has only what storage nodes keep (H23)."""
    saved = SavedIndexes()
    saved.note_members(members(1, "engine-1"), 0)
    saved.note(NodeId("engine-1"), IndexSaved(2, {0: seqnum(9)}), 0)
    assert not saved.covers(KEY, seqnum(0))
    saved.cover(2, {0: seqnum(5)})
    assert saved.covers(KEY, seqnum(4))
    assert not saved.covers(KEY, seqnum(5))


def test_engines_are_waited_for_while_they_are_here_and_a_little_longer() -> None:
    """One that is slow or starts again holds up deletion; one that has gone forever does not, nor its late word."""
    saved = SavedIndexes()
    saved.cover(2, {0: seqnum(100)})
    saved.note(NodeId("engine-1"), IndexSaved(2, {0: seqnum(100)}), 0)
    saved.note(NodeId("engine-2"), IndexSaved(2, {0: seqnum(5)}), 0)
    saved.note_members(members(1, "engine-1", "engine-2"), 0)
    saved.forget(LATER_US)
    assert not saved.covers(KEY, seqnum(5))
    saved.note_members(members(2, "engine-1"), 0)
    saved.forget(LATER_US // 2)
    assert not saved.covers(KEY, seqnum(5))
    saved.forget(LATER_US)
    assert saved.covers(KEY, seqnum(5))
    saved.note(NodeId("engine-2"), IndexSaved(2, {0: seqnum(5)}), LATER_US)
    assert not saved.covers(KEY, seqnum(5))
    saved.forget(2 * LATER_US)
    assert saved.covers(KEY, seqnum(5))
    assert not saved.covers(KEY, seqnum(100))


def test_an_engine_that_comes_back_in_time_is_waited_for_again() -> None:
    """Its absence is counted again each time."""
    saved = SavedIndexes()
    saved.cover(2, {0: seqnum(100)})
    saved.note_members(members(1, "engine-1"), 0)
    saved.note(NodeId("engine-1"), IndexSaved(2, {0: seqnum(5)}), 0)
    saved.note_members(members(2), 0)
    saved.note_members(members(3, "engine-1"), LATER_US // 2)
    saved.forget(LATER_US)
    assert not saved.covers(KEY, seqnum(5))


def test_an_engine_that_has_lost_its_index_is_not_waited_for() -> None:
    """It is registered under the same name and asks others: what it said last would hold up deletion forever."""
    saved = SavedIndexes()
    saved.cover(2, {0: seqnum(100)})
    saved.note_members(members(1, "engine-1", "engine-2"), 0)
    saved.note(NodeId("engine-1"), IndexSaved(2, {0: seqnum(5)}), 0)
    saved.note(NodeId("engine-2"), IndexSaved(2, {0: seqnum(100)}), 0)
    relay = Member(node=NodeId("engine-1"), role=Role.ENGINE, incarnation=2)
    (holder,) = members(2, "engine-2").members
    saved.note_members(Membership(number=2, members=(relay, holder)), 0)
    saved.forget(LATER_US // 2)
    assert not saved.covers(KEY, seqnum(5)), "it may be loading its index"
    saved.forget(LATER_US)
    assert saved.covers(KEY, seqnum(5))
    saved.note_members(members(3, "engine-1", "engine-2"), LATER_US)
    saved.note(NodeId("engine-1"), IndexSaved(2, {0: seqnum(7)}), LATER_US)
    saved.forget(2 * LATER_US)
    assert not saved.covers(KEY, seqnum(7)), "it has a slot again"


def test_an_engine_that_catches_up_is_waited_for_however_long_that_takes() -> None:
    """It is registered without the index until then, and says again and again how far it has saved it."""
    saved = SavedIndexes()
    saved.cover(2, {0: seqnum(100)})
    loading = Member(node=NodeId("engine-1"), role=Role.ENGINE, incarnation=2)
    saved.note_members(Membership(number=1, members=(loading,)), 0)
    for minute in range(1, 31):
        saved.note(NodeId("engine-1"), IndexSaved(2, {0: seqnum(minute)}), minute * 60_000_000)
        saved.forget(minute * 60_000_000)
        assert not saved.covers(KEY, seqnum(minute))
    saved.forget(30 * 60_000_000 + LATER_US)
    assert saved.covers(KEY, seqnum(30)), "it has said nothing more"
