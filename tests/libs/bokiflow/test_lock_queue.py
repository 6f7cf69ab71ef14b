"""The queue of a lock is a pure fold: it decides who holds the lock, and whose requests count."""

from __future__ import annotations

from boki.libs.bokiflow.blocking import flow as blocking_flow
from boki.libs.bokiflow.locks.state import Freed, LockNote, LockQueue, LockRequest, Queued, Wanted

INSIDE: list[str] = []
blocking_nap = blocking_flow.sleep
TOKENS: list[int] = []


def asks(name: str, age: int) -> LockRequest:
    return LockRequest(name, f"call of {name}", age, name)


def folded(*notes: LockNote) -> LockQueue:
    queue = LockQueue()
    for seqnum, one in enumerate(notes, 1):
        queue.apply(seqnum, one)
    return queue


def test_the_fold_decides_who_holds_the_lock() -> None:
    """First come, first served; the record that changes the holder names the next one, and whom it concerns."""
    queue = folded()
    decided, told = queue.decided(Wanted("k", asks("a", 5)))
    assert (decided.granted, decided.wounded, [one.id for one in told]) == ("a", "", ["a"])
    queue = folded(Wanted("k", asks("a", 5)), Wanted("k", asks("b", 9)), Wanted("k", asks("c", 7)))
    decided, told = queue.decided(Freed("k", "a"))
    assert (decided.granted, decided.wounded, [one.id for one in told]) == ("b", "b", ["b"])
    decided, told = queue.decided(Freed("k", "b"))
    assert (decided.granted, [one.id for one in told]) == ("", ["c"]), "it watches another one now"
    decided, told = queue.decided(Wanted("k", asks("d", 1)))
    assert (decided.wounded, [one.id for one in told]) == ("a", ["a"]), "an older one waits for it"
    decided, told = folded(*[Wanted("k", asks(name, age)) for name, age in (("a", 5), ("b", 3))]).decided(
        Wanted("k", asks("c", 1))
    )
    assert decided.wounded == "", "that is no news"


def test_a_request_of_an_earlier_life_leaves_the_queue() -> None:
    """A workflow that was killed and started again does not wait for itself."""
    later = LockRequest("a2", "call of a", 9, "a")
    queue = folded(Wanted("k", asks("a", 5)), Wanted("k", asks("b", 6)))
    decided, _ = queue.decided(Wanted("k", later))
    assert decided.granted == "b"
    assert [one.id for one in queue.after(decided)] == ["b", "a2"]
    assert folded(Queued((later,)), None or Freed("k", "b")).requests == [later]
