"""Commits whose answer was lost: what their caller is told is what the log says, or that nobody can tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from boki import BokiError, ConnectionLost, NewRecord, WrongState
from boki.libs.bokistore import ConflictError, saving
from boki.libs.bokistore.records import row_tag
from boki.libs.bokistore.requests import Requests
from boki.libs.bokistore.transactions import Transaction
from boki.libs.fold.steps import Append, Step, Steps, run_blocking
from tests.libs.bokistore.interleaving import Process, logbook


def one(step: Step) -> Steps[Any]:
    return (yield step)


def commit(process: Process, txn: Transaction, meanwhile: Callable[[], object], *, is_made: bool) -> int:
    """Commit; the answer to the first append is lost, made or not, and `meanwhile` happens before the next one."""

    def steps() -> Steps[int]:
        work = txn.commit()
        asked = next(work)
        assert isinstance(asked, Append)
        if is_made:
            yield from one(asked)
        asked = work.throw(ConnectionLost("the answer was lost"))
        meanwhile()
        while True:
            try:
                answer = yield asked
            except BokiError as error:
                asked = work.throw(error)
            else:
                try:
                    asked = work.send(answer)
                except StopIteration as end:
                    return int(end.value)

    return run_blocking(steps(), process.book, pause=lambda _: None)


def append(process: Process, txn: Transaction, item: int) -> None:
    process.run(Requests[Any](txn, "x", None).append("items", [item], 0, None))


@pytest.mark.parametrize("is_made", [True, False])
def test_a_commit_that_was_overtaken_is_found_or_not_there(*, is_made: bool) -> None:
    """By its own record: another process has changed the object meanwhile."""
    book = logbook()
    one_process, other = Process(book), Process(book)
    txn = one_process.begin()
    append(one_process, txn, 1)
    change = Requests[Any](other.direct, "x", None).append("items", [2], 0, None)
    if is_made:
        assert commit(one_process, txn, lambda: other.run(change), is_made=True)
    else:
        with pytest.raises(ConflictError):
            commit(one_process, txn, lambda: other.run(change), is_made=False)
    assert other.run(Requests[Any](other.direct, "x", None).get("items", [])) == ([1, 2] if is_made else [2])


@pytest.mark.parametrize("is_made", [True, False])
def test_a_commit_whose_record_may_have_been_trimmed_is_not_called_aborted(*, is_made: bool) -> None:
    """The object was saved and its row trimmed since: the error says that the outcome is unknown, made or not."""
    book = logbook()
    one_process, other = Process(book), Process(book)
    other.run(saving.configure(0))
    txn = one_process.begin()
    append(one_process, txn, 1)

    def meanwhile() -> None:
        for item in (2, 3):
            other.run(Requests[Any](other.direct, "x", None).append("items", [item], 0, None))
        other.run(saving.save(other.reader, "x"))
        assert len(book.read(row_tag("x")).records) == 1

    with pytest.raises(ConnectionLost, match="trimmed") as lost:
        commit(one_process, txn, meanwhile, is_made=is_made)
    assert lost.value.outcome == "unknown"


def test_records_of_the_application_alone_are_committed_once() -> None:
    """They change no row, so the conditions of the second append would hold again."""
    book = logbook()
    process = Process(book)
    txn = process.begin()
    process.run(Requests[Any](txn, "x", None).get("items", []))
    txn.append(NewRecord(b"paid", ("paid",)))
    seqnum = commit(process, txn, lambda: None, is_made=True)
    assert [record.seqnum for record in book.read("paid").records] == [seqnum]


def test_a_task_that_is_left_behind_moves_no_transaction_that_is_committing() -> None:
    """Its record is looked for from the versions on which it was appended: on later ones it would be done twice."""
    book = logbook()
    process, other = Process(book), Process(book)
    other.run(Requests[Any](other.direct, "y", None).set("", 1, None))
    txn = process.begin()
    process.run(Requests[Any](txn, "x", None).set("", "first", None))
    other.run(Requests[Any](other.direct, "y", None).set("", 2, None))
    process.run(process.reader.catch_up("y"))
    task = Requests[Any](txn, "y", None).get("", None)  # has not read yet when the block ends
    asked = next(task)

    def meanwhile() -> None:
        with pytest.raises(WrongState, match="has ended"):
            process.run(after(task, asked))
        other.run(Requests[Any](other.direct, "x", None).set("", "second", None))

    commit(process, txn, meanwhile, is_made=True)
    assert other.run(Requests[Any](other.direct, "x", None).get("", None)) == "second"


def after(task: Steps[Any], asked: Step) -> Steps[Any]:
    """The rest of a task that has asked for that."""
    while True:
        answer = yield from one(asked)
        try:
            asked = task.send(answer)
        except StopIteration as end:
            return end.value
