"""Lanes: each row once, in whatever order tasks run, die, are started again and come too late."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from boki.errors import ConnectionLost, InvalidArgument
from boki.log.ids import MAX_SEQNUM
from boki.log.operations import Append
from boki.spark.columns import LEDGER
from boki.spark.commit import commit
from boki.spark.steps import TRIES
from tests.spark.memory_gateway import MemorySystem
from tests.spark.sink_world import Actor, datas, frame, once_each, orders, race, rows, task, written


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows a chunk."""
    monkeypatch.setattr("boki.spark.rows.CHUNK_ROWS", 2)


def committing(system: MemorySystem, lanes: Any, *, write: str = "w", batch: int = 0) -> Actor:
    return Actor(system, commit(write, batch, lanes))


@pytest.mark.parametrize(("numbers", "most_changes"), [((1,), 99), ((1, 2, 3), 3)], ids=str)
def test_two_attempts_of_a_task_in_any_order_add_each_row_once(numbers: tuple[int, ...], most_changes: int) -> None:
    """As with speculative execution: each row is there once, and both attempts say the same of it."""

    def run(draws: Iterator[bool]) -> None:
        system = MemorySystem()
        attempts = task(system, rows(*numbers)), task(system, rows(*numbers))
        race(*attempts, draws)
        assert datas(system) == once_each(*numbers)
        assert attempts[0].finish() == attempts[1].finish() != []

    assert orders(run, most_changes) > 40


def test_an_attempt_that_goes_on_while_the_batch_ends_adds_nothing() -> None:
    """The driver takes the first attempt and commits; the second agrees or refuses, and the next batch continues."""
    refused = 0

    def run(draws: Iterator[bool]) -> None:
        nonlocal refused
        system = MemorySystem()

        def first() -> Any:
            lanes = yield from attempt
            yield from commit("w", 0, lanes)
            return lanes

        attempt = task_steps(rows(1, 2, 3))
        winner = Actor(system, first())
        late = task(system, rows(1, 2, 3))
        race(winner, late, draws)
        lanes = winner.finish()
        if late.error is None:
            assert late.result == lanes
        else:
            refused += 1
            assert "batch 0 of this query is over" in late.error.message
        assert datas(system) == once_each(1, 2, 3)
        committing(system, written(system, rows(4, 5), batch=1), batch=1).finish()
        assert datas(system) == once_each(1, 2, 3, 4, 5)

    assert orders(run, 2) > 40
    assert refused


def task_steps(batches: Any, *, batch: int = 0) -> Any:
    from boki.spark.lane import Attempt
    from boki.spark.sink import writing
    from tests.spark.sink_world import options

    return writing(batches, options(), Attempt("w", batch, 0))


def test_a_task_that_dies_anywhere_is_finished_by_the_next() -> None:
    """Killed before any of its steps, with its last append under way: that arrives before any step of the next
    attempt, after its end, or after the commit, and still each row is there once.
    """
    whole = task(MemorySystem(), rows(0, 1))
    whole.finish()
    count = 0
    for dies_at, arrives_at in itertools.product(range(16), range(20)):
        system = MemorySystem()
        committing(system, written(system, rows(0)), batch=0).finish()  # lanes that begin somewhere
        dying = task(system, rows(1, 2, 3), batch=1)
        while dying.count < dies_at and not dying.is_done:
            dying.step()
        if dying.is_done:
            break
        under_way = dying.next if isinstance(dying.next, Append) else None
        if under_way is None and arrives_at:
            continue
        heir = task(system, rows(1, 2, 3), batch=1)
        while not heir.is_done:
            if under_way is not None and heir.count == arrives_at:
                system.answer(under_way)
                under_way = None
            heir.step()
        commit_batch = committing(system, heir.finish(), batch=1)
        commit_batch.finish()
        if under_way is not None:
            system.answer(under_way)
        assert datas(system) == once_each(0, 1, 2, 3), (dies_at, arrives_at)
        committing(system, written(system, rows(4), batch=2), batch=2).finish()
        assert datas(system) == once_each(0, 1, 2, 3, 4), (dies_at, arrives_at)
        count += 1
    assert count > 40


@pytest.mark.parametrize("is_lost", [True, False], ids=["requests", "answers"])
def test_what_is_lost_on_the_way_is_made_up_for(is_lost: bool) -> None:
    """Any two appends of a task whose request or answer is lost, to the ledger or the book: each row once."""
    for lost in itertools.combinations(range(4), 2):
        system = MemorySystem()
        actor = task(system, rows(1, 2, 3, 4, 5))
        number = 0
        while not actor.is_done:
            is_hit = actor.is_at_append and number in lost
            number += actor.is_at_append
            actor.step(is_lost=is_hit and is_lost, has_no_answer=is_hit and not is_lost)
        committing(system, actor.finish()).finish()
        assert number >= 4
        assert datas(system) == once_each(1, 2, 3, 4, 5)


def test_a_task_that_is_never_answered_ends_with_what_to_do() -> None:
    """This many tries, with pauses that make about a minute, and then an error: not forever, and not at once."""
    system = MemorySystem()
    actor = task(system, rows(1))
    appends = 0
    while not actor.is_done:
        appends += actor.is_at_append and actor.next.book == "b"  # type: ignore[union-attr]
        actor.step(is_lost=actor.is_at_append and actor.next.book == "b")  # type: ignore[union-attr]
    assert isinstance(actor.error, ConnectionLost)
    assert "could not be written to" in actor.error.message
    assert "run this again" in actor.error.message
    assert appends == TRIES + 1
    assert 45 < actor.waited_s < 90


def test_a_short_link_of_a_task_that_was_killed_is_taken_as_it_is() -> None:
    """What feeds a task is killed, so it appends a short chunk; another attempt cuts there, also one that is under
    way and has cut differently.
    """
    for steps in range(12):
        system = MemorySystem()
        other = task(system, rows(1, 2, 3, 4))
        while other.count < steps and not other.is_done:
            other.step()
        short = task(system, rows(1) if datas(system).total() < 2 else rows(1, 2, 3))
        while not short.is_done:
            short.step()
        assert short.error is None or "the end differs" in short.error.message
        committing(system, other.finish()).finish()
        assert datas(system) == once_each(1, 2, 3, 4), steps


@pytest.mark.parametrize(
    ("others", "is_complete"),
    [
        pytest.param(others, is_complete, id=f"{name}, {'complete' if is_complete else 'under way'}")
        for name, others in {
            "other": rows(1, 2, 9),
            "more": rows(1, 2, 3, 4),
            "fewer": rows(1, 2),
            "one": rows(1),
            "none": [],
        }.items()
        for is_complete in (True, False)
        if (name, is_complete) != ("more", False)  # which is how an attempt looks that was killed at its end
    ],
)
def test_other_rows_are_refused(others: Any, is_complete: bool) -> None:
    """A batch that comes again with other, fewer or more rows does not become complete, and adds none of what exists,
    whether the first run of it did.
    """
    system = MemorySystem()
    lanes = written(system, rows(1, 2, 3))
    if is_complete:
        committing(system, lanes).finish()
    with pytest.raises(InvalidArgument, match=r"exactly once needs the same rows|an earlier run of batch 0 wrote rows"):
        committing(system, written(system, others)).finish()
    assert datas(system) == once_each(1, 2, 3)
    committing(system, written(system, rows(1, 2, 3))).finish()
    assert datas(system) == once_each(1, 2, 3)


def test_a_book_that_a_repeated_batch_leaves_out_is_missed() -> None:
    """Rows of one partition go to two books, and the second run has none for one of them."""
    system = MemorySystem()
    both = [frame("1", "2", books=["b", "c"])]
    lanes = written(system, both)
    with pytest.raises(InvalidArgument, match="wrote rows of partition 0 to book 'c', and this run has none there"):
        committing(system, written(system, [frame("1", books=["b"])])).finish()
    committing(system, lanes).finish()
    with pytest.raises(InvalidArgument, match="than when it was written to book 'c' before"):
        committing(system, written(system, [frame("1", books=["b"])])).finish()


def test_a_name_that_another_write_has_had() -> None:
    """It went to another book, or had no rows: it is said whose the name is, and no row of this one is there."""
    system = MemorySystem()
    committing(system, written(system, rows(1))).finish()
    with pytest.raises(InvalidArgument, match=r"batch 0 of write 'w' is complete, and wrote to 'b': .* to book 'c'"):
        written(system, [frame("1", books=["c"])])
    committing(system, [], write="empty").finish()
    with pytest.raises(InvalidArgument, match=r"write 'empty' is complete, and had no rows: .* a writeId is for one"):
        written(system, rows(1), write="empty")
    assert (datas(system), datas(system, "c")) == (once_each(1), once_each())


def run_of(system: MemorySystem, partitions: list[list[Any]], batch: int = 0) -> None:
    """A whole job: a task for each partition, then the commit."""
    lanes = [
        lane for i, batches in enumerate(partitions) for lane in written(system, batches, partition=i, batch=batch)
    ]
    committing(system, lanes, batch=batch).finish()


FOUR = [rows(1, 2), rows(3, 4), rows(5, 6), rows(7, 8)]
TWO = [rows(1, 2, 3, 4), rows(5, 6, 7, 8)]


@pytest.mark.parametrize(("first", "second"), [(FOUR, TWO), (TWO, FOUR)], ids=["fewer", "more"])
def test_another_number_of_partitions_is_refused_once_the_batch_is_complete(first: Any, second: Any) -> None:
    """Nothing is appended, and the same partitions are still taken for what they are."""
    system = MemorySystem()
    run_of(system, first)
    with pytest.raises(InvalidArgument, match="in as many partitions"):
        run_of(system, second)
    assert datas(system) == once_each(*range(1, 9))
    run_of(system, first)
    assert datas(system) == once_each(*range(1, 9))


def test_another_number_of_partitions_never_doubles_or_loses_rows_in_silence() -> None:
    """A first run died when some chunks of each of its partitions were written. Of runs with other partitions each is
    refused, at its commit at the latest, or has what exists at the same places: then each row is there once.
    """
    numbers = range(1, 13)
    first = [numbers[:4], numbers[4:8], numbers[8:]]
    refused = 0
    for begun in itertools.product(range(0, 5, 2), repeat=3):
        for count in (1, 2, 4, 6):
            system = MemorySystem()
            for partition, there in enumerate(begun):
                written(system, rows(*first[partition][:there]), partition=partition)
            size = len(numbers) // count
            second = [rows(*numbers[at : at + size]) for at in range(0, len(numbers), size)]
            try:
                run_of(system, second)
            except InvalidArgument as error:
                refused += 1
                assert "partitions" in error.message
                with pytest.raises(InvalidArgument, match="partitions"):
                    run_of(system, second)
            else:
                assert datas(system) == once_each(*numbers), (begun, count)
    assert refused > 60


def test_batches_may_have_other_numbers_of_partitions() -> None:
    """Of one query, batch after batch: only a batch that comes again must have the same."""
    system = MemorySystem()
    for batch, numbers in enumerate([FOUR, TWO, FOUR, [rows(9)], FOUR]):
        run_of(system, numbers, batch)
    assert datas(system) == once_each(*range(1, 9), *range(1, 9), 9) + once_each(*range(1, 9), *range(1, 9))


def test_an_older_batch_is_over() -> None:
    """A checkpoint that was put back, or a task of the batch before: refused before anything is appended."""
    system = MemorySystem()
    run_of(system, [rows(1)], 0)
    run_of(system, [rows(2)], 1)
    with pytest.raises(InvalidArgument, match=r"batch 0 of this query is over \(batch 1 has begun or is complete\)"):
        written(system, rows(1), batch=0)
    with pytest.raises(InvalidArgument, match="batch 0 of this query is over"):
        committing(system, [], batch=0).finish()
    assert datas(system) == once_each(1, 2)
    assert len(system.records(LEDGER)) == 1, "who is late notes nothing"


def test_users_trims_take_all_rows_but_the_last_of_each_lane() -> None:
    """After a commit the chunks' own tags are gone but for the last link, which fences; and the next batch of the
    lane lets that one go, too.
    """
    system = MemorySystem()
    run_of(system, [rows(1, 2, 3, 4, 5), rows(6, 7, 8)])
    system.trim("b", MAX_SEQNUM, "t")
    assert datas(system) == once_each(5, 8)
    run_of(system, [rows(9, 10, 11), rows(12)], 1)
    system.trim("b", MAX_SEQNUM, "t")
    assert datas(system) == once_each(11, 12)
    late = committing(system, [], batch=1)
    late.step()
    assert len(system.records(LEDGER)) == 1, "of the ledger the last batch stays"


def test_rows_without_tags_are_not_trimmed_with_the_chunks_own() -> None:
    """A record goes with the last of its tags: those that begin and end chunks have one more, which nobody trims, and
    whole-book trims take it.
    """
    system = MemorySystem()
    for batch, numbers in enumerate([(1, 2, 3), (4, 5, 6, 7), (8,)]):
        run_of(system, [[frame(*map(str, numbers))]], batch)
    assert datas(system) == once_each(*range(1, 9))
    system.trim("b")
    assert datas(system) == once_each()
    assert datas(system, tag="!spark:w:0") == once_each(8)


def test_a_commit_whose_driver_died_before_it_trimmed_is_tidied_by_the_next() -> None:
    """Killed after any of its steps: after the next commit no more is left than of others."""
    for steps in range(10):
        system = MemorySystem()
        lanes = written(system, rows(1, 2, 3, 4, 5))
        dying = committing(system, lanes)
        while dying.count < steps and not dying.is_done:
            dying.step()
        run_of(system, [rows(1, 2, 3, 4, 5)], 0)
        run_of(system, [[], rows(6)], 1)
        system.trim("b", MAX_SEQNUM, "t")
        assert datas(system) == once_each(5, 6), steps
        if dying.is_done:
            return
    pytest.fail("the commit never ended")


def test_trims_of_whole_books_spare_what_fences() -> None:
    """Neither a trim of the ledger nor one of the book makes a complete batch come again."""
    system = MemorySystem()
    late = task(system, rows(1, 2, 3))
    while not (late.is_at_append and late.next.book == "b"):  # type: ignore[union-attr]
        late.step()
    run_of(system, [rows(1, 2, 3)])
    system.trim("b")
    system.trim(LEDGER)
    assert datas(system) == once_each()
    run_of(system, [rows(1, 2, 3)])
    with pytest.raises(InvalidArgument, match="batch 0 of this query is over"):
        late.finish()
    assert datas(system) == once_each()


def test_a_book_that_was_deleted_is_said_or_begun_anew() -> None:
    """In the midst of a batch that has links before it, it is an error; the next batch finds an empty book."""
    system = MemorySystem()
    run_of(system, [rows(0)])
    dying = task(system, rows(1, 2, 3), batch=1)
    while not dying.is_at_append or dying.next.book != "b":  # type: ignore[union-attr]
        dying.step()
    system.delete("b")
    with pytest.raises(InvalidArgument, match="was the book deleted while it wrote"):
        dying.finish()
    system = MemorySystem()
    run_of(system, [rows(0)])
    system.delete("b")
    run_of(system, [rows(1)], 1)
    assert datas(system) == once_each(1)


def test_a_repetition_whose_rows_were_trimmed_agrees_by_their_number() -> None:
    """Trims take rows of a batch that is under way: what is left is compared, and nothing is appended again."""
    system = MemorySystem()
    written(system, [frame(*"123456")])
    system.trim("b", MAX_SEQNUM)
    with pytest.raises(InvalidArgument, match="the end differs"):
        written(system, [frame(*"12345")])
    run_of(system, [[frame(*"123456")]])
    assert datas(system) == once_each()
