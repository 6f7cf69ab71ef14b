"""A version that diverges is deployed while workflows wait: by the commands of a user, on nodes with all roles."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from boki.cli.app import app
from boki.client import Client
from boki.libs.bokiflow import FlowClient
from tests.node.cluster import Cluster, cluster

COMMON = """
from boki.libs.bokiflow import flow, step, workflow


@step
async def book(what: str) -> str:
    await step.ctx.logbook.append(what.encode(), tags=["booked"], key=step.key)
    return what


"""
FIRST = (
    COMMON
    + """
@workflow(book="trips")
async def travel(city: str) -> str:
    await book(f"a hotel in {city}")
    return f"first, {await flow.receive('go')}"


@workflow(book="trips")
async def stay(city: str) -> str:
    await book(f"a room in {city}")
    return f"first, {await flow.receive('go')}"
"""
)
SECOND = (
    COMMON
    + """
@workflow(book="trips")
async def travel(city: str) -> str:
    await book(f"a tent in {city}")
    return f"second, {await flow.receive('go')}"


@workflow(book="trips")
async def stay(city: str) -> str:
    if flow.patched("insured"):
        await book(f"insurance for {city}")
    await book(f"a room in {city}")
    word = await flow.receive("go")
    await book(f"breakfast in {city}")
    return f"second, {word}"
"""
)
NODES = ("node-1", "node-2", "node-3")


async def boki(*words: str, code: int = 0) -> Result:
    """What a command says, in a thread: the cluster runs in this loop."""
    done = await asyncio.to_thread(CliRunner().invoke, app, list(words))
    assert done.exit_code == code, done.output
    return done


def said(result: Result) -> str:
    """All of it in one line."""
    return " ".join(result.output.split())


async def opened(nodes: Cluster) -> str:
    """The address of a gateway that carries calls out."""
    await nodes.until(lambda: bool(getattr(nodes.incarnations.get("gateway-1"), "url", "")))
    gateway: Any = nodes.incarnations["gateway-1"]
    await nodes.until(lambda: gateway.backend.ready and len(gateway.backend.registry.up) == len(NODES))
    url: str = gateway.url
    return url


async def start(client: Client, name: str, flow_id: str, city: str) -> None:
    """Start it, and wait until it waits for its signal."""
    handle = await FlowClient(client).start(name, city, id=flow_id)
    async with asyncio.timeout(30):
        while (state := await handle.status()).status != "suspended":
            await client.invocation(state.invocation_id, wait_s=0.05)


def folder_of(path: Path, module: str, source: str) -> Path:
    """A functions folder."""
    path.mkdir()
    (path / f"{module}.py").write_text(source)
    return path


def test_a_version_that_diverges_is_deployed_while_workflows_wait(tmp_path: Path, zookeeper: str, chroot: str) -> None:
    """The check names beforehand what would diverge. That ends by the code it began with, what is patched can be moved,
    and each effect is there once.
    """

    async def body() -> None:
        first = folder_of(tmp_path / "first", "flow_versions_first", FIRST)
        second = folder_of(tmp_path / "second", "flow_versions_second", SECOND)
        histories = tmp_path / "histories"
        histories.mkdir()
        async with cluster(tmp_path, zookeeper, chroot, *NODES) as nodes:
            url = await opened(nodes)
            at = ("--url", url)
            await boki("deploy", str(first), *at)
            async with Client(url) as client:
                flows = FlowClient(client)
                for name, flow_id in (("travel", "t-1"), ("stay", "s-1")):
                    await start(client, name, flow_id, "Rome")
                    recorded = await boki("flow", "record", name, flow_id, "Rome", *at)
                    (histories / f"{flow_id}.json").write_text(recorded.stdout)
                check = ("flow", "check", "--history", str(histories), "--functions")
                assert "2 workflows replayed, 0 would be paused" in said(await boki(*check, str(first)))
                found = said(await boki(*check, str(second), code=1))
                assert "t-1.json: recorded was book#0, and the code started book#0 with other arguments" in found
                assert "2 workflows replayed, 1 would be paused" in found

                await boki("deploy", str(second), *at)
                gateway: Any = nodes.incarnations["gateway-1"]
                await nodes.until(lambda: set(gateway.backend.registry.bundles().values()) == {2})
                await start(client, "travel", "t-2", "Oslo")
                await start(client, "stay", "s-2", "Oslo")
                dry = said(await boki("flow", "upgrade", "--all", "--dry-run", *at, code=1))
                assert "1 workflow may move, 1 cannot" in dry
                versions = [(await flows.handle(*one).status()).version for one in ALL]
                assert versions == [1, 1, 2, 2]
                refused = said(await boki("flow", "upgrade", "travel", *at, code=1))
                assert "stays with version 1: with 2, recorded was book#0, and the code started book#0" in refused
                assert "1 workflow moved, 0 cannot" in said(await boki("flow", "upgrade", "stay", *at))
                versions = [(await flows.handle(*one).status()).version for one in ALL]
                assert versions == [1, 2, 2, 2]

                for one in ALL:
                    await flows.handle(*one).signal("go", "now")
                results = [await flows.handle(*one).result(wait_s=20) for one in ALL]
                assert results == ["first, now", *["second, now"] * 3]
                booked = [record.data.decode() for record in (await client.logbook("trips").read("booked")).records]
        assert sorted(booked) == [
            "a hotel in Rome",
            "a room in Oslo",
            "a room in Rome",
            "a tent in Oslo",
            "breakfast in Oslo",
            "breakfast in Rome",
            "insurance for Oslo",
        ]

    asyncio.run(asyncio.wait_for(body(), 120))


ALL = (("travel", "t-1"), ("stay", "s-1"), ("travel", "t-2"), ("stay", "s-2"))
