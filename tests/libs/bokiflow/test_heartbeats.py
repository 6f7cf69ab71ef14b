"""Heartbeats: what they cost, and whose they are."""

from __future__ import annotations

import asyncio

import boki.testing
from boki import Retry
from boki.extending import decode_any
from boki.libs.bokiflow import flow, step, workflow
from boki.libs.bokiflow.records import Beat, journal_tag
from boki.libs.bokiflow.replaying import read_history
from tests.libs.bokiflow.test_rest import passes

LATE: list[asyncio.Task[None]] = []


@step(retry=Retry(attempts=2, first_s=1, jitter=0))
async def counts(number: int) -> int:
    if step.attempt == 2:
        return int(step.details)
    for n in range(number):
        step.heartbeat(n)
        await asyncio.sleep(0)
    assert isinstance(step.ctx, boki.testing.Context)
    await passes(step.ctx, 5)
    raise ValueError("again")


@workflow
async def counting(number: int) -> int:
    await flow.sleep(0.1)
    return await counts(number)


async def test_heartbeats_in_a_row_are_few_records(boki_context: boki.testing.Context) -> None:
    """While one is on its way to the log the newest details replace those before, and the last ones are recorded."""
    handle = await counting.start(boki_context, 1_000)
    await boki_context.clock.advance(3)
    history = await read_history(boki_context.logbook, journal_tag(handle.invocation_id))
    beats = [entry.fact for entry in history.entries if isinstance(entry.fact, Beat)]
    assert 1 < len(beats) < 500
    assert decode_any(beats[-1].details, "details") == 999
    await boki_context.clock.advance(10)
    assert await handle.result() == 999


@step(retry=Retry(attempts=3, first_s=1, max_s=1, jitter=0))
async def leaves_something_running() -> object:
    assert isinstance(step.ctx, boki.testing.Context)
    if step.attempt == 1:
        LATE.append(asyncio.ensure_future(speaks_late(step.ctx)))
        await passes(step.ctx, 1)
    elif step.attempt == 2:
        step.heartbeat("of the second")
        await passes(step.ctx, 9)
    else:
        await LATE.pop()
        return step.details
    raise ValueError("again")


async def speaks_late(ctx: boki.testing.Context) -> None:
    await passes(ctx, 5)
    step.heartbeat("of the first")


@step
async def keeps_the_run() -> None:
    assert isinstance(step.ctx, boki.testing.Context)
    await passes(step.ctx, 60)


@workflow
async def leaving() -> object:
    return (await asyncio.gather(leaves_something_running(), keeps_the_run()))[0]


async def test_what_an_attempt_says_after_its_end_counts_for_nothing(boki_context: boki.testing.Context) -> None:
    """As a thread does that has timed out: the next attempt would continue where no attempt before it had come."""
    handle = await leaving.start(boki_context)
    await boki_context.clock.advance(100)
    assert await handle.result() == "of the second"
