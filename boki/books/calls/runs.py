"""The runs of a logged call, as its records describe them, and what follows from the end of one.

A run **begins** by a record, before the body is started: by the call's ``Accepted``, if it is started as soon as that
is durable, else by a ``Started``. So a run that was cut off by the loss of its engine is counted, and a call whose
policy allows one run is never started twice. A run **ends** by a record too, if it is not the last one: ``Retrying``
says what it ended with and when the next is due, so that neither is lost with the engine.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from boki.errors import CallCancelled, CallLost
from boki.log.operations import Failure
from boki.protocol.calls import Call, Outcome
from boki.retry import LOSSES_ONLY, Backoff, Retry, short_name

_REFUSED: Final = Backoff(first_s=0.1, longest_s=10.0, jitter=0.0)
MAX_NAMES: Final = 8
"""Maximum number of different errors that are counted by name."""
OTHER_ERRORS: Final = "others"
MAX_MESSAGE_CHARS: Final = 500


class Runs(msgspec.Struct, frozen=True, array_like=True):
    """All runs of a call so far. Times are the log's."""

    total: int = 0
    first_us: int = 0
    """When the first began; 0: when this record was written."""
    last_us: int = 0
    """When the last began; 0: when this record was written."""
    errors: dict[str, int] = {}
    """How many ended with which error."""
    last_error: Failure | None = None
    since_us: int = 0
    """When the round of attempts that is under way was due, after a suspension; 0: when the call was."""

    def begun(self, now_us: int) -> Runs:
        """One run more, which begins now."""
        return replace(self, total=self.total + 1, first_us=self.first_us or now_us, last_us=now_us)

    def not_begun(self) -> Runs:
        """The last run is on record, and no worker has taken it: it was none."""
        if self.total > 1:
            return replace(self, total=self.total - 1)
        return replace(self, total=0, first_us=0, last_us=0)

    def failed(self, failure: Failure) -> Runs:
        """The last run has ended with this failure."""
        name = short_name(failure)
        if name not in self.errors and len(self.errors) >= MAX_NAMES:
            name = OTHER_ERRORS
        errors = self.errors | {name: self.errors.get(name, 0) + 1}
        return replace(self, errors=errors, last_error=shortened(failure))

    def woken(self, now_us: int) -> Runs:
        """After a suspension attempts are counted, and their time is measured, from here on."""
        return replace(self, since_us=now_us)

    def timed(self, record_time_us: int) -> Runs:
        """With the time of their record where they name none."""
        if not self.total or (self.first_us and self.last_us):
            return self
        first_us, last_us = self.first_us or record_time_us, self.last_us or record_time_us
        return replace(self, first_us=first_us, last_us=last_us)


def shortened(failure: Failure) -> Failure:
    """The failure without its details, and with the start of its message."""
    text = failure.message
    if len(text) > MAX_MESSAGE_CHARS:
        text = text[: MAX_MESSAGE_CHARS - 1] + "…"
    return replace(failure, message=text, details={})


def policy_of(call: Call) -> Retry:
    """The policy that holds for the call."""
    return call.retry or LOSSES_ONLY


def is_refusal(outcome: Outcome) -> bool:
    """Whether the body was not started, for a reason that passes: no room, draining, a module that cannot be loaded."""
    failure = outcome.failure
    return failure is not None and failure.outcome == "not_applied" and failure.retryable


def refused_again_us(refusals: int) -> int:
    """Microseconds until a body is offered again, after this many refusals. It was accepted, so it will run."""
    return _REFUSED.pause_us(refusals)


def engine_lost(node: str) -> Failure:
    """How a run ended whose engine is gone."""
    return Failure.of(CallLost(f"engine {node or 'of an older version'} was lost while it ran the call"))


def cancelled(runs: int) -> Outcome:
    """The end of a call that was cancelled."""
    if runs:
        error = CallCancelled("the call was cancelled after it had begun: it may have run in part", outcome="unknown")
    else:
        error = CallCancelled("the call was cancelled before it had begun: it has not run")
    return Outcome(None, Failure.of(error))
