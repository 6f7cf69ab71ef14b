"""What every benchmark prints: one row a measurement, with the same fields everywhere.

A row is the median of several rounds after a warm-up round. Latencies are measured where the work is done, with
`perf_counter`, and a round's quantiles are computed over all its operations.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import msgspec


class Round(msgspec.Struct, frozen=True):
    """One round as it was measured: counts, duration, and the latency of one operation: its quantiles and its mean."""

    op_count: int
    error_count: int
    elapsed_s: float
    p50_ms: float | None
    p99_ms: float | None
    mean_ms: float | None = None
    """Unlike a median it shows a share of slow operations that is less than a half."""


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """One line of `--json`. All fields but `details` stand in every row (None: it has no meaning for this benchmark);
    `details` are figures of this benchmark alone and are printed beside them.
    """

    bench: str
    inflight: int
    size_bytes: int
    replicas: int
    durability: str
    system: str = "one process"
    """"cluster": several processes."""
    ops_per_s: float | None
    p50_ms: float | None
    p99_ms: float | None
    errors: int
    details: dict[str, Any] = {}

    def flat(self) -> dict[str, Any]:
        """The row as one object without nesting."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        details: dict[str, Any] = fields.pop("details")
        return fields | details


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of the (ascending) values do not exceed.

    >>> quantile([1.0, 2.0, 3.0, 4.0], 0.5), quantile([1.0, 2.0, 3.0, 4.0], 0.99), quantile([], 0.5)
    (2.0, 4.0, None)
    """
    if not ordered:
        return None
    rank = -int(-share * len(ordered) // 1)  # rounded up
    return ordered[min(max(rank, 1), len(ordered)) - 1]


def measured(latencies_s: list[float], error_count: int, elapsed_s: float) -> Round:
    """A round from the latencies of its successful operations."""
    ordered = sorted(latencies_s)
    p50_s, p99_s = quantile(ordered, 0.5), quantile(ordered, 0.99)
    return Round(
        len(ordered),
        error_count,
        elapsed_s,
        None if p50_s is None else round(p50_s * 1e3, 4),
        None if p99_s is None else round(p99_s * 1e3, 4),
        round(statistics.fmean(ordered) * 1e3, 4) if ordered else None,
    )


def together(rounds: Sequence[Round]) -> Round:
    """Clients that were measured at the same time, as one round; the quantiles are those of the slowest client.

    >>> together([Round(10, 0, 2.0, 1.0, 4.0, 1.2), Round(20, 1, 1.5, 2.0, 3.0, 1.8)])
    Round(op_count=30, error_count=1, elapsed_s=2.0, p50_ms=2.0, p99_ms=4.0, mean_ms=1.6)
    """
    known = [(one.mean_ms, one.op_count) for one in rounds if one.mean_ms is not None]
    return Round(
        sum(one.op_count for one in rounds),
        sum(one.error_count for one in rounds),
        max(one.elapsed_s for one in rounds),
        max((one.p50_ms for one in rounds if one.p50_ms is not None), default=None),
        max((one.p99_ms for one in rounds if one.p99_ms is not None), default=None),
        round(sum(mean * count for mean, count in known) / sum(count for _, count in known), 4) if known else None,
    )


def rate(one: Round) -> float:
    """Successful operations a second."""
    return one.op_count / one.elapsed_s if one.elapsed_s else 0.0


def median(values: Sequence[float | None]) -> float | None:
    """The median of those that are known.

    >>> median([1.0, None, 3.0])
    2.0
    """
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 4) if known else None


def summary(rounds: Sequence[Round]) -> dict[str, Any]:
    """The measured fields of a `Row`: medians over the rounds, and all errors."""
    return {
        "ops_per_s": median([rate(one) for one in rounds]),
        "p50_ms": median([one.p50_ms for one in rounds]),
        "p99_ms": median([one.p99_ms for one in rounds]),
        "errors": sum(one.error_count for one in rounds),
    }
