"""Clean-up after callers that were cancelled, timed out or lost their answer.

It finishes their acts and gives back the messages that they never received.

A process that takes messages for somebody who is not there any more must give them back, also if nobody else in it uses
the queue. So a task follows the stream, on nobody's time, until no act that was on its way then is any more, and
everything that nobody has received was given back. It gives up after `ANSWER_S`, when no append can be under way.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from boki import BokiError, LogBook
from boki.libs.bokiqueue.demand import Arrival, Outstanding, Waiter

if TYPE_CHECKING:
    from boki.libs.bokiqueue.following import Following

ANSWER_S: Final = 60.0
"""Longer than an append may take."""
PAUSE_S: Final = 0.1
GRACE_S: Final = 0.2
"""A consumer that has just been served has this long to ask again."""
RECEIPT_ROUNDS: Final = 10
"""Rounds after which the receipts of a consumer that keeps waiting are reported, if nothing else is."""
LAST_S: Final = 1.0
_NEVER: Final = 1 << 63


class Rest(Waiter):
    """Until these acts are decided, and nothing is to be given back."""

    __slots__ = ("acts",)

    def __init__(self, acts: list[Outstanding], patience_s: float, since: tuple[float, float]) -> None:
        super().__init__(patience_s, since)
        self.acts = acts


class Leavings:
    """The task of one queue, if there is one."""

    def __init__(self, queue: Following) -> None:
        self._queue = queue
        self._is_at_work = False
        self._is_urgent = False
        self._pause = Arrival(_NEVER)

    def see_through(self, logbook: LogBook, *, is_urgent: bool = False) -> None:
        """Somebody is gone. `is_urgent`: it was cancelled, and does not come again in a moment."""
        if not self._is_at_work and self._is_left():
            self._is_at_work = True
            self._queue.spawn(self._work(logbook.detached()))
        if is_urgent:
            self._is_urgent = True
            self._pause.finish(None)

    def are_done(self, rest: Rest) -> bool:
        """Whether there is nothing left of what it waits for."""
        return not any(line.outstanding in rest.acts or line.is_giving_back for line in self._queue.lines)

    def _is_left(self) -> bool:
        return self._is_unsettled() or (self._queue.may_stand and self._queue.is_untidy)

    def _is_unsettled(self) -> bool:
        lines = () if self._queue.is_over else self._queue.lines
        return any(line.outstanding is not None or line.is_giving_back or line.refused for line in lines)

    async def _work(self, logbook: LogBook) -> None:
        try:
            await self._settle(logbook)
            await self._tidy(logbook)
        finally:
            self._is_at_work = False

    async def _settle(self, logbook: LogBook) -> None:
        queue = self._queue
        begun = queue.clock.here()
        while self._is_unsettled() and (left_s := ANSWER_S - queue.clock.since(begun)) > 0:
            acts = [line.outstanding for line in queue.lines if line.outstanding is not None]
            rest = Rest(acts, left_s, queue.clock.here())
            try:
                await queue.wait(logbook, rest)
            except BokiError:
                await asyncio.sleep(PAUSE_S)
                continue
            if not any(line.refused for line in queue.lines):
                return
            await asyncio.sleep(PAUSE_S)
            for line in queue.lines:
                line.give_back_again()

    async def _tidy(self, logbook: LogBook) -> None:
        """Wait for consumers that come again, then let go of what was asked for in advance."""
        queue = self._queue
        rounds = 0
        while queue.may_stand and queue.is_untidy and not queue.is_over:
            rounds += 1
            self._pause = Arrival(_NEVER, GRACE_S, queue.clock.here())
            try:
                if not self._is_urgent:
                    await queue.wait(logbook, self._pause)
            except BokiError:
                await asyncio.sleep(PAUSE_S)
            except asyncio.CancelledError:
                # the event loop ends with all that is in it: what nobody here takes must not stay with this process
                queue.tidy(logbook, is_last=True)
                await asyncio.wait([asyncio.create_task(queue.come_to_rest())], timeout=LAST_S)
                raise
            queue.tidy(logbook, is_last=self._is_urgent or rounds % RECEIPT_ROUNDS == 0)
            self._is_urgent = False
            await self._settle(logbook)
