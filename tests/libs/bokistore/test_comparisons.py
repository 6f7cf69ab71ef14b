"""What a process knows of objects: it asks whether there is news before it reads, and never misses any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from unittest.mock import ANY

import pytest

from boki import MAX_SEQNUM, blocking
from boki.libs.bokistore.queries import ValueAt
from boki.libs.bokistore.records import ORIGIN, row_tag
from boki.libs.bokistore.transactions import MAX_TOGETHER, Transaction
from boki.libs.bokistore.updates import Increment, Set
from boki.libs.bokistore.views import VIEWS_KEPT
from boki.libs.fold.steps import Append, Compare, ReadPage, Step, Steps, run_blocking
from tests.libs.bokistore.interleaving import Process, logbook

T = TypeVar("T")
NUMBER = ("n",)


def asked_by(process: Process, steps: Steps[T]) -> tuple[T, list[Step]]:
    """The result, and everything that was asked of the log for it."""
    asked: list[Step] = []

    def listen() -> Steps[T]:
        answer: Any = None
        try:
            step = next(steps)
            while True:
                asked.append(step)
                answer = yield step
                step = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    return run_blocking(listen(), process.book), asked


def move(process: Process, *names: str) -> Steps[int]:
    """A transaction over these objects."""
    transaction = process.begin()
    for name in names:
        yield from transaction.change(name, Increment(NUMBER, 1))
    return (yield from transaction.commit())


def sums(transaction: Transaction, *names: str) -> Steps[int]:
    total = 0
    for name in names:
        total += yield from transaction.look(name, ValueAt(NUMBER))
    yield from transaction.commit()
    return total


def test_a_transaction_like_the_last_one_asks_once_before_it_commits() -> None:
    """One comparison is enough for all objects that the last one has used; then comes the append."""
    process = Process(logbook())
    for _ in range(2):
        process.run(move(process, "a", "b", "c"))
    _, asked = asked_by(process, move(process, "a", "b", "c"))
    assert [type(step) for step in asked] == [Compare, Append]
    assert process.run(process.direct.look("c", ValueAt(NUMBER))) == 3


def test_news_of_any_object_is_read() -> None:
    """Another process has changed the first object, or another one: its row is read, and it is seen."""
    book = logbook()
    process, other = Process(book), Process(book)
    names = ("a", "b", "c")
    process.run(move(process, *names))
    assert process.run(sums(process.begin(), *names)) == 3
    for changed, name in enumerate(names, 1):
        other.run(move(other, name))
        total, asked = asked_by(process, sums(process.begin(), *names))
        assert total == 3 + changed
        assert f"!o:{name}" in [step.tag for step in asked if isinstance(step, ReadPage)]


def test_all_is_of_one_moment_though_another_process_commits_between_the_questions() -> None:
    """Both objects always have the same number: a reader sees no other state, also if its guess was wrong."""
    book = logbook()
    process, other = Process(book), Process(book)
    for _ in range(2):
        process.run(move(process, "a", "b"))
    for _ in range(3):
        reading = process.begin()
        one = process.run(reading.look("a", ValueAt(NUMBER)))
        other.run(move(other, "a", "b"))
        assert process.run(reading.look("b", ValueAt(NUMBER))) == one
        process.run(sums(process.begin(), "a", "b"))


def _delete(book: blocking.LogBook) -> None:
    book.delete()


def _trim(book: blocking.LogBook) -> None:
    book.trim(MAX_SEQNUM, tag="!o:a")


@pytest.mark.parametrize("take_away", [_delete, _trim])
def test_a_row_that_is_gone_is_news(take_away: Callable[[blocking.LogBook], None]) -> None:
    """The object is not taken for what it was before the book was deleted, or its row trimmed as a whole."""
    process = Process(logbook())
    for _ in range(2):
        process.run(move(process, "a", "b"))
    take_away(process.book)
    assert process.run(process.direct.look("a", ValueAt(()))) == Process(process.book).run(
        Process(process.book).direct.look("a", ValueAt(()))
    )


def test_an_object_that_was_never_written_is_read() -> None:
    """Nothing that was trimmed as a whole is taken for what never was; nor that the book may have become a fork."""
    process = Process(logbook())
    for _ in range(3):
        _, asked = asked_by(process, process.direct.look("a", ValueAt(())))
    assert asked == [(ReadPage(row_tag("a"), ANY, book="book"), ReadPage(ORIGIN, limit=1, book="book"))]


def test_objects_that_are_known_do_not_ask_whether_the_book_is_a_fork() -> None:
    """Only what was never written may come from another book."""
    process = Process(logbook())
    for name in "ab":
        process.run(process.direct.change(name, Set((), b"1")))
    process.reader.expect_news("ab")
    _, asked = asked_by(process, process.reader.prefetch("ab", MAX_SEQNUM))
    assert asked == [tuple(ReadPage(row_tag(name), ANY, ANY, book="book") for name in "ab")]
    _, asked = asked_by(process, process.reader.prefetch("abc", MAX_SEQNUM))
    assert ReadPage(ORIGIN, limit=1, book="book") in asked[-1]


def test_a_read_tells_nothing_that_its_caller_has_not_seen() -> None:
    """Another caller of the process has read on while the answer was on its way: where the first one reads next, as a
    child of it does on another engine, that may not have come yet.
    """
    process = Process(logbook())
    process.run(process.direct.change("a", Set((), b'{"n": 1}')))
    version = process.run(process.direct.version_of("a"))
    for number in (1, VIEWS_KEPT + 1):
        value, same = process.direct.look("a", ValueAt(NUMBER)), process.direct.version_of("a")
        answers = [run_blocking(_alone(next(asked)), process.book) for asked in (value, same)]
        for _ in range(number):
            process.run(process.direct.change("a", Increment(NUMBER, 1)))
        assert process.run(_continued(value, answers[0])) == 1
        assert process.run(_continued(same, answers[1])) == version
        process.run(process.direct.change("a", Set((), b'{"n": 1}')))
        version = process.run(process.direct.version_of("a"))


def _continued(asked: Steps[Any], answer: Any) -> Steps[Any]:
    """The rest of what has been asked, after this answer."""
    try:
        step = asked.send(answer)
    except StopIteration as end:
        return end.value
    while True:
        try:
            step = asked.send((yield step))
        except StopIteration as end:
            return end.value


def _alone(step: Step) -> Steps[Any]:
    return (yield step)


def test_where_nothing_can_be_told_it_is_read() -> None:
    """A comparison without an answer costs a read, and changes no result."""
    process = Process(logbook())
    process.run(process.direct.change("a", Set((), b'{"n": 1}')))
    process.run(process.direct.look("a", ValueAt(NUMBER)))
    steps = process.direct.look("a", ValueAt(NUMBER))
    assert isinstance(next(steps), Compare)
    read = steps.send(None)
    assert isinstance(read, ReadPage)
    with pytest.raises(StopIteration) as end:
        steps.send(process.run(_one(read)))
    assert end.value.value == 1


def test_what_is_remembered_of_a_transaction_is_bounded() -> None:
    """One that used many objects makes the next one ask for the first of them."""
    process = Process(logbook())
    names = [f"object-{number}" for number in range(2 * MAX_TOGETHER)]
    for _ in range(2):
        process.run(move(process, *names))
    asked = asked_by(process, process.begin().look(names[0], ValueAt(NUMBER)))[1]
    assert [len(step.rows) for step in asked if isinstance(step, Compare)] == [1 + MAX_TOGETHER]


def _one(step: Step) -> Steps[Any]:
    return (yield step)
