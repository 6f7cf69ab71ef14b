"""Places under a limit are free again after each end, also of calls whose starts knew nothing of the limit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import boki.testing
from boki.extending import CallsById
from boki.libs.bokiflow import Limit, flow, workflow
from boki.libs.bokiflow.gates.marks import gate_id_of
from boki.libs.bokiflow.gates.records import Admission, Asked, GateRecord, gate_tag
from boki.libs.bokiflow.records import CODEC

RAN: list[str] = []
ONE = Limit(concurrency=1)


@pytest.fixture(autouse=True)
def forget() -> None:
    RAN.clear()


@workflow(limit=ONE)
async def alone(seconds: float) -> str:
    await flow.sleep(seconds)
    RAN.append(flow.id)
    return flow.id


@workflow(book="orders", limit=ONE)
async def elsewhere(name: str) -> str:
    await flow.sleep(10)
    RAN.append(name)
    return name


@workflow
async def parent(is_named: bool) -> list[str]:
    target: Any = "elsewhere" if is_named else elsewhere
    return list(await asyncio.gather(*(flow.call(target, name) for name in ("a", "b", "c"))))


async def test_later_calls_of_a_limited_workflow_follow_each_other(boki_context: boki.testing.Context) -> None:
    """Their ends name no attendant, which waited for them forever."""
    ctx = boki_context
    calls = [await ctx.invoke_later(alone, 10) for _ in range(3)]
    await ctx.clock.advance(31)
    assert sorted(RAN) == sorted(calls)


async def test_a_later_call_that_is_killed_gives_its_place_back(boki_context: boki.testing.Context) -> None:
    """Its body can tell nobody."""
    ctx = boki_context
    call = await ctx.invoke_later(alone, 10_000)
    await ctx.clock.advance(1)
    handle = await alone.start(ctx, 1, id="next")
    await ctx.clock.advance(1)
    await CallsById(ctx).cancel(call)
    await ctx.clock.advance(2)
    assert (await handle.status()).status == "done"


@pytest.mark.parametrize("is_named", [False, True])
async def test_children_in_a_logbook_of_their_own_follow_each_other(is_named: bool) -> None:
    """A parent that calls one by its name takes it for one of its own LogBook."""
    async with boki.testing.context(functions=[elsewhere, parent]) as ctx:
        handle = await parent.start(ctx, is_named, book="parents")
        await ctx.clock.advance(31)
        assert (await handle.status()).status == "done"
        assert sorted(RAN) == ["a", "b", "c"]


async def test_more_of_them_than_a_suspended_call_has_tags(boki_context: boki.testing.Context) -> None:
    """The attendant looks at the others once in a while."""

    @workflow(limit=Limit(concurrency=20))
    async def twenty(seconds: float) -> None:
        await flow.sleep(seconds)

    ctx = boki_context
    for number in range(20):
        await ctx.invoke_later(twenty, 10_000 if number < 19 else 50)
        await ctx.clock.advance(1)
    handle = await twenty.start(ctx, 1)
    await ctx.clock.advance(65)
    assert (await handle.status()).status == "done"


async def test_a_call_that_nobody_knows_any_more_has_ended(boki_context: boki.testing.Context) -> None:
    """Calls are forgotten a day after their end; one that is unknown soon after it was let begin may be on its way."""
    ctx = boki_context
    gate_id = gate_id_of(alone.name, ctx.logbook.name)
    now_us = ctx.clock.now_us
    for note in (Asked("gone:0", "gone", "", 0, ONE), Admission(now_us, ("gone:0",))):
        await ctx.logbook.append(CODEC.encode(GateRecord(note)), [gate_tag(gate_id)])
    first = await alone.start(ctx, 1, id="first")
    await ctx.clock.advance(3_600)
    assert (await first.status()).status == "suspended"
    await ctx.clock.advance(24 * 3_600)
    await alone.start(ctx, 1, id="second")
    await ctx.clock.advance(10)
    assert RAN == ["first", "second"]
