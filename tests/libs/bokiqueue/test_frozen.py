"""Processes that were frozen, or whose group began again: what they missed is given back."""

from __future__ import annotations

import asyncio

from boki.libs.bokiqueue import Queue
from boki.libs.bokiqueue.following import following
from boki.libs.bokiqueue.sessions import SILENT_LEASE_US
from boki.testing.memory_port import MemoryPort
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokiqueue.test_crashes import Process
from tests.libs.bokiqueue.test_shards import turns


@asynchronous
async def test_a_lease_that_ended_ahead_of_its_caller_does_not_take_later_ones_away() -> None:
    """The group begins again while a message waits here for a caller: it was held as not received from then on, no
    later delivery was ever confirmed, and every lease was fenced after five seconds.
    """
    port = MemoryPort()
    queue, other = (Queue[str](Process(port).logbook(), "q") for _ in range(2))
    await queue.create(retain_s=3_600)
    shared = following(queue.logbook, "q", 1)
    line = shared.lines[0]
    gone = asyncio.ensure_future(queue.lease(60, wait_s=3_600))
    await turns(80)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    shared._is_urgent = False  # its caller may come again
    await other.push("a")
    for _ in range(60):
        await turns(0 if shared.wants.surplus else 1)
    assert line.held
    await other.replay()
    for _ in range(60):
        await turns(1 if line.state.groups[""].aside else 0)
    message = await queue.lease(60, wait_s=5)
    assert message is not None
    await queue.ack(message)
    assert not line.held
    await other.push("long")
    message = await queue.lease(60, wait_s=5)
    assert message is not None
    await port.clock.advance(SILENT_LEASE_US / 1e6 + 1)
    assert await other.lease(60, wait_s=20) is None
    await queue.ack(message)
