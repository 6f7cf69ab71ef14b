"""The load of `boki bench queue` on Boki: producers and consumers in one call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from itertools import cycle, islice

import msgspec

from boki import Context, function
from boki.bench.payloads import payloads
from boki.bench.queue_flow import QueueLoad, QueueRound, flow, quantiles_ms
from boki.libs.bokiqueue import Queue

BOOK = "bench-queue"


class BokiPipe:
    """A BokiQueue as it is measured: each message is pushed, and popped permanently, by a call of its own."""

    def __init__(self, queue: Queue[bytes]) -> None:
        self._queue = queue

    async def push(self, body: bytes) -> None:
        """See `Pipe`."""
        await self._queue.push(body)

    async def pop(self, wait_s: float) -> bytes | None:
        """See `Pipe`."""
        message = await self._queue.pop(wait_s=wait_s)
        return None if message is None else message.data


@function(book=BOOK, timeout_s=600)
async def queue_load(ctx: Context, load: QueueLoad) -> QueueRound:
    """Push and pop for a while, then pop what is left."""
    queue: Queue[bytes] = Queue(ctx.logbook, load.queue)
    await queue.create(shards=load.shards)
    return await flow(load, BokiPipe(queue))


class WakeLoad(msgspec.Struct, frozen=True):
    """How long after the acknowledgement of a push an idle consumer has the message: this many times."""

    queue: str
    count: int
    is_leased: bool = False


@function(book=BOOK, timeout_s=600)
async def wake_load(ctx: Context, load: WakeLoad) -> list[float]:
    """Milliseconds from the acknowledgement of each push until the consumer continues; 0 if that was earlier."""
    queue: Queue[bytes] = Queue(ctx.logbook, load.queue)
    await queue.create()
    found = []
    for _ in range(load.count):
        taking = queue.lease(60, wait_s=30) if load.is_leased else queue.pop(wait_s=30)
        waiting = asyncio.ensure_future(_timed(taking))
        await asyncio.sleep(0.01)  # long enough for it to be idle
        await queue.push(b"x")
        acknowledged = time.perf_counter()
        found.append(max(0.0, (await waiting - acknowledged) * 1e3))
    return sorted(found)


class FillLoad(msgspec.Struct, frozen=True):
    """`push_many` of `batch` messages, this many calls in flight, and nobody takes them."""

    queue: str
    batch: int
    inflight: int
    size_bytes: int
    duration_s: float


@function(book=BOOK, timeout_s=600)
async def push_many_load(ctx: Context, load: FillLoad) -> QueueRound:
    """Messages that were pushed, as those that were delivered."""
    queue: Queue[bytes] = Queue(ctx.logbook, load.queue)
    await queue.create()
    bodies = list(islice(cycle(payloads(load.size_bytes)), load.batch))
    pushes_s: list[float] = []
    started = time.perf_counter()
    end = started + load.duration_s

    async def push() -> None:
        while (before := time.perf_counter()) < end:
            await queue.push_many(bodies)
            pushes_s.append(time.perf_counter() - before)

    await asyncio.gather(*(push() for _ in range(load.inflight)))
    p50, p99 = quantiles_ms(pushes_s)
    count = len(pushes_s) * load.batch
    return QueueRound(count, count, 0, time.perf_counter() - started, p50, p99, None, None)


async def _timed(work: Awaitable[object]) -> float:
    await work
    return time.perf_counter()
