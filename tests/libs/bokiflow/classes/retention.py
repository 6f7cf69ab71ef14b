"""What is kept: histories are trimmed after their time, ids are used again, and long workflows begin as new."""

from __future__ import annotations

from typing import Any

import pytest

from boki import FunctionFailed, InvalidArgument
from boki.libs.bokiflow import Handle, flow, workflow
from boki.libs.bokiflow.records import inbox_tag, journal_tag
from boki.libs.bokiflow.replaying import read_history
from boki.testing import Context
from tests.libs.bokiflow.classes import DONE, case, do, done, ended_as, result_of, until

KEEP_S = 20
DAY_S = 24 * 3_600


@workflow(keep_s=KEEP_S)
async def short(what: str) -> str:
    """Ends in the way that is asked for."""
    await do(what)
    if what == "killed":
        await flow.sleep(1_000)
    if what == "wrong":
        raise ValueError(what)
    return what + str(await flow.receive("word") if what == "told" else "")


async def left(ctx: Context, handle: Handle[Any]) -> int:
    """How many records of its journal and of its inbox there are."""
    tags = journal_tag(handle.invocation_id), inbox_tag(handle.invocation_id)
    return sum([len((await ctx.logbook.read(tag)).records) for tag in tags])


async def _sweep(ctx: Context) -> None:
    """Have another workflow end, twice: where one ends, histories that are old are trimmed. It has a record as well."""
    for _ in range(2):
        await result_of(ctx, short, "other")
        await ctx.clock.advance(3)


@case("Restate JournalRetention; DBOS garbage_collection")
async def a_history_is_trimmed_after_its_time_and_not_before(ctx: Context) -> None:
    handles = {what: await short.start(ctx, what, id=what) for what in ("well", "told", "wrong", "killed")}
    await handles["told"].signal("word", "!")
    await until(ctx, lambda: "killed" in done())
    await handles["killed"].kill()
    ends = {what: await ended_as(handle) for what, handle in handles.items() if what != "killed"}
    assert ends == {"well": "well", "told": "told!", "wrong": "ValueError"}
    await _sweep(ctx)
    assert all([await left(ctx, handle) for handle in handles.values()])
    await ctx.clock.advance(KEEP_S)
    await _sweep(ctx)
    assert [await left(ctx, handle) for handle in handles.values()] == [0, 0, 0, 0]
    assert await handles["told"].result() == "told!", "the result stays"
    assert (await handles["killed"].status()).status == "cancelled"
    with pytest.raises(FunctionFailed, match="wrong"):
        await handles["wrong"].result()


@case("Temporal WorkflowIdReusePolicy: after the retention of the first")
async def an_id_is_used_again_after_its_history_was_trimmed(ctx: Context) -> None:
    handle = await short.start(ctx, "well", id="one")
    await handle.result()
    await ctx.clock.advance(KEEP_S)
    await _sweep(ctx)
    assert await left(ctx, handle) == 0
    with pytest.raises(InvalidArgument, match="nothing has ended yet"):
        await handle.rewind(1)
    again = await short.start(ctx, "again", id="one", if_ended="again")
    assert await again.result() == "again"
    await again.rewind(0)
    assert await again.result() == "again"
    assert done()["again"] == 2


@case("Temporal: a reset of what is about to be deleted")
async def what_was_rewound_is_kept(ctx: Context) -> None:
    handle = await short.start(ctx, "told", id="one")
    await handle.signal("word", "!")
    assert await handle.result() == "told!"
    await ctx.clock.advance(KEEP_S - 4)
    await handle.rewind()
    assert await handle.result() == "told!"
    await ctx.clock.advance(8)
    await _sweep(ctx)
    assert await left(ctx, handle) >= 2
    assert (await read_history(ctx.logbook, journal_tag(handle.invocation_id))).entries
    await ctx.clock.advance(KEEP_S)
    await _sweep(ctx)
    assert await left(ctx, handle) == 0


@case("Beldi gctest: the log of steps does not grow", clusters=False)
async def nothing_is_left_of_what_ended_a_day_ago(ctx: Context) -> None:
    handles = [await short.start(ctx, f"n{number}") for number in range(20)]
    for handle in handles:
        await handle.result()
    await ctx.clock.advance(DAY_S + KEEP_S)
    await _sweep(ctx)
    assert [await left(ctx, handle) for handle in handles] == [0] * 20
    assert len((await ctx.logbook.read(f"!fe:{KEEP_S}")).records) <= 2


@case("Temporal: a history that grows without bounds; temporal#1289")
async def a_long_workflow_begins_as_new_at_a_step_count(ctx: Context) -> None:
    @workflow(continue_after=5)
    async def counting(count: int) -> int:
        while count < 18:
            await do(f"step {count}")
            count += 1
            flow.continue_if_long(count)
        return count

    handle = await counting.start(ctx, 0, id="c")
    assert await handle.result() == 18
    assert list(DONE.values()) == [f"step {number}" for number in range(18)]
    history = await read_history(ctx.logbook, journal_tag(handle.invocation_id))
    assert history.continued is not None
    assert len(history.entries) <= 5


@case("temporal features signals_block_continue_as_new")
async def signals_reach_the_round_that_a_step_count_begins(ctx: Context) -> None:
    @workflow(continue_after=3)
    async def summing(state: list[int]) -> int:
        total, count = state
        while count < 10:
            total, count = total + await flow.receive("number"), count + 1
            await do(f"number {count}")
            flow.continue_if_long([total, count])
        return total

    handle = summing.handle(ctx, "s")
    for number in range(5):
        await handle.signal("number", number)
    await summing.start(ctx, [0, 0], id="s")
    for number in range(5, 10):
        await ctx.clock.advance(number % 3)
        await handle.signal("number", number)
    assert await handle.result() == 45
    assert done() == {f"number {count}": 1 for count in range(1, 11)}
