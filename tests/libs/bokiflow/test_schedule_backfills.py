"""Backfills: no tick is started twice, however long ago it was, and each that was left out can be made up for."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random

import msgspec
import pytest

import boki.testing
from boki.libs.bokiflow import flow, workflow
from boki.libs.bokiflow.schedules import started as memory
from boki.libs.bokiflow.schedules.spec import Overlap, Spec, next_tick, spec_of
from boki.libs.bokiflow.schedules.started import Spans, Started
from boki.libs.bokiflow.schedules.state import (
    CODEC,
    Act,
    Backfilled,
    Decided,
    Defined,
    Deleted,
    Fold,
    Kept,
    Note,
    Resumed,
    Triggered,
)
from boki.libs.bokiflow.schedules.state import Paused as PausedNote

MINUTE = 60_000_000
HOUR = 60 * MINUTE
BERLIN = spec_of(cron="30 2 * * *", zone="Europe/Berlin")
RAN: Counter[str] = Counter()
T0 = datetime(2020, 9, 13, 12, 26, 40, tzinfo=UTC)
"""When virtual time begins."""


@workflow
async def report(seconds: float) -> str:
    if not flow.is_replaying:
        RAN[flow.id] += 1
    await flow.sleep(seconds)
    return flow.id


def forget(ctx: boki.testing.Context) -> None:
    """What a node does with calls that ended longer ago than `keep_calls_s`."""
    for flow_id in RAN:
        del ctx._calls._logged[report.handle(ctx, flow_id).invocation_id]  # type: ignore[attr-defined]


async def test_a_tick_of_two_days_ago_is_not_started_again(boki_context: boki.testing.Context) -> None:
    """When its workflow had been forgotten, after 24 hours, a backfill started it again."""
    RAN.clear()
    ctx = boki_context
    schedule = await report.schedule(ctx, 1, id="m", cron="0 * * * *")
    await ctx.clock.advance(5 * 3_600)
    await schedule.pause()
    await ctx.clock.advance(3 * 3_600)
    await schedule.resume()
    await ctx.clock.advance(40 * 3_600)
    assert len(RAN) == 45
    forget(ctx)
    await schedule.delete()
    schedule = await report.schedule(ctx, 1, id="m", cron="0 * * * *")
    assert await schedule.backfill(T0 - timedelta(hours=2), T0 + timedelta(hours=48)) == 50
    await ctx.clock.advance(600)
    assert len(RAN) == 50
    assert set(RAN.values()) == {1}
    assert (await schedule.state()).counts == {"started": 50}


def defined(spec: Spec) -> Fold:
    fold = Fold("m")
    fold.apply(1, 0, Defined(spec))
    return fold


def say(fold: Fold, note: Note, at_us: int) -> None:
    fold.apply(fold.last_seqnum + 1, at_us, CODEC.decode(CODEC.encode(note)))


def settle(fold: Fold, now_us: int) -> list[int]:
    """The ticks that are started now, when those before have ended."""
    found: list[int] = []
    while True:
        fold.ended = dict.fromkeys(fold.running, fold.last_seqnum)
        decided = fold.decide(now_us)
        if decided is None:
            return found
        say(fold, decided, now_us)
        found += [act.tick_us for act in decided.acts if act.verdict == "started" and act.tick_us]


def backfill(fold: Fold, from_us: int, until_us: int, now_us: int, overlap: Overlap = "allow") -> list[int]:
    say(fold, Backfilled(from_us, until_us, overlap), now_us)
    return settle(fold, now_us)


def restored(fold: Fold) -> Fold:
    """What begins with the snapshot."""
    again = Fold("m")
    again.apply(fold.last_seqnum, 0, CODEC.decode(CODEC.encode(fold.kept())))
    return again


def test_other_times_have_ticks_of_their_own() -> None:
    """A tick is a point in time: what the schedule started there by its times of before is not started again, and
    what those left between is.
    """
    fold = defined(spec_of(every_s=3_600, overlap="allow", catch_up_s=86_400))
    assert settle(fold, 3 * HOUR) == [HOUR, 2 * HOUR, 3 * HOUR]
    say(fold, Defined(spec_of(every_s=1_200, overlap="allow")), 3 * HOUR)
    fold = restored(fold)
    twenties = [20 * MINUTE * number for number in range(1, 10) if number % 3]
    assert backfill(fold, 1, 3 * HOUR + 1, 3 * HOUR) == twenties
    say(fold, Defined(spec_of(every_s=3_600, overlap="allow")), 3 * HOUR)
    assert backfill(fold, 1, 3 * HOUR + 1, 3 * HOUR) == []
    assert settle(fold, 4 * HOUR) == [4 * HOUR]


def test_a_tick_that_waited_while_the_times_changed() -> None:
    """It is none of the new times, and is known for what it is."""
    fold = defined(spec_of(every_s=3_600, overlap="queue"))
    say(fold, Decided(2 * HOUR, 0, (Act("a", HOUR, "started"), Act("b", 2 * HOUR, "queued"))), 0)
    say(fold, Defined(spec_of(every_s=3_600, offset_s=60, overlap="queue")), 2 * HOUR)
    assert settle(fold, 2 * HOUR) == [2 * HOUR]
    say(fold, Defined(spec_of(every_s=1_800)), 2 * HOUR)
    assert backfill(restored(fold), 1, 2 * HOUR + 1, 2 * HOUR) == [HOUR // 2, 3 * HOUR // 2]


def test_ticks_that_are_to_come() -> None:
    """Those that a backfill has started do not come again."""
    fold = defined(spec_of(every_s=60, overlap="allow"))
    assert backfill(fold, MINUTE, 3 * MINUTE, 0) == [MINUTE, 2 * MINUTE]
    assert settle(fold, 4 * MINUTE) == [3 * MINUTE, 4 * MINUTE]


def test_what_was_missed_is_made_up_for_once() -> None:
    """A downtime that was longer than the window to catch up leaves ticks to backfills, and a trigger takes none."""
    fold = defined(spec_of(every_s=60, overlap="allow", catch_up_s=120))
    say(fold, Triggered("k"), 0)
    assert settle(fold, 60 * MINUTE) == [58 * MINUTE, 59 * MINUTE, 60 * MINUTE]
    assert backfill(fold, MINUTE, 61 * MINUTE, 60 * MINUTE) == [MINUTE * number for number in range(1, 58)]
    assert backfill(restored(fold), MINUTE, 61 * MINUTE, 60 * MINUTE, "queue_all") == []
    assert len(fold.kept().started[0].spans) == 1


def test_a_long_backfill_of_what_was_done_is_passed_in_parts() -> None:
    """One decision looks at a thousand of its ticks, so that it does not hold up a worker."""
    fold = defined(spec_of(every_s=60, overlap="allow"))
    done = (Spans(times(60), ((MINUTE, 9_000 * MINUTE),)),)
    say(fold, msgspec.structs.replace(fold.kept(), started=done), 0)
    say(fold, Backfilled(MINUTE, 2_501 * MINUTE), 0)
    for expected in (1_000, 2_000):
        decided = fold.decide(0)
        assert decided is not None
        assert (decided.backfill_us, decided.asked, decided.acts) == (expected * MINUTE, 0, ())
        say(fold, decided, 0)
    decided = fold.decide(0)
    assert decided is not None
    assert (decided.backfill_us, decided.asked) == (0, 1)


def times(every_s: int) -> Spec:
    return Spec(every_us=every_s * 1_000_000)


def test_ticks_at_the_changes_of_clocks_share_one_span() -> None:
    """Also the day on which their hour is left out, and the one on which it comes twice."""
    tick_us: int | None = int(datetime(2019, 1, 1, tzinfo=UTC).timestamp() * 1e6)
    found = Started()
    ticks: list[int] = []
    while len(ticks) < 1_000:
        tick_us = next_tick(BERLIN, tick_us or 0)
        assert tick_us is not None
        ticks.append(tick_us)
    order = list(ticks)
    Random(1).shuffle(order)
    for one in order:
        assert one not in found
        found.add(one, BERLIN)
        assert one in found
    assert [one.spans for one in found.kept()] == [((ticks[0], ticks[-1]),)]
    assert ticks[5] + 1 not in found


def test_a_zone_that_is_not_known_here_fails_no_fold() -> None:
    """Its ticks count as started."""
    nowhere = Spec("0 * * * *", zone="Nowhere/Land")
    found = Started([Spans(nowhere, ((HOUR, 9 * HOUR),))])
    assert 2 * HOUR in found
    found.add(10 * HOUR, nowhere)
    assert 10 * HOUR in found


def test_the_memory_is_bounded() -> None:
    """Each second tick was skipped, for 6,000 ticks: an old gap is closed for each that comes. None is started twice,
    and the newest can be made up for.
    """
    fold, ran = defined(spec_of(every_s=60)), []
    for tick in range(1, 6_001):
        verdict = "started" if tick % 2 or tick == 3_000 else "skipped"
        say(fold, Decided(tick * MINUTE, tick * MINUTE, (Act("x", tick * MINUTE, verdict),)), tick * MINUTE)  # type: ignore[arg-type]
        if verdict == "started":
            ran.append(tick * MINUTE)
    (found,) = fold.kept().started
    assert len(found.spans) == memory.MAX_SPANS
    assert len(CODEC.encode(fold.kept())) < 32_768
    again = backfill(restored(fold), MINUTE, 6_001 * MINUTE, 6_000 * MINUTE)
    assert not set(again) & set(ran)
    assert again == [tick * MINUTE for tick in range(4_002, 6_000, 2)] + [6_000 * MINUTE]


def test_small_gaps_are_closed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """And only between ticks of which none is to come, or asked for."""
    monkeypatch.setattr(memory, "MAX_SPANS", 4)
    found = Started()
    for tick in (1, 9, 11, 12, 14, 15, 17, 30):
        found.add(tick * MINUTE, times(60))
    found.shrink(lambda _first, last: last < 30 * MINUTE)
    spans = [(first // MINUTE, last // MINUTE) for first, last in found.kept()[0].spans]
    assert spans == [(1, 1), (9, 15), (17, 17), (30, 30)]
    found.add(20 * MINUTE, times(60))
    found.add(40 * MINUTE, times(60))
    found.shrink(lambda _first, _last: False)
    assert len(found.kept()[0].spans) == 6


def test_the_newest_gaps_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest one of the older half is closed, also if a newer one is smaller."""
    monkeypatch.setattr(memory, "MAX_SPANS", 4)
    found = Started()
    for tick in (1, 6, 10, 13, 15):
        found.add(tick * MINUTE, times(60))
    found.shrink(lambda _first, _last: True)
    assert [first // MINUTE for first, _ in found.kept()[0].spans] == [1, 6, 13, 15]


def test_a_closed_gap_loses_no_tick_of_other_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that had waited while the times changed lies between ticks of the new ones."""
    monkeypatch.setattr(memory, "MAX_SPANS", 2)
    found = Started()
    for tick in (60, 150, 240):
        found.add(tick * MINUTE, times(3_600))
    found.shrink(lambda _first, _last: True)
    assert len(found.kept()) == 2
    assert [tick * MINUTE in found for tick in (60, 120, 150, 180, 240, 151)] == [True] * 5 + [False]


def test_ticks_of_forgotten_times_may_lie_within_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backfill by later times, in the middle of those of before."""
    monkeypatch.setattr(memory, "MAX_TIMES", 1)
    found = Started()
    for every_s, ticks in ((60, range(1, 10)), (120, (4, 6)), (7_200, (120,))):
        for tick in ticks:
            found.add(tick * MINUTE + (every_s == 120), Spec(every_us=every_s * 1_000_000, offset_us=every_s == 120))
    found.shrink(lambda _first, _last: True)
    assert [one.spans for one in found.kept()] == [((120 * MINUTE, 120 * MINUTE),), ((MINUTE, 9 * MINUTE),)]
    assert 8 * MINUTE in found


def test_a_gap_of_ticks_that_are_to_come_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would count as started, and never come."""
    monkeypatch.setattr(memory, "MAX_SPANS", 1)
    fold = defined(spec_of(every_s=60, overlap="allow"))
    assert settle(fold, MINUTE) == [MINUTE]
    assert backfill(fold, 4 * MINUTE, 5 * MINUTE, MINUTE) == [4 * MINUTE]
    assert settle(fold, 5 * MINUTE) == [2 * MINUTE, 3 * MINUTE, 5 * MINUTE]


def test_a_gap_that_a_backfill_fills_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ticks would count as started while they wait."""
    monkeypatch.setattr(memory, "MAX_SPANS", 1)
    fold = defined(spec_of(every_s=60, overlap="allow"))
    say(fold, Decided(9 * MINUTE, 0, (Act("a", MINUTE, "started"),)), 0)
    say(fold, Backfilled(4 * MINUTE, 8 * MINUTE), 0)
    say(fold, Decided(9 * MINUTE, 0, (Act("b", 9 * MINUTE, "started"),)), 0)
    assert len(fold.kept().started[0].spans) == 2
    assert settle(fold, 9 * MINUTE) == [MINUTE * number for number in range(4, 8)]
    assert fold.kept().started[0].spans == ((MINUTE, 9 * MINUTE),)


def test_times_of_long_ago_are_not_told_apart() -> None:
    """A schedule that was given other times again and again: what it did with the first counts for all of them."""
    fold, now_us = defined(spec_of(every_s=60, overlap="allow")), 0
    ran: list[int] = []
    for number in range(30):
        say(fold, Defined(spec_of(every_s=60, offset_s=number, overlap="allow")), now_us)
        now_us += 10 * MINUTE
        ran += settle(fold, now_us)
    assert len(fold.kept().started) == memory.MAX_TIMES + 1
    say(fold, Defined(spec_of(every_s=30, offset_s=0.5, overlap="allow")), now_us)
    again = backfill(restored(fold), 1, now_us, now_us)
    assert len(ran) == len(set(ran)) > 290
    assert not set(again) & set(ran)
    assert len([tick for tick in again if tick < 100 * MINUTE]) < 25, "those of the first ten count as started"
    assert len([tick for tick in again if tick > 120 * MINUTE]) == 2 * 180


@pytest.mark.parametrize("verdict", ["started", "skipped"])
def test_a_snapshot_of_an_earlier_version_is_read(verdict: str) -> None:
    """It names the ticks that were started last, and no others."""
    fold = defined(spec_of(every_s=60, overlap="allow"))
    say(fold, Decided(9 * MINUTE, 0, (Act("a", 9 * MINUTE, verdict),), ended=("a",)), 0)  # type: ignore[arg-type]
    items = msgspec.msgpack.decode(CODEC.encode(fold.kept())[1:])[:-1]
    old = CODEC.decode(bytes((1,)) + msgspec.msgpack.encode(items))
    assert isinstance(old, Kept)
    assert old.started == ()
    again = Fold("m")
    again.apply(2, 0, old)
    assert backfill(again, 8 * MINUTE, 10 * MINUTE, 9 * MINUTE) == [8 * MINUTE] + [9 * MINUTE] * (verdict == "skipped")


@pytest.mark.parametrize("seed", range(30))
def test_no_tick_twice_and_none_lost(seed: int) -> None:
    """Whatever is said to it: with backfills, other times, deletions and snapshots, each tick is started at most once,
    and a last backfill starts exactly those that were not. Two folds of the same records have the same state.
    """
    rng = Random(seed)
    specs = [spec_of(every_s=every_s, overlap=rng.choice(["skip", "queue_all", "allow"])) for every_s in (10, 15)]
    fold = defined(specs[0])
    twin = defined(specs[0])
    now_us, started = 0, []
    for seqnum in range(2, 500):
        now_us += rng.choice([0, 1, 5, 25, 300]) * 1_000_000
        note: Note | None
        if rng.random() < 0.2:
            start_us = rng.randrange(1, now_us + 2)
            backfilled = Backfilled(start_us, start_us + rng.randrange(1, 400_000_000), rng.choice([None, "skip"]))
            said: list[Note] = [
                PausedNote(),
                Resumed(),
                Triggered("k"),
                Deleted(),
                Defined(rng.choice(specs)),
                backfilled,
            ]
            note = said[rng.choices(range(len(said)), [1, 2, 1, 1, 2, 4])[0]]
        else:
            fold.ended = {key: seqnum for key in fold.running if rng.random() < 0.5}
            note = decided = fold.decide(now_us)
            fold.ended.clear()
            if decided is None or rng.random() < 0.2:  # or the log has refused it
                continue
            started += [act.tick_us for act in decided.acts if act.verdict == "started" and act.tick_us]
        assert note is not None
        for one in (fold, twin):
            one.apply(seqnum, now_us, CODEC.decode(CODEC.encode(note)))
        if rng.random() < 0.1:
            fold = restored(fold)
        assert twin.kept() == fold.kept()
    assert len(started) == len(set(started)) > 20
    say(fold, Defined(specs[0]), now_us)
    say(fold, Deleted(), now_us)
    say(fold, Defined(specs[0], is_paused=True), now_us)
    until_us = max(started) + 1
    expected = set(range(10_000_000, until_us, 10_000_000)) - set(started)
    assert set(backfill(fold, 1, until_us, now_us)) == expected
    say(fold, Defined(specs[1], is_paused=True), now_us)
    expected = set(range(15_000_000, until_us, 30_000_000)) - set(started)
    assert backfill(fold, 1, until_us, now_us) == sorted(expected)
