"""A transaction that begins with a change of what its process alone has changed lately does not ask for news first."""

from __future__ import annotations

from typing import Any

import pytest

from boki.libs.bokistore import ConflictError
from boki.libs.bokistore.json_values import MISSING
from boki.libs.bokistore.queries import ValueAt
from boki.libs.bokistore.transactions import Transaction
from boki.libs.bokistore.updates import Increment, Set
from boki.libs.bokistore.views import OWN_STREAK
from boki.libs.fold.outbox import Outbox
from boki.libs.fold.steps import Append, Compare, Step, Steps, drive
from tests.libs.bokistore.interleaving import Process, logbook

HITS = ("hits",)


def move(txn: Transaction, *names: str) -> Steps[Any]:
    """Count up in each of these objects, and commit."""
    for name in names:
        yield from txn.change(name, Increment(HITS, 1))
    yield from txn.commit()


def guessing(process: Process) -> Transaction:
    """A transaction that ends here, and so may guess."""
    txn = process.begin()
    txn.may_guess = True
    return txn


def asked(process: Process, steps: Steps[Any]) -> list[type[Step]]:
    """What it asks of the log, in order."""
    found: list[type[Step]] = []

    def carry_out(step: Step) -> object:
        found.append(type(step))
        return process.run(_alone(step))

    drive(steps, carry_out)
    return found


def _alone(step: Step) -> Steps[Any]:
    return (yield step)


def owner_of(*names: str) -> Process:
    """A process that has changed these objects together, and nobody else has."""
    process = Process(logbook())
    for _ in range(OWN_STREAK):
        process.run(move(guessing(process), *names))
    return process


def test_objects_of_ones_own_are_changed_with_one_request() -> None:
    """The commit alone is asked of the log."""
    process = owner_of("a", "b")
    assert asked(process, move(guessing(process), "a", "b")) == [Append]
    assert process.run(process.direct.look("b", ValueAt(HITS))) == OWN_STREAK + 1


def test_a_guess_ends_where_others_write() -> None:
    """What others have changed before the transaction began is no conflict: it is read as it is now, with the rest."""
    process = owner_of("a")
    other = Process(process.book)
    other.run(move(guessing(other), "c"))
    txn = guessing(process)
    process.run(txn.change("a", Increment(HITS, 1)))
    assert process.run(txn.look("c", ValueAt(HITS))) == 1
    process.run(txn.commit())
    assert process.run(process.direct.look("a", ValueAt(HITS))) == OWN_STREAK + 1


def test_another_object_is_read_as_of_the_same_moment() -> None:
    """A wrong guess stays one: all that is seen was true together, and the commit is refused."""
    process = owner_of("a")
    other = Process(process.book)
    other.run(move(guessing(other), "a", "c"))
    txn = guessing(process)
    process.run(txn.change("a", Increment(HITS, 1)))
    assert process.run(txn.look("c", ValueAt(HITS))) is MISSING
    with pytest.raises(ConflictError, match="a"):
        process.run(txn.commit())


@pytest.mark.parametrize("first", ["look", "fresh"])
def test_what_may_only_read_asks_first(first: str) -> None:
    """A transaction that begins with a read may end without a commit; one that is to be fresh must not guess."""
    process = owner_of("a")
    txn = guessing(process)
    if first == "fresh":
        process.run(txn.begin(fresh=True))
        assert Compare in asked(process, txn.change("a", Increment(HITS, 1)))
    else:
        assert asked(process, txn.look("a", ValueAt(HITS))) == [Compare]


def test_a_wrong_guess_is_a_conflict_and_the_next_one_asks() -> None:
    """The result of the change was another one; nothing was changed by it."""
    process = owner_of("a", "b")
    other = Process(process.book)
    other.run(move(guessing(other), "b"))
    with pytest.raises(ConflictError, match="b"):
        process.run(move(guessing(process), "a", "b"))
    assert Compare not in asked(process, process.direct.look("b", ValueAt(HITS)))
    process.run(move(guessing(process), "a", "b"))
    assert process.run(process.direct.look("a", ValueAt(HITS))) == OWN_STREAK + 1
    assert process.run(process.direct.look("b", ValueAt(HITS))) == OWN_STREAK + 2


def test_a_wrong_guess_that_nothing_depends_on_is_committed() -> None:
    """Its actions come to the same on the new versions."""
    process = owner_of("a")
    other = Process(process.book)
    other.run(move(guessing(other), "a"))
    txn = guessing(process)
    process.run(txn.change("a", Set(("name",), b'"Ada"')))
    process.run(txn.commit())
    assert process.run(process.direct.look("a", ValueAt(("name",)))) == "Ada"
    assert process.run(process.direct.look("a", ValueAt(HITS))) == OWN_STREAK + 1


@pytest.mark.parametrize("ends", ["gives up", "undoes it"])
def test_a_transaction_that_is_given_up_has_seen_what_is_so(ends: str) -> None:
    """Without a commit nothing proves the guess: the end asks, and a wrong one is a conflict."""
    process = owner_of("a")
    for is_right in (True, False):
        if not is_right:
            other = Process(process.book)
            other.run(move(guessing(other), "a"))
        txn = guessing(process)
        if ends == "undoes it":
            mark = txn.mark()
            process.run(txn.change("a", Increment(HITS, 1)))
            txn.go_back(mark, 0)
        else:
            process.run(txn.change("a", Increment(HITS, 1)))
        end = txn.commit if ends == "undoes it" else txn.give_up
        if is_right:
            process.run(end())
        else:
            with pytest.raises(ConflictError):
                process.run(end())


def test_versions_that_were_never_there_together_are_no_guess() -> None:
    """One of two objects was changed alone since both were: where it is known, the other one may have changed."""
    process = owner_of("a", "b")
    process.run(process.direct.change("b", Increment(HITS, 1)))
    assert asked(process, move(guessing(process), "a", "b")) == [Compare, Append]


def test_what_is_handed_over_asks_first() -> None:
    """Whoever commits it with records of its own, as a workflow does with its journal, makes it again when that is
    refused: with the same guess, it would be refused forever.
    """
    process = owner_of("a")
    assert asked(process, process.begin().change("a", Increment(HITS, 1))) == [Compare]
    txn = guessing(process)
    process.run(txn.change("a", Increment(HITS, 1)))
    with pytest.raises(AssertionError):
        txn.hand_over(Outbox(process.book))


def test_an_update_under_way_is_no_guess() -> None:
    """Its place in the row is not known yet."""
    process = owner_of("a")
    updating = process.direct.change("a", Increment(HITS, 1))
    assert isinstance(next(updating), Append)
    assert asked(process, guessing(process).change("a", Increment(HITS, 1))) == [Compare]
    updating.close()
