"""Bugs that the simulator found and that were fixed: each can be put back, and has options under which it shows.

Seed 243 is not among them: `Swap` waits until a primary has heard of a new disk, or it would take too much, so a
disk that says nothing of itself stops the scenario. That it speaks is tested in tests/storage/test_core.py.

Histories change when the simulator draws something more, and then a seed may show its bug no longer. Run as a program,
`python -m tests.verify.sim.bugs [NAME…]` looks for the first seed that does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import patch

import msgspec

from boki.engine import reads
from boki.errors import CorruptData
from boki.log.operations import TrimBook
from boki.protocol import asking
from boki.storage import shards
from boki.verify.sim.options import Options
from boki.verify.sim.shrinking import first_broken

SEEDS = 400


class Bug(msgspec.Struct, frozen=True, kw_only=True):
    """`put_back` is a context in which it is there; `seed` is the one under which it was found."""

    seed: int
    put_back: Callable[[], Any]
    promise: str
    options: Options


def only(*names: str) -> dict[str, int]:
    """The weights of a workload that has nothing but these operations."""
    operations = ("append", "keyed", "conditional", "many", "read", "tail", "get", "sync", "child", "poll", "trim")
    return {name: int(name in names) for name in operations}


def a_version_that_a_flipped_bit_made() -> Any:
    """A batch of another version keeps a storage node from starting."""
    return patch.object(shards, "BokiError", CorruptData)


def a_second_refusal_that_is_believed() -> Any:
    """What a second engine says of an append is told, whatever the first one may have done."""
    return patch.object(asking, "is_change", lambda operation: False)


def a_trim_that_is_asked_of_two() -> Any:
    """A trim that an engine is slow to answer is asked of another one, too."""
    may_repeat = asking.is_repeatable
    return patch.object(asking, "is_repeatable", lambda asked: isinstance(asked, TrimBook) or may_repeat(asked))


def a_record_that_is_displaced_by_what_follows() -> Any:
    """What was fetched beyond a record is cached after it, and displaces it."""
    return patch.object(reads, "reversed", list, create=True)


BUGS = {
    "version of a batch": Bug(
        seed=42,
        put_back=a_version_that_a_flipped_bit_made,
        promise="liveness",
        options=Options(
            seed=54,
            chaos_us=2_500_000,
            storage=3,
            engines=1,
            controllers=1,
            clients=1,
            books=1,
            tags=1,
            mix={"trim": 0},
            faults={"rot": 30.0, "crash": 2.0},
        ),
    ),
    "refusal in doubt": Bug(
        seed=173,
        put_back=a_second_refusal_that_is_believed,
        promise="nothing is doubled or refused and kept",
        options=Options(
            seed=2,
            chaos_us=3_000_000,
            storage=3,
            relays=3,
            controllers=1,
            clients=6,
            pause_us=15_000,
            mix=only("keyed"),
            faults={"one_way": 1.5, "stop": 1.5, "loss": 0.1},
        ),
    ),
    "trim twice": Bug(
        seed=824,
        put_back=a_trim_that_is_asked_of_two,
        promise="nothing acknowledged is lost",
        options=Options(
            seed=9,
            chaos_us=1_500_000,
            storage=3,
            relays=3,
            controllers=1,
            clients=6,
            books=1,
            tags=1,
            pause_us=15_000,
            deadline_us=5_000_000,
            mix=only("append", "read") | {"trim": 2},
            faults={"one_way": 1.5, "delay": 0.1},
        ),
    ),
    "displaced record": Bug(
        seed=1807,
        put_back=a_record_that_is_displaced_by_what_follows,
        promise="liveness",
        options=Options(
            seed=0,
            chaos_us=5_602_821,
            storage=3,
            sequencers=5,
            engines=1,
            controllers=1,
            books=1,
            tags=1,
            pause_us=18_417,
            deadline_us=1_556_199,
            mix=only("append", "keyed", "tail", "get") | {"conditional": 2, "many": 4, "sync": 2, "poll": 2},
            batch_bytes=2_000,
            cache_bytes=1 << 20,
            payload_bytes=400,
            link_us=386,
            sync_us=886,
            session_us=8_000_000,
        ),
    ),
}


def broken_with(bug: Bug, options: Options) -> str | None:
    """The promise that a run breaks first when the bug is back."""
    with bug.put_back():
        return first_broken(options)


def first_seed(bug: Bug, seeds: Iterable[int] = range(SEEDS)) -> int | None:
    """The first seed of these that shows the bug under its options; None if none does."""
    with bug.put_back():
        for seed in seeds:
            if first_broken(msgspec.structs.replace(bug.options, seed=seed)) == bug.promise:
                return seed
    return None


if __name__ == "__main__":
    for wanted in sys.argv[1:] or BUGS:
        print(f"{wanted}: seed {first_seed(BUGS[wanted])}", flush=True)
