"""Leases as whoever holds them sees them: until when they last, and which of several were lost."""

from __future__ import annotations

from typing import Any

import pytest

import boki.testing
from boki import BokiError, Unavailable
from boki.libs.bokiqueue import LeaseLost, Queue
from boki.libs.bokiqueue.groups import DEAD
from boki.libs.bokiqueue.records import ACK, GIVE_BACK, NACK, Settle, Take
from boki.log.operations import Answer, Append, Operation
from boki.testing.memory_port import MemoryPort
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokiqueue.test_crashes import Process
from tests.libs.bokiqueue.test_state import SECOND, Stream


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


@asynchronous
async def test_who_settles_several_is_told_which_were_lost() -> None:
    """By their receipts, also if they were given as messages; all others are settled."""
    async with boki.testing.context() as ctx:
        queue: Queue[int] = Queue(ctx.logbook, "q")
        await queue.push_many(range(30))
        messages = await queue.lease_many(30, 60)
        await queue.ack(messages[3], messages[17].receipt)
        with pytest.raises(LeaseLost, match=rf"2 of 30 .* {messages[3].receipt}, {messages[17].receipt}$") as caught:
            await queue.ack(*messages)
        assert caught.value.receipts == [messages[3].receipt, messages[17].receipt]
        assert (await queue.stats()).groups[0].done == 30
        with pytest.raises(LeaseLost, match=r"and 20 more$") as caught:
            await queue.nack(*messages)
        assert len(caught.value.receipts) == 30


class Refusing(Process):
    """A process whose appends are refused when the test says so, after this many more."""

    left = 1_000_000

    async def request(self, operation: Operation, positions: Any, timeout_s: float) -> Answer:
        if isinstance(operation, Append):
            self.left -= 1
            if self.left < 0:
                raise Unavailable("no quorum")
        return await super().request(operation, positions, timeout_s)


@pytest.mark.parametrize(("left", "outcome"), [(0, "not_applied"), (1, "unknown")])
@asynchronous
async def test_who_settles_several_of_which_only_some_can_be_is_not_told_that_nothing_happened(
    left: int, outcome: str
) -> None:
    """Messages of two shards are settled by two acts."""
    process = Refusing(MemoryPort())
    queue: Queue[int] = Queue(process.logbook(), "q")
    await queue.create(shards=2)
    for number in range(2):
        await queue.push(number)
    messages = await queue.lease_many(1, 60) + await queue.lease_many(1, 60)
    assert {message.shard for message in messages} == {0, 1}
    process.left = left
    with pytest.raises(BokiError) as caught:
        await queue.ack(*messages)
    assert caught.value.outcome == outcome


@pytest.mark.parametrize("reload_every", [0, 1])
def test_a_pop_that_nobody_received_does_not_hide_how_often_the_message_was_given_out(reload_every: int) -> None:
    """Else one that crashes its consumers again and again would never become a dead letter."""
    stream = Stream(max_deliveries=3, reload_every=reload_every)
    stream.push()
    for _ in range(2):
        assert stream.take(lease_s=10) == [0]
        assert stream.settle(NACK, 0, stream.token)
    assert stream.take() == [0]
    token = stream.token
    back = Settle("", GIVE_BACK, [(0, token)])
    assert stream.act(settles=[back], kept_from=token).settles == [[True]]
    ((again,),) = stream.act(takes=[Take("", 1, SECOND)]).takes  # type: ignore[misc]
    assert again.deliveries == 3
    assert stream.settle(NACK, 0, stream.records[-1][0])
    assert stream.take() == []
    assert stream.state.groups[""].count(DEAD) == 1


@pytest.mark.parametrize("reload_every", [0, 1])
def test_what_is_put_back_waits_for_who_has_its_key_and_then_keeps_it(reload_every: int) -> None:
    """It was taken before, so later messages of its key wait for it; but one of them was taken meanwhile."""
    stream = Stream(reload_every=reload_every)
    stream.push(3, keys=["k"] * 3)
    assert stream.take(lease_s=10) == [0]
    assert stream.settle(NACK, 0, stream.token)
    assert stream.take() == [0]
    token = stream.token
    assert stream.act(b"other", takes=[Take("", 9, 10 * SECOND)]).takes[0][0].spot.pos == 1  # type: ignore[index]
    second = stream.token
    assert stream.act(settles=[Settle("", GIVE_BACK, [(0, token)])], kept_from=token).settles == [[True]]
    assert stream.take(9) == []
    assert stream.settle(ACK, 1, second)
    assert stream.take(9, lease_s=10) == [0]
    assert stream.settle(NACK, 0, stream.token, span_s=5)
    assert stream.take(9) == []
    stream.now_us += 6 * SECOND
    assert stream.take(9) == [0, 2]
