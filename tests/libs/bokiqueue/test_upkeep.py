"""Checkpoints, trims and carrying by processes that come and go, and what they read when something is in the way."""

from __future__ import annotations

import asyncio
from typing import Any
from zlib import crc32

import msgspec
import pytest

from boki import CorruptData, LogBook, Trimmed, Unavailable
from boki.libs.bokiqueue import Queue, folds, records
from boki.libs.bokiqueue.callers import Bodies
from boki.libs.bokiqueue.following import queues_of
from boki.libs.bokiqueue.groups import Delivery, Spot
from boki.libs.fold import checkpoints
from boki.log.operations import Answer, Operation, Read
from boki.retry import Backoff
from boki.testing.memory_port import MemoryPort
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokiqueue.test_crashes import Process


@asynchronous
async def test_processes_that_live_shortly_carry_what_lingers(monkeypatch: pytest.MonkeyPatch) -> None:
    """How much of the stream lies behind is in the checkpoints: nobody needs to have followed all of it."""
    monkeypatch.setattr(folds, "SAVE_RECORDS", 10)
    monkeypatch.setattr(folds, "SAVE_BYTES", 8_000)
    port = MemoryPort()
    queue: Queue[bytes] = Queue(Process(port).logbook(), "q")
    await queue.push(b"in a year", delay_s=365 * 24 * 3600)
    for _ in range(20):
        shortly: Queue[bytes] = Queue(Process(port).logbook(), "q")
        for _ in range(20):
            await shortly.push(bytes(100))
            assert await shortly.pop() is not None
        for _ in range(20):
            await asyncio.sleep(0)
        await port.clock.advance(20 * 60)  # what a process was given last is remembered for a quarter of an hour
    page = await queue.logbook.read("!q:q:0", limit=10_000)
    assert len(page.records) < 300
    await port.clock.advance(365 * 24 * 3600)
    late = await Queue[bytes](Process(port).logbook(), "q").pop()
    assert late is not None
    assert late.data == b"in a year"


@asynchronous
async def test_what_strangers_append_under_a_queues_tags_is_passed_by() -> None:
    """Anybody may append under any tag: the queue continues, in processes that follow it and in new ones."""
    port = MemoryPort()
    follows: Queue[int] = Queue(Process(port).logbook(), "q")
    await follows.logbook.append(b"hello", ["!qs:q", "!qc:q:0", "!q:q:0", "!queues", "!queues:q"])
    await follows.push(1)
    assert (await follows.stats()).depth == 1
    for tag in ("!q:q:0", "!qs:q", "!qc:q:0", "!qf:q:0"):
        await follows.logbook.append(b"hello", [tag])
    await follows.push(2)
    begins: Queue[int] = Queue(Process(port).logbook(), "q")
    first = await follows.lease()
    assert first is not None
    async with follows.process(first) as out:
        out.append(b"done")
    second = await begins.pop()
    assert second is not None
    assert (first.value, second.value) == (1, 2)
    assert (await begins.configure(max_deliveries=3)).max_deliveries == 3


class Unlucky(Process):
    """Whenever it has found the newest checkpoint, somebody trims it away."""

    async def request(self, operation: Operation, positions: Any, timeout_s: float) -> Answer:
        if isinstance(operation, Read) and operation.tag == "!qc:q:0" and operation.limit > 1:
            raise Trimmed("a newer one has taken its place")
        return await super().request(operation, positions, timeout_s)


@asynchronous
async def test_a_process_that_cannot_get_hold_of_a_checkpoint_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not try forever; nor is a checkpoint that lacks a part taken for a whole one: the one before it is, and
    without one, what it covers is gone and not taken for never having been.
    """
    monkeypatch.setattr(folds, "SAVE_RECORDS", 5)
    monkeypatch.setattr(checkpoints, "RACING", Backoff(first_s=0.0, tries=20))
    port = MemoryPort()
    queue: Queue[int] = Queue(Process(port).logbook(), "q")
    for number in range(10):
        await queue.push(number)
        await queue.pop()
    for _ in range(20):
        await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="try again"):
        await Queue[int](Unlucky(port).logbook(), "q").stats()
    tail = await queue.logbook.check_tail("!qc:q:0")
    assert tail is not None
    saved = records.decode(tail.data)
    assert isinstance(saved, records.Saved)
    torn = msgspec.structs.replace(saved, first=tail.seqnum)
    await queue.logbook.append(records.encode(torn), ["!qc:q:0"])
    before = await queue.stats()
    assert await Queue[int](Process(port).logbook(), "q").stats() == before
    await queue.logbook.trim(tail.next_seqnum, tag="!qc:q:0")
    with pytest.raises(CorruptData, match="the checkpoint under tag"):
        await Queue[int](Process(port).logbook(), "q").stats()


@asynchronous
async def test_a_process_that_ends_first_comes_to_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that is being written is finished; what takes too long is ended."""
    monkeypatch.setattr(folds, "SAVE_RECORDS", 5)
    port = MemoryPort()
    queue: Queue[int] = Queue(Process(port).logbook(), "q")
    way = queues_of(queue.logbook)
    for number in range(3):
        await queue.push(number)
        await queue.pop()
    await way.come_to_rest(20)
    assert await queue.logbook.check_tail("!qc:q:0") is not None
    followed = way.find("test", "q", 0.0)
    assert followed is not None
    never = asyncio.get_running_loop().create_future()
    followed.tasks.spawn(asyncio.wait_for(never, None))
    await way.come_to_rest(0)
    assert never.cancelled()
    assert not followed.is_busy


@pytest.mark.parametrize("left", ["popped", "op", "delayed", "dead"])
@asynchronous
async def test_a_shard_that_lies_still_does_not_keep_the_feed(monkeypatch: pytest.MonkeyPatch, left: str) -> None:
    """Whatever is left in it: what was popped there, or under an op, a message that is delayed, a dead letter."""
    for name, bound in {"SAVE_RECORDS": 20, "SAVE_BYTES": 1_000, "FEED_BYTES": 4_000}.items():
        monkeypatch.setattr(folds, name, bound)
    keys = {crc32(key.encode()) % 2: key for key in map(str, range(20))}
    port = MemoryPort()
    queue: Queue[bytes] = Queue(Process(port).logbook(), "q")
    await queue.create(shards=2)
    await queue.push(b"still", group_key=keys[1], delay_s=3e7 if left == "delayed" else 0)
    if left == "dead":
        message = await queue.lease()
        assert message is not None
        await queue.bury(message, reason="no")
    elif left != "delayed":
        while await queue.pop(op=keys[1] if left == "op" else None) is None:
            pass
    for number in range(240):
        await queue.push(bytes(50), group_key=keys[0])
        assert await queue.pop() is not None
        if number % 10 == 0:
            await queues_of(queue.logbook).come_to_rest(20)
            await port.clock.advance(600)
    feed = await queue.logbook.read("!q:q", limit=10_000)
    assert len(feed.records) < 320
    fresh: Queue[bytes] = Queue(Process(port).logbook(), "q")
    if left == "dead":
        assert [letter.data for letter in await fresh.dead_letters()] == [b"still"]
    elif left == "delayed":
        await port.clock.advance(3e7)
        late = await fresh.pop()
        assert late is not None
        assert late.data == b"still"


@asynchronous
async def test_what_lingers_is_carried_at_a_cost_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its bytes, not by its number, and a bounded part of it at once."""
    for name, bound in {"SAVE_RECORDS": 10, "SAVE_BYTES": 80_000, "CARRY_BYTES": 160_000}.items():
        monkeypatch.setattr(folds, name, bound)
    carried: list[int] = []
    fetch = Bodies.fetch

    async def noting(self: Bodies, logbook: LogBook, taken: list[tuple[str, Delivery]], *rest: int) -> list[Any]:
        found: list[Any] = await fetch(self, logbook, taken, *rest)
        if not any(one.token for _, one in taken):  # nobody took them: they are read to be carried
            carried.append(sum(len(body) for _, body in found))
        return found

    monkeypatch.setattr(Bodies, "fetch", noting)
    port = MemoryPort()
    queue: Queue[bytes] = Queue(Process(port).logbook(), "q")
    for _ in range(10):
        await queue.push(bytes(50_000), delay_s=365 * 24 * 3600)
    for _ in range(3):
        await queue.push_many([bytes(10)] * 9, delay_s=365 * 24 * 3600)
    for number in range(1, 121):
        await queue.push(bytes(40_000))
        assert await queue.pop() is not None
        if number % 2 == 0:
            await queues_of(queue.logbook).come_to_rest(20)
            await port.clock.advance(20 * 60)
        if number == 30:
            assert not carried
    assert sum(carried) in (500_270, 1_000_540)
    assert 150_000 <= max(carried) <= 160_000


def test_a_batch_counts_each_record_that_is_read_once() -> None:
    """A push of many small messages and a large one is not read again for each of them: its size is that of a
    record.
    """
    large = [Spot(pos, 7, pos, 0, size_bytes=900_000) for pos in range(2_500)]
    assert folds._size_bytes(large) == records.MAX_MESSAGE_BYTES
    alone = [[Spot(pos, 10 + pos, 0, 0, size_bytes=900_000)] for pos in range(9)]
    runs = records.runs(alone, folds._size_bytes, folds.CARRY_BYTES, folds.CARRY_RECORDS)
    assert [len(some) for some in runs] == [4, 4, 1]


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("is_consumed", [False, True])
@asynchronous
async def test_messages_that_expire_take_no_space_though_nobody_takes_any(
    monkeypatch: pytest.MonkeyPatch, shards: int, is_consumed: bool
) -> None:
    """Whether a group came once and went away, or never. Who comes late is given what lives, and has little to read."""
    for name, bound in {"SAVE_RECORDS": 20, "SAVE_BYTES": 10_000, "FEED_BYTES": 20_000}.items():
        monkeypatch.setattr(folds, name, bound)
    port = MemoryPort()
    queue: Queue[int] = Queue(Process(port).logbook(), "q")
    await queue.create(shards=shards)
    if is_consumed:
        await queue.push(0)
        assert await queue.pop() is not None
    for number in range(160):
        await queue.push(number, ttl_s=60)
        await port.clock.advance(10)
        await queues_of(queue.logbook).come_to_rest(20)
    tag = "!q:q" if shards > 1 else "!q:q:0"
    assert len((await queue.logbook.read(tag, limit=10_000)).records) < 100
    late: Queue[int] = Queue(Process(port).logbook(), "q")
    assert (await late.stats()).depth == 5
    messages = [message.value for _ in range(2 * shards) for message in await late.pop_many(10)]
    assert sorted(messages) == [155, 156, 157, 158, 159]


@pytest.mark.parametrize("holds", ["retention", "slow group", "backlog"])
@asynchronous
async def test_messages_that_linger_are_not_carried_while_something_else_holds_the_floor(
    holds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No copy would let anything be trimmed: the stream grew by all of them with each checkpoint, without bound."""
    monkeypatch.setattr(folds, "SAVE_RECORDS", 20)
    monkeypatch.setattr(folds, "SAVE_BYTES", 8_000)
    port = MemoryPort()
    queue: Queue[str] = Queue(Process(port).logbook(), "q")
    await queue.create(retain_s=365 * 24 * 3600 if holds == "retention" else 0)
    if holds == "slow group":
        await queue.create_group("slow")
    for _ in range(10):
        await queue.push("later", delay_s=30 * 24 * 3600)
    for _ in range(100 if holds == "backlog" else 0):
        await queue.push("y" * 1_000)
    for _ in range(10):
        for _ in range(15):
            await queue.push("x" * 1_000)
            if holds != "backlog":
                assert await queue.pop() is not None
        if holds == "backlog":
            assert await queue.pop() is not None
        await queues_of(queue.logbook).come_to_rest(20)
        await port.clock.advance(20 * 60)
    page = await queue.logbook.read("!q:q:0", limit=10_000)
    kinds = [type(records.sound(record)) for record in page.records]
    assert kinds.count(records.Saved) >= 5
    assert kinds.count(records.Carry) <= 1
