"""Records of one workflow that are more than one request holds: each of them fits, so the workflow continues."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest

import boki.testing
from boki import LogBook
from boki.api.append_gatherer import AppendGatherer
from boki.api.deadline import Caller
from boki.api.logbook import LogSession
from boki.libs.bokiflow import flow, step, workflow
from boki.libs.bokiflow.journal import JournalWriter
from boki.libs.bokiflow.records import Done, Result
from boki.libs.bokiflow.replaying import read_history
from boki.log.limits import DEFAULT_LIMITS
from boki.protocol.calls import Payload
from boki.testing.memory_port import MemoryPort
from tests.libs.bokiflow.crashes import LosingLog, after_each_loss

PART_BYTES = 900_000
COUNT = 8
assert DEFAULT_LIMITS.record_bytes > PART_BYTES
assert DEFAULT_LIMITS.request_bytes < PART_BYTES * COUNT


@step(pure=True)
async def part(n: int) -> str:
    return str(n) * PART_BYTES


@step
async def noted(size: int) -> int:
    return size


@workflow
async def collects(how: str) -> int:
    parts = [await part(n) for n in range(COUNT)]
    size = sum(map(len, parts))
    if how == "a step":
        return await noted(size)
    if how == "a write":
        await flow.store.write("size", size)
    if how == "a timer":
        await flow.sleep(60)
    return size


@pytest.mark.usefixtures("each_mode")
@pytest.mark.parametrize("how", ["the end", "a step", "a write", "a timer"])
async def test_results_of_pure_steps_leave_in_several_appends(boki_context: boki.testing.Context, how: str) -> None:
    """They were kept for one append, which the log refused: the workflow failed with `TooLarge`."""
    assert await (await collects.start(boki_context, how)).result() == PART_BYTES * COUNT


@step
async def fetched(n: int) -> str:
    return str(n) * PART_BYTES


@workflow
async def fetches() -> int:
    return sum(map(len, await asyncio.gather(*(fetched(n) for n in range(5)))))


async def test_what_was_lost_is_sent_again_in_several_appends() -> None:
    """Results that were under way at once, each in an append of its own, were sent again as one."""
    async for ctx in after_each_loss():
        assert await (await fetches.start(ctx)).result() == PART_BYTES * 5


async def test_one_append_at_a_time_is_one_after_an_execution_was_overtaken() -> None:
    """In turn, what does not fit into one append waits for the answer to it."""
    log, changes = LosingLog(), deque[int]()
    book: LogBook = LogSession(MemoryPort(log), AppendGatherer(MemoryPort(log)), Caller()).logbook("test")
    history = await read_history(book, "!fj:run", 0)
    journal = JournalWriter(
        book, "!fj:run", history, 1, 0, lambda: changes.append(journal.durable), run=1, in_turn=True
    )
    for n in range(COUNT):
        journal.add(Done(n, "part", b"", Result(Payload("bytes", b"x" * PART_BYTES))), 0, 0, 1)
    journal.flush()
    await journal.rest()
    assert list(changes) == [2, 4, 6, 8]
    assert (await read_history(book, "!fj:run", 0)).place == COUNT
