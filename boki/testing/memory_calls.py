"""Later calls of a test: what an engine's ledger knows of a logged call, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from hashlib import sha256

import msgspec

from boki.api.function import Function
from boki.api.streaming import no_stream
from boki.books.calls.ledger import CODEC, JUST_BEFORE, Accepted
from boki.books.calls.lives import check_size, copy_of, ended, fitting
from boki.books.calls.runs import Runs
from boki.errors import AlreadyExists, KeyReused, NoSuchFunction, WrongState
from boki.log.checks import check_data
from boki.log.limits import Limits
from boki.protocol.calls import (
    OVER,
    PINNED,
    Call,
    CallStatus,
    ChosenId,
    InvocationState,
    Move,
    Outcome,
    Payload,
    Suspension,
    starts_tag,
    version_of,
)
from boki.retry import check_delay

LaterRequest = tuple[str, str, Payload, float]
"""What must be equal for a key or an id to stand for the same call."""


def no_such_function(name: str) -> NoSuchFunction:
    """The error for a name that the context knows no function by."""
    return NoSuchFunction(f"no function {name!r}: give it to boki.testing.context(functions=[...])")


def later_call(known: Function | None, call: Call, delay_s: float, limits: Limits) -> Call:
    """The call as an engine would accept it, in the book of its function; what it refuses is raised."""
    if known is None:
        raise no_such_function(call.function)
    if known.info.streams:
        raise no_stream(call.function)
    check_delay(delay_s)
    call = msgspec.structs.replace(call, book=known.info.book_of(call), chosen=known.info.chosen_for(call))
    accepted = Accepted(call, sha256(call.payload.data).digest(), round(delay_s * 1e6))
    check_size(accepted, limits.record_bytes)
    check_data(CODEC.encode(accepted), limits.record_bytes)
    return call


def with_copied_payload(call: Call, logged: Mapping[str, LaterCall]) -> Call:
    """The call with the payload of the one that it copies, if it does."""
    if call.chosen is None or not call.chosen.copies:
        return call
    return copy_of(call, logged[call.chosen.copies].call)


def begins_too_soon(known: LaterCall | None, due_us: int) -> bool:
    """Whether a new life of the call would be due when the last one was, by which they are told apart: no time has
    passed in the test. With an engine some always has.
    """
    return known is not None and known.due_us == due_us


def stands_for(known: LaterCall | None, chosen: ChosenId, request: LaterRequest) -> bool:
    """Whether a call of that id stands for this start."""
    if known is None or known.call.chosen is None:
        return False
    if known.call.chosen.start == chosen.start:
        return True
    policy = chosen.if_ended if known.is_over else chosen.if_running
    if policy == "fail":
        raise AlreadyExists(f"there is a call of id {known.call.id} ({known.status})", invocation=known.call.id)
    if policy == "again" or (policy == "again_if_failed" and known.status != "done"):
        return False
    if known.request != request:
        raise KeyReused(f"id {known.call.id} came with another call before", field="id")
    return True


def start_tags(call: Call) -> list[str]:
    """The tags by which a call that this one reports to finds it."""
    return [starts_tag(call.chosen.reports_to)] if call.chosen is not None and call.chosen.reports_to else []


class LaterCall:
    """A later call: what `InvocationState` describes it, and who waits for its end."""

    def __init__(self, call: Call, request: LaterRequest, now_us: int, delay_us: int) -> None:
        self.call = call
        self.request = request
        self.accepted_us = now_us
        self.due_us = self.round_us = now_us + delay_us
        self.run = self.attempts = 0
        self.started_us = self.last_started_us = self.next_us = self.finished_us = 0
        self.status: CallStatus = "accepted"
        self.suspension: Suspension | None = None
        self.outcome: Outcome | None = None
        self.task: asyncio.Task[Outcome] | None = None
        self.changed = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.status in OVER

    def begin(self, now_us: int) -> None:
        """A run begins."""
        self.run += 1
        self.attempts += 1
        self.started_us = self.started_us or now_us
        self.last_started_us, self.next_us, self.suspension, self.status = now_us, 0, None, "running"

    def suspend(self, suspension: Suspension) -> None:
        """A run has ended, and the next one waits for this; attempts are counted again."""
        self.attempts, self.next_us, self.suspension, self.status = 0, suspension.wake_us, suspension, "suspended"

    def fitted(self, outcome: Outcome, limits: Limits) -> Outcome:
        """The outcome as an engine would record it: one that no record holds is a failure."""
        outcome = msgspec.structs.replace(outcome, appends=())
        runs = Runs(self.run, self.started_us, self.last_started_us)
        record = ended(self.call, outcome, self.accepted_us, self.due_us, runs, JUST_BEFORE)
        return fitting(record, limits.record_bytes).outcome

    def end(self, outcome: Outcome, now_us: int, status: CallStatus | None = None) -> None:
        """It is over."""
        self.outcome, self.finished_us, self.suspension, self.next_us = outcome, now_us, None, 0
        self.status = status or ("done" if outcome.failure is None else "failed")
        self.changed.set()

    def move(self, to: Move) -> None:
        """Pin it to another version, under the conditions of an engine. All versions run the code that is there."""
        chosen = self.call.chosen
        if self.is_over:
            raise WrongState(f"call {self.call.id} has ended ({self.status})", state=self.status)
        if chosen is not None and version_of(chosen.attributes) == to.version:
            return
        if chosen is None:
            raise WrongState(f"call {self.call.id} was not started under an id of its own: it is not pinned")
        if self.status == "running":
            raise WrongState(f"call {self.call.id} runs now: it can be moved while it waits", state="running")
        if self.run != to.attempts:
            raise WrongState(f"call {self.call.id} has run since it was looked at: look again", state="changed")
        pinned = msgspec.structs.replace(chosen, attributes={**chosen.attributes, PINNED: to.version})
        self.call = msgspec.structs.replace(self.call, chosen=pinned)

    def accept_again(self, now_us: int) -> None:
        """It is to be run again, by hand. `WrongState` if it has ended well."""
        if self.status == "done":
            raise WrongState(f"call {self.call.id} has ended well (done)", state=self.status)
        self.outcome, self.status, self.attempts, self.due_us, self.round_us = None, "accepted", 0, now_us, now_us

    def state(self) -> InvocationState:
        """What is known of it."""
        return InvocationState(
            id=self.call.id,
            function=self.call.function,
            book=self.call.book,
            state=self.status,
            accepted_us=self.accepted_us,
            due_us=self.due_us,
            started_us=self.started_us,
            last_started_us=self.last_started_us,
            finished_us=self.finished_us,
            next_us=self.next_us,
            attempts=self.run,
            result=None if self.outcome is None else self.outcome.result,
            failure=None if self.outcome is None else self.outcome.failure,
            suspension=self.suspension,
            name="" if self.call.chosen is None else self.call.chosen.name,
            attributes={} if self.call.chosen is None else self.call.chosen.attributes,
            start="" if self.call.chosen is None or self.is_over else self.call.chosen.start,
        )
