"""Runs a node: one life after the other, until it is told to stop or its disk or code has failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from boki.cluster_config import NodeConfig
from boki.controller.zookeeper import ZooKeeperCoordinator
from boki.controller.zookeeper_session import SessionEnded
from boki.errors import ConfigError, Unavailable
from boki.log.membership import Role
from boki.node.controller import ControllerLife
from boki.node.engine import EngineLife
from boki.node.gateway import GatewayLife
from boki.node.home import Home
from boki.node.life import Ending, NodeLife, OpenLinks, open_links
from boki.node.log_nodes import SequencerLife, StorageLife

_log = logging.getLogger("boki.node")
_CONNECT_TIMEOUT_S: Final = 10.0
LIVES: Final[Mapping[Role, type[NodeLife[Any]]]] = {
    Role.GATEWAY: GatewayLife,
    Role.ENGINE: EngineLife,
    Role.STORAGE: StorageLife,
    Role.SEQUENCER: SequencerLife,
    Role.CONTROLLER: ControllerLife,
}


async def run_node(
    role: Role,
    config: NodeConfig,
    stop: asyncio.Event,
    *,
    make_links: OpenLinks = open_links,
    on_life: Callable[[NodeLife[Any]], None] = lambda _life: None,
) -> int:
    """Run the node until `stop` is set: 0; or until it has failed: 1. The log says why.

    `on_life` is told of each life as it begins. `ConfigError`: it cannot run like this at all.
    """
    home = Home(config.directory, config.node, role)
    coordinator: ZooKeeperCoordinator | None = None
    try:
        while not stop.is_set():
            coordinator = coordinator or await _connect(config, home, stop)
            if coordinator is None:
                break
            life = LIVES[role](config, home, coordinator, make_links)
            on_life(life)
            try:
                ending = await life.run(stop)
            finally:
                await life.close()
                coordinator = coordinator if life.keeps_session else None
            if ending is Ending.FAILED:
                return 1
            if ending is not Ending.STOPPED:
                level = logging.INFO if ending is Ending.PROMOTED else logging.WARNING
                _log.log(level, "%s: this life was %s; it begins anew", config.name, ending)
        return 0
    finally:
        if coordinator is not None:
            await coordinator.close()
        home.close()


async def _connect(config: NodeConfig, home: Home, stop: asyncio.Event) -> ZooKeeperCoordinator | None:
    """The coordinator, as soon as there is one: nodes and ZooKeeper may be started in any order. None: told to stop."""
    stopping = asyncio.create_task(stop.wait())
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
                _log.warning("%s waits: %s", config.name, error)
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
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
