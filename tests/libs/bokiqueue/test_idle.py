"""Consumers that wait: what they are woken for they take, and while nothing comes they ask for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from boki.libs.bokiqueue import Message, NoSuchGroup, NoSuchQueue, Queue, lines, sessions
from boki.libs.bokiqueue.following import following
from boki.log.operations import Books, ListBooks
from boki.testing.memory_port import MemoryPort
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokiqueue.test_crashes import Process
from tests.libs.bokiqueue.test_shards import queue_of, turns

Waiting = asyncio.Task[Message[Any] | None]


class Counting(Process):
    """A process that counts its requests."""

    requests = 0

    async def request(self, operation: Any, positions: Any, timeout_s: float) -> Any:
        self.requests += 1
        return await super().request(operation, positions, timeout_s)

    def queue(self) -> Queue[Any]:
        return Queue(self.logbook(), "q")


def waits(queue: Queue[Any], lease_s: float = 3_600, op: str | None = None) -> Waiting:
    return asyncio.ensure_future(queue.lease(lease_s, wait_s=3_600, op=op))


async def end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("shards", [1, 2])
@asynchronous
async def test_a_lease_of_a_consumer_that_died_is_given_to_another_wherever_that_stands(shards: int) -> None:
    """Each of two processes stands in a shard of its own: the one that is left takes from the other shard, too."""
    port = MemoryPort()
    producer = await queue_of(port, shards)
    lives, dies = Counting(port), Counting(port)
    left = waits(lives.queue())
    await turns(40)
    lost = waits(dies.queue())
    await turns(40)
    while not lost.done():
        await producer.push("m")
        await turns(40)
        if left.done() and (message := left.result()) is not None:
            await lives.queue().ack(message)
            left = waits(lives.queue())
            await turns(40)
    dies.fuel = 0
    assert not left.done()
    await port.clock.advance(5.1)
    message = await asyncio.wait_for(left, 1)
    assert message is not None
    assert lost.result() is not None
    assert message.deliveries == 1
    await end(left, lost)


@asynchronous
async def test_a_lease_of_a_consumer_that_died_is_given_to_one_that_waits_under_an_op() -> None:
    """It waits without credit: it must ask when that consumer may be gone, and not only read."""
    port = MemoryPort()
    producer = await queue_of(port)
    dies, lives = Counting(port), Counting(port)
    lost = waits(dies.queue())
    await turns(40)
    await producer.push("m")
    assert await lost is not None
    dies.fuel = 0
    taking = waits(lives.queue(), op="op")
    await turns(40)
    before = lives.requests
    await port.clock.advance(5.1)
    message = await asyncio.wait_for(taking, 1)
    assert message is not None
    assert message.deliveries == 1
    assert lives.requests - before < 20


@asynchronous
async def test_a_consumer_of_several_shards_rests_however_long_nothing_comes() -> None:
    """It has taken from a shard where it does not stand. What it had there is not renewed, and must not wake it."""
    port = MemoryPort()
    producer = await queue_of(port, 2)
    process = Counting(port)

    async def consume() -> None:
        while message := await process.queue().lease(60, wait_s=3_600):
            await process.queue().ack(message)

    consuming = asyncio.ensure_future(consume())
    await turns(40)
    for number in range(4):
        await producer.push(number)
        await turns(40)
    lines = following(process.logbook(), "q", 2).lines
    assert [len(line.state.standing) for line in lines] == [1, 1]
    for idle_s in (10, 320, 2_000):
        await port.clock.advance(idle_s)
        before = process.requests
        await port.clock.advance(0.2)
        assert process.requests - before < 3, idle_s
    await end(consuming)


@asynchronous
async def test_a_consumer_that_leases_for_another_time_at_each_call_keeps_few_standing_takes() -> None:
    """Each length is a take of its own, and lasts as long as its process acts: the shard would be full of them."""
    port = MemoryPort()
    producer = await queue_of(port)
    process = Counting(port)
    shared = following(process.logbook(), "q", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "MAX_UNUSED", 5)
        for number in range(20):
            waiting = waits(process.queue(), 60 + number)
            await turns(40)
            await producer.push(number)
            message = await asyncio.wait_for(waiting, 1)
            assert message is not None
            assert message.value == number
            await process.queue().ack(message)
    assert len(shared.lines[0].state.standing) <= 6
    await port.clock.advance(1)
    assert len(shared.wants.waiting) <= 1
    assert len(shared.wants._taken) < 20


@asynchronous
async def test_consumers_are_served_though_no_more_may_stand_in_the_shard() -> None:
    """They see it when they come, or when others were quicker, and ask: acts do not repeat what is refused."""
    port = MemoryPort()
    producer = await queue_of(port)
    process = Counting(port)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "MAX_STANDING", 2)
        waiting = [waits(process.queue(), 60 + number) for number in range(4)]
        await turns(40)
        waiting.append(waits(process.queue(), 70))
        await turns(40)
        before = len((await producer.logbook.read("!q:q:0")).records)
        for number in range(5):
            await producer.push(number)
            await turns(40)
        found = [message.value for message in await asyncio.gather(*waiting) if message is not None]
        assert sorted(found) == list(range(5))
        assert len((await producer.logbook.read("!q:q:0")).records) - before < 25


async def books(port: MemoryPort) -> list[str]:
    found = port.log.answer(ListBooks("", "", 10), port.clock.now_us)
    return [book.name for book in found.books] if isinstance(found, Books) else []


@pytest.mark.parametrize("shards", [1, 2])
@asynchronous
async def test_a_consumer_that_waits_does_not_bring_a_deleted_book_back(shards: int) -> None:
    """It follows the queue when that is made again, however long after: until then it appends and asks for nothing."""
    port = MemoryPort()
    producer = await queue_of(port, shards)
    process = Counting(port)
    waiting = asyncio.ensure_future(process.queue().pop(wait_s=36_000))
    await turns(40)
    await producer.logbook.delete()
    for idle_s in (1, 320, 2_000):
        await port.clock.advance(idle_s)
        assert await books(port) == []
    before = process.requests
    await port.clock.advance(2)
    assert process.requests - before < 3
    await producer.push("again")
    message = await asyncio.wait_for(waiting, 1)
    assert message is not None
    assert message.value == "again"


@pytest.mark.parametrize(
    "call",
    [
        lambda queue, _: queue.pop(),
        lambda queue, _: queue.lease(),
        lambda queue, _: queue.pop(wait_s=5, op="op"),
        lambda queue, message: queue.ack(message),
        lambda queue, _: queue.create_group("g"),
        lambda queue, _: queue.replay(),
    ],
)
@asynchronous
async def test_no_call_but_a_push_brings_a_deleted_book_back(call: Callable[[Queue[Any], Any], Awaitable[Any]]) -> None:
    """Also in the second for which a handle trusts what it knows of the queue."""
    port = MemoryPort()
    queue = await queue_of(port)
    await queue.push_many(["a", "b"])
    message = await queue.lease()
    await queue.logbook.delete()
    with pytest.raises((NoSuchQueue, NoSuchGroup)):
        await call(queue, message)
    assert await books(port) == []
