"""`boki demo queue`: real departures through a queue into alerts, with the consumers' process killed on the way.

What comes out is compared with the table: one alert for each late departure, none missing and none twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from boki.client import Client
from boki.demo.flights import flights
from boki.errors import BokiError
from boki.libs.bokiqueue import Queue

BOOK: Final = "departures"
LATE_MIN: Final = 60
FLIGHTS: Final = 20_000
BATCH: Final = 500
GROUPS: Final = {"big": ["UA", "AA", "DL"], "regional": ["EV", "MQ", "9E", "YV", "OO"], "low-cost": ["B6", "WN", "FL"]}
FIELDS: Final = ("carrier", "flight", "time_hour", "origin", "dest", "dep_delay")
IDLE_S: Final = 8.0
_RESTARTS: Final = 5

Step = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Watched:
    """Its outcome: alerts by carrier from the queue and from the table, and how often consumers were lost."""

    departure_count: int
    alerts: Counter[str]
    late: Counter[str]
    doubled_count: int
    killed_count: int

    @property
    def matches(self) -> bool:
        """Whether each late departure has one alert, though a consumer was killed."""
        return self.alerts == self.late and not self.doubled_count and self.killed_count > 0


async def departures_to_alerts(client: Client, table: Path, step: Step, *, count: int = FLIGHTS) -> Watched:
    """Push `count` departures, watch them in three groups, kill the watchers' process half-way, compare."""
    rows = [{field: row[field] for field in FIELDS} for row in islice(flights(table), count)]
    watched = {carrier for carriers in GROUPS.values() for carrier in carriers}
    late = [row for row in rows if row["carrier"] in watched and (row["dep_delay"] or 0) >= LATE_MIN]
    book = client.logbook(BOOK)
    watching = [asyncio.ensure_future(_watch(client, name, carriers)) for name, carriers in GROUPS.items()]
    half = count // 2
    for start in range(0, count, BATCH):
        if start <= half < start + BATCH:
            await _kill_watchers(client)
        await client.invoke("announce", rows[start : start + BATCH])
        step("departures into the queue", start + BATCH, count)
    lost = await asyncio.gather(*watching)
    alerts: list[dict[str, Any]] = []
    queue: Queue[dict[str, Any]] = Queue(book, "alerts")
    while some := await queue.pop_many(1_000):
        alerts += [message.value for message in some]
        step("alerts out of the queue", len(alerts), len(late))
    by_flight = Counter((one["carrier"], one["flight"], one["time_hour"]) for one in alerts)
    return Watched(
        count,
        Counter(one["carrier"] for one in alerts),
        Counter(row["carrier"] for row in late),
        sum(times - 1 for times in by_flight.values()),
        sum(lost),
    )


async def _watch(client: Client, name: str, carriers: list[str]) -> int:
    """A group's consumer, called again when it is lost; how often it was."""
    for lost in range(_RESTARTS):
        with contextlib.suppress(BokiError):
            await client.invoke("watch", {"name": name, "carriers": carriers, "idle_s": IDLE_S}, timeout_s=300)
            return lost
    raise BokiError(f"the consumers of group {name} were lost {_RESTARTS} times")


async def _kill_watchers(client: Client) -> None:
    """SIGKILL for the worker process that the consumers run in."""
    for name in GROUPS:
        record = await client.logbook(BOOK).read_next(f"watching:{name}", wait_s=30)
        if record is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(record.data), signal.SIGKILL)
