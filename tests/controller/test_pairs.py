"""When cuts run ahead: a view says so if the plan wants it and every sequencer is beside a storage node."""

from __future__ import annotations

import msgspec
import pytest

from boki.controller.plans import Sight, differs, first_plan, next_plan
from boki.errors import ConfigError
from boki.log.ids import NodeId
from boki.log.membership import ClusterPlan, Member, Membership, Role
from tests.members import view

SEQUENCERS, STORAGE = view().sequencers, view().storage
PAIRS: dict[NodeId, NodeId | None] = dict(zip(SEQUENCERS, STORAGE, strict=True))
WANTED = ClusterPlan(speculative_cuts=True)


def sight(wanted: ClusterPlan = WANTED, beside: dict[NodeId, NodeId | None] = PAIRS) -> Sight:
    return Sight(wanted=wanted, sequencers=dict.fromkeys(SEQUENCERS, 1), storage=STORAGE, beside=beside)


def test_a_cluster_of_nodes_with_both_roles_begins_so_if_that_is_wanted() -> None:
    """And not otherwise."""
    plan = first_plan(sight())
    assert plan is not None
    assert plan.first_view().beside == STORAGE
    other = first_plan(sight(ClusterPlan()))
    assert other is not None
    assert other.first_view().beside == ()


@pytest.mark.parametrize("missing", SEQUENCERS)
def test_one_sequencer_without_a_storage_node_keeps_all_from_it(missing: NodeId) -> None:
    """One that is a process of its own, or of an earlier version; and a term that runs ahead ends."""
    plan, _ = next_plan(view(beside=STORAGE), sight(beside=PAIRS | {missing: None}))
    assert plan.beside == ()
    assert differs(view(beside=STORAGE), plan) == "cuts are to wait for reports"


def test_whoever_is_away_for_a_moment_changes_nothing() -> None:
    """It counts as what it was: a restart of one node begins no term for that."""
    plan, _ = next_plan(view(beside=STORAGE), sight(beside={SEQUENCERS[0]: STORAGE[0]}))
    assert plan.beside == STORAGE
    assert not differs(view(beside=STORAGE), plan)


def test_who_was_never_seen_counts_as_alone() -> None:
    """Cuts run ahead as soon as all have registered."""
    partly, _ = next_plan(view(), sight(beside={SEQUENCERS[0]: STORAGE[0]}))
    assert partly.beside == ()
    wholly, _ = next_plan(view(), sight())
    assert differs(view(), wholly) == "cuts are to run ahead of reports"


def test_members_of_one_process_are_mates_if_they_say_so() -> None:
    """By the process that they are registered with."""
    members = [
        Member(node=NodeId(f"{role}-{n}"), role=role, incarnation=1, host=NodeId(f"node-{n}"), runs_ahead=n < 3)
        for n in (1, 2, 3)
        for role in (Role.STORAGE, Role.SEQUENCER)
    ]
    alone = Member(node=NodeId("sequencer-4"), role=Role.SEQUENCER, incarnation=1, runs_ahead=True)
    mates = Membership(number=1, members=(*members, alone)).mates()
    assert mates == {"sequencer-1": "storage-1", "sequencer-2": "storage-2", "sequencer-3": None}


def test_roles_that_register_one_after_the_other_begin_no_term() -> None:
    """After an expired session a sequencer is often there before the storage node of its process."""
    members = [
        Member(node=node, role=Role.SEQUENCER, incarnation=1, host=NodeId(f"node-{n}"), runs_ahead=True)
        for n, node in enumerate(SEQUENCERS, 1)
    ]
    plan, _ = next_plan(view(beside=STORAGE), sight(beside=Membership(number=1, members=tuple(members)).mates()))
    assert plan.beside == STORAGE


@pytest.mark.parametrize(
    ("replicas", "write_quorum", "is_ahead"),
    [(STORAGE, 2, True), (STORAGE[::-1], 1, True), (STORAGE, 3, False), (STORAGE[:2], 2, False), ((), 2, False)],
)
def test_a_majority_must_be_a_write_quorum(replicas: tuple[NodeId, ...], write_quorum: int, *, is_ahead: bool) -> None:
    """Of the replicas of the shard, all of which are beside sequencers."""
    term = msgspec.structs.replace(view(beside=STORAGE), write_quorum=write_quorum)
    assert term.runs_ahead(replicas) is is_ahead
    assert not view().is_beside(SEQUENCERS[0], STORAGE[0])


def test_a_storage_node_is_beside_one_sequencer() -> None:
    """A view in which it were beside two is refused."""
    with pytest.raises(ConfigError, match="a storage node of its own"):
        view(beside=(STORAGE[0], STORAGE[0], STORAGE[1]))
