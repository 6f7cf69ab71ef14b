"""What `boki bench store --peers` measures beside Boki: it says what is missing, and counts what was acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from boki.bench.store_peers import STORE_PEERS, RestateCounters, StorePeer
from boki.cli.app import app


def test_a_peer_that_is_not_installed_is_named_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Restate's server is no Python package: the error has npm's command."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert RestateCounters().lacks().startswith("npm install")
    done = CliRunner().invoke(app, ["bench", "store", "--peers"])
    assert done.exit_code == 2
    assert "npm install" in done.output


def test_peers_are_not_measured_beside_a_system_that_does_not_sync() -> None:
    """Figures of one that syncs and one that does not say nothing about each other."""
    done = CliRunner().invoke(app, ["bench", "store", "--peers", "--durability", "memory"])
    assert done.exit_code == 2
    assert "sync" in done.output


@pytest.mark.parametrize("peer", [peer for peer in STORE_PEERS if not peer.lacks()], ids=lambda peer: peer.name)
def test_the_counters_of_a_peer_are_incremented_and_measured(peer: StorePeer, tmp_path: Path) -> None:
    """A round counts increments, and gives the latency of each; the server is gone afterwards."""
    with peer.running(tmp_path) as count:
        one = count(3, 0.2)
    assert one.op_count >= 3
    assert (one.error_count, one.p50_ms is None) == (0, False)
    assert list(tmp_path.iterdir()) == []
