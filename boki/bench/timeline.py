"""What a load noticed of something that happened to the cluster: its latencies before it and after."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
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


def sample(samples: list[tuple[int, int]], repair: Mapping[str, Any], now_us: int) -> None:
    """Append what a node says of its repair; a node that does not answer has copied what it had, and not nothing.

    >>> samples: list[tuple[int, int]] = []
    >>> sample(samples, {"copied_bytes": 5}, 1)
    >>> sample(samples, {}, 2)
    >>> samples
    [(1, 5)]
    """
    if "copied_bytes" in repair:
        samples.append((now_us, int(repair["copied_bytes"])))


def copy_rates(samples: Sequence[tuple[int, int]], load_until_us: int) -> dict[str, float | None]:
    """Megabytes a second that were copied while a load ran, and after its end; None where there was no such time.

    Nodes copy slowly while appends arrive, so one rate over both says how long the load was, and nothing else.
    `samples`: microseconds since the epoch and the bytes copied by then.

    >>> copy_rates([(0, 0), (2_000_000, 16_000_000), (3_000_000, 50_000_000), (4_000_000, 120_000_000)], 2_500_000)
    {'mb_per_s': 8.0, 'mb_per_s_after_load': 70.0}
    """
    under = [sample for sample in samples if sample[0] <= load_until_us]
    after = [sample for sample in samples if sample[0] > load_until_us]
    return {"mb_per_s": _mb_per_s(under), "mb_per_s_after_load": _mb_per_s(after)}


def _mb_per_s(samples: Sequence[tuple[int, int]]) -> float | None:
    if not samples or (passed_us := samples[-1][0] - samples[0][0]) <= 0:
        return None
    return round((samples[-1][1] - samples[0][1]) / passed_us, 1)


def _ms(time_us: float | None) -> float | None:
    return None if time_us is None else round(time_us / 1e3, 2)
