"""Random histories: processes die, are cancelled, lose answers, and are overtaken by checkpoints and by time."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest

from boki import BokiError
from boki.libs.bokiqueue import LeaseLost, Queue
from boki.testing.memory_port import MemoryPort
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokiqueue.test_crashes import Process, Shaky, small_checkpoints

LEASE_S = 20.0


class History:
    """One seed: producers push numbers, consumers move them on with effects, and all kinds of things happen to them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.port = MemoryPort()
        self.shards = self.random.choice([1, 1, 3])
        self.pushed: set[int] = set()
        self.uncertain: set[int] = set()

    def process(self) -> Process:
        kind = self.random.choice([Process, Process, Shaky])
        fuel = self.random.choice([None, self.random.randint(5, 60)])
        return kind(self.port, fuel)

    async def produce(self, first: int) -> None:
        queue: Queue[int] = Queue(self.process().logbook(), "source")
        value = first
        while value < first + 30:
            count = self.random.randint(1, 5)
            values = range(value, value + count)
            value += count
            delay_s = self.random.choice([0, 0, 5])
            keys = [f"{one % 3}" for one in values] if self.random.random() < 0.3 else []
            try:
                await queue.push_many(values, delay_s=delay_s, group_keys=keys, key=f"{first}-{value}")
            except BokiError as error:
                (self.uncertain if error.outcome == "unknown" else set()).update(values)
                queue = Queue(self.process().logbook(), "source")
            else:
                self.pushed.update(values)

    async def consume(self) -> None:
        """Until nothing has come for a while; a process that dies is followed by another one."""
        while True:
            book = self.process().logbook()
            source: Queue[int] = Queue(book, "source")
            target: Queue[int] = Queue(book, "target")
            try:
                await target.create()
                if await self._move(source, target):
                    return
            except BokiError:
                continue

    async def _move(self, source: Queue[int], target: Queue[int]) -> bool:
        while some := await source.lease_many(self.random.randint(1, 4), LEASE_S, wait_s=3 * LEASE_S):
            for message in some:
                step = self.random.random()
                try:
                    if step < 0.1:
                        await source.nack(message, delay_s=self.random.choice([0, 3]))
                    elif step < 0.15:
                        await source.release(message)
                    elif step < 0.2:
                        await source.logbook.read_next("nothing", wait_s=LEASE_S * self.random.random() * 2)
                    elif step < 0.25:
                        return False  # it forgets what it has, and begins again
                    else:
                        async with source.process(message) as out:
                            out.push(target, message.value)
                except LeaseLost:
                    continue
        return True

    async def nuisance(self) -> None:
        """Consumers that are cancelled at any moment."""
        for _ in range(6):
            source: Queue[int] = Queue(self.process().logbook(), "source")
            taking = asyncio.ensure_future(source.lease_many(2, LEASE_S, wait_s=30))
            for _ in range(self.random.randint(0, 60)):
                await asyncio.sleep(0)
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)

    async def run(self) -> None:
        queue: Queue[int] = Queue(Process(self.port).logbook(), "source")
        await queue.create(shards=self.shards, max_deliveries=0)
        target: Queue[int] = Queue(queue.logbook, "target")
        await target.create()
        await asyncio.gather(
            *(self.produce(first) for first in (0, 1_000)), *(self.consume() for _ in range(3)), self.nuisance()
        )
        await self.consume()
        await self.check(queue, target)

    async def check(self, source: Queue[int], target: Queue[int]) -> None:
        arrived: Counter[int] = Counter()
        while some := await target.pop_many(1_000):
            arrived.update(message.value for message in some)
        assert not [value for value, times in arrived.items() if times > 1]
        assert self.pushed <= set(arrived) <= self.pushed | self.uncertain
        fresh: Queue[Any] = Queue(Process(self.port).logbook(), "source")
        ours, theirs = await source.stats(), await fresh.stats()
        assert ours.groups[0].done == theirs.groups[0].done == sum(arrived.values())
        assert (ours.depth, theirs.depth) == (0, 0)


@pytest.mark.parametrize("seed", range(4, 12))
@asynchronous
async def test_what_was_pushed_arrives_once_whatever_happens(seed: int) -> None:
    """Every acknowledged push takes effect exactly once, none is stuck, and a new process sees the same queue."""
    with small_checkpoints(Random(seed).choice([4, 15, 100])):
        await History(seed).run()
