"""What pure steps take of a workflow's time: timers that are set behind them count from their ends."""

from __future__ import annotations

import asyncio

import pytest

import boki.testing
from boki.libs.bokiflow import flow, step, workflow

pytestmark = pytest.mark.usefixtures("each_mode")

TOOK_S = 100


@step(pure=True)
async def compute() -> float:
    step.ctx.clock.now_us += TOOK_S * 1_000_000
    return step.ctx.clock.now_us / 1e6


@step
async def the_time() -> float:
    return step.ctx.clock.now_us / 1e6


@workflow
async def naps() -> float:
    ended = await compute()
    await flow.sleep(60)
    return await the_time() - ended


async def test_a_sleep_behind_a_pure_step_is_as_long_as_it_says(boki_context: boki.testing.Context) -> None:
    """It was over at once: it counted from the last event in front of the pure step."""
    slept_s = await (await naps.start(boki_context)).result()
    assert slept_s >= 60


@workflow
async def waits() -> str:
    await compute()
    try:
        async with asyncio.timeout(30):
            return str(await flow.receive("go"))
    except TimeoutError:
        return "nobody"


async def test_a_time_limit_behind_a_pure_step_leaves_time(boki_context: boki.testing.Context) -> None:
    """It was over before anybody could send a signal."""
    handle = await waits.start(boki_context)
    for _ in range(2):
        await boki_context.clock.advance(10)
    await handle.signal("go", "went")
    assert await handle.result() == "went"


@workflow
async def tells() -> float:
    before = flow.now()
    await compute()
    return (flow.now() - before).total_seconds()


async def test_the_time_passes_with_a_pure_step(boki_context: boki.testing.Context) -> None:
    """`flow.now()` is that of the last event, which is the end of that step."""
    assert await (await tells.start(boki_context)).result() >= TOOK_S
