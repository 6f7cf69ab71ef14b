"""Functions deployed to a real cluster, and logged calls whose engine dies: role shells, ZooKeeper and sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from boki.books.functions.bundle import File, pack_files
from boki.client import Client
from boki.errors import CallLost, InvalidArgument, NotFound
from boki.libs.bokiflow import FlowClient
from tests.node.cluster import DEFAULT, Cluster, cluster

APP = """
import asyncio
import os
from pathlib import Path

from boki import Context, function


@function
async def version(ctx: Context) -> str:
    return "VERSION"


@function
async def slow(ctx: Context, folder: str) -> str:
    (Path(folder) / "begun").touch()
    while not (Path(folder) / "go").exists():
        await asyncio.sleep(0.02)
    await ctx.logbook.append(b"slow VERSION", ["ran"])
    return "VERSION"
"""


def bundle(version: str, **more: str) -> bytes:
    files = {"app.py": APP.replace("VERSION", version)} | {f"{name}.py": text for name, text in more.items()}
    return pack_files([File(path, text.encode()) for path, text in files.items()])


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 120))


async def opened(nodes: Cluster) -> Client:
    """A client of the gateway, once an engine is up."""
    await nodes.until(
        lambda: "gateway-1" in nodes.incarnations and bool(getattr(nodes.incarnations["gateway-1"], "url", ""))
    )
    gateway: Any = nodes.incarnations["gateway-1"]
    await nodes.until(lambda: len(gateway.backend.registry.up) == 1)
    return Client(gateway.url)


async def until_exists(nodes: Cluster, file: Path) -> None:
    await nodes.until(file.exists)


def test_a_deployed_version_runs_everywhere_and_calls_in_flight_finish_on_theirs(
    tmp_path: Path, zookeeper: str, chroot: str
) -> None:
    """On engines that exist and on one that comes later; and back again."""

    async def body() -> None:
        async with cluster(tmp_path, zookeeper, chroot, *DEFAULT) as nodes, await opened(nodes) as client:
            assert await client.versions() == []
            first = await client.deploy(bundle("one"))
            assert (first.version.number, first.is_new, first.engines) == (1, True, {"engine-1": True})
            assert first.version.functions == ("slow", "version")
            flying = asyncio.create_task(client.invoke("slow", str(tmp_path)))
            await until_exists(nodes, tmp_path / "begun")
            assert (await client.deploy(bundle("two"))).version.number == 2
            assert await client.invoke("version") == "two"
            assert not (await client.deploy(bundle("two"))).is_new
            nodes.start("engine-2")
            gateway: Any = nodes.incarnations["gateway-1"]
            await nodes.until(lambda: gateway.backend.registry.bundles() == {"engine-1": 2, "engine-2": 2})
            assert [await client.invoke("version") for _ in range(4)] == ["two"] * 4
            (tmp_path / "go").touch()
            assert await flying == "one"
            back = await client.use_version("previous")
            assert (back.version.number, back.engines) == (1, {"engine-1": True, "engine-2": True})
            assert [await client.invoke("version") for _ in range(4)] == ["one"] * 4
            assert [(info.number, info.is_active) for info in await client.versions()] == [(2, False), (1, True)]

    run(body())


def test_a_bundle_that_cannot_be_loaded_changes_nothing(tmp_path: Path, zookeeper: str, chroot: str) -> None:
    """The error names file and line; with force the rest of it runs."""

    async def body() -> None:
        async with cluster(tmp_path, zookeeper, chroot, *DEFAULT) as nodes, await opened(nodes) as client:
            await client.deploy(bundle("good"))
            broken = bundle("bad", other="x = 1\nimport no_such_module\n")
            with pytest.raises(InvalidArgument, match=r"other\.py:2: ModuleNotFoundError") as caught:
                await client.deploy(broken)
            assert caught.value.outcome == "not_applied"
            assert str(tmp_path) not in caught.value.message
            assert await client.invoke("version") == "good"
            with pytest.raises(NotFound):
                await client.use_version(2)
            forced = await client.deploy(broken, is_forced=True)
            assert (forced.version.number, forced.version.broken) == (2, ("other",))
            assert await client.invoke("version") == "bad"

    run(body())


def test_calls_outlive_their_engine(tmp_path: Path, zookeeper: str, chroot: str) -> None:
    """A plain call is lost, and says so; one under a key and an asynchronous one end at another engine, once.

    All have begun at the engine that is killed: what it has not begun yet would go to another one, lost to nobody. So
    the other one comes when they run.
    """

    async def body() -> None:
        async with cluster(tmp_path, zookeeper, chroot, *DEFAULT) as nodes, await opened(nodes) as client:
            await client.deploy(bundle("one"))
            folders = {name: tmp_path / name for name in ("keyed", "later", "plain-1", "plain-2", "plain-3")}
            for folder in folders.values():
                folder.mkdir()
            keyed = asyncio.create_task(client.invoke("slow", str(folders["keyed"]), key="k", timeout_s=60))
            later = await client.invoke_later("slow", str(folders["later"]))
            plain = [
                asyncio.create_task(client.invoke("slow", str(folder)))
                for name, folder in folders.items()
                if name.startswith("plain")
            ]
            for folder in folders.values():
                await until_exists(nodes, folder / "begun")
            nodes.start("engine-2")
            gateway: Any = nodes.incarnations["gateway-1"]
            await nodes.until(lambda: gateway.backend.registry.bundles() == {"engine-1": 1, "engine-2": 1})
            await nodes.kill("engine-1")
            lost = await asyncio.gather(*plain, return_exceptions=True)
            assert [type(error) for error in lost] == [CallLost] * 3
            for folder in folders.values():
                (folder / "go").touch()
            assert await keyed == "one"
            assert (await client.invocation(later, wait_s=30)).state == "done"
            ran = await client.logbook("slow").read("ran")
            assert len(ran.records) == 2

    run(body())


TURNS = """
import asyncio
from pathlib import Path

from boki.libs.bokiflow import Limit, step, workflow


@step
async def stays(folder: str) -> None:
    (Path(folder) / "begun").touch()
    while not (Path(folder) / "go").exists():
        await asyncio.sleep(0.02)


@step
async def kill(flow_id: str) -> None:
    await turns.handle(step.ctx, flow_id).kill()


@workflow(book="turns", limit=Limit(concurrency=1))
async def turns(folder: str) -> None:
    await stays(folder)


@workflow(book="turns")
async def kills(folder: str) -> None:
    await stays(folder)
    await kill("second")
"""


def test_workflows_have_their_turn_and_are_killed_when_their_function_has_left(
    tmp_path: Path, zookeeper: str, chroot: str
) -> None:
    """They are pinned to the version that has it, and what lets them begin and closes them runs with that one, too."""

    async def body() -> None:
        async with cluster(tmp_path, zookeeper, chroot, *DEFAULT) as nodes, await opened(nodes) as client:
            await client.deploy(bundle("one", turns=TURNS))
            flows, calls, folders = FlowClient(client), [], [tmp_path / name for name in ("first", "second", "killer")]
            for folder, workflow in zip(folders, ("turns", "turns", "kills"), strict=True):
                folder.mkdir()
                handle = await flows.start(workflow, str(folder), id=folder.name)
                calls.append((await handle.status()).invocation_id)
            await until_exists(nodes, folders[0] / "begun")
            await client.deploy(bundle("two"))
            assert await client.invoke("version") == "two"
            (folders[0] / "go").touch()
            await until_exists(nodes, folders[1] / "begun")
            (folders[2] / "go").touch()
            states = [(await client.invocation(call, wait_s=30)).state for call in (calls[0], calls[2], calls[1])]
            assert states == ["done", "done", "cancelled"]

    run(body())
