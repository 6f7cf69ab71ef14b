"""`boki bench append --trace`: probes find their methods, marks outlive their processes, and hops add up."""

from __future__ import annotations

import inspect
import multiprocessing
import os
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from boki.bench.tracing.budget import STOPS, budget
from boki.bench.tracing.marks import FOLDER_VARIABLE, Mark, Recorder, read_marks, traced
from boki.bench.tracing.probes import NUMBERS, PROBES, Probe, owner_of, wrapped
from boki.cli.app import app

WORKER, HOME, OTHER, THIRD = 1, 2, 3, 4
ARGUMENTS = {"Appends._send": (2, "shard"), "StorageCore._store": (1, "batch"), "Primary.report": (4, "stored_until")}


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_every_probe_finds_its_method_and_its_argument(probe: Probe) -> None:
    """Who renames or moves a method of the append's way is told here, and changes the probe with it."""
    owner, name = owner_of(probe)
    parameters = list(inspect.signature(getattr(owner, name)).parameters)
    if probe.value is not None:
        place, argument = ARGUMENTS[probe.method]
        assert parameters[place] == argument


def test_nothing_is_wrapped_in_a_process_that_is_not_traced() -> None:
    """Without --trace the methods are what they always are: tracing costs nothing there."""
    assert FOLDER_VARIABLE not in os.environ
    for probe in PROBES:
        owner, name = owner_of(probe)
        assert not hasattr(getattr(owner, name), "__wrapped__")


def test_a_wrapped_method_does_what_it_did_and_marks_its_begin_or_its_end() -> None:
    """Arguments and result pass through; the value is read from the arguments."""
    told: list[object] = []

    def method(number: int, *, more: int) -> int:
        told.append("called")
        return number + more

    for at_end in (False, True):
        probe = Probe("sum", "", "", at_end=at_end, value=lambda arguments: int(arguments[0]))
        assert wrapped(method, 7, probe, lambda number, value: told.append((number, value)))(1, more=2) == 3
    assert told == [(7, 1), "called", "called", (7, 1)]


def test_marks_of_forked_processes_are_kept_when_they_are_killed(tmp_path: Path) -> None:
    """Each process has a file of its own, which needs no end."""
    recorder = Recorder(str(tmp_path))
    recorder.mark(1, 5)
    child = multiprocessing.get_context("fork").Process(target=_mark_and_die, args=(recorder,))
    child.start()
    child.join()
    recorder.mark(3, 7)
    marks = read_marks(tmp_path)
    assert [(mark.probe, mark.value) for mark in marks] == [(1, 5), (2, 6), (3, 7)]
    assert [mark.pid == os.getpid() for mark in marks] == [True, False, True]
    assert all(before.time_ns <= after.time_ns for before, after in pairwise(marks))


def _mark_and_die(recorder: Recorder) -> None:
    recorder.mark(2, 6)
    os.kill(os.getpid(), 9)


def test_processes_are_traced_inside_of_the_block_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is as before afterwards, and the marks are gone."""
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    with traced(tmp_path) as folder:
        assert os.environ[FOLDER_VARIABLE] == str(folder)
        assert os.environ["PYTHONPATH"].endswith(f"at_start{os.pathsep}/somewhere")
    assert FOLDER_VARIABLE not in os.environ
    assert os.environ["PYTHONPATH"] == "/somewhere"
    assert list(tmp_path.iterdir()) == []


def one_process(began_ns: int, number: int) -> list[Mark]:
    """An append whose cut shares the sync of its record: 100 µs a hop, and 300 for the sync."""
    way = [
        *((WORKER, "called", 0, 0), (WORKER, "worker writes", 100, 0), (HOME, "engine read", 200, 0)),
        *(
            (HOME, "batch sent", 300, number),
            (HOME, "batch taken in", 400, number),
            (HOME, "report heard", 500, number),
        ),
        *((HOME, "cut proposed", 600, 0), (HOME, "sync began", 700, 0), (HOME, "sync ended", 1_000, 0)),
        *((HOME, "cut committed", 1_100, 0), (HOME, "cut applied", 1_200, 0), (HOME, "engine writes", 1_300, 0)),
        *((WORKER, "worker read", 1_400, 0), (WORKER, "answered", 1_500, 0)),
    ]
    return [Mark(began_ns + after_us * 1_000, pid, NUMBERS[probe], value) for pid, probe, after_us, value in way]


def cluster(began_ns: int, number: int) -> list[Mark]:
    """Three nodes. The second of three decides, and the third one's report comes during the next append."""
    way = [
        *((WORKER, "called", 0, 0), (WORKER, "worker writes", 100, 0), (HOME, "engine read", 200, 0)),
        *((OTHER, "report heard", 250, number - 1), (HOME, "batch sent", 300, number)),
        *((HOME, "batch taken in", 310, number), (OTHER, "batch taken in", 400, number)),
        *((THIRD, "batch taken in", 990, number), (HOME, "sync began", 320, 0), (HOME, "sync ended", 500, 0)),
        *((OTHER, "sync began", 450, 0), (OTHER, "sync ended", 700, 0)),
        *((OTHER, "report heard", 600, number), (OTHER, "report heard", 750, number), (OTHER, "cut proposed", 800, 0)),
        *((OTHER, "sync began", 850, 0), (OTHER, "sync ended", 1_000, 0), (HOME, "cut taken in", 900, 0)),
        *((HOME, "sync began", 950, 0), (HOME, "sync ended", 1_150, 0), (OTHER, "cut committed", 1_250, 0)),
        *((OTHER, "cut applied", 1_260, 0), (HOME, "cut applied", 1_400, 0), (HOME, "engine writes", 1_450, 0)),
        *((WORKER, "worker read", 1_500, 0), (WORKER, "answered", 1_550, 0)),
    ]
    return [Mark(began_ns + after_us * 1_000, pid, NUMBERS[probe], value) for pid, probe, after_us, value in way]


def marks_of(make: object, count: int = 60) -> list[Mark]:
    assert callable(make)
    marks = [mark for number in range(count) for mark in make(number * 1_600_000, number)]
    return sorted([*marks, Mark(count * 1_600_000, WORKER, NUMBERS["called"], 0)])


def test_the_hops_of_one_process_add_up_and_one_sync_is_shown_once() -> None:
    """Record and cut share a sync, so the cut has no line of its own, and the order is that of time."""
    *hops, whole = budget(marks_of(one_process), 1)
    assert whole.name == "the whole append"
    assert (whole.p50_us, whole.share) == (1_600.0, 1.0)
    assert sum(hop.p50_us for hop in hops) == 1_600.0
    assert sum(hop.share for hop in hops) == pytest.approx(1.0, abs=0.001)
    names = [hop.name for hop in hops]
    assert names.index("sequencer: propose a cut") < names.index("sync of the record")
    assert "sync of the cut" not in names
    assert next(hop for hop in hops if hop.name == "sync of the record").p50_us == 300.0


def test_on_a_cluster_the_replica_that_completes_the_quorum_counts() -> None:
    """Neither the first nor the third one, and no report of the append before."""
    found = {hop.name: hop.p50_us for hop in budget(marks_of(cluster), 2)}
    assert found["net: the batch to storage"] == 100.0
    assert found["sync of the record"] == 250.0
    assert found["net: the report to the primary"] == 50.0
    assert found["net: the cut to a backup"] == 100.0
    assert found["sync of the cut"] == 200.0
    assert found["net: the cut to the engine; apply it to the index"] == 150.0
    assert sum(hop for name, hop in found.items() if name != "the whole append") == found["the whole append"]


def test_appends_that_go_as_one_batch_are_one_way() -> None:
    """From the first of its calls to the first of the next batch; a batch of some of them is left out."""

    def three(began_ns: int, number: int) -> list[Mark]:
        count = 2 if number % 3 == 0 else 3
        calls = [Mark(began_ns + 10_000 * more, WORKER, NUMBERS["called"], 0) for more in range(1, count)]
        return [*one_process(began_ns, number), *calls]

    marks = marks_of(three, 300)
    assert budget(marks, 1, 3)[-1].p50_us == 1_600.0
    assert budget(marks, 1, 3) == budget(marks_of(one_process), 1)
    assert budget(marks, 1, 4) == []


def test_the_end_of_a_round_is_no_append() -> None:
    """Between two rounds the worker is told to begin the next: that pause is in no hop."""
    marks = marks_of(one_process)
    start = Mark(marks[-1].time_ns + 10, WORKER, NUMBERS["worker read"], 0)
    late = Mark(marks[-1].time_ns + 10**9, WORKER, NUMBERS["called"], 0)
    assert budget(sorted([*marks, start, late]), 1) == budget(marks, 1)


def test_without_an_append_there_is_no_budget() -> None:
    """Nothing was measured, and nothing is claimed."""
    assert budget([], 1) == []
    assert len({stop.name for stop in STOPS}) == len(STOPS)


@pytest.mark.parametrize("words", [["read"], ["append", "read"], ["append", "--url", "http://127.0.0.1:9"]])
def test_only_appends_of_an_own_system_are_traced(words: list[str]) -> None:
    """The error says what to write instead."""
    done = CliRunner().invoke(app, ["bench", *words, "--trace"])
    assert done.exit_code == 2, done.output
    assert "append alone" in done.output
