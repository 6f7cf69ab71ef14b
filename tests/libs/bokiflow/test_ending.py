"""Compensations that have begun run to their end, whatever asks the workflow to end. Only a kill stops them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

import boki.testing
from boki import FunctionFailed, Retry
from boki.libs.bokiflow import Limit, WorkflowEnded, flow, step, workflow
from boki.libs.bokiflow.records import CancelRequested

pytestmark = pytest.mark.usefixtures("each_mode")

UNDONE: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    UNDONE.clear()


@step(retry=Retry(attempts=2, first_s=100, max_s=100, jitter=0))
async def undo(what: str) -> None:
    """Takes 100 s, in which the workflow hears messages."""
    if step.attempt == 1:
        raise ConnectionError("in a moment")
    UNDONE.append(what)


async def _fails(_order: Any = None) -> None:
    def complain(why: str) -> None:
        raise RuntimeError(why)

    flow.on_signal("complain", complain)
    for what in ("second", "first"):
        flow.compensate(undo, what)
    await flow.sleep(10)
    raise ValueError("no seats")


@workflow
async def saga(order: Any = None) -> None:
    await _fails(order)


@workflow(limit=Limit(concurrency=1, when_full="cancel_running"))
async def newest_only(order: Any = None) -> None:
    if order == "new":
        return
    await _fails(order)


@workflow
async def parent() -> None:
    await flow.start(saga, id="child")
    await flow.sleep(50)


@pytest.mark.parametrize("way", ["cancel", "handler", "parent", "schedule", "limit"])
async def test_a_workflow_that_has_failed_undoes_all_that_it_had_done(
    boki_context: boki.testing.Context, way: str
) -> None:
    """The first reason counts: it ends with the error that it raised."""
    ctx = boki_context
    if way == "parent":
        await parent.start(ctx, id="p")
        handle = saga.handle(ctx, "child")
    elif way == "limit":
        handle = await newest_only.start(ctx, id="old")
    elif way == "schedule":
        schedule = await saga.schedule(ctx, None, id="s", every_s=50, overlap="cancel")
        while not (found := (await schedule.state()).running):
            await ctx.clock.advance(1)
        handle = saga.handle(ctx, found[0])
    else:
        handle = await saga.start(ctx, id="s")
    await ctx.clock.advance(40)
    assert not UNDONE, "the first compensation is under way"
    if way == "cancel":
        await handle.cancel("changed their minds")
    elif way == "handler":
        await handle.signal("complain", "not me")
    elif way == "limit":
        await newest_only.start(ctx, "new", id="new")
    await ctx.clock.advance(20)
    if way == "schedule":
        await schedule.pause()
    with pytest.raises(FunctionFailed, match="ValueError: no seats"):
        await handle.result()
    assert UNDONE[:2] == ["first", "second"]


@pytest.mark.parametrize("then", ["handler", "cancel"])
async def test_a_cancelled_workflow_undoes_all_that_it_had_done(boki_context: boki.testing.Context, then: str) -> None:
    """A handler that fails meanwhile is too late, as is another request with another reason."""
    ctx = boki_context
    handle = await saga.start(ctx, id="s")
    await ctx.clock.advance(5)
    await handle.cancel("too dear")
    await ctx.clock.advance(50)
    await (handle.signal("complain", "not me") if then == "handler" else handle.cancel("too late"))
    with pytest.raises(FunctionFailed, match=r"WorkflowCancelled: .*too dear"):
        await handle.result()
    assert UNDONE == ["first", "second"]


async def test_a_failing_handler_is_not_followed_by_a_cancellation(boki_context: boki.testing.Context) -> None:
    """The error of the handler is why the workflow ended."""
    ctx = boki_context
    handle = await saga.start(ctx, id="s")
    await ctx.clock.advance(5)
    await handle.signal("complain", "that is wrong")
    await ctx.clock.advance(50)
    await handle.cancel()
    with pytest.raises(FunctionFailed, match="RuntimeError: that is wrong"):
        await handle.result()
    assert UNDONE == ["first", "second"]


async def test_a_kill_stops_compensations(boki_context: boki.testing.Context) -> None:
    """It undoes nothing, and nothing more."""
    ctx = boki_context
    handle = await saga.start(ctx, id="s")
    await ctx.clock.advance(40)
    await handle.kill()
    await ctx.clock.advance(1_000)
    assert UNDONE == []
    assert (await handle.status()).status == "cancelled"


async def test_compensations_after_one_that_was_cancelled(boki_context: boki.testing.Context) -> None:
    """One of the workflow's own awaits what was cancelled: the others run, and the error names it."""

    async def odd() -> None:
        task = asyncio.ensure_future(flow.sleep(1))
        task.cancel()
        await task

    @workflow
    async def careless() -> None:
        flow.compensate(undo, "all the same")
        flow.compensate(odd)
        raise ValueError("no seats")

    handle = await careless.start(boki_context)
    with pytest.raises(FunctionFailed, match=r"CompensationFailed: .*no seats.*CancelledError"):
        await handle.result()
    assert UNDONE == ["all the same"]


async def test_what_returns_is_not_cancelled_while_it_leaves_its_locks(boki_context: boki.testing.Context) -> None:
    """The body has ended well: a request that comes while a lock is being left comes too late."""

    @workflow
    async def holds() -> str:
        await flow.lock("a")
        await flow.lock("b")
        await flow.receive("stop")
        return "done"

    handle = await holds.start(boki_context, id="h")
    await boki_context.clock.advance(5)
    await handle.signal("stop")
    with suppress(WorkflowEnded):
        await handle._send(CancelRequested(), None)
    assert await handle.result() == "done"
