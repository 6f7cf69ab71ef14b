"""Workflows in the simulator: whole runs of the library on engines that die, and what the checks notice."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from boki.log.record import Record
from boki.sim.options import Options, draw_options
from boki.sim.simulation import simulate
from boki.workloads.errand_checks import Run, find_wrong_flows
from boki.workloads.errands import DONE, Deed, Errand

CALM = Options(seed=3, clients=1, engines=2, chaos_us=2_000_000, flows=2)


def test_workflows_of_a_run_without_faults_keep_what_they_promise() -> None:
    """Steps, timers, signals, children, continuations and cancellation; and the same run happens again."""
    outcome = simulate(CALM)
    assert outcome.violations == []
    assert outcome.trace == simulate(CALM).trace


def test_workflows_outlive_their_engines() -> None:
    """Whatever dies in the middle of whatever: other engines go on, and every workflow ends as it should."""
    seen: Counter[str] = Counter()
    for seed in (4, 5, 6):
        faults = {"crash": 2.0, "pause": 0.5}
        outcome = simulate(Options(seed=seed, clients=1, engines=3, flows=3, chaos_us=3_000_000, faults=faults))
        assert outcome.violations == []
        seen += outcome.seen
    assert seen["a workflow went on in another run"]
    assert seen["a workflow was taken over by another engine"]


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
