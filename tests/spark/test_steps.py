"""Steps for real: operations go to the gateway in order, appends are never repeated there, and waiting has an end."""

from __future__ import annotations

from typing import Any

import pytest

from boki.errors import ConnectionLost, CorruptData
from boki.log.operations import Answer, Append, Found, Operation, Read, TrimBook
from boki.spark.commit import commit
from boki.spark.lane import Attempt
from boki.spark.sink import writing
from boki.spark.steps import TRIES, run, tagged
from tests.spark.memory_gateway import MemoryGateway, MemorySystem, raising
from tests.spark.sink_world import LOST, datas, once_each, options, rows


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was waited, at once."""
    found: list[float] = []
    monkeypatch.setattr("boki.spark.steps.sleep", found.append)
    return found


def is_append(operation: Operation) -> bool:
    return isinstance(operation, Append)


def test_a_whole_write_goes_through_a_gateway(pauses: list[float]) -> None:
    """Tasks, lost answers, a commit with more trims than go at once: each row once, and nobody waits without need."""

    class Watched(MemoryGateway):
        repeatable: set[tuple[type, bool]] = set()

        def ask(self, operation: Operation, *, is_repeatable: bool = True) -> Answer:
            self.repeatable.add((type(operation), is_repeatable))
            return super().ask(operation, is_repeatable=is_repeatable)

    system = MemorySystem()
    gateway = Watched(system)
    lanes: list[Any] = []
    for partition in range(12):
        lanes += run(gateway, writing(rows(partition), options(), Attempt("w", 0, partition)))
    assert pauses == []
    gateway.after.append(raising([LOST, None, LOST], is_append))
    lanes += run(gateway, writing(rows(12), options(), Attempt("w", 0, 12)))
    assert len(pauses) == 2
    run(gateway, commit("w", 0, lanes))
    assert datas(system) == once_each(*range(13))
    assert len([operation for operation in gateway.asked if isinstance(operation, TrimBook)]) == 2 * 13 + 1
    assert {kind for kind, is_repeatable in gateway.repeatable if not is_repeatable} == {Append}
    assert (Append, True) not in gateway.repeatable


def test_waiting_grows_and_ends(pauses: list[float]) -> None:
    """Each pause is at least as long as the one before, none is more than seconds, and then it is an error."""
    gateway = MemorySystem().gateway()
    gateway.before.append(raising([LOST] * 1000, is_append))
    with pytest.raises(ConnectionLost, match=f"in {TRIES} tries: no answer came"):
        run(gateway, commit("w", 0, []))
    assert len(pauses) == TRIES
    assert pauses == sorted(pauses)
    assert pauses[0] > 0
    assert pauses[-1] < 5


def test_a_page_that_leads_nowhere_is_an_error() -> None:
    """Rather than asked for again without limit."""
    steps = tagged("b", "t")
    assert isinstance(next(steps), Read)
    with pytest.raises(CorruptData, match="a page of book 'b' from 0 goes on at 0"):
        steps.send(Found((), 0, is_end=False))
