"""Runs a node: the roles that it plays, each one incarnation after the other, until it is told to stop or a role has
failed.

A node is one process, with one session with ZooKeeper and one set of sockets. It plays one role, or several: those
hand their messages to each other by reference, stand in one registration, and are lost together. Each keeps the name,
the directory and the disk that it would have as a node of its own (`boki.log.membership.role_name`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from boki.config.node import EngineNodeConfig, GatewayNodeConfig, NodeConfig
from boki.coordination.session import SessionEnded
from boki.coordination.zookeeper import News, ZooKeeperCoordinator
from boki.errors import ConfigError, Unavailable
from boki.log.ids import NodeId
from boki.log.membership import STOP_ORDER, Role
from boki.net.keys import NodeKeys, load_keys
from boki.net.zmq import ZmqLinks
from boki.node.common_log import common_log
from boki.node.controller import ControllerIncarnation
from boki.node.coordination import SharedCoordinator
from boki.node.engine import EngineIncarnation
from boki.node.home import Home
from boki.node.incarnation import Ending, RoleIncarnation
from boki.node.log_nodes import SequencerIncarnation, StorageIncarnation
from boki.node.stopping import AFTER_DRAIN_S, NodeStop
from boki.protocol.messages import InstallMembership

_log = logging.getLogger("boki.node")
_CONNECT_TIMEOUT_S: Final = 10.0
_TELL_AFTER_S: Final = 1.0
"""A ZooKeeper that answers is connected to within much less: whoever looks is told what is waited for."""
_INCARNATIONS: Final[Mapping[Role, type[RoleIncarnation[Any]]]] = {
    Role.ENGINE: EngineIncarnation,
    Role.CONTROLLER: ControllerIncarnation,
    Role.STORAGE: StorageIncarnation,
    Role.SEQUENCER: SequencerIncarnation,
}
_OVER: Final = (Ending.FAILED, Ending.EXPIRED, Ending.STOPPED)
"""Endings of an incarnation that are the node's; the first that any role has come to counts."""
OnIncarnation = Callable[[RoleIncarnation[Any]], None]


def incarnation_of(role: Role) -> type[RoleIncarnation[Any]]:
    """The class of the role's incarnations. That of a gateway comes with an HTTP server, nearly half of the processor
    time that all imports of a node take; it is imported where a gateway runs.
    """
    if role is Role.GATEWAY:
        from boki.node.gateway import GatewayIncarnation

        return GatewayIncarnation
    return _INCARNATIONS[role]


async def run_node(
    config: NodeConfig,
    roles: Mapping[Role, NodeConfig],
    stop: asyncio.Event,
    *,
    on_incarnation: OnIncarnation = lambda _incarnation: None,
) -> int:
    """Run the node until `stop` is set: 0; or until one of its roles has failed: 1. The log says why.

    `config` is that of the node as a whole: name, links, ZooKeeper. `on_incarnation` is told of each incarnation as it
    begins. `ConfigError`: it cannot run like this at all.
    """
    names = {own.node: role for role, own in roles.items()}
    _keys_of(config, names)  # now, because ZooKeeper may be waited for
    homes: dict[Role, Home] = {}
    try:
        for role, own in roles.items():
            homes[role] = Home(own.directory, own.node, role)
        # What says that the former incarnation of this node is over: the lock of a directory that is least likely to be
        # lost.
        home = next(homes[role] for role in STOP_ORDER if role in homes)
        while not stop.is_set():
            coordinator = await _connect(config, home, stop)
            if coordinator is None:
                break
            node = _Node(config, roles, homes, coordinator, on_incarnation)
            try:
                ending = await node.run(stop)
            finally:
                await node.close()
            if ending is Ending.FAILED:
                return 1
            if ending is Ending.EXPIRED:
                _log.warning("%s: session expired; restarting all roles", config.name)
        return 0
    finally:
        for opened in homes.values():
            opened.close()


class _Node:
    """The node under one session."""

    def __init__(
        self,
        config: NodeConfig,
        roles: Mapping[Role, NodeConfig],
        homes: Mapping[Role, Home],
        coordinator: ZooKeeperCoordinator,
        on_incarnation: OnIncarnation,
    ) -> None:
        self._config = config
        self._roles = roles
        self._homes = homes
        self._on_incarnation = on_incarnation
        self._names = {own.node: role for role, own in roles.items()}
        self._common_log = common_log(
            {role: own.node for role, own in roles.items()}, is_synced=config.durability == "fsync"
        )
        self._shared = SharedCoordinator(coordinator, election=Role.CONTROLLER in roles, on_news=self._on_news)
        self._links: ZmqLinks | None = None
        self._stop = NodeStop(asyncio.get_running_loop().time)
        drains = [own.drain_s for own in roles.values() if isinstance(own, EngineNodeConfig | GatewayNodeConfig)]
        self._drain_s = max(drains, default=0.0)
        self._stops = {role: asyncio.Event() for role in roles}
        self._running: dict[Role, asyncio.Task[Ending]] = {}

    async def run(self, stop: asyncio.Event) -> Ending:
        """Run all roles until one of them is over or `stop` is set; then end the others, in order."""
        links = self._links = self._open_links()
        self._running = {role: asyncio.create_task(self._run_role(role, links)) for role in self._roles}
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({stopping, *self._running.values()}, return_when=asyncio.FIRST_COMPLETED)
            self._stop.begin()
            if len(self._roles) > 1:
                await self._shared.announce_end()
            for role in STOP_ORDER:
                if role in self._running:
                    self._stops[role].set()
                    await asyncio.wait({self._running[role]})
                if role is Role.ENGINE and len(self._roles) > 1:
                    # Engines of nodes that were told to stop at the same time take as long as this one may.
                    others_s = self._stop.left_s(self._stop.deadline_s(self._drain_s + AFTER_DRAIN_S))
                    await self._shared.engines_left(others_s)
        finally:
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)
        endings = {task.result() for task in self._running.values()}
        return next(ending for ending in _OVER if ending in endings)

    async def _run_role(self, role: Role, links: ZmqLinks) -> Ending:
        host = NodeId("") if self._config.node in self._names else self._config.node
        while True:
            coordinator = self._shared.join()
            incarnation = incarnation_of(role)(
                self._roles[role], self._homes[role], coordinator, links, host, self._common_log, self._stop
            )
            self._on_incarnation(incarnation)
            try:
                ending = await incarnation.run(self._stops[role])
            finally:
                await incarnation.close()
            if ending in _OVER:
                return ending
            level = logging.INFO if ending is Ending.PROMOTED else logging.WARNING
            _log.log(
                level, "%s: this incarnation was %s; restarting the role under a new one", incarnation.node, ending
            )

    def _open_links(self) -> ZmqLinks:
        """Links over ZeroMQ, secret and proven if there are keys."""
        config = self._config
        return ZmqLinks(
            config.node,
            self._names,
            self._shared.coordinator.cluster_id,
            asyncio.get_running_loop(),
            config.link_host,
            dict(zip(("control", "appends", "reads"), config.link_ports, strict=True)),
            _keys_of(config, self._names),
            advertise=config.advertise,
            proxy=config.proxy,
            has_shortcuts=True,
        )

    def _on_news(self, news: News) -> None:
        if isinstance(news, InstallMembership) and self._links is not None:
            self._links.set_peers(news.membership.members)

    async def close(self) -> None:
        """End what still runs, the session and the links."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        await self._shared.close()
        if self._links is not None:
            self._links.close()


def _keys_of(config: NodeConfig, names: Mapping[NodeId, Role]) -> NodeKeys | None:
    """The keys of a node with these roles; None without keys. `ConfigError` if they are missing or for other roles."""
    if not config.keys:
        return None
    keys = load_keys(Path(config.keys), config.node)
    keys.check_roles(names)
    return keys


async def _connect(config: NodeConfig, home: Home, stop: asyncio.Event) -> ZooKeeperCoordinator | None:
    """The coordinator, as soon as there is one: nodes and ZooKeeper may be started in any order. None: told to stop."""
    stopping = asyncio.create_task(stop.wait())
    telling = asyncio.get_running_loop().call_later(
        _TELL_AFTER_S, _log.info, "%s: waiting for ZooKeeper at %s", config.name, config.zookeeper
    )
    try:
        while not stop.is_set():
            connecting = asyncio.create_task(
                ZooKeeperCoordinator.connect(
                    config.zookeeper,
                    config.chroot,
                    home=home.id,
                    durability=config.durability,
                    access=config.zookeeper_access,
                    session_s=config.session_s,
                    timeout_s=_CONNECT_TIMEOUT_S,
                )
            )
            await asyncio.wait({connecting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not connecting.done():
                connecting.cancel()
                await asyncio.gather(connecting, return_exceptions=True)
                return None
            try:
                coordinator = connecting.result()
            except SessionEnded:
                continue
            except Unavailable as error:
                _log.warning("%s waits, and tries again: %s", config.name, error)
                continue
            if coordinator.durability != config.durability:
                await coordinator.close()
                raise ConfigError(
                    f"durability is {config.durability}, and that of the cluster is {coordinator.durability}: all "
                    "nodes must agree"
                )
            return coordinator
        return None
    finally:
        telling.cancel()
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
