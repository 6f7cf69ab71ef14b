"""Slots: writes without a name share their tags, each slot has one write at a time, and none is lost forever."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from boki.errors import InvalidArgument, Overloaded
from boki.spark.columns import LEDGER
from boki.spark.commit import commit, give_up
from boki.spark.slots import take_slot
from tests.spark.memory_gateway import SECOND_US, MemorySystem
from tests.spark.sink_world import Actor, datas, once_each, orders, race, rows, task, written

HOUR_US = 3600 * SECOND_US


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows a chunk."""
    monkeypatch.setattr("boki.spark.rows.CHUNK_ROWS", 2)


def taken(system: MemorySystem, owner: str = "me") -> tuple[str, int]:
    slot: tuple[str, int] = Actor(system, take_slot(owner)).finish()
    return slot


def finished(system: MemorySystem, slot: tuple[str, int], *numbers: int) -> None:
    """The whole write of these rows."""
    write, batch = slot
    lanes = written(system, rows(*numbers), write=write, batch=batch)
    Actor(system, commit(write, batch, lanes)).finish()


def given_up(system: MemorySystem, slot: tuple[str, int]) -> None:
    Actor(system, give_up(*slot)).finish()


def test_writes_one_after_the_other_have_one_slot_and_one_note() -> None:
    """However many there were."""
    system = MemorySystem()
    for number in range(5):
        slot = taken(system)
        assert slot == ("!batch:0", number)
        finished(system, slot, number)
    assert datas(system) == once_each(*range(5))
    assert len(system.records(LEDGER)) == 1
    assert {tag for record in system.records("b") for tag in record.tags if tag.startswith("!")} == {
        "!spark:!batch:0:0",
        "!spark:!batch:0:0:first",
    }


def test_writes_at_the_same_time_have_slots_of_their_own() -> None:
    """Each gives its slot back for itself."""
    system = MemorySystem()
    first, second = taken(system), taken(system)
    assert [first, second] == [("!batch:0", 0), ("!batch:1", 0)]
    finished(system, first, 1)
    assert taken(system) == ("!batch:0", 1)
    finished(system, second, 2)
    assert taken(system) == ("!batch:1", 1)


def test_two_that_take_a_slot_in_any_order_never_have_the_same() -> None:
    """Of an unused one, and of one that was given up."""

    def run(draws: Iterator[bool]) -> None:
        system = MemorySystem()
        given_up(system, taken(system, "old"))
        system.now_us += HOUR_US
        finished(system, taken(system, "later"), 1)
        system.now_us += HOUR_US
        busy = taken(system, "busy")
        both = [Actor(system, take_slot(owner)) for owner in ("a", "b")]
        race(both[0], both[1], draws)
        slots = {busy, both[0].finish(), both[1].finish()}
        assert len({slot for slot, _ in slots}) == 3

    assert orders(run, 3) > 40


@pytest.mark.parametrize("is_lost", [True, False], ids=["request", "answer"])
def test_a_slot_is_found_although_an_answer_is_lost(is_lost: bool) -> None:
    """Whether the request or its answer was lost: it is taken once, and none is left open for nobody."""
    system = MemorySystem()
    actor = Actor(system, take_slot("me"))
    is_first = True
    while not actor.is_done:
        is_hit = is_first and actor.is_at_append
        is_first = is_first and not is_hit
        actor.step(is_lost=is_hit and is_lost, has_no_answer=is_hit and not is_lost)
    assert actor.finish() == ("!batch:0", 0)
    assert taken(system, "other") == ("!batch:1", 0)


def test_the_slot_of_a_write_that_failed_is_given_to_the_next_after_a_while() -> None:
    """Not while its last tasks may still end; then it comes before slots that nobody has had. So writes that fail, of
    which there may be any number, leave no more than a few slots.
    """
    system = MemorySystem()
    for number in range(200):
        slot = taken(system)
        written(system, rows(number, 1000 + number), write=slot[0], batch=slot[1])
        given_up(system, slot)
        assert slot[0] in {"!batch:0", "!batch:1"} or number < 10
        system.now_us += HOUR_US
    assert len({tag for record in system.records(LEDGER) for tag in record.tags}) == 2


def test_failures_in_quick_succession_take_a_slot_each() -> None:
    """The tasks of the one before may still run."""
    system = MemorySystem()
    for number in range(5):
        slot = taken(system)
        assert slot == (f"!batch:{number}", 0)
        given_up(system, slot)


def test_a_write_whose_driver_died_is_given_up_after_two_silent_days() -> None:
    """A write that notes something, be it that it begins in another book, keeps its slot; without a word it is lost."""
    system = MemorySystem()
    dead = taken(system, "dead")
    for _ in range(3):
        system.now_us += 40 * HOUR_US
        written(system, rows(1), write=dead[0], batch=dead[1], partition=_)
        finished(system, taken(system), 2)
    assert taken(system, "one") == ("!batch:1", 3)
    system.now_us += 40 * HOUR_US
    assert taken(system, "two") == ("!batch:2", 0)
    system.now_us += 40 * HOUR_US
    given_up(system, ("!batch:2", 0))
    assert taken(system, "three") == ("!batch:0", 1)


def test_a_late_task_of_a_write_that_failed_adds_nothing_to_the_next() -> None:
    """Whatever it has done before, once its slot has another write that has begun in the same lane."""
    for steps in range(12):
        system = MemorySystem()
        old = taken(system, "old")
        late = task(system, rows(1, 2, 3), write=old[0], batch=old[1])
        while late.count < steps and not late.is_done:
            late.step()
        given_up(system, old)
        left = datas(system)
        system.now_us += HOUR_US
        taken(system, "other")
        slot = taken(system, "new")
        assert slot == ("!batch:0", 1)
        lanes = written(system, rows(20, 21, 22), write=slot[0], batch=slot[1])
        if not late.is_done:
            with pytest.raises(InvalidArgument, match="batch 0 of this query is over"):
                late.finish()
        Actor(system, commit(*slot, lanes)).finish()
        assert datas(system) - left == datas(system) - once_each(1, 2, 3), steps
        assert datas(system)["20"] == datas(system)["21"] == datas(system)["22"] == 1


def test_a_driver_whose_write_was_given_up_cannot_commit_it() -> None:
    """Its slot has another write: the note of that one stands."""
    system = MemorySystem()
    old = taken(system, "old")
    lanes = written(system, rows(1), write=old[0], batch=old[1])
    finished(system, taken(system), 2)
    system.now_us += 100 * HOUR_US
    finished(system, taken(system), 3)
    taken(system)
    new = taken(system)
    assert new == ("!batch:0", 1)
    with pytest.raises(InvalidArgument, match="batch 0 of this query is over"):
        Actor(system, commit(*old, lanes)).finish()
    finished(system, new, 4)


def test_no_slot_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tags do not pile up instead."""
    monkeypatch.setattr("boki.spark.slots.MOST_SLOTS", 2)
    system = MemorySystem()
    taken(system)
    taken(system)
    with pytest.raises(Overloaded, match=r"2 writes without a writeId are under way, or have failed .* a writeId"):
        taken(system)
