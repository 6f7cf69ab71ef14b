"""Schedules: each tick once, in the zone that it is written in, whatever overlaps, is paused, made up for or lost."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from boki import AlreadyExists
from boki.libs.bokiflow import flow, workflow
from boki.testing import Context
from tests.libs.bokiflow.classes import DONE, case, do, done, downtime, until


@workflow
async def report(seconds: int) -> str:
    """Runs for this long, and says so if it is cancelled."""
    await do(flow.id)
    flow.compensate(do, f"{flow.id} cancelled")
    await flow.sleep(seconds)
    return flow.id


def ticks() -> list[str]:
    """The ticks and triggers whose workflows have begun, in their order."""
    return [what.partition("@")[2] for what in DONE.values() if not what.endswith("cancelled")]


def at(tick: str) -> float:
    """The time of a tick."""
    return datetime.fromisoformat(tick).timestamp()


def gaps() -> list[float]:
    """Seconds from each tick to the next one. Those of several that are due at once may begin in any order."""
    times = sorted(at(tick) for tick in ticks())
    return [later - earlier for earlier, later in pairwise(times)]


async def _until(ctx: Context, count: int) -> None:
    """Let time pass until this number of workflows have begun."""
    await until(ctx, lambda: len(ticks()) >= count)


async def _to_tick(ctx: Context, every_s: int) -> None:
    """Let time pass until a second after a tick of an interval: so a case does not depend on when it begins."""
    await ctx.clock.advance(every_s - ctx.clock.now_us / 1e6 % every_s + 1)


@case("temporal features schedule.cron, schedule.basic; DBOS test_scheduler")
async def a_cron_line_starts_each_minute_once(ctx: Context) -> None:
    schedule = await report.schedule(ctx, 1, id="m", cron="* * * * *")
    began_us = ctx.clock.now_us
    await _until(ctx, 4)
    assert gaps() == [60, 60, 60]
    assert all(at(tick) % 60 == 0 for tick in ticks())
    assert 0 < at(ticks()[0]) - began_us / 1e6 <= 60, "the first tick behind its creation"
    assert (await schedule.state()).counts == {"started": 4}
    assert set(done().values()) == {1}


@case("temporal schedule interval with an offset")
async def an_interval_keeps_its_offset(ctx: Context) -> None:
    await report.schedule(ctx, 1, id="m", every_s=20, offset_s=7)
    await _until(ctx, 5)
    assert gaps() == [20] * 4
    assert {at(tick) % 20 for tick in ticks()} == {7}
    assert set(done().values()) == {1}


@case("DBOS backfill_with_timezone: an hour that is left out, and one that comes twice")
async def a_day_of_a_zone_has_one_tick(ctx: Context) -> None:
    schedule = await report.schedule(ctx, 0, id="m", cron="30 2 * * *", zone="Europe/Berlin")
    count = await schedule.backfill(datetime(2020, 3, 28, tzinfo=UTC), datetime(2020, 3, 31, tzinfo=UTC))
    count += await schedule.backfill(datetime(2019, 10, 26, tzinfo=UTC), datetime(2019, 10, 29, tzinfo=UTC))
    assert count == 6
    await _until(ctx, 6)
    await ctx.clock.advance(5)
    assert ticks() == [
        "2020-03-28T01:30:00Z",
        "2020-03-29T01:00:00Z",
        "2020-03-30T00:30:00Z",
        "2019-10-26T00:30:00Z",
        "2019-10-27T00:30:00Z",
        "2019-10-28T01:30:00Z",
    ]


async def _overlapping(ctx: Context, overlap: Any) -> dict[str, int]:
    """What is decided of some ticks, each of which comes while the workflow of the one before runs."""
    await _to_tick(ctx, 10)
    schedule = await report.schedule(ctx, 15, id="m", every_s=10, overlap=overlap)
    await ctx.clock.advance(45)  # behind the fourth tick, and in front of the end of that of the third
    assert set(done().values()) == {1}, "each tick once"
    return (await schedule.state()).counts


@case("temporal ScheduleOverlapPolicy skip")
async def a_tick_is_left_out_while_one_runs(ctx: Context) -> None:
    assert await _overlapping(ctx, "skip") == {"started": 2, "skipped": 2}
    assert gaps() == [20]


@case("temporal ScheduleOverlapPolicy buffer one, buffer all")
async def a_tick_waits_while_one_runs(ctx: Context) -> None:
    counts = await _overlapping(ctx, "queue_all")
    assert counts == {"started": 3, "queued": 3}
    assert gaps() == [10, 10]
    assert not [what for what in DONE.values() if what.endswith("cancelled")]


@case("temporal ScheduleOverlapPolicy allow all")
async def workflows_of_ticks_run_side_by_side(ctx: Context) -> None:
    assert await _overlapping(ctx, "allow") == {"started": 4}
    assert gaps() == [10, 10, 10]


@case("temporal ScheduleOverlapPolicy cancel other, terminate other")
async def a_tick_ends_the_one_that_runs(ctx: Context) -> None:
    await _overlapping(ctx, "cancel")
    begun = ticks()
    assert gaps() == [10, 10, 10]
    cancelled = [f"m@{tick} cancelled" for tick in begun[:-1]]
    assert [what for what in DONE.values() if what.endswith("cancelled")] == cancelled
    order = list(DONE.values())
    for tick, later in pairwise(begun):
        assert order.index(f"m@{tick} cancelled") < order.index(f"m@{later}")


@case("DBOS pause_resume; temporal features schedule.pause")
async def ticks_of_a_pause_stay_out(ctx: Context) -> None:
    schedule = await report.schedule(ctx, 1, id="m", every_s=10)
    await _until(ctx, 2)
    await schedule.pause("the database moves")
    await ctx.clock.advance(45)
    state = await schedule.state()
    assert (state.status, state.note, state.next_us) == ("paused", "the database moves", ())
    assert len(ticks()) == 2
    await schedule.resume()
    await _until(ctx, 4)
    assert gaps()[0] == gaps()[2] == 10
    assert gaps()[1] >= 50
    assert set(done().values()) == {1}


@case("DBOS trigger; temporal features schedule.trigger")
async def a_trigger_starts_once_also_while_paused(ctx: Context) -> None:
    schedule = await report.schedule(ctx, 1, id="m", cron="0 0 1 1 *", is_paused=True)
    assert [await schedule.trigger(key="a") for _ in range(3)] == ["m@now-a"] * 3
    await _until(ctx, 1)
    await ctx.clock.advance(5)
    assert await report.handle(ctx, "m@now-a").result() == "m@now-a"
    await schedule.trigger(key="a")
    await schedule.trigger(key="b")
    await _until(ctx, 2)
    await ctx.clock.advance(5)
    assert done() == {"m@now-a": 1, "m@now-b": 1}


@case("temporal features schedule.backfill; DBOS backfill")
async def ticks_of_the_past_are_started_in_their_order(ctx: Context) -> None:
    schedule = await report.schedule(ctx, 2, id="m", cron="0 0 1 1 *")
    years = [f"{year}-01-01T00:00:00Z" for year in range(2000, 2006)]
    began_us = ctx.clock.now_us
    for _ in range(2):
        assert await schedule.backfill(datetime(2000, 1, 1, tzinfo=UTC), datetime(2006, 1, 1, tzinfo=UTC)) == 6
    await _until(ctx, 6)
    assert ctx.clock.now_us - began_us >= 10_000_000, "one after the other"
    await ctx.clock.advance(30)
    assert ticks() == years, "the second backfill finds each of them done"
    assert set(done().values()) == {1}


@case("DBOS automatic_backfill_on_restart; dapr#8548: nothing fires after a restart")
async def ticks_of_a_downtime_are_made_up_for(ctx: Context) -> None:
    await _to_tick(ctx, 10)
    schedule = await report.schedule(ctx, 1, id="m", every_s=10, overlap="allow")
    await _until(ctx, 2)
    await downtime(ctx, 40)
    assert len(ticks()) == 2
    await _until(ctx, 8)
    assert gaps() == [10] * 7
    assert set(done().values()) == {1}
    assert "missed" not in (await schedule.state()).counts


@case("temporal schedule catch-up window")
async def ticks_that_are_too_old_are_counted(ctx: Context) -> None:
    await _to_tick(ctx, 10)
    schedule = await report.schedule(ctx, 1, id="m", every_s=10, overlap="allow", catch_up_s=20)
    await _until(ctx, 2)
    await downtime(ctx, 60)
    await _until(ctx, 6)
    missed = (await schedule.state()).counts["missed"]
    assert 2 <= missed <= 5
    assert sorted(gaps()) == [10] * 4 + [10 + 10 * missed]
    assert set(done().values()) == {1}


@case("temporal: an edit keeps the state; DBOS apply_schedules_preserves_runtime_state")
async def a_schedule_that_is_changed_keeps_what_it_has_done(ctx: Context) -> None:
    schedule = await report.schedule(ctx, 1, id="m", every_s=10)
    await _until(ctx, 2)
    await report.schedule(ctx, 2, id="m", every_s=20, if_exists="replace")
    await _until(ctx, 5)
    state = await schedule.state()
    assert (state.when, state.counts["started"]) == ("every 20 s", 5)
    assert gaps()[2:] == [20, 20]
    assert set(done().values()) == {1}


@case("temporal features schedule.duplicate_error")
async def a_deleted_schedule_starts_nothing_and_is_made_again(ctx: Context) -> None:
    schedule = await report.schedule(ctx, 1, id="m", every_s=10)
    with pytest.raises(AlreadyExists):
        await report.schedule(ctx, 1, id="m", every_s=10)
    await _until(ctx, 2)
    await schedule.delete()
    await ctx.clock.advance(35)
    assert len(ticks()) == 2
    await report.schedule(ctx, 1, id="m", every_s=10)
    await _until(ctx, 4)
    assert gaps()[1] >= 30, "what passed in between stays out"
    assert set(done().values()) == {1}
