"""Commits: a batch becomes complete once, whole and permanently, whatever drivers there are and however large it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from boki.errors import ConnectionLost, InvalidArgument, TooLarge, VersionTooNew
from boki.log.chunk import Group, encode_chunk
from boki.log.operations import Append
from boki.spark.columns import LEDGER
from boki.spark.commit import commit
from boki.spark.ledger import LaneNote, Ledger, parts_of
from boki.spark.steps import TRIES
from tests.spark.memory_gateway import MemorySystem
from tests.spark.sink_world import Actor, orders, race, rows, task, written


def driver(system: MemorySystem, lanes: list[LaneNote], batch: int = 0) -> Actor:
    return Actor(system, commit("w", batch, lanes))


def ledger(system: MemorySystem) -> Ledger:
    found = Ledger("w")
    Actor(system, found.catch_up()).finish()
    return found


def notes(count: int, mark: int = 1) -> list[LaneNote]:
    return [LaneNote(partition=i, book="b", last_seqnum=1, runs=((mark, 1),), digest="d" * 32) for i in range(count)]


def test_two_drivers_of_a_batch_note_it_once() -> None:
    """In whatever order their steps come: with the same lanes both are content, with others one is refused."""

    def run(draws: Iterator[bool], second_mark: int) -> None:
        system = MemorySystem()
        drivers = [driver(system, notes(2)), driver(system, notes(2, second_mark))]
        race(drivers[0], drivers[1], draws)
        errors = [actor.error for actor in drivers if actor.error is not None]
        assert len(errors) == (second_mark != 1)
        assert all(isinstance(error, InvalidArgument) for error in errors)
        winner = 1 if drivers[0].error is None else second_mark
        assert [lane.runs for lane in ledger(system).lanes.values()] == [((winner, 1),)] * 2
        assert len(system.records(LEDGER)) == 1

    assert orders(lambda draws: run(draws, 1), 3) > 20
    assert orders(lambda draws: run(draws, 2), 3) > 20


def test_a_driver_of_an_older_batch_never_has_the_last_word() -> None:
    """However it is interleaved with the commits of two newer batches; the newest stays noted."""

    def newer() -> Iterator[object]:
        for batch in range(3):
            yield from commit("w", batch, notes(1))

    refused = 0

    def run(draws: Iterator[bool]) -> None:
        nonlocal refused
        system = MemorySystem()
        old = driver(system, notes(1), 0)
        race(old, Actor(system, newer()), draws)  # type: ignore[arg-type]
        refused += old.error is not None
        assert ledger(system).complete == 2

    assert orders(run, 2) > 20
    assert refused


@pytest.mark.parametrize("is_lost", [True, False], ids=["requests", "answers"])
def test_a_commit_whose_answer_is_lost_is_noted_all_the_same(is_lost: bool) -> None:
    """Tried again after a pause; after this many tries it is an error that says to run it again."""
    system = MemorySystem()
    actor = driver(system, notes(1))
    losses = 3
    while not actor.is_done:
        is_hit = actor.is_at_append and losses > 0
        losses -= is_hit
        actor.step(is_lost=is_hit and is_lost, has_no_answer=is_hit and not is_lost)
    actor.finish()
    assert ledger(system).complete == 0
    actor = driver(system, notes(1), 1)
    while not actor.is_done:
        actor.step(is_lost=actor.is_at_append)
    assert isinstance(actor.error, ConnectionLost)
    assert f"could not be noted in book 'spark:sinks' in {TRIES} tries" in actor.error.message
    assert actor.waited_s > 45


def test_a_batch_of_any_number_of_lanes_is_noted_in_parts() -> None:
    """Twenty thousand lanes take more than a record holds; they are all there again, in records that fit."""
    lanes = [
        LaneNote(partition=i, book="b" * 100, last_seqnum=i, runs=((1, 1),), digest="d" * 32) for i in range(20_000)
    ]
    parts = list(parts_of(3, lanes))
    assert len(parts) > 5
    assert [part.is_last for part in parts] == [False] * (len(parts) - 1) + [True]
    assert [lane for part in parts for lane in part.lanes] == lanes
    system = MemorySystem()
    actor = Actor(system, Ledger("w").note_complete(3, lanes))
    assert actor.finish() is True
    found = ledger(system)
    assert (found.complete, list(found.lanes.values())) == (3, lanes)


def test_a_lane_that_no_record_holds_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its size, the limit and what to do."""
    lane = LaneNote(partition=7, book="b", runs=tuple((1, number) for number in range(100_000)))
    with pytest.raises(
        TooLarge, match=r"partition 7 wrote 100,000 chunks to book 'b', .* may have 524,288: write in sev"
    ):
        list(parts_of(0, [lane]))


def test_drivers_that_die_between_parts_leave_no_half_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three parts; one driver dies behind each of its steps, and a second one commits, also while tasks note that they
    begin between the parts: complete or not, and in the end whole.
    """
    monkeypatch.setattr("boki.spark.ledger._PART_BYTES", 300)
    assert len(list(parts_of(1, notes(6)))) == 3
    for steps in range(12):
        system = MemorySystem()
        driver(system, notes(1)).finish()
        dying = driver(system, notes(6, 2), 1)
        while dying.count < steps and not dying.is_done:
            dying.step()
        found = ledger(system)
        assert (found.complete, len(found.lanes)) in {(0, 1), (1, 6)}
        if found.complete == 0:
            task(system, rows(1), batch=1, partition=77).step()
        heir = driver(system, notes(6, 2), 1)
        race(heir, dying, iter([True, False] * 100)) if not dying.is_done else heir.finish()
        assert heir.finish() is None
        found = ledger(system)
        assert (found.complete, list(found.lanes.values())) == (1, notes(6, 2))


def test_the_ledger_holds_the_last_batch_of_a_write_only() -> None:
    """However many lanes there have been in batches before."""
    system = MemorySystem()
    for batch in range(4):
        lanes = [note for i in range(3) for note in written(system, rows(batch), partition=3 * batch + i, batch=batch)]
        driver(system, lanes, batch).finish()
    assert len(system.records(LEDGER)) == 1
    assert len(ledger(system).lanes) == 3


def test_notes_of_a_newer_version_are_refused_by_name() -> None:
    """Rather than passed over: they may say that a batch is complete."""
    for data, kind in [(b'{"type":"sealed","batch":1}', VersionTooNew), (b"hello", InvalidArgument)]:
        system = MemorySystem()
        system.answer(Append(LEDGER, encode_chunk(LEDGER, [Group([(data, ("!spark:w",))])])))
        with pytest.raises(kind, match=r"record .* of book 'spark:sinks'"):
            written(system, rows(1))
