"""Ids of updates: the log remembers them for a day."""

from __future__ import annotations

import asyncio

import pytest

import boki.testing
from boki.libs.bokiflow import Handle, flow, workflow


@workflow
async def counter() -> None:
    count = 0

    def add(number: int) -> int:
        nonlocal count
        count += number
        return count

    flow.on_update("add", add)
    await flow.receive("end")


async def test_an_id_is_used_again_after_a_day(boki_context: boki.testing.Context, each_mode: None) -> None:
    """That is another update, which a workflow that has not continued as new since passed by without an answer."""
    ctx = boki_context
    handle = await counter.start(ctx, id="one")
    assert [await handle.update("add", 1, id="daily") for _ in range(2)] == [1, 1]
    for expected in (2, 3):
        await ctx.clock.advance(25 * 3_600)
        assert [await handle.update("add", 1, id="daily", wait_s=60) for _ in range(2)] == [expected, expected]
    await handle.signal("end")
    await handle.result()


@workflow
async def approval(asked: int = 0) -> int:

    async def ask(number: int) -> int:
        nonlocal asked
        asked += number
        await flow.receive("approve")
        return asked

    flow.on_update("ask", ask)
    if await flow.receive("end") == "round":
        flow.continue_as_new(asked)
    return asked


async def _sent(handle: Handle[int]) -> asyncio.Task[int]:
    """The update, when the workflow has it."""
    task = asyncio.create_task(handle.update("ask", 1, id="daily"))
    for _ in range(100):
        await asyncio.sleep(0)
    return task


async def test_an_update_that_is_handled_for_longer_than_a_day_is_handled_once(
    boki_context: boki.testing.Context, each_mode: None
) -> None:
    """Who still waits for its answer sends it again; the one answer is for both records."""
    ctx = boki_context
    handle = await approval.start(ctx, id="one")
    first = await _sent(handle)
    await ctx.clock.advance(25 * 3_600)
    second = await _sent(handle)
    await handle.signal("approve")
    assert [await first, await second] == [1, 1]
    await handle.signal("end")
    assert await handle.result() == 1


@pytest.mark.parametrize("continues", [False, True])
async def test_an_answer_that_was_late_does_not_swallow_the_next_one(
    boki_context: boki.testing.Context, each_mode: None, continues: bool
) -> None:
    """The log still remembers the answer when it has forgotten the update."""
    ctx = boki_context
    handle = await approval.start(ctx, id="one")
    first = await _sent(handle)
    await ctx.clock.advance(12 * 3_600)
    await handle.signal("approve")
    assert await first == 1
    if continues:
        await handle.signal("end", "round")
    await ctx.clock.advance(13 * 3_600)
    second = await _sent(handle)
    await handle.signal("approve")
    async with asyncio.timeout(20):
        assert await second == 2
    await handle.signal("end")
    assert await handle.result() == 2
