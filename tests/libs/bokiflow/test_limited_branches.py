"""Limits of workflows that go back: who asks to begin once more, who does not, and how a place is freed after it."""

from __future__ import annotations

import asyncio

import pytest

import boki.testing
from boki import FunctionFailed
from boki.libs.bokiflow import Handle, Limit, flow, workflow

RAN: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    RAN.clear()


async def _work(seconds: float) -> str:
    if flow.id not in RAN:
        RAN.append(flow.id)
    await flow.sleep(seconds)
    return flow.id


@workflow(limit=Limit(concurrency=1))
async def one_at_once(seconds: float) -> str:
    return await _work(seconds)


async def cancelled_in_the_queue(ctx: boki.testing.Context) -> tuple[Handle[str], Handle[str]]:
    """One that runs, and one that was cancelled while it waited for its turn."""
    runs, waits = [await one_at_once.start(ctx, 10, id=name) for name in ("runs", "waits")]
    await ctx.clock.advance(1)
    await cancel(waits)
    return runs, waits


async def cancel(handle: Handle[str]) -> None:
    """Have it end so."""
    await handle.cancel("not wanted")
    with pytest.raises(FunctionFailed, match="was cancelled"):
        await handle.result()


@pytest.mark.parametrize("end", ["done", "cancelled"])
async def test_a_rewound_workflow_does_not_ask_its_limit(boki_context: boki.testing.Context, end: str) -> None:
    """Also in front of its first step: it was let begin once."""
    ctx = boki_context
    handle = await one_at_once.start(ctx, 10, id="rewound")
    await ctx.clock.advance(1)
    if end == "cancelled":
        await cancel(handle)
    else:
        await handle.result()
    runs = await one_at_once.start(ctx, 1_000, id="runs")
    await ctx.clock.advance(1)
    assert await handle.rewind(0) == 0
    assert await handle.result() == "rewound"
    assert (await runs.status()).status == "suspended"


async def test_a_fork_asks_its_limit_if_it_keeps_no_step(boki_context: boki.testing.Context) -> None:
    """Else it is under way already."""
    ctx = boki_context
    handle = await one_at_once.start(ctx, 10, id="first")
    await handle.result()
    runs = await one_at_once.start(ctx, 1_000, id="runs")
    await ctx.clock.advance(1)
    assert await (await handle.fork(1, id="continues")).result() == "continues"
    assert (await runs.status()).status == "suspended"
    whole = await handle.fork(0, id="begins")
    await ctx.clock.advance(1)
    assert (await whole.status()).note.startswith("waits for its turn")


async def test_one_that_was_cancelled_in_the_queue_asks_when_it_is_rewound(boki_context: boki.testing.Context) -> None:
    """It was never let begin."""
    ctx = boki_context
    runs, waits = await cancelled_in_the_queue(ctx)
    assert await waits.rewind() == 0
    await ctx.clock.advance(1)
    assert (await waits.status()).note.startswith("waits for its turn")
    assert [await runs.result(), await waits.result()] == ["runs", "waits"]


@pytest.mark.parametrize("way", ["fork", "rewind"])
async def test_what_has_asked_again_frees_its_place(boki_context: boki.testing.Context, way: str) -> None:
    """A fork, or a rewound workflow that was cancelled in the queue, ends: the one that waits for that begins."""
    ctx = boki_context
    runs, again = await cancelled_in_the_queue(ctx)
    await runs.result()
    if way == "fork":
        again = await runs.fork(0, id="again")
    else:
        await again.rewind()
    await ctx.clock.advance(1)
    waits = await one_at_once.start(ctx, 10, id="next")
    await ctx.clock.advance(1)
    assert (again.id in RAN, "next" in RAN) == (True, False)
    await ctx.clock.advance(60)
    assert (await waits.status()).status == "done"


async def test_one_that_is_cancelled_in_the_queue_twice_asks_again(boki_context: boki.testing.Context) -> None:
    """Its first rewind is in its journal, and it has not begun by that."""
    ctx = boki_context
    _, waits = await cancelled_in_the_queue(ctx)
    await waits.rewind()
    await ctx.clock.advance(1)
    await cancel(waits)
    await waits.rewind()
    await ctx.clock.advance(1)
    assert (await waits.status()).note.startswith("waits for its turn")


async def test_one_that_has_done_nothing_does_not_ask_when_it_is_rewound(boki_context: boki.testing.Context) -> None:
    """Nothing but its end is recorded: it was let begin."""

    @workflow(limit=Limit(concurrency=1))
    async def listens(word: str) -> str:
        return word or str(await flow.receive("word"))

    ctx = boki_context
    handle = await listens.start(ctx, "at once")
    await handle.result()
    await listens.start(ctx, "", id="holds the place")
    await ctx.clock.advance(5)
    await handle.rewind(0)
    await ctx.clock.advance(5)
    assert (await handle.status()).status == "done"


@workflow(limit=Limit(concurrency=1))
async def looked_at(what: str) -> None:
    """Records something that is no step."""
    if what == "query":
        flow.on_query("state", lambda _: "runs")
    else:
        assert flow.patched("better")
    await flow.sleep(1_000)


@pytest.mark.parametrize("what", ["query", "patched"])
async def test_a_fork_that_keeps_no_step_asks_whatever_else_it_keeps(
    boki_context: boki.testing.Context, what: str
) -> None:
    """A query, or a patch: it went past the one that runs."""
    ctx = boki_context
    first = await looked_at.start(ctx, what)
    await ctx.clock.advance(5)
    forked = await first.fork(0)
    await ctx.clock.advance(5)
    assert (await forked.status()).note.startswith("waits for its turn")
    await ctx.clock.advance(5_000)
    assert [(await one.status()).status for one in (first, forked)] == ["done", "done"]


async def test_a_fork_has_the_limit_of_its_start(boki_context: boki.testing.Context) -> None:
    """Its key and its priority, too: it is counted as the first one was, and waits in front of others."""

    @workflow
    async def free(seconds: float) -> str:
        return await _work(seconds)

    ctx = boki_context
    limit = Limit(concurrency=1)
    first = await free.start(ctx, 10, id="first", limit=limit, limit_key="mine", priority=5)
    await first.result()
    for name in ("runs", "waits"):
        await free.start(ctx, 10, id=name, limit=limit, limit_key="mine")
    await ctx.clock.advance(1)
    forked = await first.fork(0, id="fork")
    await ctx.clock.advance(1)
    assert (await forked.status()).note == "waits for its turn: at most 1 at once for 'mine'"
    await ctx.clock.advance(60)
    assert RAN == ["first", "runs", "fork", "waits"]


@workflow(limit=Limit(concurrency=1, when_full="cancel_running"))
async def turns(turn: int) -> str:
    await flow.sleep(1)
    try:
        word: str = await flow.receive("word")
    except asyncio.CancelledError:
        return f"cleaned up {await flow.receive('word')}"
    return word if turn else flow.continue_as_new(1)


async def test_a_cancellation_that_a_rewind_has_forgotten_stays_so(boki_context: boki.testing.Context) -> None:
    """Also in the next round, which reads from the first message that nobody has taken: it stands in front of that."""
    ctx = boki_context
    handle = await turns.start(ctx, 0, id="one")
    await ctx.clock.advance(2)
    await handle.signal("later", 1)
    await turns.start(ctx, 0, id="two")
    await ctx.clock.advance(2)
    await handle.pause()
    await ctx.clock.advance(2)
    await handle.rewind(0)
    for word in ("a", "b"):
        await ctx.clock.advance(2)
        await handle.signal("word", word)
    assert await handle.result() == "b"
