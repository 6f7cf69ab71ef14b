"""When ticks are: cron lines, intervals, time zones, and the days on which clocks are changed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from boki import InvalidArgument
from boki.libs.bokiflow.schedules.spec import Spec, due_us, next_tick, spec_of, tick_name


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1e6)


def ticks(spec: Spec, start: str, count: int) -> list[str]:
    """The ticks behind a time, by UTC."""
    found, at_us = [], at(start)
    for _ in range(count):
        tick_us = next_tick(spec, at_us)
        assert tick_us is not None
        assert tick_us > at_us
        found.append(tick_name(tick_us)[5:16])
        at_us = tick_us
    return found


BERLIN_NIGHT = spec_of(cron="30 2 * * *", zone="Europe/Berlin")
BERLIN_HALF_HOURS = spec_of(cron="*/30 * * * *", zone="Europe/Berlin")


@pytest.mark.parametrize(
    ("spec", "start", "expected"),
    [
        (BERLIN_NIGHT, "2026-03-27T12:00Z", ["03-28T01:30", "03-29T01:00", "03-30T00:30"]),
        (BERLIN_NIGHT, "2026-10-24T12:00Z", ["10-25T00:30", "10-26T01:30"]),
        (BERLIN_NIGHT, "2026-10-25T01:15Z", ["10-26T01:30"]),
        (BERLIN_HALF_HOURS, "2026-03-29T00:15Z", ["03-29T00:30", "03-29T01:00", "03-29T01:30"]),
        (BERLIN_HALF_HOURS, "2026-10-25T00:15Z", ["10-25T00:30", "10-25T01:00", "10-25T01:30", "10-25T02:00"]),
        (spec_of(cron="0 0 29 2 *"), "2026-01-01T00:00Z", ["02-29T00:00"]),
        (spec_of(cron="0 9 * * 1-5", zone="America/New_York"), "2026-11-20T15:00Z", ["11-23T14:00", "11-24T14:00"]),
        (spec_of(every_s=600, offset_s=60), "2026-11-23T09:01Z", ["11-23T09:11", "11-23T09:21"]),
        (spec_of(cron="@daily"), "2026-12-31T12:00Z", ["01-01T00:00"]),
    ],
    ids=[
        "an hour that is left out: at the end of the gap",
        "an hour that comes twice: once",
        "not a second time in the hour that comes twice",
        "the time that passes, over a gap",
        "the time that passes, through an hour that comes twice",
        "a day of some years",
        "working days in another zone",
        "an interval with an offset",
        "a nickname",
    ],
)
def test_ticks(spec: Spec, start: str, expected: list[str]) -> None:
    """Debian's rules at changes of the clock: a fixed hour once a day, all else by the time that passes."""
    assert ticks(spec, start, len(expected)) == expected


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"cron": "0 0 30 2 *"}, r"cron line '0 0 30 2 \*' never fires: no such day is in such a month"),
        ({"cron": "0 0 31 4,6,9,11 *"}, "never fires"),
        ({"cron": "0 0 32 1 *"}, "has a day-of-month that is none"),
        ({"cron": "61 * * * *"}, "has a minute that is none"),
        ({"cron": "0 0 * * * *"}, "has 5 fields .* has 6"),
        ({"cron": "soon"}, "has 5 fields .* has 1"),
        ({}, "needs cron=.* or every_s=600"),
        ({"cron": "* * * * *", "every_s": 5}, "and not both"),
        ({"every_s": 0.5}, "every_s must be 1 to"),
        ({"every_s": 60, "offset_s": 60}, "offset_s must be below every_s"),
        ({"cron": "@daily", "zone": "Mars/Base"}, "no time zone 'Mars/Base'"),
        ({"cron": "@daily", "zone": "../../etc/passwd"}, "no time zone"),
        ({"cron": "@daily", "overlap": "both"}, "overlap must be one of skip, queue"),
        ({"cron": "@daily", "jitter_s": -1}, "jitter_s must be"),
    ],
)
def test_refusals(said: dict[str, object], why: str) -> None:
    """What is wrong, and what to write."""
    with pytest.raises(InvalidArgument, match=why):
        spec_of(**said)  # type: ignore[arg-type]


def test_jitter_is_the_same_for_one_tick() -> None:
    """Whoever asks: else a tick could be due twice, or be skipped."""
    spec = spec_of(every_s=60, jitter_s=20)
    dues = [due_us(spec, "poll", minute * 60_000_000) - minute * 60_000_000 for minute in range(50)]
    assert dues == [due_us(spec, "poll", minute * 60_000_000) - minute * 60_000_000 for minute in range(50)]
    assert min(dues) >= 0
    assert max(dues) <= 20_000_000
    assert len(set(dues)) > 40
