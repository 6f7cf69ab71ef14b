"""Each safeguard of the cores, switched off, is noticed from outside: what no checker notices is not promised."""

from __future__ import annotations

import pytest

from tests.sim.ablations import ABLATIONS, LIMIT, seeds_needed

FIRST_CAUGHT = {}
"""Where each was caught when this was last measured: tried first, so that a test run need not begin at seed 0."""


@pytest.mark.parametrize("name", ABLATIONS)
def test_a_safeguard_that_is_off_is_noticed(name: str) -> None:
    """By a checker that sees only what clients saw, in the ordinary swarm, within 200 seeds."""
    likely = FIRST_CAUGHT.get(name, 0)
    seeds = sorted(range(LIMIT), key=lambda seed: (abs(seed - likely), seed))
    assert seeds_needed(name, seeds) is not None
