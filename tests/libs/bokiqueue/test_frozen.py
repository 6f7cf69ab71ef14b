"""Processes that were frozen, or whose group began again: what they missed is given back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from boki import BokiError
from boki.libs.bokiqueue import Queue, folds
from boki.libs.bokiqueue.following import Following, following
from boki.libs.bokiqueue.lines import Asked, Outstanding
from boki.libs.bokiqueue.records import GIVE_BACK, Act, Credit, Grant, Settle, Take
from boki.libs.bokiqueue.sessions import SILENT_LEASE_US
from boki.libs.bokiqueue.state import ShardState
from boki.log.operations import Answer, Append, Operation, Read
from boki.testing.memory_port import MemoryPort
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokiqueue.test_crashes import Process, small_checkpoints
from tests.libs.bokiqueue.test_shards import turns
from tests.libs.bokiqueue.test_state import SECOND, Stream

LEASE_US = 600 * SECOND


class Frozen(Process):
    """A process that hears no answer to a read while it is frozen, and then one as of now; `freezes_after` its next
    append, "ack" once it has heard the answer to that, "append" before.
    """

    freezes_after = ""

    def __init__(self, port: MemoryPort) -> None:
        super().__init__(port)
        self.runs = asyncio.Event()
        self.runs.set()

    async def request(self, operation: Operation, positions: Any, timeout_s: float) -> Answer:
        answer = await super().request(operation, positions, timeout_s)
        if isinstance(operation, Append) and self.freezes_after:
            is_late, self.freezes_after = self.freezes_after == "append", ""
            self.runs.clear()
            if is_late:
                await self.runs.wait()
        elif isinstance(operation, Read) and not self.runs.is_set():
            await self.runs.wait()
            answer = await super().request(operation, positions, timeout_s)
        return answer


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
    shared._is_urgent, shared._tidied = False, shared.clock.here()  # its caller may come again
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


@asynchronous
async def test_a_lease_that_a_frozen_process_missed_goes_back_to_the_queue() -> None:
    """It begins again from a checkpoint. Its next act confirmed the lease, which no caller had, for its whole time."""
    with small_checkpoints(10):
        port = MemoryPort()
        process = Frozen(port)
        queue = Queue[Any](process.logbook(), "q")
        producer, other = (Queue[Any](Process(port).logbook(), "q") for _ in range(2))
        await producer.create()
        popping = asyncio.ensure_future(other.pop(wait_s=3_600))
        await turns(80)
        leasing = asyncio.ensure_future(queue.lease(600, wait_s=3_600))
        await turns(80)
        process.runs.clear()
        await producer.push("y")
        assert await popping is not None
        await producer.push("x")
        for number in range(30):
            await producer.push(number)
            assert await other.pop() is not None
        await turns(100)
        assert [len(one.unheard) for one in following(other.logbook, "q", 1).lines[0].state.standing] == [0, 1]
        assert not leasing.done()
        process.runs.set()
        await turns(200)
        assert following(queue.logbook, "q", 1).lines[0].resume > 0
        assert leasing.done()
        message = leasing.result()
        assert message is not None
        assert (message.value, message.deliveries) == ("x", 1)


@asynchronous
async def test_what_was_given_before_an_act_that_is_answered_late_goes_back_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A checkpoint covers both. What the act took has a caller, what stood before it and with it has none."""
    stream = Stream()
    grant = Grant(0, b"me", 1, takes=[], credits=[Credit("", 0, 2), Credit("", LEASE_US, 1)])
    stream.append(grant)
    stream.push(2)
    tokens = [stream.records[-1][0]]
    stream.push(1)
    tokens.append(stream.records[-1][0])
    stream.push(1)
    act = Act(0, b"me", 2, takes=[Take("", 1)], kept_from=tokens[0])
    stream.append(act)
    assert stream.state.standing.of(b"me")
    queue = Queue[Any](Process(MemoryPort()).logbook(), "q")
    shared = Following("q", 1, taker=b"me")
    line = shared.lines[0]
    waiting = asyncio.get_running_loop().create_future()
    line.outstanding = Outstanding(act, takes=[Asked(Take("", 1), waiting)], asked=shared.clock.here())

    async def newest_state(*_: object) -> tuple[ShardState, int]:
        return stream.state, 0

    monkeypatch.setattr(folds, "newest_state", newest_state)
    await shared.load(queue.logbook)
    assert [delivery.spot.pos for _, delivery, _ in waiting.result()] == [3]
    back = [asked.part for asked in line.asked]
    assert all(isinstance(part, Settle) and part.verb == GIVE_BACK for part in back)
    given = sorted(handle for part in back if isinstance(part, Settle) for handle in part.messages)
    assert given == [(0, tokens[0]), (1, tokens[0]), (2, tokens[1])]
    assert min(line.held) == tokens[0]


@pytest.mark.parametrize("freezes_after", ["ack", "append"])
@asynchronous
async def test_a_process_that_was_forgotten_with_an_act_on_its_way_takes_again(freezes_after: str) -> None:
    """It was frozen for more than 15 minutes: its call ends in doubt, and the next one is served. Both hung."""
    with small_checkpoints(10):
        port = MemoryPort()
        process = Frozen(port)
        queue = Queue[Any](process.logbook(), "q")
        producer, other = (Queue[Any](Process(port).logbook(), "q") for _ in range(2))
        await producer.push("x")
        assert await other.pop() is not None
        await producer.push("y")
        await queue.stats()
        process.freezes_after = freezes_after
        leasing = asyncio.ensure_future(queue.lease(10))
        await turns(60)
        line = following(queue.logbook, "q", 1).lines[0]
        assert line.outstanding is not None
        for _ in range(18):
            await port.clock.advance(60)
            for number in range(6):
                await producer.push(number)
                assert await other.pop() is not None
        process.runs.set()
        with pytest.raises(BokiError, match="is forgotten") as error:
            await leasing
        assert error.value.outcome == "unknown"
        popping = asyncio.ensure_future(queue.pop(wait_s=50))
        await turns(60)
        await producer.push("z")
        message = await popping
        assert message is not None
