"""What is under way while a version takes over: calls that wait for a worker, and files that are being unpacked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from boki.books.calls.runs import is_refusal
from boki.books.functions.version_book import VersionBook
from boki.dispatch.server import deployed
from boki.errors import NotFound, Unavailable
from boki.protocol.calls import ANY_VERSION, PINNED, THIS_VERSION, ChosenId, Outcome, Payload
from tests.books.calls.call_world import FaultyPort, a_call, failing
from tests.dispatch.test_deployed import SAYS, Watched, bundle, system
from tests.engine.host import TIMEOUT_S, Gate, Host, drive

HOLDS = """
@function(concurrency=1, max_workers=1)
async def holds(ctx: Context, gate: str) -> str:
    wait_at(gate)
    return "{}"
"""


@pytest.mark.parametrize("old_module", ["goes", "stays"])
def test_a_queued_call_follows_its_function_to_another_module(tmp_path: Path, old_module: str) -> None:
    """Whether its old module goes or stays: no worker has begun it."""
    rest = {"m": SAYS.format("rest")} if old_module == "stays" else {}

    async def test() -> None:
        async with system(tmp_path) as made:
            await made.deploy(bundle(m=HOLDS.format("old") + rest.get("m", "")))
            await made.deployed.until(1)
            with Gate(tmp_path / "gate") as gate:
                running = made.host.begin("holds", gate.path)
                await gate.arrived()
                queued = made.host.begin("holds", gate.path)
                await made.host.until(lambda: made.host.call_count == 2)
                await made.deploy(bundle(a=HOLDS.format("new"), **rest))
                await made.deployed.until(2)
                gate.open()
                assert (await running).result == Payload("text", b"old")
                assert (await queued).result == Payload("text", b"new")

    drive(test())


def test_a_queued_call_is_refused_for_now_if_its_new_module_cannot_be_loaded_yet(tmp_path: Path) -> None:
    """It is a logged call that was accepted, so it must not fail permanently."""

    async def test() -> None:
        async with system(tmp_path) as made:
            await made.deploy(bundle(m=HOLDS.format("old")))
            await made.deployed.until(1)
            with Gate(tmp_path / "gate") as gate:
                running = made.host.begin("holds", gate.path)
                await gate.arrived()
                queued = asyncio.create_task(made.deployed.run(made.host.call_of("holds", gate.path)))
                await made.host.until(lambda: made.host.call_count == 2)
                uploaded = await made.book.upload(bundle(a="import here_later", m=SAYS.format("rest")))
                await made.book.activate(msgspec.structs.replace(uploaded, functions=("holds", "says")))
                with pytest.raises(
                    Unavailable, match="'holds' is not among the functions that run here yet"
                ) as refused:
                    await queued
                assert is_refusal(failing(refused.value))
                gate.open()
                assert (await running).failure is None

    drive(test())


@pytest.mark.parametrize("stays", [True, False])
def test_a_queued_call_that_is_pinned_is_not_given_to_another_version(tmp_path: Path, *, stays: bool) -> None:
    """Nor does it fail, if its function has left: it is refused for a moment, and its own version runs it then."""

    async def test() -> None:
        async with system(tmp_path) as made:
            await made.deploy(bundle(m=HOLDS.format("old")))
            await made.deployed.until(1)
            with Gate(tmp_path / "gate") as gate:
                running = made.host.begin("holds", gate.path)
                await gate.arrived()
                chosen = ChosenId("start", attributes={PINNED: 1})
                pinned = msgspec.structs.replace(made.host.call_of("holds", gate.path), chosen=chosen)
                queued = asyncio.create_task(made.deployed.run(pinned))
                await made.host.until(lambda: made.host.call_count == 2)
                await made.deploy(bundle(m=(HOLDS if stays else SAYS).format("new")))
                await made.deployed.until(2)
                gate.open()
                with pytest.raises(Unavailable, match="pinned to version 1") as refused:
                    _raise_failure(await queued)
                assert is_refusal(failing(refused.value))
                assert (await running).result == Payload("text", b"old")

    drive(test())


def _raise_failure(outcome: Outcome) -> None:
    assert outcome.failure is not None, outcome.result
    raise outcome.failure.error()


def test_a_call_that_its_own_module_does_not_register_fails_for_good(tmp_path: Path) -> None:
    """It is deployed and described, so nothing will come that could take it: its caller reads what to do."""
    marker = tmp_path / "marker"
    fickle = f"""
import os
seen = os.path.exists({str(marker)!r})

@function(name="after" if seen else "before")
async def f(ctx: Context) -> None:
    pass
"""

    async def test() -> None:
        async with system(tmp_path) as made:
            uploaded = await made.book.upload(bundle(m=fickle))
            await made.book.activate(msgspec.structs.replace(uploaded, functions=("before",)))
            await made.deployed.until(1)
            marker.touch()
            failure = (await made.deployed.run(made.host.call_of("before", None))).failure
            assert failure is not None
            assert "register the same functions at every import" in failure.message

    drive(test())


def test_what_is_being_unpacked_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that takes over removes the bundles of old ones when the next one is complete."""
    seen: list[str] = []
    writing, may_write = threading.Event(), threading.Event()
    switching, may_switch, switched = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def write(*arguments: Any) -> None:
        writing.set()
        may_write.wait(TIMEOUT_S)
        unpack(*arguments)
        seen.append("written")

    async def test() -> None:
        async with system(tmp_path) as made:
            switch, remove = made.host.switch, made.deployed._remove_others

            async def switch_later(*arguments: Any, **options: Any) -> None:
                switching.set()
                await may_switch.wait()
                await switch(*arguments, **options)
                switched.set()

            def remove_seen(kept: set[str]) -> None:
                seen.append("removed")
                remove(kept)

            monkeypatch.setattr(made.host, "switch", switch_later)
            monkeypatch.setattr(made.deployed, "_remove_others", remove_seen)
            await made.deploy(bundle(app=SAYS.format("one")))
            await switching.wait()
            monkeypatch.setattr(deployed, "_write", write)
            next_one = asyncio.create_task(made.deploy(bundle(app=SAYS.format("two"))))
            await asyncio.to_thread(writing.wait, TIMEOUT_S)
            may_switch.set()
            await switched.wait()
            await asyncio.to_thread(seen.append, "waited")
            may_write.set()
            assert await next_one == 2
            await made.deployed.until(2)
        assert seen[:3] == ["waited", "written", "removed"]

    unpack = deployed._write
    drive(test())


def test_an_attendant_whose_function_has_left_runs_with_the_newest_version_that_has_it(tmp_path: Path) -> None:
    """Calls that are pinned to earlier versions wait for it. Any other call of that function fails permanently."""

    async def test() -> None:
        async with system(tmp_path) as made:
            for number, content in enumerate([*map(SAYS.format, ("one", "two")), HOLDS.format("three")], 1):
                await made.deploy(bundle(app=content))
                await made.deployed.until(number)
            call = msgspec.structs.replace(a_call(1, "says"), payload=Payload("bytes", b""))
            for attributes, version in (({ANY_VERSION: True}, 2), ({PINNED: 1}, 1), ({PINNED: 3}, 0), ({}, 0)):
                chosen = ChosenId("start", attributes=attributes)
                assert made.deployed.version_for(msgspec.structs.replace(call, chosen=chosen)) == version
            there = msgspec.structs.replace(
                call, function="holds", chosen=ChosenId("start", attributes={ANY_VERSION: True})
            )
            assert made.deployed.version_for(there) == 0
        host = Host(None)
        later = Watched(FaultyPort(made.log), host, made.folder, make_host=lambda: Host(None))
        try:
            await host.start()
            await later.start()
            attends = msgspec.structs.replace(call, chosen=ChosenId("start", attributes={ANY_VERSION: True}))
            assert (await later.run(attends)).result == Payload("text", b"two")
            assert (await later.run(call)).failure is not None
        finally:
            await later.stop()
            await host.stop(0)

    drive(test())


def test_a_call_of_a_new_function_is_pinned_to_the_version_that_brings_it(tmp_path: Path) -> None:
    """It may be accepted at an engine where that version is still to run: pinned to the one that runs there, it would
    find no function.
    """

    async def test() -> None:
        async with system(tmp_path) as made:
            assert made.deployed.version_to_pin("says") == 0
            await made.deploy(bundle(app=SAYS.format("one")))
            await made.deployed.until(1)
            uploaded = await made.book.upload(bundle(app=SAYS.format("two"), new=HOLDS.format("new")))
            late = msgspec.structs.replace(uploaded, bundle_hash="0" * 64, functions=("holds", "says"))
            await made.book.activate(late)
            await made.deployed.until(2, runs=False)
            assert made.deployed.number == 1
            assert [made.deployed.version_to_pin(name) for name in ("says", "holds", "nobody")] == [1, 2, 1]

    drive(test())


def test_a_call_about_one_version_runs_with_no_other(tmp_path: Path) -> None:
    """A workflow that moved to a version which is not kept would run whatever is deployed."""

    async def test() -> None:
        async with another_engine(tmp_path) as (engine, host):
            asked = msgspec.structs.replace(
                host.call_of("says"), chosen=ChosenId("start", attributes={PINNED: 7, THIS_VERSION: True})
            )
            with pytest.raises(NotFound, match="version 7 is not among those that are kept: 1, 2"):
                await engine.run(asked)

    drive(test())


def test_an_engine_that_runs_nothing_runs_no_earlier_version(tmp_path: Path) -> None:
    """`--functions-version none` is for a version that harms the engines. Pinned calls wait, too."""

    async def test() -> None:
        async with another_engine(tmp_path, runs_at_start=False) as (engine, host):
            pinned = msgspec.structs.replace(host.call_of("says"), chosen=ChosenId("start", attributes={PINNED: 1}))
            with pytest.raises(Unavailable) as refused:
                await engine.run(pinned)
            assert is_refusal(failing(refused.value))
            await engine.book.use("2")
            await engine.until(2)
            assert (await engine.run(pinned)).result == Payload("text", b"one")

    drive(test())


class Another(Watched):
    """Another engine's functions, and the log that says which."""

    book: VersionBook


@asynccontextmanager
async def another_engine(tmp_path: Path, **options: Any) -> AsyncIterator[tuple[Another, Host]]:
    """An engine that starts after two versions were deployed."""
    async with system(tmp_path) as made:
        for number, text in ((1, "one"), (2, "two")):
            await made.deploy(bundle(app=SAYS.format(text)))
            await made.deployed.until(number)
    host = Host(None)
    engine = Another(FaultyPort(made.log), host, made.folder, make_host=lambda: Host(None), **options)
    engine.book = made.book
    try:
        await host.start()
        await engine.start()
        yield engine, host
    finally:
        await engine.stop()
        await host.stop(0)
