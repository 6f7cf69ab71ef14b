"""What the gateway counts, and how Prometheus reads it.

Counting stands on the path of every call, so it is a few additions into plain lists; the work is done at a scrape.
The sets of labels are bounded: functions by what is registered, routes by what exists, codes by the errors that exist.
What is unknown is counted under `other`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from boki.gateway.core import GatewayCore

BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
MAX_SERIES: Final = 2000
OTHER: Final = "other"


class Meter:
    """Counts and durations of one function or one route, by the code of how it ended (`ok` or an error's)."""

    __slots__ = ("_buckets", "_sum_s", "codes")

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}
        self._buckets = [0] * (len(BUCKETS_S) + 1)
        self._sum_s = 0.0

    def count(self, code: str, duration_s: float) -> None:
        """One has ended."""
        self.codes[code] = self.codes.get(code, 0) + 1
        self._buckets[bisect_left(BUCKETS_S, duration_s)] += 1
        self._sum_s += duration_s

    def histogram(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative buckets as Prometheus wants them, and the sum of all durations."""
        total = 0
        rows: list[tuple[str, float]] = []
        for bound, number in zip((*BUCKETS_S, float("inf")), self._buckets, strict=True):
            total += number
            rows.append(("+Inf" if bound == float("inf") else str(bound), total))
        return rows, self._sum_s


class GatewayMetrics(Collector):
    """All meters of one gateway, and its gauges."""

    def __init__(self, core: GatewayCore, registry: CollectorRegistry) -> None:
        self._core = core
        self._functions: dict[str, Meter] = {}
        self._routes: dict[str, Meter] = {}
        self.registry = registry
        registry.register(self)
        ProcessCollector(registry=registry)

    def function(self, name: str) -> Meter:
        """The meter of a registered function."""
        return _meter(self._functions, name)

    def route(self, template: str) -> Meter:
        """The meter of a route."""
        return _meter(self._routes, template)

    def collect(self) -> Iterator[Metric]:
        """Everything, for one scrape."""
        yield from _families("boki_call", "Function calls over HTTP", "function", self._functions)
        yield from _families("boki_http_request", "HTTP requests other than calls", "route", self._routes)
        flight = GaugeMetricFamily("boki_gateway_in_flight", "What is in flight, by kind", labels=["kind"])
        flight.add_metric(["call"], self._core.call_count)
        flight.add_metric(["request"], self._core.request_count)
        flight.add_metric(["poll"], self._core.poll_count)
        flight.add_metric(["answer"], self._core.answer_count)
        flight.add_metric(["stream"], self._core.stream_count)
        yield flight
        yield GaugeMetricFamily(
            "boki_gateway_bytes_in_flight", "Bytes of bodies and answers in flight", value=self._core.bytes_in_flight
        )
        yield GaugeMetricFamily(
            "boki_gateway_draining", "1 while the gateway shuts down", value=float(self._core.is_draining)
        )
        engines = GaugeMetricFamily("boki_gateway_engine_calls", "Calls in flight at each engine", labels=["engine"])
        for engine, number in self._core.engines().items():
            engines.add_metric([engine], number)
        yield engines


def _meter(meters: dict[str, Meter], name: str) -> Meter:
    meter = meters.get(name)
    if meter is None:
        meter = meters.setdefault(name if len(meters) < MAX_SERIES else OTHER, Meter())
    return meter


def _families(prefix: str, what: str, label: str, meters: dict[str, Meter]) -> Iterator[Metric]:
    ended = CounterMetricFamily(f"{prefix}s", f"{what}, by how they ended", labels=[label, "code"])
    seconds = HistogramMetricFamily(f"{prefix}_seconds", f"How long they took: {what.lower()}", labels=[label])
    for name, meter in meters.items():
        for code, number in meter.codes.items():
            ended.add_metric([name, code], number)
        buckets, total = meter.histogram()
        seconds.add_metric([name], buckets, total)
    yield ended
    yield seconds
