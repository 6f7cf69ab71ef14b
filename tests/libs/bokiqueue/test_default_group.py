"""The default group is made by its first take, as `create_group` makes others: it is given every message, too."""

from __future__ import annotations

import asyncio
from zlib import crc32

from boki.libs.bokiqueue import Queue
from boki.libs.bokiqueue.following import queues_of
from boki.libs.bokiqueue.records import OpenGroup, decode
from boki.testing.memory_port import MemoryPort
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokiqueue.test_crashes import Process, drain


@asynchronous
async def test_who_waits_before_the_first_push_is_given_it_whichever_group_it_is_of() -> None:
    """Another group may take the message first: both had begun to wait before it was pushed."""
    for order in (1, -1):
        for shards in (1, 3):
            port = MemoryPort()
            queue: Queue[str] = Queue(Process(port).logbook(), "q")
            await queue.create(shards=shards)
            await queue.create_group("g")
            handles = [Queue[str](Process(port).logbook(), "q", group=group) for group in ("g", "")]
            takes = [asyncio.ensure_future(handle.pop(wait_s=1000)) for handle in handles[::order]]
            for _ in range(60):
                await asyncio.sleep(0)
            await queue.push("first")
            taken = await asyncio.wait_for(asyncio.gather(*takes), 20)
            assert [message and message.value for message in taken] == ["first", "first"], (order, shards)


@asynchronous
async def test_the_default_group_begins_in_all_shards_at_once() -> None:
    """Also in those that its first take did not ask: what is pushed there later, and done by others, is given to it."""
    port = MemoryPort()
    queue: Queue[str] = Queue(Process(port).logbook(), "q")
    await queue.create(shards=2)
    await queue.create_group("g")
    keys = {crc32(key.encode()) % 2: key for key in map(str, range(20))}
    await queue.push("one", group_key=keys[0])
    first = await queue.pop()
    assert first is not None
    assert first.value == "one"
    await queue.push("two", group_key=keys[1])
    assert sorted(await drain(Queue(queue.logbook, "q", group="g"))) == ["one", "two"]
    assert await drain(queue) == ["two"]


@asynchronous
async def test_a_default_group_that_comes_late_is_given_what_others_are() -> None:
    """What is kept, and what is still delayed: the same as a group that is made by name."""
    port = MemoryPort()
    queue: Queue[int | str] = Queue(Process(port).logbook(), "q")
    await queue.create(retain_s=3600)
    await queue.create_group("first")
    await queue.push_many([1, 2])
    await queue.push("later", delay_s=60)
    groups = [Queue[int | str](Process(port).logbook(), "q", group=group) for group in ("first", "", "named")]
    assert await drain(groups[0]) == [1, 2]
    assert await drain(groups[1]) == [1, 2]
    await queue.create_group("named")
    assert await drain(groups[2]) == [1, 2]
    await port.clock.advance(61)
    assert [await drain(group) for group in groups] == [["later"]] * 3


@asynchronous
async def test_the_default_group_is_made_once() -> None:
    """Takes of a group that is there append nothing but themselves, and one that is made twice continues as it was."""
    port = MemoryPort()
    queues = [Queue[int](Process(port).logbook(), "q") for _ in range(3)]
    await queues[0].create()
    await asyncio.gather(*(queue.pop_many(3) for queue in queues))
    await queues[0].push_many([1, 2, 3])
    assert [message.value for message in await queues[1].pop_many(2)] == [1, 2]
    for queue in queues:
        await queue.stats()
    before = await queues[0].logbook.check_tail()
    assert await drain(queues[2]) == [3]
    assert await drain(queues[0]) == []
    page = await queues[0].logbook.read("!q:q:0", start=0 if before is None else before.seqnum + 1)
    assert len(page.records) == 1
    for queue in queues:
        followed = queues_of(queue.logbook).find("test", "q", 0.0)
        assert followed is not None
        await queue.stats()
        assert followed.lines[0].state.groups[""].cursor == 3


@asynchronous
async def test_takes_that_begin_together_make_the_default_group_once() -> None:
    """Of one process: sixty consumers who start at once append no more than the first of them."""
    queue: Queue[int] = Queue(Process(MemoryPort()).logbook(), "q")
    await queue.create(shards=8)
    before = await queue.logbook.check_tail()
    assert before is not None
    takes = [asyncio.ensure_future(queue.pop(wait_s=1)) for _ in range(60)]
    await queue.push_many(list(range(60)))
    taken = await asyncio.gather(*takes)
    assert sorted(message.value for message in taken if message is not None) == list(range(60))
    kinds = [decode(record.data) for record in (await queue.logbook.read(start=before.next_seqnum)).records]
    assert [kind.shard for kind in kinds if isinstance(kind, OpenGroup)] == list(range(8))
