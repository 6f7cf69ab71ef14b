"""What Boki is measured beside runs for real, and is held to the same counts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from boki.bench import queue_peers
from boki.bench.queue_flow import QueueLoad


def test_nats_is_installed() -> None:
    """The extra `peers` brings it along; so what follows cannot be empty."""
    assert "NATS JetStream" in [kind.name for kind in queue_peers.installed()]


@pytest.mark.parametrize("kind", queue_peers.installed(), ids=lambda kind: kind.name)
def test_all_that_is_pushed_comes_out_once(kind: queue_peers.Kind, tmp_path: Path) -> None:
    """Through a real server, which is gone afterwards with its folder."""
    with queue_peers.running(kind, tmp_path) as peer:
        assert peer.started.version.count(".") == 2
        for name, offered_per_s in (("closed", 0.0), ("offered", 40.0)):
            one = peer.run(QueueLoad(name, 4, 4, 4, 100, 0.3, offered_per_s))
            assert one.error_count == 0
            assert one.pushed_count > 0
            assert one.push_p50_ms is not None
            assert one.delivery_p50_ms is not None
        port = peer.started.ports[0]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    assert list(tmp_path.iterdir()) == []
