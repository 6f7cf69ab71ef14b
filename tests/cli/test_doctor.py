"""`boki doctor`: a screen for people, objects for programs, and an exit code that says whether something is bad."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from boki.cli import terminal
from boki.cli.app import app
from boki.doctor.findings import Finding

GOOD = Finding("python", "ok", "3.11.7")
NOTE = Finding("clock", "note", "2026-11-23 02:17:32 UTC, not synchronized", "start a time service, as chrony")
BAD = Finding("disk sync", "bad", "median 80.00 ms, " + "slow " * 20, "choose a faster disk " * 6)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, and no variables set."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("BOKI_")]:
        monkeypatch.delenv(name)
    return tmp_path


def measured(monkeypatch: pytest.MonkeyPatch, *found: Finding) -> None:
    monkeypatch.setattr("boki.doctor.facts.examine", lambda _subject: iter(found))


def test_a_note_is_no_failure_and_something_bad_is(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 0 or 1; each remedy stands under its line."""
    measured(monkeypatch, GOOD, NOTE)
    done = CliRunner().invoke(app, ["doctor"])
    assert (done.exit_code, done.output.splitlines()) == (
        0,
        [
            "ok    python        3.11.7",
            "note  clock         2026-11-23 02:17:32 UTC, not synchronized",
            "                    -> start a time service, as chrony",
        ],
    )
    measured(monkeypatch, GOOD, BAD)
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 1


def test_programs_get_an_object_for_each_line(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same facts and the same exit code."""
    measured(monkeypatch, GOOD, BAD)
    done = CliRunner().invoke(app, ["doctor", "--json"])
    assert done.exit_code == 1
    assert [json.loads(line) for line in done.output.splitlines()] == [
        {"check": one.check, "state": one.state, "found": one.found, "remedy": one.remedy} for one in (GOOD, BAD)
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prot = 1\n", "unknown setting prot (boki.toml); did you mean port?"),
        ("port =\n", "boki.toml is not TOML: Invalid value (at line 1, column 7)"),
    ],
)
def test_a_broken_boki_toml_is_one_of_the_findings(
    project: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    """Not an error that hides all the others."""
    measured(monkeypatch, GOOD)
    (project / "boki.toml").write_text(text)
    done = CliRunner().invoke(app, ["doctor"])
    first, *_, last = done.output.splitlines()
    assert first == f"bad   boki.toml     {told}"
    assert (last, done.exit_code) == ("ok    python        3.11.7", 1)


@pytest.fixture(params=[80, 120])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A terminal of that width."""
    for name, value in (("TTY_COMPATIBLE", "1"), ("NO_COLOR", "1"), ("COLUMNS", str(request.param))):
        monkeypatch.setenv(name, value)
    terminal.results.cache_clear()
    yield request.param
    terminal.results.cache_clear()


def test_the_screen_is_unbroken(project: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """At 80 columns and at 120."""
    from rich.text import Text

    measured(monkeypatch, GOOD, NOTE, BAD)
    lines = [Text.from_ansi(line).plain for line in CliRunner().invoke(app, ["doctor"]).output.splitlines()]
    assert all(len(line) <= width for line in lines)
    assert sum(line.count("slow") for line in lines) == 20
