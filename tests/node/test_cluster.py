"""A cluster of role shells over a real ZooKeeper and real sockets: it appends, and continues when parts of it die."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from boki.client import Client
from boki.errors import Unavailable, WrongState
from boki.launch.zookeeper.server import Ensemble
from boki.log.operations import Append
from boki.protocol.calls import Call, Payload
from tests.members import chunk_of
from tests.node.cluster import DEFAULT, Cluster, cluster


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 120))


async def opened(nodes: Cluster) -> Client:
    """A client of the gateway, once that would carry calls out."""
    await nodes.until(
        lambda: "gateway-1" in nodes.incarnations and bool(getattr(nodes.incarnations["gateway-1"], "url", ""))
    )
    gateway = nodes.incarnations["gateway-1"]
    await nodes.until(lambda: gateway.backend.ready)  # type: ignore[attr-defined]
    return Client(gateway.url)  # type: ignore[attr-defined]


def test_a_cluster_starts_in_any_order_appends_and_reads(tmp_path: Path, zookeeper: str, chroot: str) -> None:
    """All roles at once, none knows the others before; afterwards all of it again, over the same data."""

    async def body() -> None:
        seqnums = []
        for start in range(2):
            async with cluster(tmp_path, zookeeper, chroot, *DEFAULT) as nodes:
                async with await opened(nodes) as client:
                    book = client.logbook("book")
                    seqnums += [await book.append(b"%d" % number, tags=["t"]) for number in range(3)]
                    records = [record.seqnum for record in (await book.read("t")).records]
                    assert records == seqnums
                    assert seqnums == sorted(set(seqnums))
                assert nodes.core("engine-1").follower.term >= start + 1
                for name in ("gateway-1", "engine-1", "controller-1"):
                    assert await nodes.stop(name) == 0

    run(body())


def test_appends_go_on_when_the_primary_dies(tmp_path: Path, zookeeper: str, chroot: str) -> None:
    """A new term begins by itself, and everything that was acknowledged is there, once."""

    async def body() -> None:
        async with cluster(tmp_path, zookeeper, chroot, *DEFAULT) as nodes, await opened(nodes) as client:
            book = client.logbook("book")
            seqnums = [await book.append(b"before", tags=["t"])]
            primary, term = nodes.primary, nodes.core("engine-1").follower.term
            await nodes.kill(primary)
            seqnums += [await book.append(b"%d" % number, tags=["t"], timeout_s=20) for number in range(3)]
            assert nodes.primary != primary
            assert nodes.core("engine-1").follower.term > term
            assert [record.seqnum for record in (await book.read("t")).records] == seqnums

    run(body())


def test_appends_go_on_while_zookeeper_is_away(tmp_path: Path, own_zookeeper: Ensemble, chroot: str) -> None:
    """The data path needs no coordinator; when it is back all are at work, and terms can change again.

    Whether a session outlives the pause depends on the machine: who lost it has begun again.
    """

    async def body() -> None:
        async with (
            cluster(tmp_path, own_zookeeper.hosts, chroot, *DEFAULT, session_s=10.0) as nodes,
            await opened(nodes) as client,
        ):
            book = client.logbook("book")
            await book.append(b"before")
            own_zookeeper.servers[0].kill()
            await nodes.until(
                lambda: all(life.coordinator.state == "suspended" for life in nodes.incarnations.values())
            )
            for number in range(20):
                await book.append(b"%d" % number)
            await asyncio.get_running_loop().run_in_executor(None, own_zookeeper.start)
            while True:
                await nodes.until(
                    lambda: all(
                        life.is_at_work and life.coordinator.state == "connected"
                        for life in nodes.incarnations.values()
                    )
                )
                try:
                    await book.append(b"back")
                    break
                except Unavailable as error:
                    # the gateway has heard only now that its session is over, and begins again
                    assert error.outcome == "not_applied"
            await nodes.kill(nodes.primary)
            await book.append(b"after", timeout_s=20)
            assert len((await book.read()).records) == 23

    run(body())


FUNCTIONS = """
from boki import Context, function

@function
async def note(ctx: Context, text: str) -> int:
    return await ctx.logbook.append(text.encode(), tags=["t"])

@function
async def count(ctx: Context, text: str) -> int:
    return len((await ctx.logbook.read("t")).records)
"""


def test_an_engine_without_the_index_asks_one_that_has_it(tmp_path: Path, zookeeper: str, chroot: str) -> None:
    """With one index for two engines both run functions; when the one with the index goes the other takes its slot."""

    async def body() -> None:
        (tmp_path / "functions").mkdir()
        (tmp_path / "functions" / "notes.py").write_text(FUNCTIONS)
        names = (*DEFAULT, "engine-2")
        async with (
            cluster(tmp_path, zookeeper, chroot, *names, index_replicas=1) as nodes,
            await opened(nodes) as client,
        ):
            engines = [name for name in nodes.incarnations if name.startswith("engine")]
            await nodes.until(lambda: all(nodes.incarnations[name].is_at_work for name in engines))
            (holder,) = [name for name in engines if nodes.incarnations[name].has_slot]  # type: ignore[attr-defined]
            (relay,) = set(engines) - {holder}
            backend = nodes.incarnations["gateway-1"].backend  # type: ignore[attr-defined]
            await nodes.until(lambda: set(backend.registry.up) == set(engines))
            for number in range(10):
                await client.invoke("note", f"{number}", book="notes")
            assert await client.invoke("count", "", book="notes") == 10
            await nodes.incarnations[relay].port.request(  # type: ignore[attr-defined]
                Append("notes", chunk_of("notes", b"relayed", tags=("t",))), {}, 5.0
            )
            logged = Call(f"{1:032x}", "note", Payload("json", b'"later"'), "notes", 5_000_000)
            begun = await nodes.incarnations[relay]._later(logged, 0.0, None)  # type: ignore[attr-defined]
            assert begun.id == logged.id
            ended = await client.invocation(logged.id, wait_s=10)
            assert ended.state == "done", ended
            asked = await nodes.incarnations[relay]._ask(logged.id, 5.0, "")  # type: ignore[attr-defined]
            assert (asked.id, asked.state) == (logged.id, "done")
            with pytest.raises(WrongState):
                await nodes.incarnations[relay]._ask(logged.id, 0.0, "cancel")  # type: ignore[attr-defined]
            assert await client.invoke("count", "", book="notes") == 12
            first = nodes.incarnations[relay]
            assert await nodes.stop(holder) == 0
            await nodes.until(lambda: nodes.incarnations[relay] is not first and nodes.incarnations[relay].is_at_work)
            assert nodes.incarnations[relay].has_slot  # type: ignore[attr-defined]
            gateway = nodes.incarnations["gateway-1"]
            await nodes.until(lambda: gateway.backend.ready)  # type: ignore[attr-defined]
            assert await client.invoke("count", "", book="notes", timeout_s=20) == 12

    run(body())


def test_an_engine_that_stands_still_loses_its_index_slot(tmp_path: Path, zookeeper: str, chroot: str) -> None:
    """Long before its session ends (found.md part 3, 2): another engine takes over, and when it continues it relays."""

    async def body() -> None:
        names = (*DEFAULT, "engine-2")
        async with (
            cluster(tmp_path, zookeeper, chroot, *names, index_replicas=1) as nodes,
            await opened(nodes) as client,
        ):
            engines = ("engine-1", "engine-2")
            await nodes.until(lambda: all(nodes.incarnations[name].is_at_work for name in engines))
            (holder,) = [name for name in engines if nodes.incarnations[name].has_slot]  # type: ignore[attr-defined]
            (relay,) = set(engines) - {holder}
            book = client.logbook("book")
            await book.append(b"before", timeout_s=20)
            still, first = nodes.incarnations[holder], nodes.incarnations[relay]
            still.links.set_peers(())  # it hears nobody and says nothing, until it learns of the next membership
            await nodes.until(lambda: nodes.incarnations[relay] is not first and nodes.incarnations[relay].is_at_work)
            assert nodes.incarnations[relay].has_slot  # type: ignore[attr-defined]
            await nodes.until(lambda: nodes.incarnations[holder] is not still and nodes.incarnations[holder].is_at_work)
            assert not nodes.incarnations[holder].has_slot  # type: ignore[attr-defined]
            await book.append(b"after", timeout_s=20)
            assert [record.data for record in (await book.read()).records] == [b"before", b"after"]

    run(body())


def test_every_node_says_how_it_is(tmp_path: Path, zookeeper: str, chroot: str) -> None:
    """The gateway gathers one status of each node: role, incarnation, term, positions, lag, disk and links."""

    async def body() -> None:
        async with cluster(tmp_path, zookeeper, chroot, *DEFAULT) as nodes, await opened(nodes) as client:
            await client.logbook("book").append(b"x")
            status = await nodes.incarnations["gateway-1"].backend.status()  # type: ignore[attr-defined]
            assert set(status["nodes"]) == set(DEFAULT) - {"gateway-1"}
            for name, told in status["nodes"].items():
                assert (told["node"], told["registered"], told["zookeeper"]) == (name, True, "connected")
                assert told["incarnation"] == nodes.incarnations[name].incarnation
                assert {"control", "appends", "reads"} <= told["links"].keys()
            assert status["nodes"]["storage-1"]["disk"]["has_room"]
            assert status["nodes"]["controller-1"]["leader"]
            engine = status["nodes"]["engine-1"]
            assert engine["ready"]
            assert engine["term"] >= 1
            assert engine["logs"]["0"]["lag"] == 0
            async with aiohttp.ClientSession() as session, session.get(f"{client.url}/metrics") as response:
                metrics = await response.text()
            assert 'boki_node_up{node="storage-1"} 1.0' in metrics
            assert 'boki_log_stalled_seconds{log="0",node="engine-1"} 0.0' in metrics
            assert [row["leads"] for name, row in status["nodes"].items() if row.get("leads")] == [[0]]

    run(body())
