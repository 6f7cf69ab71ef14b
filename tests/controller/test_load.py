"""Where most of a log's records come from, and that its primary goes there: seldom, in a calm, and never at a cost."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from boki.controller.load import LogLoads
from boki.controller.plans import NEAR, Plan, Sight, differs, first_plan, moves_near, next_plan
from boki.controller.repair import Progress
from boki.log.ids import LogId, NodeId
from boki.log.membership import ClusterPlan, Place
from boki.log.view import View
from boki.protocol.messages import ShardRow
from tests.controller.test_repair import StorageCluster
from tests.world import TICK_US

SPAN_US = 10_000_000
SEQUENCERS = tuple(NodeId(f"sequencer-{n}") for n in (1, 2, 3))
STORAGE = tuple(NodeId(f"storage-{n}") for n in (1, 2, 3))


def shards(*counts: int, log: LogId = 0, term: int = 1) -> dict[Place, ShardRow]:
    """One shard of each engine, ordered that far."""
    return {
        (term, log, n): ShardRow(term, log, n, NodeId(f"engine-{n}"), STORAGE, count, count, False)
        for n, count in enumerate(counts, 1)
    }


def noted(*spans: Mapping[Place, ShardRow], span_us: int = SPAN_US) -> LogLoads:
    """What is known after the ends of these spans; the first one begins with the first of them."""
    loads = LogLoads(SPAN_US)
    for number, rows in enumerate(spans):
        loads.note(rows, 1 + number * span_us)
    return loads


@pytest.mark.parametrize(
    ("spans", "leader"),
    [
        ([(0, 0), (900, 0), (1800, 0), (2700, 0)], "engine-1"),
        ([(0, 0), (700, 300), (1400, 600), (2100, 900)], "engine-1"),
        ([(0, 0), (600, 400), (1200, 800), (1800, 1200)], ""),  # not more than two thirds
        ([(0, 0), (900, 0), (1800, 0)], ""),  # two spans
        ([(0, 0), (900, 0), (900, 900), (1800, 900)], ""),  # the last span alone
        ([(0, 0), (900, 0), (1800, 0), (2700, 0), (2700, 900)], ""),  # no longer
        ([(9000, 0), (9000, 900), (9000, 1800), (9000, 2700)], "engine-2"),  # what was there before says nothing
        ([(0, 0), (99, 0), (198, 0), (297, 0)], ""),  # next to nothing
        ([(0, 0), (100, 0), (200, 0), (300, 0)], "engine-1"),
    ],
)
def test_an_engine_leads_a_log_that_mostly_grows_by_its_records(spans: list[tuple[int, int]], leader: str) -> None:
    """In each of the last three spans."""
    assert noted(*(shards(*counts) for counts in spans)).leaders == ({0: leader} if leader else {})


def test_logs_are_counted_each_for_itself_and_engines_over_terms() -> None:
    """A new term has new shards; an engine that is not known yet counts for nothing."""
    strange = {(1, 0, 9): ShardRow(1, 0, 9, None, STORAGE, 50_000, 0, False)}
    loads = noted(
        shards(0, 0) | shards(0, 0, log=1),
        shards(500, 0) | shards(0, 900, log=1) | strange,
        shards(500, 0, term=2) | shards(0, 900, log=1, term=2),
        shards(900, 0, term=2) | shards(0, 1900, log=1, term=2),
    )
    assert loads.leaders == {0: "engine-1", 1: "engine-2"}
    loads.forget()
    assert loads.leaders == {}


def test_a_span_is_not_cut_short() -> None:
    """Shards are told of every second."""
    assert noted(*(shards(n * 900) for n in range(9)), span_us=SPAN_US // 4).leaders == {}
    assert noted(*(shards(n * 900) for n in range(13)), span_us=SPAN_US // 4).leaders == {0: "engine-1"}


def sight(near: dict[int, str], *, mates: str = "", logs: int = 1, live: tuple[NodeId, ...] = SEQUENCERS) -> Sight:
    return Sight(
        wanted=ClusterPlan(logs=logs),
        sequencers=dict.fromkeys(live, 1),
        storage=STORAGE,
        mates=frozenset({NodeId(mates)} if mates else ()),
        near={log: NodeId(node) for log, node in near.items()},
    )


def view_of(*primaries: str) -> View:
    plan = first_plan(sight({}, logs=len(primaries)))
    assert isinstance(plan, Plan)
    chosen = tuple(map(NodeId, primaries))
    return View(**{name: getattr(plan.first_view(), name) for name in View.__struct_fields__} | {"primaries": chosen})


@pytest.mark.parametrize(
    ("before", "near", "after"),
    [
        (("sequencer-2",), {0: "sequencer-3"}, ("sequencer-3",)),
        (("sequencer-2",), {0: "sequencer-2"}, ("sequencer-2",)),
        (("sequencer-2",), {0: "sequencer-1"}, ("sequencer-2",)),  # beside the leading controller
        (("sequencer-2",), {0: "sequencer-9"}, ("sequencer-2",)),  # no sequencer of this term
        (("sequencer-2", "sequencer-3"), {0: "sequencer-3"}, ("sequencer-3", "sequencer-2")),
        (("sequencer-2", "sequencer-3"), {0: "sequencer-3", 1: "sequencer-3"}, ("sequencer-2", "sequencer-3")),
        (("sequencer-2",), {1: "sequencer-3"}, ("sequencer-2",)),  # a log that is no more
    ],
)
def test_a_primary_is_where_the_records_come_from_if_it_can_be(
    before: tuple[str, ...], near: dict[int, str], after: tuple[str, ...]
) -> None:
    """Logs stay spread over the nodes, and nothing that is in its place leaves it."""
    view = view_of(*before)
    seen = sight(near, mates="sequencer-1", logs=len(before))
    plan, problem = next_plan(view, seen)
    assert (plan.primaries, problem) == (after, "")
    assert not differs(view, plan, seen.mates)
    assert moves_near(view, plan, seen.near).startswith(NEAR) == (before != after)
    again, _ = next_plan(plan.next_view(view, (1,) * len(before), 0), seen)
    assert again.primaries == after


def test_the_loss_of_a_primary_takes_the_next_one_to_the_load() -> None:
    """The term ends anyway."""
    live = tuple(node for node in SEQUENCERS if node != "sequencer-1")
    plan, _ = next_plan(view_of("sequencer-1"), sight({0: "sequencer-3"}, live=live))
    assert plan.primaries == ("sequencer-3",)
    plan, _ = next_plan(view_of("sequencer-1"), sight({}, live=live))
    assert plan.primaries == ("sequencer-2",)


def together(**config: int) -> StorageCluster:
    """An engine that shares its node with sequencer-2, and the primary elsewhere."""
    cluster = StorageCluster(**{"load_span_us": 1_000_000, "move_primary_after_us": 6_000_000} | config)
    for name in ("engine-1", "sequencer-2"):
        member = cluster.members[NodeId(name)]
        cluster.members[member.node] = msgspec.structs.replace(member, host=NodeId("node-2"))
    cluster._tell_members()
    cluster.until_ready()
    assert cluster.view.primaries == ("sequencer-1",)
    return cluster


def tick_s(cluster: StorageCluster, seconds: float) -> None:
    cluster.tick(round(seconds * 1_000_000 / TICK_US))


def test_a_primary_moves_once_to_the_node_that_appends() -> None:
    """When the term is old, without an append that is lost; then it stays."""
    cluster = together()
    tick_s(cluster, 5)
    assert cluster.term == 1
    tick_s(cluster, 5)
    assert (cluster.term, cluster.view.primaries) == (2, ("sequencer-2",))
    assert cluster.controller().won[-1].reason == f"{NEAR}: log 0 to sequencer-2"
    assert cluster.controller().status()["leading_engines"] == {"0": "engine-1"}
    tick_s(cluster, 9)
    assert cluster.term == 2
    cluster.check()


def test_a_primary_stays_where_it_is_while_a_node_is_silent_or_if_it_is_told_to() -> None:
    """A change of terms would delay the repair."""
    cluster = together()
    tick_s(cluster, 1)
    cluster.pause("sequencer-3")
    tick_s(cluster, 9)
    assert cluster.term == 1
    cluster.resume("sequencer-3")
    tick_s(cluster, 10)
    assert (cluster.term, cluster.view.primaries) == (2, ("sequencer-2",))
    cluster = together(move_primary_after_us=0)
    tick_s(cluster, 9)
    assert cluster.term == 1


def test_a_primary_stays_where_it_is_while_a_node_stops() -> None:
    """Its roles leave one after the other, and may end the term themselves."""
    cluster = together()
    member = cluster.members[NodeId("storage-4")]
    cluster.members[member.node] = msgspec.structs.replace(member, is_leaving=True)
    cluster._tell_members()
    tick_s(cluster, 12)
    assert cluster.term == 1
    cluster.members[member.node] = member
    cluster._tell_members()
    tick_s(cluster, 2)
    assert (cluster.term, cluster.view.primaries) == (2, ("sequencer-2",))


@pytest.mark.parametrize(("drained", "moves"), [("storage-4", True), ("storage-3", False)])
def test_a_primary_moves_though_a_node_was_drained_and_removed(drained: str, *, moves: bool) -> None:
    """Its name stays in the plan, and it answers nothing any more. With one that has records still, it does not."""
    cluster = together()
    cluster.want(draining=(NodeId(drained),))
    tick_s(cluster, 1)
    cluster.kill(drained)
    cluster.unregister(drained)
    tick_s(cluster, 12)
    assert cluster.view.primaries == (("sequencer-2",) if moves else ("sequencer-1",))


@pytest.mark.parametrize(
    ("progress", "leaving", "is_at_rest"),
    [
        (Progress(used={STORAGE[0]: 2}), (STORAGE[1],), True),
        (Progress(used={STORAGE[0]: 2}), (STORAGE[0],), False),
        (Progress(), (), True),
        (Progress(shards_moving=1), (), False),
        (Progress(shards_incomplete=1), (), False),
        (Progress(shards_lacking=1), (), False),
        (Progress(open_on_lost=1), (), False),
    ],
)
def test_shards_are_at_rest_when_nothing_is_to_be_copied(
    progress: Progress, leaving: tuple[NodeId, ...], *, is_at_rest: bool
) -> None:
    """And none is on a node that leaves."""
    assert progress.is_at_rest(leaving) == is_at_rest


def test_a_term_that_ends_anyway_takes_the_primary_to_the_load() -> None:
    """Not to the next sequencer by name."""
    cluster = together(move_primary_after_us=0)
    member = cluster.members[NodeId("engine-1")]
    cluster.members[member.node] = msgspec.structs.replace(member, host=NodeId("node-3"))
    member = cluster.members[NodeId("sequencer-3")]
    cluster.members[member.node] = msgspec.structs.replace(member, host=NodeId("node-3"))
    cluster._tell_members()
    tick_s(cluster, 6)
    cluster.kill("sequencer-1")
    tick_s(cluster, 3)
    assert (cluster.term, cluster.view.primaries) == (2, ("sequencer-3",))


def test_a_controller_that_led_before_begins_to_count_again() -> None:
    """What it saw then may be long ago."""
    cluster = together(move_primary_after_us=0)
    tick_s(cluster, 6)
    assert cluster.controller().status()["leading_engines"]
    cluster.lead("controller-1", leads=False)
    cluster.run()
    assert not cluster.controller().status()["leading_engines"]
