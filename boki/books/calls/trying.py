"""Calls whose end is recorded with their acceptance: bodies that only compute, such as workflows of pure steps.

An acceptance promises that the call will run, and an end that it has run. If the body has ended before the acceptance
is written, one append says both: the caller waits for one sync and not for two. So the engine **tries** a call before
it is accepted. The body may compute, and no more: as soon as it needs anything else, such as a step with an effect, it
ends by `Suspend`, and so does a body that takes longer than a few milliseconds. Then nothing has happened: the call is
accepted, and runs from its beginning. If the id is taken already, the outcome is forgotten.

Where the body runs does not matter here: the worker that asks for the call may have begun the try, and then that one is
taken (`boki.worker.own_tries`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from boki.books.calls.call_book import CallBook
from boki.books.calls.ledger import JUST_BEFORE, Accepted
from boki.books.calls.lives import ended
from boki.books.calls.runner import Run
from boki.books.calls.runs import Runs
from boki.errors import BokiError
from boki.protocol.calls import Call, Outcome
from boki.protocol.tries import Misses, is_worth_a_try

_TRY_S: Final = 0.005
"""The longest that an acceptance is put off."""


class Trying:
    """The tries of one engine; none unless `is_on`."""

    def __init__(
        self, book: CallBook, run: Run, clock: Callable[[], int], replays: Callable[[str], bool], *, is_on: bool
    ) -> None:
        """`replays`: whether the bodies of a function are replayed, so that they give way before an effect."""
        self._is_on = is_on
        self._replays = replays
        self._book = book
        self._run = run
        self._clock = clock
        self._misses = Misses(clock)

    def may(self, call: Call) -> bool:
        """Whether the call is worth a try: a new one, of a body that is replayed. A start asks for a version to run;
        for a call under a key the function says whether its body is replayed.
        """
        chosen = call.chosen
        if not self._is_on:
            return False
        if chosen is None:
            if not self._replays(call.function):
                return False
        elif not is_worth_a_try(chosen):
            return False
        return not self._misses.rests(call.function) and call.id not in self._book.ledger.waiting

    async def end_at_once(self, entry: Accepted, key: str | None) -> Outcome | None:
        """Run the body, and log the acceptance of the call with its end; None: nothing has happened, or the key was
        used before.
        """
        function, began_us = entry.call.function, self._clock()
        outcome = await self._computed(msgspec.structs.replace(entry.call, run=1, attempt=1, is_tried=True))
        self._misses.note(function, has_missed=outcome is None)
        if outcome is None:
            return None
        appends, outcome = outcome.appends, msgspec.structs.replace(outcome, appends=())
        runs = Runs().begun(began_us)
        end = ended(entry.call, outcome, began_us, began_us, runs, JUST_BEFORE)
        accepted = msgspec.structs.replace(entry, accepted_us=began_us)
        return outcome if await self._book.accept_ended(accepted, end, appends, key) else None

    async def _computed(self, call: Call) -> Outcome | None:
        """What the body has returned; None if it needs more than time, or more time than it has."""
        body = asyncio.ensure_future(self._run(call))
        try:
            done, _ = await asyncio.wait([body], timeout=_TRY_S)
        finally:
            body.cancel()
            body.add_done_callback(_forget)
        if not done:
            return None
        try:
            outcome = body.result()
        except BokiError:
            return None
        return outcome if outcome.failure is None and outcome.suspended is None else None


def _forget(body: asyncio.Future[Outcome]) -> None:
    if not body.cancelled():
        body.exception()
