"""The example's consumers: every late departure of a group's carriers becomes one alert."""

from __future__ import annotations

import asyncio
from collections import Counter

import boki.testing
from boki.demo.queue_act import Watched
from boki.libs.bokiqueue import Queue
from functions.departures import Alert, CarrierGroup, Departure, announce, is_late, watch


def departure(carrier: str, number: int, delay_min: int | None) -> Departure:
    return Departure(carrier, number, "2013-01-01T05:00:00Z", "JFK", "MIA", delay_min)


def test_late_departures_of_a_group_become_alerts_once() -> None:
    """In their order; every group sees all, and makes alerts of its own carriers alone."""

    async def scenario() -> None:
        async with boki.testing.context(book="departures", functions=[announce, watch]) as ctx:
            delays = [(carrier, number, number * 20) for number in range(8) for carrier in ("UA", "B6")]
            made = [departure(*one) for one in delays] + [departure("UA", 99, None)]
            assert await ctx.invoke(announce, made) == len(made)
            groups = [CarrierGroup("a", ["UA"], 5), CarrierGroup("b", ["B6", "WN"], 5)]
            counts = [await ctx.invoke(watch, group) for group in groups]
            assert counts == [5, 5]
            assert await ctx.invoke(watch, groups[0]) == 0
            alerts = Queue(ctx.logbook, "alerts", type=Alert)
            found = [message.value for message in await alerts.pop_many(100)]
            assert Counter(one.carrier for one in found) == {"UA": 5, "B6": 5}
            assert [one.delay_min for one in found if one.carrier == "UA"] == [60, 80, 100, 120, 140]

    asyncio.run(scenario())


def test_only_a_departure_that_left_can_be_late() -> None:
    """From an hour on."""
    assert [is_late(departure("UA", 1, delay)) for delay in (None, -5, 59, 60)] == [False, False, False, True]


def test_the_demo_tells_a_missing_and_a_doubled_alert() -> None:
    """And a run in which nobody was killed shows nothing."""
    late = Counter({"UA": 2})
    assert Watched(9, Counter({"UA": 2}), late, 0, 1).matches
    assert not Watched(9, Counter({"UA": 1}), late, 0, 1).matches
    assert not Watched(9, Counter({"UA": 2}), late, 1, 1).matches
    assert not Watched(9, Counter({"UA": 2}), late, 0, 0).matches
