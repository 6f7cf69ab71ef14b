"""What stands behind the gateway, for Prometheus: the log's and the workers' figures, read when somebody scrapes.

They are those of `GET /status`, under the names below. What a backend does not tell is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from boki.gateway.server.http.node_metrics import node_metrics

_ENGINE_COUNTERS: Final = {
    "appended_records": "Records that this engine has had ordered",
    "batches": "Batches that this engine has sent to storage nodes",
    "cache_hits": "Reads of the record cache that found their batch",
    "cache_misses": "Reads of the record cache that did not",
}
_ENGINE_GAUGES: Final = {
    "unordered_bytes": "Bytes of appends that wait for their order",
    "waiting_reads": "Reads that wait for something",
    "index_bytes": "Memory of the index",
    "cache_bytes": "Memory of the record cache",
}
_POOL_GAUGES: Final = {
    "workers": "Worker processes",
    "running": "Calls that run",
    "queued": "Calls that wait for a worker",
}


class BackendMetrics(Collector):
    """The figures of `status`, one family each; labels are nodes and modules, of which there are few.

    The handler of a scrape sets the latest `status` first.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.status: Mapping[str, Any] = {}
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        """Nothing: the status is not asked for before somebody scrapes."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        status = self.status
        log = status.get("log", {})
        engine = log.get("engine", {})
        for name, text in _ENGINE_COUNTERS.items():
            if name in engine:
                yield CounterMetricFamily(f"boki_engine_{name}", text, value=engine[name])
        for name, text in _ENGINE_GAUGES.items():
            if name in engine:
                yield GaugeMetricFamily(f"boki_engine_{name}", text, value=engine[name])
        syncs = CounterMetricFamily("boki_disk_syncs", "Syncs of each node's disk", labels=["node"])
        for node, count in log.get("syncs", {}).items():
            syncs.add_metric([node], count)
        yield syncs
        yield from self._pools(status.get("pools", ()))
        if "nodes" in status:
            yield from node_metrics(status["nodes"] | {row["node"]: None for row in status.get("gone", ())})

    @staticmethod
    def _pools(pools: Any) -> Iterator[Metric]:
        labels = ["module", "kind"]
        starts = CounterMetricFamily("boki_worker_starts", "Worker processes started", labels=labels)
        kills = CounterMetricFamily(
            "boki_worker_kills", "Worker processes killed, by reason", labels=[*labels, "reason"]
        )
        gauges = {
            name: GaugeMetricFamily(f"boki_pool_{name}", text, labels=labels) for name, text in _POOL_GAUGES.items()
        }
        for pool in pools:
            place = [pool["module"], "async" if pool["is_async"] else "blocking"]
            starts.add_metric(place, pool["starts"])
            for reason, count in pool["kills"].items():
                kills.add_metric([*place, reason], count)
            for name, gauge in gauges.items():
                gauge.add_metric(place, pool[name])
        yield from (starts, kills, *gauges.values())
