"""Appends that name a count: what stands, and what was refused."""

from __future__ import annotations

import pytest

from boki.verify.histories.appends import Conditions
from boki.verify.histories.counts import Counts
from boki.verify.histories.history import Appending, Condition, Refused, Told, Trimming, Written
from tests.verify.histories.test_checkers import MAX, Clients


@pytest.fixture
def clients() -> Clients:
    """Two records of the tag, at 10 and 20."""
    made = Clients()
    made.append("one", "x", 10, "t")
    made.append("two", "y", 20, "t")
    return made


def test_an_append_that_names_a_count_stands_behind_that_many(clients: Clients) -> None:
    """Trimmed records count; an append that nobody was told of may count; a deleted book may begin at 0."""
    two = Condition("t", count=2)
    clients.call("two", Trimming(MAX, "t"), Told())
    clients.append("one", "z", 30, "t", when=(two,))
    assert clients.broken(Counts()) == []
    clients.append("two", "w", 40, "t", when=(two,))
    clients.append("two", "v", 50, "t", when=(Condition("t", count=5),))
    assert len(clients.broken(Counts())) == 2
    clients.call("two", Appending((Written("lost", ("t",)),)), None, start=0)
    assert len(clients.broken(Counts())) == 1
    clients.call("one", Trimming(MAX, everything=True), None, start=0)
    assert clients.broken(Counts()) == []


def test_a_refusal_names_how_many_there_are(clients: Clients) -> None:
    """`actual_count` was right at some moment of the call, and not the expected number."""
    for actual, expected in ((2, 1), (2, 2), (1, 2), (3, 2)):
        request = Appending((Written(f"a{actual}{expected}", ("t",)),), (Condition("t", count=expected),))
        clients.call("one", request, Refused("condition_failed", "not_applied", 20, actual), start=700, end=750)
    assert len(clients.broken(Counts())) == 3
    assert clients.broken(Conditions()) == []


def test_a_trim_that_forgets_takes_with_it_what_others_have_trimmed(clients: Clients) -> None:
    """After it a refusal may say that there are none. Without it, or before the other trim, that is wrong."""
    none = Refused("condition_failed", "not_applied", 0, 0)
    request = Appending((Written("late", ("t",)),), (Condition("t", count=2),))
    clients.call("one", request, none, start=700, end=750)
    clients.call("one", Trimming(MAX, "t"), Told(), start=500, end=510)
    assert len(clients.broken(Counts())) == 1
    clients.call("two", Trimming(11, "t", forgets=True), Told(), start=400, end=410)
    assert len(clients.broken(Counts())) == 1
    clients.call("two", Trimming(11, "t", forgets=True), Told(), start=600, end=610)
    assert clients.broken(Counts()) == []
