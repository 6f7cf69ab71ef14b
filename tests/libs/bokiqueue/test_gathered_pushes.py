"""Single pushes share records: those of one turn of the loop, and those that come while a record is on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from boki.libs.bokiqueue import Queue, appending
from boki.log.operations import Answer, Append, Operation
from boki.testing.memory_port import MemoryPort
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokiqueue.test_crashes import Process, drain


class Slow(Process):
    """The next append is on its way until `gate` is set; those behind it are not held up."""

    def __init__(self, port: MemoryPort) -> None:
        super().__init__(port)
        self.is_asked, self.gate = asyncio.Event(), asyncio.Event()
        self.is_slow = False

    async def request(self, operation: Operation, positions: Any, timeout_s: float) -> Answer:
        if isinstance(operation, Append) and self.is_slow:
            self.is_slow = False
            self.is_asked.set()
            await self.gate.wait()
        return await super().request(operation, positions, timeout_s)


async def opened(process: Process) -> Queue[int]:
    queue: Queue[int] = Queue(process.logbook(), "q")
    await queue.create()
    return queue


def record_of(identity: str) -> str:
    """The record that holds the message of that id."""
    return identity.split("-")[0]


async def first_on_its_way(process: Slow, queue: Queue[int]) -> asyncio.Task[str]:
    """A push of 0, whose append waits for the gate."""
    process.is_slow = True
    push = asyncio.create_task(queue.push(0))
    await process.is_asked.wait()
    return push


async def ids_of(*pushes: Awaitable[str]) -> list[str]:
    return list(await asyncio.gather(*pushes))


@asynchronous
async def test_pushes_of_one_turn_share_a_record_and_those_of_the_next_another() -> None:
    """Each is told its own place in it, and they are taken in order."""
    queue = await opened(Process(MemoryPort()))
    first = await ids_of(*(queue.push(number) for number in range(3)))
    second = await ids_of(queue.push(3))
    assert [one.split("-")[1] for one in first] == ["0", "1", "2"]
    assert len({record_of(one) for one in first}) == 1
    assert record_of(second[0]) != record_of(first[0])
    assert await drain(queue) == [0, 1, 2, 3]


@asynchronous
async def test_while_a_record_is_on_its_way_the_next_one_gathers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pushes of several turns are one record, which leaves when the one before is answered."""
    monkeypatch.setattr(appending, "HOLD_S", 3_600.0)
    process = Slow(MemoryPort())
    queue = await opened(process)
    first = await first_on_its_way(process, queue)
    later = []
    for number in range(1, 4):
        later.append(asyncio.ensure_future(queue.push(number)))
        await asyncio.sleep(0)  # a turn each: pushes of one turn would share a record anyway
    process.gate.set()
    ids = await ids_of(first, *later)
    assert len({record_of(one) for one in ids[1:]}) == 1
    assert record_of(ids[0]) != record_of(ids[1])
    assert await drain(queue) == [0, 1, 2, 3]


@asynchronous
async def test_a_record_that_is_not_answered_holds_no_push_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """`HOLD_S` later the next one leaves all the same."""
    monkeypatch.setattr(appending, "HOLD_S", 0.0)
    process = Slow(MemoryPort())
    queue = await opened(process)
    first = await first_on_its_way(process, queue)
    await queue.push(1)
    assert not first.done()
    process.gate.set()
    await first
    assert sorted(await drain(queue)) == [0, 1]


@asynchronous
async def test_a_push_that_is_cancelled_while_it_waits_takes_no_other_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its message is not appended, and the others of the record are."""
    monkeypatch.setattr(appending, "HOLD_S", 3_600.0)
    process = Slow(MemoryPort())
    queue = await opened(process)
    first = await first_on_its_way(process, queue)
    hasty = asyncio.ensure_future(queue.push(1))
    patient = asyncio.ensure_future(queue.push(2))
    await asyncio.sleep(0)  # both have begun: a task that has not would never push
    hasty.cancel()
    process.gate.set()
    await ids_of(first, patient)
    assert await drain(queue) == [0, 2]
