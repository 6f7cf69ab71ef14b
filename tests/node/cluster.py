"""A whole cluster of role shells in one process, over a real ZooKeeper and real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from boki.config.node import CONFIGS, HostConfig, NodeConfig
from boki.log.ids import NodeId
from boki.log.membership import Role, role_name
from boki.node.incarnation import RoleIncarnation
from boki.node.run import run_node

START_S = 60


class Cluster:
    """Nodes by name; `lives` holds the present incarnation of each."""

    def __init__(self, folder: Path, zookeeper: str, chroot: str) -> None:
        self.folder = folder
        self.zookeeper = zookeeper
        self.chroot = chroot
        self.incarnations: dict[str, RoleIncarnation[Any]] = {}
        self.stops: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[int]] = {}

    def start(self, name: str, hosted: Sequence[Role] = tuple(Role), **settings: Any) -> None:
        """Start a node whose role is the first word of its name; one that begins with "node" plays all of `hosted`."""
        self.stops[name] = asyncio.Event()
        if name.startswith("node"):
            config: NodeConfig = self._config(HostConfig, name, settings)
            roles = {role: self._config(CONFIGS[role], role_name(NodeId(name), role), settings) for role in hosted}
        else:
            role = Role(name.partition("-")[0])
            config = self._config(CONFIGS[role], name, settings)
            roles = {role: config}

        def on_incarnation(incarnation: RoleIncarnation[Any]) -> None:
            self.incarnations[incarnation.node] = incarnation

        self.tasks[name] = asyncio.create_task(run_node(config, roles, self.stops[name], on_incarnation=on_incarnation))

    def _config(self, kind: type[NodeConfig], name: str, settings: Mapping[str, Any]) -> NodeConfig:
        settings = {"session_s": 5.0, "port": 0, "functions": self.folder / "functions"} | dict(settings)
        known = {key: value for key, value in settings.items() if key in kind.__struct_fields__}
        return kind(name=name, data=self.folder, zookeeper=self.zookeeper, chroot=self.chroot, **known)

    async def stop(self, name: str) -> int:
        """Let a node drain and end; its exit status."""
        self.stops[name].set()
        return await self.tasks.pop(name)

    async def kill(self, name: str) -> None:
        """Take a node away without a word: it sends and stores nothing more, and its session ends."""
        for incarnation in self.incarnations.values():
            if name in (incarnation.node, incarnation.member().host) and incarnation.host is not None:
                incarnation.host.stop()
        self.tasks[name].cancel()
        await asyncio.gather(self.tasks.pop(name), return_exceptions=True)

    async def until(self, condition: Callable[[], bool], timeout_s: float = START_S) -> None:
        """Wait for something to become so: nodes have no common event, so it is looked at in each turn of the loop."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not condition():
            for task in self.tasks.values():
                if task.done() and task.exception() is not None:
                    task.result()
            assert loop.time() < deadline, f"not so after {timeout_s:g} s"
            tick = asyncio.Event()
            loop.call_later(0.01, tick.set)
            await tick.wait()

    def core(self, name: str) -> Any:
        """A node's core."""
        host = self.incarnations[name].host
        return host.core if host is not None else None

    @property
    def primary(self) -> NodeId:
        """Who leads log 0, as the newest view says that any node has seen."""
        chains = [
            incarnation.host.core.follower.chain
            for incarnation in self.incarnations.values()
            if incarnation.role is Role.STORAGE and incarnation.host
        ]  # type: ignore[attr-defined]
        return max((chain.current for chain in chains if chain), key=lambda view: view.term).primaries[0]


@asynccontextmanager
async def cluster(folder: Path, zookeeper: str, chroot: str, *names: str, **settings: Any) -> AsyncIterator[Cluster]:
    """Nodes of those names, stopped at the end."""
    made = Cluster(folder, zookeeper, chroot)
    (folder / "functions").mkdir(exist_ok=True)
    for name in names:
        made.start(name, **settings)
    try:
        yield made
    finally:
        for stop in made.stops.values():
            stop.set()
        tasks = list(made.tasks.values())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)


DEFAULT = (
    *(f"storage-{number}" for number in range(1, 4)),
    *(f"sequencer-{number}" for number in range(1, 4)),
    "controller-1",
    "engine-1",
    "gateway-1",
)
