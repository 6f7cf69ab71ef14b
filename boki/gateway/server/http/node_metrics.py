"""The nodes of a cluster for Prometheus, from what each of them says of itself
(`boki.node.incarnation.RoleIncarnation.status`).

`boki_log_stalled_seconds` above 0 is the one to be woken up by: a log grows, and nothing of it is applied there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

_LOG_GAUGES: Final = {
    "applied": ("boki_log_applied_entries", "Metalog entries of its term that this node has applied"),
    "lag": ("boki_log_lag_entries", "Metalog entries that this node knows to be committed and has not applied"),
    "stalled_s": ("boki_log_stalled_seconds", "For how long a log has grown here while nothing of it was applied"),
}
_LINK_COUNTERS: Final = {
    "sent_bytes": "Bytes sent to other nodes",
    "received_bytes": "Bytes received from other nodes",
    "dropped_count": "Messages to other nodes that were given up",
    "refused_count": "Messages of other nodes that were not taken",
}


def node_metrics(nodes: Mapping[str, Mapping[str, Any] | None]) -> Iterator[Metric]:
    """The families of all nodes; one that said nothing is down."""
    what = "Whether a node that is registered, or was minutes ago, has answered"
    up = GaugeMetricFamily("boki_node_up", what, labels=["node"])
    for node, status in nodes.items():
        up.add_metric([node], 0 if status is None else 1)
    yield up
    told = {node: status for node, status in nodes.items() if status is not None}
    yield from _plain(told)
    yield from _logs(told)
    yield from _links(told)


def _plain(nodes: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    term = GaugeMetricFamily("boki_node_term", "The newest term that a node knows", labels=["node"])
    leads = GaugeMetricFamily("boki_controller_leads", "Whether a controller leads the others", labels=["node"])
    free = GaugeMetricFamily("boki_disk_free_bytes", "What a node's file system has left", labels=["node"])
    syncs = CounterMetricFamily("boki_node_disk_syncs", "Syncs of a node's disk", labels=["node"])
    for node, status in nodes.items():
        if "term" in status:
            term.add_metric([node], status["term"])
        if "leader" in status:
            leads.add_metric([node], status["leader"])
        if "disk" in status:
            free.add_metric([node], status["disk"]["free_bytes"])
            syncs.add_metric([node], status["disk"]["syncs"])
    yield from (term, leads, free, syncs)


def _logs(nodes: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    for field, (name, text) in _LOG_GAUGES.items():
        gauge = GaugeMetricFamily(name, text, labels=["node", "log"])
        for node, status in nodes.items():
            for log, row in status.get("logs", {}).items():
                if field in row:
                    gauge.add_metric([node, log], row[field])
        yield gauge


def _links(nodes: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    for field, text in _LINK_COUNTERS.items():
        counter = CounterMetricFamily(f"boki_link_{field.removesuffix('_count')}", text, labels=["node", "lane"])
        for node, status in nodes.items():
            for lane, row in status.get("links", {}).items():
                counter.add_metric([node, lane], row[field])
        yield counter
