"""Servers of Redis and NATS, started over a temporary folder for a benchmark that compares them with Boki.

All listen on loopback and write to the disk under measurement. Each says how its acknowledged writes become durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar, Final, Literal, Protocol

from boki import Unavailable
from boki.launch.zookeeper.server import free_ports

HOST: Final = "127.0.0.1"
_START_S: Final = 20.0
_STOP_S: Final = 20.0
_POLL_S: Final = 0.05
_MOST_CLIENTS: Final = 1_000


class Server(Protocol):
    """A server program with the settings that matter here. One or more processes of it are one system."""

    program: ClassVar[str]
    client: ClassVar[str]
    """The Python package that speaks with it."""

    @property
    def replicas(self) -> int:
        """Copies of each record; each is a process."""

    @property
    def durability(self) -> str:
        """When a write is synced, in words."""

    @property
    def ports_each(self) -> int:
        """How many ports a process listens on; clients use the first."""

    def commands(self, program: str, folder: Path, ports: Sequence[int]) -> list[list[str]]:
        """The command line of each process, with its data below `folder`."""


@dataclass(frozen=True, slots=True)
class RedisServer:
    """One Redis with an append-only file, which is synced before the answers of an event loop turn leave, or once a
    second.
    """

    program: ClassVar[str] = "redis-server"
    client: ClassVar[str] = "redis"
    ports_each: ClassVar[int] = 1
    replicas: ClassVar[int] = 1
    appendfsync: Literal["always", "everysec"] = "always"

    @property
    def durability(self) -> str:
        """See `Server`."""
        return "fsync always" if self.appendfsync == "always" else "fsync every second"

    def commands(self, program: str, folder: Path, ports: Sequence[int]) -> list[list[str]]:
        """See `Server`. The file is never rewritten: that would disturb one round and not another."""
        options = {"bind": HOST, "port": str(ports[0]), "dir": str(folder), "save": "", "appendonly": "yes"}
        options |= {"appendfsync": self.appendfsync, "maxclients": str(_MOST_CLIENTS)}
        options["auto-aof-rewrite-percentage"] = "0"
        return [[program, *(word for name, value in options.items() for word in (f"--{name}", value))]]


@dataclass(frozen=True, slots=True)
class NatsServer:
    """One NATS server with JetStream, or three in a cluster."""

    program: ClassVar[str] = "nats-server"
    client: ClassVar[str] = "nats"
    ports_each: ClassVar[int] = 2
    replicas: int = 1
    is_synced: bool = True
    """Sync each write before it is acknowledged. Without it the server syncs every two minutes, as by default."""

    @property
    def durability(self) -> str:
        """See `Server`."""
        return "fsync always" if self.is_synced else "no fsync"

    def commands(self, program: str, folder: Path, ports: Sequence[int]) -> list[list[str]]:
        """See `Server`."""
        routes = ", ".join(f'"nats://{HOST}:{port}"' for port in ports[1::2])
        commands = []
        for number, (port, route_port) in enumerate(zip(ports[::2], ports[1::2], strict=True)):
            sync = "sync_interval: always" if self.is_synced else ""
            lines = [
                f'listen: "{HOST}:{port}"',
                f'server_name: "{server_name(port)}"',
                f'jetstream {{ store_dir: "{folder / str(number)}", {sync} }}',
            ]
            if self.replicas > 1:
                lines.append(f'cluster {{ name: "bench", listen: "{HOST}:{route_port}", routes: [{routes}] }}')
            settings = folder / f"nats-{number}.conf"
            settings.write_text("\n".join(lines) + "\n", encoding="utf-8")
            commands.append([program, "-c", str(settings)])
        return commands


def server_name(port: int) -> str:
    """What a NATS server that listens there is called in its cluster."""
    return f"nats-{port}"


@dataclass(frozen=True, slots=True)
class Started:
    """A running system: its version, and where clients connect, one port a process."""

    version: str
    ports: tuple[int, ...]


def find_program(server: Server) -> str | None:
    """The server's executable: on PATH, or where pip puts programs."""
    return shutil.which(server.program) or shutil.which(server.program, path=str(Path(sys.executable).parent))


def is_installed(server: Server) -> bool:
    """Whether the executable is found and the client can be imported."""
    return bool(find_program(server) and importlib.util.find_spec(server.client))


@contextlib.contextmanager
def running(server: Server, scratch: Path) -> Iterator[Started]:
    """The system over a temporary folder in `scratch`, once it answers. Processes and folder are gone at the end."""
    program = find_program(server)
    assert program is not None, "it is installed"
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    version = next((word.removeprefix("v=").removeprefix("v") for word in told.split() if "." in word), "")
    with tempfile.TemporaryDirectory(prefix="boki-peer-", dir=scratch) as folder, contextlib.ExitStack() as stack:
        ports = free_ports(server.replicas * server.ports_each)
        listening = ports[:: server.ports_each]
        commands = server.commands(program, Path(folder), ports)
        processes = [stack.enter_context(process(command, Path(folder))) for command in commands]
        for started, port in zip(processes, listening, strict=True):
            asyncio.run(_answers(server.program, port, started))
        yield Started(version, tuple(listening))


@contextlib.contextmanager
def process(
    command: list[str], folder: Path, stop: signal.Signals = signal.SIGKILL, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that writes to the file `output` in the folder, with these options of `Popen`. The signal `stop` ends
    it, and SIGKILL if that does not.
    """
    with (folder / "output").open("ab") as output:
        to_file: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        started = subprocess.Popen(command, **to_file, **options)
    try:
        yield started
    finally:
        started.send_signal(stop)
        try:
            started.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


async def _answers(program: str, port: int, process: subprocess.Popen[bytes]) -> None:
    until = monotonic() + _START_S
    while process.poll() is None and monotonic() < until:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(HOST, port)
            writer.close()
            return
        await asyncio.sleep(_POLL_S)
    raise Unavailable(f"{program} does not answer on port {port}, exit code {process.poll()}")
