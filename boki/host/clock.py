"""The one clock of a process: microseconds since the epoch that never go back while the process lives."""

from __future__ import annotations

import time

_OFFSET_US = time.time_ns() // 1000 - time.monotonic_ns() // 1000


def now_us() -> int:
    """Now, in microseconds since the epoch. Steps of the system's clock after the start are not followed."""
    return time.monotonic_ns() // 1000 + _OFFSET_US
