"""Attendants that meet errors."""

from __future__ import annotations

import pytest

import boki.testing
from boki import WrongState
from boki.libs.bokiflow import flow, workflow
from boki.libs.bokiflow.schedules.attendant import _Attendant


@workflow
async def report(seconds: float) -> None:
    await flow.sleep(seconds)


async def test_an_error_is_no_busy_loop(boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """An end that was not read woke the attendant at once, and what it does first failed again."""
    ctx = boki_context
    runs = 0
    recover = _Attendant._recover

    async def failing(self: _Attendant) -> None:
        nonlocal runs
        if self._state.running and runs < 50:
            runs += 1
            raise WrongState("for a test")
        await recover(self)

    schedule = await report.schedule(ctx, 5, id="m", every_s=60)
    await ctx.clock.advance(22)
    assert (await schedule.state()).running
    monkeypatch.setattr(_Attendant, "_recover", failing)
    await ctx.clock.advance(20)
    assert 1 <= runs <= 12
