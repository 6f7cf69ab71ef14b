"""Queues in a book that is trimmed, or retained, as a whole: their records stay readable by their system tags."""

from __future__ import annotations

from typing import Any

import pytest

from boki.libs.bokiqueue import Queue, folds
from boki.libs.bokiqueue.following import Queues
from boki.log.operations import Answer, Append, Operation
from boki.testing.memory_port import MemoryPort
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokiqueue.test_crashes import Process

DAY_S = 24 * 3_600


async def trim_book(port: MemoryPort) -> None:
    """Trim all that is there."""
    logbook = Process(port).logbook()
    await logbook.trim(await logbook.append(b"an end"))


@pytest.mark.parametrize("shards", [1, 2])
@asynchronous
async def test_a_message_outlives_a_trim_of_the_whole_book(shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that begins from a checkpoint holds no bodies of what is delayed: it reads them by the queue's tag."""
    monkeypatch.setattr(folds, "SAVE_RECORDS", 10)
    port = MemoryPort()
    process = Process(port)
    queue: Queue[Any] = Queue(process.logbook(), "q")
    await queue.create(shards=shards)
    for name in ("popped", "leased"):
        await queue.push(name, delay_s=DAY_S)
    for number in range(40):
        await queue.push(number)
        assert await queue.pop() is not None
    await process.access.shared(Queues).come_to_rest(5)
    await trim_book(port)
    await port.clock.advance(2 * DAY_S)
    popped = await Queue[Any](Process(port).logbook(), "q").pop()
    leased = await Queue[Any](Process(port).logbook(), "q").lease()
    assert popped is not None
    assert leased is not None
    assert {popped.value, leased.value} == {"popped", "leased"}
    assert await queue.dead_letters() == []


@asynchronous
async def test_what_lingers_is_carried_with_its_body_after_a_trim_of_the_whole_book(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the newest copy says that the body is lost, and the good one is trimmed."""
    monkeypatch.setattr(folds, "SAVE_RECORDS", 10)
    monkeypatch.setattr(folds, "SAVE_BYTES", 2_000)
    port = MemoryPort()
    process = Process(port)
    process.access.shared(Queues).bodies.budget_bytes = 0
    queue: Queue[Any] = Queue(process.logbook(), "q")
    pushed = int((await queue.push("precious", delay_s=DAY_S)).split("-")[0])
    await trim_book(port)
    for _ in range(100):
        await queue.push("x" * 400)
        assert await queue.pop() is not None
    await process.access.shared(Queues).come_to_rest(5)
    for _ in range(100):
        await queue.push("x" * 400)
        assert await queue.pop() is not None
    await process.access.shared(Queues).come_to_rest(5)
    assert (await queue.logbook.read("!q:q:0", limit=1)).first_seqnum > pushed
    await port.clock.advance(2 * DAY_S)
    message = await queue.lease()
    assert message is not None
    assert message.value == "precious"


@asynchronous
async def test_a_message_that_is_delivered_again_outlives_a_trim_of_the_whole_book() -> None:
    """Bodies that are leased are kept no longer than the page that gave them: the next delivery reads them again."""
    port = MemoryPort()
    queue: Queue[Any] = Queue(Process(port).logbook(), "q")
    await queue.push("again")
    first = await queue.lease(60)
    assert first is not None
    await queue.stats()
    await queue.nack(first, delay_s=60)
    await trim_book(port)
    await port.clock.advance(61)
    second = await queue.lease(60)
    assert second is not None
    assert (second.value, second.deliveries) == ("again", 2)


class Trimming(Process):
    """A process behind whose commits another one trims the whole book at once."""

    async def request(self, operation: Operation, positions: Any, timeout_s: float) -> Answer:
        answer = await super().request(operation, positions, timeout_s)
        if isinstance(operation, Append) and b"an effect" in operation.chunk:
            await trim_book(self.port)
        return answer


@asynchronous
async def test_a_commit_knows_that_it_counts_if_the_book_is_trimmed_behind_it() -> None:
    """It reads the ack that stands there, to tell whose it is: the outcome was unknown, though all was done."""
    queue: Queue[Any] = Queue(Trimming(MemoryPort()).logbook(), "q")
    await queue.push("m")
    message = await queue.lease(60)
    assert message is not None
    async with queue.process(message) as out:
        out.append(b"an effect", ["!effects"])
    assert (await queue.stats()).groups[0].done == 1
