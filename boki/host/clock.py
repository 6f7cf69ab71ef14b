"""The one clock of a process: microseconds since the epoch that never go back while the process lives."""

from __future__ import annotations

import time

_OFFSET_US = time.time_ns() // 1000 - time.monotonic_ns() // 1000


def now_us() -> int:
    """Now, in microseconds since the epoch. Steps of the system's clock after the start are not followed."""
    return time.monotonic_ns() // 1000 + _OFFSET_US


def beat_delay_s(time_s: float, period_s: float) -> float:
    """Seconds from `time_s` to the next beat, a multiple of the period; at least half of a period.

    What is done regularly is done on beats, so that an idle process is woken once for all of it, and what processes
    of one machine then say to each other comes together, too. A timer may come a little early: that beat counts.

    >>> beat_delay_s(7.0, 0.5), beat_delay_s(7.125, 0.5), beat_delay_s(6.875, 0.5)
    (0.5, 0.375, 0.625)
    """
    return (round(time_s / period_s) + 1) * period_s - time_s
