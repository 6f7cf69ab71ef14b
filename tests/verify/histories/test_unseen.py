"""Records that nobody ever saw: their appender was not told, and trims took or hid them before they were read."""

from __future__ import annotations

import pytest

from boki.verify.histories.appends import Conditions
from boki.verify.histories.history import Appending, Condition, Refused, Told, Trimming, Written
from tests.verify.histories.test_checkers import MAX, Clients


@pytest.fixture
def clients() -> Clients:
    found = Clients()
    found.append("one", "x", 10, "t")
    found.append("one", "y", 20, "t")
    return found


def test_a_condition_on_a_record_that_nobody_ever_saw_may_have_held(clients: Clients) -> None:
    """Its appender died before it was told, and a trim took it before it was read (simulator, seed 339)."""
    clients.call("dead", Appending((Written("never told", ("t",)),)), None)
    clients.append("one", "z", 30, "t", when=(Condition("t", 25),))
    assert len(clients.broken(Conditions())) == 1
    clients.call("one", Trimming(MAX, "t"), Told())
    assert clients.broken(Conditions()) == []


def test_a_refusal_may_name_a_record_that_nobody_ever_saw(clients: Clients) -> None:
    """A trim of the whole book hides a system tag's record, which it spares, in the end (simulator, seed 780)."""
    unheard = Appending((Written("unheard", ("!s",)),))
    refused = Refused("condition_failed", "not_applied", 25)
    clients.call("one", Appending((Written("a", ("!s",)),), (Condition("!s", 0),)), refused, start=200)
    clients.call("two", unheard, Refused("deadline_exceeded", "unknown"), start=210)
    assert len(clients.broken(Conditions())) == 1
    clients.call("one", Trimming(MAX, "t"), Told(), start=220)
    assert len(clients.broken(Conditions())) == 1
    clients.call("one", Trimming(MAX), Told(), start=230)
    assert len(clients.broken(Conditions())) == 1  # it was asked for after the refusal
    clients.call("three", unheard, None, start=190)
    assert clients.broken(Conditions()) == []


def test_a_refusal_may_name_a_record_that_a_trim_of_its_tag_took_unseen(clients: Clients) -> None:
    """The append's outcome is unknown, somebody loses to it, and it is trimmed before anybody reads (seed 5080)."""
    unheard = Appending((Written("unheard", ("t",)),))
    refused = Refused("condition_failed", "not_applied", 25)
    clients.call("one", unheard, Refused("deadline_exceeded", "unknown"), start=100)
    clients.call("two", Appending((Written("a", ("t",)),), (Condition("t", 0),)), refused, start=110)
    assert len(clients.broken(Conditions())) == 1
    clients.call("two", Trimming(MAX, "t"), Told(), start=2_000)
    assert clients.broken(Conditions()) == []


def test_a_refusal_may_name_a_record_that_a_deletion_took_unseen_and_whose_key_was_used_again(clients: Clients) -> None:
    """Its payload stands elsewhere by now (simulator, seed 6712); without a key, or a deletion, it could not."""
    unheard = Appending((Written("again", ("t",)),), (), "k")
    refused = Refused("condition_failed", "not_applied", 25)
    clients.call("one", unheard, Refused("deadline_exceeded", "unknown"), start=100)
    clients.call("two", Appending((Written("a", ("t",)),), (Condition("t", 0),)), refused, start=110)
    clients.append("one", "again", 40, "t", key="k", start=3_000)
    assert len(clients.broken(Conditions())) == 1
    clients.call("two", Trimming(MAX), Told(), start=2_000)
    assert len(clients.broken(Conditions())) == 1  # a trim leaves the keys
    clients.call("two", Trimming(MAX, everything=True), Told(), start=2_100)
    assert clients.broken(Conditions()) == []
