"""The log's time as one process knows it, and how long its callers have waited in it.

Only records tell the log's time: that of the cut which ordered them. A record that was read may be old, so it says no
more than that the time is not earlier. What this process itself has just appended says how late it is. Until then, and
when that was long ago, the clock is not *sure*: code that depends on a time to come asks the log first, by an append.
Between records time continues as it does here.

Waits are measured by the event loop's clock, or by what the log itself has waited (in a test its time is virtual): by
the time that reads have really taken. The deadline of the call that reads for all may end a read long before the wait
that it asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

SURE_S: Final = 3_600.0
"""How long this machine's clock is trusted to go as the log's does: also one that was put to sleep is noticed."""
PROMPT_S: Final = 1.0
"""An append that took longer does not say how late it is, only within which bounds."""

Moment = tuple[float, float]
"""Seconds by the event loop, and by the log's waits."""


class LogClock:
    """The clock of one stream in this process. `loop_s` is the event loop's, in seconds."""

    __slots__ = ("_heard", "_read_began_s", "_reader_s", "_told", "_us", "_waited_s", "latest_us", "loop_s")

    def __init__(self, loop_s: Callable[[], float]) -> None:
        self.loop_s = loop_s
        self._waited_s = 0.0
        """How long reads that have ended have taken."""
        self._reader_s: Callable[[], float] | None = None
        """The clock of the call whose read is under way."""
        self._read_began_s = 0.0
        self.latest_us = 0
        """The time of the newest record that was read."""
        self._us = 0
        """The log's time at the moment `_heard`, about."""
        self._heard: Moment = (0.0, 0.0)
        self._told: Moment | None = None

    def here(self) -> Moment:
        """Now, by the event loop and by the log's waits; whichever has gone farther counts."""
        reader_s = self._reader_s
        if reader_s is None:
            return self.loop_s(), self._waited_s
        return self.loop_s(), self._waited_s + reader_s() - self._read_began_s

    @property
    def waited_s(self) -> float:
        """How long the log has waited for this process, in its own time."""
        return self.here()[1]

    def since(self, before: Moment) -> float:
        """How long ago that was, in seconds."""
        now = self.here()
        return max(now[0] - before[0], now[1] - before[1])

    def now_us(self) -> int:
        """About what time the log has; too early if it is not `is_sure`, and 0 if nothing was heard of it."""
        return self._us + round(self.since(self._heard) * 1e6) if self._us else 0

    @property
    def is_sure(self) -> bool:
        """Whether the log was asked lately."""
        return self._told is not None and self.since(self._told) < SURE_S

    def hear(self, time_us: int) -> None:
        """A record has that time, and may be of any age."""
        self.latest_us = max(self.latest_us, time_us)
        if time_us > self._us and time_us > self.now_us():
            self._us, self._heard = time_us, self.here()

    def hear_answer(self, time_us: int, asked: Moment) -> None:
        """A record has that time, which was appended by this process, not before it was `asked` for."""
        took_s = self.since(asked)
        latest_us = time_us + round(took_s * 1e6) if took_s > PROMPT_S else time_us
        self._us = max(time_us, min(self.now_us(), latest_us))
        self._heard = self._told = self.here()

    def read_begins(self, reader_s: Callable[[], float]) -> None:
        """A read begins, for a call of that clock. It counts while it is under way, too: else all of it would count for
        a caller that comes just before its end.
        """
        self._reader_s, self._read_began_s = reader_s, reader_s()

    def read_ends(self) -> None:
        """The read is over, by whatever: it has taken the time that it took, not the wait that it asked for."""
        self._waited_s, self._reader_s = self.waited_s, None

    def looking_us(self, wall_us: int) -> int:
        """The time for a caller that only looks and appends nothing: this machine's clock, but not before the log's."""
        return max(self.latest_us, wall_us)
