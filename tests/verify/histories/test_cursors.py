"""Whoever waits for a record is woken by it, and what was trimmed is told as that."""

from __future__ import annotations

import pytest

from boki.verify.histories.cursors import Wakes
from boki.verify.histories.history import Getting, Reading, Refused, Seen, Shown, Told, Trimming
from boki.verify.histories.sessions import MonotonicReads
from tests.verify.histories.test_checkers import MAX, Clients

POLL = Reading("t", start=21, stop=50, wait_us=10_000)


@pytest.fixture
def clients() -> Clients:
    found = Clients()
    found.append("one", "y", 20, "t", start=10, end=20)
    found.append("one", "z", 30, "t", start=1_000, end=1_100)
    return found


def test_a_poll_that_goes_on_waiting_is_noticed(clients: Clients) -> None:
    """It may take a little longer than the append that it waits for, and not much longer."""
    shown = Shown((Seen(30, "z", ("t",)),), 31)
    clients.call("two", POLL, shown, start=100, end=1_200)
    assert clients.broken(Wakes(100)) == []
    clients.call("two", POLL, shown, start=100, end=1_201)
    assert len(clients.broken(Wakes(100))) == 1


def test_a_poll_that_ends_with_nothing_is_noticed_if_there_was_something(clients: Clients) -> None:
    """Unless it was not asked for, or trimmed."""
    clients.call("two", Reading("t", start=31, wait_us=10_000), Shown((), 31), start=100, end=10_100)
    clients.call("two", Reading("t", start=21, stop=30, wait_us=10_000), Shown((), 30), start=100, end=10_100)
    assert clients.broken(Wakes(100)) == []
    clients.call("two", POLL, Shown((), 50), start=100, end=10_100)
    assert len(clients.broken(Wakes(100))) == 1
    clients.call("one", Trimming(MAX, "t"), Told(), start=1_500, end=1_600)
    assert clients.broken(Wakes(100)) == []


def test_what_was_trimmed_is_not_unknown(clients: Clients) -> None:
    """A record that a session has seen is found, or is trimmed; nobody may say that it never was."""
    clients.call("two", Reading("t", stop=40, limit=9), Shown((Seen(20, "y", ("t",)), Seen(30, "z", ("t",))), 31))
    clients.call("one", Trimming(MAX, "t"), Told())
    clients.call("two", Getting(20), Refused("trimmed", "not_applied"))
    assert clients.broken(MonotonicReads()) == []
    clients.call("two", Getting(20), Refused("not_found", "not_applied"))
    assert len(clients.broken(MonotonicReads())) == 1
