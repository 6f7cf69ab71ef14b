"""One ZooKeeper server as a child process, alone or as a member of an ensemble.

Its files are written by `start`, so that the same directory can be started again with all its data; fsync stays on.
A server is ready when the four-letter command `srvr` tells its `Mode:`; `ruok` answers before it serves anybody.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kazoo.security import make_digest_acl_credential

from boki.errors import Unavailable
from boki.host.private_files import PRIVATE_UMASK, make_private_folder
from boki.launch.zookeeper.parts import Parts
from boki.launch.zookeeper.properties import escaped, misread

HOST: Final = "127.0.0.1"
TICK_MS: Final = 500
"""Sessions can be as short as two ticks and are at most twenty of them."""
_LOCALE: Final = ("/usr/bin/env", "LC_ALL=C.UTF-8")
"""Java takes names of files in the encoding of the locale, and that of a service is often ASCII."""
_JVM_FLAGS: Final = (
    "-Xms8m",
    "-Xmn2m",  # all of the young generation is touched before it is collected once
    "-Xmx64m",
    "-Xss512k",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dzookeeper.admin.enableServer=false",  # it would need jetty, which is not there
    "-Dlog4j2.disableJmx=true",
)
_MAX_CONNECTIONS: Final = 256
"""Of one address, and here all clients have the same one: each node and command holds one connection."""
_VERSION_FOLDER: Final = "version-2"
"""Where ZooKeeper keeps everything, in its directory for data."""
_SUPER: Final = "zookeeper.DigestAuthenticationProvider.superDigest"
_POLL_S: Final = 0.02
_PORTS: Final = range(20_000, 32_000)
_LOG4J: Final = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS}{UTC} zookeeper %p %c{1}: %m%n%ex{2}
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""
_log = logging.getLogger("boki.launch")


@dataclass(frozen=True, slots=True)
class Ports:
    """Where one server listens: for clients, and, in an ensemble, for its peers and for elections."""

    client: int
    peer: int = 0
    election: int = 0


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody listens at now.

    They lie below those that Linux gives to outgoing connections, one of which could hold a port
    just when its server is started again.
    """
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        if len(found) == count:
            return found
        with socket.socket() as listening, contextlib.suppress(OSError):
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((HOST, port))
            found.append(port)
    raise Unavailable(f"there are no {count} free ports between {_PORTS.start} and {_PORTS.stop}")


class ZooKeeperServer:
    """One server over `directory`. `ensemble`: the ports of all members, of which this is number `number` (from 1).

    `digest`: the NAME:PASSWORD that may do everything, so that a cluster whose secret was lost can take a new one.
    """

    def __init__(
        self, parts: Parts, directory: Path, ensemble: Sequence[Ports], number: int = 1, *, digest: str = ""
    ) -> None:
        self.directory = directory.absolute()  # ZooKeeper takes relative paths in ways of its own
        self.number = number
        self.ports = ensemble[number - 1]
        self._parts = parts
        self._digest = digest
        self._ensemble = tuple(ensemble)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"{HOST}:{self.ports.client}"

    @property
    def pid(self) -> int:
        """The process id; 0 if it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    @property
    def log(self) -> Path:
        """Where it writes what goes wrong."""
        return self.directory / "zookeeper.log"

    def prepare(self) -> list[str]:
        """Write its files, which keep the data of earlier runs. The command that runs it."""
        self._write_files()
        return [
            *_LOCALE,
            str(self._parts.java),
            *_JVM_FLAGS,
            *self._super_flags(),
            f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}",
            "-cp",
            os.pathsep.join(str(jar) for jar in self._parts.jars),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(self.directory / "zoo.cfg"),
        ]

    def _super_flags(self) -> list[str]:
        name, _, password = self._digest.partition(":")
        return [f"-D{_SUPER}={make_digest_acl_credential(name, password)}"] if password else []

    def start(self) -> None:
        """Begin to run, with the data of earlier runs. `wait_ready` says when it serves."""
        command = self.prepare()
        with self.log.open("ab") as log:
            # a session of its own: Ctrl-C in the terminal is for the supervisor, which stops this one last
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                umask=PRIVATE_UMASK,
                start_new_session=True,
            )

    def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Wait until it serves. `Unavailable` says why it does not."""
        deadline = time.monotonic() + timeout_s
        while not self.mode():
            if not self.pid:
                raise Unavailable(f"ZooKeeper has ended at its start: {self._last_words()}")
            if time.monotonic() > deadline:
                raise Unavailable(f"ZooKeeper at {self.address} was not ready within {timeout_s:g} s; see {self.log}")
            time.sleep(_POLL_S)

    def mode(self) -> str:
        """`standalone`, `leader` or `follower`; empty while it does not serve."""
        try:
            with socket.create_connection((HOST, self.ports.client), timeout=1.0) as connection:
                connection.sendall(b"srvr")
                answer = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
        except OSError:
            return ""
        return next((line.split(":")[1].strip() for line in answer.splitlines() if line.startswith("Mode:")), "")

    def stop(self, timeout_s: float = 5.0) -> None:
        """End it in good order, or by force when that takes too long."""
        if self._process is None:
            return
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it at once, as `kill -9` does."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _write_files(self) -> None:
        data = self.directory / "data"
        make_private_folder(self.directory)
        make_private_folder(data)
        _bring_back(data)
        lines = [
            f"tickTime={TICK_MS}",
            f"dataDir={escaped(str(data))}",
            f"clientPort={self.ports.client}",
            f"clientPortAddress={HOST}",
            "4lw.commands.whitelist=srvr",
            f"maxClientCnxns={_MAX_CONNECTIONS}",
            "autopurge.purgeInterval=1",
        ]
        if len(self._ensemble) > 1:
            lines += ["initLimit=20", "syncLimit=6"]
            lines += [
                f"server.{number}={HOST}:{ports.peer}:{ports.election}"
                for number, ports in enumerate(self._ensemble, 1)
            ]
            (data / "myid").write_text(f"{self.number}\n")
        (self.directory / "zoo.cfg").write_text("\n".join(lines) + "\n", encoding="ascii")
        (self.directory / "log4j2.properties").write_text(_LOG4J)

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return " / ".join(lines[-3:]) or f"nothing stands in {self.log}"


def _bring_back(data: Path) -> None:
    """Move here what a server wrote elsewhere, as it misread the path in a file of an earlier version. A directory that
    has a file of its own belongs to another server.
    """
    found, wanted = Path(misread(str(data))) / _VERSION_FOLDER, data / _VERSION_FOLDER
    if found == wanted or wanted.exists() or not found.is_dir() or (found.parents[1] / "zoo.cfg").exists():
        return
    found.rename(wanted)
    _log.warning("ZooKeeper had misread its directory's name: moved its data from %s to %s", found, wanted)


class Ensemble:
    """Several servers that agree; one of them may die. `hosts` is what clients connect to."""

    def __init__(self, parts: Parts, directory: Path, size: int = 1) -> None:
        ports = iter(free_ports(3 * size))
        ensemble = [Ports(next(ports), next(ports), next(ports)) for _ in range(size)]
        self.servers = [
            ZooKeeperServer(parts, directory / f"zookeeper-{number}", ensemble, number) for number in range(1, size + 1)
        ]
        self.hosts = ",".join(server.address for server in self.servers)

    def start(self) -> None:
        """Start those that do not run, and wait until all serve."""
        for server in self.servers:
            if not server.pid:
                server.start()
        for server in self.servers:
            server.wait_ready()

    @property
    def leader(self) -> ZooKeeperServer:
        """The one that leads. `Unavailable` if none does now."""
        for server in self.servers:
            if server.mode() == "leader":
                return server
        raise Unavailable("no server of the ensemble leads")

    def stop(self) -> None:
        """End all of them."""
        for server in self.servers:
            server.stop()
