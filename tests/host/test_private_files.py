"""Rights of files: whatever the umask, data and logs are their owner's alone (found.md part 2, M4)."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from boki.host.data_directory import DataDirectory
from boki.host.private_files import make_private_folder, write_new_file
from boki.launch.up.logs import bound, older, open_log
from boki.launch.up.state import SupervisorState, read_state, write_state
from boki.launch.zookeeper.parts import Parts
from boki.launch.zookeeper.server import Ports, ZooKeeperServer


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    """The most careless one."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    found = [folder, *folder.rglob("*")]
    return [path.name for path in found if path.lstat().st_mode & 0o077]


def test_what_boki_makes_is_its_owners_alone(tmp_path: Path) -> None:
    """The data directory, logs and their older part, the supervisor's file, ZooKeeper's folder."""
    data = tmp_path / "data"
    DataDirectory(data).close()
    log = data / "logs/engine-1.log"
    os.close(open_log(log))
    log.write_text("much\n")
    assert bound(log, 1)
    assert older(log).read_text() == "much\n"
    write_state(data, SupervisorState(pid=1, mark="m", url="u", zookeeper="z", chroot="/c"))
    assert read_state(data) is not None
    assert open_to_others(data) == []
    ZooKeeperServer(Parts(Path("java"), ()), tmp_path / "zookeeper", [Ports(1)]).prepare()
    assert {path.name for path in (tmp_path / "zookeeper").iterdir()} == {"data", "zoo.cfg", "log4j2.properties"}
    assert [path for path in (tmp_path / "zookeeper", tmp_path / "zookeeper/data") if path.stat().st_mode & 0o077] == []


def test_what_was_open_to_others_is_closed_with_a_line_that_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A directory of an earlier version; nothing is said of one that is as it should be."""
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    (data / "version").write_text("1\n")
    log = tmp_path / "logs/engine-1.log"
    log.parent.mkdir()
    log.write_text("")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            DataDirectory(data).close()
        os.close(open_log(log))
    assert [record.getMessage() for record in caplog.records] == [
        f"{data} was open to other users (0755): it is its owner's alone now",
        f"{log.parent} was open to other users (0777): it is its owner's alone now",
    ]
    assert data.stat().st_mode & 0o777 == 0o700
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    """It stays as it is."""
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(FileExistsError):
        make_private_folder(file)
    assert file.read_text() == "x"


def test_a_draft_is_never_written_through_a_link(tmp_path: Path) -> None:
    """What somebody has put in its place is removed first, and not opened."""
    target = tmp_path / "target"
    target.write_text("theirs")
    draft = tmp_path / "boki.toml.new"
    draft.symlink_to(target)
    write_new_file(draft, "ours")
    assert (target.read_text(), draft.read_text()) == ("theirs", "ours")
    assert draft.lstat().st_mode & 0o777 == 0o600


def test_a_draft_is_on_the_disk_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut leaves an empty file under the final name, which is no longer what was there before."""
    draft = tmp_path / "supervisor.json.new"
    synced: list[tuple[bool, str]] = []

    def sync(descriptor: int) -> None:
        synced.append((os.path.samestat(os.fstat(descriptor), draft.stat()), draft.read_text()))

    monkeypatch.setattr(os, "fsync", sync)
    write_new_file(draft, "all of it")
    assert synced == [(True, "all of it")]


def test_programs_of_the_user_get_the_umask_that_the_user_had() -> None:
    """A process that keeps its files to itself does not decide about those of functions."""
    code = (
        "import os, subprocess, sys\n"
        "from boki.host.private_files import keep_private, users_umask\n"
        "os.umask(0o027); keep_private(); keep_private()\n"
        "show = [sys.executable, '-c', 'import os; print(oct(os.umask(0)))']\n"
        "subprocess.run(show); subprocess.run(show, umask=users_umask())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0o77", "0o27"]
