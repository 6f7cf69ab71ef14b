"""Workflows in the whole of `boki dev`: real workers, a real log, a real clock, a worker that dies, and a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from boki import FunctionFailed
from boki.client import Client
from boki.config.loading import DevConfig
from boki.launch.dev import Dev
from boki.libs.bokiflow import FlowClient

FUNCTIONS = '''
"""Workflows, and functions that start them and speak to them."""

import asyncio
import os

from boki import Context, NoSuchInvocation, Retry, function
from boki.extending import CallsById
from boki.libs.bokiflow import flow, step, workflow


@step
async def note(what: str) -> str:
    await step.ctx.logbook.append(what.encode(), tags=["noted"], key=step.key)
    return what


@step
def add(a: int, b: int) -> int:
    return a + b


@step
async def die_once(life: str) -> int:
    if await step.ctx.logbook.check_tail(f"died:{life}") is None:
        await step.ctx.logbook.append(b"", tags=[f"died:{life}"])
        os._exit(9)
    return step.attempt


@workflow
async def child(n: int) -> int:
    await flow.sleep(0.7)
    return n * 2


@workflow
async def trip(count: int) -> list[int]:
    await note("begun")
    word = await flow.receive("go")
    found = await asyncio.gather(*(flow.call(child, n) for n in range(count)))
    await die_once(word)
    total = await flow.run(add, found[-1], 1)
    await note("ended")
    return [*found, total, await flow.promise("last")]


@workflow(book="trips", keep_s=0.2)
async def short(n: int) -> bool:
    return await note(str(n)) != ""


@step(pure=True)
async def square(n: int) -> int:
    return n * n


@step
async def on_record() -> bool:
    try:
        return (await CallsById(step.ctx).state(step.ctx.invocation_id)).state == "running"
    except NoSuchInvocation:
        return False


@workflow
async def sum_of_squares(count: int) -> int:
    return sum([await square(n) for n in range(count)])


@workflow
async def squares_and_effect(count: int) -> bool:
    for n in range(count):
        await square(n)
    return await on_record()


@function(book="trips")
async def tried(ctx: Context, count: int) -> list[int]:
    handle = await sum_of_squares.start(ctx, count)
    where = (await ctx.logbook_named("boki:calls").read(f"id:{handle.invocation_id}")).records
    handles = [await squares_and_effect.start(ctx, count) for _ in range(5)]
    known = [int(await each.result()) for each in handles]
    return [await handle.result(), len(where), where[-1].seqnum - where[0].seqnum, *known]


@workflow
async def account() -> int:
    total = 0
    is_closed = False

    def deposit(cents: int) -> int:
        nonlocal total
        total += cents
        return total

    def close(_: None) -> None:
        nonlocal is_closed
        is_closed = True

    flow.on_update("deposit", deposit)
    flow.on_signal("close", close)
    await flow.wait_for(lambda: is_closed)
    return total


@function(book="trips")
async def begin(ctx: Context, name: str) -> str:
    return (await trip.start(ctx, 3, id=name)).invocation_id


@function(book="trips")
async def run_short(ctx: Context, n: int) -> str:
    handle = await short.start(ctx, n)
    await handle.result()
    return handle.invocation_id


@function(book="trips")
async def go(ctx: Context, name: str) -> None:
    await trip.handle(ctx, name).signal("go", "now")


@function(book="trips")
async def end(ctx: Context, name: str) -> list[int]:
    handle = trip.handle(ctx, name)
    await handle.resolve("last", 7)
    return await handle.result()


@function(book="trips")
async def bank(ctx: Context, count: int) -> list[int]:
    handle = await account.start(ctx)
    said = [await handle.update("deposit", n) for n in range(count)]
    await handle.signal("close")
    return [*said, await handle.result()]


@step
async def short_work(n: int) -> int:
    await asyncio.sleep(0.05)
    return step.ctx.run_number


@step(retry=Retry(attempts=2, first_s=0.01, max_s=0.01))
async def stubborn() -> int:
    while step.attempt == 1:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
    return step.attempt


@workflow(run_timeout_s=1)
async def busy(count: int) -> int:
    return len({await short_work(n) for n in range(count)})


@workflow(run_timeout_s=1)
async def stuck(_: int) -> int:
    return await stubborn()


@function(book="trips")
async def stop(ctx: Context, name: str) -> None:
    handle = await trip.start(ctx, 1, id=name)
    await handle.cancel("test")
    await handle.result()
'''


def config(folder: Path) -> DevConfig:
    (folder / "functions").mkdir(exist_ok=True)
    (folder / "functions" / "trips.py").write_text(FUNCTIONS)
    return DevConfig(data=folder / "data", functions=folder / "functions", port=0, reload=False)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Client]:
    """A client of a system that runs."""
    dev = await Dev.start(config(folder))
    try:
        async with Client(dev.url) as client:
            yield client
    finally:
        await dev.stop(5)


async def suspended(client: Client, invocation: str) -> None:
    """Return when the workflow is suspended."""
    while (await client.invocation(invocation)).state != "suspended":
        pass


def test_a_workflow_outlives_its_processes(tmp_path: Path) -> None:
    """It waits for a signal, for children and for a promise without a process, loses its worker in a step, and the
    system is restarted in between: each step that takes its key happens once.
    """

    async def test() -> None:
        async with running(tmp_path) as client:
            invocation = await client.invoke("begin", "one")
            await suspended(client, invocation)
        async with running(tmp_path) as client:
            assert (await client.invocation(invocation)).state == "suspended"
            await client.invoke("go", "one")
            async for record in client.logbook("trips").subscribe("noted", start=0):
                if record.data == b"ended":  # until then its worker may die, with what else runs in it
                    break
            assert await client.invoke("end", "one", timeout_s=30) == [0, 2, 4, 5, 7]
            noted = await client.logbook("trips").read("noted")
            assert [record.data for record in noted.records] == [b"begun", b"ended"]
            journal = await client.logbook("trips").read(f"!fj:{invocation}")
            assert len(journal.records) == 8  # the last one says that it has ended

    uvloop.run(test())


def test_updates_and_cancellation(tmp_path: Path) -> None:
    """A live workflow answers updates in their order; a cancelled one fails with the reason."""

    async def test() -> None:
        async with running(tmp_path) as client:
            assert await client.invoke("bank", 5) == [0, 1, 3, 6, 10, 10]
            with pytest.raises(FunctionFailed, match="workflow trip was cancelled: test"):
                await client.invoke("stop", "two")

    uvloop.run(test())


def test_histories_are_trimmed(tmp_path: Path) -> None:
    """In a running system, too, beside the workflows that end; the result stays."""

    async def test() -> None:
        async with running(tmp_path) as client:
            first = await client.invoke("run_short", 0)
            logbook = client.logbook("trips")
            count = 1
            while (await logbook.read(f"!fj:{first}")).records:
                await client.invoke("run_short", count)
                count += 1
            assert (await client.invocation(first)).result is True
            assert len((await logbook.read("!fe:0.2")).records) <= count

    uvloop.run(test())


def test_pure_workflows_end_with_their_acceptance_and_effects_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten pure steps are one append with two records, and a step with an effect runs when its call is on record."""
    monkeypatch.setattr("boki.books.calls.trying._TRY_S", 10.0)  # a busy machine takes longer than production waits

    async def scenario() -> None:
        async with running(tmp_path) as client:
            assert await client.invoke("tried", 10) == [285, 2, 1] + [1] * 5

    uvloop.run(scenario())


def test_workflows_outlast_the_deadlines_of_their_runs(tmp_path: Path) -> None:
    """One is busy for twice as long as a run may be. The step of the other one does not let itself be cancelled, so its
    run is lost at the deadline, with its worker, and the attempt has timed out.
    """

    async def scenario() -> None:
        async with running(tmp_path) as client:
            flows = FlowClient(client)
            long, late = await flows.start("busy", 40), await flows.start("stuck", 1)
            assert await long.result() >= 3
            assert await late.result() == 2

    uvloop.run(scenario())


HUNGRY = '''
"""Workflows of one module, of which one uses more memory than its worker may have."""

import asyncio

from boki import function
from boki.libs.bokiflow import step, workflow


@step
async def grow() -> int:
    block = bytearray(200 << 20)
    block[::4096] = b"x" * len(block[::4096])
    await asyncio.Event().wait()
    return len(block)


@step
async def work(n: int) -> int:
    await asyncio.sleep(0.1)
    return n


@workflow(memory_bytes=160 << 20)
async def hungry() -> int:
    return await grow()


@workflow(memory_bytes=160 << 20)
async def modest(count: int) -> int:
    return sum([await work(n) for n in range(count)])
'''


@pytest.mark.whole
def test_a_workflow_that_outgrows_its_memory_is_paused_and_its_neighbour_ends(tmp_path: Path) -> None:
    """With the reason. The neighbour is lost with it, again and again, and does steps in between."""

    async def scenario() -> None:
        started = config(tmp_path)
        (started.functions / "hungry.py").write_text(HUNGRY)
        dev = await Dev.start(started)
        try:
            async with Client(dev.url) as client:
                hungry = await client.invoke_later("hungry", key="hungry")
                modest = await client.invoke_later("modest", 60, key="modest")
                while not (found := await client.invocation(hungry, wait_s=0.2)).note:
                    assert found.error is None
                assert found.note.startswith("paused: lost 8 times in a row without progress")
                assert "of memory, more than its memory_bytes of" in found.note
                ended = await client.invocation(modest, wait_s=60)
                assert (ended.state, ended.result) == ("done", sum(range(60)))
        finally:
            await dev.stop(5)

    uvloop.run(scenario())
