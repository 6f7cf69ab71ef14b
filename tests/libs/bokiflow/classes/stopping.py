"""Workflows that are paused and resumed, killed and cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from boki import CallCancelled, FunctionFailed, Retry
from boki.libs.bokiflow import WorkflowEnded, flow, step, workflow
from boki.testing import Context
from tests.libs.bokiflow.classes import BODIES, case, do, done


@workflow
async def sleeper(seconds: int) -> str:
    """Something before a timer and something behind it."""
    await do("before")
    await flow.sleep(seconds)
    return await do("behind")


@case("hatchet workflow_pause; dapr#8548: a timer that ends while its workflow is paused")
async def a_timer_that_ends_during_a_pause(ctx: Context) -> None:
    handle = await sleeper.start(ctx, 10)
    await ctx.clock.advance(3)
    await handle.pause()
    await ctx.clock.advance(60)
    assert ((await handle.status()).status, done()) == ("paused", {"before": 1})
    before_us = ctx.clock.now_us
    await handle.resume()
    assert await handle.result() == "behind"
    assert ctx.clock.now_us - before_us < 5_000_000  # it does not begin again


@case("hatchet worker_pause_on_sigterm: a pause in the middle of a step", crashes=False, races=False)
async def a_pause_lets_the_step_end_that_runs(ctx: Context) -> None:
    may_end = asyncio.Event()

    @step
    async def slow() -> str:
        BODIES["slow"] += 1
        await may_end.wait()
        return "slow"

    @workflow
    async def two() -> list[str]:
        return [await slow(), await do("next")]

    handle = await two.start(ctx)
    await ctx.clock.advance(1)
    assert BODIES["slow"] == 1
    await handle.pause()
    await ctx.clock.advance(1)
    may_end.set()
    await ctx.clock.advance(30)
    assert ((await handle.status()).status, done()) == ("paused", {})
    await handle.resume()
    assert await handle.result() == ["slow", "next"]
    assert BODIES["slow"] == 1


@case("durabletask-python#42: suspended again at once")
async def the_last_of_pauses_and_resumptions_counts(ctx: Context) -> None:
    @workflow
    async def waiter() -> str:
        await do("before")
        return await do(await flow.receive("word"))

    handle = await waiter.start(ctx)
    await ctx.clock.advance(3)
    for act in (handle.pause, handle.resume, handle.pause):
        await act()
    await ctx.clock.advance(5)
    for act in (handle.resume, handle.pause):
        await act()
    await handle.signal("word", "behind")
    await ctx.clock.advance(5)
    assert ((await handle.status()).status, done()) == ("paused", {"before": 1})
    await handle.resume()
    assert await handle.result() == "behind"
    assert done() == {"before": 1, "behind": 1}


@case("Restate PauseResume: updates and promises of a paused invocation")
async def a_paused_workflow_answers_when_it_is_resumed(ctx: Context) -> None:
    @workflow
    async def account() -> list[Any]:
        found: list[Any] = []

        async def deposit(cents: int) -> int:
            found.append(cents)
            await do(f"deposit {cents}")
            return cents

        flow.on_update("deposit", deposit)
        return [*found, await flow.promise("closed"), *found]

    handle = await account.start(ctx)
    await handle.pause()
    await ctx.clock.advance(3)
    asked = asyncio.ensure_future(handle.update("deposit", 5))
    await ctx.clock.advance(3)
    assert (asked.done(), done()) == (False, {})
    await handle.resume()
    assert await asked == 5
    await handle.pause()
    await ctx.clock.advance(3)
    await handle.resolve("closed", "yes")
    await ctx.clock.advance(3)
    assert (await handle.status()).status == "paused"
    await handle.resume()
    assert await handle.result() == ["yes", 5]


@case("DBOS resume_workflow: its child ends meanwhile")
async def a_child_that_ends_while_its_parent_is_paused(ctx: Context) -> None:
    @workflow
    async def parent() -> list[str]:
        return [await flow.call(sleeper, 10, id="its child"), await do("parent")]

    handle = await parent.start(ctx)
    await ctx.clock.advance(3)
    await handle.pause()
    assert await sleeper.handle(ctx, "its child").result() == "behind"
    await ctx.clock.advance(5)
    assert ((await handle.status()).status, done()) == ("paused", {"before": 1, "behind": 1})
    await handle.resume()
    assert await handle.result() == ["behind", "parent"]
    assert done() == {"before": 1, "behind": 1, "parent": 1}


@workflow
async def saga() -> None:
    """Is undone in two steps, with ten seconds in between."""

    async def slowly() -> None:
        await flow.sleep(10)
        await do("undo a")

    await do("a")
    flow.compensate(slowly)
    await do("b")
    flow.compensate(do, "undo b")
    await flow.sleep(100_000)


@case("Restate CancelInvocation, KillInvocation: killed while it compensates")
async def a_kill_stops_the_compensations(ctx: Context) -> None:
    handle = await saga.start(ctx)
    await ctx.clock.advance(3)
    await handle.cancel()
    await ctx.clock.advance(4)
    assert list(done()) == ["a", "b", "undo b"]
    await handle.kill()
    with pytest.raises(CallCancelled):
        await handle.result()
    await ctx.clock.advance(30)
    assert list(done()) == ["a", "b", "undo b"]


@case("hatchet#2573: a cancellation behind a kill")
async def what_was_killed_cannot_be_cancelled(ctx: Context) -> None:
    handle = await saga.start(ctx)
    await ctx.clock.advance(3)
    await handle.kill()
    await handle.kill()
    for act in (handle.cancel, handle.pause, handle.resume):
        with pytest.raises(WorkflowEnded):
            await act()
    await ctx.clock.advance(30)
    assert (await handle.status()).status == "cancelled"
    assert list(done()) == ["a", "b"]


@case("durabletask: recursive terminate; Temporal parent close policy at a termination", crashes=False)
async def a_kill_closes_the_children_as_each_says(ctx: Context) -> None:
    @workflow
    async def parent() -> None:
        for policy in ("cancel", "kill", "abandon"):
            await flow.start(saga, id=policy, parent_close=policy)
        await flow.sleep(100_000)

    handle = await parent.start(ctx)
    await ctx.clock.advance(5)
    await handle.kill()
    with pytest.raises(FunctionFailed, match="WorkflowCancelled"):
        await saga.handle(ctx, "cancel").result()
    with pytest.raises(CallCancelled):
        await saga.handle(ctx, "kill").result()
    assert (await saga.handle(ctx, "abandon").status()).status == "suspended"
    assert done() == {"a": 3, "b": 3, "undo a": 1, "undo b": 1}


@case("hatchet#10: cancelled or killed between two attempts")
async def a_step_that_is_tried_again_is_stopped(ctx: Context) -> None:
    @step(retry=Retry(attempts=100, first_s=5, max_s=5, jitter=0))
    async def stubborn() -> None:
        BODIES["stubborn"] += 1
        raise ConnectionError("not yet")

    @workflow
    async def trying() -> None:
        flow.compensate(do, "undone")
        await stubborn()

    cancelled, killed = [await trying.start(ctx, id=flow_id) for flow_id in ("cancelled", "killed")]
    await ctx.clock.advance(12)
    await asyncio.gather(cancelled.cancel("enough"), killed.kill())
    with pytest.raises(FunctionFailed, match="enough"):
        await cancelled.result()
    with pytest.raises(CallCancelled):
        await killed.result()
    tries = BODIES["stubborn"]
    await ctx.clock.advance(60)
    assert BODIES["stubborn"] == tries
    assert done() == {"undone": 1}
