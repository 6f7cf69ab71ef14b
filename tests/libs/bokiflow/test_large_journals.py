"""Results that fit into records one by one, and together are more than one append holds."""

from __future__ import annotations

import asyncio

import pytest

import boki.testing
from boki.extending import Payload
from boki.libs.bokiflow import flow, step, workflow
from boki.libs.bokiflow.journal import JournalWriter
from boki.libs.bokiflow.records import Done, Result
from boki.libs.bokiflow.replaying import read_history
from boki.libs.bokistore import Store
from tests.libs.bokiflow.crashes import after_each_loss

MANY = 6
BYTES = 900_000


@step(pure=True)
async def computed(number: int) -> bytes:
    return bytes((number,)) * BYTES


@step
async def fetched(number: int) -> bytes:
    await asyncio.sleep(0)
    return bytes((number,)) * BYTES


@workflow
async def computes(how: str) -> int:
    found = [await computed(number) for number in range(MANY)]
    match how:
        case "writes":
            await flow.store.write("sizes", [len(one) for one in found])
        case "commits":
            async with flow.store.transaction() as txn:
                for number in range(3):
                    await txn.object(f"large:{number}").set("", "x" * BYTES)
        case "acts":
            await fetched(0)
    return sum(map(len, found))


@pytest.mark.parametrize("how", ["returns", "writes", "commits", "acts"])
async def test_results_of_pure_steps_take_several_appends(
    boki_context: boki.testing.Context, each_mode: None, how: str
) -> None:
    """They wait for what follows, and travelled with it as one append: the workflow failed with `TooLarge`."""
    ctx = boki_context
    assert await (await computes.start(ctx, how, id="one")).result() == MANY * BYTES
    assert await Store(ctx).object("sizes").get() == ([BYTES] * MANY if how == "writes" else None)
    assert await Store(ctx).object("large:2").exists() == (how == "commits")


@workflow
async def fetches(_: int) -> int:
    return sum(map(len, await asyncio.gather(*(fetched(number) for number in range(MANY)))))


async def test_what_was_under_way_when_an_answer_was_lost_takes_several_appends() -> None:
    """All that is missing is appended again, and that may be more than it was at once."""
    async for ctx in after_each_loss():
        assert await (await fetches.start(ctx, 0, id="one")).result() == MANY * BYTES


async def test_what_was_overtaken_has_one_of_several_appends_in_flight(boki_context: boki.testing.Context) -> None:
    """Also where what was recorded takes several: the next one leaves when the one before it is durable."""
    book, tag = boki_context.logbook, "!fj:run"
    history = await read_history(book, tag, 0)
    durable: list[int] = []
    writer = JournalWriter(book, tag, history, 1, 0, lambda: durable.append(writer.durable), run=1, in_turn=True)
    for n in range(MANY):
        writer.add(Done(n, "step", b"", Result(Payload("bytes", bytes(BYTES)))), 0, 0, 1)
    writer.flush()
    assert writer.append_count == 1
    await writer.rest()
    assert durable == [2, 4, 6]
    assert (await read_history(book, tag, 0)).place == MANY


async def test_no_more_is_kept_than_one_append_holds(boki_context: boki.testing.Context) -> None:
    """Results of pure steps wait for what follows them, and a workflow may have nothing but pure steps."""
    book, tag = boki_context.logbook, "!fj:run"
    writer = JournalWriter(book, tag, await read_history(book, tag, 0), 1, 0, lambda: None, run=1, in_turn=False)
    counts = []
    for n in range(MANY):
        writer.add(Done(n, "step", b"", Result(Payload("bytes", bytes(BYTES)))), 0, 0, 1, lazily=True)
        writer.flush_firm()
        counts.append(writer.append_count)
    assert counts == [0, 0, 2, 2, 2, 4]
    await writer.rest()
