"""The demo of workflows: lines that are counted, machines that are killed at them, and what counts as a match."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import msgspec
import pytest

from boki.config.loading import DevConfig
from boki.demo.flow_act import Scene, Survived, Trip, TripFound, kill_at_lines
from boki.demo.reaper import Note, Plan, Reaper, notes_in, watch_lines

ROOT = Path(__file__).parents[2]
TRIP = Trip("Ada", "BOS", "B6-1018")
DONE = TripFound(TRIP, "done", "", 16_000, [184_000])
GONE = TripFound(TRIP, "failed", "SoldOut", 0, [])
SCENE = Scene([TRIP], kills=[Note("reserve_together", 7, is_end=True)])


def count_to(number: int) -> int:
    """A function whose lines are counted."""
    total = 0
    for each in range(number):
        total += each
    return total


def test_lines_are_counted_across_functions() -> None:
    """It stops at the line that was wanted, and says which functions began."""
    notes: list[Note] = []
    stopped: list[int] = []
    first = count_to.__code__.co_firstlineno
    before = sys.gettrace()
    sys.settrace(Reaper(__file__, 8, notes.append, lambda: stopped.append(1)).on_call)
    try:
        count_to(0)
        count_to(9)
    finally:
        sys.settrace(before)
    begun = Note("count_to", first, is_end=False)
    assert notes == [begun, begun, Note("count_to", first + 4, is_end=True)]
    assert stopped == [1]


def test_without_a_plan_nothing_is_watched(tmp_path: Path) -> None:
    """The copy of the functions runs as the original does; a plan has it write notes, read from any of them on."""
    before = sys.gettrace()
    watch_lines(__file__, str(tmp_path / "plan"), str(tmp_path / "notes"))
    assert sys.gettrace() is before
    assert notes_in(tmp_path / "notes") == []
    (tmp_path / "plan").write_bytes(msgspec.json.encode(Plan(1_000)))
    watch_lines(__file__, str(tmp_path / "plan"), str(tmp_path / "notes"))
    try:
        count_to(1)
        count_to(2)
    finally:
        sys.settrace(before)
    assert [note.function for note in notes_in(tmp_path / "notes")] == ["count_to"] * 2
    assert len(notes_in(tmp_path / "notes", 1)) == 1


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (Survived(SCENE, [DONE, replace(DONE, purse_cents=[])], []), "not paid for"),
        (Survived(SCENE, [DONE, replace(DONE, purse_cents=[184_000, 168_000])], []), "paid twice"),
        (Survived(SCENE, [DONE, replace(GONE, purse_cents=[184_000])], []), "paid for nothing"),
        (Survived(SCENE, [DONE, replace(GONE, error="LookupError")], []), "another error"),
        (Survived(SCENE, [DONE, GONE], ["BOS has 3 left, not 4"]), "a hotel has another number of rooms"),
        (Survived(Scene([TRIP]), [DONE, GONE], []), "nothing was killed"),
        (Survived(SCENE, [DONE, DONE], []), "no trip failed"),
    ],
)
def test_everything_that_differs_fails_the_demo(wrong: Survived, why: str) -> None:
    """One thing is enough."""
    assert Survived(SCENE, [DONE, GONE], []).matches
    assert not wrong.matches, why


def test_a_machine_is_killed_at_a_line_and_its_trips_end_once(tmp_path: Path) -> None:
    """The whole of it, with one kill."""
    functions = tmp_path / "functions"
    functions.mkdir()
    config = DevConfig(data=tmp_path / "data", functions=functions, port=0, reload=False)
    drawn: list[str] = []
    survived = asyncio.run(
        kill_at_lines(
            config, ROOT / "functions/travel.py", Random(1), lambda scene: drawn.append(scene.machine), kills=1
        )
    )
    assert survived.matches, survived
    assert [kill.is_end for kill in survived.scene.kills] == [True]
    assert drawn.count("was killed") == 1
