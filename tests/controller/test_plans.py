"""Where primaries go: not beside the controller that leads, wherever that is possible."""

from __future__ import annotations

import pytest

from boki.controller.plans import Sight, differs, first_plan, next_plan
from boki.log.ids import NodeId
from boki.log.membership import ClusterPlan

SEQUENCERS = tuple(NodeId(f"sequencer-{n}") for n in (1, 2, 3))
STORAGE = tuple(NodeId(f"storage-{n}") for n in (1, 2, 3))


def sight(*mates: str, logs: int = 1, live: tuple[NodeId, ...] = SEQUENCERS) -> Sight:
    """What a controller sees that shares its process with these roles."""
    return Sight(
        wanted=ClusterPlan(logs=logs),
        sequencers=dict.fromkeys(live, 1),
        storage=STORAGE,
        mates=frozenset(map(NodeId, mates)),
    )


@pytest.mark.parametrize("logs", [1, 2, 3])
def test_no_primary_is_beside_the_controller_that_leads(logs: int) -> None:
    """From the first view on: one fault would take both, and no one would be there to end the term for seconds."""
    plan = first_plan(sight("sequencer-1", "engine-1", logs=logs))
    assert plan is not None
    assert "sequencer-1" not in plan.first_view().primaries
    assert len(plan.first_view().primaries) == logs


def test_a_controller_that_begins_to_lead_beside_a_primary_moves_it() -> None:
    """Once: the next plan of the same controller wants nothing."""
    view = first_plan(sight("sequencer-1")).first_view()  # type: ignore[union-attr]
    (primary,) = view.primaries
    plan, problem = next_plan(view, sight(primary))
    assert not problem
    reason = differs(view, plan, frozenset({primary}))
    assert reason == "no primary in the process of the leading controller"
    moved = plan.next_view(view, (1,), 0)
    assert primary not in moved.primaries
    again, _ = next_plan(moved, sight(primary))
    assert not differs(moved, again, frozenset({primary}))
    assert again.primaries == moved.primaries


def test_a_primary_stays_beside_the_controller_if_no_one_else_can_be_it() -> None:
    """Then nothing is gained by another term."""
    view = first_plan(sight()).first_view()  # type: ignore[union-attr]
    (primary,) = view.primaries
    plan, _ = next_plan(view, sight(primary, live=(primary,)))
    assert plan.primaries == view.primaries
    assert not differs(view, plan, frozenset({primary}))
