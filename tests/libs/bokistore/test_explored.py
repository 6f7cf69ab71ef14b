"""Transactions in every order of their operations, with lost answers and processes that die between any two of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from boki import BokiError
from boki.libs.bokistore.queries import WHOLE
from boki.libs.bokistore.reading import Reader
from boki.libs.bokistore.records import UNKNOWN_AUTHOR
from boki.libs.bokistore.refusals import ConflictError
from boki.libs.bokistore.transactions import Transaction
from boki.libs.bokistore.updates import Set
from boki.libs.bokistore.views import Rows
from boki.libs.fold.steps import Steps
from boki.testing.folds import World, explore
from tests.libs.bokistore.interleaving import new_nonce

BOOK = "test"


def transfer(key: str) -> Callable[[], Steps[tuple[int, int]]]:
    """Move one from `a` to `b`, once under the key; what was read of both. Each life is a process of its own."""

    def begin() -> Steps[tuple[int, int]]:
        transaction = Transaction(Reader(Rows(), BOOK), new_nonce(), UNKNOWN_AUTHOR, key)
        yield from transaction.begin(fresh=True)
        a = amount((yield from transaction.look("a", WHOLE)))
        b = amount((yield from transaction.look("b", WHOLE)))
        yield from transaction.change("a", Set((), b"%d" % (a - 1)))
        yield from transaction.change("b", Set((), b"%d" % (b + 1)))
        yield from transaction.commit()
        return a, b

    return begin


def amount(value: Any) -> int:
    """Of an account, which need not be there."""
    return value if isinstance(value, int) else 0


def balances(world: World) -> tuple[int, int]:
    """Both accounts, by a process that has seen nothing before."""

    def read() -> Steps[tuple[int, int]]:
        reader = Reader(Rows(), BOOK)
        a, _ = yield from reader.catch_up("a")
        b, _ = yield from reader.catch_up("b")
        return amount(a.newest.value), amount(b.newest.value)

    work, answer = read(), None
    while True:
        try:
            answer = world.answer(work.send(answer))
        except StopIteration as end:
            found: tuple[int, int] = end.value
            return found


def check(world: World) -> None:
    """Nothing is lost between the accounts, each key counts once, and no transaction has seen half of another."""
    a, b = balances(world)
    assert a + b == 0, f"a is {a}, and b is {b}"
    done = [found for found in world.results.values() if not isinstance(found, BokiError)]
    assert len(done) <= b <= len(world.results), f"{len(done)} transfers have ended, and b is {b}"
    for seen_a, seen_b in done:
        assert seen_a + seen_b == 0, f"a transaction has seen a as {seen_a} and b as {seen_b}"
    for error in world.results.values():
        if isinstance(error, ConflictError):
            assert error.outcome == "not_applied"


def test_transfers_are_atomic_and_count_once_in_all_orders() -> None:
    """Two at once, one of which may be killed, or lose a request or an answer, anywhere."""
    assert explore([transfer("one"), transfer("two")], check, most_switches=1) > 100


def test_a_transaction_without_conditions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that read the same balances would write the same ones: the check above sees it."""
    monkeypatch.setattr(Transaction, "conditions", lambda _: [])
    with pytest.raises(AssertionError, match="2 transfers have ended, and b is 1"):
        explore([transfer("one"), transfer("two")], check, most_switches=1)


def test_one_transfer_that_is_killed_twice_counts_once() -> None:
    """And says the same as if it had never died."""
    assert explore([transfer("one")], check, most_faults=2) > 100
