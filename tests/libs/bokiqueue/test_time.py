"""What depends on the log's time, in processes that begin while a queue is idle.

All records are old then, and none says what time it is now.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from boki.api.deadline import Caller, Deadline
from boki.api.logbook import LogSession
from boki.libs.bokiqueue import Queue, QueueFull, appending, operating
from boki.libs.bokiqueue.sessions import SESSION_US
from boki.libs.bokiqueue.state import ShardState
from boki.libs.fold.clock import PROMPT_S, SURE_S, LogClock
from boki.testing.memory_port import ENDLESS_S, MemoryPort
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokiqueue.test_crashes import Process

DAY_S = 24 * 3600


def handle(port: MemoryPort, name: str = "q") -> Queue[Any]:
    """As a new process has it."""
    return Queue(Process(port).logbook(), name)


@pytest.mark.parametrize(("shards", "delay_s", "left_s"), [(1, 30 * DAY_S, DAY_S), (3, 300, 30)])
@asynchronous
async def test_what_is_due_comes_in_time_to_a_process_that_began_later(
    shards: int, delay_s: float, left_s: float
) -> None:
    """A delayed message, and one whose lease runs out."""
    port = MemoryPort()
    await handle(port).create(shards=shards)
    await handle(port).push("later", delay_s=delay_s)
    assert await handle(port).pop(wait_s=1) is None
    await port.clock.advance(delay_s - left_s)
    begun_s = port.clock.time()
    later = handle(port)
    message = None
    while message is None and port.clock.time() - begun_s < delay_s:
        message = await later.lease(300, wait_s=left_s / 4)
    assert message is not None
    assert left_s - 2 < port.clock.time() - begun_s < left_s + 2

    await port.clock.advance(200)
    begun_s = port.clock.time()
    again = await handle(port).lease(300, wait_s=1000)
    assert again is not None
    assert again.id == message.id
    assert 98 < port.clock.time() - begun_s < 102


@asynchronous
async def test_who_waits_asks_the_log_for_its_time_and_does_not_ask_again() -> None:
    """One record for all who wait, what renews their credit every five minutes, and one at the end."""
    port = MemoryPort()
    await handle(port).push("tomorrow", delay_s=DAY_S)
    assert await handle(port).pop() is None
    await port.clock.advance(1)
    idle = handle(port, "idle")
    await idle.push("x")
    assert await idle.pop() is not None
    await port.clock.advance(1)
    most = 1 + math.ceil(SURE_S / 2 / (SESSION_US / 2e6)) + 1
    for name in ("q", "idle"):
        book = Process(port).logbook()
        before = len((await book.read(f"!q:{name}:0")).records)
        later = handle(port, name)
        assert await asyncio.gather(*(later.pop(wait_s=SURE_S / 2) for _ in range(5))) == [None] * 5
        assert len((await book.read(f"!q:{name}:0")).records) - before <= most


@asynchronous
async def test_who_only_looks_sees_ages_and_what_is_due_now_and_appends_nothing() -> None:
    """In a process that has just begun, and in one that has looked before."""
    port = MemoryPort()
    await handle(port).push("old")
    await handle(port).push("soon", delay_s=12)
    before = handle(port)
    assert (await before.stats()).groups == []
    assert await handle(port).pop() is not None
    assert await handle(port).pop() is None
    tail = await Process(port).logbook().check_tail()
    await port.clock.advance(20)
    for queue in (handle(port), before):
        (group,) = (await queue.stats()).groups
        assert group.oldest_age_s == 20.0
        assert [message.value for message in await queue.peek()] == ["soon"]
    assert await Process(port).logbook().check_tail() == tail


@asynchronous
async def test_what_has_expired_makes_room_for_a_process_that_began_later() -> None:
    """It need not be taken first."""
    port = MemoryPort()
    await handle(port).create(max_length=1)
    await handle(port).push("old", ttl_s=10)
    await port.clock.advance(12)
    await handle(port).push("new")
    assert [message.value for message in await handle(port).pop_many(9)] == ["new"]


@asynchronous
async def test_a_push_that_waits_for_room_is_woken_when_a_message_expires() -> None:
    """Nobody writes a record then."""
    port = MemoryPort()
    queue = handle(port)
    await queue.create(max_length=2)
    await queue.push("short", ttl_s=30)
    await queue.push("long", ttl_s=300)
    begun_s = port.clock.time()
    await queue.push("third", wait_s=3600)
    assert 30 <= port.clock.time() - begun_s < 31
    await queue.push_many(["fourth"], wait_s=3600)
    assert 300 <= port.clock.time() - begun_s < 301


class Loop:
    """A loop's clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_the_clock_is_never_behind_a_record_nor_ahead_of_an_answer() -> None:
    """An old record does not set it back, an answer does, and it continues by itself."""
    loop = Loop()
    clock = LogClock(loop)
    assert clock.now_us() == 0
    clock.hear(5_000_000)
    loop.now_s += 10
    clock.hear(6_000_000)
    assert clock.now_us() == 15_000_000
    was_sure = clock.is_sure
    clock.hear_answer(14_000_000, clock.here())
    assert (was_sure, clock.is_sure, clock.now_us()) == (False, True, 14_000_000)
    asked = clock.here()
    loop.now_s += PROMPT_S * 3
    clock.hear_answer(14_500_000, asked)
    assert clock.now_us() == 14_500_000 + 2_500_000
    loop.now_s += SURE_S
    assert not clock.is_sure


def hurried(port: MemoryPort, process: Process, left_s: float) -> Queue[Any]:
    """The queue for a call of a process that has this long left."""
    clock = port.clock.time
    caller = Caller(deadline=Deadline.after(left_s, clock), longest_poll_s=ENDLESS_S, wall_clock=clock)
    return Queue(LogSession(process, process.appends, caller).logbook("test"), "q")


@asynchronous
async def test_a_call_that_ends_early_ends_no_other_wait() -> None:
    """It reads for all when its deadline comes. The others wait on, and a lease is as old as it was."""
    port = MemoryPort()
    process = Process(port)
    queue: Queue[Any] = Queue(process.logbook(), "q")
    await queue.push("job")
    leased = await queue.lease(100)
    assert leased is not None
    begun_s = port.clock.time()

    async def pop(queue: Queue[Any], **options: Any) -> float:
        assert await queue.pop(**options) is None
        return port.clock.time() - begun_s

    first = asyncio.create_task(pop(hurried(port, process, 5), wait_s=60, op="o"))
    for _ in range(12):
        await asyncio.sleep(0)
    assert await asyncio.gather(first, pop(queue, wait_s=50)) == [
        pytest.approx(4.9, abs=0.01),
        pytest.approx(50, abs=0.01),
    ]
    async with queue.process(leased) as out:
        out.append(b"effect", ["e"])


@asynchronous
async def test_a_push_that_ends_early_ages_no_lease() -> None:
    """It waits for room until just before the deadline of its call, however long it asked for."""
    port = MemoryPort()
    process = Process(port)
    queue: Queue[Any] = Queue(process.logbook(), "q")
    await queue.create(max_length=1)
    await queue.push("job")
    leased = await queue.lease(100)
    assert leased is not None
    begun_s = port.clock.time()
    with pytest.raises(QueueFull):
        await hurried(port, process, 5).push("more", wait_s=600)
    assert port.clock.time() - begun_s == pytest.approx(4.9, abs=0.01)
    async with queue.process(leased) as out:
        out.append(b"effect", ["e"])


@asynchronous
async def test_all_who_wait_for_room_look_at_the_messages_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look goes through all messages: it is taken again when a record comes or a message expires, not for each."""
    port = MemoryPort()
    queue = handle(port)
    await queue.create(max_length=2)
    await queue.push("a", ttl_s=5)
    await queue.push("b", ttl_s=10)
    looks = 0
    length = operating.length

    def counted(state: ShardState, now_us: int = 0) -> int:
        nonlocal looks
        looks += now_us > 0
        return length(state, now_us)

    monkeypatch.setattr(appending, "length", counted)
    pushes = [asyncio.create_task(queue.push(number, wait_s=60)) for number in range(20)]
    await port.clock.advance(4)
    assert looks == 1
    await port.clock.advance(10)
    assert sum(push.done() for push in pushes) == 2
    for push in pushes:
        push.cancel()
    await asyncio.gather(*pushes, return_exceptions=True)
