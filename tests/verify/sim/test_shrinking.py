"""A failure is made small without becoming another one, and becomes a test that runs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from boki.verify.sim import simulation
from boki.verify.sim.options import Options, draw_options
from boki.verify.sim.shrinking import first_broken, regression, shrink
from tests.test_gates import ROOT, run
from tests.verify.sim.ablations import ABLATIONS


def test_what_does_not_matter_is_taken_away() -> None:
    """Of two promises that break, the first one decides; what breaks it stays, the rest goes."""
    faults = {"crash": 1.0, "loss": 0.1, "rot": 1.0, "stale": 0.1, "wipe": 0.1}
    start = msgspec.structs.replace(draw_options(7), clients=5, faults=faults)

    def fails(options: Options) -> str | None:
        return "the promise" if "wipe" in options.faults and options.clients > 1 else "another one"

    options, promise = shrink(start, fails)
    assert promise == "the promise"
    assert list(options.faults) == ["wipe"]
    assert options.clients == 2
    assert options.books == options.engines == options.logs == 1
    assert options.chaos_us < 1_000_000


def test_a_run_that_keeps_every_promise_cannot_be_shrunk() -> None:
    """There is nothing to keep breaking."""
    with pytest.raises(ValueError, match="breaks no promise"):
        shrink(draw_options(7), lambda _options: None)


def test_a_real_failure_shrinks_to_a_test_that_fails(tmp_path: Path) -> None:
    """Without conditions a small workload breaks them; the file that is written breaks them, too."""
    with ABLATIONS["conditions"]():
        start = Options(seed=1, chaos_us=1_000_000, mix={"conditional": 4})
        options, promise = shrink(start, budget=12)
        assert first_broken(options) == promise
        path = tmp_path / "test_seed_1.py"
        path.write_text(regression(options, promise))
        names: dict[str, object] = {}
        exec(compile(path.read_text(), path, "exec"), names)
        assert names["OPTIONS"] == options
        test = names["test_seed_1_keeps_every_promise"]
        assert callable(test)
        with pytest.raises(AssertionError):
            test()
    assert simulation.simulate(options).violations == []


def test_a_regression_is_written_as_the_gates_want_it(tmp_path: Path) -> None:
    """Whatever a seed has drawn: the file can be committed as it is."""
    for seed in range(3):
        path = tmp_path / f"test_seed_{seed}.py"
        path.write_text(regression(draw_options(seed), "conditions are kept"))
        names: dict[str, object] = {}
        exec(compile(path.read_text(), path, "exec"), names)
        assert names["OPTIONS"] == draw_options(seed)
    (tmp_path / "test_seed_9.py").write_text(regression(Options(seed=9), "monotonic reads"))
    for command in (("format", "--check"), ("check",)):
        done = run("ruff", *command, "--config", str(ROOT / "pyproject.toml"), str(tmp_path))
        assert done.returncode == 0, done.stdout + done.stderr
