"""Functions that put load on the log from inside a worker process, where users of the log are.

One call is one round: it keeps this many operations in flight for a while and returns what it measured, so that nothing
but the log calls themselves is in a latency. Served by the benchmarks' own system; `boki dev --functions` with this
folder serves them for `boki bench --url`.
"""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Awaitable, Callable
from itertools import cycle, islice
from random import Random

import msgspec

from boki import Context, function
from boki.bench.payloads import payloads
from boki.bench.rounds import closed_loop, engine_pid
from boki.bench.rows import Round
from boki.errors import BokiError
from boki.log.limits import KIB

BOOK = "bench"
TAG = "bench"
BATCH_RECORDS = 1_000
_PIECE_BYTES = 512 * KIB


class Load(msgspec.Struct, frozen=True):
    """What a round does: operations of `size_bytes`, `inflight` of them at any time, for `duration_s`."""

    inflight: int = 1
    size_bytes: int = 1024
    duration_s: float = 3.0


class Fill(msgspec.Struct, frozen=True):
    """Append `record_count` records of `size_bytes`; `tags` of each, drawn in turn from `distinct_tags` values."""

    record_count: int
    size_bytes: int = 100
    tags: int = 1
    distinct_tags: int = 1


def batch_of(size_bytes: int) -> list[tuple[bytes, list[str]]]:
    """The `BATCH_RECORDS` records of a batch."""
    return [(body, [TAG]) for body in islice(cycle(payloads(size_bytes)), BATCH_RECORDS)]


@function
async def nothing(ctx: Context, payload: None) -> None:
    """The empty function."""


@function(book=BOOK, timeout_s=600, concurrency=1)
async def append_load(ctx: Context, load: Load) -> Round:
    """Single appends. Rounds that run at the same time have a worker process each."""
    bodies = cycle(payloads(load.size_bytes))

    async def append(_caller: int) -> None:
        await ctx.logbook.append(next(bodies), tags=[TAG])

    return await closed_loop(append, load.inflight, load.duration_s)


class Watch(msgspec.Struct, frozen=True):
    """A load whose every append is told of. `name`: what to call it in the record that says where it runs."""

    name: str
    inflight: int = 4
    size_bytes: int = 1024
    duration_s: float = 8.0


class Timeline(msgspec.Struct, frozen=True):
    """Every append: when it began (microseconds since the epoch) and how long it took; and what failed."""

    starts_us: list[int]
    latencies_us: list[int]
    errors: list[str]

    @property
    def until_us(self) -> int:
        """When the last append ended; 0 if none did."""
        return max(map(operator.add, self.starts_us, self.latencies_us), default=0)


async def watched_loop(append: Callable[[int], Awaitable[object]], watch: Watch) -> Timeline:
    """Append from `watch.inflight` callers, each one append at a time. `append` gets the caller's number."""
    end = time.time() + watch.duration_s
    starts_us: list[int] = []
    latencies_us: list[int] = []
    failures: list[str] = []

    async def append_until_the_end(caller: int) -> None:
        while time.time() < end:
            began_us = time.time_ns() // 1000
            try:
                await append(caller)
            except BokiError as error:
                failures.append(f"{type(error).__name__}: {error}")
            else:
                starts_us.append(began_us)
                latencies_us.append(time.time_ns() // 1000 - began_us)

    await asyncio.gather(*(append_until_the_end(caller) for caller in range(watch.inflight)))
    return Timeline(starts_us, latencies_us, failures)


@function(book=BOOK, timeout_s=600)
async def watched_load(ctx: Context, watch: Watch) -> None:
    """Single appends, remembered one by one, on the engine that the first record (tag `where:<name>`) tells. The
    `Timeline`, which is more than a result may be, is in records with the tag `timeline:<name>`, in pieces.
    """
    await ctx.logbook.append(engine_pid().encode(), tags=[f"where:{watch.name}"])
    bodies = cycle(payloads(watch.size_bytes))

    async def append(_caller: int) -> None:
        await ctx.logbook.append(next(bodies), tags=[TAG])

    told = msgspec.msgpack.encode(await watched_loop(append, watch))
    for start in range(0, len(told), _PIECE_BYTES):
        await ctx.logbook.append(told[start : start + _PIECE_BYTES], tags=[f"timeline:{watch.name}"])


@function(book=BOOK, timeout_s=600)
async def append_many_load(ctx: Context, load: Load) -> Round:
    """`append_many` of 1,000 records of `size_bytes`; one operation is one such call."""
    records = batch_of(load.size_bytes)

    async def append(_caller: int) -> None:
        await ctx.logbook.append_many(records)

    return await closed_loop(append, load.inflight, load.duration_s)


@function(book=BOOK, timeout_s=600)
async def read_next_load(ctx: Context, load: Load) -> Round:
    """`read_next` through the records of a tag that are in the cache, again from the first after the last."""
    await ctx.logbook.append_many(batch_of(load.size_bytes))
    next_seqnum = 0

    async def read(_caller: int) -> None:
        nonlocal next_seqnum
        record = await ctx.logbook.read_next(TAG, min_seqnum=next_seqnum)
        next_seqnum = 0 if record is None else record.next_seqnum

    return await closed_loop(read, load.inflight, load.duration_s)


@function(book=BOOK, timeout_s=600)
async def read_anywhere_load(ctx: Context, load: Load) -> Round:
    """`read_next` of records of a tag that are in the cache, anywhere: none is read ahead, each asks the engine."""
    seqnums = await ctx.logbook.append_many(batch_of(load.size_bytes))
    chosen = Random(0)

    async def read(_caller: int) -> None:
        await ctx.logbook.read_next(TAG, min_seqnum=chosen.choice(seqnums))

    return await closed_loop(read, load.inflight, load.duration_s)


@function(book=BOOK, timeout_s=600)
async def scan_load(ctx: Context, record_count: int) -> Round:
    """`subscribe().batches()` over the first `record_count` records of the tag; one operation is one record."""
    started = time.perf_counter()
    seen_count = 0
    async for page in ctx.logbook.subscribe(f"{TAG}:0").batches():
        seen_count += len(page.records)
        if seen_count >= record_count:
            break
    return Round(seen_count, 0, time.perf_counter() - started, None, None)


@function(book=BOOK, timeout_s=600)
async def fill(ctx: Context, wanted: Fill) -> int:
    """Append records in bulk, several calls in flight; the last seqnum."""
    bodies = cycle(payloads(wanted.size_bytes))
    last_seqnum = 0

    async def append(first: int) -> None:
        nonlocal last_seqnum
        stop = min(first + BATCH_RECORDS, wanted.record_count)
        numbers = range(first, stop)
        records = [
            (next(bodies), [f"{TAG}{k or ''}:{n % wanted.distinct_tags}" for k in range(wanted.tags)]) for n in numbers
        ]
        appended = await ctx.logbook.append_many(records)
        last_seqnum = max(last_seqnum, appended[-1])  # read after the wait: others append meanwhile

    starts = iter(range(0, wanted.record_count, BATCH_RECORDS))

    async def append_until_the_end() -> None:
        for first in starts:
            await append(first)

    await asyncio.gather(*(append_until_the_end() for _ in range(4)))
    return last_seqnum
