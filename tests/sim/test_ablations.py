"""Each safeguard of the cores, switched off, is noticed from outside: what no checker notices is not promised."""

from __future__ import annotations

import pytest

from tests.sim.ablations import ABLATIONS, LIMIT, seeds_needed

FIRST_CAUGHT = {
    "a majority of seals": 20,
    "completion on a majority": 24,
    "conditions": 2,
    "durable seal": 18,
    "durable trim floors": 72,
    "fence under a commit": 0,
    "fresh tails": 54,
    "fsync before the report": 19,
    "incarnation check": 50,
    "key de-duplication": 0,
    "memory of ops": 0,
    "order of keys": 11,
    "position wait on reads": 5,
    "restarted primary silent": 56,
    "term check": 6,
    "terms applied in order": 2,
    "tokens of leases": 13,
    "write quorum": 3,
}
"""Where each was caught when this was last measured: tried first, so that a test run need not begin at seed 0.

`python -m tests.sim.ablations` measures them anew.
"""


@pytest.mark.parametrize("name", ABLATIONS)
def test_a_safeguard_that_is_off_is_noticed(name: str) -> None:
    """By a checker that sees only what clients saw, in the ordinary swarm, within 200 seeds."""
    likely = FIRST_CAUGHT.get(name, 0)
    seeds = sorted(range(LIMIT), key=lambda seed: (abs(seed - likely), seed))
    assert seeds_needed(name, seeds) is not None
