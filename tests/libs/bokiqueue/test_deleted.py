"""Handles that are kept while their book is deleted: what they say was pushed is there for everybody."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import msgspec
import pytest

from boki import BokiError, Unavailable
from boki.libs.bokiqueue import LeaseLost, NoSuchQueue, Queue, folds, operating
from boki.libs.bokiqueue.following import Queues
from boki.libs.bokiqueue.records import record_tags
from boki.libs.bokiqueue.stored import checkpoints_of
from boki.libs.fold.steps import run
from boki.log.operations import Answer, Append, Operation, Read
from boki.testing.memory_port import MemoryPort
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokiqueue.test_crashes import Process, drain


def handle(port: MemoryPort, name: str = "q") -> Queue[Any]:
    """As a new process has it."""
    return Queue(Process(port).logbook(), name)


@pytest.mark.parametrize("options", [{}, {"key": "k"}, {"group_key": "g"}])
@asynchronous
async def test_a_push_makes_the_queue_anew_and_is_taken_by_others(options: dict[str, Any]) -> None:
    """At once, before the handle would look at its settings by itself; also under a key that was used before."""
    port = MemoryPort()
    kept = handle(port)
    await kept.create(shards=2)
    await kept.push("before", **options)
    assert await kept.pop() is not None
    await Process(port).logbook().delete()
    await kept.push("after", **options)
    await kept.push_many(["and", "more"])
    other = handle(port)
    assert (await other.stats()).depth == 3
    assert sorted(await drain(other)) == ["after", "and", "more"]
    await other.push("last")
    assert await drain(kept) == ["last"]


@asynchronous
async def test_all_else_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as a handle looks at its settings again."""
    monkeypatch.setattr(operating, "SETTINGS_S", -1.0)
    port = MemoryPort()
    kept = handle(port)
    await kept.push("before")
    message = await kept.lease()
    assert message is not None
    await Process(port).logbook().delete()
    refused: list[Awaitable[Any]] = [kept.pop(), kept.lease(wait_s=5), kept.ack(message), kept.stats(), kept.peek()]
    refused += [kept.dead_letters(), kept.configure(max_length=3), kept.replay()]
    for one in refused:
        with pytest.raises(NoSuchQueue):
            await one


@asynchronous
async def test_settings_that_change_keep_nobody_from_pushing() -> None:
    """The push is made by the new ones, also from a block that has begun before."""
    port = MemoryPort()
    kept, other = handle(port), handle(port)
    await kept.push(1)
    await other.configure(max_deliveries=3)
    await kept.push(2)
    message = await kept.lease()
    assert message is not None
    async with kept.process(message) as out:
        out.push(kept, 3)
        await other.configure(max_deliveries=4)
    assert await drain(other) == [2, 3]


@asynchronous
async def test_effects_in_a_queue_that_is_no_more_do_not_happen() -> None:
    """It was deleted and made again in another form meanwhile, or not at all."""
    for shards in (0, 2):
        port = MemoryPort()
        source, target = handle(port), handle(port, "target")
        await target.create()
        await source.push("m")
        await Process(port).logbook().delete()
        await source.push("n")
        message = await source.lease()
        assert message is not None
        if shards:
            await handle(port, "target").create(shards=shards)
        with pytest.raises(NoSuchQueue, match="target"):
            async with source.process(message) as out:
                out.append(b"effect", tags=["effects"])
                out.push(target, "lost")
        assert (await source.logbook.read("effects")).records == []
        again = await source.lease()
        assert again is not None
        assert again.deliveries == 2


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3), (1, 1)])
@asynchronous
async def test_who_waits_is_given_what_is_pushed_to_the_queue_made_anew(before: int, after: int) -> None:
    """With whatever number of shards: each message once, and to nobody else."""
    port = MemoryPort()
    consumer, producer = handle(port), handle(port)
    await consumer.create(shards=before)
    taken: list[Any] = []

    async def consume() -> None:
        while len(taken) < 20:
            taken.extend(message.value for message in await consumer.pop_many(3, wait_s=3600))

    consuming = asyncio.ensure_future(consume())
    for _ in range(100):
        await asyncio.sleep(0)
    await Process(port).logbook().delete()
    await producer.create(shards=after)
    for number in range(20):
        await producer.push(number)
    await asyncio.wait_for(consuming, 20)
    assert sorted(taken) == list(range(20))
    assert await drain(handle(port)) == []


@asynchronous
async def test_a_block_whose_own_queue_is_no_more_commits_nothing() -> None:
    """At once, before the handle would look by itself; if the queue was made again its lease is lost."""
    for is_anew in (False, True):
        port = MemoryPort()
        kept = handle(port)
        await kept.push("m")
        message = await kept.lease(60)
        assert message is not None
        with pytest.raises(LeaseLost if is_anew else NoSuchQueue):
            async with kept.process(message) as out:
                out.append(b"effect", ["e"])
                await Process(port).logbook().delete()
                if is_anew:
                    await handle(port).create()
        assert not (await Process(port).logbook().read("e")).records


class Held(Process):
    """A process whose reads, and the answers of whose appends, are held until the events are set."""

    def __init__(self, port: MemoryPort) -> None:
        super().__init__(port)
        self.has_appended, self.may_read, self.may_hear = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.may_read.set()
        self.may_hear.set()

    async def request(self, operation: Operation, positions: Any, timeout_s: float) -> Answer:
        if isinstance(operation, Read):
            await self.may_read.wait()
        answer = await super().request(operation, positions, timeout_s)
        if isinstance(operation, Append):
            self.has_appended.set()
            await self.may_hear.wait()
        return answer


@pytest.mark.parametrize("is_answer_late", [False, True])
@asynchronous
async def test_a_command_behind_which_the_book_is_deleted_is_given_up(is_answer_late: bool) -> None:
    """Its caller hears that the outcome is unknown. It waited forever, and so did all that came after it."""
    port = MemoryPort()
    process = Held(port)
    queue: Queue[Any] = Queue(process.logbook(), "q")
    await queue.push(1)
    message = await queue.lease(60)
    assert message is not None
    await process.access.shared(Queues).come_to_rest(5)
    process.has_appended.clear()
    process.may_read.clear()
    if is_answer_late:
        process.may_hear.clear()
    acking = asyncio.ensure_future(queue.ack(message))
    await process.has_appended.wait()
    await asyncio.sleep(0)
    await Process(port).logbook().delete()
    process.may_read.set()
    for _ in range(50):
        await asyncio.sleep(0)
    process.may_hear.set()
    with pytest.raises(BokiError) as error:
        await asyncio.wait_for(acking, 5)
    assert error.value.outcome == "unknown"
    await handle(port).push(2)
    popped = await asyncio.wait_for(queue.pop(wait_s=3_600), 5)
    assert popped is not None
    assert popped.value == 2


@asynchronous
async def test_create_makes_the_queue_anew_right_after_a_deletion() -> None:
    """With what it says, also through a handle that has just read the settings of the deleted one."""
    port = MemoryPort()
    kept = handle(port)
    await kept.create(shards=2)
    await kept.push("before")
    await Process(port).logbook().delete()
    created = await kept.create(shards=4, max_deliveries=3, max_length=1_000)
    assert (created.shards, created.max_deliveries, created.max_length) == (4, 3, 1_000)
    await kept.push("after")
    assert await handle(port).read_settings(fresh=True) == created
    assert await drain(handle(port)) == ["after"]


class LateTail(Held):
    """A process whose look at the newest checkpoint is held until `may_read`."""

    def __init__(self, port: MemoryPort) -> None:
        super().__init__(port)
        self.has_looked = asyncio.Event()

    async def request(self, operation: Operation, positions: Any, timeout_s: float) -> Answer:
        if isinstance(operation, Read) and operation.tag == "!qc:q:0" and operation.backward:
            self.has_looked.set()
            return await super().request(operation, positions, timeout_s)
        return await Process.request(self, operation, positions, timeout_s)


@asynchronous
async def test_a_checkpoint_does_not_bring_a_deleted_book_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was on its way. Whoever read it afterwards read forever: what it needs is gone."""
    monkeypatch.setattr(folds, "SAVE_RECORDS", 10)
    port = MemoryPort()
    process = LateTail(port)
    queue: Queue[Any] = Queue(process.logbook(), "q")
    await queue.push("a")
    assert await queue.pop() is not None
    process.may_read.clear()
    process.has_looked.clear()
    while not process.has_looked.is_set():
        await queue.push("b")
        assert await queue.pop() is not None
        for _ in range(10):
            await asyncio.sleep(0)
    await Process(port).logbook().delete()
    process.may_read.set()
    await process.access.shared(Queues).come_to_rest(5)
    assert not (await Process(port).logbook().read("!qc:q:0")).records
    await handle(port).push("after")
    assert await asyncio.wait_for(drain(handle(port)), 5) == ["after"]


@pytest.mark.parametrize("shards", [1, 2])
@asynchronous
async def test_a_checkpoint_of_a_deleted_queue_is_passed_by(shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier versions may have left one. The queue is read from its beginning, and the next checkpoint counts."""
    monkeypatch.setattr(folds, "SAVE_RECORDS", 10)
    port = MemoryPort()
    queue = handle(port)
    await queue.create(shards=shards)
    await queue.push_many(range(5))
    line = (await queue.opened()).lines[0]
    await queue.stats()
    book = Process(port).logbook()
    await book.delete()
    state = line.state
    saving = checkpoints_of("q", 0).save(
        msgspec.msgpack.encode(state.snapshot()), state.at, 0, record_tags("q", 0, shards)
    )
    assert await run(saving, book) is not None
    await handle(port).create(shards=shards)
    for number in range(60):
        await handle(port).push(number)
    other = handle(port)
    assert sorted(await asyncio.wait_for(drain(other), 5)) == list(range(60))
    for number in range(60):
        await other.push(number)
        assert await other.pop() is not None
    await other.push("last")
    assert await asyncio.wait_for(drain(handle(port)), 5) == ["last"]


class Stumbling(Process):
    """A process whose next read of the stream fails, and whose appends are held until `may_append`."""

    def __init__(self, port: MemoryPort) -> None:
        super().__init__(port)
        self.is_failing = False
        self.may_append = asyncio.Event()
        self.may_append.set()

    async def request(self, operation: Operation, positions: Any, timeout_s: float) -> Answer:
        if isinstance(operation, Append):
            await self.may_append.wait()
        if isinstance(operation, Read) and operation.tag == "!q:q:0" and self.is_failing:
            self.is_failing = False
            raise Unavailable("a moment")
        return await super().request(operation, positions, timeout_s)


@asynchronous
async def test_a_caller_that_comes_after_a_failed_read_hears_that_the_queue_was_made_anew() -> None:
    """The reader pauses, and a command finds the queue with other shards: the caller that gathers for the next one
    waited forever.
    """
    port = MemoryPort()
    process = Stumbling(port)
    queue: Queue[Any] = Queue(process.logbook(), "q")
    await queue.push_many([1, 2])
    first, second = await queue.lease_many(2)
    await process.access.shared(Queues).come_to_rest(5)
    process.may_append.clear()
    process.is_failing = True
    with pytest.raises(Unavailable):
        await queue.ack(first)
    late = asyncio.ensure_future(queue.ack(second))
    await asyncio.sleep(0)
    await Process(port).logbook().delete()
    await handle(port).create(shards=2)
    process.may_append.set()
    with pytest.raises(NoSuchQueue):
        await asyncio.wait_for(late, 5)
