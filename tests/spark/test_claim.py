"""Which run of a pipeline may write: one at a time, and nobody waits for the dead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from boki.errors import ConnectionLost, Unavailable
from boki.log.operations import Append, Operation, Read
from boki.spark.claim import ALIVE_TAG, KNOCK_TAG, RUN_TAG, Claim, Doorkeeper, Run
from tests.spark.memory_gateway import MemoryGateway, MemorySystem, once, raising

BOOK = "ingest:p"


def claim_of(system: MemorySystem, number: int) -> Claim:
    return Claim(system.gateway(), BOOK, "p", Run(id=f"{number}" * 32, host="here", pid=number))


def gateway_of(claim: Claim) -> MemoryGateway:
    assert isinstance(claim.gateway, MemoryGateway)
    return claim.gateway


def waits_for_an_answer(operation: Operation) -> bool:
    return isinstance(operation, Read) and operation.tag == ALIVE_TAG + "p"


def is_append(operation: Operation) -> bool:
    return isinstance(operation, Append)


def test_one_run_after_the_other_does_not_knock() -> None:
    """Who ends gives the claim back, so the next run asks nobody; one claim is kept, whatever comes and goes."""
    system = MemorySystem()
    for number in range(5):
        claim = claim_of(system, number)
        claim.take()
        assert claim.append([(b"note", ("t",))], "n")
        claim.end(claim.gateway)
    assert system.records(BOOK, KNOCK_TAG + "p") == []
    assert len(system.records(BOOK, RUN_TAG + "p")) == 1


def test_a_run_that_lives_is_named_to_the_next() -> None:
    """The newcomer knocks, is answered, and goes; the other's claim is as good as before. Other pipelines are free."""
    system = MemorySystem()
    first, second = claim_of(system, 1), claim_of(system, 2)
    first.take()
    gateway_of(second).before.append(once(first.answer, waits_for_an_answer))
    with pytest.raises(
        Unavailable, match=r"'p' is being run by process 1 on here \(run 11111111\): wait until"
    ) as told:
        second.take()
    assert told.value.retryable
    first.check()
    assert first.append([(b"note", ("t",))], "n")
    other = Claim(system.gateway(), BOOK, "other", Run.new())
    other.take()


def test_a_run_that_is_dead_is_taken_over_from() -> None:
    """Nobody answers, so the newcomer has the claim; should the other live after all, whatever it notes is refused,
    and it is told by whom it was replaced. What two have knocked with is taken away.
    """
    system = MemorySystem()
    first, second = claim_of(system, 1), claim_of(system, 2)
    first.take()
    first.append([(b"note", ("t",))], "n")
    second.take()
    second.append([(b"mine", ("t",))], "n")
    for late in (first.check, first.answer, lambda: first.append([(b"late", ("t",))], "late")):
        with pytest.raises(Unavailable, match="was taken over by process 2 on here") as told:
            late()
        assert not told.value.retryable
    assert [record.data for record in system.records(BOOK, "t")] == [b"note", b"mine"]
    third = claim_of(system, 3)
    third.take()
    assert len(system.records(BOOK, KNOCK_TAG + "p")) == 1, "the last one's stays until somebody knocks again"
    assert len(system.records(BOOK, RUN_TAG + "p")) == 1


def test_of_two_newcomers_one_gets_the_claim() -> None:
    """Both have knocked without an answer: the claim is conditional, so the slower one looks again, and finds the other
    alive.
    """
    system = MemorySystem()
    claim_of(system, 1).take()
    quick, slow = claim_of(system, 2), claim_of(system, 3)
    gateway_of(slow).after.append(once(quick.take, waits_for_an_answer))
    gateway_of(slow).before.append(
        lambda operation: quick.answer() if waits_for_an_answer(operation) and quick._seqnum else None
    )
    with pytest.raises(Unavailable, match="is being run by process 2"):
        slow.take()
    quick.check()


def test_an_answer_that_was_lost_is_asked_for_again() -> None:
    """A claim and a note whose acknowledgement is lost stand once, when they are repeated under their keys."""
    system = MemorySystem()
    claim = claim_of(system, 1)
    gateway = gateway_of(claim)
    gateway.after.append(raising([ConnectionLost("gone")], is_append))
    with pytest.raises(ConnectionLost):
        claim.take()
    again = claim_of(system, 1)
    again.take()  # knows itself: it need not knock
    gateway_of(again).after.append(raising([ConnectionLost("gone")], is_append))
    with pytest.raises(ConnectionLost):
        again.append([(b"note", ("t",))], "n")
    again.append([(b"note", ("t",))], "n")
    assert len(system.records(BOOK, "t")) == 1
    assert system.records(BOOK, KNOCK_TAG + "p") == []


def test_what_fences_outlives_a_trim_of_the_book() -> None:
    """A retention of the progress book takes no claim away: late notes are refused behind it, too."""
    system = MemorySystem()
    first, second = claim_of(system, 1), claim_of(system, 2)
    first.take()
    second.take()
    system.trim(BOOK)
    with pytest.raises(Unavailable, match="was taken over by process 2"):
        first.append([(b"late", ("t",))], "late")
    second.append([(b"mine", ("t",))], "n")
    system.delete(BOOK)
    with pytest.raises(Unavailable, match="is gone: was book 'ingest:p' deleted"):
        second.append([(b"more", ("t",))], "more")


@contextmanager
def doorkeeper(claim: Claim, gateway: MemoryGateway) -> Iterator[tuple[Doorkeeper, threading.Event]]:
    lost = threading.Event()
    keeper = Doorkeeper(claim, lambda: gateway)
    keeper.when_lost(lost.set)
    try:
        yield keeper, lost
    finally:
        keeper.close()


def test_the_doorkeeper_answers_who_knocks() -> None:
    """In a thread of its own it hears a knock, answers, and continues listening behind it."""
    system = MemorySystem()
    claim = claim_of(system, 1)
    claim.take()
    answered = threading.Semaphore(0)
    gateway_of(claim).after.append(lambda operation: answered.release() if is_append(operation) else None)
    with doorkeeper(claim, system.gateway()) as (keeper, lost):
        for knocks in range(3):
            (seqnum,) = system.append(BOOK, b"who", tags=[KNOCK_TAG + "p"])
            assert answered.acquire(timeout=30)
            assert system.records(BOOK, ALIVE_TAG + "p")[knocks].seqnum > seqnum
        assert keeper.lost is None
        assert not lost.is_set()


def test_the_doorkeeper_hears_that_it_is_too_late() -> None:
    """A run that was stopped while another knocked and took over hears of it when it continues, and is ended."""
    system = MemorySystem()
    claim, other = claim_of(system, 1), claim_of(system, 2)
    claim.take()
    other.take()
    with doorkeeper(claim, system.gateway()) as (keeper, lost):
        assert lost.wait(30)
        assert "was taken over by process 2" in str(keeper.lost)
        again = threading.Event()
        keeper.when_lost(again.set)
        assert again.is_set(), "who asks later is told at once"


def test_a_note_is_fenced_by_the_log() -> None:
    """Another run takes over between any look at the claim and the append of a note: the append itself is refused."""
    system = MemorySystem()
    claim, other = claim_of(system, 1), claim_of(system, 2)
    claim.take()
    claim.check()
    gateway_of(claim).before.append(once(other.take, is_append))
    with pytest.raises(Unavailable, match="was taken over by process 2"):
        claim.append([(b"late", ("t",))], "n")
    assert system.records(BOOK, "t") == []
