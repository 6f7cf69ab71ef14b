"""The load of `boki bench queue`: producers and consumers in one call, and each message carries when it was sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field

import msgspec

from boki import BokiError, Context, function
from boki.bench.rows import quantile
from boki.libs.bokiqueue import Queue

BOOK = "bench-queue"
_DRAIN_S = 20.0
"""After the end, what was pushed has so long to come out."""


class QueueLoad(msgspec.Struct, frozen=True):
    """`offered_per_s` 0: each producer pushes again as soon as its push is acknowledged."""

    queue: str
    producers: int
    consumers: int
    shards: int
    size_bytes: int
    duration_s: float
    offered_per_s: float = 0.0
    batch: int = 1


class QueueRound(msgspec.Struct, frozen=True):
    """What was delivered, and how long pushes and deliveries took. A delivery begins when its push does."""

    delivered_count: int
    pushed_count: int
    error_count: int
    elapsed_s: float
    push_p50_ms: float | None
    push_p99_ms: float | None
    delivery_p50_ms: float | None
    delivery_p99_ms: float | None


@dataclass
class _Measured:
    """What producers and consumers have seen so far."""

    load: QueueLoad
    end: float
    pushes_s: list[float] = field(default_factory=list)
    deliveries_s: list[float] = field(default_factory=list)
    errors: int = 0
    late_count: int = 0

    async def produce(self, queue: Queue[bytes], number: int) -> None:
        """Push, at once or at the offered rate, until the end."""
        load = self.load
        filling = bytes(max(0, load.size_bytes - 8))
        pause_s = load.producers * load.batch / load.offered_per_s if load.offered_per_s else 0.0
        due = time.perf_counter() + pause_s * number / load.producers
        while (began := time.perf_counter()) < self.end:
            if pause_s and began < due:
                await asyncio.sleep(due - began)
            due += pause_s
            began = time.perf_counter()
            body = time.time_ns().to_bytes(8, "little") + filling
            try:
                await queue.push_many([body] * load.batch)
            except BokiError:
                self.errors += 1
            else:
                self.pushes_s.append(time.perf_counter() - began)

    async def consume(self, queue: Queue[bytes]) -> None:
        """Pop until the end, and then what is left."""
        while True:
            try:
                found = await queue.pop_many(self.load.batch, wait_s=0.3)
            except BokiError:
                self.errors += 1
                continue
            left = len(self.pushes_s) * self.load.batch - len(self.deliveries_s)
            if not found and time.perf_counter() >= self.end + (_DRAIN_S if left > 0 else 0.0):
                return
            now_ns = time.time_ns()
            for message in found:
                self.deliveries_s.append((now_ns - int.from_bytes(message.data[:8], "little")) / 1e9)
            if time.perf_counter() > self.end:
                self.late_count += len(found)


@function(book=BOOK, timeout_s=600)
async def queue_load(ctx: Context, load: QueueLoad) -> QueueRound:
    """Push and pop for a while, then pop what is left: what is lost or doubled counts as an error."""
    queue: Queue[bytes] = Queue(ctx.logbook, load.queue)
    await queue.create(shards=load.shards)
    seen = _Measured(load, time.perf_counter() + load.duration_s)
    consuming = asyncio.gather(*(seen.consume(queue) for _ in range(load.consumers)))
    await asyncio.gather(*(seen.produce(queue, number) for number in range(load.producers)))
    await consuming
    pushed = len(seen.pushes_s) * load.batch
    return QueueRound(
        len(seen.deliveries_s) - seen.late_count,
        pushed,
        seen.errors + abs(pushed - len(seen.deliveries_s)),
        load.duration_s,
        *_quantiles_ms(seen.pushes_s),
        *_quantiles_ms(seen.deliveries_s),
    )


class WakeLoad(msgspec.Struct, frozen=True):
    """How long after the acknowledgement of a push an idle consumer has the message: so many times."""

    queue: str
    count: int
    is_leased: bool = False


@function(book=BOOK, timeout_s=600)
async def wake_load(ctx: Context, load: WakeLoad) -> list[float]:
    """Milliseconds from the acknowledgement of each push until the consumer goes on; 0 if that was earlier."""
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
    """`push_many` of `batch` messages, so many calls in flight, and nobody takes them."""

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
    bodies = [bytes(load.size_bytes)] * load.batch
    pushes_s: list[float] = []
    started = time.perf_counter()
    end = started + load.duration_s

    async def push() -> None:
        while (before := time.perf_counter()) < end:
            await queue.push_many(bodies)
            pushes_s.append(time.perf_counter() - before)

    await asyncio.gather(*(push() for _ in range(load.inflight)))
    p50, p99 = _quantiles_ms(pushes_s)
    count = len(pushes_s) * load.batch
    return QueueRound(count, count, 0, time.perf_counter() - started, p50, p99, None, None)


async def _timed(work: Awaitable[object]) -> float:
    await work
    return time.perf_counter()


def _quantiles_ms(latencies_s: list[float]) -> tuple[float | None, float | None]:
    ordered = sorted(latencies_s)
    p50, p99 = quantile(ordered, 0.5), quantile(ordered, 0.99)
    return (None if p50 is None else round(p50 * 1e3, 3)), (None if p99 is None else round(p99 * 1e3, 3))
