"""Runs the bodies of logged calls, one run after the other: each begins and ends by a record of the book.

A run that fails is followed by another one as the call's `boki.Retry` says; between them nothing of the old run is
left: its body has ended, or its engine was fenced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from boki.books.calls.call_book import CallBook
from boki.books.calls.ledger import (
    Accepted,
    CallEntry,
    Finished,
    Suspended,
    accepted_at,
    attributes_of,
    due_at,
    runs_of,
)
from boki.books.calls.lives import ended
from boki.books.calls.runs import Runs, engine_lost, is_refusal, policy_of, refused_again_us, shortened
from boki.books.calls.waiting import Waiting
from boki.errors import BokiError, Unavailable
from boki.host.lines import FACTS, SPEAKER, speaker
from boki.log.ids import MAX_SEQNUM
from boki.log.operations import Append, Failure
from boki.protocol.calls import Call, InvocationState, Outcome, Suspension, version_of
from boki.retry import MAX_ATTEMPTS

_log = logging.getLogger("boki.protocol.calls")

_OFFERS: Final = 7
"""After this many refusals in a row, some ten seconds, a pinned call is suspended until it is offered again."""
_OFFERED_AGAIN_US: Final = 30_000_000
_HELD_UP: Final = "no worker takes it: "
"""How the note of such a suspension begins."""

Run = Callable[[Call], Awaitable[Outcome]]
"""Runs a body. Returns once it has ended, or its worker has, also if it was too late or cancelled before: another may
begin then."""

Next = int | Outcome | Waiting | None
"""What follows a run: when the next one is due; or how the call has ended; or what it is suspended for; None: it is
over, or another engine's."""

Origin = Literal["accepted", "claimed", "unknown"]
"""How a call became this engine's. A run on record of a claimed call belongs to a lost engine. "unknown": the call has
a new record since its last run here, and that record tells.
"""


@dataclass(slots=True)
class _Job:
    """A call that this engine runs: its runs, and whether the one that is on record is still available."""

    waiting: Waiting
    runs: Runs
    is_begun: bool
    refusals: int = 0
    unavailable: int = 0
    """How many refusals in a row were for no lack of room."""
    offered_us: int = 0
    """When it is offered again, if it was refused."""


class Runner:
    """The calls that one engine runs. `clock` is the log's time as well as it is known here."""

    def __init__(self, book: CallBook, run: Run, clock: Callable[[], int]) -> None:
        self._book = book
        self._run = run
        self._clock = clock
        self._jobs: dict[str, _Job] = {}
        self._bodies: dict[str, asyncio.Future[Outcome] | None] = {}
        """What runs; None: it was cancelled, and has not ended."""

    async def run(self, waiting: Waiting, known: tuple[Accepted, int] | None, *, origin: Origin) -> Next:
        """One run of a call's body, and what follows. `known`: its acceptance, if it need not be read from the book."""
        loaded = known or await self._book.load_call(waiting)
        if loaded is None:
            return None
        job = self._jobs.get(waiting.id)
        if job is None:
            taken = await self._take_up(waiting, *loaded, origin=origin)
            if not isinstance(taken, _Job):
                return taken
            job = taken
        outcome = await self._run_once(job, loaded[0].call)
        if outcome is None:
            return self._clock() if job.is_begun and _was_moved(job, loaded[0].call) else None
        if is_refusal(outcome):
            is_room_lacking = outcome.failure is None or outcome.failure.code != Unavailable.code
            job.refusals, job.unavailable = job.refusals + 1, 0 if is_room_lacking else job.unavailable + 1
            job.offered_us = self._clock() + refused_again_us(job.refusals)
            if _is_held_up(job, loaded[0].call):
                self.forget(waiting.id)
                return await self._book.suspend(job.waiting, _held_up(outcome, self._clock()), job.runs.not_begun())
            return job.offered_us
        if outcome.suspended is not None:
            self.forget(waiting.id)
            return await self._book.suspend(job.waiting, outcome.suspended, job.runs)
        return await self._settle(job, *loaded, outcome)

    def cancel(self, invocation_id: str, end_seqnum: int = MAX_SEQNUM) -> None:
        """The call is over, by the record there: end its body, if it runs and is not of a later life."""
        body = self._bodies.get(invocation_id)
        if body is not None and self._jobs[invocation_id].waiting.seqnum < end_seqnum:
            self._bodies[invocation_id] = None  # cancelled again, it would not wait for its end
            body.cancel()

    def forget(self, invocation_id: str) -> None:
        """The call is over, or another engine's."""
        self._jobs.pop(invocation_id, None)

    def refined(self, state: InvocationState) -> InvocationState:
        """The state of a call with what only its runner knows: that no worker has taken the run that is on record."""
        job = self._jobs.get(state.id)
        if state.state != "running" or job is None or state.id in self._bodies or not job.refusals:
            return state
        before = job.runs.total - 1
        if before:
            return msgspec.structs.replace(state, state="retrying", attempts=before, next_us=job.offered_us)
        return msgspec.structs.replace(state, state="accepted", attempts=0, started_us=0, last_started_us=0)

    async def _take_up(
        self, waiting: Waiting, entry: Accepted, record_time_us: int, *, origin: Origin
    ) -> _Job | Outcome | None:
        """This engine runs the call from here on; unless an engine was lost while it ran the call and the call's policy
        allows no further run: then that was the end. None: it is over already.
        """
        last: CallEntry = entry
        last_time_us = record_time_us
        if waiting.accepted:
            known = await self._book.newest(waiting.id)
            if known is None:
                return None
            last, last_time_us = known[0], known[1].time
        if isinstance(last, Finished):
            return None
        runs = runs_of(last, last_time_us)
        was_held_up = waiting.suspension is not None and waiting.suspension.note.startswith(_HELD_UP)
        if not was_held_up and (isinstance(last, Suspended) or waiting.state == "suspended"):  # maybe carried forward
            runs = runs.woken(self._clock())
        is_claimed = origin == "claimed" or (origin == "unknown" and not self._is_first_start(waiting, entry))
        job = _Job(waiting, runs, is_begun=waiting.state == "running" and not is_claimed)
        if was_held_up:
            job.unavailable = _OFFERS
        if waiting.state == "running" and is_claimed:
            failure = engine_lost(last.owner.node)
            job.runs = job.runs.failed(failure)
            if self._again_us(job, entry, record_time_us, failure) is None:
                return await self._finish(job, entry, record_time_us, Outcome(None, failure))
            _tell(logging.INFO, job, entry.call, failure, "it runs again now")
        self._jobs[waiting.id] = job
        return job

    def _is_first_start(self, waiting: Waiting, entry: Accepted) -> bool:
        """Whether the call's last record is its acceptance by this engine, not one that carries it forward."""
        return not waiting.accepted and entry.owner == self._book.me and not entry.accepted_us

    async def _run_once(self, job: _Job, call: Call) -> Outcome | None:
        """Record that a run begins, and run the body; None if the call is over, or another's, by now.

        The body of a call that was suspended does not wait for that record: whoever signals it waits for the body, and
        the call has run before, so that nothing is promised which the record must precede. If this engine is lost
        before the record is durable, the run is not counted, and the heir begins it under the same number.
        """
        if job.is_begun or job.waiting.state != "suspended":
            begins = await self._begin(job, call)
            waiting = job.waiting
            call = msgspec.structs.replace(
                call, run=job.runs.total, attempt=waiting.starts, accepted_us=waiting.accepted_us
            )
            return await self._outcome(call) if begins else None
        number, accepted_us = job.runs.total + 1, job.waiting.accepted_us
        begin = asyncio.ensure_future(self._begin(job, call))
        begin.add_done_callback(lambda begun: None if _is_true(begun) else self.cancel(call.id))
        try:
            call = msgspec.structs.replace(call, run=number, attempt=1, accepted_us=accepted_us)
            outcome = await self._outcome(call)
            return outcome if await begin else None
        finally:
            begin.cancel()

    async def _begin(self, job: _Job, call: Call) -> bool:
        """Record that a run begins, unless that has been done; False if the call is over, another's, or pinned to
        another version by now.
        """
        if not job.is_begun:
            runs = job.runs.begun(self._clock())
            begun = await self._book.begin(job.waiting, runs)
            if begun is None:
                return False
            job.waiting, job.runs, job.is_begun = begun, runs, True
        found = self._book.ledger.waiting.get(job.waiting.id)
        return found is not None and found.owner == self._book.me and not _was_moved(job, call)

    async def _outcome(self, call: Call) -> Outcome | None:
        """Run the body; None if the call was cancelled meanwhile."""
        body = self._bodies[call.id] = asyncio.ensure_future(self._run(call))
        try:
            return await asyncio.shield(body)
        except BokiError as error:
            return Outcome(None, Failure.of(error))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                body.cancel()  # this engine stops: it does not wait for the end
                raise
            return None
        finally:
            del self._bodies[call.id]

    async def _settle(self, job: _Job, entry: Accepted, record_time_us: int, outcome: Outcome) -> Next:
        """A run has ended: record when the next one is due, or that the call has ended."""
        appends, outcome = outcome.appends, msgspec.structs.replace(outcome, appends=())
        failure = outcome.failure
        if failure is None:
            return await self._finish(job, entry, record_time_us, outcome, appends)
        job.runs = job.runs.failed(failure)
        again_us = self._again_us(job, entry, record_time_us, failure)
        if again_us is None:
            if job.waiting.starts > 1:
                _tell(logging.WARNING, job, entry.call, failure, "it has failed for good")
            return await self._finish(job, entry, record_time_us, outcome, appends)
        await self._book.append_beside(appends)
        _tell(logging.INFO, job, entry.call, failure, f"it runs again in {again_us / 1e6:.1f} s")
        next_us = self._clock() + again_us
        waits = await self._book.retry_later(job.waiting, next_us, job.runs)
        if waits is None:
            return None
        job.waiting, job.is_begun, job.refusals, job.unavailable = waits, False, 0, 0
        return next_us

    def _again_us(self, job: _Job, entry: Accepted, record_time_us: int, failure: Failure) -> int | None:
        elapsed_us = self._clock() - (job.runs.since_us or due_at(entry, record_time_us))
        return policy_of(entry.call).again_us(failure, job.waiting.starts, entry.call.id, elapsed_us)

    async def _finish(
        self, job: _Job, entry: Accepted, record_time_us: int, outcome: Outcome, appends: Sequence[Append] = ()
    ) -> Outcome | None:
        call, runs = entry.call, job.runs
        if (known := self._book.ledger.waiting.get(call.id)) is not None and known.accepted_us:
            record_time_us += known.accepted_us - accepted_at(entry, record_time_us)  # the fold may know it better
        times = accepted_at(entry, record_time_us), due_at(entry, record_time_us)
        finished = ended(call, outcome, *times, runs, job.waiting.accepted_seqnum)
        return await self._book.finish(finished, job.waiting, appends)


def _was_moved(job: _Job, call: Call) -> bool:
    """Whether the call was pinned to another version than it was loaded with."""
    is_known = bool(job.waiting.function)  # else a version that had no attributes has written it
    return is_known and version_of(job.waiting.attributes) != version_of(attributes_of(call))


def _is_held_up(job: _Job, call: Call) -> bool:
    """Whether the version of a call does not run, maybe for long, which is no lack of room: it is suspended then,
    because a call that is on record as one that runs cannot be moved to another version. Attempts are counted again
    then, so not while they matter. What attends to something is not moved: its suspensions would be records of no use.
    """
    if job.unavailable <= _OFFERS or (call.chosen is not None and call.chosen.attends):
        return False
    is_counted = job.waiting.starts > 1 and policy_of(call).attempts < MAX_ATTEMPTS
    return version_of(job.waiting.attributes) != 0 and not is_counted


def _held_up(refused: Outcome, now_us: int) -> Suspension:
    assert refused.failure is not None, "it was refused"
    why = shortened(refused.failure).message
    return Suspension(now_us + _OFFERED_AGAIN_US, note=f"{_HELD_UP}{why}")


def _is_true(done: asyncio.Future[bool]) -> bool:
    return not done.cancelled() and done.exception() is None and done.result()


def _tell(level: int, job: _Job, call: Call, failure: Failure, what_follows: str) -> None:
    """Log which run of the call has ended, and with what, in one line, as a line of the function."""
    message = " ".join(failure.message.split())
    starts, attempts = job.waiting.starts, policy_of(call).attempts
    facts = {"function": call.function, "invocation": call.id, "outcome": failure.code, "attempt": starts}
    _log.log(
        level,
        "attempt %d of %d ended with %s: %s; %s",
        *(starts, attempts, failure.code, message, what_follows),
        extra={SPEAKER: speaker("", call.function, call.id), FACTS: facts},
    )
