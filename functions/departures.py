"""Departures as a queue: every flight is a message, and groups of carriers turn the late ones into alerts.

Each group is given every departure. It acks those that are on time or not its own, and of each late one the ack and the
alert are appended together: whatever is killed on the way, there is one alert for each late departure.
`boki demo queue` sends real flights through, and kills the process of the consumers half-way.
"""

from __future__ import annotations

import os

import msgspec

from boki import Context, function
from boki.libs.bokiqueue import LeaseLost, Message, Queue

BOOK = "departures"
LATE_MIN = 60
LEASE_S = 5.0
BATCH = 200


class Departure(msgspec.Struct, frozen=True):
    """A flight that has left; its delay in minutes, None if it never did."""

    carrier: str
    flight: int
    time_hour: str
    origin: str
    dest: str
    dep_delay: int | None


class Alert(msgspec.Struct, frozen=True):
    """A late departure, as its carrier is told."""

    carrier: str
    flight: int
    time_hour: str
    delay_min: int


class CarrierGroup(msgspec.Struct, frozen=True):
    """Carriers that are watched together; `idle_s`: seconds without a departure after which there are none left."""

    name: str
    carriers: list[str]
    idle_s: float = 10.0


@function(book=BOOK)
async def announce(ctx: Context, departures: list[Departure]) -> int:
    """Push departures, all or none; how many."""
    return len(await Queue(ctx.logbook, "departures").push_many(departures))


@function(book=BOOK, timeout_s=600)
async def watch(ctx: Context, group: CarrierGroup) -> int:
    """Turn late departures of the group's carriers into alerts until there are no more; how many this call made."""
    departures = Queue(ctx.logbook, "departures", group=group.name, type=Departure)
    alerts = Queue(ctx.logbook, "alerts", type=Alert)
    await alerts.create()
    await departures.create()
    await departures.create_group(group.name)
    await ctx.logbook.append(str(os.getpid()).encode(), tags=[f"watching:{group.name}"])
    alert_count = 0
    while messages := await departures.lease_many(BATCH, LEASE_S, wait_s=group.idle_s):
        late = [one for one in messages if one.value.carrier in group.carriers and is_late(one.value)]
        others = [one for one in messages if one not in late]
        try:
            if others:
                await departures.ack(*others)
            for message in late:
                await alert(departures, alerts, message)
                alert_count += 1
        except LeaseLost:
            continue  # it took too long: others have them now
    return alert_count


def is_late(departure: Departure) -> bool:
    """Whether its carrier is told."""
    return departure.dep_delay is not None and departure.dep_delay >= LATE_MIN


async def alert(departures: Queue[Departure], alerts: Queue[Alert], message: Message[Departure]) -> None:
    """The alert and the ack, both or neither."""
    one = message.value
    assert one.dep_delay is not None, "late"
    async with departures.process(message) as out:
        out.push(alerts, Alert(one.carrier, one.flight, one.time_hour, one.dep_delay))
