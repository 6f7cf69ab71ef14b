"""Time that passes by itself when everybody waits for it, so that tests of waits and delays take no time.

A test's event loop runs until nothing happens any more in it; if somebody then waits for time to pass, the clock jumps
to the next moment at which something is due. "Nothing happens" is counted in turns of the loop, not in seconds, so a
slow machine makes no difference. Code that waits for something else (a socket, `asyncio.sleep`) looks idle: in a test,
wait for the clock instead. Threads that run blocking code are known, and time stops while one of them is busy.

The idea is trio's `MockClock(autojump_threshold=0)`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Final

from boki.log.checks import check_seconds

QUIET_TURNS: Final = 50
"""This many turns of the loop without a request mean that nothing is going on: more than any chain of wake-ups
takes.
"""

START_US: Final = 1_600_000_000_000_000
"""When time begins, for a log that is new."""


@dataclass(order=True, slots=True)
class Timer:
    """Something that is due at a moment."""

    due_us: int
    number: int
    callback: Callable[[], object] | None = field(compare=False)

    def cancel(self) -> None:
        """It is not due any more."""
        self.callback = None


class Clock:
    """Virtual time, in microseconds since the epoch. It belongs to one event loop and is used in its thread."""

    def __init__(self, start_us: int = START_US) -> None:
        self.now_us = start_us
        self._timers: list[Timer] = []
        self._numbers = count()
        self._waiting_count = 0
        self._busy_threads = 0
        self._quiet_turns = 0
        self._is_watching = False
        self._is_advancing = False

    def time(self) -> float:
        """Seconds since the epoch."""
        return self.now_us / 1e6

    def call_at(self, due_us: int, callback: Callable[[], object]) -> Timer:
        """Call `callback` when time has come to `due_us`."""
        timer = Timer(due_us, next(self._numbers), callback)
        heappush(self._timers, timer)
        self._watch()
        return timer

    def note_activity(self) -> None:
        """Something has happened in this turn."""
        self._quiet_turns = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around an `await` that only time, or somebody else's doing, can end."""
        self._waiting_count += 1
        self._watch()
        try:
            yield
        finally:
            self._waiting_count -= 1
            self.note_activity()

    def thread_started(self) -> None:
        """A thread runs code of the test: time stops until it waits or ends."""
        self._busy_threads += 1
        self.note_activity()

    def thread_stopped(self) -> None:
        """The thread waits or has ended."""
        self._busy_threads -= 1
        self.note_activity()
        self._watch()

    async def advance(self, seconds: float) -> None:
        """Let time pass, with all that is due meanwhile, each when it is due; return when that has settled."""
        target_us = self.now_us + round(check_seconds(seconds, "seconds", positive=False) * 1e6)
        self._is_advancing = True
        try:
            await self._settle()
            while (timer := self._next_timer()) is not None and timer.due_us <= target_us:
                self._fire(timer)
                await self._settle()
            self.now_us = max(self.now_us, target_us)
        finally:
            self._is_advancing = False
            self._watch()

    async def _settle(self) -> None:
        self._quiet_turns = 0
        while self._quiet_turns < QUIET_TURNS or self._busy_threads:
            self._quiet_turns += 1
            await asyncio.sleep(0)

    def _next_timer(self) -> Timer | None:
        while self._timers and self._timers[0].callback is None:
            heappop(self._timers)
        return self._timers[0] if self._timers else None

    def _fire(self, timer: Timer) -> None:
        heappop(self._timers)
        self.now_us = max(self.now_us, timer.due_us)
        callback, timer.callback = timer.callback, None
        if callback is not None:
            callback()

    def _watch(self) -> None:
        if not self._is_watching and self._may_jump():
            self._is_watching = True
            self._quiet_turns = 0
            asyncio.get_running_loop().call_soon(self._watch_turn)

    def _may_jump(self) -> bool:
        is_idle = self._waiting_count > 0 and self._busy_threads == 0 and not self._is_advancing
        return is_idle and self._next_timer() is not None

    def _watch_turn(self) -> None:
        timer = self._next_timer()
        if timer is None or not self._may_jump():
            self._is_watching = False
            return
        self._quiet_turns += 1
        if self._quiet_turns >= QUIET_TURNS:
            self._quiet_turns = 0
            self._fire(timer)
        asyncio.get_running_loop().call_soon(self._watch_turn)
