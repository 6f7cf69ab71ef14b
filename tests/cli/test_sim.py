"""`boki sim`: what it refuses, how it ends, and what it says when it is interrupted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
from typer.testing import CliRunner

from boki.cli.app import app
from boki.verify.sim import batches, simulation
from boki.verify.sim.batches import Result
from boki.verify.sim.log_nodes import StorageNode
from boki.verify.sim.options import Options, draw_options


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["sim", *arguments], env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("--shrink", "which one"),
        ("--about x", "which one"),
        ("--into there", "which one"),
        ("--seed 3 --seeds 10", "--seed runs one"),
        ("--seed 3 --start 10", "--seed runs one"),
        ("--seed 3 --shrink --about x", "leave out one"),
        ("--seed 3 --into there", "needs --shrink"),
        ("--seed 3 --about (", "not a regular expression"),
    ],
)
def test_options_that_would_be_ignored_are_refused(arguments: str, why: str) -> None:
    """Status 2 before anything runs, and a line that says what does not fit."""
    status, told = run(*arguments.split())
    assert status == 2
    assert why in " ".join(told.split())


@pytest.mark.parametrize(("error", "wanted"), [(KeyboardInterrupt, 130), (BrokenProcessPool, 1)])
def test_a_batch_that_was_cut_short_is_no_success_and_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException], wanted: int
) -> None:
    """By whoever typed Ctrl-C, or by the end of a process of it; the command continues where it stopped."""

    def interrupted(seeds: range, processes: int, draw: batches.Draw) -> Iterator[Result]:
        assert (processes, draw) == (3, draw_options)
        yield Result(seeds[0], (), "", 10, 200, 2, 0, Counter())
        raise error

    monkeypatch.setattr(batches, "run_seeds", interrupted)
    status, told = run("--start", "20", "--seeds", "50", "--processes", "3")
    assert status == wanted
    assert "boki sim --start 21 --seeds 49 --processes 3" in told


def calm(seed: int) -> Options:
    return Options(seed=seed, chaos_us=500_000, clients=1)


def test_a_story_tells_who_was_told_what(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed that keeps every promise ends with 0; `--about` picks lines."""
    monkeypatch.setattr("boki.verify.sim.options.draw_options", calm)
    status, told = run("--seed", "3", "--about", "begins as")
    assert status == 0
    assert "storage-1 begins as incarnation" in told
    assert "asks" not in told
    assert "no broken promises" in told


def test_a_core_that_raises_anything_breaks_a_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is: the node is started again, and the violation names it; the story is told to its end."""
    begun: list[str] = []
    make = StorageNode.make_core

    def make_one(node: StorageNode) -> object:
        begun.append(node.name)
        if len(begun) == 2:
            raise RuntimeError("dictionary changed size during iteration")
        return make(node)

    monkeypatch.setattr(StorageNode, "make_core", make_one)
    monkeypatch.setattr("boki.verify.sim.options.draw_options", calm)
    status, told = run("--seed", "3", "--about", "raises")
    assert status == 1
    assert f"no core raises: {begun[1]}: RuntimeError" in told


def test_a_simulator_that_raises_fails_the_run_and_can_be_made_small(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A bug of the simulator's own ends neither the story nor the shrinking with a bare traceback."""

    def broken(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(simulation.Simulation, "_read_out", broken)
    monkeypatch.setattr("boki.verify.sim.options.draw_options", calm)
    status, told = run("--seed", "3", "--about", "healed")
    assert status == 1
    assert "the simulator raised" in told
    assert "KeyError: 'a bug'" in told
    assert run("--seed", "3", "--shrink", "--into", str(tmp_path))[0] == 1
    assert "the simulator raised" in (tmp_path / "test_seed_3.py").read_text()
