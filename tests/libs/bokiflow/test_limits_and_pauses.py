"""Limits that end workflows which are paused."""

from __future__ import annotations

import boki.testing
from boki.libs.bokiflow import Limit, flow, workflow


@workflow(limit=Limit(concurrency=1, when_full="cancel_running"))
async def last_only(seconds: float) -> str:
    await flow.sleep(seconds)
    return flow.id


async def test_a_limit_ends_a_paused_workflow(boki_context: boki.testing.Context, each_mode: None) -> None:
    """As a request to cancel does. What was started after it waited for its place until somebody resumed it."""
    ctx = boki_context
    first = await last_only.start(ctx, 1_000, id="first")
    await ctx.clock.advance(1)
    await first.pause("the bank is closed")
    await ctx.clock.advance(5)
    assert (await first.status()).status == "paused"
    second = await last_only.start(ctx, 1, id="second")
    await ctx.clock.advance(30)
    assert [(await one.status()).status for one in (first, second)] == ["cancelled", "done"]
