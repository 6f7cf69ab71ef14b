"""Scenarios of hazards fail when the remedy of the hazard is off: else they would pass whatever the cores do.

Not all do. Which hazards are caught by the swarm alone, with what remedy off, is in `tests/sim/ablations.py`: the term
check and the majority of seals (H2), fresh tails (H14), completion on a majority (H15), the write quorum (H5, H16) and
the check of incarnations (H18) need orders of events that those scenarios do not bring about each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import patch

import pytest

from boki.engine.reads import Reads
from tests.sim import test_hazards
from tests.sim.ablations import ABLATIONS


def no_wakes() -> Any:
    """A read that waits is not tried again when its book has changed."""
    on_applied = Reads.on_applied

    def deaf(self: Reads, books: Iterable[str], now_us: int) -> Any:
        return on_applied(self, (), now_us)

    return patch.object(Reads, "on_applied", deaf)


PAIRS: list[tuple[Callable[..., None], tuple[int, ...], Callable[[], Any]]] = [
    (test_hazards.test_h8_a_failover_at_any_moment_reuses_no_position, (0,), ABLATIONS["restarted primary silent"]),
    (test_hazards.test_h11_lost_answers_are_unknown_and_keys_make_them_safe, (), ABLATIONS["key de-duplication"]),
    *(
        (test_hazards.test_h17_the_power_fails_everywhere_at_once, (seed,), ABLATIONS["fsync before the report"])
        for seed in range(4)
    ),
    (test_hazards.test_h22_trims_under_readers_who_wait, (1,), ABLATIONS["durable trim floors"]),
    (test_hazards.test_h22_trims_under_readers_who_wait, (2,), ABLATIONS["durable trim floors"]),
    (test_hazards.test_h27_a_parked_reader_is_woken_across_a_change_of_terms, (), no_wakes),
]


@pytest.mark.parametrize(
    ("scenario", "arguments", "ablation"), PAIRS, ids=[f"{f.__name__[5:8]}-{a}" for f, a, _ in PAIRS]
)
def test_a_scenario_fails_without_its_remedy(
    scenario: Callable[..., None], arguments: tuple[int, ...], ablation: Callable[[], Any]
) -> None:
    """What the scenario asserts is what the remedy is for."""
    with ablation(), pytest.raises(AssertionError):
        scenario(*arguments)
