"""Messages whose bodies no replica can read any more: they are told of, and take no others along."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from boki import CorruptData, NotFound
from boki.libs.bokiqueue import Queue, folds
from boki.libs.bokiqueue.following import Queues
from boki.log.operations import Answer, Append, Get, Operation, Read
from boki.testing.memory_port import MemoryPort
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokiqueue.test_crashes import Process


class Rotten(Process):
    """A process that cannot read some records by themselves, and keeps no bodies."""

    rotten: frozenset[int] = frozenset()

    async def request(self, operation: Operation, positions: Any, timeout_s: float) -> Answer:
        if isinstance(operation, Get) and operation.seqnum in self.rotten:
            raise CorruptData("no copy of it can be read")
        return await super().request(operation, positions, timeout_s)


async def with_rot(rotten: set[int], count: int = 20) -> tuple[Rotten, Queue[Any], list[str]]:
    """A queue of numbers, some of which cannot be read; their ids."""
    process = Rotten(MemoryPort())
    process.access.shared(Queues).bodies.budget_bytes = 0
    queue: Queue[Any] = Queue(process.logbook(), "q")
    ids = [await queue.push(number) for number in range(count)]
    process.rotten = frozenset(int(ids[number].split("-")[0]) for number in rotten)
    return process, queue, ids


@asynchronous
async def test_a_body_that_cannot_be_popped_takes_no_others_along() -> None:
    """It is named, and gone; what was to come with it comes next, in order."""
    process, queue, ids = await with_rot({3, 7})
    with pytest.raises(CorruptData) as error:
        await queue.pop_many(6)
    assert ids[3] in str(error.value)
    assert [message.value for message in await queue.pop_many(4)] == [0, 1, 2, 4]
    with pytest.raises(CorruptData, match=ids[7]):
        await queue.pop_many(20)
    other: Queue[int] = Queue(Process(process.port).logbook(), "q")
    for _ in range(20):
        await asyncio.sleep(0)
    assert [message.value for message in await other.pop_many(20)] == [5, 6, *range(8, 20)]
    assert (await queue.stats()).depth == 0


@asynchronous
async def test_a_pop_under_an_op_gives_what_can_be_read() -> None:
    """Whoever repeats it has no other way to the rest."""
    _, queue, ids = await with_rot({1, 2})
    for _ in range(2):
        assert [message.value for message in await queue.pop_many(3, op="mine")] == [0]
    _, queue, ids = await with_rot({0})
    for _ in range(2):
        with pytest.raises(CorruptData, match=ids[0]):
            await queue.pop(op="mine")
    assert [message.value for message in await queue.pop_many(20)] == list(range(1, 20))


@asynchronous
async def test_a_body_that_cannot_be_leased_is_a_dead_letter() -> None:
    """With the reason; who leases it is given the next one. If it can be read again it is redriven."""
    process, queue, ids = await with_rot({0, 1, 5}, count=8)
    assert [message.value for message in await queue.peek()] == [2, 3, 4, 6, 7]
    first = await queue.lease()
    assert first is not None
    assert first.value == 2
    rest = await queue.lease_many(20, wait_s=5)
    assert [message.value for message in rest] == [3, 4, 6, 7]
    await queue.ack(first, *rest)
    assert await queue.lease(wait_s=5) is None
    letters = await queue.dead_letters()
    assert [(letter.id, letter.data) for letter in letters] == [(ids[number], b"") for number in (0, 1, 5)]
    assert all("cannot be read: no copy" in letter.reason for letter in letters)
    process.rotten = frozenset()
    assert await queue.redrive() == 3
    assert [message.value for message in await queue.pop_many(9)] == [0, 1, 5]


@asynchronous
async def test_a_lost_body_does_not_keep_checkpoints_and_trims_from_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its message is carried without it, and is not taken for an empty one."""
    monkeypatch.setattr(folds, "SAVE_RECORDS", 10)
    monkeypatch.setattr(folds, "SAVE_BYTES", 8_000)
    process, queue, ids = await with_rot({0}, count=1)
    assert await queue.lease() is None
    for _ in range(20):
        for _ in range(20):
            await queue.push("x" * 100)
            assert await queue.pop() is not None
        await process.access.shared(Queues).come_to_rest(5)
        await process.port.clock.advance(20 * 60)
    assert len((await queue.logbook.read("!q:q:0", limit=10_000)).records) < 300
    process.rotten = frozenset()
    assert await queue.redrive() == 1
    assert await queue.lease() is None
    (letter,) = await queue.dead_letters()
    assert letter.id == ids[0]
    assert "lost" in letter.reason


class Lagging(Process):
    """A process whose engine has only what a request says that it has seen, and which keeps no bodies."""

    def __init__(self, port: MemoryPort) -> None:
        super().__init__(port)
        self.pushed_at = 0
        self.has_waited = asyncio.Event()
        """The queue was read to its end, and the next record is waited for."""

    async def request(self, operation: Operation, positions: Any, timeout_s: float) -> Answer:
        if isinstance(operation, Read) and operation.wait_us:
            self.has_waited.set()
        if isinstance(operation, Get) and positions.get(0, 0) < self.pushed_at:
            raise NotFound("this engine has not come so far")
        return await super().request(operation, positions, timeout_s)


class Pushing(Process):
    """Another one, which says where its appends stand."""

    def __init__(self, port: MemoryPort, reader: Lagging) -> None:
        super().__init__(port)
        self.reader = reader

    async def request(self, operation: Operation, positions: Any, timeout_s: float) -> Answer:
        answer = await super().request(operation, positions, timeout_s)
        if isinstance(operation, Append):
            self.reader.pushed_at = positions[0]
        return answer


@asynchronous
async def test_a_consumer_reads_bodies_as_new_as_what_the_reader_of_the_queue_has_seen() -> None:
    """A standing lease is served by what another task has read. Else an engine that is behind is asked for the body,
    has none, and the message becomes a dead letter (seed 307565 of the simulator).
    """
    port = MemoryPort()
    process = Lagging(port)
    process.access.shared(Queues).bodies.budget_bytes = 0
    consumer: Queue[int] = Queue(process.logbook(), "q")
    await consumer.create()
    leasing = asyncio.create_task(consumer.lease(30, wait_s=10))
    await process.has_waited.wait()
    await Queue[int](Pushing(port, process).logbook(), "q").push(7)
    message = await leasing
    assert message is not None
    assert message.value == 7
