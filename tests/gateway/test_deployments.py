"""Deploying over HTTP: what is taken, what is refused, and what a gateway asks of its engines."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import msgspec
import pytest

from boki.books.functions.bundle import MAX_BUNDLE_BYTES, File, bundle_hash, pack_files
from boki.books.functions.version_book import VersionBook
from boki.books.functions.versions import Deployed
from boki.client import Client
from boki.errors import InvalidArgument, NotFound
from boki.log.ids import NodeId
from boki.log.operations import Failure
from boki.protocol.call_messages import ActivateBundle, BundleActivated
from boki.protocol.deployments import Deployment, VersionInfo
from tests.books.calls.call_world import FaultyPort, WatchedLog, time_passes
from tests.engine.remote_world import A, B, Cluster, in_cluster
from tests.gateway.fake_backend import FakeBackend, refused, run, serving

BUNDLE = pack_files([File("app.py", b"x = 1\n")])
VERSION = VersionInfo(number=7, bundle_hash="ab" * 32, deployed_us=5, size_bytes=9, functions=("f",), is_active=True)
HEADERS = {"Content-Type": "application/vnd.boki.bundle"}


class FakeDeployments:
    """Says what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def versions(self) -> list[VersionInfo]:
        return [VERSION]

    async def deploy(self, bundle: bytes, *, is_forced: bool) -> Deployment:
        self.asked.append((bundle, is_forced))
        return Deployment(version=VERSION, is_new=True, engines={"engine-1": True})

    async def use(self, wanted: str) -> Deployment:
        self.asked.append(wanted)
        if wanted == "9":
            raise NotFound("there is no version 9", field="version")
        return Deployment(version=VERSION, is_new=False, engines={})


def backend() -> FakeBackend:
    made = FakeBackend()
    made.deployments = FakeDeployments()  # type: ignore[attr-defined]
    return made


def test_a_client_deploys_lists_and_goes_back() -> None:
    """The bundle arrives as it is; force is said; a version that is not there is not found."""

    async def scenario() -> None:
        async with serving(backend()) as (gateway, fake, _), Client(gateway.url) as client:
            assert (await client.deploy(BUNDLE)).engines == {"engine-1": True}
            await client.deploy(BUNDLE, is_forced=True)
            assert await client.versions() == [VERSION]
            assert not (await client.use_version(3)).is_new
            with pytest.raises(NotFound, match="no version 9"):
                await client.use_version(9)
            assert fake.deployments.asked == [(BUNDLE, False), (BUNDLE, True), "3", "9"]  # type: ignore[attr-defined]
            assert gateway.core.is_idle

    run(scenario())


def test_what_is_no_bundle_is_refused_before_it_is_read() -> None:
    """Another type of content, more bytes than a bundle has, a query that is not known."""

    async def scenario() -> None:
        async with serving(backend()) as (gateway, fake, http):
            async with http.post("/functions/versions", data=b"x") as response:
                await refused(response, 400, "invalid_argument")
            body = io.BytesIO(bytes(MAX_BUNDLE_BYTES + 1))
            async with http.post("/functions/versions", data=body, headers=HEADERS) as response:
                await refused(response, 413, "too_large")
            async with http.post("/functions/versions?force=perhaps", data=BUNDLE, headers=HEADERS) as response:
                await refused(response, 400, "invalid_argument")
            assert not fake.deployments.asked  # type: ignore[attr-defined]
            assert gateway.core.is_idle

    run(scenario())


def test_deploying_needs_the_token() -> None:
    """Like everything else: it lets strangers run code."""

    async def scenario() -> None:
        async with serving(backend(), token="secret") as (_, fake, http):
            for method, path in (
                ("POST", "/functions/versions"),
                ("GET", "/functions/versions"),
                ("POST", "/functions/versions/1/use"),
            ):
                async with http.request(method, path, data=BUNDLE, headers=HEADERS) as response:
                    await refused(response, 401, "unauthorized")
            assert not fake.deployments.asked  # type: ignore[attr-defined]

    run(scenario())


# Through the gateway of a cluster


class Checked:
    """The engine's side, without workers: a bundle whose file says "broken" cannot be loaded."""

    def __init__(self, log: WatchedLog) -> None:
        self.number = 0
        self.asked: list[ActivateBundle] = []
        self._book = VersionBook(FaultyPort(log))

    async def activate(self, asked: ActivateBundle) -> BundleActivated:
        self.asked.append(asked)
        uploaded = Deployed(0, asked.bundle_hash, asked.size_bytes, asked.upload, asked.first_seqnum)
        content = await self._book.fetch(uploaded)
        if b"broken" in content:
            raise InvalidArgument("app.py cannot be loaded")
        return BundleActivated(asked.request, {}, (await self._book.activate(uploaded)).number)


def with_log(cluster: Cluster) -> dict[NodeId, Checked]:
    """All engines share a log that wakes its readers, and take bundles."""
    log = WatchedLog(cluster.log.limits)
    checked = {}
    for node, engine in cluster.engines.items():
        engine.log.log = log
        checked[node] = Checked(log)
        engine.service.deployed = checked[node]  # type: ignore[assignment]
    return checked


def test_a_gateway_uploads_once_and_lets_an_engine_look() -> None:
    """It waits until every engine that is up runs the version, and tells which do not."""

    async def scenario(cluster: Cluster) -> None:
        checked = with_log(cluster)
        deploying = asyncio.create_task(cluster.backend.deployments.deploy(BUNDLE, is_forced=False))
        await time_passes(0.5)
        assert not deploying.done()
        (asked,) = [message for engine in checked.values() for message in engine.asked]
        assert asked.bundle_hash == bundle_hash(BUNDLE)
        checked[A].number = 1
        cluster.engines[A].functions.functions_number += 1
        deployment = await deploying
        assert deployment.engines == {A: True, B: False}
        assert (deployment.version.number, deployment.is_new) == (1, True)
        again = asyncio.create_task(cluster.backend.deployments.deploy(BUNDLE, is_forced=False))
        checked[B].number = 1
        cluster.engines[B].functions.functions_number += 1
        assert (await again).engines == {A: True, B: True}
        assert not again.result().is_new
        assert sum(len(engine.asked) for engine in checked.values()) == 1

    in_cluster(scenario)


def test_a_deployment_that_is_superseded_says_so_at_once() -> None:
    """Of several deployments at the same time the last one runs: the others do not wait for engines to run theirs."""

    async def scenario(cluster: Cluster) -> None:
        checked = with_log(cluster)
        deployments = cluster.backend.deployments
        first = asyncio.create_task(deployments.deploy(BUNDLE, is_forced=False))
        await time_passes(0.5)
        second = asyncio.create_task(deployments.deploy(pack_files([File("app.py", b"y = 1\n")]), is_forced=False))
        await time_passes(0.5)
        assert not second.done()
        begun_s = asyncio.get_running_loop().time()
        told = await first
        assert asyncio.get_running_loop().time() - begun_s < 2
        assert (told.version.number, told.superseded_by, told.version.is_active) == (1, 2, False)
        for node, engine in checked.items():
            engine.number = 2
            cluster.engines[node].functions.functions_number += 1
        told = await second
        assert (told.version.number, told.superseded_by, told.engines) == (2, 0, {A: True, B: True})

    in_cluster(scenario)


def test_a_bundle_that_is_refused_leaves_no_version() -> None:
    """Neither one that is none, nor one that the engine cannot load."""

    async def scenario(cluster: Cluster) -> None:
        with_log(cluster)
        for content in (b"junk", pack_files([File("app.py", b"broken")])):
            with pytest.raises(InvalidArgument):
                await cluster.backend.deployments.deploy(content, is_forced=False)
        assert await cluster.backend.deployments.versions() == []
        with pytest.raises(NotFound):
            await cluster.backend.deployments.use("previous")

    in_cluster(scenario)


def test_an_engine_that_is_lost_while_it_looks_is_replaced() -> None:
    """The upload is in the log; another engine takes it from there, and there is one version."""

    async def scenario(cluster: Cluster) -> None:
        checked = with_log(cluster)
        chosen: list[NodeId] = []

        def loses(sender: NodeId, to: NodeId, message: Any) -> bool:
            if isinstance(message, ActivateBundle) and not chosen:
                chosen.append(to)
            return bool(chosen) and chosen[0] in (sender, to)

        cluster.wire.loses = loses
        deployment = await cluster.backend.deployments.deploy(BUNDLE, is_forced=False)
        assert deployment.version.number == 1
        (survivor,) = {A, B} - set(chosen)
        assert len(checked[survivor].asked) == 1
        assert not checked[chosen[0]].asked

    in_cluster(scenario)


def test_messages_about_bundles_are_small_and_come_back_as_they_were() -> None:
    """The bundle itself travels in the log."""
    asked = ActivateBundle(1, {0: 5}, 9, "h", 5, "bundle:x", 7, True)
    failed = BundleActivated(1, {}, 0, failure=Failure("a", "b", "not_applied", False))
    for message in (asked, failed):
        kind: type[ActivateBundle | BundleActivated] = type(message)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=kind) == message


def test_a_folder_is_not_deployed_to() -> None:
    """`boki dev` says what to do instead, and so does an engine without a place for bundles."""

    async def scenario(cluster: Cluster) -> None:
        with_log(cluster)
        for engine in cluster.engines.values():
            engine.service.deployed = None
        with pytest.raises(InvalidArgument, match="cannot be deployed to"):
            await cluster.backend.deployments.deploy(BUNDLE, is_forced=False)

    in_cluster(scenario)
