"""What the records of logged calls say to those who ask for them: the states of calls."""

from __future__ import annotations

from typing import assert_never

from boki.books.calls.ledger import (
    Accepted,
    Finished,
    Retrying,
    Started,
    Suspended,
    Unended,
    accepted_at,
    attributes_of,
    due_at,
    name_of,
    runs_of,
)
from boki.books.calls.waiting import Unfinished, Waiting
from boki.protocol.calls import InvocationState


def state_of(accepted: Accepted, accepted_us: int, last: Unended, last_time_us: int) -> InvocationState:
    """What an unfinished call's acceptance (with the time of its record) and its last record say."""
    runs = runs_of(last, last_time_us)
    state: Unfinished
    next_us, suspension = 0, None
    match last:
        case Accepted():
            state, next_us, suspension = last.state, last.next_us, last.suspension
        case Started():
            state = "running"
        case Retrying():
            state, next_us = "retrying", last.next_us
        case Suspended():
            state, suspension = "suspended", last.suspension
        case _:
            assert_never(last)
    return InvocationState(
        id=accepted.call.id,
        function=accepted.call.function,
        book=accepted.call.book,
        state=state,
        accepted_us=accepted_at(accepted, accepted_us),
        due_us=due_at(accepted, accepted_us),
        started_us=runs.first_us,
        last_started_us=runs.last_us,
        next_us=next_us if suspension is None else suspension.wake_us,
        attempts=runs.total,
        errors=runs.errors,
        last_error=runs.last_error,
        suspension=suspension,
        name=name_of(accepted.call),
        attributes=attributes_of(accepted.call),
        start="" if accepted.call.chosen is None else accepted.call.chosen.start,
    )


def ended_state(entry: Finished, record_time_us: int) -> InvocationState:
    """What the record of a call's end says."""
    return InvocationState(
        id=entry.id,
        function=entry.function,
        book=entry.book,
        state=entry.state,
        accepted_us=entry.accepted_us,
        due_us=entry.due_us,
        started_us=entry.started_us,
        last_started_us=entry.runs.last_us or entry.started_us,
        finished_us=entry.ended_us or record_time_us,
        attempts=entry.attempts,
        result=entry.outcome.result,
        failure=entry.outcome.failure,
        errors=entry.runs.errors,
        last_error=entry.runs.last_error,
        name=entry.name,
        attributes=entry.attributes,
    )


def listed_state(waiting: Waiting) -> InvocationState:
    """An unfinished call as a list shows it, from what the ledger holds."""
    is_due_again = waiting.state in ("retrying", "suspended")
    return InvocationState(
        id=waiting.id,
        function=waiting.function,
        book=waiting.book,
        state=waiting.state,
        accepted_us=waiting.accepted_us,
        due_us=0 if is_due_again else waiting.due_us,
        next_us=waiting.due_us if is_due_again else 0,
        started_us=waiting.started_us,
        last_started_us=waiting.last_started_us,
        attempts=waiting.attempts,
        suspension=waiting.suspension,
        name=waiting.name,
        attributes=waiting.attributes or {},
    )
