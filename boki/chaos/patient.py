"""A real cluster that can be hurt: every role a process, its links through proxies, its disks behind a shim.

It is the cluster of `boki up`, started by the same supervisor, with three differences: a ZooKeeper of three servers, a
proxy in front of each node's links (and of its way to ZooKeeper), and `boki.chaos.disks` in front of each database.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

from boki.chaos.links import Links
from boki.client import Client
from boki.cluster.config import UpConfig
from boki.cluster.core import Process
from boki.cluster.launch import prepare
from boki.cluster.server import Supervisor
from boki.errors import BokiError, Unavailable
from boki.log.membership import Role
from boki.zookeeper.parts import find_parts
from boki.zookeeper.server import Ensemble, ZooKeeperServer, free_ports

FUNCTIONS: Final = Path(__file__).parent / "functions"
_LANES: Final = ("control", "appends", "reads")
_START_S: Final = 60.0
_POLL_S: Final = 0.1
_COMMAND_S: Final = 60.0
ZOOKEEPER: Final = "zookeeper"


class Patient:
    """One cluster. `start` brings it up; `stop` ends every process of it."""

    def __init__(self, folder: Path, config: UpConfig, tell: Callable[[str], None]) -> None:
        self._folder = folder
        self._config = config
        self._tell = tell
        self._addresses: dict[tuple[str, int], str] = {}
        self._links = Links(lambda host, port: self._addresses.get((host, port), ""))
        self._ensemble = Ensemble(find_parts(), folder / "zookeeper", 3)
        self._paused_servers: list[ZooKeeperServer] = []
        self._supervisor: Supervisor | None = None
        self._running: asyncio.Task[None] | None = None
        self._logs = config.logs
        self._drained = ""
        self.reconfigurations = 0
        self.url = ""

    async def start(self) -> None:
        """Start everything and wait until it serves. `Unavailable` if it does not."""
        await asyncio.to_thread(self._ensemble.start)
        launch = prepare(replace_config(self._config, zookeeper=self._ensemble.hosts, data=self._folder))
        processes = [await self._through_proxies(process) for process in launch.processes]
        self.url = launch.about.url
        self._supervisor = Supervisor(
            self._config_folder,
            processes,
            launch.about,
            environment=launch.environment,
            on_event=lambda _name, text, _facts: self._tell(text),
        )
        self._running = asyncio.create_task(self._supervisor.run())
        until = asyncio.get_running_loop().time() + _START_S
        while not await self._is_ready():
            if asyncio.get_running_loop().time() > until:
                raise Unavailable(f"the cluster was not ready within {_START_S:g} s; see {self._config_folder}")
            await asyncio.sleep(_POLL_S)

    @property
    def _config_folder(self) -> Path:
        return (self._folder / "cluster").resolve()

    async def _through_proxies(self, process: Process) -> Process:
        """The same process, with its links and its disk in our hands."""
        node = process.node
        ports = free_ports(len(_LANES))
        self._addresses |= {("127.0.0.1", port): node for port in ports}
        proxy = await self._links.open_proxy(node)
        servers = [
            await self._links.forward(node, ZOOKEEPER, "127.0.0.1", server.ports.client)
            for server in self._ensemble.servers
        ]
        faults = self._faults(node)
        faults.mkdir(parents=True, exist_ok=True)
        flags = ["--proxy", f"127.0.0.1:{proxy}", "--zookeeper", ",".join(f"127.0.0.1:{port}" for port in servers)]
        for lane, port in zip(_LANES, ports, strict=True):
            flags += [f"--{lane}-port", str(port)]
        words = process.command[process.command.index("start") :]
        command = (sys.executable, "-m", "boki.chaos.disks", str(faults), *words, *flags)
        return replace(process, command=command)

    def _faults(self, node: str) -> Path:
        return self._folder / "faults" / node

    async def _is_ready(self) -> bool:
        assert self._running is not None
        if self._running.done():
            raise Unavailable(f"the supervisor has ended: {self._running.exception()!r}")
        try:
            async with asyncio.timeout(5), Client(self.url) as client:
                await client.logbook("chaos-ready").append(b"ready", timeout_s=2)
                return "witness" in {function.name for function in await client.functions()}
        except (BokiError, TimeoutError):
            return False

    async def stop(self) -> None:
        """End every process."""
        if self._supervisor is not None and self._running is not None:
            await self.heal()
            self.resume_zookeeper()
            self._supervisor.stop()
            await asyncio.gather(self._running, return_exceptions=True)
        await self._links.close()
        await asyncio.to_thread(self._ensemble.stop)

    async def status(self) -> dict[str, Any]:
        """What the gateway tells of all nodes; empty if it does not answer."""
        try:
            async with asyncio.timeout(5), Client(self.url) as client:
                return await client.status()
        except (BokiError, TimeoutError):
            return {}

    # what faults need: `boki.chaos.faults.Patient`

    def nodes(self, role: Role) -> list[str]:
        """See `faults.Patient`."""
        return [node for node in self.all_nodes() if node.startswith(f"{role.value}-")]

    def all_nodes(self) -> list[str]:
        """See `faults.Patient`."""
        assert self._supervisor is not None
        return list(self._supervisor.core.rows)

    async def primary(self) -> str:
        """See `faults.Patient`."""
        nodes: dict[str, Any] = (await self.status()).get("nodes", {})
        leading = [node for node, told in nodes.items() if told and 0 in told.get("leads", ())]
        return (leading or self.nodes(Role.SEQUENCER))[0]

    def _signal(self, node: str, number: signal.Signals) -> None:
        assert self._supervisor is not None
        pid = self._supervisor.core.rows[node].pid
        if pid:
            os.kill(pid, number)

    def kill(self, node: str) -> None:
        """See `faults.Patient`."""
        self._signal(node, signal.SIGKILL)

    def pause(self, node: str) -> None:
        """See `faults.Patient`."""
        self._signal(node, signal.SIGSTOP)

    def resume(self, node: str) -> None:
        """See `faults.Patient`."""
        self._signal(node, signal.SIGCONT)

    async def cut(self, source: str, destination: str) -> None:
        """See `faults.Patient`."""
        await self._links.cut(source, destination)

    async def heal(self) -> None:
        """See `faults.Patient`."""
        await self._links.heal()

    def break_disk(self, node: str, how: str) -> None:
        """See `faults.Patient`."""
        (self._faults(node) / how).touch()

    def mend_disk(self, node: str) -> None:
        """See `faults.Patient`."""
        for file in self._faults(node).iterdir():
            file.unlink()

    async def kill_zookeeper_leader(self) -> None:
        """See `faults.Patient`."""
        leader = await asyncio.to_thread(lambda: self._ensemble.leader)
        await asyncio.to_thread(leader.kill)
        leader.start()

    def pause_zookeeper(self) -> None:
        """See `faults.Patient`."""
        self._paused_servers = [server for server in self._ensemble.servers if server.pid]
        for server in self._paused_servers:
            server.signal(signal.SIGSTOP)

    def resume_zookeeper(self) -> None:
        """See `faults.Patient`."""
        for server in self._paused_servers:
            server.signal(signal.SIGCONT)
        self._paused_servers = []

    async def change_plan(self, random: Random) -> str:
        """See `faults.Patient`."""
        self.reconfigurations += 1
        if self._drained:
            node, self._drained = self._drained, ""
            await self._boki("undrain", node)
            return f"boki undrain {node}"
        if random.random() < 0.5 and len(self.nodes(Role.STORAGE)) > self._config.replicas:
            self._drained = random.choice(self.nodes(Role.STORAGE))
            await self._boki("drain", self._drained)
            return f"boki drain {self._drained}"
        self._logs = random.choice([count for count in (1, 2, 3) if count != self._logs])
        await self._boki("reconfigure", "--logs", str(self._logs))
        return f"boki reconfigure --logs {self._logs}"

    async def _boki(self, *words: str) -> None:
        where = ("--zookeeper", self._ensemble.hosts)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "boki", *words, *where, stdout=-3, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(_COMMAND_S):
            _, said = await process.communicate()
        if process.returncode:
            self._tell(f"boki {' '.join(words)} was refused: {said.decode(errors='replace').strip()[-300:]}")

    async def power_cut(self) -> None:
        """See `faults.Patient`."""
        for node in self.all_nodes():
            self.kill(node)


def replace_config(config: UpConfig, **changes: Any) -> UpConfig:
    """The configuration with these fields changed."""
    return UpConfig(**{name: getattr(config, name) for name in config.__struct_fields__} | changes)
