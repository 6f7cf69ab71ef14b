"""What a load noticed of something that happened to the cluster: its latencies before it and after."""

from __future__ import annotations

import itertools
from typing import Any

from boki.bench.load_functions.load import Timeline
from boki.bench.rows import quantile

WARM_UP_US = 1_000_000


def compared(timeline: Timeline, from_us: int, until_us: int | None = None) -> dict[str, Any]:
    """Appends that ended before `from_us` beside those that ended from then on, until `until_us`, in milliseconds.

    `stall_ms` is the longest time in which none ended. The first second counts for nothing: workers warm up.

    >>> compared(Timeline([0, 2_000_000, 3_000_000, 3_001_000], [1_000, 2_000, 1_000, 500_000], []), 3_000_500)
    {'p50_before_ms': 2.0, 'p99_before_ms': 2.0, 'p99_ms': 500.0, 'max_ms': 500.0, 'stall_ms': 500.0, 'failed': 0}
    """
    rows = sorted(
        (start + latency, latency) for start, latency in zip(timeline.starts_us, timeline.latencies_us, strict=True)
    )
    first_us = rows[0][0] if rows else 0
    before = sorted(latency for end, latency in rows if first_us + WARM_UP_US <= end < from_us)
    during = [(end, latency) for end, latency in rows if end >= from_us and (until_us is None or end < until_us)]
    ends = [from_us, *(end for end, _ in during)]
    latencies = sorted(latency for _, latency in during)
    return {
        "p50_before_ms": _ms(quantile(before, 0.5)),
        "p99_before_ms": _ms(quantile(before, 0.99)),
        "p99_ms": _ms(quantile(latencies, 0.99)),
        "max_ms": _ms(latencies[-1] if latencies else None),
        "stall_ms": _ms(max((later - earlier for earlier, later in itertools.pairwise(ends)), default=None)),
        "failed": len(timeline.errors),
    }


def _ms(time_us: float | None) -> float | None:
    return None if time_us is None else round(time_us / 1e3, 2)
