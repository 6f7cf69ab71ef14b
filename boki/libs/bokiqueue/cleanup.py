"""Clean-up after callers that were cancelled, timed out or lost their answer.

It finishes their acts and gives back the messages that they never received. A process that takes messages for a caller
that is gone must give them back, also if no other call in it uses the queue. So a task follows the stream, on its own
time, until no act is on its way and everything that no caller has received was given back. It gives up after
`ANSWER_S`, when no append can be under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from boki import BokiError, LogBook
from boki.libs.bokiqueue.demand import Line, Outstanding
from boki.libs.bokiqueue.supply import Surplus
from boki.libs.fold.follower import Follower, Waiter
from boki.libs.fold.registry import Tasks

ANSWER_S: Final = 60.0
"""Longer than an append may take."""
PAUSE_S: Final = 0.1
GRACE_S: Final = 0.2
"""A consumer that has just been served has this long to ask again."""
RECEIPT_ROUNDS: Final = 10
"""Rounds after which the receipts of a consumer that keeps waiting are reported, if nothing else is."""
LAST_S: Final = 1.0


class Start(Protocol):
    """Appends the acts of a queue that are due, and returns those appends."""

    def __call__(self, logbook: LogBook, *, is_tidying: bool = False) -> list[asyncio.Task[None]]:
        """`is_tidying`: also to withdraw credit and to report receipts."""


class CleanUp:
    """The task of one queue, if there is one. `kinds`: what callers wait for; None if no take may stand."""

    def __init__(
        self,
        follower: Follower,
        lines: Sequence[Line],
        surplus: Surplus,
        tasks: Tasks,
        start: Start,
        kinds: Callable[[], set[tuple[str, int]] | None],
    ) -> None:
        self.is_at_work = False
        self._follower = follower
        self._lines = lines
        self._surplus = surplus
        self._tasks = tasks
        self._start = start
        self._kinds = kinds
        self._is_urgent = False
        self._pause: Waiter | None = None

    def begin(self, logbook: LogBook, *, is_urgent: bool = False) -> None:
        """A caller is gone. `is_urgent`: it was cancelled, and does not come again in a moment."""
        if not self.is_at_work and (self._is_unsettled or self.is_untidy):
            self.is_at_work = True
            self._tasks.spawn(self._work(logbook.session.logbook(logbook.name, detached=True)))
        if is_urgent:
            self.hurry()

    def hurry(self) -> None:
        """Wait no longer for consumers that may come again."""
        self._is_urgent = self.is_at_work
        if self._pause is not None:
            self._pause.finish(True)

    @property
    def _is_unsettled(self) -> bool:
        lines = () if self._follower.is_over else self._lines
        return any(line.outstanding is not None or line.is_giving_back or line.refused for line in lines)

    @property
    def is_untidy(self) -> bool:
        """Whether standing takes were given, or stand for, what no caller wants, or the log knows of no receipt."""
        kinds = self._kinds()
        if kinds is None or self._follower.is_over:
            return False
        return bool(self._surplus) or any(line.owes_receipt or line.has_excess(kinds) for line in self._lines)

    async def _work(self, logbook: LogBook) -> None:
        try:
            await self._settle(logbook)
            await self._tidy(logbook)
        finally:
            self.is_at_work = self._is_urgent = False

    async def _settle(self, logbook: LogBook) -> None:
        clock = self._follower.clock
        begun = clock.here()
        while self._is_unsettled and (left_s := ANSWER_S - clock.since(begun)) > 0:
            acts = [line.outstanding for line in self._lines if line.outstanding is not None]

            def ready(acts: list[Outstanding] = acts) -> bool | None:
                return None if any(line.outstanding in acts or line.is_giving_back for line in self._lines) else True

            try:
                self._start(logbook)
                await self._follower.wait_until(logbook, ready, left_s)
            except BokiError:
                await asyncio.sleep(PAUSE_S)
                continue
            if not any(line.refused for line in self._lines):
                return
            await asyncio.sleep(PAUSE_S)
            for line in self._lines:
                line.give_back_again()

    async def _tidy(self, logbook: LogBook) -> None:
        """Wait for consumers that come again, then let go of what was asked for in advance."""
        rounds = 0
        while self.is_untidy:
            rounds += 1
            try:
                if not self._is_urgent:
                    self._pause = Waiter(GRACE_S, self._follower.clock.here())
                    await self._follower.wait(logbook, self._pause)
            except BokiError:
                await asyncio.sleep(PAUSE_S)
            except asyncio.CancelledError:
                # the event loop ends with all that is in it: what no caller here takes must not stay with this process
                if last := self._let_go(logbook, is_last=True):
                    await asyncio.wait(last, timeout=LAST_S)
                raise
            self._let_go(logbook, is_last=self._is_urgent or rounds % RECEIPT_ROUNDS == 0)
            self._is_urgent = False
            await self._settle(logbook)

    def _let_go(self, logbook: LogBook, *, is_last: bool) -> list[asyncio.Task[None]]:
        """What no caller has wanted for a while goes back, and so does its credit. `is_last`: all of it, and the log is
        told what was received.
        """
        for group, (line, delivery) in self._surplus.pop_old(is_all=is_last):
            line.release(group, (delivery,))
        return self._start(logbook, is_tidying=is_last or not self._kinds())
