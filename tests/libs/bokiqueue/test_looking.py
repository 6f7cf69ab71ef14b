"""Looking into a queue: what comes next, dead letters, and groups that are not there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import boki.testing
from boki import LogBook, NotFound
from boki.libs.bokiqueue import NoSuchGroup, Queue
from boki.libs.bokiqueue.callers import Bodies
from boki.libs.bokiqueue.groups import TAKE_BYTES
from tests.libs.bokiqueue.running import asynchronous


@asynchronous
async def test_peeking_shows_what_a_take_would_find_now() -> None:
    """Not what is delayed, has expired, or stands behind a message of its key that somebody has."""
    async with boki.testing.context() as ctx:
        queue: Queue[Any] = Queue(ctx.logbook, "q")
        await queue.push("in a year", delay_s=365 * 86_400)
        await queue.push("gone", ttl_s=1)
        await queue.push("soon", delay_s=2)
        await ctx.clock.advance(1.5)
        for text in ("first of k", "second of k"):
            await queue.push(text, group_key="k")
        assert [one.value for one in await queue.peek()] == ["first of k", "second of k"]
        leased = await queue.lease(60)
        await queue.push("third of k", group_key="k")
        await queue.push("free")
        assert leased is not None
        assert leased.value == "first of k"
        assert [one.value for one in await queue.peek()] == ["free"]
        await ctx.clock.advance(1)
        await queue.push("last")
        assert [one.value for one in await queue.peek()] == ["soon", "free", "last"]
        assert [one.value for one in await queue.peek(2)] == ["soon", "free"]
        await queue.ack(leased)
        peeked = [one.value for one in await queue.peek()]
        assert peeked == ["soon", "second of k", "third of k", "free", "last"]
        assert [one.value for one in await queue.pop_many(9)] == peeked


@asynchronous
async def test_a_group_that_is_not_there_has_nothing_to_show_or_to_drop() -> None:
    """It is said, and not taken for an empty one."""
    async with boki.testing.context() as ctx:
        await Queue(ctx.logbook, "q").push(1)
        await Queue(ctx.logbook, "q").peek()  # the default group is made by its first take
        queue: Queue[Any] = Queue(ctx.logbook, "q", group="wrong")
        for refused in (queue.peek(), queue.dead_letters(), queue.redrive(), queue.purge(), queue.ack("0-0-1")):
            with pytest.raises(NoSuchGroup, match=r"'wrong'.*`boki queue replay BOOK q --group wrong`"):
                await refused


@asynchronous
async def test_what_is_shown_at_once_is_bounded_by_bytes() -> None:
    """However many are asked for."""
    async with boki.testing.context() as ctx:
        queue: Queue[bytes] = Queue(ctx.logbook, "q")
        for _ in range(20):
            await queue.push(bytes(1_000_000))
        assert len(await queue.peek(1_000)) == TAKE_BYTES // 1_000_000
        for _ in range(20):
            message = await queue.lease()
            assert message is not None
            await queue.bury(message, reason="no")
        assert len(await queue.dead_letters(10_000)) == TAKE_BYTES // 1_000_000


@asynchronous
async def test_what_is_taken_at_once_is_bounded_by_bytes() -> None:
    """Permanently, under an op or a lease; what does not fit is there for the next take."""
    async with boki.testing.context() as ctx:
        queue: Queue[bytes] = Queue(ctx.logbook, "q")
        for number in range(50):
            await queue.push(bytes([number]) * 1_000_000)
        most = TAKE_BYTES // 1_000_000 + 1
        first = await queue.pop_many(1_000, op="mine")
        again = await queue.pop_many(1_000, op="mine")
        second = await queue.pop_many(1_000)
        third = await queue.lease_many(1_000)
        assert [one.id for one in first] == [one.id for one in again]
        assert [len(first), len(second), len(third)] == [most, most, 50 - 2 * most]
        assert [one.data[0] for one in (*first, *second, *third)] == list(range(50))


async def bury_some(queue: Queue[Any], count: int) -> list[str]:
    """This many dead letters, by their handles."""
    await queue.push_many(range(count))
    await queue.bury(*await queue.lease_many(count), reason="no")
    return [letter.handle for letter in await queue.dead_letters()]


@asynchronous
async def test_a_handle_that_is_none_leaves_the_others_as_they_are() -> None:
    """It is refused by its name, and nothing was changed; nor are all handles told if they are many."""
    async with boki.testing.context() as ctx:
        queue: Queue[int] = Queue(ctx.logbook, "q")
        handles = await bury_some(queue, 3)
        for refused in (queue.redrive(*handles, "0-999"), queue.purge("0-999", *handles), queue.purge("7-0")):
            with pytest.raises(NotFound, match=r"dead letter (0-999|7-0) in queue 'q'.*: none was changed") as error:
                await refused
            assert error.value.outcome == "not_applied"
        with pytest.raises(NotFound, match=r"0-108, 0-109 and 90 more"):
            await queue.purge(*(f"0-{number}" for number in range(100, 200)))
        assert [letter.handle for letter in await queue.dead_letters()] == handles
        assert await queue.redrive(handles[0], handles[0]) == 1
        assert await queue.purge() == 2


@asynchronous
async def test_a_handle_that_somebody_else_was_quicker_with_is_told_with_what_became_of_the_others() -> None:
    """They were changed: that cannot be taken back, and is not denied."""
    async with boki.testing.context() as ctx:
        queue: Queue[int] = Queue(ctx.logbook, "q")
        handles = await bury_some(queue, 3)
        outcomes = await asyncio.gather(queue.redrive(*handles[:2]), queue.purge(*handles[1:]), return_exceptions=True)
        assert outcomes[0] == 2
        assert isinstance(outcomes[1], NotFound)
        assert f"dead letter {handles[1]} " in str(outcomes[1])
        assert outcomes[1].outcome == "unknown"
        assert "what else was named was changed" in str(outcomes[1])
        assert await queue.dead_letters() == []
        assert (await queue.stats()).depth == 2


@asynchronous
async def test_settings_that_are_as_they_are_wished_are_not_written_again() -> None:
    """However often they are wished; a real change is, and by whichever handle."""
    async with boki.testing.context() as ctx:
        queue: Queue[int] = Queue(ctx.logbook, "q")
        await queue.create(shards=2, max_deliveries=3, retain_s=0.1)
        for handle in (queue, Queue[int](ctx.logbook, "q")):
            for _ in range(3):
                settings = await handle.configure(max_deliveries=3, retain_s=0.1)
                assert settings == await handle.configure()
            await handle.push(1)
            assert await handle.pop() is not None
        assert len((await ctx.logbook.read("!queues")).records) == 1
        assert (await queue.configure(max_deliveries=4)).max_deliveries == 4
        assert len((await ctx.logbook.read("!queues")).records) == 2


@asynchronous
async def test_figures_do_not_count_what_has_expired() -> None:
    """Also if nobody has consumed since: untouched, or on its way back. It is not the oldest message either."""
    async with boki.testing.context() as ctx:
        queue: Queue[int] = Queue(ctx.logbook, "q")
        await queue.push_many([1, 2, 3], ttl_s=10)
        assert (await queue.stats()).depth == 3
        first = await queue.lease()
        assert first is not None
        await queue.nack(first, delay_s=3_600)
        await ctx.clock.advance(9)
        await queue.push(4)
        stats = await queue.stats()
        assert (stats.depth, stats.groups[0].delayed, stats.groups[0].oldest_age_s) == (4, 1, 9.0)
        await ctx.clock.advance(2)
        stats = await queue.stats()
        assert (stats.pushed, stats.depth) == (4, 1)
        (group,) = stats.groups
        assert (group.depth, group.delayed, group.expired, group.oldest_age_s) == (1, 0, 3, 2.0)
        assert [message.value for message in await queue.pop_many(5)] == [4]
        (group,) = (await queue.stats()).groups
        assert (group.depth, group.expired, group.done) == (0, 3, 1)


@asynchronous
async def test_a_dead_letter_that_is_purged_while_its_body_is_read_is_told_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another process is quicker: the fold continues at every read."""
    async with boki.testing.context() as ctx:
        queue: Queue[str] = Queue(ctx.logbook, "q")
        await queue.push("stone")
        stone = await queue.lease(60)
        assert stone is not None
        await queue.bury(stone, reason="it is not food")
        fetch = Bodies.fetch

        async def slow(self: Bodies, logbook: LogBook, *rest: Any) -> Any:
            monkeypatch.setattr(Bodies, "fetch", fetch)
            assert await queue.purge() == 1
            return await fetch(self, logbook, *rest)

        monkeypatch.setattr(Bodies, "fetch", slow)
        (letter,) = await queue.dead_letters()
        assert (letter.reason, letter.deliveries, letter.data) == ("it is not food", 1, b"stone")
        assert await queue.dead_letters() == []
