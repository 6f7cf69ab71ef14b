"""Schedules, in virtual time: each tick once, overlaps, pauses, triggers, backfills, and what a downtime leaves."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

import boki.testing
from boki import AlreadyExists, InvalidArgument
from boki.libs.bokiflow import flow, workflow
from boki.libs.bokiflow.attending import Attending
from boki.libs.bokiflow.clocks import VirtualClock
from boki.libs.bokiflow.refusals import NoSuchSchedule
from boki.libs.bokiflow.schedules.attendant import _State
from boki.libs.bokiflow.schedules.spec import Overlap, due_us, spec_of
from boki.libs.bokiflow.schedules.state import CODEC, Act, Decided, Defined, Fold, Note, Resumed, Triggered
from boki.libs.bokiflow.schedules.state import Paused as PausedNote
from boki.log.limits import Limits

RAN: list[str] = []
ENDED: list[str] = []
T0 = datetime(2020, 9, 13, 12, 26, 40, tzinfo=UTC)
"""When virtual time begins."""


@pytest.fixture(autouse=True)
def forget() -> None:
    RAN.clear()
    ENDED.clear()


@workflow
async def report(seconds: int) -> str:
    """Runs for this long."""
    if not flow.is_replaying:
        RAN.append(flow.id)
    try:
        await flow.sleep(seconds)
    except asyncio.CancelledError:
        ENDED.append(flow.id)
        raise
    return flow.id


def minutes() -> list[str]:
    """What has begun, by the minutes of the ticks."""
    return [flow_id.partition("@")[2][14:16] for flow_id in dict.fromkeys(RAN)]


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        ("skip", ["27", "29", "31"]),
        ("queue", ["27", "28", "29", "31"]),
        ("queue_all", ["27", "28", "29", "30"]),
        ("allow", ["27", "28", "29", "30", "31"]),
        ("cancel", ["27", "28", "29", "30", "31"]),
        ("kill", ["27", "28", "29", "30", "31"]),
    ],
)
async def test_overlap(boki_context: boki.testing.Context, overlap: Overlap, expected: list[str]) -> None:
    """What happens at a tick while the workflow of an earlier one runs: 90 s of work every minute."""
    await report.schedule(boki_context, 90, id="m", cron="* * * * *", overlap=overlap)
    await boki_context.clock.advance(310)
    assert minutes() == expected
    assert len(RAN) == len(set(RAN)), "each tick once"
    assert bool(ENDED) == (overlap == "cancel")


async def test_a_tick_is_started_once_however_many_act(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decision that another attendant came before is refused by the log, and made again from what that one
    decided.
    """
    append = Attending._append
    overtaken = 0

    async def late(self: Attending[Note, Decided], note: object) -> bool:
        nonlocal overtaken
        if isinstance(note, Decided) and note.acts and overtaken < 3:
            overtaken += 1
            await self._book.append(CODEC.encode(note), [self._tag])  # a zombie of this attendant was faster
        return await append(self, note)

    monkeypatch.setattr(Attending, "_append", late)
    schedule = await report.schedule(boki_context, 1, id="m", cron="* * * * *")
    await boki_context.clock.advance(400)
    assert overtaken == 3
    counts = (await schedule.state()).counts
    assert counts == {"started": 7}
    assert len(RAN) == len(set(RAN)) == 7, "what a zombie has decided, and not done, is done"


async def test_pause_resume_and_trigger(boki_context: boki.testing.Context) -> None:
    """Ticks pass by while paused, and stay out; a trigger starts the workflow all the same, once for a key."""
    ctx = boki_context
    schedule = await report.schedule(ctx, 1, id="m", cron="* * * * *")
    await ctx.clock.advance(70)
    await schedule.pause("the database moves")
    await ctx.clock.advance(300)
    state = await schedule.state()
    assert (state.status, state.note, state.next_us) == ("paused", "the database moves", ())
    assert [await schedule.trigger(key="a"), await schedule.trigger(key="a")] == ["m@now-a", "m@now-a"]
    await ctx.clock.advance(10)
    await schedule.resume()
    await ctx.clock.advance(60)
    assert dict.fromkeys(RAN) == dict.fromkeys(["m@2020-09-13T12:27:00Z", "m@now-a", "m@2020-09-13T12:34:00Z"])


async def test_backfill(boki_context: boki.testing.Context) -> None:
    """Ticks of the past, in their order; one whose workflow is kept is not started again."""
    ctx = boki_context
    schedule = await report.schedule(ctx, 1, id="m", cron="* * * * *")
    await ctx.clock.advance(130)
    assert minutes() == ["27", "28"]
    count = await schedule.backfill(T0 - timedelta(minutes=3), T0 + timedelta(minutes=2), overlap="queue_all")
    assert count == 5
    await ctx.clock.advance(20)
    assert sorted(minutes()) == ["24", "25", "26", "27", "28", "29"]
    assert len(RAN) == 6
    with pytest.raises(InvalidArgument, match="more than 10,000 ticks"):
        await schedule.backfill(T0 - timedelta(days=30), T0)
    with pytest.raises(InvalidArgument, match="must be a datetime with a time zone"):
        await schedule.backfill(datetime(2020, 1, 1), T0)


YEARS = datetime(1990, 1, 1, tzinfo=UTC), datetime(2002, 1, 1, tzinfo=UTC)
TICKS = [f"m@{year}-01-01T00:00:00Z" for year in range(1990, 2002)]


@pytest.mark.parametrize("overlap", ["skip", "queue", "queue_all", "cancel", "kill"])
async def test_a_backfill_leaves_no_tick_out(boki_context: boki.testing.Context, overlap: Overlap) -> None:
    """Whatever the schedule does at a tick of today: of the past one waits for the other."""
    ctx = boki_context
    schedule = await report.schedule(ctx, 1, id="m", cron="0 0 1 1 *", overlap=overlap)
    assert await schedule.backfill(*YEARS) == 12
    await ctx.clock.advance(200)
    assert list(dict.fromkeys(RAN)) == TICKS
    assert (await schedule.state()).counts.get("skipped", 0) == 0


async def test_a_trigger_waits_for_no_backfill(boki_context: boki.testing.Context) -> None:
    """It is taken once, and by the schedule's policy, while ticks of the past wait for one that takes long."""
    ctx = boki_context
    schedule = await report.schedule(ctx, 100, id="m", cron="0 0 1 1 *")
    await schedule.backfill(*YEARS)
    await ctx.clock.advance(10)
    assert await schedule.trigger(key="t", overlap="allow") == "m@now-t"
    await ctx.clock.advance(10)
    assert set(RAN) == {TICKS[0], "m@now-t"}
    assert await schedule.trigger(key="u") == "m@now-u"
    await ctx.clock.advance(5_000)
    assert list(dict.fromkeys(RAN)) == [TICKS[0], "m@now-t", *TICKS[1:]], "by the policy the second one is skipped"
    assert (await schedule.state()).counts["skipped"] == 1


async def test_a_schedule_that_is_made_again_backfills_from_the_start(boki_context: boki.testing.Context) -> None:
    """And not where the backfill of the deleted one had come to."""
    ctx = boki_context
    schedule = await report.schedule(ctx, 100, id="m", cron="0 0 1 1 *")
    await schedule.backfill(*YEARS)
    await ctx.clock.advance(250)
    await schedule.delete()
    begun = set(RAN)
    assert 1 < len(begun) < 12
    schedule = await report.schedule(ctx, 100, id="m", cron="0 0 1 1 *")
    before = datetime(1985, 1, 1, tzinfo=UTC)
    assert await schedule.backfill(before, YEARS[1]) == 17
    await ctx.clock.advance(5_000)
    assert len(set(RAN)) == 17


async def test_create_replace_and_delete(boki_context: boki.testing.Context) -> None:
    """One schedule of an id; what replaces it keeps what was done; what is deleted can be created again."""
    ctx = boki_context
    schedule = await report.schedule(ctx, 1, id="m", cron="* * * * *")
    with pytest.raises(AlreadyExists, match="replace it"):
        await report.schedule(ctx, 1, id="m", cron="* * * * *")
    await ctx.clock.advance(30)
    await report.schedule(ctx, 2, id="m", every_s=120, if_exists="replace")
    await ctx.clock.advance(240)
    state = await schedule.state()
    assert (state.when, state.counts) == ("every 120 s", {"started": 3})
    await schedule.delete()
    await ctx.clock.advance(600)
    assert len(RAN) == 3
    for said in (schedule.state, schedule.pause, schedule.trigger, schedule.delete):
        with pytest.raises(NoSuchSchedule, match="no schedule 'm' of report"):
            await said()
    await report.schedule(ctx, 1, id="m", every_s=60)
    await ctx.clock.advance(61)
    assert len(RAN) == 4


async def test_a_schedule_gets_other_attributes(boki_context: boki.testing.Context) -> None:
    """A replacement that changed nothing else left those of before."""
    ctx = boki_context
    schedule = await report.schedule(ctx, 1, id="m", every_s=60, attributes={"team": "a"})
    await ctx.clock.advance(60)
    for attributes in ({"team": "b"}, {"team": "b"}, None):
        await report.schedule(ctx, 1, id="m", every_s=60, attributes=attributes, if_exists="replace")
        await ctx.clock.advance(60)
    recent = (await schedule.state()).recent
    found = [(await report.handle(ctx, f"m@{one.key}").status()).attributes.get("team") for one in recent]
    assert found == ["a", "b", "b", None]


async def test_a_forgotten_end_is_no_second_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attendant that did not run for as long as ended calls are kept finds neither the call nor its end."""
    end = _State.end

    def without_records(self: _State, invocation_id: str, next_seqnum: int) -> None:
        if not next_seqnum:
            end(self, invocation_id, next_seqnum)

    monkeypatch.setattr(_State, "end", without_records)
    async with boki.testing.context(functions=[report], limits=Limits(key_window_s=60)) as ctx:
        await report.schedule(ctx, 40, id="m", cron="* * * * *", overlap="allow")
        await ctx.clock.advance(30)
        assert minutes() == ["27"]
        del ctx._calls._logged[report.handle(ctx, RAN[0]).invocation_id]  # type: ignore[attr-defined]
        await ctx.clock.advance(60)
        assert [flow_id[-6:] for flow_id in RAN] == ["27:00Z", "28:00Z"]


async def test_long_life_is_kept_short(boki_context: boki.testing.Context) -> None:
    """The records of a schedule are trimmed: there are no more after two hours than after one."""
    ctx = boki_context
    schedule = await report.schedule(ctx, 0, id="m", every_s=60)
    await ctx.clock.advance(80 * 60)
    records = (await ctx.logbook.read(schedule._tag, limit=1_000)).records
    assert len(records) < 80
    assert (await schedule.state()).counts == {"started": 80}
    assert len(RAN) == len(set(RAN)) == 80


def defined(spec_start_us: int = 0, **said: object) -> Fold:
    fold = Fold("m")
    fold.apply(1, spec_start_us, Defined(spec_of(**said)))  # type: ignore[arg-type]
    return fold


def test_catch_up_after_a_downtime() -> None:
    """Ticks that were missed are made up for as far as the window reaches; older ones are counted."""
    fold = defined(every_s=60, catch_up_s=300, overlap="allow")
    decided = fold.decide(3_600_000_000)
    assert decided is not None
    assert [act.tick_us // 60_000_000 for act in decided.acts] == [55, 56, 57, 58, 59, 60]
    assert decided.missed == 54
    fold.apply(2, 0, decided)
    assert fold.decide(3_600_000_000) is None
    assert fold.next_us() == 3_660_000_000


def test_a_downtime_of_a_year_of_seconds() -> None:
    """It does not take a year to count what was missed."""
    fold = defined(every_s=1, catch_up_s=10)
    decided = fold.decide(365 * 24 * 3_600 * 1_000_000)
    assert decided is not None
    assert decided.missed == 1_000
    assert [act.verdict for act in decided.acts] == ["started"] + ["skipped"] * 10


def decisions(fold: Fold, late_us: int, until_us: int) -> list[tuple[int, Act]]:
    """What is decided by a clock that is that late whenever something is due, and when."""
    found: list[tuple[int, Act]] = []
    while (due := fold.next_us()) < until_us:
        decided = fold.decide(due + late_us)
        assert decided is not None
        fold.apply(fold.last_seqnum + 1, due + late_us, decided)
        found += [(due + late_us, act) for act in decided.acts]
    return found


@pytest.mark.parametrize("catch_up_s", [0, 1])
def test_a_short_window_is_ten_seconds(catch_up_s: float) -> None:
    """An attendant acts a little after each tick, and some seconds after it if an engine was lost."""
    minute = 60_000_000
    for late_us in (37, 10_000_000):
        fold = defined(every_s=60, catch_up_s=catch_up_s, overlap="allow")
        found = decisions(fold, late_us, 10 * minute)
        assert [act.tick_us // minute for _, act in found] == list(range(1, 10))
    fold = defined(every_s=60, catch_up_s=catch_up_s, overlap="allow")
    decided = fold.decide(minute + 10_000_001)
    assert decided is not None
    assert (decided.acts, decided.missed) == ((), 1)


@pytest.mark.parametrize(("every_s", "jitter_s"), [(60, 30), (60, 3_600), (1, 600)])
def test_jitter_longer_than_the_window(every_s: float, jitter_s: float) -> None:
    """No tick is left out, and none is started before it is due: also one that waits, with more than one decision is
    about, for a tick before it whose jitter is larger.
    """
    fold = defined(every_s=every_s, catch_up_s=0, jitter_s=jitter_s, overlap="allow")
    assert fold.spec is not None
    found = decisions(fold, 37, 3 * 3_600_000_000)
    ticks = [act.tick_us for _, act in found]
    assert ticks == [round(number * every_s * 1e6) for number in range(1, len(ticks) + 1)]
    assert len(ticks) > 100
    assert "missed" not in fold.counts
    assert all(due_us(fold.spec, "m", act.tick_us) <= at_us for at_us, act in found)


def test_ticks_that_are_not_due_are_not_missed() -> None:
    """After a downtime: what is counted was due before the window."""
    fold = defined(every_s=10, catch_up_s=60, jitter_s=600, overlap="allow")
    assert fold.spec is not None
    now_us = 24 * 3_600_000_000
    decided = fold.decide(now_us)
    assert decided is not None
    first = decided.acts[0].tick_us
    passed = range(first - 600_000_000, first, 10_000_000)
    assert all(due_us(fold.spec, "m", tick_us) < now_us - 60_000_000 for tick_us in passed)


async def test_each_tick_by_a_late_clock(boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks are always some microseconds past a tick when an attendant acts for it."""
    now_us = VirtualClock.now_us
    monkeypatch.setattr(VirtualClock, "now_us", lambda self: now_us(self) + 37)
    schedule = await report.schedule(boki_context, 1, id="m", cron="* * * * *", catch_up_s=0)
    await boki_context.clock.advance(310)
    assert minutes() == ["27", "28", "29", "30", "31"]
    assert (await schedule.state()).counts == {"started": 5}


@pytest.mark.parametrize("seed", range(20))
def test_no_tick_twice(seed: int) -> None:
    """Whatever is said to it, and whichever ends come when: a tick is started at most once, and in order."""
    rng = Random(seed)
    overlap: Overlap = rng.choice(["skip", "queue", "queue_all", "allow", "cancel"])
    fold = defined(every_s=10, catch_up_s=rng.choice([20, 1_000]), overlap=overlap)
    now_us, started = 0, []
    for seqnum in range(2, 400):
        now_us += rng.choice([0, 1, 5, 25, 300]) * 1_000_000
        draw = rng.random()
        if draw < 0.1:
            fold.apply(seqnum, now_us, rng.choice([PausedNote(), Resumed(), Triggered(str(rng.randrange(50)))]))
            continue
        for key in list(fold.running):
            if rng.random() < 0.4:
                fold.ended[key] = seqnum
        decided = fold.decide(now_us)
        if decided is None:
            continue
        if rng.random() < 0.2:
            continue  # the log has refused it
        note = CODEC.decode(CODEC.encode(decided))
        fold.apply(seqnum, now_us, note)
        started += [act.key for act in decided.acts if act.verdict == "started" and act.tick_us]
        if overlap in ("skip", "queue"):
            assert len(fold.running) <= 1
        if rng.random() < 0.1:
            fold.apply(seqnum, now_us, CODEC.decode(CODEC.encode(fold.kept())))
    assert len(started) == len(set(started))
    assert len(started) > 10
