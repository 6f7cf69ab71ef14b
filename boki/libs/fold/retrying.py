"""Repeating what failed, as `error.outcome` allows, with backoff and jitter.

An error says whether it happened (`outcome`) and whether the same request may succeed later (`retryable`). From these
two follow the only two loops that a library needs:

- `until_answered` for what changes nothing, or nothing more the second time: reads, trims, appends under a key.
- `until_decided` for an append under a condition. Once an answer was lost, "refused" no longer means "did not happen",
  so it continues until the log has decided.

`Repetition` is the decision alone, pure, for blocking code, generators and tests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, TypeVar

from boki import BokiError, ConditionFailed
from boki.errors import uncertain
from boki.retry import Backoff

T = TypeVar("T")

_log = logging.getLogger("boki.libs")


PATIENT: Final = Backoff()
"""Without limit: the deadline of the call, or a cancellation, ends it."""


class Repetition:
    """The tries of one piece of work. `failed` is told of each error and decides."""

    def __init__(self, backoff: Backoff = PATIENT, *, decides: bool = False, is_patient: bool = True) -> None:
        """`decides`: the work is an append that must not be given up in doubt. `is_patient`: a refusal that may pass
        (no quorum, no room) is waited for; otherwise it is raised while it is certain that nothing was appended.
        """
        self._backoff = backoff
        self._decides = decides
        self._is_patient = is_patient
        self.tries = 0
        self.is_doubtful = False
        """Whether an earlier try may have been carried out."""

    def failed(self, error: BokiError, drawn: float = 0.0) -> float:
        """Seconds to pause before the next try; raises the error if there is none.

        The error says `outcome="unknown"` if an earlier try may have been carried out, unless it is the log's own
        decision (`ConditionFailed`): then look who was faster, it may have been that try.
        """
        self.tries += 1
        may_pass = error.retryable and (self._is_patient or self.is_doubtful)
        if self._decides:
            self.is_doubtful = self.is_doubtful or error.outcome == "unknown"
            may_pass = may_pass or error.outcome == "unknown"
        if may_pass and self.tries < self._backoff.tries:
            return self._backoff.pause_s(self.tries, drawn)
        if self.is_doubtful and not isinstance(error, ConditionFailed):
            raise uncertain(error) from error
        raise error


def as_told(error: Exception, what: str) -> BokiError:
    """The error as callers hear of it whose request another task made for them: a fault, too, is an error of Boki."""
    return error if isinstance(error, BokiError) else BokiError(f"{what} failed: {error!r}", outcome="unknown")


async def until_answered(
    work: Callable[[], Awaitable[T]],
    what: str = "a read",
    backoff: Backoff = PATIENT,
    *,
    rng: Random | None = None,
) -> T:
    """Do what may be repeated without harm, until it succeeds or is refused permanently.

    `what` names it in the log. `rng` draws the jitter; without it pauses have none, so that tests and simulations are
    repeatable.
    """
    return await _repeat(work, what, Repetition(backoff), rng)


async def until_decided(
    append: Callable[[], Awaitable[T]],
    what: str = "an append",
    backoff: Backoff = PATIENT,
    *,
    is_patient: bool = True,
    rng: Random | None = None,
) -> T:
    """Append under a condition or a key until the log has decided: what it returned, or the refusal.

    `ConditionFailed` may mean that an earlier try of this very append was carried out: read what stands there. With
    `is_patient=False` a refusal that may pass is raised while no try can have been carried out. For the rest see
    `until_answered`.
    """
    return await _repeat(append, what, Repetition(backoff, decides=True, is_patient=is_patient), rng)


async def _repeat(work: Callable[[], Awaitable[T]], what: str, repetition: Repetition, rng: Random | None) -> T:
    while True:
        try:
            return await work()
        except BokiError as error:
            pause_s = repetition.failed(error, rng.random() if rng is not None else 0.0)
            _log.info("repeating %s: %s", what, error)
        await asyncio.sleep(pause_s)
