"""What chaos finds in the lines that processes of transactions wrote down: each promise broken once."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from boki.verify.chaos.object_watch import violations_of
from boki.verify.chaos.object_work import ACCOUNTS, COUNTER, OPENING, Entry, Step, read_entries

FINAL = dict.fromkeys(ACCOUNTS, OPENING) | {COUNTER: 2}
BEGUN = Entry(1, steps=(Step("list-0.a", 10),), task="o1/0", asked=1.0)
ENTRIES = [
    BEGUN,
    Entry(1, steps=(Step("list-0.a", 10), Step("list-1.a")), told="ok", task="o1/0", asked=1.0, told_at=2.0),
    Entry(2, steps=(Step("list-0.a", 0, (10,)), Step("list-1.a", 20)), told="ok", task="o2/0", asked=1.5, told_at=2.5),
    Entry(3, steps=(Step("list-1.a", 30),), task="o1/1", asked=3.0),  # killed: it may have been committed
    Entry(4, "count", told="ok", asked=1.0, told_at=2.0, value=1),
    Entry(5, "count", asked=2.0),
    Entry(6, "money", told="ok", asked=1.0, told_at=2.0),
]
LISTS = {"list-0.a": [10], "list-1.a": [20, 30]}


def test_what_is_promised_is_no_violation() -> None:
    """Whatever happened to what has no known outcome."""
    assert list(violations_of(ENTRIES, LISTS, FINAL)) == []
    assert list(violations_of(ENTRIES, LISTS | {"list-1.a": [20]}, FINAL | {COUNTER: 1})) == []


@pytest.mark.parametrize(
    ("entries", "lists", "final", "found"),
    [
        ([], {"list-0.a": []}, {}, "G-single"),
        ([Entry(7, steps=(Step("list-1.a", 20),), told="fail", task="o1/2", asked=3.0, told_at=4.0)], {}, {}, "G1a"),
        ([Entry(7, "torn", value=5)], {}, {}, "seen 5"),
        ([], {}, {ACCOUNTS[0]: OPENING + 1}, "in the end"),
        ([Entry(8, "count", told="ok", asked=3.0, told_at=4.0, value=1)], {}, {}, "told 1"),
    ],
)
def test_each_broken_promise_is_found(
    entries: list[Entry], lists: dict[str, list[int]], final: dict[str, int], found: str
) -> None:
    """By the checker of its kind."""
    ours = [entry for entry in ENTRIES if found != "G1a" or entry.number != 2]
    violations = list(violations_of([*ours, *entries], LISTS | lists, FINAL | final))
    assert any(found in text for text in violations), violations


def test_a_history_of_nothing_shows_nothing() -> None:
    """So it breaks a promise."""
    assert any("not one was committed" in text for text in violations_of([], {}, FINAL | {COUNTER: 0}))


def test_a_line_that_was_cut_off_is_passed_by(tmp_path: Path) -> None:
    """By the end of the process that wrote it; the next one continues behind it."""
    file = tmp_path / "objects.jsonl"
    assert read_entries(file) == []
    file.write_bytes(b"\n" + msgspec.json.encode(BEGUN) + b'\n{"number": 2, "ki\n' + msgspec.json.encode(BEGUN) + b"\n")
    assert read_entries(file) == [BEGUN, BEGUN]
