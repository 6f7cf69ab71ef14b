"""Signals at random times against a workflow that continues as new every three: temporal#1289, #8097, omes#12."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

import boki.testing
from boki.libs.bokiflow import flow, workflow
from tests.libs.bokiflow.modes import wants_all

TAKEN: list[int] = []
PER_ROUND = 3


@workflow
async def threes(count: int) -> int:
    """Takes signals, three a round, until it has that many."""
    found = [await flow.receive("x") for _ in range(min(PER_ROUND, count))]
    if not flow.is_replaying:
        TAKEN.extend(found)
    if count > PER_ROUND:
        flow.continue_as_new(count - PER_ROUND)
    return len(found)


@workflow
async def handled(state: tuple[int, int, int]) -> tuple[int, int]:
    """Has a handler add what comes, in signals and in updates, and continues as new after three or more."""
    count, total, taken = state
    got: list[int] = []

    def take(number: int) -> int:
        got.append(number)
        return taken + len(got)

    flow.on_signal("x", take)
    flow.on_update("x", take)
    await flow.wait_for(lambda: len(got) >= min(PER_ROUND, count - taken))
    total, taken = total + sum(got), taken + len(got)
    return (total, taken) if taken >= count else flow.continue_as_new((count, total, taken))


async def test_handlers_get_each_of_many_messages_once(pytestconfig: pytest.Config) -> None:
    """What a handler has taken is in the state that is handed over, and what it has not taken comes to the next one."""
    # fewer than above: each of the updates that wait for an answer reads all that comes meanwhile
    count, rng = 2_000 if wants_all(pytestconfig) else 500, Random(15)
    async with boki.testing.context() as ctx:
        handle = await handled.start(ctx, (count, 0, 0), id="many")
        updates: list[asyncio.Task[int]] = []
        for number in range(count):
            if rng.random() < 0.3:
                updates.append(asyncio.create_task(handle.update("x", number)))
            else:
                await handle.signal("x", number)
            if rng.random() < 0.1:
                await ctx.clock.advance(rng.choice([0.0, 0.01, 0.5, 100.0]))
        assert await handle.result() == (sum(range(count)), count)
        assert len(set(await asyncio.gather(*updates))) == len(updates)


async def test_each_of_many_signals_is_taken_once(pytestconfig: pytest.Config) -> None:
    """In their order, some before the start and some in bursts, and nothing of them is left.

    `--flow-modes all`: ten thousand of them.
    """
    count, rng = 10_000 if wants_all(pytestconfig) else 1_000, Random(14)
    TAKEN.clear()
    async with boki.testing.context() as ctx:
        handle = threes.handle(ctx, "many")
        for number in range(count):
            if number == 100:
                await threes.start(ctx, count, id="many")
            await handle.signal("x", number)
            if rng.random() < 0.02:
                await ctx.clock.advance(rng.choice([0.0, 0.01, 0.5, 100.0]))
        assert await handle.result() in range(1, PER_ROUND + 1)
        inbox = await ctx.logbook.read(f"!fi:{handle.invocation_id}", limit=10)
    assert list(range(count)) == TAKEN
    assert len(inbox.records) <= PER_ROUND + 1
