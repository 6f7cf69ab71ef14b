"""Ids that are used again: while a workflow of it runs, and when it has ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from boki import AlreadyExists, FunctionFailed
from boki.libs.bokiflow import flow, workflow
from boki.testing import Context
from tests.libs.bokiflow.classes import case, do, done, result_of


@workflow
async def task(name: str) -> str:
    """Does something, waits for a word, and fails if that is "fail"."""
    await do(name)
    word = await flow.receive("word")
    if word == "fail":
        raise ValueError("it was told to")
    return f"{name} {word}"


@workflow
async def follower(name: str) -> str:
    """Has something to undo."""
    flow.compensate(do, f"undo {name}")
    await do(name)
    await flow.sleep(100_000)
    return name


async def ended(ctx: Context, name: str, word: str, **options: Any) -> str:
    """Start it, tell it the word, and wait for its end."""
    handle = await task.start(ctx, name, id="one", **options)
    await ctx.clock.advance(1)  # on a cluster the engine that is asked next may hear of it a little later
    await handle.signal("word", word)
    return await handle.result()


@case("Temporal WorkflowIdConflictPolicy fail: two starts at once")
async def of_two_starts_that_fail_for_each_other_one_runs(ctx: Context) -> None:
    starts = [task.start(ctx, name, id="one", if_running="fail", if_ended="fail") for name in ("a", "b")]
    found = await asyncio.gather(*starts, return_exceptions=True)
    assert sum(isinstance(one, AlreadyExists) for one in found) == 1
    handle = task.handle(ctx, "one")
    await handle.signal("word", "on")
    assert await handle.result() in {"a on", "b on"}
    assert sum(done().values()) == 1


@case("Temporal WorkflowIdReusePolicy reject duplicate")
async def an_id_that_has_ended_is_refused(ctx: Context) -> None:
    assert await ended(ctx, "a", "on") == "a on"
    for name in ("a", "b"):
        with pytest.raises(AlreadyExists, match="done"):
            await task.start(ctx, name, id="one", if_ended="fail")
    assert await task.handle(ctx, "one").result() == "a on"
    assert done() == {"a": 1}


@case("Temporal WorkflowIdReusePolicy allow duplicate failed only: one that has ended well; one that was killed")
async def only_what_has_not_ended_well_is_started_again(ctx: Context) -> None:
    with pytest.raises(FunctionFailed, match="it was told to"):
        await ended(ctx, "a", "fail")
    handle = await task.start(ctx, "b", id="one", if_ended="again_if_failed")
    await ctx.clock.advance(3)
    await handle.kill()
    assert await ended(ctx, "c", "on", if_ended="again_if_failed") == "c on"
    assert await result_of(ctx, task, "c", id="one", if_ended="again_if_failed") == "c on"
    assert done() == {"a": 1, "b": 1, "c": 1}


@case("Temporal WorkflowIdConflictPolicy terminate existing: whatever state it is in")
async def a_start_that_kills_takes_the_place_of_any(ctx: Context) -> None:
    for name in ("runs", "paused", "not begun"):
        handle = await follower.start(ctx, name, id=name, delay_s=100 if name == "not begun" else 0)
        if name == "paused":
            await handle.pause()
        await ctx.clock.advance(3)
        again = await follower.start(ctx, "again", id=name, if_running="kill")
        await ctx.clock.advance(3)
        assert (await again.status()).status == "suspended"
    assert done()["again"] == 3
    assert not any(what.startswith("undo") for what in done())
    await ctx.clock.advance(200)
    assert "not begun" not in done()


@case("durabletask: recursive terminate of the instance that a new one replaces", crashes=False)
async def a_start_that_kills_closes_the_children(ctx: Context) -> None:
    @workflow
    async def parent(name: str) -> str:
        await flow.start(follower, f"child of {name}", id=f"child of {name}")
        return str(await flow.receive("word"))

    await parent.start(ctx, "first", id="one")
    await ctx.clock.advance(5)
    handle = await parent.start(ctx, "second", id="one", if_running="kill")
    with pytest.raises(FunctionFailed, match="WorkflowCancelled"):
        await follower.handle(ctx, "child of first").result()
    await ctx.clock.advance(5)
    assert (await follower.handle(ctx, "child of second").status()).status == "suspended"
    await handle.kill()
    assert done() == {"child of first": 1, "undo child of first": 1, "child of second": 1}


@case("DBOS test_duplication_policy: what the earlier one was told")
async def a_second_life_hears_nothing_of_the_first(ctx: Context) -> None:
    handle = task.handle(ctx, "one")
    for word in ("on", "left over"):
        await handle.signal("word", word)
    assert await result_of(ctx, task, "a", id="one") == "a on"
    again = await task.start(ctx, "b", id="one", if_ended="again")
    await ctx.clock.advance(5)
    assert (await again.status()).status == "suspended"
    await again.signal("word", "new")
    assert await again.result() == "b new"


@case("Stripe idempotency; DBOS return_existing: started again after its end")
async def a_start_that_is_repeated_after_the_end_gives_the_result(ctx: Context) -> None:
    assert await ended(ctx, "a", "on") == "a on"
    await ctx.clock.advance(60)
    assert await result_of(ctx, task, "a", id="one") == "a on"
    assert await asyncio.gather(*(result_of(ctx, task, "a", id="one") for _ in range(3))) == ["a on"] * 3
    assert done() == {"a": 1}
