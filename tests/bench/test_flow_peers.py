"""What `boki bench flow --peers` measures beside Boki: it says what is missing, and measures what exists."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from boki.bench import flow, postgres
from boki.bench.flow_peers import FLOW_PEERS, FLOW_PEERS_IF_INSTALLED, Dbos, DbosPostgres, Restate
from boki.bench.system import Options
from boki.bench.turns import left_out, wanted_peers
from boki.errors import ConfigError, Unavailable

_DBOS = [peer for peer in (Dbos(), DbosPostgres()) if not peer.lacks()]
_WITH_SERVER = [peer for peer in _DBOS if isinstance(peer, DbosPostgres)]


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder that the user can enter as whom root runs PostgreSQL: that of `tmp_path` is closed to others."""
    with tempfile.TemporaryDirectory(prefix="boki-test-") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


def _install(folder: Path, **programs: str) -> Path:
    folder.mkdir(parents=True)
    for name, does in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{does}\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def debian(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where Debian has PostgreSQL, if it were installed; nothing is on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(postgres, "_DEBIAN_FOLDER", tmp_path / "postgresql")
    return tmp_path / "postgresql"


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


@pytest.mark.parametrize("peer", _DBOS, ids=lambda peer: peer.name)
def test_the_workflows_of_dbos_are_run_and_measured(peer: Dbos, scratch: Path) -> None:
    """A round counts workflows, and gives the latency of each."""
    with peer.running(scratch) as measure:
        rounds = [measure(2, 0.2, 2), measure(1, 0.1, 1)]
    for one in rounds:
        assert one.op_count >= 1
        assert one.error_count == 0
        assert one.p50_ms is not None
    assert rounds[0].op_count >= 2
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("peer", _WITH_SERVER, ids=lambda peer: peer.name)
def test_the_server_of_postgres_syncs_and_is_gone_at_the_end(peer: DbosPostgres, scratch: Path) -> None:
    """It has the defaults of what an acknowledged commit means, and no port. No process of it is left."""
    import psycopg

    with tempfile.TemporaryDirectory(dir=scratch) as folder, peer.databases(Path(folder)) as urls:
        first, second = next(urls), next(urls)
        assert first != second
        with psycopg.connect(first.replace("/round_0?", "/postgres?")) as connection:
            shown = [
                connection.execute(f"SHOW {name}").fetchone()
                for name in ("fsync", "synchronous_commit", "full_page_writes", "listen_addresses")
            ]
        pid = int(Path(folder, "data", "postmaster.pid").read_text().splitlines()[0])
        os.kill(pid, 0)
    assert shown == [("on",), ("on",), ("on",), ("",)]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_without_postgres_the_others_are_measured_and_a_row_says_what_is_left_out(
    monkeypatch: pytest.MonkeyPatch, debian: Path
) -> None:
    """It is measured if it is installed. Without `--peers` there is no row."""
    assert not debian.exists()
    wanted = Options(with_peers=True)
    assert [peer.name for peer in wanted_peers(wanted, (Dbos(),), FLOW_PEERS_IF_INSTALLED)] == ["DBOS (SQLite)"]
    (row,) = left_out(wanted, "flow-steps", FLOW_PEERS_IF_INSTALLED)
    assert (row.system, row.ops_per_s, row.p50_ms, row.errors) == ("DBOS (PostgreSQL)", None, None, 0)
    assert row.details == {"left_out": "needs apt-get install postgresql"}
    monkeypatch.setattr(flow, "FLOW_PEERS", ())
    assert next(flow.flow(wanted, lambda _text: None)) == row, "before anything is started"
    assert list(left_out(Options(), "flow-steps", FLOW_PEERS_IF_INSTALLED)) == []
    assert wanted_peers(Options(), FLOW_PEERS, FLOW_PEERS_IF_INSTALLED) == []


def test_restate_and_dbos_over_sqlite_are_required(
    monkeypatch: pytest.MonkeyPatch, debian: Path, tmp_path: Path
) -> None:
    """The figures are compared with them, so that a run without one of them is refused."""
    _install(debian / "15/bin", postgres="", initdb="")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="--peers needs Restate: npm install"):
        wanted_peers(Options(with_peers=True), FLOW_PEERS, FLOW_PEERS_IF_INSTALLED)
    found = wanted_peers(Options(with_peers=True), (), FLOW_PEERS_IF_INSTALLED)
    assert [peer.name for peer in found] == ["DBOS (PostgreSQL)"]
    assert list(left_out(Options(with_peers=True), "flow-steps", FLOW_PEERS_IF_INSTALLED)) == []


def test_postgres_is_that_on_path_or_the_newest_one_that_has_a_server(debian: Path, tmp_path: Path) -> None:
    """Debian puts neither `initdb` nor `postgres` on PATH, and a client's package has neither."""
    _install(debian / "9.6/bin", postgres="", initdb="")
    _install(debian / "13/bin", postgres="", initdb="")
    _install(debian / "15/bin", psql="")
    assert postgres.programs() == debian / "13/bin"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/postgres").symlink_to(_install(tmp_path / "own", postgres="", initdb="") / "postgres")
    assert postgres.programs() == tmp_path / "own"


def test_a_folder_that_the_user_of_postgres_cannot_enter_is_named(
    monkeypatch: pytest.MonkeyPatch, debian: Path, tmp_path: Path
) -> None:
    """Root runs it as another user, and its own messages would not say why it fails."""
    _install(debian / "15/bin", postgres="", initdb="")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    folder = tmp_path / "closed" / "scratch"
    folder.mkdir(parents=True)
    (tmp_path / "closed").chmod(0o700)
    with pytest.raises(ConfigError, match=r"cannot enter .*/closed: choose another folder with --scratch"):  # noqa: SIM117
        with postgres.running(folder):
            pass


@pytest.mark.parametrize(
    ("programs", "told"),
    [
        ({"initdb": "echo no space left >&2; exit 1", "postgres": ""}, "initdb has failed: no space left"),
        ({"initdb": "", "postgres": "echo the path is too long; exit 1"}, "exit code 1: the path is too long"),
    ],
    ids=["initdb", "postgres"],
)
def test_a_server_that_does_not_start_says_why(
    monkeypatch: pytest.MonkeyPatch, debian: Path, tmp_path: Path, programs: dict[str, str], told: str
) -> None:
    """The last line that it has written is in the message."""
    _install(debian / "15/bin", **programs)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)  # as the user who runs the test
    folder = tmp_path / "scratch"
    folder.mkdir()
    with pytest.raises(Unavailable, match=told):  # noqa: SIM117
        with postgres.running(folder):
            pass
