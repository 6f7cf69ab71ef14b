"""What may be asked about logged calls, and done to them from outside: their states, a list, cancel, run again.

Any engine with the index answers all of it from the book. What is done to a call is a record under the condition that
its last record is the one that was looked at, so it does not matter which engine runs the call, and of a cancellation
and an end at the same time one counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from boki.books.calls.call_book import CallBook
from boki.books.calls.ledger import (
    CANCELLED_TAG,
    FAILED_TAG,
    FINISHED_TAG,
    Accepted,
    CallEntry,
    Finished,
    Started,
    acceptance_tags,
    accepted_at,
    attributes_of,
    due_at,
    end_tags,
    runs_of,
)
from boki.books.calls.lives import carry_forward, ended, moved, run_again
from boki.books.calls.runs import cancelled, shortened
from boki.books.calls.views import ended_state, listed_state, state_of
from boki.books.calls.waiting import PackedCall, Waiting
from boki.errors import NoSuchInvocation, NotFound, Trimmed, WrongState
from boki.libs.fold.retrying import until_answered
from boki.log.ids import MAX_SEQNUM
from boki.log.record import Record
from boki.protocol.calls import OVER, CallFilter, CallPage, InvocationState, Move, version_of

_SCANNED: Final = 2_000
"""Maximum number of ended calls that one page of a list looks at; the next page continues."""
_READ_AT_ONCE: Final = 200
_ANSWER_S: Final = 1.0
"""A look at a call is answered with what is known here after this time, also while the log has no majority."""


class Inquiries:
    """The questions of one engine to its book. `clock` is the log's time as well as it is known here."""

    def __init__(self, book: CallBook, keep_s: float, clock: Callable[[], int]) -> None:
        self._book = book
        self._keep_s = keep_s
        self._clock = clock

    async def state(self, invocation_id: str, wait_s: float = 0.0) -> InvocationState:
        """What is known of a call, after waiting at most `wait_s` for its end. `NoSuchInvocation`

        As of now. It is as this engine has it if the wait has run out, which has followed the log until then, or if the
        log does not answer within a second.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while True:
            left_s = until - loop.time()
            ended = await self._book.end_of(invocation_id, left_s) if left_s > 0 else None
            if ended is not None:
                return ended_state(*ended)
            left_s = until - loop.time()
            entry, record = await self._find(invocation_id, min(left_s, _ANSWER_S) if wait_s > 0 else _ANSWER_S)
            left_s = until - loop.time()
            if isinstance(entry, Finished) or left_s <= 0:
                return await self._state_of(entry, record)
            await self._book.wait_for_more(invocation_id, record, left_s)

    async def cancel(self, invocation_id: str, life_us: int = 0) -> InvocationState:
        """End a call: one that has not begun never runs. Again: the same answer. `WrongState` if it has ended, or was
        started or retried since it had that `life_us` (0: whichever it has).
        """
        while True:
            entry, record = await self._find(invocation_id)
            if life_us and (await self._state_of(entry, record)).life_us != life_us:
                raise WrongState(f"call {invocation_id} was started again since", state="changed")
            if isinstance(entry, Finished):
                if entry.state == "cancelled":
                    return ended_state(entry, record.time)
                raise WrongState(
                    f"call {invocation_id} has ended ({entry.state}) and cannot be cancelled", state=entry.state
                )
            accepted_seqnum = record.seqnum if isinstance(entry, Accepted) else entry.accepted_seqnum
            accepted, accepted_us = await self._acceptance(entry, record)
            runs = runs_of(entry, record.time)
            times = accepted_at(accepted, accepted_us), due_at(accepted, accepted_us)
            end = ended(accepted.call, cancelled(runs.total), *times, runs, accepted_seqnum)
            if await self._book.append_after(end, record.seqnum, end_tags(end)):
                # The time of its record is the log's, and asking again tells the same.
                found = await until_answered(partial(self._find, invocation_id), f"a look at call {invocation_id}")
                return await self._state_of(*found)

    async def accept_again(self, invocation_id: str) -> InvocationState:
        """Accept a call again that has failed or was cancelled, under its id; this engine owns it. One that has not
        ended is left as it is. `WrongState` if it has ended well, `Trimmed` if its payload is gone.
        """
        while True:
            entry, record = await self._find(invocation_id)
            if not isinstance(entry, Finished):
                return await self._state_of(entry, record)
            if entry.state == "done":
                raise WrongState(f"call {invocation_id} has ended well (done): there is nothing to retry", state="done")
            try:
                accepted, _ = await self._book.acceptance(entry.accepted_seqnum)
            except (NotFound, Trimmed):
                raise Trimmed(
                    f"the payload of call {invocation_id} is gone: what was accepted is kept for {self._keep_s:g} s. "
                    "Call the function again",
                    next_seqnum=record.seqnum,
                ) from None
            now = self._clock()
            again = run_again(accepted, self._book.me, entry, now)
            if await self._book.append_after(again, record.seqnum, acceptance_tags(again)):
                return state_of(again, now, again, now)

    async def move(self, invocation_id: str, to: Move) -> InvocationState:
        """Pin a call that does not run to another version, by carrying it forward. `WrongState` if it runs, has run
        since it had that many runs, or has ended.
        """
        while True:
            entry, record = await self._find(invocation_id)
            if isinstance(entry, Finished):
                raise WrongState(f"call {invocation_id} has ended ({entry.state})", state=entry.state)
            accepted, accepted_us = await self._acceptance(entry, record)
            if version_of(attributes_of(accepted.call)) == to.version:
                return await self._state_of(entry, record)
            if accepted.call.chosen is None:
                raise WrongState(f"call {invocation_id} was not started under an id of its own: it is not pinned")
            runs = runs_of(entry, record.time)
            if isinstance(entry, Started) or (isinstance(entry, Accepted) and entry.state == "running"):
                raise WrongState(f"call {invocation_id} runs now: it can be moved while it waits", state="running")
            if runs.total != to.attempts:
                raise WrongState(f"call {invocation_id} has run since it was looked at: look again", state="changed")
            waiting = self._book.ledger.waiting.get(invocation_id)
            if waiting is None or waiting.seqnum != record.seqnum:
                await self._book.newest(invocation_id)
                continue
            carried = moved(carry_forward(accepted, accepted_us, waiting, runs), to.version)
            if await self._book.carry(carried, record.seqnum):
                now = self._clock()
                return state_of(carried, now, carried, now)

    async def page(self, wanted: CallFilter) -> CallPage:
        """A page of the calls that match, those that changed last first.

        Unfinished ones are in memory. Ended ones are read from the book by their tag, a bounded number for each page.
        """
        below = await self._below(wanted)
        chosen = frozenset(wanted.states)
        found: list[tuple[int, InvocationState]] = []
        reached = 0
        if not chosen or chosen & OVER:
            found, reached = await self._ended(wanted, below)
        if not chosen or chosen - OVER:
            ended = {state.id for _, state in found}
            for waiting in self._book.ledger.newest(below, wanted.limit, lambda each: _matches(each, wanted)):
                if waiting.seqnum >= reached and waiting.id not in ended:
                    found.append((waiting.seqnum, await self._listed(waiting)))
        found.sort(key=lambda each: each[0], reverse=True)
        shown = found[: wanted.limit]
        is_full = len(shown) == wanted.limit
        return CallPage(tuple(state for _, state in shown), shown[-1][0] if is_full else reached)

    async def _below(self, wanted: CallFilter) -> int:
        if wanted.until_us == MAX_SEQNUM:
            return wanted.before
        first = await self._book.first_seqnum_at(wanted.until_us)
        return wanted.before if first is None else min(wanted.before, first)

    async def _ended(self, wanted: CallFilter, below: int) -> tuple[list[tuple[int, InvocationState]], int]:
        """Ended calls that match, and down to which seqnum they were looked at; 0: to the end."""
        chosen = frozenset(wanted.states) & OVER
        tag = {frozenset({"failed"}): FAILED_TAG, frozenset({"cancelled"}): CANCELLED_TAG}.get(chosen, FINISHED_TAG)
        found: list[tuple[int, InvocationState]] = []
        scanned = 0
        while scanned < _SCANNED:
            page = await self._book.ended(tag, below, wanted.since_us, _READ_AT_ONCE)
            if not page:
                return found, 0
            for entry, record in page:
                is_wanted = not wanted.function or entry.function == wanted.function
                is_wanted = is_wanted and wanted.matches(entry.name, entry.attributes)
                if is_wanted and (not chosen or entry.state in chosen) and await self._is_last(entry, record):
                    found.append((record.seqnum, _without_result(ended_state(entry, record.time))))
                if len(found) == wanted.limit:
                    return found, record.seqnum
            below = page[-1][1].seqnum
            scanned += len(page)
        return found, below

    async def _is_last(self, entry: Finished, record: Record) -> bool:
        """Whether the call ended with this record: it may have been run again since."""
        known = await self._book.last(entry.id)
        return known is not None and known[1].seqnum == record.seqnum

    async def _listed(self, waiting: Waiting) -> InvocationState:
        """An unfinished call for a list; what a run ended with stands in its last record alone."""
        if waiting.function and waiting.attempts <= 1 and waiting.state != "retrying":
            return listed_state(waiting)
        known = await self._book.last(waiting.id)
        if known is None or isinstance(known[0], Finished):
            return listed_state(waiting)
        return await self._state_of(*known)

    async def _find(self, invocation_id: str, timeout_s: float | None = None) -> tuple[CallEntry, Record]:
        found = await self._book.find(invocation_id, timeout_s) if _is_id(invocation_id) else None
        if found is None:
            kept = f"what has ended is kept for {self._keep_s / 3600:g} h"
            why = kept if _is_id(invocation_id) else "an id has 32 hex digits"
            raise NoSuchInvocation(
                f"no logged call has the id {invocation_id[:64]!r}: {why}; `boki calls list` shows all",
                field="id",
            )
        return found

    async def _acceptance(self, entry: CallEntry, record: Record) -> tuple[Accepted, int]:
        if isinstance(entry, Accepted):
            return entry, record.time
        return await self._book.acceptance(entry.accepted_seqnum)

    async def _state_of(self, entry: CallEntry, record: Record) -> InvocationState:
        if isinstance(entry, Finished):
            return ended_state(entry, record.time)
        return state_of(*await self._acceptance(entry, record), entry, record.time)


def _matches(call: Waiting | PackedCall, wanted: CallFilter) -> bool:
    if (wanted.states and call.state not in wanted.states) or (wanted.function and call.function != wanted.function):
        return False
    if wanted.since_us and call.changed_us < wanted.since_us:
        return False
    return not (wanted.named or wanted.attributes) or wanted.matches(call.name, call.attributes)


def _without_result(state: InvocationState) -> InvocationState:
    failure = None if state.failure is None else shortened(state.failure)
    return msgspec.structs.replace(state, result=None, failure=failure)


def _is_id(text: str) -> bool:
    return len(text) == 32 and all(character in "0123456789abcdef" for character in text)
