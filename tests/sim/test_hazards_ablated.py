"""Scenarios of hazards fail when the remedy of the hazard is off: else they would pass whatever the cores do.

Of those with two scenarios, one brings about the order of events in which it matters, by schemes or messages that are
withheld; the other one is the hazard as it was met elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import patch

import pytest

from boki.engine.appends import Appends
from boki.engine.reads import Reads
from tests.sim import test_hazards
from tests.sim.ablations import ABLATIONS


def no_wakes() -> Any:
    """A read that waits is not tried again when its book has changed."""
    on_applied = Reads.on_applied

    def deaf(self: Reads, books: Iterable[str], now_us: int) -> Any:
        return on_applied(self, (), now_us)

    return patch.object(Reads, "on_applied", deaf)


def no_refusals() -> Any:
    """An engine takes appends while its storage nodes have no room."""
    return patch.object(Appends, "_check_room", lambda self, shard: None)


PAIRS: list[tuple[Callable[..., None], tuple[int, ...], Callable[[], Any]]] = [
    (
        test_hazards.test_h2_an_old_primary_whose_backup_comes_back_after_the_seal,
        (),
        ABLATIONS["durable seal"],
    ),
    (test_hazards.test_h5_what_one_replica_has_is_not_acknowledged, (), ABLATIONS["write quorum"]),
    (test_hazards.test_h14_an_index_that_is_behind_answers_no_fresh_read, (), ABLATIONS["fresh tails"]),
    (
        test_hazards.test_h15_an_entry_that_one_backup_has_is_completed_on_others_before_the_next_term,
        (),
        ABLATIONS["completion on a majority"],
    ),
    (
        test_hazards.test_h16_a_backup_that_lacks_entries_does_not_end_a_term_alone,
        (),
        ABLATIONS["a majority of seals"],
    ),
    (test_hazards.test_h18_what_a_lost_disk_has_said_counts_no_more, (), ABLATIONS["incarnation check"]),
    (test_hazards.test_h8_a_failover_at_any_moment_reuses_no_position, (0,), ABLATIONS["restarted primary silent"]),
    (test_hazards.test_h11_lost_answers_are_unknown_and_keys_make_them_safe, (), ABLATIONS["key de-duplication"]),
    *(
        (test_hazards.test_h17_the_power_fails_everywhere_at_once, (seed,), ABLATIONS["fsync before the report"])
        for seed in range(4)
    ),
    (test_hazards.test_h20_when_all_disks_are_full_appends_are_refused_at_once, (), no_refusals),
    (test_hazards.test_h22_trims_under_readers_who_wait, (1,), ABLATIONS["durable trim floors"]),
    (test_hazards.test_h27_a_parked_reader_is_woken_across_a_change_of_terms, (), no_wakes),
]


@pytest.mark.parametrize(
    ("scenario", "arguments", "ablation"), PAIRS, ids=[f"{f.__name__[5:8]}-{a}" for f, a, _ in PAIRS]
)
def test_a_scenario_fails_without_its_remedy(
    scenario: Callable[..., None], arguments: tuple[int, ...], ablation: Callable[[], Any]
) -> None:
    """What the scenario asserts is what the remedy is for."""
    with ablation(), pytest.raises(AssertionError, match=r"Violation|operations"):
        scenario(*arguments)
