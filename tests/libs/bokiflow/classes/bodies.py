"""Bodies: what asyncio and Python give to write them with, and what must not depend on the run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from boki import FunctionFailed
from boki.libs.bokiflow import flow, step, workflow
from boki.testing import Context
from tests.libs.bokiflow.classes import BODIES, add, case, do, done, result_of


@case("Temporal workflow_coroutines: asyncio.Event")
async def events_wake_all_who_wait(ctx: Context) -> None:
    @workflow
    async def gate() -> list[str]:
        opened, said = asyncio.Event(), list[str]()

        async def one(n: int) -> None:
            await opened.wait()
            said.append(await do(f"{n}"))

        tasks = [asyncio.create_task(one(n)) for n in range(3)]
        await flow.sleep(5)
        opened.set()
        await asyncio.gather(*tasks)
        return said

    assert sorted(await result_of(ctx, gate)) == ["0", "1", "2"]


@case("Temporal workflow_coroutines: asyncio.Queue")
async def queues_hand_work_over(ctx: Context) -> None:
    @workflow
    async def pipeline() -> list[str]:
        jobs: asyncio.Queue[int] = asyncio.Queue(2)
        found: list[str] = []

        async def work() -> None:
            while (job := await jobs.get()) >= 0:
                found.append(await do(f"job {job}"))

        worker = asyncio.create_task(work())
        for job in (0, 1, 2, 3, -1):
            await jobs.put(job)
        await worker
        return found

    assert await result_of(ctx, pipeline) == [f"job {n}" for n in range(4)]


@case("Temporal test_workflow wait_for with a timeout")
async def a_timeout_that_does_not_come(ctx: Context) -> None:
    @workflow
    async def quick() -> int:
        return await asyncio.wait_for(add(1, 2), 3_600)

    before_us = ctx.clock.now_us
    assert await result_of(ctx, quick) == 3
    assert ctx.clock.now_us - before_us < 3_000_000_000


@case("Temporal workflow_cancel_and_condition_ready_in_same_activation")
async def a_condition_and_its_timeout_at_once(ctx: Context) -> None:
    @workflow
    async def close() -> str:
        ready: list[int] = []

        async def get_ready() -> None:
            await flow.sleep(10)
            ready.append(1)

        task = asyncio.create_task(get_ready())
        try:
            async with asyncio.timeout(10):
                await flow.wait_for(lambda: bool(ready))
            found = "ready"
        except TimeoutError:
            found = "late"
        await task
        return await do(found)

    assert await result_of(ctx, close) in {"ready", "late"}
    assert sum(done().values()) == 1


@case("Temporal test_workflow nested timeouts")
async def the_inner_timeout_comes_first(ctx: Context) -> None:
    @workflow
    async def nested() -> str:
        try:
            async with asyncio.timeout(20):
                try:
                    async with asyncio.timeout(5):
                        await flow.sleep(100)
                except TimeoutError:
                    await do("inner")
                await flow.sleep(100)
        except TimeoutError:
            return await do("outer")
        return ""

    assert await result_of(ctx, nested) == "outer"
    assert list(done()) == ["inner", "outer"]


@case("Temporal update_handler_can_use_semaphore; asyncio.Condition")
async def conditions_of_asyncio(ctx: Context) -> None:
    @workflow
    async def hand_over() -> list[int]:
        changed, box, taken = asyncio.Condition(), list[int](), list[int]()

        async def consume() -> None:
            for _ in range(3):
                async with changed:
                    await changed.wait_for(lambda: bool(box))
                    taken.append(box.pop(0))

        task = asyncio.create_task(consume())
        for n in range(3):
            value = await add(n, 10)
            async with changed:
                box.append(value)
                changed.notify_all()
        await task
        return taken

    assert await result_of(ctx, hand_over) == [10, 11, 12]


@case("DBOS gather with return_exceptions")
async def errors_among_results(ctx: Context) -> None:
    @step
    async def odd(n: int) -> int:
        if n % 2:
            raise ValueError(f"{n} is odd")
        return n

    @workflow
    async def some() -> list[Any]:
        found = await asyncio.gather(*(odd(n) for n in range(4)), return_exceptions=True)
        return [one if isinstance(one, int) else type(one).__name__ for one in found]

    assert await result_of(ctx, some) == [0, "StepFailed", 2, "StepFailed"]


@case("asyncio TaskGroup: nested")
async def groups_in_groups(ctx: Context) -> None:
    @workflow
    async def nested() -> int:
        async with asyncio.TaskGroup() as outer:
            first = outer.create_task(add(1, 2))
            async with asyncio.TaskGroup() as inner:
                second = inner.create_task(add(3, 4))
                third = inner.create_task(add(5, 6))
        return await add(first.result(), await add(second.result(), third.result()))

    assert await result_of(ctx, nested) == 21


@case("Temporal workflow asyncio.shield")
async def a_shield_against_a_timeout(ctx: Context) -> None:
    @workflow
    async def patient() -> str:
        task = asyncio.ensure_future(_slow_act())
        try:
            await asyncio.wait_for(asyncio.shield(task), 5)
        except TimeoutError:
            await do("late")
        return await task

    assert await result_of(ctx, patient) == "done"
    assert list(done()) == ["late", "done"]


async def _slow_act() -> str:
    await flow.sleep(20)
    return await do("done")


@case("Temporal test_workflow: finally with steps on failure")
async def what_is_in_finally_is_done(ctx: Context) -> None:
    @workflow
    async def tidy() -> None:
        try:
            await do("work")
            raise ValueError("broken")
        finally:
            await do("tidied")

    with pytest.raises(FunctionFailed, match="broken"):
        await result_of(ctx, tidy)
    assert list(done()) == ["work", "tidied"]


@case("Temporal test_workflow: async context managers")
async def context_managers_with_steps(ctx: Context) -> None:
    class Lease:
        async def __aenter__(self) -> str:
            return await do("acquire")

        async def __aexit__(self, *_: object) -> None:
            await do("release")

    @workflow
    async def leasing() -> str:
        async with Lease():
            return await do("use")

    assert await result_of(ctx, leasing) == "use"
    assert list(done()) == ["acquire", "use", "release"]


@case("Temporal test_workflow: async generators")
async def generators_with_steps(ctx: Context) -> None:
    async def numbers() -> Any:
        for n in range(3):
            yield await add(n, n)

    @workflow
    async def summing() -> int:
        return sum([n async for n in numbers()])

    assert await result_of(ctx, summing) == 6


@case("DBOS test_classdecorators: helpers below a workflow")
async def steps_are_called_from_helpers(ctx: Context) -> None:
    async def deeper(n: int) -> int:
        return n if n == 0 else await add(1, await deeper(n - 1))

    @workflow
    async def recursive() -> int:
        return await deeper(4)

    assert await result_of(ctx, recursive) == 4


@case("Temporal random_seed_functionality: chance that decides")
async def chance_decides_the_same_in_every_replay(ctx: Context) -> None:
    @workflow
    async def wander() -> list[str]:
        found = []
        for n in range(4):
            side = flow.random().choice(["left", "right"])
            found.append(await do(f"{n} {side}"))
            await flow.sleep(1)
        return found

    assert await result_of(ctx, wander) == list(done())


@case("Temporal workflow uuid: names that steps use")
async def a_uuid_is_one_key(ctx: Context) -> None:
    @workflow
    async def order() -> str:
        name = str(flow.uuid())
        await do(name)
        await flow.sleep(5)
        await do(name)
        return name

    name = await result_of(ctx, order)
    assert done() == {name: 2}


@case("durabletask: current time does not go back")
async def time_does_not_go_back(ctx: Context) -> None:
    @workflow
    async def watch() -> bool:
        times = [flow.now()]
        for n in range(3):
            await add(n, n)
            times.append(flow.now())
            await flow.sleep(0.5)
            times.append(flow.now())
        return times == sorted(times)

    assert await result_of(ctx, watch)


@case("Temporal is_replaying: logs are said once", crashes=False)
async def is_replaying_tells_what_was_before(ctx: Context) -> None:
    @workflow
    async def chatty() -> str:
        await do("first")
        await flow.sleep(5)
        if not flow.is_replaying:
            BODIES["said"] += 1
        return await do("second")

    assert await result_of(ctx, chatty) == "second"
    assert BODIES["said"] >= 1
