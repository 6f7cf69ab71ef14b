"""Groups that begin again, or late: what they are given, and that nobody else's state or place in the log changes
it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import boki.testing
from boki import InvalidArgument
from boki.libs.bokiqueue import LeaseLost, NoSuchGroup, Queue, folds, groups
from boki.libs.bokiqueue.groups import BACK, WAITING
from boki.libs.bokiqueue.records import ACK, EXTEND, NACK, NOW, Carry, DropGroup, OpenGroup, Saved
from boki.testing.memory_port import MemoryPort
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokiqueue.test_crashes import Process, drain, small_checkpoints
from tests.libs.bokiqueue.test_state import SECOND, Stream


@asynchronous
async def test_a_replay_that_is_refused_changes_nothing() -> None:
    """Neither the group, nor what it has leased."""
    async with boki.testing.context() as ctx:
        queue: Queue[int] = Queue(ctx.logbook, "q", group="g")
        await queue.push_many([1, 2])
        await queue.create_group("g")
        message = await queue.lease(60)
        assert message is not None
        tail = await ctx.logbook.check_tail()
        for wrong in ({"start": "yesterday"}, {"start": -1}, {"start_time_s": float("nan")}):
            with pytest.raises(InvalidArgument):
                await queue.replay(**wrong)
        with pytest.raises(NoSuchGroup):
            await Queue(ctx.logbook, "q", group="nobody").replay()
        assert await ctx.logbook.check_tail() == tail
        await queue.ack(message)
        assert await drain(queue) == [2]


@asynchronous
async def test_a_replay_takes_effect_while_others_consume() -> None:
    """The default group is made by whoever takes first, and a replay begins it again all the same."""
    port = MemoryPort()
    queue: Queue[int] = Queue(Process(port).logbook(), "q")
    await queue.create(retain_s=3600)
    await queue.push_many(range(20))
    assert await drain(queue) == list(range(20))
    found: list[int] = []

    async def consume() -> None:
        handle: Queue[int] = Queue(Process(port).logbook(), "q")
        while (message := await handle.pop(wait_s=1000)) is not None:
            found.append(message.value)

    consumers = [asyncio.ensure_future(consume()) for _ in range(3)]
    for number in range(20, 40):
        await queue.push(number)
        if number == 30:
            await queue.replay()
    for _ in range(500):
        await asyncio.sleep(0)
    assert set(found) == set(range(40))
    assert all(found.count(number) == 1 for number in range(31, 40))
    for consumer in consumers:
        consumer.cancel()
    await asyncio.gather(*consumers, return_exceptions=True)


def test_a_group_that_begins_anew_is_given_what_it_had_aside() -> None:
    """Leased, dead or waiting, as it was pushed; the leases of before are no more, and commits see that."""
    stream = Stream(max_deliveries=1, reload_every=1)
    stream.push(3)
    assert stream.take(2, lease_s=60) == [0, 1]
    token = stream.token
    assert stream.settle(NACK, 0, token)
    fence = stream.state.last_fence
    stream.append(OpenGroup(0, "", is_anew=True))
    assert stream.state.last_fence == stream.records[-1][0] > fence
    assert not stream.settle(NACK, 1, token)
    assert stream.take(9) == [0, 1, 2]


def test_a_checkpoint_after_a_group_has_begun_changes_nothing() -> None:
    """What lies before every group is forgotten by the live fold, too: the default group begins at the same message."""
    for is_reloaded in (False, True):
        stream = Stream(retain_us=1000 * SECOND)
        stream.append(OpenGroup(0, "a"))
        for _ in range(5):
            stream.push(2)
            stream.now_us += SECOND
        assert stream.take(10, group="a") == list(range(10))
        stream.append(OpenGroup(0, "b", start_time_us=stream.now_us - 2 * SECOND))
        if is_reloaded:
            stream.reload()
        assert stream.take(9) == [6, 7, 8, 9]


def test_a_late_group_is_given_what_lingers_in_another() -> None:
    """Though its push was trimmed, because it was carried; delayed as it was pushed, and once."""
    stream = Stream(reload_every=1)
    stream.append(OpenGroup(0, "a"))
    stream.push(1, delay_us=100 * SECOND)
    stream.push(1)
    assert stream.take(1, lease_s=1000, group="a") == [1]
    stream.push(5)
    assert stream.take(5, group="a") == [2, 3, 4, 5, 6]
    stream.act()
    stream.append(Carry(0, [0, 1], b"\x00", [b"x", b"y"]))
    stream.append(Saved(0, stream.state.at, 1, stream.state.at))
    assert stream.state.floor == stream.records[-2][0]
    start = stream.now_us
    stream.append(OpenGroup(0, "late"))
    asides = stream.state.groups["late"].aside
    assert [(pos, asides[pos].status) for pos in sorted(asides)] == [(0, WAITING), (1, BACK)]
    assert stream.take(9, group="late") == [1]
    stream.now_us = start + 100 * SECOND
    assert stream.take(9, group="late") == [0]
    stream.append(OpenGroup(0, "now", start_seqnum=stream.state.at))
    assert stream.take(9, group="now") == []


@asynchronous
async def test_a_late_group_reads_what_was_carried() -> None:
    """From the carried record, in a process of its own."""
    with small_checkpoints(20), pytest.MonkeyPatch.context() as patch:
        patch.setattr(folds, "SAVE_BYTES", 2_000)
        port = MemoryPort()
        queue: Queue[Any] = Queue(Process(port).logbook(), "q")
        await queue.push("delayed", delay_s=86_400)
        for _ in range(300):
            await queue.push(bytes(1000))
            assert await queue.pop() is not None
        for _ in range(20):
            await asyncio.sleep(0)
        book = Process(port).logbook()
        await queue.create_group("late")
        late: Queue[Any] = Queue(book, "q", group="late")
        found = []
        while (message := await late.pop(wait_s=2 * 86_400)) is not None:
            found.append(message.value)
        assert [value for value in found if isinstance(value, str)] == ["delayed"]


@asynchronous
async def test_a_queue_that_stood_still_goes_on_after_a_purge() -> None:
    """Dead letters that are no more make room for what waits behind them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "MAX_ASIDE", 5)
        async with boki.testing.context() as ctx:
            queue: Queue[int] = Queue(ctx.logbook, "q")
            await queue.push_many(range(8))
            await queue.bury(*await queue.lease_many(5), reason="no")
            assert await queue.lease() is None
            assert await queue.purge() == 5
            assert [message.value for message in await queue.lease_many(9)] == [5, 6, 7]


@asynchronous
async def test_a_lease_that_is_given_up_while_its_effects_are_on_their_way_commits_nothing() -> None:
    """By whichever way it ends, also in another process: the effects happen once, for whoever is given it next."""
    for way in ("nack", "release", "bury", "replay", "drop"):
        port = MemoryPort()
        process = Held(port)
        queue: Queue[int] = Queue(process.logbook(), "q", group="g")
        target: Queue[int] = Queue(process.logbook(), "target")
        await target.create()
        await queue.push(1)
        await queue.create_group("g")
        message = await queue.lease(60)
        assert message is not None
        process.is_held = True

        async def commit(queue: Queue[int], target: Queue[int], message: Any) -> None:
            async with queue.process(message) as out:
                out.push(target, 1)

        committing = asyncio.ensure_future(commit(queue, target, message))
        await process.is_asked.wait()
        other: Queue[int] = Queue(Process(port).logbook(), "q", group="g")
        if way == "nack":
            await other.nack(message.receipt)
        elif way == "release":
            await other.release(message.receipt)
        elif way == "bury":
            await other.bury(message.receipt, reason="no")
        elif way == "replay":
            await other.replay()
        else:
            await other.drop_group("g")
        process.go_on()
        with pytest.raises(LeaseLost):
            await committing
        assert await drain(target) == [], way


class Held(Process):
    """A process whose appends wait until they may continue."""

    is_held = False

    def __init__(self, port: MemoryPort) -> None:
        super().__init__(port)
        self.is_asked = asyncio.Event()
        self._gate = asyncio.Event()

    async def request(self, operation: Any, positions: Any, timeout_s: float) -> Any:
        if self.is_held and type(operation).__name__ == "Append":
            self.is_asked.set()
            await self._gate.wait()
        return await super().request(operation, positions, timeout_s)

    def go_on(self) -> None:
        self.is_held = False
        self._gate.set()


def test_what_is_noted_of_leases_is_bounded_by_what_is_aside() -> None:
    """Not by how many there ever were: one long lease keeps nothing of all that are taken and acked behind it."""
    stream = Stream()
    stream.push(5_000)
    assert stream.take(lease_s=10**6) == [0]
    slow = stream.token
    for pos in range(1, 2_000):
        assert stream.take(lease_s=10**6) == [pos]
        assert stream.settle(ACK, pos, stream.token)
        assert stream.settle(EXTEND, 0, slow, 10**6)
    group = stream.state.groups[""]
    assert len(group.aside) == 1
    assert len(group._leases._heap) < 200
    assert group.next_due_us() == group.aside[0].due_us


def test_a_take_costs_nothing_for_leases_that_have_run_out() -> None:
    """They are idle until they are fenced: what is due behind them is brought back without touching them."""
    stream = Stream()
    stream.push(1_000)
    assert len(stream.take(1_000, lease_s=1)) == 1_000
    leases = stream.token
    stream.push(1, delay_us=2 * SECOND)
    assert stream.take() == []
    stream.now_us += 3 * SECOND
    group = stream.state.groups[""]
    before = list(group._leases._heap)
    assert stream.take() == [1_000]
    assert group._leases._heap == before
    assert group.overdue(stream.now_us, 3) == [(pos, leases) for pos in range(3)]
    stream.fence()
    assert group.overdue(stream.now_us, 3) == []


@asynchronous
async def test_a_book_that_was_deleted_leaves_nothing_to_the_queue_that_begins_in_it() -> None:
    """Also in processes that have followed it before, and wait: all have the same queue."""
    port = MemoryPort()
    book, other = Process(port).logbook(), Process(port).logbook()
    queue: Queue[str] = Queue(book, "q")
    await queue.push_many(["old 1", "old 2", "old 3"])
    assert await queue.pop() is not None
    assert await queue.lease(60) is not None
    await book.delete()
    fresh: Queue[str] = Queue(other, "q")
    await fresh.push_many(["new 1", "new 2"])
    message = await fresh.pop()
    assert message is not None
    assert message.value == "new 1"
    followed: Queue[str] = Queue(book, "q")
    assert await drain(followed) == ["new 2"]
    waiting = asyncio.ensure_future(followed.pop(wait_s=60))
    await book.delete()
    await Queue[str](other, "q").create()
    await Queue[str](other, "q").push("newest")
    message = await waiting
    assert message is not None
    assert message.value == "newest"


def test_a_group_that_is_dropped_takes_its_ops_along() -> None:
    """Another one of its name begins where it is told to; ops of groups whose names begin alike stay."""
    stream = Stream(reload_every=1)
    for name in ("g", "gg", ""):
        stream.append(OpenGroup(0, name))
    stream.push(3)
    for name in ("g", "gg", ""):
        assert stream.take(2, group=name, op="x") == [0, 1]
        assert stream.take(1, lease_s=100, group=name, op="x") == [2]
    stream.append(DropGroup(0, "g"))
    assert sorted(stream.state.ops.last) == ["\nlease\nx", "\npop\nx", "gg\nlease\nx", "gg\npop\nx"]
    stream.append(OpenGroup(0, "g", NOW))
    assert stream.take(group="g", op="x") == []
    stream.push()
    assert stream.take(group="g", op="x") == [3]
    for name in ("gg", ""):
        assert stream.take(2, group=name, op="x") == [0, 1]
    stream.append(DropGroup(0, ""))
    assert sorted(stream.state.ops.last) == ["g\npop\nx", "gg\nlease\nx", "gg\npop\nx"]
