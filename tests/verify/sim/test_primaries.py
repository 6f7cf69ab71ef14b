"""A primary that moves to the node that appends, in clusters that lose it again and again: no promise is broken."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from boki.log.ids import NodeId
from boki.verify.sim.controllers import ControllerNode
from boki.verify.sim.options import Options, as_up
from boki.verify.sim.simulation import Simulation, simulate

FIRST, CHUNK = 3, 3
"""Seeds of the ordinary run, in some of which a primary moves; `--whole` runs forty times as many."""
CHUNKS = 40
MOVED = "a primary moved to where records come from"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Chunks of seeds."""
    if "first" in metafunc.fixturenames:
        chunks = CHUNKS if metafunc.config.getoption("whole") else 1
        metafunc.parametrize("first", range(FIRST, FIRST + chunks * CHUNK, CHUNK))


def losing_primaries(seed: int) -> Options:
    """One engine, so that all records come from one node of three; now and then the node of the primary is lost."""
    return Options(
        seed=seed,
        is_hosted=True,
        engines=1,
        controllers=3,
        storage=3,
        spare_sequencers=0,
        chaos_us=20_000_000,
        pause_us=40_000,
        faults={"crash_primary": 0.2, "crash": 0.05},
    )


def test_a_primary_that_moves_to_the_load_breaks_no_promise(first: int) -> None:
    """It is moved between other changes of terms, and something comes in between. The first seeds meet it."""
    seen: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        outcome = simulate(losing_primaries(seed))
        assert outcome.violations == [], f"seed {seed}"
        seen += Counter(outcome.seen)
    assert first > FIRST or seen[MOVED]


def test_a_move_counts_when_a_view_with_another_primary_is_installed() -> None:
    """Neither a view with the primaries of the one before nor one that comes too late counts, nor one twice."""
    world = Simulation(as_up(Options(seed=1)))
    assert world.clock.run_until(world.clock.now_us + 10_000_000, lambda: bool(world.coordinator.views))
    node = world.nodes[NodeId("controller-1")]
    assert isinstance(node, ControllerNode)
    last = world.coordinator.views[-1]
    same = replace(last, term=last.term + 1)
    moved = replace(last, term=last.term + 2, primaries=(last.sequencers[-1],))
    back = replace(last, term=last.term + 3)
    assert moved.primaries != last.primaries
    counts = []
    for view, is_near in ((moved, True), (same, True), (moved, True), (moved, True), (same, True), (back, False)):
        node._install(view, is_near=is_near)
        counts.append(world.clock.seen[MOVED])
    assert counts == [0, 0, 1, 1, 1, 1]
    assert world.coordinator.views[-1] == back
    for each in world.nodes.values():
        each.end()
    world.clock.run_until(world.clock.now_us)
