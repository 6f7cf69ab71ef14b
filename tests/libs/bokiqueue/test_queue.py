"""Queues over the in-memory log: what producers and consumers see, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import boki.testing
from boki import MAX_SEQNUM, InvalidArgument, KeyReused, TooLarge, WrongType
from boki.libs.bokiqueue import LeaseLost, NoSuchGroup, NoSuchQueue, Queue, QueueFull, queue_names
from tests.libs.bokiqueue.running import asynchronous


class Order(msgspec.Struct, frozen=True):
    item: str
    count: int


async def drain(queue: Queue[Any]) -> list[Any]:
    found = []
    while (message := await queue.pop()) is not None:
        found.append(message.value)
    return found


@asynchronous
async def test_messages_come_out_in_the_order_in_which_they_were_pushed() -> None:
    """Each once, whatever they are."""
    async with boki.testing.context() as ctx:
        queue: Queue[Any] = Queue(ctx.logbook, "q")
        pushed = [b"bytes", "text", {"json": [1, None]}, 17, "", b"", None]
        first = await queue.push(pushed[0])
        ids = await queue.push_many(pushed[1:])
        assert len({first, *ids}) == len(pushed)
        message = await queue.pop()
        assert message is not None
        assert message.id == first
        assert [message.value, *await drain(queue)] == pushed
        assert await queue.pop() is None


@asynchronous
async def test_typed_queues_give_what_was_pushed() -> None:
    """And say so when a body is something else."""
    async with boki.testing.context() as ctx:
        queue = Queue(ctx.logbook, "q", type=Order)
        await queue.push(Order("tea", 2))
        await queue.push({"item": 3})
        message = await queue.pop()
        assert message is not None
        assert message.value == Order("tea", 2)
        message = await queue.pop()
        assert message is not None
        with pytest.raises(InvalidArgument, match="does not hold Order"):
            print(message.value)


@asynchronous
async def test_pop_many_takes_what_is_there() -> None:
    """Up to the count, in order, over the borders of pushes."""
    async with boki.testing.context() as ctx:
        queue: Queue[int] = Queue(ctx.logbook, "q")
        for start in range(0, 100, 10):
            await queue.push_many(range(start, start + 10))
        found = [await queue.pop_many(33) for _ in range(5)]
        assert [message.value for some in found for message in some] == list(range(100))
        assert [len(some) for some in found] == [33, 33, 33, 1, 0]


@asynchronous
async def test_waiting_consumers_are_woken_in_the_order_of_their_coming() -> None:
    """By the push itself: nobody polls, and who has waited long enough gets nothing."""
    async with boki.testing.context() as ctx:
        queue: Queue[int] = Queue(ctx.logbook, "q")
        await queue.create()
        waiting = [asyncio.ensure_future(queue.pop(wait_s=3600)) for _ in range(3)]
        impatient = asyncio.ensure_future(queue.pop(wait_s=5))
        before = ctx.clock.time()
        assert await impatient is None
        assert 4.9 < ctx.clock.time() - before < 6
        await queue.push_many([1, 2, 3])
        assert [message.value for message in await asyncio.gather(*waiting) if message] == [1, 2, 3]


@asynchronous
async def test_a_consumer_that_is_cancelled_swallows_nothing() -> None:
    """At whatever turn of the loop: every message is given to somebody, and those who waited for it continue."""
    for turns in range(40):
        async with boki.testing.context() as ctx:
            queue: Queue[int] = Queue(ctx.logbook, "q")
            await queue.create()
            first = asyncio.ensure_future(queue.pop(wait_s=60))
            second = asyncio.ensure_future(queue.pop(wait_s=60))
            pushing = asyncio.ensure_future(queue.push_many([1, 2, 3]))
            for _ in range(turns):
                await asyncio.sleep(0)
            first.cancel()
            got = list(await asyncio.gather(first, second, return_exceptions=True))
            await pushing
            values = [one.value for one in got if one is not None and not isinstance(one, BaseException)]
            assert sorted(values + await drain(queue)) == [1, 2, 3], turns


@asynchronous
async def test_a_pop_that_is_repeated_under_its_op_gets_the_same_message() -> None:
    """From another process too: here another way to the same log."""
    log = boki.testing.MemoryLog()
    async with boki.testing.context(log=log) as ctx:
        queue: Queue[int] = Queue(ctx.logbook, "q")
        await queue.push_many([1, 2])
        message = await queue.pop(op="mine")
        assert message is not None
    async with boki.testing.context(log=log) as ctx:
        queue = Queue(ctx.logbook, "q")
        for _ in range(2):
            again = await queue.pop(op="mine")
            assert again is not None
            assert (again.value, again.id) == (1, message.id)
        assert await drain(queue) == [2]
        assert await queue.pop(op="other") is None


@asynchronous
async def test_a_lease_that_runs_out_gives_the_message_to_others() -> None:
    """At the log's time; from then on an ack changes nothing."""
    async with boki.testing.context() as ctx:
        queue: Queue[int] = Queue(ctx.logbook, "q")
        await queue.push(1)
        first = await queue.lease(30)
        assert first is not None
        assert await queue.lease(30) is None
        await ctx.clock.advance(29.9)
        assert await queue.lease(30) is None
        await ctx.clock.advance(0.2)
        second = await queue.lease(30)
        assert second is not None
        assert (second.id, second.deliveries) == (first.id, 2)
        with pytest.raises(LeaseLost):
            await queue.ack(first)
        await queue.ack(second)
        with pytest.raises(LeaseLost):
            await queue.ack(second)
        await ctx.clock.advance(3600)
        assert await queue.lease(30) is None


@asynchronous
async def test_a_consumer_that_waits_is_woken_when_a_lease_runs_out() -> None:
    """And when a delayed message is due: neither is a record, so somebody must look at the time."""
    async with boki.testing.context() as ctx:
        queue: Queue[int] = Queue(ctx.logbook, "q")
        start = ctx.clock.time()
        await queue.push(1)
        await queue.push(2, delay_s=100)
        assert await queue.lease(30) is not None
        message = await queue.lease(1000, wait_s=3600)
        assert message is not None
        assert message.value == 1
        assert 30 <= ctx.clock.time() - start < 30.5
        message = await queue.lease(1000, wait_s=3600)
        assert message is not None
        assert message.value == 2
        assert 100 <= ctx.clock.time() - start < 100.5


@asynchronous
async def test_extended_nacked_and_released_messages() -> None:
    """Each does what its name says."""
    async with boki.testing.context() as ctx:
        queue: Queue[int] = Queue(ctx.logbook, "q")
        await queue.push(1)
        message = await queue.lease(30)
        assert message is not None
        await queue.extend(message, lease_s=100)
        await ctx.clock.advance(90)
        await queue.nack(message, delay_s=50, reason="not now")
        assert await queue.lease() is None
        await ctx.clock.advance(51)
        message = await queue.lease()
        assert message is not None
        assert message.deliveries == 2
        await queue.release(message)
        message = await queue.lease()
        assert message is not None
        assert message.deliveries == 2
        await queue.ack(message.receipt)
        assert await queue.lease() is None


@asynchronous
async def test_dead_letters_carry_the_reason_and_can_be_redriven() -> None:
    """After the deliveries that are allowed, or at once when a consumer gives up."""
    async with boki.testing.context() as ctx:
        queue: Queue[str] = Queue(ctx.logbook, "q")
        await queue.create(max_deliveries=2)
        await queue.push_many(["a", "b", "c"])
        for _ in range(2):
            message = await queue.lease()
            assert message is not None
            await queue.nack(message, reason="cannot")
        message = await queue.lease()
        assert message is not None
        await queue.bury(message, reason="will not")
        letters = await queue.dead_letters()
        assert [(one.data, one.reason) for one in letters] == [
            (b"a", "delivered 2 times; the last time: cannot"),
            (b"b", "will not"),
        ]
        assert await queue.redrive(letters[1].handle) == 1
        assert await queue.purge() == 1
        assert await drain(queue) == ["b", "c"]


@asynchronous
async def test_effects_commit_with_the_ack_or_not_at_all() -> None:
    """Pushes to other queues and records of the application, in one group with the ack."""
    async with boki.testing.context() as ctx:
        source: Queue[int] = Queue(ctx.logbook, "source")
        target: Queue[int] = Queue(ctx.logbook, "target")
        await target.create()
        await source.push_many([1, 2])
        message = await source.lease(30)
        assert message is not None
        async with source.process(message) as out:
            out.push(target, message.value * 10)
            out.append(b"audit", ["audit"])
        assert await drain(target) == [10]
        assert len((await ctx.logbook.read("audit")).records) == 1
        message = await source.lease(30)
        assert message is not None
        with pytest.raises(RuntimeError):
            async with source.process(message) as out:
                out.push(target, 99)
                raise RuntimeError("no")
        message = await source.lease(30)
        assert message is not None
        assert message.deliveries == 2
        with pytest.raises(LeaseLost):
            async with source.process(message) as out:
                out.push(target, 99)
                await ctx.clock.advance(31)
                assert await source.lease(30) is not None
        assert await drain(target) == []
        with pytest.raises(TooLarge):
            async with source.process(message) as out:
                for _ in range(5):
                    out.append(bytes(900_000))


@asynchronous
async def test_pushes_under_a_key_happen_once() -> None:
    """Within a day, and return the first id."""
    async with boki.testing.context() as ctx:
        queue: Queue[int] = Queue(ctx.logbook, "q")
        ids = [await queue.push(number, key="k") for number in range(3)]
        assert len(set(ids)) == 1
        assert await drain(queue) == [0]
        await ctx.clock.advance(25 * 3600)
        assert await queue.push(9, key="k") not in ids


@asynchronous
async def test_delayed_messages_come_after_a_year_and_old_ones_do_not_come_at_all() -> None:
    """By the log's time, to those who wait and those who ask; also after everything was restarted."""
    log = boki.testing.MemoryLog()
    async with boki.testing.context(log=log) as ctx:
        queue: Queue[str] = Queue(ctx.logbook, "q")
        await queue.push("in a year", delay_s=365 * 24 * 3600)
        await queue.push("soon gone", ttl_s=10)
        await queue.push("now")
        await ctx.clock.advance(11)
        assert await drain(queue) == ["now"]
        now_us = ctx.clock.now_us
    async with boki.testing.context(log=log) as ctx:
        ctx.clock.now_us = now_us
        queue = Queue(ctx.logbook, "q")
        await ctx.clock.advance(364 * 24 * 3600)
        assert await queue.pop() is None
        await ctx.clock.advance(24 * 3600)
        assert await drain(queue) == ["in a year"]


@asynchronous
async def test_a_full_queue_holds_its_producers_back() -> None:
    """They wait until somebody takes, or are refused; nothing is lost and nothing grows."""
    async with boki.testing.context() as ctx:
        queue: Queue[int] = Queue(ctx.logbook, "q")
        await queue.create(max_length=3)
        for number in range(3):
            await queue.push(number)
        with pytest.raises(QueueFull):
            await queue.push(3)
        with pytest.raises(QueueFull):
            await queue.push(3, wait_s=5)
        waiting = asyncio.ensure_future(queue.push(3, wait_s=60))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        message = await queue.pop()
        assert message is not None
        await waiting
        assert await drain(queue) == [1, 2, 3]
        await queue.configure(max_length=0)
        other: Queue[int] = Queue(ctx.logbook, "q")
        for number in range(9):
            await other.push(number)


@asynchronous
async def test_every_group_sees_every_message() -> None:
    """From its start on: the earliest that is kept, now, a seqnum or a time; and replay begins again."""
    async with boki.testing.context() as ctx:
        queue: Queue[int] = Queue(ctx.logbook, "q")
        await queue.create(retain_s=1000)
        seqnum = int((await queue.push(1)).partition("-")[0])
        await queue.create_group("all")
        await queue.create_group("late", start="now")
        await ctx.clock.advance(10)
        middle = ctx.clock.time()
        await queue.push(2)
        await queue.create_group("after", start=seqnum + 1)
        await queue.create_group("timed", start_time_s=middle)
        groups = {name: Queue(ctx.logbook, "q", group=name) for name in ("all", "late", "after", "timed")}
        found = {name: await drain(handle) for name, handle in groups.items()}
        assert found == {"all": [1, 2], "late": [2], "after": [2], "timed": [2]}
        await groups["late"].replay()
        assert await drain(groups["late"]) == [1, 2]
        await queue.drop_group("all")
        with pytest.raises(NoSuchGroup):
            await groups["all"].pop()


@asynchronous
async def test_one_key_is_taken_in_order_and_one_at_a_time() -> None:
    """Whichever consumers there are; other keys flow."""
    async with boki.testing.context() as ctx:
        queue: Queue[int] = Queue(ctx.logbook, "q")
        await queue.push_many(range(6), group_keys=["a", "b", "a", "b", "a", "b"])
        first, second = await queue.lease_many(6)
        assert (first.value, second.value, first.group_key) == (0, 1, "a")
        await queue.ack(second)
        (third,) = await queue.lease_many(6)
        assert third.value == 3
        await queue.ack(first)
        (fourth,) = await queue.lease_many(6)
        assert fourth.value == 2


@asynchronous
async def test_figures_and_looks_change_nothing() -> None:
    """`stats` and `peek` tell what exists."""
    async with boki.testing.context() as ctx:
        queue: Queue[int] = Queue(ctx.logbook, "q")
        await queue.push_many(range(5))
        await ctx.clock.advance(7)
        await queue.push(5, delay_s=100)
        assert await queue.lease(60) is not None
        assert await queue.pop() is not None
        assert [message.value for message in await queue.peek(2)] == [2, 3]
        stats = await queue.stats()
        assert (stats.pushed, stats.depth) == (6, 5)
        (group,) = stats.groups
        assert (group.depth, group.in_flight, group.done, group.oldest_age_s) == (5, 1, 1, 7.0)
        assert await queue_names(ctx.logbook) == ["q"]


@asynchronous
async def test_what_cannot_be_is_refused_and_changes_nothing() -> None:
    """Each refusal names the thing, and comes before anything is written."""
    async with boki.testing.context() as ctx:
        queue: Queue[Any] = Queue(ctx.logbook, "q")
        for refused in (queue.pop(), queue.stats(), queue.configure(), queue.lease(wait_s=1), queue.peek()):
            with pytest.raises(NoSuchQueue):
                await refused
        for name in ("", "a b", "x" * 101, "q:1", None):
            with pytest.raises(InvalidArgument):
                Queue(ctx.logbook, name)  # type: ignore[arg-type]
        await queue.create()
        tail = await ctx.logbook.check_tail()
        refusals: list[tuple[Any, type[Exception]]] = [
            (queue.push(b"x", delay_s=-1), InvalidArgument),
            (queue.push(b"x", delay_s=400 * 24 * 3600), InvalidArgument),
            (queue.push(b"x", ttl_s=float("nan")), InvalidArgument),
            (queue.push(bytes(2_000_000)), TooLarge),
            (queue.push(object()), WrongType),
            (queue.push(b"x", key=""), InvalidArgument),
            (queue.push(b"x", group_key="\x00"), InvalidArgument),
            (queue.push_many([]), InvalidArgument),
            (queue.push_many("text"), WrongType),
            (queue.push_many([1, 2], group_keys=["a"]), InvalidArgument),
            (queue.pop_many(0), InvalidArgument),
            (queue.pop(wait_s=-1), InvalidArgument),
            (queue.lease(0), InvalidArgument),
            (queue.ack("nonsense"), InvalidArgument),
            (queue.ack("5-1-1"), InvalidArgument),
            (queue.ack(b"x"), WrongType),  # type: ignore[arg-type]
            (Queue(ctx.logbook, "q", group="nobody").pop(), NoSuchGroup),
            (queue.drop_group("nobody"), NoSuchGroup),
            (queue.create_group("g", start="then"), InvalidArgument),
            (queue.create_group("g", start=MAX_SEQNUM + 1), InvalidArgument),
            (queue.create(shards=0), InvalidArgument),
            (queue.create(shards=4), InvalidArgument),
            (queue.configure(max_deliveries=-1), InvalidArgument),
        ]
        for refused, error in refusals:
            with pytest.raises(error):
                await refused
        assert await ctx.logbook.check_tail() == tail
        with pytest.raises(LeaseLost):
            await queue.ack("0-1-1")


@asynchronous
async def test_a_maximal_length_counts_what_is_pushed_and_what_lives() -> None:
    """Batches count as a whole, those who push at the same time know of each other, and what has expired is gone."""
    async with boki.testing.context() as ctx:
        queue: Queue[int] = Queue(ctx.logbook, "q")
        await queue.create(max_length=10)
        with pytest.raises(TooLarge, match="never fit"):
            await queue.push_many(range(11))
        outcomes = await asyncio.gather(*(queue.push(number, ttl_s=5) for number in range(50)), return_exceptions=True)
        assert sum(isinstance(one, QueueFull) for one in outcomes) == 40
        assert (await queue.stats()).depth == 10
        with pytest.raises(QueueFull):
            await queue.push_many([1, 2])
        await queue.push_many(range(9), wait_s=6)
        with pytest.raises(QueueFull):
            await queue.push_many([1, 2])
        await queue.push(9)
        assert await drain(queue) == list(range(10))


@asynchronous
async def test_a_key_is_for_one_number_of_messages() -> None:
    """For another one it is refused; ids of messages that never were are not given out."""
    async with boki.testing.context() as ctx:
        queue: Queue[Any] = Queue(ctx.logbook, "q")
        await queue.push("a", key="k")
        for bodies in ([1, 2, 3], [bytes(900_000)] * 3):
            with pytest.raises(KeyReused, match="'k'"):
                await queue.push_many(bodies, key="k")
        ids = await queue.push_many([1, 2], key="two")
        assert await queue.push_many([1, 2], key="two") == ids
        assert await drain(queue) == ["a", 1, 2]


@asynchronous
async def test_a_key_of_many_messages_is_not_for_one() -> None:
    """Which is told without a read: one message is one record, and several are several. Their ids stay the same."""
    async with boki.testing.context() as ctx:
        queue: Queue[Any] = Queue(ctx.logbook, "q")
        batches = {"two": [1, b"2"], "three": ["a", "b", 3], "large": [bytes(900_000)] * 3}
        for key, bodies in batches.items():
            keys = [""] * (len(bodies) - 1) + ["last"]
            ids = await queue.push_many(bodies, key=key, group_keys=keys)
            assert len(set(ids)) == len(bodies)
            with pytest.raises(KeyReused, match="key of its own"):
                await queue.push("other", key=key)
            with pytest.raises(KeyReused):
                await queue.push_many(["other"] * (len(bodies) + 1), key=key)
            assert await queue.push_many(bodies, key=key, group_keys=keys) == ids
            taken = await queue.pop_many(len(bodies))
            assert [(message.id, message.value) for message in taken] == list(zip(ids, bodies, strict=True))
        assert await queue.pop() is None


@asynchronous
async def test_a_push_of_too_many_bytes_is_told_in_the_words_of_who_pushes() -> None:
    """Which call, how many bytes there may be, and what to do; nothing is pushed, with a key or without."""
    async with boki.testing.context() as ctx:
        queue: Queue[bytes] = Queue(ctx.logbook, "q")
        for key in (None, "k"):
            with pytest.raises(TooLarge, match="one push_many may have at most 4,194,304 bytes") as error:
                await queue.push_many([bytes(900_000)] * 5, key=key)
            assert error.value.details == {"field": "bodies", "limit": 4_194_304}
        assert (await queue.stats()).pushed == 0


@asynchronous
async def test_pushes_of_one_turn_share_a_record_and_nothing_else() -> None:
    """Each has its id, its form and its group key; a large one has a record of its own."""
    async with boki.testing.context() as ctx:
        queue: Queue[Any] = Queue(ctx.logbook, "q")
        await queue.create()
        pushes = [queue.push(body, group_key=key) for body, key in (("text", ""), (b"bytes", "k"), ({"n": 1}, ""))]
        large = queue.push(bytes(100_000))
        *ids, other = await asyncio.gather(*pushes, large)
        assert {one.split("-")[0] for one in ids} == {ids[0].split("-")[0]} != {other.split("-")[0]}
        messages = {one.id: (one.value, one.group_key) for one in await queue.lease_many(10, wait_s=1)}
        assert [messages[one] for one in ids] == [("text", ""), (b"bytes", "k"), ({"n": 1}, "")]
        assert other in messages
