"""Bodies that a process keeps: one budget for all queues, and nothing for what nobody will take."""

from __future__ import annotations

import asyncio

import boki.testing
from boki.libs.bokiqueue import Queue
from boki.libs.bokiqueue.following import following, queues_of
from boki.libs.fold.registry import IDLE_S
from tests.libs.bokiqueue.running import asynchronous

KB = 1_000


async def filled(ctx: boki.testing.Context, name: str, count: int, ttl_s: float = 0) -> Queue[bytes]:
    """A queue that this process follows, with this many messages of 1 kB."""
    queue: Queue[bytes] = Queue(ctx.logbook, name)
    await queue.create()
    await queue.pop()
    for _ in range(count):
        await queue.push(b"x" * KB, ttl_s=ttl_s)
    await queue.stats()
    return queue


@asynchronous
async def test_queues_that_were_emptied_keep_nothing() -> None:
    """What was taken goes with the next page that is read."""
    async with boki.testing.context() as ctx:
        store = queues_of(ctx.logbook).bodies
        for name in ("a", "b", "c"):
            queue = await filled(ctx, name, 50)
            assert store.kept_bytes >= 50 * KB
            assert len(await queue.pop_many(100)) == 50
            await queue.push("one more")
            assert await queue.pop() is not None
        assert store.kept_bytes < KB


@asynchronous
async def test_what_expires_or_belongs_to_a_group_that_is_no_more_is_not_kept() -> None:
    """The cursors have passed it: nobody will take it."""
    async with boki.testing.context() as ctx:
        store = queues_of(ctx.logbook).bodies
        queue = await filled(ctx, "expiring", 50, ttl_s=1)
        await ctx.clock.advance(5)
        for _ in range(2):
            await queue.push("one more")
            assert await queue.pop() is not None
        assert store.kept_bytes < KB
        await queue.create_group("slow")
        for _ in range(50):
            await queue.push(b"x" * KB)
        await queue.pop_many(100)
        assert store.kept_bytes >= 50 * KB
        await queue.drop_group("slow")
        await queue.push("one more")
        assert await queue.pop() is not None
        assert store.kept_bytes < KB


@asynchronous
async def test_queues_share_one_budget_and_the_longest_gives_way() -> None:
    """A queue that came first does not keep others from keeping theirs; and all comes out as it was pushed."""
    async with boki.testing.context() as ctx:
        way = queues_of(ctx.logbook)
        way.bodies.budget_bytes = 40 * KB
        long = await filled(ctx, "long", 100)
        short = await filled(ctx, "short", 10)
        own = following(ctx.logbook, "short", 1).bodies
        assert own.kept_bytes >= 10 * KB
        assert way.bodies.kept_bytes <= 40 * KB
        for queue, count in ((long, 100), (short, 10)):
            assert [message.data for message in await queue.pop_many(200)] == [b"x" * KB] * count


@asynchronous
async def test_messages_that_come_back_are_kept_until_they_are_taken() -> None:
    """Those behind their key: every group's cursor has passed them."""
    async with boki.testing.context() as ctx:
        store = queues_of(ctx.logbook).bodies
        queue: Queue[bytes] = Queue(ctx.logbook, "q")
        for number in range(5):
            await queue.push(bytes([number]) * KB, group_key="k")
        for number in range(5):
            message = await queue.lease()
            assert message is not None
            assert message.data == bytes([number]) * KB
            assert store.kept_bytes >= (4 - number) * KB
            await queue.ack(message)
        await queue.push("one more")
        assert await queue.pop() is not None
        assert store.kept_bytes < KB


@asynchronous
async def test_a_queue_that_nobody_uses_is_followed_no_more() -> None:
    """When another one is followed some minutes later; one in use stays."""
    async with boki.testing.context() as ctx:
        way = queues_of(ctx.logbook)
        for name in ("a", "b"):
            await filled(ctx, name, 1)
        kept = following(ctx.logbook, "b", 1)
        later_s = asyncio.get_running_loop().time() + IDLE_S
        way.find("test", "b", later_s)
        way.put("test", "c", following(ctx.logbook, "c", 1), later_s + IDLE_S / 2)
        assert way.find("test", "a", 0.0) is None
        assert following(ctx.logbook, "b", 1) is kept
        assert following(ctx.logbook, "a", 1).bodies.kept_bytes == 0
