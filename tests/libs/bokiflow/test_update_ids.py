"""Ids of updates: the log remembers them for a day."""

from __future__ import annotations

import boki.testing
from boki.libs.bokiflow import flow, workflow


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
