"""How an execution is suspended: never while something of it still continues."""

from __future__ import annotations

import asyncio

import pytest

import boki.testing
from boki import Retry
from boki.libs.bokiflow import step, workflow
from boki.libs.bokiflow.journal import JournalWriter


async def passes(ctx: boki.testing.Context, seconds: int) -> None:
    """Virtual time."""
    late = asyncio.Event()
    ctx.clock.call_at(ctx.clock.now_us + seconds * 1_000_000, late.set)
    with ctx.clock.waiting():
        await late.wait()


@step(retry=Retry(attempts=2, first_s=1, jitter=0))
async def flaky() -> int:
    if step.attempt == 1:
        raise RuntimeError("again")
    assert isinstance(step.ctx, boki.testing.Context)
    await passes(step.ctx, 5)
    return step.attempt


@workflow
async def persistent() -> int:
    return await flaky()


async def test_an_attempt_that_was_due_while_the_log_was_slow(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 9 of the simulator: the attempt had begun while its delay was being recorded, and the workflow was suspended
    until a time that had passed, so nothing woke it.
    """
    rest = JournalWriter.rest

    async def slowly(self: JournalWriter) -> None:
        await passes(boki_context, 2)
        await rest(self)

    monkeypatch.setattr(JournalWriter, "rest", slowly)
    handle = await persistent.start(boki_context)
    await boki_context.clock.advance(100)
    assert (await handle.status()).status == "done"
    assert await handle.result() == 2
