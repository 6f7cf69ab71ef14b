"""Objects in the simulator: whole runs of the library in processes that die."""

from __future__ import annotations

from itertools import count

import msgspec
import pytest

from boki.errors import BokiError
from boki.libs.bokistore import saving
from boki.libs.bokistore.records import row_tag
from boki.libs.bokistore.requests import Requests
from boki.libs.fold.steps import Step, Steps, drive
from boki.verify.sim.options import Options, draw_objects, draw_options
from boki.verify.sim.simulation import simulate
from boki.verify.sim.stores import fold
from tests.libs.bokistore.interleaving import Process, logbook

CALM = Options(seed=3, clients=1, chaos_us=2_000_000, stores=2)


def test_the_objects_of_a_run_without_faults_hold_what_they_promise() -> None:
    """Transactions conflict, commit and are counted, and the same run happens again."""
    outcome = simulate(CALM)
    assert outcome.violations == []
    assert outcome.trace == simulate(CALM).trace
    assert outcome.trace != simulate(msgspec.structs.replace(CALM, stores=0)).trace


@pytest.mark.parametrize("seed", [21, 22])
def test_objects_outlive_their_processes_and_their_engines(seed: int) -> None:
    """Whatever dies in the middle of whatever: no anomaly, no increment lost or doubled, no view of its own."""
    faults = {"crash": 1.0, "pause": 0.5, "crash_primary": 0.5}
    outcome = simulate(Options(seed=seed, clients=1, stores=3, store_work=2, store_crashes=1.5, faults=faults))
    assert outcome.violations == []
    assert outcome.seen["a transaction was in conflict with another one"]


def test_a_third_of_the_seeds_have_objects_and_the_rest_is_drawn_as_before() -> None:
    """They have a stream of their own: no other choice of a seed depends on them."""
    drawn = [draw_options(seed) for seed in range(500)]
    assert 130 < sum(options.stores > 0 for options in drawn) < 200
    assert len({options.store_crashes > 0 for options in drawn}) == 2


def test_a_seed_of_objects_alone_has_many_transactions() -> None:
    """With the cluster and the faults of the seed; they are counted, and all of them are judged."""
    options = draw_objects(5)
    assert options.faults == draw_options(5).faults
    outcome = simulate(options)
    assert outcome.violations == []
    assert outcome.transactions > 100
    assert simulate(CALM).transactions > 20


def test_transactions_that_are_stuck_break_a_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who never commits is noticed: a minute after everything was healed every process must be done."""

    async def refuse(*_: object) -> None:
        raise BokiError("not today", outcome="not_applied")

    monkeypatch.setattr("boki.libs.bokistore.store.TransactionBlock.__aenter__", refuse)
    promises = {violation.promise: violation.text for violation in simulate(CALM).violations}
    assert "still use objects" in promises["liveness"]


@pytest.mark.parametrize("saved", [0, 3])
@pytest.mark.parametrize("moment", range(3))
def test_an_object_that_is_trimmed_while_it_is_judged_is_judged_whole(saved: int, moment: int) -> None:
    """Whichever read of the fold the trim comes after: what it takes away is in a checkpoint (seed 63405)."""
    process = Process(logbook())
    process.run(saving.configure(0))
    for number in range(1, 6):
        process.run(Requests(process.direct, "x", None).increment("n", 1, None))
        if number == saved:
            process.run(saving.save(process.reader, "x"))
    seqnums = [record.seqnum for record in process.book.read(row_tag("x")).records]
    reads = count()

    def carry_out(read: Step) -> object:
        answer = process.run(_alone(read))
        if next(reads) == moment:
            process.run(saving.save(process.reader, "x"))
            assert [record.seqnum for record in process.book.read(row_tag("x")).records] == seqnums[-1:]
        return answer

    views = drive(fold("x", seqnums[-1]), carry_out)
    assert views[seqnums[-1]].value == {"n": 5}


def _alone(read: Step) -> Steps[object]:
    return (yield read)
