"""Transactions under concurrency, lost answers and crashes are strictly serializable; each rule is needed for it."""

from __future__ import annotations

from random import Random

import pytest

from boki import Expect
from boki.libs.bokistore import ConflictError, drafts, saving
from boki.libs.bokistore.drafts import Draft
from boki.libs.bokistore.reading import Reader
from boki.libs.bokistore.records import UNKNOWN_AUTHOR, row_tag
from boki.libs.bokistore.requests import Requests
from boki.libs.bokistore.transactions import Transaction
from boki.libs.bokistore.views import View
from boki.libs.fold.steps import Steps
from boki.verify.histories.lists import find_anomalies
from tests.libs.bokistore.histories import Workload
from tests.libs.bokistore.interleaving import Process, Scheduler, logbook, new_nonce

SEEDS = 25
EACH = 120


def anomalies(seed: int, **options: object) -> set[str]:
    return {anomaly.name for anomaly in find_anomalies(Workload(seed, **options).run(EACH))}  # type: ignore[arg-type]


def found(**options: object) -> set[str]:
    """Every kind of anomaly that some seed shows."""
    return set().union(*(anomalies(seed, **options) for seed in range(SEEDS)))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_histories_have_no_anomaly(seed: int) -> None:
    """Lone updates and reads included; the run has met conflicts, commits and lost answers."""
    workload = Workload(seed)
    txns = workload.run(EACH)
    assert find_anomalies(txns) == []
    assert workload.conflicts > 0
    assert workload.scheduler.lost > 0
    assert sum(txn.told == "ok" for txn in txns) > EACH / 3


class WriteSetOnly(Transaction):
    """The published rule: only what was written is compared."""

    def conditions(self) -> list[Expect]:
        return [
            Expect(row_tag(name), last_seqnum=draft.base.last) for name, draft in self._drafts.items() if draft.updates
        ]


def test_without_the_reads_in_the_conditions_there_is_write_skew() -> None:
    """Snapshot isolation is what the published store has."""
    names = found(begin=lambda process: WriteSetOnly(process.reader, new_nonce(), UNKNOWN_AUTHOR))
    assert any(name.startswith("G2") for name in names), names


def test_without_the_comparison_of_results_updates_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that continues with what it has seen of an older version."""
    monkeypatch.setattr(drafts, "_is_same", lambda one, other: True)
    names = found()
    assert any(name.startswith("G-single") or name == "lost-update" for name in names), names


def test_without_the_comparison_of_reads_there_is_read_skew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what updates return is compared: the rule for what was asked is needed beside it."""

    def on(self: Draft, base: View) -> Draft | None:
        again = Draft(base)
        for action in self._actions:
            if isinstance(action, drafts._Changed) and again._apply(action.update) is not None:
                again._actions.append(action)
        return again

    monkeypatch.setattr(Draft, "on", on)
    names = found()
    assert any(name.startswith("G") for name in names), names


class Newest(Reader):
    """Reads what exists now, whatever the snapshot."""

    def view_at(self, name: str, seqnum: int) -> Steps[View]:
        row, _ = yield from self.catch_up(name)
        return row.newest


def test_without_the_snapshot_transactions_that_only_read_see_what_never_was_together() -> None:
    """Nobody refuses them, so they must not see it in the first place."""

    def begin(process: Process) -> Transaction:
        return Transaction(Newest(process.rows, process.book.name), new_nonce(), UNKNOWN_AUTHOR)

    names = found(begin=begin)
    assert any(name.startswith("G-single") for name in names), names


class Forgetful(Transaction):
    """Takes a commit whose answer was lost for a conflict."""

    def _find_own(self) -> Steps[tuple[int, ...]]:
        yield from ()
        return ()


def test_without_a_look_for_its_own_record_a_lost_answer_is_taken_for_an_abort() -> None:
    """What its caller is told was never there is read by others."""
    names = found(begin=lambda process: Forgetful(process.reader, new_nonce(), UNKNOWN_AUTHOR), lose=0.4)
    assert names & {"G1a", "duplicate-elements", "dirty-update"}, names


class Unconditional(Transaction):
    """Appends whatever has come in between."""

    def conditions(self) -> list[Expect]:
        return []


def test_without_conditions_nothing_holds() -> None:
    """Each commits on what it has seen."""
    names = found(begin=lambda process: Unconditional(process.reader, new_nonce(), UNKNOWN_AUTHOR))
    assert {"G-single-item", "G2-item"} & names, names


def test_a_reader_within_a_transaction_never_sees_a_broken_invariant() -> None:
    """Opacity: pairs that every transaction keeps equal are equal in every read, also of those that will abort."""
    book = logbook()
    scheduler = Scheduler(book, Random(1), lose=0.05)
    processes = [Process(book) for _ in range(3)]
    pairs = 0

    def work(process: Process, amount: int, rng: Random) -> Steps[None]:
        nonlocal pairs
        for _ in range(20):
            txn = process.begin()
            names = ["left", "right"]
            rng.shuffle(names)
            seen = []
            for name in names:
                seen.append((yield from Requests[int](txn, name, None).get("n", 0)))
            assert seen[0] == seen[1]
            pairs += 1
            for name in names:
                yield from Requests[int](txn, name, None).set("n", seen[0] + amount, None)
            try:
                yield from txn.commit()
            except ConflictError:
                continue  # it has seen nothing wrong all the same

    callers = [scheduler.start(work(process, number + 1, scheduler._rng)) for number, process in enumerate(processes)]
    scheduler.finish()
    assert [caller.error for caller in callers] == [None] * 3
    assert pairs == 60


def save_something(process: Process, rng: Random) -> Steps[None]:
    """Save and trim an object, as a process does in the background."""
    return saving.save(process.reader, rng.choice(["o1", "o2", "o3", "o4"]))


# Found once: a commit whose answer was lost and whose record was trimmed (the first three), a process that saved less
# than another one had before it, and an update whose result was trimmed before it was read (the last).
FOUND = [10171, 10251, 10253, 10341, 10343, 10481]


@pytest.mark.parametrize("seed", [*range(SEEDS), *FOUND])
def test_histories_have_no_anomaly_while_objects_are_saved_and_trimmed(seed: int) -> None:
    """By any process at any time, of what it knows, with no past that is kept."""
    workload = Workload(seed, upkeep=save_something)
    Process(workload.scheduler._book).run(saving.configure(0))
    txns = workload.run(EACH if seed < SEEDS else 210)
    rows = [len(workload.scheduler._book.read(row_tag(f"o{number}")).records) for number in (1, 2, 3, 4)]
    assert find_anomalies(txns) == []
    assert min(rows) < EACH / 8
