"""What is read in the end, of books and of tags: nothing is missing, nothing is there that was trimmed."""

from __future__ import annotations

import pytest

from boki.verify.histories.checkers import find_violations
from boki.verify.histories.history import Seen, Told, Trimming
from boki.verify.histories.order import NothingLost, TotalOrder
from boki.verify.histories.sessions import TrimSafety
from tests.verify.histories.test_checkers import Clients

X = Seen(10, "x", ("t", "!u"))
Y = Seen(20, "y", ("t",))


@pytest.fixture
def clients() -> Clients:
    found = Clients()
    found.append("one", "x", 10, *X.tags)
    found.append("one", "y", 20, *Y.tags)
    return found


def test_a_record_whose_tags_are_all_trimmed_does_not_rise_again(clients: Clients) -> None:
    """A tag that is left keeps it in its book, and in the row of that tag."""
    clients.call("one", Trimming(30, "t"), Told())
    clients.read_out(X)
    clients.read_out(X, tag="!u")
    clients.read_out(tag="t")
    assert find_violations(clients.history) == []
    clients.read_out(X, tag="t")
    assert len(clients.broken(TrimSafety())) == 1
    clients.read_out(X, Y)
    assert len(clients.broken(TrimSafety())) == 2
    clients.call("two", Trimming(15, "!u"), Told())
    clients.read_out(X)
    assert len(clients.broken(TrimSafety())) == 3


def test_a_trim_of_the_book_spares_the_row_of_a_system_tag(clients: Clients) -> None:
    """There, and nowhere else, the record is still found."""
    clients.call("one", Trimming(30), Told())
    clients.read_out()
    clients.read_out(X, tag="!u")
    assert find_violations(clients.history) == []
    clients.read_out(X, tag="t")
    clients.read_out(X)
    assert len(clients.broken(TrimSafety())) == 2
    clients.read_out(tag="!u")
    assert len(clients.broken(NothingLost())) == 1


def test_what_is_read_of_a_tag_in_the_end_is_all_of_it(clients: Clients) -> None:
    """Nothing is missing, nothing is of another tag, and all readers agree."""
    clients.read_out(X, Y, tag="t")
    clients.read_out(X, tag="!u")
    clients.read_out(tag="v")
    assert find_violations(clients.history) == []
    clients.read_out(Y, tag="t", reader="other")
    assert len(clients.broken(NothingLost())) == 1
    assert len(clients.broken(TotalOrder())) == 1
    clients.read_out(Y, tag="v")
    assert len(clients.broken(TotalOrder())) == 3
