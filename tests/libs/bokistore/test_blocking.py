"""The store of plain functions: the same bodies, driven by calls that block."""

from __future__ import annotations

import inspect

import pytest

import boki.testing
from boki.libs.bokistore import ConflictError, WrongShape, blocking, store
from boki.libs.bokistore.blocking import Store, Transaction
from boki.libs.bokistore.memory import BlockingMemory
from boki.libs.bokistore.reading import SAVE_AFTER
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
