"""A real cluster that can be hurt: its processes, their links through proxies, their disks behind a shim.

It is the cluster of `boki up`, started by the same supervisor, with three differences: a ZooKeeper of three servers, a
proxy in front of each node's links (and of its way to ZooKeeper), and `boki.verify.chaos.disks` in front of each
database.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from random import Random
from signal import Signals
from typing import Any, Final

import msgspec

from boki.client import Client
from boki.config.up import UpConfig
from boki.errors import BokiError, Unavailable
from boki.launch.up.identity import is_same, send
from boki.launch.up.state import ProcessState, read_state
from boki.launch.zookeeper.parts import find_parts
from boki.launch.zookeeper.server import Ensemble, ZooKeeperServer, free_ports
from boki.log.membership import Role
from boki.verify.chaos.disks import FaultFolder
from boki.verify.chaos.links import Links
from boki.verify.chaos.supervise import Ward
from boki.verify.workloads import errands

FUNCTIONS: Final = (*sorted((Path(__file__).parent / "functions").glob("*.py")), Path(errands.__file__))
"""The modules of functions that a run calls."""
_LANES: Final = ("control", "appends", "reads")
_PLAN: Final = UpConfig()
_START_S: Final = 60.0
_STOP_S: Final = 40.0
_DRAIN_S: Final = 2.0
_POLL_S: Final = 0.1
_COMMAND_S: Final = 60.0
_LED_WITHIN_S: Final = 10.0
ZOOKEEPER: Final = "zookeeper"


class TargetCluster:
    """One cluster. `start` brings it up; `stop` ends every process of it."""

    def __init__(
        self,
        folder: Path,
        *,
        storage: int,
        tell: Callable[[str], None],
        functions: Collection[Path] = FUNCTIONS,
        is_separate: bool = False,
        speculates: bool = True,
        has_direct_links: bool = False,
    ) -> None:
        """`functions` has at least the modules of `FUNCTIONS`.

        `is_separate`: every role is a process of its own; else a node dies with all its roles. `speculates`: cuts run
        ahead of reports, of shards whose replicas are all beside sequencers. `has_direct_links`: nodes speak to each
        other as in production, by the Unix sockets of `boki.net.local`, and cannot be cut off from each other.
        """
        self._folder = folder
        self._functions = functions
        self._tell = tell
        self._addresses: dict[tuple[str, int], str] = {}
        self._links = Links(lambda host, port: self._addresses.get((host, port), ""))
        self._ensemble = Ensemble(find_parts(), folder / "zookeeper", 3)
        self._paused_servers: list[ZooKeeperServer] = []
        self._is_separate = is_separate
        self._speculates = speculates
        self._has_direct_links = has_direct_links
        self._counts = UpConfig(storage=storage, separate=is_separate).counts
        self._supervisor: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._logs = _PLAN.logs
        self._drained = ""
        self._carried: Counter[tuple[str, str]] = Counter()
        self.reconfigurations = 0
        self.url = ""

    async def start(self) -> None:
        """Start everything and wait until it serves. `Unavailable` if it does not."""
        modules = self._folder / "functions"
        modules.mkdir()
        for file in self._functions:
            shutil.copy(file, modules)
        await asyncio.to_thread(self._ensemble.start)
        port, *ports = free_ports(1 + len(_LANES) * len(self.all_nodes()))
        ward = Ward(
            data=str(self._folder),
            functions=str(modules),
            zookeeper=self._ensemble.hosts,
            port=port,
            storage=self._counts[Role.STORAGE],
            separate=self._is_separate,
            speculates=self._speculates,
            drain_s=_DRAIN_S,
            faults=str(self._folder / "faults"),
            flags={
                node: await self._flags(node, lanes)
                for node, *lanes in zip(self.all_nodes(), *[iter(ports)] * len(_LANES), strict=True)
            },
        )
        self._supervisor = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "boki.verify.chaos.supervise", msgspec.json.encode(ward).decode()),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        self._listening = asyncio.create_task(self._listen())
        until = asyncio.get_running_loop().time() + _START_S
        while not await self._is_ready():
            if asyncio.get_running_loop().time() > until or self._supervisor.returncode is not None:
                raise Unavailable(f"the cluster was not ready within {_START_S:g} s; see {self._cluster_folder}/logs")
            await asyncio.sleep(_POLL_S)

    @property
    def _cluster_folder(self) -> Path:
        return (self._folder / "cluster").resolve()

    async def _listen(self) -> None:
        assert self._supervisor is not None
        assert self._supervisor.stdout is not None
        async for line in self._supervisor.stdout:
            self._tell(line.decode(errors="replace").rstrip())

    async def _flags(self, node: str, ports: list[int]) -> list[str]:
        """What puts a node's links into our hands."""
        self._addresses |= {("127.0.0.1", port): node for port in ports}
        servers = [
            await self._links.forward(node, ZOOKEEPER, "127.0.0.1", server.ports.client)
            for server in self._ensemble.servers
        ]
        flags = ["--zookeeper", ",".join(f"127.0.0.1:{port}" for port in servers)]
        if not self._has_direct_links:
            flags += ["--proxy", f"127.0.0.1:{await self._links.open_proxy(node)}"]
        for lane, port in zip(_LANES, ports, strict=True):
            flags += [f"--{lane}-port", str(port)]
        return flags

    async def _is_ready(self) -> bool:
        if not self.url:
            state = read_state(self._cluster_folder)
            self.url = state.url if state is not None and state.is_running else ""
        if not self.url:
            return False
        try:
            async with asyncio.timeout(5), Client(self.url) as client:
                await client.logbook("chaos-ready").append(b"ready", timeout_s=2)
                return "witness" in {function.name for function in await client.functions()}
        except (BokiError, TimeoutError):
            return False

    async def stop(self) -> None:
        """End every process."""
        await self._links.heal()
        self.resume_zookeeper()
        if self._supervisor is not None and self._listening is not None:
            if self._supervisor.returncode is None:
                self._supervisor.terminate()
            try:
                async with asyncio.timeout(_STOP_S):
                    await self._supervisor.wait()
            except TimeoutError:
                self._supervisor.kill()  # the kernel ends its children with it
                await self._supervisor.wait()
            await self._listening
        await self._links.close()
        await asyncio.to_thread(self._ensemble.stop)

    async def status(self) -> dict[str, Any]:
        """What the gateway describes all nodes; empty if it does not answer."""
        try:
            async with asyncio.timeout(5), Client(self.url) as client:
                return await client.status()
        except (BokiError, TimeoutError):
            return {}

    # what faults need: `boki.verify.chaos.faults.TargetCluster`

    def nodes(self, role: Role) -> list[str]:
        """See `faults.TargetCluster`."""
        return [f"{role}-{number}" for number in range(1, self._counts[role] + 1)]

    def all_nodes(self) -> list[str]:
        """See `faults.TargetCluster`."""
        if self._is_separate:
            return [node for role in self._counts for node in self.nodes(role)]
        return [f"node-{number}" for number in range(1, max(self._counts.values()) + 1)]

    async def primary(self) -> str:
        """See `faults.TargetCluster`."""
        until = asyncio.get_running_loop().time() + _LED_WITHIN_S
        while asyncio.get_running_loop().time() < until:
            nodes: dict[str, Any] = (await self.status()).get("nodes", {})
            for node, told in nodes.items():
                if told and 0 in told.get("leads", ()):
                    return node
            await asyncio.sleep(_POLL_S)
        return self.nodes(Role.SEQUENCER)[0]

    def _process(self, node: str) -> ProcessState | None:
        state = read_state(self._cluster_folder)
        return state.process_of(node) if state is not None else None

    def signal(self, node: str, number: Signals) -> None:
        """Send a signal to its process, if it runs."""
        process = self._process(node)
        if process is not None:
            send(process.pid, process.mark, number)

    def pid(self, node: str) -> int:
        """See `faults.TargetCluster`."""
        process = self._process(node)
        return process.pid if process is not None and is_same(process.pid, process.mark) else 0

    def kill(self, node: str) -> None:
        """See `faults.TargetCluster`."""
        self.signal(node, Signals.SIGKILL)

    def pause(self, node: str) -> None:
        """See `faults.TargetCluster`."""
        self.signal(node, Signals.SIGSTOP)

    def resume(self, node: str) -> None:
        """See `faults.TargetCluster`."""
        self.signal(node, Signals.SIGCONT)

    def is_paused(self, node: str) -> bool:
        """See `faults.TargetCluster`."""
        return _stands_still(self.pid(node))

    def busy_links(self) -> list[tuple[str, str]]:
        """See `faults.TargetCluster`: those that carried more than the average since the last question."""
        carried = self._links.carried - self._carried
        self._carried = self._links.carried.copy()
        nodes = set(self.all_nodes())
        between = {link: count for link, count in carried.items() if nodes.issuperset(link)}
        return sorted(link for link, count in between.items() if count * len(between) >= sum(between.values()))

    async def cut(self, links: Collection[tuple[str, str]]) -> None:
        """See `faults.TargetCluster`."""
        await self._links.cut(links)

    async def heal(self, links: Collection[tuple[str, str]]) -> None:
        """See `faults.TargetCluster`."""
        await self._links.heal(links)

    def reset_links(self, node: str) -> int:
        """See `faults.TargetCluster`."""
        return self._links.reset(node)

    def held_back(self, links: Collection[tuple[str, str]]) -> int:
        """See `faults.TargetCluster`."""
        return sum(self._links.held_back[link] for link in links)

    def _disk_faults(self, node: str) -> FaultFolder:
        return FaultFolder(self._folder / "faults" / node)

    def break_disk(self, node: str, how: str) -> None:
        """See `faults.TargetCluster`."""
        self._disk_faults(node).begin(how)

    def repair_disk(self, node: str, how: str) -> None:
        """See `faults.TargetCluster`."""
        self._disk_faults(node).end(how)

    def has_felt(self, node: str, how: str) -> bool:
        """See `faults.TargetCluster`."""
        return self._disk_faults(node).is_felt(how)

    async def kill_zookeeper_leader(self) -> None:
        """See `faults.TargetCluster`."""
        leader = await asyncio.to_thread(self._zookeeper_leader)
        await asyncio.to_thread(leader.kill)
        leader.start()

    def _zookeeper_leader(self) -> ZooKeeperServer:
        """Who leads, as soon as somebody does."""
        until = time.monotonic() + _LED_WITHIN_S
        while True:
            try:
                return self._ensemble.leader
            except Unavailable:
                if time.monotonic() > until:
                    raise
                time.sleep(_POLL_S)

    async def end_zookeeper(self) -> None:
        """See `faults.TargetCluster`."""
        for server in self._ensemble.servers:
            await asyncio.to_thread(server.kill)

    async def begin_zookeeper(self) -> None:
        """See `faults.TargetCluster`."""
        await asyncio.to_thread(self._ensemble.start)

    def pause_zookeeper(self) -> None:
        """See `faults.TargetCluster`."""
        self._paused_servers = [server for server in self._ensemble.servers if server.pid]
        for server in self._paused_servers:
            server.signal(Signals.SIGSTOP)

    def resume_zookeeper(self) -> None:
        """See `faults.TargetCluster`."""
        for server in self._paused_servers:
            server.signal(Signals.SIGCONT)
        self._paused_servers = []

    def zookeeper_pids(self) -> list[int]:
        """See `faults.TargetCluster`."""
        return [server.pid for server in self._ensemble.servers if server.pid and not _stands_still(server.pid)]

    def rider_of(self, storage: str) -> str:
        """See `faults.TargetCluster`."""
        rider = storage.replace(Role.STORAGE, Role.SEQUENCER)
        return rider if not self._is_separate and rider in self.nodes(Role.SEQUENCER) else ""

    def wipe(self, node: str) -> None:
        """See `faults.TargetCluster`."""
        self.pause(node)  # so that it writes nothing more, nor is started again, before its directory is gone
        for lost in filter(None, (node, self.rider_of(node))):
            folder = self._cluster_folder / "nodes" / lost
            if folder.exists():  # else another fault that was drawn with this one has taken it
                shutil.rmtree(folder)
        self.kill(node)

    async def incarnation(self, node: str) -> int:
        """See `faults.TargetCluster`."""
        told = (await self.status()).get("nodes", {}).get(node) or {}
        return int(told["incarnation"]) if told.get("at_work") else 0

    async def is_whole(self) -> bool:
        """See `faults.TargetCluster`: neither a storage node nor the leading controller knows of a lacking copy."""
        nodes: dict[str, Any] = (await self.status()).get("nodes", {})
        storage = [nodes.get(node) or {} for node in self.nodes(Role.STORAGE)]
        leading = [told["controller"] for told in nodes.values() if told and told.get("leader")]
        lacks = ("shards_incomplete", "shards_lacking_replicas", "index_copies_lacking")
        return all(
            told.get("at_work") and told.get("is_caught_up") and not told["repair"]["lacking_shards"]
            for told in storage
        ) and any(told["repair"] and not any(told["repair"][lack] for lack in lacks) for told in leading)

    async def change_plan(self, random: Random) -> str:
        """See `faults.TargetCluster`."""
        self.reconfigurations += 1
        if self._drained:
            node, self._drained = self._drained, ""
            await self._boki("undrain", node)
            return f"boki undrain {node}"
        if random.random() < 0.5 and len(self.nodes(Role.STORAGE)) > _PLAN.replicas:
            self._drained = random.choice(self.nodes(Role.STORAGE))
            await self._boki("drain", self._drained)
            return f"boki drain {self._drained}"
        self._logs = random.choice([count for count in (1, 2, 3) if count != self._logs])
        await self._boki("reconfigure", "--logs", str(self._logs))
        return f"boki reconfigure --logs {self._logs}"

    async def is_as_planned(self) -> bool:
        """See `faults.TargetCluster`."""
        status = await self.status()
        sequencers = [told for node, told in status.get("nodes", {}).items() if node in self.nodes(Role.SEQUENCER)]
        newest = max((told for told in sequencers if told and "term" in told), key=_term, default={"logs": ()})
        return len(newest["logs"]) == self._logs and status.get("draining") == (
            [self._drained] if self._drained else []
        )

    async def missing(self) -> list[str]:
        """Nodes that are not at work, as far as the cluster's status tells."""
        nodes: dict[str, Any] = (await self.status()).get("nodes", {})
        wanted = [node for role in self._counts if role is not Role.GATEWAY for node in self.nodes(role)]
        return [node for node in wanted if not (nodes.get(node) or {}).get("at_work")]

    async def _boki(self, *words: str) -> None:
        where = ("--zookeeper", self._ensemble.hosts)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "boki", *words, *where, stdout=-3, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(_COMMAND_S):
            _, said = await process.communicate()
        if process.returncode:
            self._tell(f"boki {' '.join(words)} was refused: {said.decode(errors='replace').strip()[-300:]}")


def _term(told: dict[str, Any]) -> int:
    return int(told["term"])


def _stands_still(pid: int) -> bool:
    """Whether a process was halted by a signal, as `man 5 proc` says."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False
