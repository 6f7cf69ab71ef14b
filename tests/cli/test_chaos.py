"""`boki chaos`: what it refuses, and how it tells what it has seen. The runs themselves are in `tests/e2e`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from boki.cli import chaos
from boki.cli.app import app
from boki.verify.chaos.faults import FAULTS
from boki.verify.chaos.run import Report


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["chaos", *words])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--fault", "earthquake"), "earthquake"),
        (("--fault", "kill-engine", "--fault", "flood"), "flood"),
        (("--minutes", "-1"), "--minutes"),
        (("--minutes", "long"), "--minutes"),
        (("--seed", "-1"), "--seed"),
        (("--sessions", "0"), "--sessions"),
        (("--direct-links", "--fault", "cut-one-way"), "cut-one-way with --direct-links"),
        (("--storm",), "--storm"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(words: tuple[str, ...], said: str) -> None:
    """The error names what is wrong; nothing was started."""
    result = run(*words)
    assert result.exit_code != 0
    assert said in f"{result.output}{result.exception}"


def test_an_unknown_class_is_answered_with_those_that_there_are() -> None:
    """Whoever mistypes one need not look for them."""
    told = "".join(run("--fault", "kill-everything").output.split())
    assert [fault.name for fault in FAULTS if fault.name not in told] == []


def _clean() -> Report:
    return Report(3, acknowledged=10, faults=Counter({"kill-engine": 1}), stalls_s={"kill-engine": 1.5}, terms=2)


def _lost() -> Report:
    report = _clean()
    report.violations = ["nothing acknowledged is lost: s1-1 is gone"]
    return report


def _vacuous() -> Report:
    report = _clean()
    report.missing = ["kill-primary"]
    return report


def _idle() -> Report:
    report = _clean()
    report.acknowledged = 0
    return report


@pytest.mark.parametrize(
    ("make", "exit_code", "said"),
    [
        (_clean, 0, "every promise was kept"),
        (_lost, 1, "s1-1 is gone"),
        (_vacuous, 1, "kill-primary was never felt"),
        (_idle, 1, "0 acknowledged"),
    ],
)
def test_only_a_run_that_shows_something_and_finds_nothing_ends_well(
    make: Callable[[], Report], exit_code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A violation, a class that was never felt, and a run without an acknowledged append all fail."""

    async def pretend(*_arguments: Any, **_settings: Any) -> Report:
        return make()

    monkeypatch.setattr(chaos, "_run", pretend)
    result = run("--minutes", "0")
    assert result.exit_code == exit_code
    assert said in result.output
    told = run("--minutes", "0", "--json")
    assert told.exit_code == exit_code
    report = json.loads(told.stdout)
    assert report["seed"] == 3
    assert report["faults"] == {"kill-engine": 1}
    assert report["stalls_s"] == {"kill-engine": 1.5}
    assert report["faults_missing"] == make().missing
    assert report["violations"] == make().violations
