"""Signals at random times against a workflow that continues as new every three: temporal#1289, #8097, omes#12."""

from __future__ import annotations

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
