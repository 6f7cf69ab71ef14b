"""Sinks in every order of a task and its driver, with lost requests, lost answers and crashes between any two steps."""

from __future__ import annotations

from typing import Any

import pytest

from boki.api.log_calls import records_of
from boki.log.operations import Found, Read
from boki.spark.commit import commit
from boki.spark.lane import Attempt
from boki.spark.sink import writing
from boki.spark.steps import Steps
from boki.testing.folds import World, explore
from tests.spark.sink_world import options, rows


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row a chunk."""
    monkeypatch.setattr("boki.spark.rows.CHUNK_ROWS", 1)


def whole_write() -> Steps[Any]:
    """A batch of two rows, written and committed; whoever begins again, begins with the same rows."""
    lanes = yield from writing(rows(1, 2), options(), Attempt("w", 0, 0))
    yield from commit("w", 0, lanes)
    return lanes


def check_each_row_once(world: World) -> None:
    found = world.answer(Read("b", limit=100))
    assert isinstance(found, Found)
    data = [record.data for record in records_of(found)]
    assert len(set(data)) == len(data), f"a row twice: {data}"
    if any(isinstance(result, list) for result in world.results.values()):
        assert sorted(data) == [b"1", b"2"], f"an actor has ended, and these rows are there: {data}"


def test_a_write_that_is_killed_anywhere_adds_each_row_once() -> None:
    """However far it came: it begins again, reads what exists, and continues behind it."""
    assert explore([whole_write], check_each_row_once, most_faults=2) > 1_000


def test_two_attempts_of_one_write_add_each_row_once() -> None:
    """As with speculative execution and a second driver, one of which may be killed, or lose an answer."""
    assert explore([whole_write, whole_write], check_each_row_once, most_switches=1) > 500
