"""A primary that moves to the node that appends, in clusters that lose it again and again: no promise is broken."""

from __future__ import annotations

from collections import Counter

import pytest

from boki.verify.sim.options import Options
from boki.verify.sim.simulation import simulate

FIRST, CHUNK = 3, 3
"""Seeds of the ordinary run, in each of which a primary moves; `--whole` runs forty times as many."""
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
    assert first > FIRST or seen[MOVED] == CHUNK
