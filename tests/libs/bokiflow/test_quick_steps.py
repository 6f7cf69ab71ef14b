"""Steps that await nothing: they run without a task of their own, and nothing else about them differs."""

import asyncio
from contextlib import suppress

import pytest

from boki.libs.bokiflow import StepFailed, step, workflow
from tests.libs.bokiflow.crashes import World

HOWS = ("value error", "cancelled", "exit", "stop")


@step(pure=True)
async def look(number: int) -> int:
    return number


@step
async def effect(number: int) -> int:
    return number


def _raise(how: str) -> None:
    if how == "cancelled":
        raise asyncio.CancelledError
    if how == "exit":
        raise SystemExit(3)
    if how == "stop":
        raise StopIteration(3)
    raise ValueError("no such number")


@step(name="fails")
async def fails_at_once(how: str) -> None:
    _raise(how)


@step(name="fails")
async def fails_later(how: str) -> None:
    await asyncio.sleep(0)
    _raise(how)


@workflow
async def many(count: int) -> int:
    return sum([await look(number) for number in range(count)])


async def test_thousands_of_them_let_other_tasks_run_and_need_no_deep_stack() -> None:
    """A body that only computes must not keep its worker to itself."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.get_running_loop().create_task(others())
    try:
        assert await World().run(many, 3_000) == sum(range(3_000))
    finally:
        beside.cancel()
        with suppress(asyncio.CancelledError):
            await beside
    assert turns > 100


@workflow
async def together(count: int) -> int:
    return sum(await asyncio.gather(*(look(number) for number in range(count)), effect(1)))


async def test_a_step_with_an_effect_that_began_with_them_does_not_wait_for_their_records() -> None:
    """It was started before any of them had ended: all records leave in one append."""
    world = World()
    assert await world.run(together, 5) == 11
    assert world.log.append_count == 1


@workflow
async def first_wins(count: int) -> int:
    tasks = [asyncio.ensure_future(look(number)) for number in range(count)]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return len(done)


async def test_one_that_the_body_has_given_up_does_not_run() -> None:
    """A replay finds what the first run did."""
    world = World()
    found = await world.run(first_wins, 4)
    assert found >= 1
    assert await world.run(first_wins, 4) == found


@workflow
async def fails(how: str) -> str:
    return await _failure(fails_at_once, how)


@workflow
async def fails_in_a_task(how: str) -> str:
    return await _failure(fails_later, how)


async def _failure(failing: object, how: str) -> str:
    try:
        await failing(how)  # type: ignore[operator] # a step
    except StepFailed as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize("how", HOWS)
async def test_what_one_raises_is_what_it_would_raise_in_a_task(how: str) -> None:
    """Whatever it is, it ends the step and no more."""
    assert await World().run(fails, how) == await World().run(fails_in_a_task, how)
