"""Timers, time and chance, and what asyncio gives to write concurrent bodies with."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from boki import FunctionFailed
from boki.libs.bokiflow import NotDeterministic, StepFailed, flow, step, workflow
from boki.testing import Context
from tests.libs.bokiflow.classes import BODIES, add, case, do, done, result_of

DAY_S = 24 * 3_600


@case("dapr#8548 (P0): timers not fired after a restart; omes long_idle_workflow", clusters=False)
async def a_timer_of_more_than_a_year(ctx: Context) -> None:
    @workflow
    async def patient() -> str:
        await do("before")
        await flow.sleep(400 * DAY_S)
        return await do("after")

    assert await result_of(ctx, patient) == "after"
    assert done() == {"before": 1, "after": 1}


@case("dapr#8855: start time ignored")
async def a_delayed_start(ctx: Context) -> None:
    @workflow
    async def later() -> str:
        return await do("done")

    handle = await later.start(ctx, delay_s=100)
    await ctx.clock.advance(99)
    assert done() == {}
    assert await handle.result() == "done"


@case("omes workflow_with_many_timers; Restate persistedTimers")
async def many_timers(ctx: Context) -> None:
    @workflow
    async def alarms() -> list[int]:
        rung: list[int] = []

        async def ring(n: int) -> None:
            await flow.sleep(1 + (n * 37) % 40)
            rung.append((n * 37) % 40)

        await asyncio.gather(*(ring(n) for n in range(40)))
        return rung

    assert await result_of(ctx, alarms) == sorted(range(40))


@case("temporal workflow sleep of zero")
async def a_timer_of_no_time(ctx: Context) -> None:
    @workflow
    async def hasty() -> str:
        await flow.sleep(0)
        return await do("done")

    assert await result_of(ctx, hasty) == "done"


@case("temporal timer_started_after_workflow_completion")
async def a_timer_that_nobody_waits_for(ctx: Context) -> None:
    @workflow
    async def careless() -> str:
        task = asyncio.create_task(flow.sleep(1_000))
        found = await do("done")
        assert not task.done()
        return found

    before_us = ctx.clock.now_us
    assert await result_of(ctx, careless) == "done"
    assert ctx.clock.now_us - before_us < 900_000_000


@case("temporal random_seed_functionality, uuid")
async def chance_is_the_same_in_every_replay(ctx: Context) -> None:
    @workflow
    async def gamble() -> list[Any]:
        first = [flow.random().random(), str(flow.uuid())]
        found = await add(round(flow.random().random() * 1e6), 1)
        await flow.sleep(10)
        await add(found, round(flow.random().random() * 1e6))
        return [*first, str(flow.uuid())]

    one, other = await result_of(ctx, gamble), await result_of(ctx, gamble)
    assert len({*one, *other}) == 6


@case("temporal workflow now")
async def the_time_of_a_workflow_is_recorded(ctx: Context) -> None:
    @workflow
    async def clock() -> list[float]:
        times = [flow.now().timestamp()]
        for _ in range(3):
            await flow.sleep(10)
            await do(f"at {flow.now().timestamp()}")
            times.append(flow.now().timestamp())
        return times

    times = await result_of(ctx, clock)
    assert times == sorted(times)
    assert times[-1] - times[0] >= 30


@case("temporal workflow_coroutines_can_use_lock")
async def locks_order_steps(ctx: Context) -> None:
    @workflow
    async def serial() -> list[str]:
        lock, said = asyncio.Lock(), list[str]()

        async def one(n: int) -> None:
            async with lock:
                said.append(await do(f"{n} a"))
                said.append(await do(f"{n} b"))

        await asyncio.gather(*(one(n) for n in range(3)))
        return said

    assert await result_of(ctx, serial) == [f"{n} {side}" for n in range(3) for side in "ab"]


@case("temporal workflow_coroutines_can_use_semaphore")
async def semaphores_bound_steps(ctx: Context) -> None:
    @workflow
    async def bounded() -> int:
        gate, now, most = asyncio.Semaphore(2), 0, 0

        async def one(n: int) -> None:
            nonlocal now, most
            async with gate:
                now += 1
                most = max(most, now)
                await do(f"{n}")
                now -= 1

        await asyncio.gather(*(one(n) for n in range(5)))
        return most

    assert await result_of(ctx, bounded) == 2


@case("asyncio TaskGroup: one fails")
async def a_group_cancels_the_others(ctx: Context) -> None:
    @step
    async def fail() -> None:
        raise ValueError("no")

    @workflow
    async def group() -> str:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(flow.sleep(1_000))
                tasks.create_task(fail())
        except* StepFailed as errors:
            assert len(errors.exceptions) == 1
        return await do("after")

    before_us = ctx.clock.now_us
    assert await result_of(ctx, group) == "after"
    assert ctx.clock.now_us - before_us < 900_000_000


@case("temporal swallowed_activity_cancellation", crashes=False)
async def a_step_that_is_given_up_has_no_outcome(ctx: Context) -> None:
    @step
    async def slow() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            BODIES["cancelled"] += 1
        return "swallowed"

    @workflow
    async def impatient() -> str:
        try:
            async with asyncio.timeout(5):
                return await slow()
        except TimeoutError:
            return await do("given up")

    assert await result_of(ctx, impatient) == "given up"
    assert BODIES["cancelled"]


@case("temporal workflow_wait: the first of several")
async def the_first_to_end_wins_in_every_replay(ctx: Context) -> None:
    @workflow
    async def race() -> str:
        tasks = {asyncio.create_task(_named(n), name=str(n)) for n in (30, 10, 20)}
        finished, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        await do(f"first {finished.pop().result()}")
        await flow.sleep(50)
        return "over"

    assert await result_of(ctx, race) == "over"
    assert done() == {"first 10": 1}


async def _named(seconds: int) -> int:
    await flow.sleep(seconds)
    return seconds


@case("temporal cache_eviction_tear_down, workflow_eviction_swallow")
async def a_body_that_is_put_away_does_nothing(ctx: Context) -> None:
    @workflow
    async def clinging() -> str:
        try:
            await flow.sleep(100)
        finally:
            await do("finally")
        return "over"

    assert await result_of(ctx, clinging) == "over"
    assert done() == {"finally": 1}


@case("temporal patch_activation: a new workflow takes the new path")
async def a_patch_is_decided_once(ctx: Context) -> None:
    @workflow
    async def patched() -> list[bool]:
        found = [flow.patched("a")]
        await do("between")
        await flow.sleep(10)
        found += [flow.patched("a"), flow.patched("a")]
        return found

    assert await result_of(ctx, patched) == [True, True, True]


@case("temporal workflow failure types")
async def an_error_of_the_body_ends_the_workflow(ctx: Context) -> None:
    @workflow
    async def broken() -> None:
        await do("before")
        raise LookupError("nothing there")

    with pytest.raises(FunctionFailed, match="LookupError: nothing there") as caught:
        await result_of(ctx, broken)
    assert caught.value.error_type == "LookupError"
    assert done() == {"before": 1}


@case("Resonate: where deterministic constraints come from")
async def the_machine_is_out_of_reach(ctx: Context) -> None:
    @workflow
    async def curious() -> str:
        try:
            await asyncio.to_thread(print)
        except NotDeterministic as error:
            return error.code
        return ""

    assert await result_of(ctx, curious) == "not_deterministic"
