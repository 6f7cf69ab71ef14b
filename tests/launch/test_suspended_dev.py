"""Suspended calls in the whole of `boki dev`: real workers, a real log, a real clock, and a restart."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import uvloop

from boki.client import Client
from boki.config.loading import DevConfig
from boki.launch.dev import Dev

FUNCTIONS = '''
"""Functions that sleep without a process."""

import boki
from boki import Context, function
from boki.api.suspension import CallsById, Suspend, WakeOn, invocation_id_of


@function
async def nap(ctx: Context, wake_us: int) -> int:
    if ctx.run_number == 1:
        raise Suspend(wake_us, note="a nap")
    return ctx.run_number


@function
async def listen(ctx: Context, inbox: str) -> str:
    record = await ctx.logbook.check_tail(inbox)
    if record is None:
        raise Suspend(wakes=[WakeOn(ctx.logbook.name, inbox, 1)], note="for news")
    return f"{record.data.decode()} in run {ctx.run_number}"


@function
def listen_blocking(ctx: boki.blocking.Context, inbox: str) -> str:
    record = ctx.logbook.check_tail(inbox)
    if record is None:
        raise Suspend(wakes=[WakeOn(ctx.logbook.name, inbox, 1)])
    return f"{record.data.decode()} in run {ctx.run_number}"


@function
async def parent(ctx: Context, name: str) -> str:
    calls = CallsById(ctx)
    child = (await calls.start(invocation_id_of("child", name), "listen", "inbox:" + name, book="news")).id
    while (await calls.state(child)).state != "suspended":
        pass
    await ctx.logbook_named("news").append(b"told", tags=["inbox:" + name])
    return await ctx.result_of(child, wait_s=10)
'''


def config(folder: Path) -> DevConfig:
    (folder / "functions").mkdir(exist_ok=True)
    (folder / "functions" / "naps.py").write_text(FUNCTIONS)
    return DevConfig(data=folder / "data", functions=folder / "functions", port=0, reload=False)


async def suspended(client: Client, invocation: str) -> None:
    """Return when the call is suspended."""
    while (await client.invocation(invocation)).state != "suspended":
        pass


def test_calls_sleep_through_a_restart_and_wake_by_time_and_record(tmp_path: Path) -> None:
    """The client sees what they wait for; a cancelled one ends; what came while nothing ran wakes at the start."""

    async def test() -> None:
        dev = await Dev.start(config(tmp_path))
        async with Client(dev.url) as client:
            wake_us = round((time.time() + 3) * 1e6)
            timed = await client.invoke_later("nap", wake_us)
            far = await client.invoke_later("nap", wake_us + 10**12)
            told = [await client.invoke_later(name, "inbox", book="news") for name in ("listen", "listen_blocking")]
            for invocation in (timed, far, *told):
                await suspended(client, invocation)
            call = await client.invocation(timed)
            assert (call.next_us, call.note, call.attempts, call.wakes) == (wake_us, "a nap", 1, [])
            page = await client.calls(states=["suspended"])
            assert {call.id for call in page.calls} == {timed, far, *told}
            waits = next(call for call in page.calls if call.id == told[0])
            assert waits.wakes == [{"book": "news", "tag": "inbox", "min_seqnum": 1}]
            assert (dev.calls.suspended_count, dev.functions.call_count) == (4, 0)
            assert (await client.cancel(far)).state == "cancelled"
            await client.logbook("news").append(b"told", tags=["inbox"])
            assert (await client.invocation(told[0], wait_s=10)).result == "told in run 2"
            assert (await client.invocation(told[1], wait_s=10)).result == "told in run 2"
            again = await client.invoke_later("listen", "other", book="news")
            await suspended(client, again)
            assert await client.invoke("parent", "one") == "told in run 2"
        await dev.stop(5)
        dev = await Dev.start(config(tmp_path))
        async with Client(dev.url) as client:
            assert (await client.invocation(timed, wait_s=10)).result == 2
            assert (await client.invocation(again)).state == "suspended"
            await client.logbook("news").append(b"late", tags=["other"])
            assert (await client.invocation(again, wait_s=10)).result == "late in run 2"
        await dev.stop(5)

    uvloop.run(test())


def test_a_call_that_is_not_logged_cannot_be_suspended(tmp_path: Path) -> None:
    """Its caller is told what to do instead."""

    async def test() -> None:
        dev = await Dev.start(config(tmp_path))
        async with Client(dev.url) as client:
            with pytest.raises(Exception, match="only logged calls can be suspended: call it with invoke_later"):
                await client.invoke("listen", "inbox")
        await dev.stop(5)

    uvloop.run(test())
