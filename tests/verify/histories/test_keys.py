"""Keys of appends: what they may do, and what their checkers must not accuse."""

from __future__ import annotations

import pytest

from boki.verify.histories.appends import Keys
from boki.verify.histories.history import Appending, Condition, Ordered, Refused, Seen, Told, Trimming, Written
from boki.verify.histories.order import NothingTwice
from tests.verify.histories.test_checkers import MAX, Clients, X, Y


@pytest.fixture
def clients() -> Clients:
    found = Clients()
    found.append("one", "x", 10, "t")
    found.append("one", "y", 20, "t")
    return found


def test_a_key_that_was_used_is_not_refused_for_its_conditions(clients: Clients) -> None:
    """They held when it was carried out, and hold no more; whoever repeats it gets what it came to."""
    again = Appending((Written("z", ("t",)),), (Condition("t", 20),), "k")
    refused = Refused("condition_failed", "not_applied", 30)
    clients.call("one", again, Refused("deadline_exceeded", "unknown"))
    clients.call("one", again, refused)
    assert clients.broken(Keys()) == []  # it may have been too late
    clients.read("two", X, Y, Seen(30, "z", ("t",)))
    assert clients.broken(Keys()) == []
    clients.call("one", again, refused)
    assert len(clients.broken(Keys())) == 1
    clients.call("two", Trimming(MAX, everything=True), Told())
    assert clients.broken(Keys()) == []


def test_a_key_may_be_used_again_once_its_book_was_deleted(clients: Clients) -> None:
    """A trim of the whole book is not enough: keys outlive it."""
    clients.append("one", "z", 30, key="k")
    clients.call("one", Trimming(MAX, everything=True), Told())
    clients.append("one", "w", 40, key="k")
    assert clients.broken(Keys()) == clients.broken(NothingTwice()) == []
    clients.call("one", Trimming(MAX), Told())
    clients.append("one", "w", 50, key="k")
    assert clients.broken(NothingTwice())
    assert clients.broken(Keys())


@pytest.mark.parametrize("key", ["k", None])
def test_a_group_may_stand_anew_under_its_key_once_its_book_was_deleted(clients: Clients, key: str | None) -> None:
    """Of the first one it may be that only a part was ever seen (simulator, seed 5290)."""
    group = Appending((Written("p"), Written("q")), (), key)
    clients.call("one", group, Refused("connection_lost", "unknown"))
    clients.read("two", X, Y, Seen(30, "p"))
    clients.call("one", group, Ordered((40, 41)))
    assert clients.broken(NothingTwice())
    clients.call("one", Trimming(MAX, everything=True), Told())
    assert bool(clients.broken(NothingTwice())) == (key is None)


@pytest.mark.parametrize("key", ["k", None])
def test_a_repetition_may_be_refused_once_its_first_use_was_deleted(clients: Clients, key: str | None) -> None:
    """A gateway repeats a request under a key whose answer was lost. If its book was deleted meanwhile, the condition
    decides again, though somebody has seen the record (simulator, seed 704780).
    """
    append = Appending((Written("p", ("t",)),), (Condition("t", 20),), key)
    clients.call("one", append, Refused("condition_failed", "not_applied", 0))
    clients.read("two", X, Y, Seen(30, "p", ("t",)))
    assert clients.broken(NothingTwice())
    clients.call("two", Trimming(MAX, everything=True), Told())
    assert bool(clients.broken(NothingTwice())) == (key is None)
