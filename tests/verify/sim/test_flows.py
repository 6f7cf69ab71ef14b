"""Workflows in the simulator: whole runs of the library on engines that die, and what the checks notice."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from boki.books.calls.ledger import CODEC, Accepted, Entry, Finished, Started, Suspended, TakenOver
from boki.books.calls.runs import Runs
from boki.books.calls.waiting import Owner
from boki.log.record import Record
from boki.protocol.calls import Call, Outcome, Payload, Suspension
from boki.verify.sim.call_promises import (
    NOTHING_AFTER_THE_END,
    ONE_END,
    ONE_OWNER,
    RUNS_IN_ORDER,
    THE_DEAD_SLEEP,
    find_wrong_promises,
)
from boki.verify.sim.options import Options, draw_options
from boki.verify.sim.simulation import simulate
from boki.verify.workloads.errand_checks import Run, find_wrong_flows
from boki.verify.workloads.errands import DONE, Deed, Errand

CALM = Options(seed=4, clients=1, engines=2, chaos_us=2_000_000, flows=2)


def test_workflows_of_a_run_without_faults_keep_what_they_promise() -> None:
    """Steps, timers, signals, children, continuations and cancellation; and the same run happens again."""
    outcome = simulate(CALM)
    assert outcome.violations == []
    assert outcome.trace == simulate(CALM).trace


def test_workflows_outlive_their_engines() -> None:
    """Whatever dies in the middle of whatever: other engines continue, and every workflow ends as it should."""
    seen: Counter[str] = Counter()
    for seed in (4, 5, 6):
        faults = {"crash": 2.0, "pause": 0.5}
        outcome = simulate(Options(seed=seed, clients=1, engines=3, flows=3, chaos_us=3_000_000, faults=faults))
        assert outcome.violations == []
        seen += outcome.seen
    assert seen["a workflow went on in another run"]
    assert seen["a workflow was taken over by another engine"]


@pytest.mark.parametrize("seed", [9, 225, 61080])
def test_seeds_that_once_broke_a_promise(seed: int) -> None:
    """Seeds of the ordinary swarm under which workflows went wrong while they were built."""
    options = draw_options(seed)
    assert options.flows
    assert simulate(options).violations == []


OWNER, HEIR = Owner("engine-1", 1), Owner("engine-2", 2)
CALL = Call("c", "errand", Payload("json", b"null"), "errands", 10**6)
ACCEPTED = Accepted(CALL, b"", owner=OWNER)
ASLEEP = Suspended("c", 1, OWNER, Runs(), Suspension(5))
ASLEEP_CARRIED = msgspec.structs.replace(ACCEPTED, state="suspended", suspension=Suspension(5))
END = Finished("c", "errand", "errands", Outcome(Payload("json", b"1"), None), 0, 0, 0, 1)


def begun(starts: int, owner: Owner = OWNER) -> Started:
    return Started("c", 1, 0, owner, starts)


@pytest.mark.parametrize(
    ("entries", "promise", "wrong"),
    [
        ([ACCEPTED, begun(1), END], "", ""),
        ([ACCEPTED, begun(1), ASLEEP, begun(1), END], "", ""),
        ([ACCEPTED, begun(1), TakenOver(OWNER, HEIR), begun(2, HEIR), END], "", ""),
        ([ACCEPTED, begun(1), END, begun(2)], NOTHING_AFTER_THE_END, "went on after its end: Started"),
        ([ACCEPTED, begun(1), ASLEEP, END, begun(1)], THE_DEAD_SLEEP, "was resumed as run 1"),
        ([ACCEPTED, begun(1), ASLEEP_CARRIED, END, begun(1)], THE_DEAD_SLEEP, "was resumed as run 1"),
        ([ACCEPTED, begun(1), ASLEEP, END, ASLEEP], NOTHING_AFTER_THE_END, "went on after its end: Suspended"),
        ([ACCEPTED, begun(1), ASLEEP, begun(1), END, begun(2)], NOTHING_AFTER_THE_END, "went on after its end"),
        ([ACCEPTED, begun(1), END, END], ONE_END, "has ended twice"),
        ([ACCEPTED, begun(2), END], RUNS_IN_ORDER, "began run 2 after run 0"),
        ([ACCEPTED, begun(1), begun(1), END], RUNS_IN_ORDER, "began run 1 after run 1"),
        ([ACCEPTED, begun(1), begun(2, HEIR), begun(3), END], ONE_OWNER, "is claimed by"),
        ([ACCEPTED, TakenOver(OWNER, HEIR), begun(1), END], ONE_OWNER, "Started by"),
    ],
)
def test_a_life_is_judged_by_the_list_of_a_promise_machine(entries: list[Entry], promise: str, wrong: str) -> None:
    """C4 to C10: nothing after the end, one end, each run once and in order, one owner at a time."""
    records = [Record(seqnum, (), CODEC.encode(entry), None, 0) for seqnum, entry in enumerate(entries, 1)]
    found = list(find_wrong_promises(records))
    assert [each.promise for each in found] == ([promise] if promise else [])
    assert wrong in "".join(map(str, found))


def test_about_a_third_of_the_seeds_have_workflows() -> None:
    """They have a stream of their own: no other choice of a seed depends on them."""
    drawn = [draw_options(seed) for seed in range(300)]
    assert 70 < sum(options.flows > 0 for options in drawn) < 130


ORDER = Errand(items=1)
ENDED = Errand(items=1, round=1, taken=[0], said=[1, 2, 3, 4])
LABELS = ("0 first", "0 a", "0 b", "0 last")


def record(seqnum: int, label: str, before: list[int]) -> Record:
    return Record(seqnum, (DONE,), msgspec.json.encode(Deed("e", label, before)), None, 0)


DEEDS = [record(seqnum, label, []) for seqnum, label in enumerate(LABELS, 1)]


@pytest.mark.parametrize(
    ("run", "deeds", "keyed", "promise"),
    [
        (Run("e", ORDER, [0], "done", ENDED), DEEDS, DEEDS, ""),
        (Run("e", ORDER, [0]), DEEDS, DEEDS, "workflows end"),
        (Run("e", ORDER, [0], "done", ENDED), [*DEEDS, record(5, "0 a", [7])], DEEDS, "executions agree on every step"),
        (Run("e", ORDER, [0], "done", ENDED), DEEDS[1:], DEEDS, "workflows end as they should"),
        (Run("e", ORDER, [0], "ValueError"), DEEDS, DEEDS, "workflows end as they should"),
        (Run("e", ORDER, [0, 1], "done", ENDED), DEEDS, DEEDS, "signals are taken once, in order"),
        (Run("e", ORDER, [0], "done", ENDED), DEEDS, DEEDS[1:], "each keyed effect is there once"),
        (Run("e", ORDER, [0], "done", ENDED), DEEDS, [*DEEDS, DEEDS[0]], "each keyed effect is there once"),
    ],
)
def test_what_workflows_leave_behind_is_judged(
    run: Run, deeds: list[Record], keyed: list[Record], promise: str
) -> None:
    """One outcome a step, one keyed effect a step, every signal, and an end."""
    assert {each.promise for each in find_wrong_flows([run], deeds, keyed)} == ({promise} if promise else set())


def test_workflows_that_are_stuck_break_a_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that never arrives is noticed."""

    async def lose(*_: object, **__: object) -> None:
        """It is gone."""

    monkeypatch.setattr("boki.libs.bokiflow.handles.Handle.signal", lose)
    assert "workflows end" in {violation.promise for violation in simulate(CALM).violations}
