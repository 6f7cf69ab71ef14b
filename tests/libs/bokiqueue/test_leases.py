"""Leases as whoever holds them sees them: until when they last, and which of several were lost."""

from __future__ import annotations

import boki.testing
from boki.libs.bokiqueue import Queue
from tests.libs.bokiqueue.running import asynchronous

SECOND = 1_000_000


@asynchronous
async def test_an_extended_lease_says_until_when_it_lasts() -> None:
    """To who extended it, and to who is given it again by its op; a message that was lost says what it said."""
    async with boki.testing.context() as ctx:
        queue: Queue[int] = Queue(ctx.logbook, "q")
        await queue.push_many([1, 2])
        message = await queue.lease(30, op="a")
        assert message is not None
        first_us = message.until
        await ctx.clock.advance(10)
        await queue.extend(message, lease_s=100)
        assert first_us + 80 * SECOND <= message.until < first_us + 81 * SECOND
        again = await queue.lease(30, op="a")
        assert again is not None
        assert (again.id, again.until, again.receipt) == (message.id, message.until, message.receipt)
        await queue.extend(again.receipt, lease_s=1)
        assert message.until == again.until  # only the log knows of this one
        await queue.extend(again, message, lease_s=50)
        assert message.until == again.until < first_us + 31 * SECOND
        await queue.ack(again)
