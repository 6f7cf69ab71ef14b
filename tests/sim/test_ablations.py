"""Each safeguard of the cores, switched off, is noticed from outside: what no checker notices is not promised."""

from __future__ import annotations

import pytest

from tests.sim.ablations import ABLATIONS, LIMIT, seeds_needed

FIRST_CAUGHT = {
    "a majority of seals": 104,
    "checksums": 56,
    "completion on a majority": 30,
    "a quorum of checkpoints": 25,
    "conditions": 0,
    "conditions on the ends of calls": 5,
    "copies before a move": 6,
    "counts outlive trims": 9,
    "durable seal": 67,
    "durable trim floors": 3,
    "end of silent consumers": 13,
    "end of the fenced": 6,
    "fence before a takeover": 101,
    "fence under a commit": 45,
    "fresh tails": 16,
    "fsync before a checkpoint counts": 102,
    "fsync before a completion counts": 30,
    "fsync before the report": 0,
    "incarnation check": 9,
    "key before conditions": 70,
    "key de-duplication": 3,
    "memory of ops": 13,
    "memory of requests": 18,
    "numbers of a life": 77,
    "order of keys": 13,
    "patience with drains": 6,
    "position wait on reads": 8,
    "positions for clients": 13,
    "restarted primary silent": 42,
    "term check": 34,
    "terms applied in order": 2,
    "time of the term before": 122,
    "tokens of leases": 13,
    "trims carried out once": 5,
    "what may be repeated": 24,
    "write quorum": 9,
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
