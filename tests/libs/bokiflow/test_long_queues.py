"""Queues of locks and limits that are too long for the record that holds all of a queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import boki.testing
from boki.libs.bokiflow import Limit, flow, workflow
from boki.libs.bokiflow.attending import Attending
from boki.libs.bokiflow.locks.state import lock_tag
from boki.log.limits import Limits


@workflow
async def visitor() -> int:
    async with flow.lock("room") as held:
        await flow.sleep(5)
    return held.token


async def test_a_lock_with_a_queue_that_no_record_holds() -> None:
    """Writing down the whole queue keeps it short to read, and nothing depends on it."""
    async with boki.testing.context(limits=Limits(record_bytes=8_192)) as ctx:
        handles = [await visitor.start(ctx, id=f"{number:0100}") for number in range(80)]
        tokens = [await handle.result() for handle in handles]
        assert tokens == sorted(tokens)
        assert len((await ctx.logbook.read(lock_tag("room"), limit=200)).records) < 130, "it was written down later"
        await (await visitor.start(ctx, id="later")).result()


@workflow(limit=Limit(concurrency=1))
async def one_at_a_time(seconds: int) -> None:
    await flow.sleep(seconds)


async def test_a_limit_with_a_queue_that_no_record_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is to be decided until one ends, so nothing runs, and the queue moves on when it does."""
    runs: list[int] = []
    attend = Attending.run

    async def counted(self: Attending[Any, Any], recover: Callable[[], Awaitable[None]]) -> None:
        runs.append(1)
        await attend(self, recover)

    monkeypatch.setattr(Attending, "run", counted)
    async with boki.testing.context(limits=Limits(record_bytes=8_192)) as ctx:
        handles = [await one_at_a_time.start(ctx, 1_000, id=str(number)) for number in range(80)]
        await ctx.clock.advance(10)
        before = len(runs)
        await ctx.clock.advance(500)
        assert len(runs) == before
        await handles[0].result()
        await ctx.clock.advance(10)
        notes = [(await handle.status()).note for handle in handles[1:3]]
        assert [note.startswith("waits for its turn") for note in notes] == [False, True], notes
