"""What `boki bench flow --peers` measures beside Boki: it says what is missing, and measures what exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from boki.bench.flow_peers import Dbos, Restate


def test_a_server_that_is_not_installed_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Restate's server is no Python package: without it the message has npm's command."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert Restate().lacks() == "npm install --ignore-scripts @restatedev/restate-server-linux-x64"


def test_a_server_in_the_folder_of_npm_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """npm puts it below `node_modules` and not on PATH."""
    server = tmp_path / "node_modules/@restatedev/restate-server-linux-x64/bin/restate-server"
    server.parent.mkdir(parents=True)
    server.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert Restate().lacks() == ""


def test_the_workflows_of_dbos_are_run_and_measured(tmp_path: Path) -> None:
    """A round counts workflows, and gives the latency of each."""
    assert Dbos().lacks() == ""
    with Dbos().running(tmp_path) as measure:
        one = measure(2, 0.2, 2)
    assert one.op_count >= 2
    assert one.error_count == 0
    assert one.p50_ms is not None
    assert list(tmp_path.iterdir()) == []
