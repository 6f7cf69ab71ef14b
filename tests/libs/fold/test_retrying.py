"""Repeating by `error.outcome`: what may be repeated, what must be, and what an error says after a lost answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from boki import BokiError, ConditionFailed, ConnectionLost, InvalidArgument, Overloaded, Unavailable
from boki.extending import uncertain
from boki.libs.fold.retrying import Repetition, until_answered, until_decided
from boki.retry import Backoff

BRIEF = Backoff(first_s=0, longest_s=0, tries=4)
LOST = ConnectionLost("the answer never came")
AWAY = Unavailable("no quorum")
REFUSED = InvalidArgument("no")
MOVED = ConditionFailed("another was faster", actual_seqnum=7)


def failing(*errors: BokiError) -> Callable[[], Awaitable[int]]:
    """Work that fails with these errors in turn, and then returns how often it was tried."""
    left = list(errors)
    tries = 0

    async def work() -> int:
        nonlocal tries
        tries += 1
        if left:
            raise left.pop(0)
        return tries

    return work


def test_reads_are_repeated_while_the_error_may_pass() -> None:
    """And raised when it will not, or when the tries are used up."""
    assert asyncio.run(until_answered(failing(LOST, AWAY), backoff=BRIEF)) == 3
    with pytest.raises(InvalidArgument):
        asyncio.run(until_answered(failing(LOST, REFUSED), backoff=BRIEF))
    with pytest.raises(Unavailable) as raised:
        asyncio.run(until_answered(failing(LOST, LOST, LOST, AWAY), backoff=BRIEF))
    assert raised.value.outcome == "not_applied"  # a read applies nothing


def test_an_append_is_not_given_up_in_doubt() -> None:
    """After a lost answer a refusal that may pass is repeated; without doubt an impatient caller is told at once."""
    assert asyncio.run(until_decided(failing(LOST, AWAY), backoff=BRIEF, is_patient=False)) == 3
    assert asyncio.run(until_decided(failing(AWAY), backoff=BRIEF)) == 2
    with pytest.raises(Unavailable):
        asyncio.run(until_decided(failing(AWAY), backoff=BRIEF, is_patient=False))


@pytest.mark.parametrize("last", [REFUSED, Overloaded("full", retryable=False), AWAY])
def test_a_refusal_after_a_lost_answer_says_that_nobody_knows(last: BokiError) -> None:
    """The earlier try may have been carried out, whatever is said of this one."""
    work = failing(LOST, LOST, LOST, last)
    with pytest.raises(type(last)) as raised:
        asyncio.run(until_decided(work, backoff=BRIEF))
    assert raised.value.outcome == "unknown"
    assert last.outcome == "not_applied"  # the original is as it was


def test_the_decision_of_the_log_is_raised_as_it_is() -> None:
    """`ConditionFailed` says what stands there now, which may be the earlier try of this very append."""
    with pytest.raises(ConditionFailed) as raised:
        asyncio.run(until_decided(failing(LOST, MOVED), backoff=BRIEF))
    assert (raised.value.outcome, raised.value.actual_seqnum) == ("not_applied", 7)


def test_pauses_grow_to_a_bound_and_are_drawn_apart() -> None:
    """Each is at most twice the one before; the jitter takes away at most its part, and only if it is drawn."""
    backoff = Backoff(first_s=1, longest_s=5, jitter=0.5)
    repetition = Repetition(backoff)
    assert [repetition.failed(AWAY) for _ in range(5)] == [1, 2, 4, 5, 5]
    rng = Random(1)
    drawn = [backoff.pause_s(2, rng.random()) for _ in range(100)]
    assert 1 <= min(drawn) < 1.1
    assert 1.9 < max(drawn) <= 2


def test_only_a_definite_error_is_made_uncertain() -> None:
    """An error that is uncertain, or of a function that ran, stays itself."""
    assert uncertain(LOST) is LOST
    assert uncertain(REFUSED).outcome == "unknown"
    assert isinstance(uncertain(REFUSED), InvalidArgument)
