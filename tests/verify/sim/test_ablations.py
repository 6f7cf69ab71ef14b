"""Each safeguard of the cores, switched off, is noticed from outside: what no checker notices is not promised."""

from __future__ import annotations

import pytest

from tests.verify.sim import call_ablations, flow_ablations
from tests.verify.sim.ablations import ABLATIONS, CAUGHT_BY, LIMIT, seeds_needed

FIRST_CAUGHT = {
    "a majority of seals": 83,
    "a quorum of checkpoints": 25,
    "age of locks": 7,
    "checksums": 36,
    "comparison of queries": 27,
    "comparison of results": 6,
    "comparison of rows": 6,
    "completion on a majority": 21,
    "condition on a guess": 6,
    "conditions": 0,
    "conditions on the ends of calls": 5,
    "conditions on the runs of calls": 12,
    "copies before a move": 6,
    "count of the journal": 1,
    "counts outlive trims": 9,
    "durable forgetting": 9,
    "durable seal": 67,
    "durable trim floors": 5,
    "effects wait for the journal": 4,
    "end of alarms": 0,
    "end of locks": 1,
    "end of silent consumers": 108,
    "end of the fenced": 6,
    "fence before a takeover": 6,
    "fence under a commit": 13,
    "first use of a call's key": 33,
    "fresh tails": 5,
    "end of overtaken executions": 1,
    "fsync before a checkpoint counts": 0,
    "fsync before a completion counts": 0,
    "fsync before the report": 0,
    "incarnation check": 9,
    "inheritance of suspended calls": 41,
    "key before conditions": 8,
    "key de-duplication": 0,
    "keys of transactions": 25,
    "look for one's own commit": 6,
    "memory of ops": 2,
    "memory of requests": 18,
    "news of objects": 6,
    "numbers of an incarnation": 6,
    "one wake-up for a sleep": 4,
    "order of a workflow's messages": 20,
    "order in a shared log": 37,
    "numbers of runs": 0,
    "once for keyed state": 4,
    "order of keys": 2,
    "order of locks": 12,
    "parts that are undone": 8,
    "waiting for drains": 6,
    "position wait on reads": 5,
    "positions for clients": 185,
    "question at the end of a guess": 5,
    "reads in the conditions": 28,
    "resumption of the living": 0,
    "restarted primary silent": 8,
    "records in front of a completion": 18,
    "records in front of a cut": 78,
    "mark of what ran ahead": 1,
    "reports behind the word of them": 94,
    "running total of credit": 2,
    "scope of step keys": 1,
    "snapshots of transactions": 6,
    "subscriptions beside a time": 4,
    "sync of the log before a cut counts": 24,
    "term check": 18,
    "terms applied in order": 1,
    "time of the term before": 240,
    "the token": 1,
    "tokens of leases": 13,
    "timers of suspended workflows": 4,
    "trims carried out once": 12,
    "wake-ups of workflows": 20,
    "wake-ups that came first": 13,
    "what may be repeated": 24,
    "word of ends": 1,
    "wait for the shared sync": 164,
    "write quorum": 9,
}
"""Where each was caught when this was last measured: tried first, so that a test run need not begin at seed 0.

`python -m tests.verify.sim.ablations` measures them again.
"""


PART = 10


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All safeguards with `--whole`, otherwise the tenth that the fewest seeds have caught.

    Whenever the simulator draws anything else all are caught elsewhere, and only what many seeds catch is found soon.
    """
    if "name" not in metafunc.fixturenames:
        return
    names = sorted(ABLATIONS, key=lambda name: FIRST_CAUGHT.get(name, LIMIT))
    metafunc.parametrize("name", names if metafunc.config.getoption("whole") else names[: len(names) // PART])


def test_every_safeguard_is_there_to_be_switched_off() -> None:
    """Also those that only `--whole` switches off: an ablation of what was renamed would switch off nothing."""
    for switch_off in ABLATIONS.values():
        with switch_off():
            pass


def test_safeguards_of_calls_and_workflows_name_their_checker() -> None:
    """That another one notices something is not enough: what each checks would be checked by nothing."""
    assert CAUGHT_BY.keys() == {*flow_ablations.ABLATIONS, *call_ablations.ABLATIONS}


def test_a_safeguard_that_is_off_is_noticed(name: str) -> None:
    """By the checker that it names, or else by any, in the ordinary swarm, within 400 seeds."""
    likely = FIRST_CAUGHT.get(name, 0)
    seeds = sorted(range(LIMIT), key=lambda seed: (abs(seed - likely), seed))
    assert seeds_needed(name, seeds) is not None
