"""Nodes that play all roles: three of them are a cluster, which outlives each of them."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from boki.client import Client
from boki.errors import BokiError, ConfigError
from boki.gateway.engine_registry import engine_weight
from boki.log.ids import NodeId
from boki.log.membership import Role
from boki.node import separating
from tests.controller.coordinators import joined
from tests.node.cluster import DEFAULT, Cluster, cluster

NODES = ("node-1", "node-2", "node-3")


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 120))


async def read_all(client: Client) -> list[int]:
    """The seqnums of everything under the tag: a page may be shorter than what exists."""
    seqnums: list[int] = []
    start = 0
    while (page := await client.logbook("book").read("t", start=start)).records:
        seqnums += [record.seqnum for record in page.records]
        start = page.next_start
    return seqnums


async def opened(nodes: Cluster, number: int = 1) -> Client:
    """A client of a gateway, once that would carry calls out."""
    name = f"gateway-{number}"
    await nodes.until(lambda: name in nodes.incarnations and bool(getattr(nodes.incarnations[name], "url", "")))
    gateway: Any = nodes.incarnations[name]
    await nodes.until(lambda: gateway.backend.ready)
    return Client(gateway.url)


def test_three_nodes_are_a_cluster(tmp_path: Path, zookeeper: str, chroot: str) -> None:
    """They append and read, over the same data a second time; each stands in one registration with all its roles."""

    async def body() -> None:
        seqnums: list[int] = []
        for _ in range(2):
            async with cluster(tmp_path, zookeeper, chroot, *NODES) as nodes:
                async with await opened(nodes) as client:
                    book = client.logbook("book")
                    seqnums += [await book.append(b"%d" % number, tags=["t"]) for number in range(3)]
                    assert await read_all(client) == seqnums
                async with joined(zookeeper, chroot) as watcher:
                    members = watcher.coordinator.membership.members
                    assert {(m.host, m.node) for m in members} == {
                        (f"node-{number}", f"{role}-{number}") for role in Role for number in (1, 2, 3)
                    }
                    assert len({member.lanes["control"] for member in members}) == 3
                    assert await watcher.coordinator._session.children("/nodes") == list(NODES)
                for number in (1, 2, 3):
                    storage, sequencer = (
                        nodes.incarnations[f"{role}-{number}"] for role in (Role.STORAGE, Role.SEQUENCER)
                    )
                    assert storage.disk is not None
                    assert sequencer.disk is not None
                    assert storage.disk.log is sequencer.disk.log
                for name in NODES:
                    assert await nodes.stop(name) == 0

    run(body())


def book_at(engine: NodeId, engines: Sequence[NodeId]) -> str:
    """A book whose appends go to that engine while all are up."""
    names = map(str, itertools.count())
    return next(name for name in names if max(engines, key=lambda one: engine_weight(one, name)) == engine)


def test_a_primary_an_engine_and_a_replica_lost_in_one_fault_heal_at_once(
    tmp_path: Path, zookeeper: str, chroot: str
) -> None:
    """The node dies that the book's appends go through, primary and all: a client of another node continues within one
    and a half seconds on a quiet machine (`boki bench failover`), here within ten, long before the node's session
    ends; and nothing is lost.
    """

    async def body() -> None:
        async with cluster(tmp_path, zookeeper, chroot, *NODES, session_s=60.0) as nodes:
            await opened(nodes)
            primary = nodes.primary
            lost = int(primary.rpartition("-")[2])
            async with await opened(nodes, lost % 3 + 1) as client:
                engines = [NodeId(f"engine-{number}") for number in (1, 2, 3)]
                name = book_at(engines[lost - 1], engines)
                registry = nodes.incarnations[f"gateway-{lost % 3 + 1}"].backend.registry  # type: ignore[attr-defined]
                await nodes.until(
                    lambda: (
                        registry.for_book(name, ()) == engines[lost - 1]
                        and all(nodes.core(engine).engine is not None for engine in engines)
                    )
                )
                book = client.logbook(name)
                seqnums = [await book.append(b"before", tags=["t"], timeout_s=20)]
                assert nodes.core(engines[lost - 1]).engine.appends.record_count == 1
                assert nodes.primary == primary
                loop = asyncio.get_running_loop()
                died_s = loop.time()
                await nodes.kill(f"node-{lost}")
                for number in range(3):
                    seqnums.append(await book.append(b"%d" % number, tags=["t"], key=f"{number}", timeout_s=30))
                assert loop.time() - died_s < 10
                assert [record.seqnum for record in (await book.read("t")).records] == seqnums

    run(body())


def test_nodes_restart_one_by_one_and_no_append_fails(tmp_path: Path, zookeeper: str, chroot: str) -> None:
    """Under load: gateways send their clients elsewhere, engines close their shards, and primaries are replaced."""

    async def body() -> None:
        async with cluster(tmp_path, zookeeper, chroot, *NODES, drain_s=5.0) as nodes:
            urls = []
            for number in (1, 2, 3):
                async with await opened(nodes, number) as client:
                    urls.append(client.url)
            is_over = asyncio.Event()

            async def load(client: Client, seqnums: list[int]) -> None:
                while not is_over.is_set():
                    seqnums.append(await client.logbook("book").append(b"x", tags=["t"], timeout_s=30))

            told: list[list[int]] = [[], []]
            async with Client(",".join(urls)) as client:
                loads = [asyncio.create_task(load(client, seqnums)) for seqnums in told]
                for number in (1, 2, 3):
                    assert await nodes.stop(f"node-{number}") == 0
                    for role in Role:
                        del nodes.incarnations[f"{role}-{number}"]
                    port = int(urls[number - 1].rpartition(":")[2])
                    nodes.start(f"node-{number}", drain_s=5.0, port=port)
                    await nodes.until(
                        lambda n=number: all(
                            f"{role}-{n}" in nodes.incarnations and nodes.incarnations[f"{role}-{n}"].is_at_work
                            for role in Role
                        )
                    )
                is_over.set()
                await asyncio.gather(*loads)
                assert all(told)
                assert await read_all(client) == sorted(seqnum for seqnums in told for seqnum in seqnums)

    run(body())


HANGING = """
import time
from boki import blocking, function

@function
def hang(ctx: blocking.Context) -> None:
    time.sleep(600)
"""
DRAIN_S = 4.0


def test_a_call_that_does_not_end_delays_the_stop_of_its_node_once(
    tmp_path: Path, zookeeper: str, chroot: str, caplog: pytest.LogCaptureFixture
) -> None:
    """All roles share the time of the drain: its caller is told, shards are closed, the index is saved, all in one."""
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions/hanging.py").write_text(HANGING)

    async def body() -> None:
        async with cluster(tmp_path, zookeeper, chroot, *NODES, drain_s=DRAIN_S) as nodes:
            await opened(nodes)
            engines = {number: nodes.incarnations[f"engine-{number}"] for number in (1, 2, 3)}
            await nodes.until(lambda: all(engine.is_at_work for engine in engines.values()))
            async with await opened(nodes) as client:
                await client.logbook("book").append(b"x", timeout_s=20)
                call = asyncio.create_task(client.invoke("hang"))
                await nodes.until(lambda: call.done() or any(one.functions.call_count for one in engines.values()))
                number, engine = next(item for item in engines.items() if item[1].functions.call_count)
                began_s = asyncio.get_running_loop().time()
                assert await nodes.stop(f"node-{number}") == 0
                took_s = asyncio.get_running_loop().time() - began_s
                assert DRAIN_S - 0.5 < took_s < 2 * DRAIN_S
                with pytest.raises(BokiError) as told:
                    await call
                assert told.value.outcome == "unknown"
            assert engine._closed.is_set()
            assert engine._saved.is_set()
            assert "shards were not closed" not in caplog.text

    run(body())


async def pull_the_plug(nodes: Cluster, image: Path) -> None:
    """All nodes at once: `image` is what their disks have then."""
    for incarnation in nodes.incarnations.values():
        if incarnation.host is not None:
            incarnation.host.stop()
    shutil.copytree(nodes.folder, image)
    for name in list(nodes.tasks):
        await nodes.kill(name)


def test_after_a_power_cut_nodes_become_separate_roles(
    tmp_path: Path, zookeeper: str, chroot: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A sequencer alone refuses its directory, and must not say that it can be moved away: the newest entries would be
    gone with it. Once each has what it lacked, nothing is lost.
    """
    live, image = tmp_path / "live", tmp_path / "image"
    live.mkdir()

    async def body() -> None:
        async with cluster(live, zookeeper, chroot, *NODES) as nodes:
            async with await opened(nodes) as client:
                book = client.logbook("book")
                seqnums = [await book.append(b"%d" % number, tags=["t"], timeout_s=20) for number in range(3)]
            await pull_the_plug(nodes, image)
        async with cluster(image, zookeeper, chroot, "sequencer-1") as nodes:
            assert await nodes.tasks.pop("sequencer-1") == 1
        assert "sequencer-1 does not start: its newest writes are in the log of the storage node" in caplog.text
        assert f"Do not move {image / 'sequencer-1'} away" in caplog.text
        assert "begins with an empty directory" not in caplog.text
        separating.main(image)
        async with cluster(image, zookeeper, chroot, *DEFAULT) as nodes, await opened(nodes) as client:
            seqnums.append(await client.logbook("book").append(b"after", tags=["t"], timeout_s=30))
            assert await read_all(client) == seqnums

    run(body())


def test_a_role_that_still_runs_elsewhere_is_not_taken_over(tmp_path: Path, zookeeper: str, chroot: str) -> None:
    """By another directory's node, as when an operator forgot to stop it: the newcomer is refused by name."""

    async def body() -> None:
        async with cluster(tmp_path, zookeeper, chroot, "storage-1") as nodes:
            await nodes.until(
                lambda: "storage-1" in nodes.incarnations and nodes.incarnations["storage-1"].is_registered
            )
            other = Cluster(tmp_path / "elsewhere", zookeeper, chroot)
            other.folder.mkdir()
            other.start("node-1", (Role.STORAGE, Role.SEQUENCER), session_s=1.0)
            try:
                await other.tasks["node-1"]
            except ConfigError as error:
                assert "storage-1 is registered already" in str(error)
            else:
                raise AssertionError("two storage nodes have one name")

    run(body())
