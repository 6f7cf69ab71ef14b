"""The lives of single nodes: sessions that expire, disks that fail, names that are taken, ZooKeepers that come late."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from boki.errors import ConfigError, DataDirectoryInUse, StoreFailed
from boki.launch.zookeeper.server import Ensemble
from boki.log.membership import ClusterPlan
from tests.controller.coordinators import expire, joined
from tests.node.cluster import Cluster, cluster


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


def has_registered(nodes: Cluster, *names: str) -> bool:
    return all(name in nodes.incarnations and nodes.incarnations[name].is_registered for name in names)


def test_a_role_whose_session_expires_begins_anew(tmp_path: Path, zookeeper: str, chroot: str) -> None:
    """A storage node continues under its disk's incarnation, an engine under a new one; both are registered again."""

    async def body() -> None:
        names = ("storage-1", "engine-1")
        async with (
            cluster(tmp_path, zookeeper, chroot, *names) as nodes,
            joined(zookeeper, chroot) as watcher,
        ):
            await watcher.coordinator.ensure_plan(ClusterPlan())  # engines wait for it: it says who holds the index
            await watcher.until(lambda: watcher.names == set(names))
            first = dict(nodes.incarnations)
            for life in first.values():
                await expire(life.coordinator.shared.coordinator, zookeeper)
            await nodes.until(
                lambda: has_registered(nodes, *names) and all(nodes.incarnations[n] is not first[n] for n in names)
            )
            assert nodes.incarnations["storage-1"].incarnation == first["storage-1"].incarnation
            assert nodes.incarnations["engine-1"].incarnation > first["engine-1"].incarnation
            await watcher.until(
                lambda: (
                    {m.incarnation for m in watcher.coordinator.membership.members}
                    == {nodes.incarnations[name].incarnation for name in names}
                )
            )

    run(body())


def test_a_failed_disk_ends_the_process_with_1(tmp_path: Path, zookeeper: str, chroot: str) -> None:
    """It is told in the log, and everybody learns that the node is gone."""

    async def body() -> None:
        async with cluster(tmp_path, zookeeper, chroot, "storage-1") as nodes, joined(zookeeper, chroot) as watcher:
            await watcher.until(lambda: watcher.names == {"storage-1"})
            disk = nodes.incarnations["storage-1"].disk
            assert disk is not None
            disk._on_failure(StoreFailed("the sync has failed"))
            assert await nodes.tasks.pop("storage-1") == 1
            await watcher.until(lambda: watcher.names == set())

    run(body())


def test_a_node_that_is_told_to_stop_unregisters_and_ends_with_0(tmp_path: Path, zookeeper: str, chroot: str) -> None:
    """And its directory is free again."""

    async def body() -> None:
        async with cluster(tmp_path, zookeeper, chroot, "sequencer-1") as nodes, joined(zookeeper, chroot) as watcher:
            for _ in range(2):
                await watcher.until(lambda: watcher.names == {"sequencer-1"})
                assert await nodes.stop("sequencer-1") == 0
                await watcher.until(lambda: watcher.names == set())
                nodes.start("sequencer-1")

    run(body())


def test_two_nodes_of_one_name_are_refused(tmp_path: Path, zookeeper: str, chroot: str) -> None:
    """By the directory if they share it, by the coordinator if they do not."""

    async def body() -> None:
        async with cluster(tmp_path, zookeeper, chroot, "storage-1") as nodes:
            await nodes.until(lambda: has_registered(nodes, "storage-1"))
            other = Cluster(tmp_path, zookeeper, chroot)
            other.start("storage-1")
            with pytest.raises(DataDirectoryInUse):
                await other.tasks["storage-1"]
            other.folder = tmp_path / "elsewhere"
            other.start("storage-1", session_s=1.0)
            with pytest.raises(ConfigError, match="storage-1 is registered already"):
                await other.tasks["storage-1"]

    run(body())


def test_a_node_of_another_cluster_or_durability_is_refused(tmp_path: Path, zookeeper: str, chroot: str) -> None:
    """A directory is not carried to another cluster, and all nodes of one promise the same."""

    async def body() -> None:
        async with cluster(tmp_path, zookeeper, chroot, "storage-1") as nodes:
            await nodes.until(lambda: has_registered(nodes, "storage-1"))
            await nodes.stop("storage-1")
            moved = Cluster(tmp_path, zookeeper, f"{chroot}-b")
            moved.start("storage-1")
            with pytest.raises(ConfigError, match="belongs to cluster"):
                await moved.tasks["storage-1"]
            nodes.start("storage-2", durability="memory")
            with pytest.raises(ConfigError, match="durability is memory, and that of the cluster is fsync"):
                await nodes.tasks.pop("storage-2")

    run(body())


def test_nodes_wait_for_zookeeper(tmp_path: Path, own_zookeeper: Ensemble, chroot: str) -> None:
    """Started before it, they take part once it is there; told to stop before that, they stop."""

    async def body() -> None:
        own_zookeeper.stop()
        async with cluster(tmp_path, own_zookeeper.hosts, chroot, "storage-1", "sequencer-1") as nodes:
            assert await nodes.stop("sequencer-1") == 0
            await asyncio.get_running_loop().run_in_executor(None, own_zookeeper.start)
            await nodes.until(lambda: has_registered(nodes, "storage-1"))

    run(body())
