"""What schedules refuse, and what is said of one that nothing attends to."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import boki.testing
from boki import InvalidArgument
from boki.libs.bokiflow import flow, workflow
from boki.libs.bokiflow.schedules.spec import spec_of
from boki.libs.bokiflow.schedules.state import CODEC, Defined


@workflow
async def report(seconds: float) -> None:
    await flow.sleep(seconds)


@pytest.mark.parametrize("start", [datetime(1, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)])
async def test_a_backfill_begins_after_1970(boki_context: boki.testing.Context, start: datetime) -> None:
    """The tick of the epoch itself was taken again and again, and before the year 2 there is no calendar."""
    ctx = boki_context
    schedule = await report.schedule(ctx, 1, id="m", cron="0 0 1 1 *", zone="America/New_York")
    with pytest.raises(InvalidArgument, match="must be later than 1970"):
        await schedule.backfill(start, datetime(1970, 1, 3, tzinfo=UTC))


def test_a_cron_line_is_short() -> None:
    """Python refuses to read numbers of thousands of digits, which is no error of a cron line."""
    with pytest.raises(InvalidArgument, match="at most 1,000 characters"):
        spec_of(cron=f"{'1' * 5_000} * * * *")


async def test_a_schedule_whose_attendant_nobody_knows_has_failed(boki_context: boki.testing.Context) -> None:
    """Whoever made it was lost before the attendant was started; to make it again begins it."""
    ctx = boki_context
    schedule = report.schedule_handle(ctx, "m")
    await ctx.logbook.append(CODEC.encode(Defined(spec_of(every_s=60))), [schedule._tag])
    state = await schedule.state()
    assert (state.status, state.next_us) == ("failed", ())
    assert "create it again" in state.note
    await report.schedule(ctx, 1, id="m", every_s=60)
    assert (await schedule.state()).status == "active"
