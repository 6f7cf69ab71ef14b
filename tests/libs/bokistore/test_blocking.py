"""The store of plain functions: the same bodies, driven by calls that block."""

from __future__ import annotations

import inspect
from threading import Thread
from typing import Any

import pytest

import boki.testing
from boki import Page
from boki.blocking import LogBook
from boki.libs.bokistore import ConflictError, WrongShape, blocking, store
from boki.libs.bokistore.blocking import Store, Transaction
from boki.libs.bokistore.memory import BlockingMemory
from boki.libs.bokistore.reading import SAVE_AFTER
from boki.libs.bokistore.views import Row
from tests.unasync import FOLDER, TWINS, plain_half


def test_it_is_made_from_the_async_one() -> None:
    """Run `python -m tests.unasync` if this fails."""
    for name, twin in TWINS.items():
        assert (FOLDER / twin).read_text(encoding="utf-8") == plain_half(name)


def test_both_have_the_same_methods() -> None:
    """With the same arguments."""
    for kind in ("StoredObject", "Store", "Transaction", "Snapshot"):
        for name, method in inspect.getmembers(getattr(store, kind), inspect.isfunction):
            twin = getattr(getattr(blocking, kind), name)
            assert list(inspect.signature(twin).parameters) == list(inspect.signature(method).parameters)


def test_objects_transactions_and_the_past() -> None:
    """As in `async` functions."""
    with boki.testing.blocking_context() as ctx:
        accounts = Store(ctx)
        a = accounts.object("a")
        a.set("n", 10)
        then = a.version()
        assert a.increment("n", key="k") == a.increment("n", key="k") == 11
        with pytest.raises(WrongShape):
            a.set("n.m", 1)

        @accounts.transactional
        def move(txn: Transaction, amount: int) -> int:
            left: int = txn.object("a").increment("n", -amount)
            txn.object("b").increment("n", amount)
            return left

        assert move(3) == 8
        with pytest.raises(ConflictError), accounts.transaction() as txn:
            txn.object("c").set("n", txn.object("a").get("n"))
            a.increment("n")
        assert [version.value["n"] for version in accounts.history("a")] == [10, 11, 8, 9]
        assert accounts.at(then).object("a").get("n") == 10
        fork = accounts.fork("copy")
        fork.object("a").set("n", 0)
        assert (a.get("n"), fork.object("a").get("n")) == (9, 0)


def test_objects_are_saved() -> None:
    """Before the call that made them large enough returns."""
    with boki.testing.blocking_context() as ctx:
        for _ in range(SAVE_AFTER):
            Store(ctx).object("x").increment("n")
        assert len(ctx.logbook.read("!oc:x").records) == 1
        ctx.logbook.session.shared(BlockingMemory).forget()
        assert Store(ctx).object("x").get("n") == SAVE_AFTER


def test_threads_take_turns_between_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one decides, no other one changes what both remember; while one waits for the log, others may."""
    free: dict[str, set[bool]] = {"deciding": set(), "waiting": set()}

    def note(when: str, memory: BlockingMemory) -> None:
        def look() -> None:
            is_free = memory.lock.acquire(blocking=False)
            free[when].add(is_free)
            if is_free:
                memory.lock.release()

        other = Thread(target=look)
        other.start()
        other.join()

    with boki.testing.blocking_context() as ctx:
        memory, take, read = ctx.logbook.session.shared(BlockingMemory), Row.take, LogBook.read

        def noted_take(row: Row, page: Page) -> None:
            note("deciding", memory)
            take(row, page)

        def noted_read(book: LogBook, *args: Any, **kwargs: Any) -> Page:
            note("waiting", memory)
            return read(book, *args, **kwargs)

        monkeypatch.setattr(Row, "take", noted_take)
        monkeypatch.setattr(LogBook, "read", noted_read)
        assert Store(ctx).object("x").increment("n") == 1
        assert Store(ctx).object("x").get("n") == 1
    assert free == {"deciding": {False}, "waiting": {True}}
