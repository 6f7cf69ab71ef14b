"""Consumers that wait while their process was silent for a while: they get the next message, whatever others did."""

from __future__ import annotations

import asyncio
from typing import Any

from boki import Overloaded
from boki.libs.bokiqueue import Message, Queue
from boki.libs.bokiqueue.following import following
from boki.libs.bokiqueue.records import Act, encode
from boki.libs.bokiqueue.sessions import SILENT_LEASE_US
from boki.libs.fold.follower import Waiter
from boki.log.operations import Append
from boki.testing.memory_port import MemoryPort
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokiqueue.test_crashes import Process
from tests.libs.bokiqueue.test_shards import turns


class Mute(Process):
    """A process whose appends are refused while `is_mute`."""

    is_mute = False

    async def request(self, operation: Any, positions: Any, timeout_s: float) -> Any:
        if self.is_mute and isinstance(operation, Append):
            raise Overloaded("the buffer is full", retryable=True)
        return await super().request(operation, positions, timeout_s)


@asynchronous
async def test_a_consumer_that_waits_gets_the_next_message_though_its_process_was_taken_to_be_gone() -> None:
    """Another process fences what this one did not confirm, and is gone itself: nothing tells this one to act.

    Without a look at the end of its own session the consumer waited for five minutes with a message in the queue.
    """
    port = MemoryPort()
    process = Mute(port)
    queue: Queue[int] = Queue(Process(port).logbook(), "q")
    consumer: Queue[int] = Queue(process.logbook(), "q")
    await queue.create()

    async def lease() -> Message[int] | None:
        while True:
            try:
                return await consumer.lease(60, wait_s=3_000)
            except Overloaded:
                await turns(20)

    waiting = [asyncio.ensure_future(lease()) for _ in range(8)]
    await turns(60)
    await queue.push(1)
    process.is_mute = True
    done, others = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    (message,) = [task.result() for task in done]
    assert message is not None
    await turns(60)
    await port.clock.advance(SILENT_LEASE_US / 1e6 + 0.1)
    position, token = message.delivery.spot.pos, message.delivery.token
    fence = Act(0, b"other", 1, fences=[("", position, token)])
    await queue.logbook.append(encode(fence), ["!q:q:0", "!qf:q:0"])
    taken = await queue.pop()
    assert taken is not None
    process.is_mute = False
    await turns(60)
    await queue.push(2)
    for _ in range(20):
        await turns(60)
        if any(task.done() for task in others):
            break
        await port.clock.advance(0.5)
    assert [found.value for task in others if task.done() and (found := task.result()) is not None] == [2]
    for task in others:
        task.cancel()


@asynchronous
async def test_a_caller_that_is_served_as_it_is_woken_to_lead_wakes_another() -> None:
    """Else nobody would read for those who are left, until another caller comes."""
    port = MemoryPort()
    queue: Queue[int] = Queue(Process(port).logbook(), "q")
    await queue.create()
    logbook = Process(port).logbook()
    shared = following(logbook, "q", 1)
    await shared.follower.catch_up(logbook)
    start = shared.follower.next_start
    arrivals = [Waiter(), Waiter(), Waiter(ready=lambda: True if shared.follower.next_start > start else None)]
    leads, served, left = [asyncio.ensure_future(shared.follower.wait(logbook, one)) for one in arrivals]
    await turns(20)
    wake = arrivals[1].wake

    def serve() -> None:
        assert wake is not None
        wake()
        arrivals[1].finish(None)

    arrivals[1].wake = serve
    leads.cancel()
    await served
    await turns(20)
    await queue.push(1)
    await asyncio.wait_for(left, 30)
