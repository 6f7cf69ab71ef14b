"""The log's time as one process knows it, and how long its callers have waited in it.

Only records tell the log's time: that of the cut which ordered them. A record that was read may be old, so it says no
more than that the time is not earlier. What this process itself has just appended says how late it is. Until then, and
when that was long ago, the clock is not *sure*: code that depends on a time to come asks the log first, by an append.
Between records time continues as it does here.

Waits are measured by the event loop's clock, or by what the log itself has waited (in a test its time is virtual).
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

    __slots__ = ("_heard", "_told", "_us", "latest_us", "loop_s", "waited_s")

    def __init__(self, loop_s: Callable[[], float]) -> None:
        self.loop_s = loop_s
        self.waited_s = 0.0
        """How long the log has waited for this process, in its own time."""
        self.latest_us = 0
        """The time of the newest record that was read."""
        self._us = 0
        """The log's time at the moment `_heard`, about."""
        self._heard: Moment = (0.0, 0.0)
        self._told: Moment | None = None

    def here(self) -> Moment:
        """Now, by the event loop and by the log's waits; whichever has gone farther counts."""
        return self.loop_s(), self.waited_s

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

    def wait_over(self, wait_s: float, time_us: int, begun_us: int) -> None:
        """A read has waited for that long, or less if a record of that time (0: none) ended it."""
        if not time_us:
            self.waited_s += wait_s
        elif self.is_sure:
            self.waited_s += min(wait_s, max(0.0, (time_us - begun_us) / 1e6))

    def looking_us(self, wall_us: int) -> int:
        """The time for a caller that only looks and appends nothing: this machine's clock, but not before the log's."""
        return max(self.latest_us, wall_us)
