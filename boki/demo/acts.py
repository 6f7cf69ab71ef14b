"""The acts of the demo. Each works on a real system in a child process and returns what it found, for the CLI to print.

Nothing is taken on trust: the records are compared with the package's table, by bytes after the kill and by the means
that pandas computes without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from boki.client import Client
from boki.config.loading import DevConfig
from boki.config.up import UpConfig
from boki.demo.flights import FLIGHT_COUNT, Summary, flights, summaries
from boki.errors import BokiError
from boki.launch.child import Child

BOOK = "flights"
BATCH_FLIGHTS = 1_000
CALLS_IN_FLIGHT = 4
KILL_ACT_FLIGHTS = 120_000
PAGE_RECORDS = 5_000

Step = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and of how much."""

Batch = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Ingested:
    """Flights that were acknowledged, and how long that took."""

    flight_count: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Compared:
    """One tag: what the log says and what the table says."""

    tag: str
    from_log: Summary
    from_table: Summary

    @property
    def matches(self) -> bool:
        """Whether both say the same."""
        return self.from_log.agrees_with(self.from_table)


@dataclass(frozen=True, slots=True)
class CameBack:
    """What was found after the kill. `unacknowledged_count` records were on their way when it came: kept or not, both
    are right, but of a batch all or none.
    """

    acknowledged_count: int
    found_count: int
    unacknowledged_count: int
    torn_batch_count: int
    duplicate_count: int
    restart_s: float

    @property
    def all_found(self) -> bool:
        """Whether the promise held."""
        all_there = 0 < self.acknowledged_count == self.found_count
        return all_there and not self.torn_batch_count and not self.duplicate_count


async def ingest(client: Client, table: Path, step: Step, *, halfway: Callable[[], None] = lambda: None) -> Ingested:
    """Send every flight through the function `record_flights`, in batches, several calls at once.

    `halfway` is called once, when half of them are acknowledged.
    """
    flight_count = 0

    def acknowledged(batch: Batch, _seqnums: list[int]) -> None:
        nonlocal flight_count
        was_first_half = flight_count < FLIGHT_COUNT // 2
        flight_count += len(batch)
        if was_first_half and flight_count >= FLIGHT_COUNT // 2:
            halfway()
        step("flights into the log", flight_count, FLIGHT_COUNT)

    started = time.perf_counter()
    await _send(client, _batches(flights(table)), acknowledged)
    return Ingested(flight_count, time.perf_counter() - started)


async def compare(client: Client, table: Path, step: Step) -> list[Compared]:
    """Read the flights of every carrier, origin and destination back by tag, and hold them against the table."""
    expected = summaries(table)
    found: list[Compared] = []

    async def ask(tags: Iterator[str]) -> None:
        for tag in tags:
            answer = await client.invoke("arrival_delays", tag, timeout_s=120)
            found.append(Compared(tag, msgspec.convert(answer, Summary), expected[tag]))
            step("tags out of the log", len(found), len(expected))

    tags = iter(sorted(expected))
    await asyncio.gather(*(ask(tags) for _ in range(2)))
    return sorted(found, key=lambda one: one.tag)


async def kill_and_come_back(config: DevConfig | UpConfig, table: Path, random: Random, step: Step) -> CameBack:
    """Kill a system with SIGKILL while it takes flights in, start it again, and look for what it had acknowledged."""
    batches = list(_batches(islice(flights(table), KILL_ACT_FLIGHTS)))
    kill_after = random.randrange(len(batches) // 4, len(batches) * 3 // 4)
    records: dict[int, bytes] = {}
    batch_count = 0

    def acknowledged(batch: Batch, seqnums: list[int]) -> None:
        nonlocal batch_count
        records.update(zip(seqnums, map(msgspec.json.encode, batch), strict=True))
        batch_count += 1
        step("flights before the kill", batch_count, kill_after)
        if batch_count == kill_after:
            child.kill()

    with Child(config) as child:
        await asyncio.to_thread(child.start)
        async with Client(child.url) as client:
            with contextlib.suppress(BokiError):  # what was on its way when the kill came
                await _send(client, iter(batches), acknowledged)
        assert not child.is_running, "killed before it had taken in all batches"
        started = time.perf_counter()
        await asyncio.to_thread(child.start)
        restart_s = time.perf_counter() - started
        async with Client(child.url) as client:
            found = await _read_all(client, step)
    return judged(records, found, batches, restart_s)


def _batches(rows: Iterator[dict[str, Any]]) -> Iterator[Batch]:
    while batch := list(islice(rows, BATCH_FLIGHTS)):
        yield batch


async def _send(client: Client, batches: Iterator[Batch], acknowledged: Callable[[Batch, list[int]], None]) -> None:
    async def send_until_the_end() -> None:
        for batch in batches:
            acknowledged(batch, await client.invoke("record_flights", batch, timeout_s=60))

    ends = await asyncio.gather(*(send_until_the_end() for _ in range(CALLS_IN_FLIGHT)), return_exceptions=True)
    for error in filter(None, ends):
        raise error


async def _read_all(client: Client, step: Step) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    start = 0
    while True:
        page = await client.logbook(BOOK).read(start=start, limit=PAGE_RECORDS)
        if not page.records:
            return found
        found.update((record.seqnum, record.data) for record in page.records)
        step("records after the restart", len(found), len(found))
        start = page.next_start


def judged(acknowledged: dict[int, bytes], found: dict[int, bytes], batches: list[Batch], restart_s: float) -> CameBack:
    """What was acknowledged must be there, once; what was on its way may be, but of each batch all or none."""
    batch_of = {msgspec.json.encode(flight): number for number, batch in enumerate(batches) for flight in batch}
    others = [data for seqnum, data in found.items() if seqnum not in acknowledged]
    arrived = Counter(batch_of.get(data, -1) for data in others)
    return CameBack(
        acknowledged_count=len(acknowledged),
        found_count=sum(found.get(seqnum) == data for seqnum, data in acknowledged.items()),
        unacknowledged_count=len(others),
        torn_batch_count=sum(number < 0 or count != len(batches[number]) for number, count in arrived.items()),
        duplicate_count=len(found) - len(set(found.values())),
        restart_s=restart_s,
    )
