"""Transactions of one process line up behind each other's commits, and move on with what has changed."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from boki.libs.bokistore import ConflictError
from boki.libs.bokistore.queries import WHOLE, ValueAt
from boki.libs.bokistore.transactions import Transaction
from boki.libs.bokistore.under_way import LONGEST_LINE
from boki.libs.bokistore.updates import Increment, Set
from boki.libs.fold.steps import Append, Compare, ReadPage, Steps
from tests.libs.bokistore.interleaving import Process, Running, Scheduler, logbook

HITS = ("hits",)


def count_up(process: Process) -> Steps[Any]:
    """A read and a write that depends on it, in one transaction."""
    txn = process.begin()
    found = yield from txn.look("a", ValueAt(HITS))
    yield from txn.change("a", Set(HITS, b"%d" % (found + 1)))
    yield from txn.commit()


def written(process: Process, name: str, value: bytes) -> Steps[Any]:
    """One update by its own."""
    return process.direct.change(name, Set((), value))


def to_its_append(scheduler: Scheduler, steps: Steps[Any]) -> Running:
    """Start it, and carry out what it asks until it wants to append."""
    running = scheduler.start(steps)
    scheduler.running.remove(running)
    while not isinstance(running.asks, Append):
        step(scheduler, running)
    return running


def step(scheduler: Scheduler, running: Running) -> None:
    """One turn of this caller."""
    others, scheduler.running = scheduler.running, [running]
    scheduler.turn()
    scheduler.running = others


def test_what_is_being_committed_is_waited_for() -> None:
    """The second transaction reads the result of the first one, which is not in the log when it begins."""
    book = logbook()
    process = Process(book)
    process.run(process.direct.change("a", Set((), b'{"hits": 0, "other": 0}')))
    scheduler = Scheduler(book, Random(1))
    first = to_its_append(scheduler, count_up(process))
    second = scheduler.start(count_up(process))
    assert isinstance(second.asks, ReadPage)
    assert second.asks.wait_s > 0
    step(scheduler, first)
    scheduler.finish()
    assert (first.error, second.error) == (None, None)
    assert process.run(process.direct.look("a", ValueAt(HITS))) == 2


def test_what_is_not_asked_for_is_not_waited_for() -> None:
    """A commit of another field of the object holds up no read, and a transaction that only reads waits for none."""
    book = logbook()
    process = Process(book)
    process.run(process.direct.change("a", Set((), b'{"hits": 0, "other": 0}')))
    scheduler = Scheduler(book, Random(1))
    to_its_append(scheduler, count_up(process))
    reading = process.begin()
    other = scheduler.start(reading.look("a", ValueAt(("other",))))
    assert isinstance(other.asks, Compare)
    only = process.begin()
    only.only_reads = True
    hits = scheduler.start(only.look("a", ValueAt(HITS)))
    assert isinstance(hits.asks, Compare)


def test_a_commit_that_never_ends_holds_nobody_up_for_ever() -> None:
    """Its caller is gone: the next one looks a few times, and commits."""
    book = logbook()
    process = Process(book)
    process.run(process.direct.change("a", Set((), b'{"hits": 0}')))
    scheduler = Scheduler(book, Random(1))
    gone = to_its_append(scheduler, count_up(process))
    process.run(count_up(process))
    assert process.run(process.direct.look("a", ValueAt(HITS))) == 1
    assert not gone.is_over


def test_nobody_waits_behind_a_long_line() -> None:
    """Most of those that want a hot object abort, and an abort wakes nobody."""
    book = logbook()
    process = Process(book)
    process.run(process.direct.change("a", Set((), b'{"hits": 0}')))
    commits = process.reader.under_way
    for number in range(LONGEST_LINE + 1):
        txn = process.begin()
        process.run(txn.change("a", Increment(HITS, 1)))
        commits.enter(txn._drafts, b"%d" % number)
        assert bool(commits.changing("a", lambda view: view.value)) == (number < LONGEST_LINE)


def test_a_commit_that_is_given_up_is_no_longer_waited_for() -> None:
    """Cancelled callers leave nothing behind."""
    book = logbook()
    process = Process(book)
    process.run(process.direct.change("a", Set((), b'{"hits": 0}')))
    first = to_its_append(Scheduler(book, Random(1)), count_up(process))
    first.steps.close()
    assert not process.reader.under_way.changing("a", lambda view: view.value)
    assert not process.rows.awaited


def moving(process: Process, other: Process, *, is_read: bool) -> Transaction:
    """A transaction that has read `a` when another process changes `b`, and `a` if `is_read`; this one knows that."""
    for name in ("a", "b"):
        process.run(written(process, name, b"0"))
    txn = process.begin()
    assert process.run(txn.look("a", WHOLE)) == 0
    if is_read:
        other.run(written(other, "a", b"1"))
    other.run(written(other, "b", b"1"))
    process.run(process.direct.look("b", WHOLE))
    return txn


def test_the_snapshot_moves_on_while_all_that_was_seen_is_still_so() -> None:
    """It reads what it would otherwise be in conflict with, and commits."""
    book = logbook()
    process, other = Process(book), Process(book)
    txn = moving(process, other, is_read=False)
    before = txn.snapshot
    assert process.run(txn.look("b", WHOLE)) == 1
    assert txn.snapshot is not None
    assert before is not None
    assert txn.snapshot > before
    process.run(txn.change("c", Increment((), 1)))
    process.run(txn.commit())


def test_the_snapshot_stays_where_something_that_was_seen_has_changed() -> None:
    """Then it shows one moment all the same, and what writes is a conflict."""
    book = logbook()
    process, other = Process(book), Process(book)
    txn = moving(process, other, is_read=True)
    assert process.run(txn.look("b", WHOLE)) == 0
    process.run(txn.change("c", Increment((), 1)))
    with pytest.raises(ConflictError):
        process.run(txn.commit())


def test_a_read_that_was_under_way_when_the_snapshot_moved_is_made_again() -> None:
    """Two tasks of one transaction: what the slower one has read of the older moment is not mixed in."""
    book = logbook()
    process, other = Process(book), Process(book)
    process.run(written(process, "d", b"0"))
    txn = moving(process, other, is_read=False)
    before = txn.snapshot
    scheduler = Scheduler(book, Random(1))
    slow = scheduler.start(txn.look("d", WHOLE))
    assert isinstance(slow.asks, ReadPage)
    other.run(written(other, "d", b"1"))
    assert process.run(txn.look("b", WHOLE)) == 1
    assert txn.snapshot != before
    scheduler.finish()
    assert slow.result == 1
