"""Writes with a name that are long over: their lanes are cleared, and they stay complete, whoever comes late."""

from __future__ import annotations

import itertools

import pytest

from boki.errors import InvalidArgument
from boki.log.chunk import Group, encode_chunk
from boki.log.operations import Append
from boki.spark.columns import LEDGER
from boki.spark.commit import commit
from boki.spark.ledger import FINISHED_TAG, SILENT_US
from tests.spark.memory_gateway import SECOND_US, MemorySystem
from tests.spark.sink_world import Actor, datas, frame, once_each, rows, task, written

OWN = {"!spark:a:0", "!spark:a:1", "!spark:b:0"}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows a chunk."""
    monkeypatch.setattr("boki.spark.rows.CHUNK_ROWS", 2)


def complete(system: MemorySystem, write: str, *partitions: tuple[int, ...]) -> None:
    """The whole write of these rows, a second later than what was before."""
    system.now_us += SECOND_US
    lanes = [
        note
        for partition, numbers in enumerate(partitions)
        for note in written(system, rows(*numbers), write=write, partition=partition)
    ]
    Actor(system, commit(write, 0, lanes, is_final=True)).finish()


def lane_tags(system: MemorySystem, book: str = "b") -> set[str]:
    """The tags of sinks by which anything can still be found in a book."""
    tags = {tag for record in system.records(book) for tag in record.tags if tag.startswith("!")}
    return {tag for tag in tags if system.records(book, tag)}


def test_lanes_of_writes_that_are_long_over_are_cleared() -> None:
    """By the next write with a name; the rows stay, and what the writes were is known permanently: a repetition adds
    nothing, and one with other rows is refused. What is younger, or has no name, or more batches, is left alone.
    """
    system = MemorySystem()
    complete(system, "a", (1, 2, 3), (4,))
    system.now_us += SILENT_US // 2
    complete(system, "b", (5,))
    Actor(system, commit("query", 0, written(system, rows(6), write="query"))).finish()
    assert lane_tags(system) == OWN | {"!spark:query:0"}
    system.now_us += SILENT_US // 2
    complete(system, "c", (7,))
    assert lane_tags(system) == {"!spark:b:0", "!spark:query:0", "!spark:c:0"}
    assert datas(system) == once_each(1, 2, 3, 4, 5, 6, 7)
    complete(system, "a", (1, 2, 3), (4,))
    with pytest.raises(InvalidArgument, match="has other rows than when it was written to book 'b' before"):
        complete(system, "a", (1, 2, 8), (4,))
    assert datas(system) == once_each(1, 2, 3, 4, 5, 6, 7)


def test_so_many_are_cleared_by_one() -> None:
    """Nobody has to wait for what very many have left; each clears more than it leaves."""
    system = MemorySystem()
    for number in range(20):
        complete(system, f"old {number}", (number,))
    left = []
    system.now_us += SILENT_US
    for number in range(4):
        complete(system, f"new {number}", (100 + number,))
        left.append(len([tag for tag in lane_tags(system) if "old" in tag]))
    assert left == [12, 4, 0, 0]
    assert len(system.records(LEDGER, FINISHED_TAG)) == 4
    assert len(system.records(LEDGER)) == 24


def test_killed_in_the_midst_of_it() -> None:
    """At any step, also before it has tidied up behind itself: the next one clears what is left."""
    for steps in itertools.count():
        system = MemorySystem()
        untidy = Actor(system, commit("a", 0, written(system, rows(1, 2, 3), write="a"), is_final=True))
        while not system.records(LEDGER, FINISHED_TAG):
            untidy.step()
        complete(system, "b", (4,))
        system.now_us += SILENT_US
        dying = Actor(system, commit("c", 0, written(system, rows(5), write="c"), is_final=True))
        while not dying.is_done and dying.count < steps:
            dying.step()
        complete(system, "d", (6,))
        assert not lane_tags(system) & {*OWN, "!spark:a:0:first"}, steps
        assert datas(system) == once_each(1, 2, 3, 4, 5, 6)
        if dying.is_done:
            assert steps > 8
            return


@pytest.mark.parametrize("batches", [rows(1, 2, 3), rows(1), [*rows(1), *rows(2)]], ids=["chain", "one", "waits"])
def test_a_task_that_comes_late_adds_nothing(batches: list[object]) -> None:
    """Wherever it stalled while another one wrote its rows, the write was complete, and days later its lanes were
    cleared: but for the one request that it had made its mind up about.
    """
    numbers = range(1, 1 + sum(len(batch) for batch in batches))  # type: ignore[arg-type]
    for steps in itertools.count():
        system = MemorySystem()
        late = task(system, batches, write="a")
        while not late.is_done and late.count < steps:
            late.step()
        if late.is_done:
            assert steps > 5
            return
        has_none = not datas(system)
        complete(system, "a", tuple(numbers))
        system.now_us += SILENT_US
        complete(system, "z", (9,))
        assert not lane_tags(system) & OWN
        if has_none and isinstance(late.next, Append) and late.next.book == "b":
            continue  # see the module: its process stalled for two days between two steps
        while not late.is_done:
            late.step()
        assert datas(system) == once_each(*numbers, 9), steps


def test_what_a_newer_version_has_noted_is_no_error_of_this_write() -> None:
    """It is complete, whatever is wrong with others."""
    system = MemorySystem()
    complete(system, "a", (1,))
    group = Group([(b'{"type":"sealed","batch":1}', ("!spark:a",))])
    system.answer(Append(LEDGER, encode_chunk(LEDGER, [group])))
    system.now_us += SILENT_US
    complete(system, "c", (2,))
    assert "!spark:a:0" in lane_tags(system)


def test_a_note_of_nobody_is_passed() -> None:
    """What a stranger has put among the notes of old writes clears nothing, and holds nothing up."""
    system = MemorySystem()
    system.append(LEDGER, b"hello", tags=[FINISHED_TAG])
    complete(system, "a", (1,))
    system.now_us += SILENT_US
    complete(system, "b", (2,))
    assert lane_tags(system) == {"!spark:b:0"}
    assert len(system.records(LEDGER, FINISHED_TAG)) == 1


def test_a_row_without_tags_outlives_its_lane() -> None:
    """It is no less there when nothing of the sink's is left on it."""
    system = MemorySystem()
    notes = task(system, [frame("1")], write="a").finish()
    Actor(system, commit("a", 0, notes, is_final=True)).finish()
    system.now_us += SILENT_US
    complete(system, "c", (2,))
    assert datas(system) == once_each(1, 2)
