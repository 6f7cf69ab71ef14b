"""What others may do to a cluster's values in ZooKeeper, and what its nodes make of it (found.md, H6)."""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.security import OPEN_ACL_UNSAFE

from boki.config.loading import ZooKeeperAccess
from boki.coordination import refresher as zookeeper_refresher
from boki.coordination.zookeeper import ZooKeeperCoordinator
from boki.errors import ConfigError
from boki.launch.zookeeper.server import Ensemble
from boki.log.ids import NodeId
from boki.log.membership import ClusterPlan
from boki.protocol.messages import InstallPlan
from tests.controller.coordinators import ENGINE, joined, run
from tests.members import view


@contextmanager
def stranger(hosts: str) -> Iterator[KazooClient]:
    """Another user of the machine: it reaches ZooKeeper, and knows no secret."""
    client = KazooClient(hosts=hosts)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def wait_for_value(client: KazooClient, path: str, value: bytes) -> None:
    """Return when `path` holds `value`: asked again whenever it changes, for 15 s at most."""
    changed = threading.Event()
    while True:
        changed.clear()
        if client.exists(path, watch=lambda _event: changed.set()) is not None:
            with suppress(NoNodeError):
                if client.get(path)[0] == value:
                    return
        assert changed.wait(15), f"{path} was not made again"


def test_a_cluster_with_a_digest_is_its_own(zookeeper: str, chroot: str) -> None:
    """Strangers read, change, add and remove nothing; nodes without the digest are refused with what to set."""

    async def body() -> None:
        async with joined(zookeeper, chroot, digest="boki:secret") as process:
            await process.coordinator.ensure_plan(ClusterPlan())
            await process.coordinator.register(ENGINE)
            await process.until(lambda: process.names == {"engine-1"})
            with stranger(zookeeper) as other:
                for attack in (
                    lambda: other.get(f"{chroot}/plan"),
                    lambda: other.set(f"{chroot}/plan", b"garbage"),
                    lambda: other.create(f"{chroot}/nodes/x", b"garbage"),
                    lambda: other.create(f"{chroot}/views/0000000001", b"garbage"),
                    lambda: other.delete(f"{chroot}/nodes/engine-1"),
                    lambda: other.set_acls(chroot, OPEN_ACL_UNSAFE),
                ):
                    with pytest.raises(NoAuthError):
                        await asyncio.to_thread(attack)
            with pytest.raises(ConfigError, match=r"zookeeper_access\.digest is not the digest"):
                await ZooKeeperCoordinator.connect(zookeeper, chroot)
            with pytest.raises(ConfigError, match=r"zookeeper_access\.digest is not the digest"):
                await ZooKeeperCoordinator.connect(zookeeper, chroot, access=ZooKeeperAccess(digest="boki:wrong"))
            async with joined(zookeeper, chroot, digest="boki:secret") as second:
                assert second.coordinator.cluster_id == process.coordinator.cluster_id

    run(body())


def test_a_cluster_that_is_alone_there_closes_the_root(own_zookeeper: Ensemble, chroot: str) -> None:
    """`boki up` starts such a server. Strangers add and delete nothing beside the chroot, nor among the quotas."""
    access = ZooKeeperAccess(digest="boki:secret", exclusive=True)

    async def body() -> None:
        with stranger(own_zookeeper.hosts) as other:
            other.create("/before")
            coordinator = await ZooKeeperCoordinator.connect(own_zookeeper.hosts, chroot, access=access)
            for attack in (
                lambda: other.create("/x", b"garbage"),
                lambda: other.delete("/before"),
                lambda: other.create("/zookeeper/quota/x"),
                lambda: other.create("/zookeeper/x"),
                lambda: other.set_acls("/", OPEN_ACL_UNSAFE),
                lambda: other.get(f"{chroot}/format"),
            ):
                with pytest.raises(NoAuthError):
                    await asyncio.to_thread(attack)
            again = await ZooKeeperCoordinator.connect(own_zookeeper.hosts, chroot, access=access)
            assert again.cluster_id == coordinator.cluster_id
            await again.close()
            await coordinator.close()

    run(body())


def test_a_cluster_that_was_open_is_taken_into_possession(zookeeper: str, chroot: str) -> None:
    """The first node that has a digest does it; everything that was there is still there."""

    async def body() -> None:
        async with joined(zookeeper, chroot) as before:
            await before.coordinator.ensure_plan(ClusterPlan(logs=7))
            assert await before.coordinator.install(view(1))
            cluster_id = before.coordinator.cluster_id
        async with joined(zookeeper, chroot, digest="boki:secret") as after:
            assert after.coordinator.cluster_id == cluster_id
            assert after.terms == [1]
            plan = await after.coordinator.plan()
            assert plan is not None
            assert plan.logs == 7
            with stranger(zookeeper) as other:
                for path in ("plan", "views/0000000001", "placement", "format"):
                    with pytest.raises(NoAuthError):
                        await asyncio.to_thread(other.set, f"{chroot}/{path}", b"garbage")

    run(body())


def test_garbage_ends_no_process_that_runs(zookeeper: str, chroot: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read before continues to hold, the log says so, and what is right again is taken."""
    monkeypatch.setattr(zookeeper_refresher, "_LOOK_AGAIN_S", 0.05)
    bomb = b"Z" + zlib.compress(bytes(200 << 20), 9)

    async def body() -> None:
        async with joined(zookeeper, chroot) as writer, joined(zookeeper, chroot) as process:
            coordinator = writer.coordinator
            await coordinator.ensure_plan(ClusterPlan(logs=2))
            assert await coordinator.install(view(1))
            await coordinator.register(ENGINE)
            await process.until(lambda: process.names == {"engine-1"} and process.terms == [1])
            with stranger(zookeeper) as other:
                good, _ = other.get(f"{chroot}/plan")
                for path in ("plan", "placement"):
                    for garbage in (b"garbage", b"J{}", b"", b"J\xff", bomb):
                        other.set(f"{chroot}/{path}", garbage)
                other.create(f"{chroot}/nodes/garbage", b"garbage", ephemeral=True)
                other.create(f"{chroot}/views/0000000002", b"garbage")
                assert not await coordinator.install(view(2))
                await coordinator.register(msgspec.structs.replace(ENGINE, node=NodeId("engine-2")))
                await process.until(lambda: process.names == {"engine-1", "engine-2"})
                other.delete(f"{chroot}/views/0000000002")
                other.set(f"{chroot}/plan", good)
                version = other.exists(f"{chroot}/plan").version
            await process.until(lambda: process.heard(InstallPlan)[-1].plan.version == version)
            assert await coordinator.install(view(2))
            await process.until(lambda: process.terms == [1, 2])
            assert (process.failures, writer.failures) == ([], [])

    run(body())


def test_a_view_that_is_damaged_is_not_replaced(zookeeper: str, chroot: str) -> None:
    """A coordinator that has not seen its predecessor says that the term is taken; it does not fail."""

    async def body() -> None:
        coordinator = await ZooKeeperCoordinator.connect(zookeeper, chroot)
        assert await coordinator.install(view(1))
        with stranger(zookeeper) as other:
            other.create(f"{chroot}/views/0000000002", b"garbage")
            assert not await coordinator.install(view(2))
            other.delete(f"{chroot}/views/0000000002")
        assert not await coordinator.install(view(3))
        assert await coordinator.install(view(2))
        await coordinator.close()

    run(body())


def test_an_entry_that_somebody_removed_is_made_again(zookeeper: str, chroot: str) -> None:
    """Else a node that runs would be gone for all others, permanently. One that was changed is fixed."""

    async def body() -> None:
        async with joined(zookeeper, chroot) as node, joined(zookeeper, chroot) as watcher:
            await node.coordinator.register(ENGINE)
            await watcher.until(lambda: watcher.names == {"engine-1"})
            path = f"{chroot}/nodes/engine-1"
            with stranger(zookeeper) as other:
                good, _ = other.get(path)
                for harm in (lambda: other.delete(path), lambda: other.set(path, b"garbage")):
                    harm()
                    await asyncio.to_thread(wait_for_value, other, path, good)
                    # Whether the watcher saw the harm is open: ZooKeeper tells it of changes, not of each value.
                    await watcher.until(lambda: watcher.coordinator.membership.find(ENGINE.node) == ENGINE)
            await node.coordinator.unregister()
            await watcher.until(lambda: watcher.names == set())
            assert node.failures == []

    run(body())
