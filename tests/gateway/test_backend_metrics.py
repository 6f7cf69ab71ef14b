"""The figures of the log and of the workers, as Prometheus reads them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from boki.gateway.server.http.backend_metrics import BackendMetrics

POOL = {"module": "m", "is_async": True, "starts": 3, "kills": {"memory": 1}, "workers": 2, "running": 1, "queued": 4}
STATUS = {"log": {"engine": {"appended_records": 7, "index_bytes": 11}, "syncs": {"storage-1": 5}}, "pools": [POOL]}


def text_of(status: dict[str, object]) -> str:
    registry = CollectorRegistry()
    BackendMetrics(registry).status = status
    return generate_latest(registry).decode()


def test_what_the_backend_tells_is_there() -> None:
    """Counters, gauges, and the labels of nodes, modules and reasons."""
    text = text_of(STATUS)
    for line in (
        "boki_engine_appended_records_total 7.0",
        "boki_engine_index_bytes 11.0",
        'boki_disk_syncs_total{node="storage-1"} 5.0',
        'boki_worker_starts_total{kind="async",module="m"} 3.0',
        'boki_worker_kills_total{kind="async",module="m",reason="memory"} 1.0',
        'boki_pool_queued{kind="async",module="m"} 4.0',
    ):
        assert line in text.splitlines()


def test_what_it_does_not_tell_is_left_out() -> None:
    """A backend without these figures is no error."""
    assert "boki_engine" not in text_of({})
