"""Queues of several shards: spread pushes, shards dealt to processes, and what happens when these come and go."""

from __future__ import annotations

import asyncio
from typing import Any

from boki.libs.bokiqueue import Queue
from boki.libs.bokiqueue.following import following
from boki.libs.bokiqueue.records import Act, decode
from boki.testing.memory_port import MemoryPort
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokiqueue.test_crashes import Process, drain, small_checkpoints


async def queue_of(port: MemoryPort, shards: int = 1) -> Queue[Any]:
    queue: Queue[Any] = Queue(Process(port).logbook(), "q")
    await queue.create(shards=shards)
    return queue


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def acts(queue: Queue[Any]) -> list[Act]:
    page = await queue.logbook.read("!q:q", limit=10_000)
    return [kind for record in page.records if isinstance(kind := decode(record.data), Act)]


@asynchronous
async def test_pushes_are_spread_and_each_shard_is_in_order() -> None:
    """Nothing is lost or doubled, and what went to one shard comes out in order."""
    port = MemoryPort()
    queue = await queue_of(port, 4)
    ids = [await queue.push(number) for number in range(40)]
    assert len(set(ids)) == 40
    found = []
    while some := await queue.pop_many(7):
        found += some
    assert sorted(message.value for message in found) == list(range(40))
    by_shard: dict[int, list[int]] = {}
    for message in found:
        by_shard.setdefault(message.shard, []).append(message.value)
    assert len(by_shard) == 4
    assert all(values == sorted(values) for values in by_shard.values())


@asynchronous
async def test_one_key_stays_in_one_shard_and_in_order() -> None:
    """Also when it is leased forever: on every shard all other keys flow."""
    port = MemoryPort()
    queue = await queue_of(port, 3)
    keys = [f"key-{number % 12}" for number in range(60)]
    await queue.push_many(range(60), group_keys=keys)
    stuck = {}
    flowing: list[Any] = []
    while some := await queue.lease_many(60, 10_000):
        for message in some:
            if message.shard in stuck:
                flowing.append(message)
                await queue.ack(message)
            else:
                stuck[message.shard] = message.group_key
    assert len(stuck) == 3
    by_key: dict[str, list[int]] = {}
    for message in flowing:
        by_key.setdefault(message.group_key, []).append(message.value)
    assert len(by_key) == 12 - 3
    assert all(values == sorted(values) and len(values) == 5 for values in by_key.values())


@asynchronous
async def test_processes_stand_in_different_shards() -> None:
    """Fewer consumers than shards: all processes are given messages, and when some end the others take over."""
    port = MemoryPort()
    first = await queue_of(port, 4)
    others = [Queue[Any](Process(port).logbook(), "q") for _ in range(2)]
    found: list[int] = []

    async def consume(queue: Queue[Any]) -> None:
        while (message := await queue.pop(wait_s=3600)) is not None:
            found.append(message.value)

    consumers = [asyncio.ensure_future(consume(queue)) for queue in (first, *others)]
    await turns(60)
    for number in range(40):
        await first.push(number)
        await turns(20)
    assert sorted(found) == list(range(40))
    assert len({act.taker for act in await acts(first)}) == 3
    consumers[1].cancel()
    consumers[2].cancel()
    await port.clock.advance(40)
    for number in range(40, 60):
        await first.push(number)
        await turns(20)
    assert sorted(found) == list(range(60))
    consumers[0].cancel()
    await asyncio.gather(*consumers, return_exceptions=True)


@asynchronous
async def test_many_shards_stay_small_and_lose_nothing_when_processes_begin_anew() -> None:
    """Checkpoints of each shard, and the feed that they share is trimmed, too."""
    with small_checkpoints(10):
        port = MemoryPort()
        queue = await queue_of(port, 3)
        for number in range(150):
            await queue.push(number)
            assert len(await queue.pop_many(2)) == 1
        await turns(200)
        fresh = await queue_of(port)
        assert await drain(fresh) == []
        await fresh.push("x")
        assert await drain(queue) == ["x"]
        page = await queue.logbook.read("!q:q:0", limit=10_000)
        assert len(page.records) < 40


def test_processes_share_one_fold_for_all_handles() -> None:
    """However many handles there are of a queue."""

    async def scenario() -> None:
        port = MemoryPort()
        process = Process(port)
        one = following(process.logbook(), "q", 1)
        assert following(process.logbook(), "q", 1) is one
        assert following(Process(port).logbook(), "q", 1) is not one

    asyncio.run(scenario())


@asynchronous
async def test_shards_of_those_who_left_do_not_lie_still() -> None:
    """Whoever has nothing else to take takes from them as soon as their messages have waited for a moment."""
    port = MemoryPort()
    first = await queue_of(port, 4)
    second: Queue[Any] = Queue(Process(port).logbook(), "q")
    consumers = [asyncio.ensure_future(queue.pop(wait_s=3600)) for queue in (first, second)]
    await turns(60)
    consumers[1].cancel()
    await asyncio.gather(consumers[1], return_exceptions=True)
    found: list[int] = []
    ages_s: list[float] = []

    async def consume() -> None:
        while (message := await first.pop(wait_s=3600)) is not None:
            found.append(message.value)
            ages_s.append(port.clock.time() - message.time / 1e6)

    consumers.append(asyncio.ensure_future(consume()))
    pusher = await queue_of(port)
    await pusher.push_many(range(40), group_keys=[f"key-{number}" for number in range(40)])
    await turns(60)
    await port.clock.advance(0.2)
    await turns(60)
    message = await consumers[0]
    assert message is not None
    assert sorted([message.value, *found]) == list(range(40))
    assert max(ages_s) < 1
    consumers[2].cancel()
    await asyncio.gather(*consumers, return_exceptions=True)
