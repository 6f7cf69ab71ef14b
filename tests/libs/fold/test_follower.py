"""Followers: one reading of a stream for all who wait for it, in virtual time."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace
from random import Random
from typing import Any

import pytest

import boki.testing
from boki import LogBook, LogSession, NotFound, Page
from boki.api.deadline import Deadline
from boki.libs.fold.follower import Follower, Waiter
from boki.libs.fold.registry import IDLE_S, Registry, Tasks
from tests.libs.bokiqueue.running import asynchronous


class Numbers:
    """Folds the data of all records; counts what it was asked to do."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.loads = self.pages = 0
        self.begin_at = 0

    async def load(self, logbook: LogBook) -> int:
        self.loads += 1
        self.seen = []
        return self.begin_at

    async def take(self, logbook: LogBook, page: Page) -> bool:
        self.pages += 1
        self.seen += [record.data for record in page.records]
        return True


class Counting:
    """A LogBook whose reads are counted."""

    def __init__(self, logbook: LogBook) -> None:
        self._logbook = logbook
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logbook, name)

    async def read(self, *arguments: Any, **options: Any) -> Page:
        self.reads += 1
        return await self._logbook.read(*arguments, **options)


def counting(logbook: LogBook) -> Any:
    return Counting(logbook)


@asynchronous
async def test_catching_up_costs_one_read_that_all_share() -> None:
    """Whoever comes while a read is under way waits for the next one, and all of them share it."""
    async with boki.testing.context() as ctx:
        logbook = counting(ctx.logbook)
        source = Numbers()
        follower = Follower(source, "t")
        await ctx.logbook.append(b"1", ["t"])
        await follower.catch_up(logbook)
        assert source.seen == [b"1"]
        assert logbook.reads == 1
        await ctx.logbook.append(b"2", ["t"])
        await asyncio.gather(*(follower.catch_up(logbook) for _ in range(100)))
        assert source.seen == [b"1", b"2"]
        assert logbook.reads <= 3
        assert not follower.is_busy


@asynchronous
async def test_catching_up_sees_what_was_appended_before_it_was_asked() -> None:
    """A read that was under way when the caller came does not count for it."""
    async with boki.testing.context() as ctx:
        source = Numbers()
        follower = Follower(source, "t")
        await follower.catch_up(ctx.logbook)
        first = asyncio.create_task(follower.catch_up(ctx.logbook))
        for number in range(20):
            await asyncio.sleep(0)
            await ctx.logbook.append(b"%d" % number, ["t"])
            await follower.catch_up(ctx.logbook)
            assert source.seen[-1] == b"%d" % number
        await first


@asynchronous
async def test_a_caller_that_waits_is_woken_by_the_record_and_no_sooner() -> None:
    """One reads for all; each wakes when what it waits for is there, in whatever order."""
    async with boki.testing.context() as ctx:
        logbook = counting(ctx.logbook)
        source = Numbers()
        follower = Follower(source, "t")

        async def until(count: int) -> list[bytes]:
            found: list[bytes] = await follower.wait_until(
                logbook, lambda: source.seen[:count] if len(source.seen) >= count else None
            )
            return found

        waits = [asyncio.create_task(until(count)) for count in (3, 1, 2)]
        await ctx.clock.advance(1)
        assert not any(wait.done() for wait in waits)
        assert logbook.reads <= 2
        for number in range(3):
            await ctx.logbook.append(b"%d" % number, ["t"])
        assert await asyncio.gather(*waits) == [[b"0", b"1", b"2"], [b"0"], [b"0", b"1"]]


@asynchronous
async def test_waiting_has_an_end_in_the_time_of_the_log() -> None:
    """A short wait cuts the long read of the leader short; the leader continues waiting."""
    async with boki.testing.context() as ctx:
        source = Numbers()
        follower = Follower(source, "t")
        await follower.catch_up(ctx.logbook)
        leader = asyncio.create_task(follower.wait_until(ctx.logbook, lambda: source.seen or None))
        await ctx.clock.advance(1)
        before = ctx.clock.time()
        assert await follower.wait_until(ctx.logbook, lambda: source.seen or None, wait_s=5) is None
        assert 4.9 < ctx.clock.time() - before < 6
        assert not leader.done()
        await ctx.logbook.append(b"1", ["t"])
        assert await leader == [b"1"]


def hurried(logbook: LogBook, left_s: float) -> LogBook:
    """The same book for a call that has this long left."""
    session = logbook.session
    deadline = Deadline.after(left_s, session.caller.deadline.clock)
    return LogSession(session.port, session.appends, replace(session.caller, deadline=deadline)).logbook(logbook.name)


@asynchronous
async def test_the_deadline_of_the_caller_that_leads_is_no_one_elses() -> None:
    """Its read ends early. The others wait for as long as they asked, and the clock is told what has really passed."""
    async with boki.testing.context() as ctx:
        follower = Follower(Numbers(), "t")
        await follower.catch_up(ctx.logbook)
        before = ctx.clock.time()

        async def wait(logbook: LogBook, wait_s: float) -> tuple[float, float]:
            assert await follower.wait_until(logbook, lambda: None, wait_s) is None
            return ctx.clock.time() - before, follower.clock.waited_s

        leader = asyncio.create_task(wait(hurried(ctx.logbook, 5), 3600))
        await asyncio.sleep(0)
        took = await asyncio.gather(leader, wait(ctx.logbook, 50))
        assert took == [pytest.approx((4.9, 4.9), abs=0.01), pytest.approx((50, 50), abs=0.01)]


@asynchronous
async def test_a_caller_that_comes_during_a_read_waits_from_then_on() -> None:
    """Of a read of a minute that is half over, half a minute counts for it."""
    async with boki.testing.context() as ctx:
        follower = Follower(Numbers(), "t")
        await follower.catch_up(ctx.logbook)
        leader = asyncio.create_task(follower.wait_for_more(ctx.logbook, 60))
        await ctx.clock.advance(30)
        before = ctx.clock.time()
        await follower.wait_for_more(ctx.logbook, 70)
        assert ctx.clock.time() - before == pytest.approx(70, abs=0.01)
        await leader


@asynchronous
async def test_a_read_that_is_cut_short_has_taken_the_time_that_it_took() -> None:
    """Also if a record ends it."""
    async with boki.testing.context() as ctx:
        follower = Follower(Numbers(), "t")
        await follower.catch_up(ctx.logbook)
        before = ctx.clock.time()
        leader = asyncio.create_task(follower.wait_for_more(ctx.logbook))
        await ctx.clock.advance(7)
        await follower.catch_up(ctx.logbook)
        assert follower.clock.waited_s == pytest.approx(ctx.clock.time() - before, abs=0.01)
        await ctx.clock.advance(11)
        await ctx.logbook.append(b"1", ["t"])
        await leader
        assert (
            follower.clock.waited_s == pytest.approx(ctx.clock.time() - before, abs=0.01) == pytest.approx(18, abs=0.01)
        )


@asynchronous
async def test_another_leads_when_the_leader_is_cancelled_or_fails() -> None:
    """Nobody waits forever because of somebody else's end."""
    async with boki.testing.context() as ctx:
        source = Numbers()
        follower = Follower(source, "t")
        waits = [asyncio.create_task(follower.wait_until(ctx.logbook, lambda: source.seen or None)) for _ in range(3)]
        await ctx.clock.advance(1)
        waits[0].cancel()
        await ctx.clock.advance(1)
        waits[1].cancel()
        await ctx.clock.advance(1)
        await ctx.logbook.append(b"1", ["t"])
        assert await waits[2] == [b"1"]
        assert not follower.is_busy


@asynchronous
async def test_it_begins_again_when_unread_records_were_trimmed() -> None:
    """What others have trimmed is covered by a newer checkpoint; from the beginning that is right once."""
    async with boki.testing.context() as ctx:
        source = Numbers()
        follower = Follower(source, "t")
        seqnums = [await ctx.logbook.append(b"%d" % number, ["t"]) for number in range(5)]
        await ctx.logbook.trim(seqnums[1], tag="t")
        await follower.catch_up(ctx.logbook)
        assert source.seen == [b"1", b"2", b"3", b"4"]
        seqnums += [await ctx.logbook.append(b"%d" % number, ["t"]) for number in range(5, 8)]
        await ctx.logbook.trim(seqnums[6], tag="t")
        source.begin_at = seqnums[6]
        loads = source.loads
        await follower.catch_up(ctx.logbook)
        assert source.seen == [b"6", b"7"]
        assert source.loads == loads + 1


@asynchronous
async def test_what_is_over_says_so_to_all() -> None:
    """To those who wait, and to those who come."""
    async with boki.testing.context() as ctx:
        follower = Follower(Numbers(), "t")
        await follower.catch_up(ctx.logbook)
        waits = [asyncio.create_task(follower.wait_until(ctx.logbook, lambda: None)) for _ in range(2)]
        await ctx.clock.advance(1)
        follower.end(NotFound("it was deleted"))
        for wait in (*waits, follower.catch_up(ctx.logbook)):
            with pytest.raises(NotFound, match="it was deleted"):
                await wait


@asynchronous
async def test_a_caller_has_seen_what_was_read_for_it_and_reads_what_it_has_seen() -> None:
    """Positions go both ways between those who wait and the leader."""
    async with boki.testing.context() as ctx:
        source = Numbers()
        follower = Follower(source, "t")
        await follower.catch_up(ctx.logbook)
        leader_book = ctx.logbook.session.logbook("test", detached=True)
        leader = asyncio.create_task(follower.wait_until(leader_book, lambda: source.seen or None))
        await asyncio.sleep(0)
        ctx.logbook.session.caller.positions[0] = 1 << 60
        await follower.catch_up(ctx.logbook)
        assert leader_book.session.caller.positions[0] == 1 << 60
        leader_book.session.caller.positions[0] = 1 << 61
        await follower.catch_up(ctx.logbook)
        assert ctx.logbook.session.caller.positions[0] == 1 << 61
        leader.cancel()


@asynchronous
async def test_another_leads_when_the_one_that_was_woken_to_lead_is_served_before_it_runs() -> None:
    """It leaves without leading: the next one must not wait for it."""
    async with boki.testing.context() as ctx:
        is_reading, may_go_on = asyncio.Event(), asyncio.Event()

        class Telling(Numbers):
            async def take(self, logbook: LogBook, page: Page) -> bool:
                is_reading.set()
                await may_go_on.wait()
                return await super().take(logbook, page)

        follower = Follower(Telling(), "t")
        served = Waiter()

        async def lead_and_serve() -> None:
            await follower.catch_up(ctx.logbook)
            served.finish(None)  # in the turn in which the next one was woken

        first = asyncio.create_task(lead_and_serve())
        await is_reading.wait()
        second = asyncio.create_task(follower.wait(ctx.logbook, served))
        third = asyncio.create_task(follower.catch_up(ctx.logbook))
        await asyncio.sleep(0)  # both wait now, for another read than this one
        may_go_on.set()
        for task in (first, second, third):
            await asyncio.wait_for(task, 30)


@pytest.mark.parametrize("seed", range(40))
@asynchronous
async def test_no_caller_is_forgotten_whoever_comes_leaves_or_is_served_meanwhile(seed: int) -> None:
    """Callers of all kinds, cancelled, served from outside and by records: each ends, and has seen what it must."""
    rng = Random(seed)
    async with boki.testing.context() as ctx:
        source = Numbers()
        follower = Follower(source, "t")
        appended: list[bytes] = []
        outside: list[Waiter] = []

        async def turns() -> None:
            for _ in range(rng.randrange(6)):
                await asyncio.sleep(0)

        async def append() -> None:
            await turns()
            data = b"%d" % len(appended)
            appended.append(data)
            await ctx.logbook.append(data, ["t"])

        async def catch_up() -> None:
            await turns()
            await ctx.logbook.append(b"mine", ["other"])  # whatever was appended before is acknowledged by now
            known = [record.data for record in (await ctx.logbook.read("t")).records]
            await follower.catch_up(ctx.logbook)
            assert source.seen[: len(known)] == known

        async def wait() -> None:
            await turns()
            count = len(appended)
            await follower.wait_until(ctx.logbook, lambda: True if len(source.seen) >= count else None)

        async def be_served() -> None:
            await turns()
            outside.append(Waiter())
            await follower.wait(ctx.logbook, outside[-1])

        async def serve() -> None:
            await turns()
            for waiter in rng.sample(outside, rng.randint(0, len(outside))):
                waiter.finish(None)

        kinds = [append, append, catch_up, catch_up, wait, be_served, serve]
        tasks = [asyncio.create_task(rng.choice(kinds)()) for _ in range(60)]
        for task in rng.sample(tasks, 15):
            await turns()
            task.cancel()
        await turns()
        await ctx.logbook.append_many([(b"last", ["t"])] * 60)  # whoever waits for records has them
        while not all(task.done() for task in tasks):
            for waiter in outside:
                waiter.finish(None)
            await asyncio.sleep(0)
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [error for error in found if error is not None and not isinstance(error, asyncio.CancelledError)] == []
        assert not follower.is_busy


class Held:
    def __init__(self) -> None:
        self.is_busy = False
        self.is_let_go = False

    def let_go(self) -> None:
        self.is_let_go = True


def test_a_registry_evicts_what_is_idle_and_not_busy() -> None:
    """When something else is followed; what is put without a time stays."""
    registry: Registry[Held] = Registry()
    idle, busy, used, kept = (Held() for _ in range(4))
    busy.is_busy = True
    for name, held in (("idle", idle), ("busy", busy), ("used", used)):
        registry.put("b", name, held, 0.0)
    registry.put("b", "kept", kept)
    assert registry.find("b", "used", IDLE_S) is used
    registry.put("b", "new", Held(), IDLE_S + 1)
    assert [held.is_let_go for held in (idle, busy, used, kept)] == [True, False, False, False]
    assert registry.find("b", "idle", 0.0) is None
    registry.put("b", "used", Held(), IDLE_S + 1)
    assert used.is_let_go


def test_work_that_is_asked_for_when_the_loop_is_over_is_closed() -> None:
    """A caller that a loop has left behind runs its `finally` when it is collected: nothing may be left to warn of."""
    tasks = Tasks()

    async def work() -> None:
        raise AssertionError("there is no loop to run it")

    coroutine = work()
    assert tasks.spawn(coroutine) is None
    assert len(tasks) == 0
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


@asynchronous
async def test_tasks_come_to_rest_with_what_they_spawn_and_no_later_than_allowed() -> None:
    """What spawns more is waited for as a whole; what does not end is cancelled."""
    tasks = Tasks()
    done: list[str] = []

    async def spawn_another() -> None:
        await asyncio.sleep(0)
        tasks.spawn(note())

    async def note() -> None:
        await asyncio.sleep(0)
        done.append("noted")

    tasks.spawn(spawn_another())
    await tasks.come_to_rest()
    assert done == ["noted"]
    never = asyncio.Event()

    async def wait() -> None:
        await never.wait()

    tasks.spawn(wait())
    await tasks.come_to_rest(0.0)
    assert len(tasks) == 0
