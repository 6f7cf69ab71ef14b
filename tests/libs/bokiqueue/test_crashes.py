"""Queues when processes die at any step, and how large they are afterwards.

A process is a way to the log of its own here: it shares nothing with the others. It dies by never being heard of again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from random import Random
from typing import Any

import pytest

from boki import BokiError, ConnectionLost, LogBook
from boki.api.append_gatherer import AppendGatherer
from boki.api.deadline import Caller, Deadline
from boki.api.logbook import LogSession
from boki.libs.bokiqueue import LeaseLost, Queue, folds
from boki.log.ids import MAX_SEQNUM
from boki.log.operations import Answer, Append, Operation, Read
from boki.testing.memory_port import ENDLESS_S, MemoryPort
from tests.libs.bokiqueue.running import asynchronous


class Process:
    """A process over the log of a port. After `fuel` requests it is cut off: before or after the last was answered."""

    def __init__(self, port: MemoryPort, fuel: int | None = None, *, is_answered: bool = False) -> None:
        self.port = port
        self.fuel = fuel
        self.is_answered = is_answered
        self.appends = AppendGatherer(self)
        caller = Caller(deadline=Deadline(clock=port.clock.time), longest_poll_s=ENDLESS_S, wall_clock=port.clock.time)
        self.access = LogSession(self, self.appends, caller)

    def logbook(self) -> LogBook:
        return self.access.logbook("test")

    async def request(self, operation: Operation, positions: Any, timeout_s: float) -> Answer:
        if self.fuel is not None:
            self.fuel -= 1
            if self.fuel == 0 and not self.is_answered:
                await self.port.request(operation, positions, timeout_s)
            if self.fuel <= 0:
                raise ConnectionLost("the process is dead")
        return await self.port.request(operation, positions, timeout_s)


class Shaky(Process):
    """Every third append is carried out, and its answer lost."""

    count = 0

    async def request(self, operation: Operation, positions: Any, timeout_s: float) -> Answer:
        answer = await super().request(operation, positions, timeout_s)
        self.count += isinstance(operation, Append)
        if isinstance(operation, Append) and self.count % 3 == 0:
            raise ConnectionLost("the answer was lost")
        return answer


@contextmanager
def small_checkpoints(every: int) -> Iterator[None]:
    """A checkpoint after this many records."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folds, "SAVE_RECORDS", every)
        yield


async def drain(queue: Queue[Any]) -> list[Any]:
    return [message.value for message in await _all(queue)]


async def _all(queue: Queue[Any]) -> list[Any]:
    found = []
    while some := await queue.pop_many(100):
        found += some
    return found


@asynchronous
async def test_a_consumer_that_dies_at_any_request_loses_nothing_it_asks_for_again() -> None:
    """Popping under an op: whoever repeats it is given the same message, the next op the next one."""
    for fuel in range(1, 25):
        for is_answered in (False, True):
            port = MemoryPort()
            producer: Queue[int] = Queue(Process(port).logbook(), "q")
            await producer.push_many([1, 2, 3])
            dying: Queue[int] = Queue(Process(port, fuel, is_answered=is_answered).logbook(), "q")
            before = []
            try:
                for op in ("a", "b"):
                    message = await dying.pop(op=op)
                    before.append(message and message.value)
            except BokiError:
                pass
            again: Queue[int] = Queue(Process(port).logbook(), "q")
            after = [message and message.value for message in [await again.pop(op=op) for op in ("a", "b")]]
            assert after == [1, 2]
            assert before == after[: len(before)]
            assert await drain(again) == [3]


@asynchronous
async def test_a_consumer_that_dies_at_any_request_leaves_its_leases_to_others() -> None:
    """Every message is acked once, by somebody, after at most one lease's time."""
    for fuel in range(1, 30):
        port = MemoryPort()
        producer: Queue[int] = Queue(Process(port).logbook(), "q")
        await producer.push_many([1, 2, 3])
        acked = []
        dying: Queue[int] = Queue(Process(port, fuel).logbook(), "q")
        try:
            while (message := await dying.lease(30)) is not None:
                await dying.ack(message)
                acked.append(message.value)
        except BokiError as error:
            assert error.outcome == "unknown"
        other: Queue[int] = Queue(Process(port).logbook(), "q")
        while (message := await other.lease(30, wait_s=60)) is not None:
            await other.ack(message)
            acked.append(message.value)
        stats = await other.stats()
        assert stats.groups[0].done == 3
        assert set(acked) <= {1, 2, 3}
        assert len(acked) in (2, 3)  # the ack of one may have been carried out, and its answer lost
        assert len(set(acked)) == len(acked)


@asynchronous
async def test_effects_happen_exactly_once_though_processes_die_at_any_request() -> None:
    """From queue to queue, under leases that run out: what arrives is what was sent."""
    for fuel in range(1, 45, 2):
        port = MemoryPort()
        source: Queue[int] = Queue(Process(port).logbook(), "source")
        target: Queue[int] = Queue(source.logbook, "target")
        await target.create()
        await source.push_many([1, 2, 3])
        for process in (Process(port, fuel), Process(port)):
            book = process.logbook()
            moving: Queue[int] = Queue(book, "source")
            onward: Queue[int] = Queue(book, "target")
            try:
                await onward.create()
                while (message := await moving.lease(30, wait_s=60)) is not None:
                    async with moving.process(message) as out:
                        out.push(onward, message.value)
            except BokiError:
                continue
        assert sorted(await drain(target)) == [1, 2, 3]


@asynchronous
async def test_answers_that_are_lost_change_nothing() -> None:
    """Acts whose outcome is unknown are appended again, and count once."""
    port = MemoryPort()
    producer: Queue[int] = Queue(Process(port).logbook(), "q")
    await producer.push_many(range(200))
    consumer: Queue[int] = Queue(Shaky(port).logbook(), "q")
    found: list[int] = []

    async def consume() -> None:
        while (message := await consumer.pop(wait_s=5)) is not None:
            found.append(message.value)

    await asyncio.gather(*(consume() for _ in range(8)))
    assert sorted(found) == list(range(200))


@asynchronous
async def test_many_processes_take_every_message_once_in_order() -> None:
    """Whatever they take at once and however often checkpoints are written and the log is trimmed under them."""
    with small_checkpoints(7):
        port = MemoryPort()
        queue: Queue[int] = Queue(Process(port).logbook(), "q")
        await queue.create()
        found: list[list[int]] = []

        async def consume(number: int) -> None:
            mine: list[int] = []
            found.append(mine)
            handle: Queue[int] = Queue(Process(port).logbook(), "q")
            while some := await handle.pop_many(1 + number, wait_s=20):
                mine += [message.value for message in some]

        async def produce(start: int) -> None:
            for value in range(start, start + 60):
                await queue.push(value)

        await asyncio.gather(*(consume(number) for number in range(5)), produce(0), produce(100))
        everything = sorted(value for mine in found for value in mine)
        assert everything == [*range(60), *range(100, 160)]
        for mine in found:
            assert [v for v in mine if v < 100] == sorted(v for v in mine if v < 100)
            assert [v for v in mine if v >= 100] == sorted(v for v in mine if v >= 100)


@asynchronous
async def test_deleting_every_cached_state_changes_no_answer() -> None:
    """Handles that begin from a checkpoint, from the beginning, or continue: one and the same queue."""
    for seed in range(15):
        random = Random(seed)
        with small_checkpoints(5):
            port = MemoryPort()
            fresh = [Process(port) for _ in range(2)]
            pushed, taken, leases = 0, [], []
            for _ in range(60):
                if random.random() < 0.2:
                    fresh[random.randrange(2)] = Process(port)
                queue: Queue[int] = Queue(random.choice(fresh).logbook(), "q")
                step = random.choice(["push", "pop", "lease", "ack", "time"])
                if step == "push":
                    count = random.randint(1, 4)
                    await queue.push_many(range(pushed, pushed + count))
                    pushed += count
                elif pushed and step == "pop":
                    taken += [message.value for message in await queue.pop_many(random.randint(1, 3))]
                elif pushed and step == "lease":
                    message = await queue.lease(20)
                    leases += [message] if message else []
                elif leases and step == "ack":
                    message = leases.pop()
                    try:
                        await queue.ack(message.receipt)
                        taken.append(message.value)
                    except LeaseLost:
                        pass
                elif step == "time":
                    await port.clock.advance(random.choice([1, 15]))
            await port.clock.advance(21)
            if pushed:
                taken += await drain(Queue(Process(port).logbook(), "q"))
            assert sorted(taken) == list(range(pushed)), seed


@asynchronous
async def test_a_queue_that_was_emptied_is_as_small_as_before() -> None:
    """Records are trimmed as soon as every group has passed them, whatever lingers: it is carried along."""
    with small_checkpoints(50):
        port = MemoryPort()
        process = Process(port)
        queue: Queue[bytes] = Queue(process.logbook(), "q")
        await queue.push(b"in a year", delay_s=365 * 24 * 3600)
        await queue.create_group("other")
        other: Queue[bytes] = Queue(process.logbook(), "q", group="other")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(folds, "SAVE_BYTES", 20_000)
            for _ in range(120):
                await queue.push_many([bytes(100)] * 5)
                assert len(await queue.pop_many(5)) == 5
                assert len(await other.pop_many(5)) == 5
            for _ in range(20):
                await asyncio.sleep(0)
        page = await queue.logbook.read(limit=10_000)
        assert len(page.records) < 200
        assert sum(len(record.data) for record in page.records) < 100_000
        await port.clock.advance(365 * 24 * 3600)
        late: Queue[bytes] = Queue(Process(port).logbook(), "q")
        assert await drain(late) == [b"in a year"]


@asynchronous
async def test_a_trim_under_a_process_that_lags_makes_it_begin_from_the_checkpoint() -> None:
    """It has missed records, and knows: it answers as if it had read them."""
    with small_checkpoints(5):
        port = MemoryPort()
        lagging: Queue[int] = Queue(Process(port).logbook(), "q")
        await lagging.push_many(range(5))
        assert (await lagging.stats()).depth == 5
        busy: Queue[int] = Queue(Process(port).logbook(), "q")
        for number in range(5, 60):
            await busy.push(number)
            assert await busy.pop() is not None
        page = await lagging.logbook.read("!q:q:0")
        assert page.first_seqnum > 0
        assert await drain(lagging) == list(range(55, 60))
        assert (await lagging.stats()).groups[0].done == 60


class Refusing(Process):
    """A process whose way to the log breaks for the requests that `refuses` names."""

    refuses: Callable[[Operation], bool] = staticmethod(lambda _: False)

    async def request(self, operation: Operation, positions: Any, timeout_s: float) -> Answer:
        if self.refuses(operation):
            raise ConnectionLost("not this one")
        return await super().request(operation, positions, timeout_s)


@asynchronous
async def test_a_group_whose_history_could_not_be_read_is_there_after_the_next_try() -> None:
    """A record that was not folded is not skipped: else this process would see another queue (simulator, 1796)."""
    port = MemoryPort()
    queue: Queue[int] = Queue(Process(port).logbook(), "q")
    process = Refusing(port)
    observer: Queue[int] = Queue(process.logbook(), "q")
    await queue.push_many([1, 2, 3])
    assert await drain(queue) == [1, 2, 3]
    assert (await observer.stats()).depth == 0
    await queue.create_group("late")
    process.refuses = lambda operation: isinstance(operation, Read) and operation.stop < MAX_SEQNUM
    with pytest.raises(ConnectionLost):
        await observer.stats()
    process.refuses = lambda _: False
    assert [(group.name, group.depth) for group in (await observer.stats()).groups] == [("", 0), ("late", 3)]


@asynchronous
async def test_an_act_that_a_checkpoint_covers_is_not_waited_for() -> None:
    """Also if the first reading after the checkpoint fails: who asks next is served."""
    with small_checkpoints(5):
        port = MemoryPort()
        busy: Queue[int] = Queue(Process(port).logbook(), "q")
        await busy.push_many(range(3))
        process = Refusing(port)
        lagging: Queue[int] = Queue(process.logbook(), "q")
        message = await lagging.lease(30)
        assert message is not None
        process.refuses = lambda operation: isinstance(operation, Read) and operation.wait_us > 0
        with pytest.raises(ConnectionLost):
            await lagging.ack(message)  # its act is in the log, and nobody here has seen it
        for number in range(60):
            await busy.push(number)
            assert await busy.pop() is not None
        assert (await busy.logbook.read("!q:q:0")).first_seqnum > 0
        reads = count()
        process.refuses = lambda operation: (
            isinstance(operation, Read) and operation.tag == "!q:q:0" and not operation.backward and next(reads) == 1
        )
        with suppress(ConnectionLost):  # the reader that looks for the act may be the one that fails
            await lagging.stats()
        assert next(reads) > 1
        process.refuses = lambda _: False
        await busy.push(100)
        assert await lagging.pop(wait_s=1) is not None
