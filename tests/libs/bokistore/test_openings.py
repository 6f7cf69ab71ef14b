"""Objects that a process does not know: one round opens most, and the order of its answers does not matter."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from boki import MAX_SEQNUM
from boki.libs.bokiflow.asking import Draft, Load
from boki.libs.bokistore import saving
from boki.libs.bokistore.json_values import MISSING
from boki.libs.bokistore.queries import WHOLE
from boki.libs.bokistore.reading import FIRST_RECORDS, LEAVE_VIEW_AFTER, MAX_WHOLE
from boki.libs.bokistore.records import ORIGIN, checkpoints_tag, row_tag
from boki.libs.bokistore.updates import Increment
from boki.libs.fold.steps import Append, Compare, ReadPage, SetAuxdata, Step, Steps, Tail, drive
from tests.libs.bokistore.interleaving import Process, logbook, new_nonce

T = TypeVar("T")
WHOLE_ROUND = [Compare, ReadPage, Tail]
TAILS = [Tail, Tail, Tail]


def asked_by(process: Process, steps: Steps[T]) -> tuple[T, list[list[Step]]]:
    """The result, and what was asked of the log for it, by rounds."""
    rounds: list[list[Step]] = []

    def carry_out(step: Step) -> Any:
        rounds.append(list(step) if isinstance(step, tuple) else [step])
        return process.run(_alone(step))

    return drive(steps, carry_out), rounds


def _alone(step: Step) -> Steps[Any]:
    return (yield step)


def kinds(rounds: list[list[Step]]) -> list[list[type]]:
    return [[type(step) for step in asked] for asked in rounds]


def count_up(process: Process, name: str, times: int) -> None:
    for _ in range(times):
        process.run(process.direct.change(name, Increment((), 1)))


def look(process: Process, name: str) -> Steps[Any]:
    return process.direct.look(name, WHOLE)


def test_a_view_is_left_of_as_many_records_as_one_page_has() -> None:
    """Also where the first page is all of the object."""
    book = logbook()
    count_up(Process(book), "x", LEAVE_VIEW_AFTER)
    _, rounds = asked_by(process := Process(book), look(process, "x"))
    assert kinds(rounds)[-1] == [SetAuxdata]


@pytest.mark.parametrize("records", [0, 1, FIRST_RECORDS - 1])
def test_an_object_of_few_records_is_opened_in_one_round(records: int) -> None:
    """Its value now, its value in a transaction, and its version: nothing more is asked for."""
    book = logbook()
    count_up(Process(book), "x", records)
    for steps in (look, lambda process, name: process.begin().look(name, WHOLE)):
        process = Process(book)
        found, rounds = asked_by(process, steps(process, "x"))
        assert found == (records or MISSING)
        assert kinds(rounds) == [WHOLE_ROUND]
    process = Process(book)
    _, rounds = asked_by(process, process.direct.version_of("x"))
    assert kinds(rounds) == [WHOLE_ROUND]


def test_an_update_of_an_object_that_is_not_known_takes_three_rounds() -> None:
    """It is opened, changed, and what came in between is read."""
    book = logbook()
    count_up(Process(book), "x", 3)
    process = Process(book)
    found, rounds = asked_by(process, process.direct.change("x", Increment((), 1)))
    assert found == 4
    assert kinds(rounds) == [WHOLE_ROUND, [Append], [ReadPage]]


def test_the_past_of_an_object_is_opened_in_one_round() -> None:
    """As of a seqnum, and what comes later is read when it is asked for."""
    book = logbook()
    count_up(Process(book), "x", 5)
    seqnums = [record.seqnum for record in book.read(row_tag("x")).records]
    for number, seqnum in enumerate(seqnums, 1):
        process = Process(book)
        view, rounds = asked_by(process, process.reader.view_at("x", seqnum))
        assert (view.value, kinds(rounds)) == (number, [WHOLE_ROUND])
        assert process.run(look(process, "x")) == 5


def test_several_objects_are_opened_in_one_round() -> None:
    """Those of a page of a map, of a transaction, and of a transaction of a workflow."""
    book = logbook()
    names = [f"object-{number}" for number in range(10)]
    for number, name in enumerate(names):
        count_up(Process(book), name, number)
    seqnum = book.append(b"")
    process = Process(book)
    _, rounds = asked_by(process, process.reader.prefetch(names, seqnum))
    assert kinds(rounds) == [[Compare, *[ReadPage] * 10, *[Tail] * 10]]
    assert [process.run(process.reader.view_at(name, seqnum)).value for name in names] == [MISSING, *range(1, 10)]
    process, txn = Process(book), Draft()
    way: Any = SimpleNamespace(reader=process.reader, new_nonce=new_nonce)
    _, rounds = asked_by(process, Load(txn, names).ask(way, seqnum))
    assert kinds(rounds) == [[Compare, *[ReadPage] * 10, *[Tail] * 10]]
    assert txn.core is not None
    assert txn.core.used == names


def test_very_many_objects_are_opened_in_two_rounds() -> None:
    """A comparison has a limit."""
    book = logbook()
    names = [f"object-{number}" for number in range(MAX_WHOLE + 1)]
    count_up(Process(book), names[-1], 2)
    process = Process(book)
    _, rounds = asked_by(process, process.reader.prefetch(names, MAX_SEQNUM))
    assert [len(asked) for asked in rounds] == [3 * len(names), len(names) + 1]
    assert process.run(look(process, names[-1])) == 2


def test_an_object_of_many_records_begins_with_the_first_ones_or_with_a_view() -> None:
    """Two rounds, and the second one asks for what is left; the view that it leaves serves the next process."""
    book = logbook()
    count_up(Process(book), "x", 3 * FIRST_RECORDS)
    found, rounds = asked_by(process := Process(book), look(process, "x"))
    assert found == 3 * FIRST_RECORDS
    assert kinds(rounds) == [WHOLE_ROUND, [ReadPage], [SetAuxdata]]
    assert isinstance(rounds[1][0], ReadPage)
    assert rounds[1][0].start > book.read(row_tag("x"), limit=FIRST_RECORDS).records[-1].seqnum
    found, rounds = asked_by(process := Process(book), look(process, "x"))
    row = process.rows.find("x")
    assert row is not None
    assert (found, row.replayed, kinds(rounds)) == (3 * FIRST_RECORDS, 0, [WHOLE_ROUND, [ReadPage]])


def test_what_was_saved_is_opened_by_its_checkpoint() -> None:
    """Where objects have checkpoints their first records are not asked for, until there is one that has none."""
    book = logbook()
    writer = Process(book)
    for name in ("x", "y", "z"):
        count_up(writer, name, 40)
        writer.run(saving.save(writer.reader, name))
        count_up(writer, name, 1)
    count_up(writer, "new", 1)
    process = Process(book)
    found, rounds = asked_by(process, look(process, "x"))
    assert (found, kinds(rounds)) == (41, [WHOLE_ROUND, TAILS, [ReadPage]])
    found, rounds = asked_by(process, look(process, "y"))
    assert (found, kinds(rounds)) == (41, [TAILS, [ReadPage]])
    found, rounds = asked_by(process, look(process, "new"))
    assert (found, kinds(rounds)) == (1, [TAILS, [ReadPage, ReadPage]])
    found, rounds = asked_by(process, look(process, "none"))
    assert (found, kinds(rounds)) == (MISSING, [WHOLE_ROUND])
    found, rounds = asked_by(process, look(process, "z"))
    assert (found, kinds(rounds)) == (41, [WHOLE_ROUND, TAILS, [ReadPage]])


def test_of_several_objects_the_majority_decides_how_the_next_ones_are_opened() -> None:
    """Each gets its value either way."""
    book = logbook()
    writer = Process(book)
    for name in "xyz":
        count_up(writer, name, 20)
        writer.run(saving.save(writer.reader, name))
    for names, is_whole in (("xab", True), ("xya", False)):
        process = Process(book)
        process.run(process.reader.prefetch(names, MAX_SEQNUM))
        assert [process.run(look(process, name)) for name in names] == [
            20 if name in "xyz" else MISSING for name in names
        ]
        _, rounds = asked_by(process, look(process, "c"))
        assert kinds(rounds)[0] == (WHOLE_ROUND if is_whole else TAILS)


def test_what_cannot_be_compared_is_opened_by_its_last_records() -> None:
    """A comparison without an answer tells nothing of checkpoints and forks."""
    book = logbook()
    count_up(Process(book), "x", 2)
    process = Process(book)

    def carry_out(step: Step) -> Any:
        if isinstance(step, tuple):
            return [carry_out(each) for each in step]
        return None if isinstance(step, Compare) else process.run(_alone(step))

    assert drive(look(process, "x"), carry_out) == 2


def in_some_order(
    process: Process, steps: Steps[T], order: tuple[int, ...], moment: int, event: Callable[[], object]
) -> T:
    """Carry out what is asked in one round in that order, and the event in front of the one with that number."""
    asked = 0

    def carry_out(step: Step) -> Any:
        nonlocal asked
        some = step if isinstance(step, tuple) else (step,)
        answers: dict[int, Any] = {}
        for number in sorted(range(len(some)), key=lambda number: order[number % len(order)]):
            if asked == moment:
                event()
            asked += 1
            answers[number] = process.run(_alone(some[number]))
        found = [answers[number] for number in range(len(some))]
        return found if isinstance(step, tuple) else found[0]

    return drive(steps, carry_out)


ORDERS = list(permutations(range(3)))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("moment", range(6))
def test_a_book_that_becomes_a_fork_between_two_answers_of_one_round(order: tuple[int, ...], moment: int) -> None:
    """And is changed at once: its object is what it was in the other book, with that change, or not there yet."""
    book = logbook()
    count_up(Process(book), "x", 40)
    other = book.session.logbook("trial")

    def event() -> None:
        Process(book).run(saving.fork("book", "trial", 0))
        count_up(Process(other), "x", 1)

    process = Process(other)
    assert in_some_order(process, look(process, "x"), order, moment, event) in (MISSING, 41)
    is_fork = other.read_prev(ORIGIN) is not None
    assert process.run(look(process, "x")) == (41 if is_fork else MISSING)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("moment", range(6))
def test_an_object_that_is_saved_and_trimmed_between_two_answers_of_one_round(
    order: tuple[int, ...], moment: int
) -> None:
    """Its value is whole, whatever was seen before the trim and after it."""
    book = logbook()
    writer = Process(book)
    writer.run(saving.configure(0))
    count_up(writer, "x", 10)

    def event() -> None:
        writer.run(saving.save(writer.reader, "x"))
        count_up(writer, "x", 1)

    process = Process(book)
    assert in_some_order(process, look(process, "x"), order, moment, event) in (10, 11)
    is_saved = book.read_prev(checkpoints_tag("x")) is not None
    assert process.run(look(process, "x")) == (11 if is_saved else 10)
