"""Messages whose bodies no replica can read any more: they are told of, and take no others along."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from boki import CorruptData, NotFound
from boki.libs.bokiqueue import Queue, folds
from boki.libs.bokiqueue.following import Queues
from boki.libs.bokiqueue.records import LOST, TEXT, Carry, encode
from boki.log.operations import Answer, Append, Get, Operation, Read
from boki.testing.memory_port import MemoryPort
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokiqueue.test_crashes import Process
from tests.libs.bokiqueue.test_shards import turns


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


class Late(Process):
    """A process that keeps no bodies. Its requests for one record are held back until `may_read`."""

    def __init__(self, port: MemoryPort, seqnum: int) -> None:
        super().__init__(port)
        self.access.shared(Queues).bodies.budget_bytes = 0
        self.seqnum = seqnum
        self.has_asked, self.may_read = asyncio.Event(), asyncio.Event()

    async def request(self, operation: Operation, positions: Any, timeout_s: float) -> Answer:
        if isinstance(operation, Get) and operation.seqnum == self.seqnum:
            self.has_asked.set()
            await self.may_read.wait()
        return await super().request(operation, positions, timeout_s)


async def work_until(queue: Queue[Any], is_enough: Callable[[int], bool]) -> None:
    """Push and pop, so that checkpoints become due; `is_enough` is told where the stream begins."""
    for _ in range(300):
        if is_enough((await queue.logbook.read("!q:q:0", limit=1)).first_seqnum):
            return
        await queue.push("x" * 400)
        assert await queue.pop() is not None
        await turns(20)
    raise AssertionError("it did not happen")


@pytest.fixture
def small_carries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that linger are carried soon."""
    monkeypatch.setattr(folds, "SAVE_RECORDS", 10)
    monkeypatch.setattr(folds, "SAVE_BYTES", 2_000)


@pytest.mark.usefixtures("small_carries")
@asynchronous
async def test_a_slow_carrier_does_not_overwrite_what_others_have_carried() -> None:
    """Others have carried the message and trimmed by the time it reads the body: it carried the message as a lost one,
    which the fold believed, since it was the newest copy.
    """
    port = MemoryPort()
    quick: Queue[Any] = Queue(Process(port).logbook(), "q")
    seqnum = int((await quick.push("precious", delay_s=24 * 3_600)).split("-")[0])
    process = Late(port, seqnum)
    slow: Queue[Any] = Queue(process.logbook(), "q")
    await work_until(slow, lambda _: process.has_asked.is_set())
    await work_until(quick, lambda first: first > seqnum)
    process.may_read.set()
    await process.access.shared(Queues).come_to_rest(5)
    await port.clock.advance(24 * 3_600)
    message = await Queue[Any](Process(port).logbook(), "q").lease()
    assert message is not None
    assert message.value == "precious"


class Racing(Rotten):
    """Just before this process carries a message without its body, another one carries it with the body."""

    races = 0

    async def request(self, operation: Operation, positions: Any, timeout_s: float) -> Answer:
        lost = encode(Carry(0, [0], bytes([LOST]), [b""]))
        if isinstance(operation, Append) and lost in operation.chunk and not self.races:
            self.races += 1
            carry = encode(Carry(0, [0], bytes([TEXT]), [b"precious"]))
            await Process(self.port).logbook().append(carry, ["!q:q:0"])
        return await super().request(operation, positions, timeout_s)


@pytest.mark.usefixtures("small_carries")
@asynchronous
async def test_a_message_is_carried_without_its_body_only_if_nothing_came_since() -> None:
    """Others may be able to read it, and carry it between the look of this process at the log and its append."""
    process = Racing(MemoryPort())
    process.access.shared(Queues).bodies.budget_bytes = 0
    queue: Queue[Any] = Queue(process.logbook(), "q")
    pushed = await queue.push("precious", delay_s=24 * 3_600)
    process.rotten = frozenset([int(pushed.split("-")[0])])
    await work_until(queue, lambda _: process.races > 0)
    await process.access.shared(Queues).come_to_rest(5)
    await process.port.clock.advance(24 * 3_600)
    message = await queue.lease()
    assert message is not None
    assert message.value == "precious"


@pytest.mark.usefixtures("small_carries")
@asynchronous
async def test_a_lease_is_served_though_its_message_was_carried_before_its_body_was_read() -> None:
    """It became a dead letter: its record was trimmed between the lease and the reading."""
    port = MemoryPort()
    quick: Queue[Any] = Queue(Process(port).logbook(), "q")
    seqnum = int((await quick.push("precious")).split("-")[0])
    process = Late(port, seqnum)
    slow: Queue[Any] = Queue(process.logbook(), "q")
    leasing = asyncio.ensure_future(slow.lease(3_600))
    await process.has_asked.wait()
    await slow.push("y")
    assert await slow.pop() is not None  # the fold remembers what the last command of a process was given
    await work_until(quick, lambda first: first > seqnum)
    process.may_read.set()
    message = await leasing
    assert message is not None
    assert message.value == "precious"
    assert await quick.dead_letters() == []
