"""The flow that `boki bench queue` measures, the same for every system: producers and consumers in one process.

As in the paper each message carries when it was sent. What is lost or comes twice counts as an error.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from itertools import cycle
from typing import Protocol

import msgspec

from boki import BokiError
from boki.bench.payloads import payloads
from boki.bench.rows import quantile

_DRAIN_S = 20.0
"""After the end, what was pushed has this long to come out."""
_POP_WAIT_S = 0.3
_STAMP_BYTES = 8


class Pipe(Protocol):
    """A queue of some system."""

    async def push(self, body: bytes) -> None:
        """Push a message: durable when this returns. `BokiError` if that is not so, or not known."""

    async def pop(self, wait_s: float) -> bytes | None:
        """Take the next message, waiting this long for one."""


class QueueLoad(msgspec.Struct, frozen=True):
    """`offered_per_s` 0: each producer pushes again as soon as its push is acknowledged."""

    queue: str
    producers: int
    consumers: int
    shards: int
    size_bytes: int
    duration_s: float
    offered_per_s: float = 0.0


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
    processor_us: float | None = None
    """Processor time of the whole system for one message, where it is known."""


@dataclass
class _Flow:
    """What producers and consumers have seen so far."""

    load: QueueLoad
    end: float
    pushes_s: list[float] = field(default_factory=list)
    deliveries_s: list[float] = field(default_factory=list)
    errors: int = 0
    late_count: int = 0

    async def produce(self, pipe: Pipe, number: int) -> None:
        """Push, at once or at the offered rate, until the end."""
        load = self.load
        fillings = cycle(payloads(max(0, load.size_bytes - _STAMP_BYTES)))
        pause_s = load.producers / load.offered_per_s if load.offered_per_s else 0.0
        due = time.perf_counter() + pause_s * number / load.producers
        while (began := time.perf_counter()) < self.end:
            if pause_s and began < due:
                await asyncio.sleep(due - began)
            due += pause_s
            began = time.perf_counter()
            try:
                await pipe.push(time.time_ns().to_bytes(_STAMP_BYTES, "little") + next(fillings))
            except BokiError:
                self.errors += 1
            else:
                self.pushes_s.append(time.perf_counter() - began)

    async def consume(self, pipe: Pipe) -> None:
        """Pop until the end, and then what is left."""
        while True:
            try:
                body = await pipe.pop(_POP_WAIT_S)
            except BokiError:
                self.errors += 1
                continue
            now = time.perf_counter()
            if body is None:
                left = len(self.pushes_s) - len(self.deliveries_s)
                if now >= self.end + (_DRAIN_S if left > 0 else 0.0):
                    return
                continue
            sent_ns = int.from_bytes(body[:_STAMP_BYTES], "little")
            self.deliveries_s.append((time.time_ns() - sent_ns) / 1e9)
            self.late_count += now > self.end


async def flow(load: QueueLoad, pipe: Pipe) -> QueueRound:
    """Push and pop for a while, then pop what is left."""
    seen = _Flow(load, time.perf_counter() + load.duration_s)
    consuming = asyncio.gather(*(seen.consume(pipe) for _ in range(load.consumers)))
    await asyncio.gather(*(seen.produce(pipe, number) for number in range(load.producers)))
    await consuming
    return QueueRound(
        len(seen.deliveries_s) - seen.late_count,
        len(seen.pushes_s),
        seen.errors + abs(len(seen.pushes_s) - len(seen.deliveries_s)),
        load.duration_s,
        *quantiles_ms(seen.pushes_s),
        *quantiles_ms(seen.deliveries_s),
    )


def quantiles_ms(latencies_s: list[float]) -> tuple[float | None, float | None]:
    """The p50 and p99 of latencies in seconds, in milliseconds."""
    ordered = sorted(latencies_s)
    p50, p99 = quantile(ordered, 0.5), quantile(ordered, 0.99)
    return (None if p50 is None else round(p50 * 1e3, 3)), (None if p99 is None else round(p99 * 1e3, 3))
