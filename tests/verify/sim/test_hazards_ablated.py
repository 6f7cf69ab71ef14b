"""Scenarios of hazards fail when the remedy of the hazard is off: else they would pass whatever the cores do.

Of those with two scenarios, one brings about the order of events in which it matters, by scenarios or messages that are
withheld; the other one is the hazard as it was met elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from boki.controller.term_change import TermChange
from boki.engine.appends import Appends
from boki.engine.reads import Reads
from boki.engine.tails import Tails
from boki.log.ids import NodeId
from boki.log.operations import Failure
from boki.log.view import View
from boki.protocol.asking import Asking, Step
from boki.protocol.effects import Store
from boki.sequencer import core
from boki.sequencer.history import History
from boki.storage.answers import Answers
from boki.storage.repair import Repair
from boki.verify.sim.coordinator import Coordinator
from boki.verify.sim.disks import SimulatedDisk
from tests.verify.sim import test_hazards
from tests.verify.sim.ablations import ABLATIONS


def no_wakes() -> Any:
    """A read that waits is not tried again when its book has changed."""
    on_applied = Reads.on_applied

    def deaf(self: Reads, books: Iterable[str], now_us: int, rows: Any = None) -> Any:
        return on_applied(self, (), now_us, ())

    return patch.object(Reads, "on_applied", deaf)


def no_refusals() -> Any:
    """An engine takes appends while its storage nodes have no room."""
    return patch.object(Appends, "_check_room", lambda self, shard: None)


def no_doubt() -> Any:
    """What is not on a disk was there and has been freed, whatever happened to the disk."""
    missing = Answers._missing

    def confident(self: Answers, question: Any, found_from: int, error: str) -> Any:
        message = question.message
        shard = self._holdings.shards.get((message.term, message.log, message.shard))
        if shard is not None:
            question = replace(question, generation=shard.generation, written_until=shard.order.until_lid)
        return missing(self, question, found_from, error)

    return patch.object(Answers, "_missing", confident)


def no_mending() -> Any:
    """A batch that is found to be damaged stays as it is."""
    return patch.object(Repair, "mend", lambda self, key, first_lid: None)


def no_majority_under_a_commit() -> Any:
    """A primary publishes what it has itself, whoever else has it."""
    reached = core.quorum_reached
    return patch.object(core, "quorum_reached", lambda values, _quorum: reached(values, 1))


def no_majority_of_tails() -> Any:
    """A fresh read takes the first sequencer's word for the tail."""
    tell = Tails.tell

    class Lonely:
        """A view in which one is a majority."""

        sequencer_majority = 1

        def __init__(self, view: Any) -> None:
            self._view = view

        def __getattr__(self, name: str) -> Any:
            return getattr(self._view, name)

    def hasty(self: Tails, view: Any, sender: Any, message: Any) -> Any:
        return tell(self, Lonely(view), sender, message)  # type: ignore[arg-type]

    return patch.object(Tails, "tell", hasty)


def no_doubt_after_a_loss() -> Any:
    """What the last engine that was asked says of an append, holds for those that were asked before."""
    answer = Asking.answer

    def forgetful(self: Asking, node: NodeId, number: int, failure: Failure | None, now_us: int) -> list[Step]:
        question = self.find(node, number)
        if question is not None and failure is not None:
            question.doubt = None
        return answer(self, node, number, failure, now_us)

    return patch.object(Asking, "answer", forgetful)


@contextmanager
def no_witness(but: Callable[[], Any]) -> Iterator[None]:
    """A term begins whatever nodes have applied, and another remedy is off: each alone is enough in these scenarios."""
    with patch.object(TermChange, "_find_lost", lambda self: ""), but():
        yield


def no_incarnation_of_the_sealed() -> Any:
    """A sequencer that has lost its disk is sealed like any other."""
    return patch.object(TermChange, "_counts", lambda self, node, incarnation: True)


def no_refilling() -> Any:
    """A storage node asks nobody for what it lacks."""
    return patch.object(Repair, "ask", lambda self, now_us, *, may_store: [])


def no_whole_terms() -> Any:
    """A sequencer asks nobody for what it lacks of a term that is over."""
    return patch.object(History, "tick", lambda self, now_us: [])


def no_end_with_the_disk() -> Any:
    """A node continues when a write or a sync has failed, though what it wrote is not there."""
    synced = SimulatedDisk._synced

    def forgiving(self: SimulatedDisk, generation: int) -> None:
        if generation == self._generation and (self.is_full or self.fail_next_sync):
            for _, _, undo in reversed(self._group):
                for key, value in reversed(undo):
                    self._set(key, value)
            self._group = [(Store((), then=store.then), then, []) for store, then, _ in self._group]
            self.fail_next_sync = False
        synced(self, generation)

    return patch.object(SimulatedDisk, "_synced", forgiving)


def no_compare_and_set() -> Any:
    """Of two views of one term the later one counts."""
    install = Coordinator.install

    def careless(self: Coordinator, view: View) -> bool:
        if 1 < view.term <= len(self.views):
            self.views[view.term - 1] = view
            self._changed("views")
            return True
        return install(self, view)

    return patch.object(Coordinator, "install", careless)


PAIRS: list[tuple[Callable[..., None], tuple[int, ...], Callable[[], Any]]] = [
    (
        test_hazards.test_h2_an_old_primary_whose_backup_comes_back_after_the_seal,
        (),
        ABLATIONS["durable seal"],
    ),
    (test_hazards.test_h5_what_one_replica_has_is_not_acknowledged, (), ABLATIONS["write quorum"]),
    (test_hazards.test_h5_a_damaged_tail_cuts_nothing_off, (0,), no_doubt),
    (test_hazards.test_h14_a_tail_that_an_old_primary_tells_is_not_the_current_one, (), no_majority_of_tails),
    (test_hazards.test_h14_an_index_that_is_behind_answers_no_fresh_read, (), ABLATIONS["fresh tails"]),
    (
        test_hazards.test_h15_an_entry_that_one_backup_has_is_completed_on_others_before_the_next_term,
        (),
        ABLATIONS["completion on a majority"],
    ),
    (
        test_hazards.test_h15_a_primary_that_dies_before_it_can_tell_the_others_how_far_it_was,
        (),
        no_majority_under_a_commit,
    ),
    (
        test_hazards.test_h16_the_last_replica_standing_decides_nothing_alone,
        (),
        partial(no_witness, ABLATIONS["a majority of seals"]),
    ),
    (
        test_hazards.test_h16_a_backup_that_lacks_entries_does_not_end_a_term_alone,
        (),
        partial(no_witness, ABLATIONS["a majority of seals"]),
    ),
    (test_hazards.test_h18_what_a_lost_disk_has_said_counts_no_more, (), ABLATIONS["incarnation check"]),
    (
        test_hazards.test_h18_what_a_sequencer_said_before_it_lost_its_disk_counts_no_more,
        (),
        partial(no_witness, no_incarnation_of_the_sealed),
    ),
    (test_hazards.test_h8_a_failover_at_any_moment_reuses_no_position, (0,), ABLATIONS["restarted primary silent"]),
    (test_hazards.test_h11_lost_answers_are_unknown_and_keys_make_them_safe, (), ABLATIONS["key de-duplication"]),
    (
        test_hazards.test_h11_a_refusal_does_not_speak_for_an_engine_that_was_asked_before_and_lost,
        (),
        no_doubt_after_a_loss,
    ),
    *(
        (test_hazards.test_h17_the_power_fails_everywhere_at_once, (seed,), ABLATIONS["fsync before the report"])
        for seed in range(4)
    ),
    *(
        (test_hazards.test_h18_a_replica_comes_back_at_the_same_address_with_an_empty_disk, (), ablation)
        for ablation in (no_refilling, no_whole_terms)
    ),
    (test_hazards.test_h20_a_failed_sync_stops_the_node_and_a_full_disk_only_refuses, (), no_end_with_the_disk),
    (test_hazards.test_h20_a_write_that_finds_no_space_stops_the_node_until_there_is_some, (), no_end_with_the_disk),
    (test_hazards.test_h20_when_all_disks_are_full_appends_are_refused_at_once, (), no_refusals),
    (test_hazards.test_h21_bits_rot_on_a_minority, (), no_mending),
    (test_hazards.test_h22_trims_under_readers_who_wait, (2,), ABLATIONS["durable trim floors"]),
    (test_hazards.test_h29_two_controllers_change_terms_at_once, (), no_compare_and_set),
    (test_hazards.test_h27_a_parked_reader_is_woken_across_a_change_of_terms, (), no_wakes),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All pairs with `--whole`, otherwise every third."""
    if "scenario" in metafunc.fixturenames:
        pairs = PAIRS[:: 1 if metafunc.config.getoption("whole") else 3]
        names = [f"{scenario.__name__[5:8]}-{arguments}" for scenario, arguments, _ in pairs]
        metafunc.parametrize(("scenario", "arguments", "ablation"), pairs, ids=names)


def test_a_scenario_fails_without_its_remedy(
    scenario: Callable[..., None], arguments: tuple[int, ...], ablation: Callable[[], Any]
) -> None:
    """What the scenario asserts is what the remedy is for."""
    with ablation(), pytest.raises(AssertionError, match=r"Violation|operations|no damaged batch"):
        scenario(*arguments)


def test_each_remedy_can_be_switched_off() -> None:
    """What it patches is still there: two thirds of the pairs are run by `--whole` only, and would rot unseen."""
    for _, _, ablation in PAIRS:
        with ablation():
            pass


WITHOUT_A_PAIR: dict[str, str] = {
    "test_h1_after_a_seal_no_quorum_of_unsealed_nodes_is_left": "it counts, and runs nothing",
    "test_h2_a_seal_that_one_node_never_gets": "it passes without a check of terms and with one seal; see the other H2",
    "test_h6_a_hung_replica_blocks_neither_seal_nor_recovery": "it bounds how long appends stop",
    "test_h7_appends_go_on_at_once_after_a_partition_of_the_leader": "it bounds how long appends stop",
    "test_h19_membership_changes_while_nodes_are_cut_off_and_die": "no single remedy; decommissions try those of moves",
}
"""Scenarios that no remedy is known for without which they fail, and why."""


def test_each_scenario_is_paired_or_it_is_said_why_not() -> None:
    """A scenario that cannot fail looks like one that has passed."""
    paired = {scenario.__name__ for scenario, _, _ in PAIRS}
    assert not paired & WITHOUT_A_PAIR.keys()
    assert paired | WITHOUT_A_PAIR.keys() == {name for name in vars(test_hazards) if name.startswith("test_")}
