"""Signals, updates, promises, cancellation and pauses: each message is taken once, whenever it comes.

Classes of failures from threads of Temporal, Durable Functions and Dapr are named where they are held.
"""

import asyncio
from random import Random
from typing import Any

import pytest

import boki.testing
from boki import FunctionFailed, InvalidArgument, KeyReused
from boki.extending import InvocationState, encode_any
from boki.libs.bokiflow import Handle, NoSuchWorkflow, WorkflowEnded, flow, step, workflow
from boki.libs.bokiflow.records import CancelRequested, Signalled

pytestmark = pytest.mark.usefixtures("each_mode")


@step
async def add(a: int, b: int) -> int:
    return a + b


@workflow
async def triples(first: int) -> int:
    """Takes signals three by three, and continues as new after each three."""
    got = [await flow.receive("x") for _ in range(3)]
    assert got == [first, first + 1, first + 2]
    if first + 3 >= LAST[0]:
        return first + 3
    return flow.continue_as_new(first + 3)


LAST = [0]


@workflow
async def account() -> int:
    total = 0
    is_closed = False

    async def deposit(cents: int) -> int:
        nonlocal total
        total = await add(total, cents)
        return total

    def check(cents: int) -> None:
        if cents <= 0:
            raise ValueError("not positive")

    def close() -> None:
        nonlocal is_closed
        is_closed = True

    flow.on_update("deposit", deposit, validator=check)
    flow.on_signal("close", lambda _: close())
    await flow.wait_for(lambda: is_closed)
    return total


async def test_signals_against_continue_as_new(boki_context: boki.testing.Context) -> None:
    """temporal#1289, #8097: 300 signals at random times, every three of which the workflow continues as new: each is
    taken once and in order, and nothing livelocks.
    """
    ctx, rng, LAST[0] = boki_context, Random(7), 300
    handle = triples.handle(ctx, "t")
    started = rng.randrange(100)
    for n in range(300):
        if n == started:
            await triples.start(ctx, 0, id="t")
        await handle.signal("x", n)
        await ctx.clock.advance(rng.choice([0, 0, 0.01, 0.2, 5]))
    assert await handle.result() == 300
    journal = await ctx.logbook.read(f"!fj:{handle.invocation_id}")
    assert len(journal.records) <= 2  # the rest is trimmed


async def test_signal_before_the_start(boki_context: boki.testing.Context) -> None:
    """azure-functions-durable-extension#378, durabletask#1715: events that come first wait for the workflow."""
    ctx, LAST[0] = boki_context, 3
    for n in range(3):
        await triples.handle(ctx, "early").signal("x", n)
    assert await (await triples.start(ctx, 0, id="early")).result() == 3


async def test_a_signal_under_a_key_counts_once(boki_context: boki.testing.Context) -> None:
    """A sender that lost its answer sends again."""
    ctx, LAST[0] = boki_context, 3
    handle = await triples.start(ctx, 0, id="keyed")
    for n in (0, 0, 1, 1, 2):
        await handle.signal("x", n, key=f"k{n}")
    assert await handle.result() == 3


async def test_a_signal_under_a_new_key_after_the_end_is_refused(boki_context: boki.testing.Context) -> None:
    """Nothing is sent. A key from before the end has the same answer as then, because its signal may be the last one
    that the workflow needed.
    """
    ctx, LAST[0] = boki_context, 3
    handle = await triples.start(ctx, 0, id="over")
    for n in range(3):
        await handle.signal("x", n, key=f"k{n}")
    assert await handle.result() == 3
    tail = await ctx.logbook.check_tail()
    await handle.signal("x", 2, key="k2")
    for key in ("other", None):
        with pytest.raises(WorkflowEnded, match="nothing was sent"):
            await handle.signal("x", 1, key=key)
    assert await ctx.logbook.check_tail() == tail


async def test_updates(boki_context: boki.testing.Context) -> None:
    """Answered with what the handler returns, refused by the validator, counted once under an id; also by a workflow
    that was suspended meanwhile.
    """
    ctx = boki_context
    handle = await account.start(ctx)
    assert await handle.update("deposit", 5) == 5
    assert await handle.update("deposit", 6, id="six") == 11
    await ctx.clock.advance(10)
    assert (await handle.status()).status == "suspended"
    assert await handle.update("deposit", 6, id="six") == 11
    for other in (handle.update("deposit", 7, id="six"), handle.update("withdraw", 6, id="six")):
        with pytest.raises(KeyReused, match="'six'"):
            await other
    with pytest.raises(FunctionFailed, match="not positive"):
        await handle.update("deposit", -1)
    await handle.signal("close")
    assert await handle.result() == 11
    with pytest.raises(WorkflowEnded):
        await handle.update("deposit", 1)


@workflow
async def asked(limit: int) -> int:
    total = 0
    flow.on_query("total", lambda add: total + add)
    flow.on_query("limit", lambda _: limit)
    while total < limit:
        total = await add(total, await flow.receive("n"))
        await flow.sleep(100)
    return total


async def test_queries_read_and_do_nothing(boki_context: boki.testing.Context) -> None:
    """Of a workflow that waits without a process, of one that has ended, of one that continued: temporalio/features
    query; what it appends is nothing.
    """
    ctx = boki_context
    handle = await asked.start(ctx, 5)
    with pytest.raises(InvalidArgument, match="answers no queries yet"):
        await handle.query("total", 0)
    await handle.signal("n", 3)
    await ctx.clock.advance(50)
    before = len((await ctx.logbook.read()).records)
    assert await handle.query("total", 10) == 13
    assert await handle.query("limit") == 5
    with pytest.raises(InvalidArgument, match="has no query 'sum'; it has limit, total"):
        await handle.query("sum")
    assert len((await ctx.logbook.read()).records) == before
    assert (await handle.status()).status == "suspended"
    await handle.signal("n", 4)
    assert await handle.result() == 7
    assert await handle.query("total", 0) == 7


async def test_unfinished_handlers_are_named(boki_context: boki.testing.Context) -> None:
    """sdk-dotnet#427: a workflow that returns while handlers run has failed."""

    @workflow
    async def hasty() -> None:
        asked = False

        async def think(_: Any) -> None:
            nonlocal asked
            asked = True
            await flow.sleep(60)

        flow.on_update("think", think)
        await flow.wait_for(lambda: asked)

    handle = await hasty.start(boki_context)
    with pytest.raises(WorkflowEnded):
        await handle.update("think", 1)
    with pytest.raises(FunctionFailed, match=r"UnfinishedHandlers.*think"):
        await handle.result()


async def test_a_handler_that_raises_ends_the_workflow(boki_context: boki.testing.Context) -> None:
    """Nobody waits for a signal's handler, so its error is the workflow's."""

    @workflow
    async def brittle() -> None:
        def fail(_: Any) -> None:
            raise ValueError("broken")

        flow.on_signal("touch", fail)
        await flow.wait_for(lambda: False)

    handle = await brittle.start(boki_context)
    await handle.signal("touch")
    with pytest.raises(FunctionFailed, match="ValueError: broken"):
        await handle.result()


async def test_promises(boki_context: boki.testing.Context) -> None:
    """Completed from outside, before or after the workflow waits; the first value counts, and may come again. What
    ended without waiting for a promise cannot be given its value any more.
    """

    @workflow
    async def two() -> list[Any]:
        return [await flow.promise("a"), await flow.promise("b"), await flow.promise("a")]

    ctx = boki_context
    handle = two.handle(ctx, "p")
    await handle.resolve("b", 2)
    await two.start(ctx, id="p")
    await ctx.clock.advance(100)
    await handle.resolve("a", 1)
    await handle.resolve("a", 3)
    assert await handle.result() == [1, 2, 1]
    await handle.resolve("a", 1)
    await handle.reject("b", FunctionFailed("late"))
    for late in (handle.resolve("c", 1), handle.reject("c", FunctionFailed("late"))):
        with pytest.raises(WorkflowEnded):
            await late


UNDONE: list[str] = []


@step
async def undo(what: str) -> None:
    UNDONE.append(what)


@workflow
async def booking() -> None:
    for what in ("hotel", "flight"):
        flow.compensate(undo, what)
    await flow.sleep(1_000)


async def test_cancelling_undoes_and_killing_does_not(boki_context: boki.testing.Context) -> None:
    """A cancelled workflow runs its compensations, the latest first, also if it was suspended; a killed one nothing."""
    ctx = boki_context
    for wait_s in (0.01, 50):
        UNDONE.clear()
        handle = await booking.start(ctx)
        await ctx.clock.advance(wait_s)
        await handle.cancel("changed my mind")
        with pytest.raises(FunctionFailed, match=r"WorkflowCancelled: .*changed my mind"):
            await handle.result()
        assert UNDONE == ["flight", "hotel"]
    UNDONE.clear()
    handle = await booking.start(ctx)
    await ctx.clock.advance(50)
    await handle.kill()
    assert (await handle.status()).status == "cancelled"
    with pytest.raises(WorkflowEnded):
        await handle.cancel()
    assert UNDONE == []


async def test_paused_workflows_keep_their_messages(boki_context: boki.testing.Context) -> None:
    """durabletask-python#42: events of a suspended instance are delivered when it is resumed."""
    ctx = boki_context
    handle = await account.start(ctx)
    await handle.pause("lunch")
    await ctx.clock.advance(5)
    state = await handle.status()
    assert (state.status, state.note) == ("paused", "paused: lunch")
    await handle.signal("close")
    await ctx.clock.advance(500)
    assert (await handle.status()).status == "paused"
    await handle.resume()
    assert await handle.result() == 0


async def test_a_timer_does_not_fire_in_a_pause(boki_context: boki.testing.Context) -> None:
    """It fires as soon as the workflow is resumed."""

    @workflow
    async def nap() -> float:
        before = flow.now()
        await flow.sleep(10)
        return (flow.now() - before).total_seconds()

    ctx = boki_context
    handle = await nap.start(ctx)
    await ctx.clock.advance(1)
    await handle.pause()
    await ctx.clock.advance(100)
    await handle.resume()
    assert 100 <= await handle.result() < 102


async def test_cancel_ends_a_pause(boki_context: boki.testing.Context) -> None:
    """hatchet#2573: whatever its state, a workflow can be cancelled."""
    ctx = boki_context
    handle = await account.start(ctx)
    await handle.pause()
    await ctx.clock.advance(5)
    await handle.cancel()
    with pytest.raises(FunctionFailed, match="WorkflowCancelled"):
        await handle.result()


async def test_a_workflow_that_was_never_started(boki_context: boki.testing.Context) -> None:
    """Is named with its id."""
    handle = account.handle(boki_context, "nobody")
    for ask in (handle.status, handle.result, handle.cancel, handle.kill, handle.pause):
        with pytest.raises(NoSuchWorkflow, match="no account was started under the id 'nobody'"):
            await ask()


@pytest.mark.parametrize("is_first", [False, True])
async def test_cancellation_and_a_condition_at_once(boki_context: boki.testing.Context, is_first: bool) -> None:
    """sdk-python workflow_cancel_and_condition_ready_in_same_activation: the one that is first in the log wins."""

    @workflow
    async def both() -> str:
        ready = False

        def on(_: Any) -> None:
            nonlocal ready
            ready = True

        flow.on_signal("ready", on)
        try:
            await flow.wait_for(lambda: ready)
        except asyncio.CancelledError:
            return "cancelled"
        return "ready"

    ctx = boki_context
    handle = await both.start(ctx, id="b")
    await ctx.clock.advance(5)
    ready = Signalled("ready", encode_any(None, "payload"))
    messages = [handle._send(CancelRequested(), None), handle._send(ready, None)]
    await asyncio.gather(*(messages if is_first else reversed(messages)))
    assert await handle.result() == ("cancelled" if is_first else "ready")


async def test_shield_and_uncancel(boki_context: boki.testing.Context) -> None:
    """A body may catch its cancellation, finish what it shields, and continue."""

    @workflow
    async def stubborn() -> int:
        task = asyncio.ensure_future(flow.run(add, 1, 2))
        try:
            await flow.sleep(100)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            assert current is not None
            current.uncancel()
        async with asyncio.timeout(5):
            return await asyncio.shield(task) + await add(1, 1)

    ctx = boki_context
    handle = await stubborn.start(ctx)
    await ctx.clock.advance(5)
    await handle.cancel()
    assert await handle.result() == 5


async def test_a_child_that_ends_in_a_pause(boki_context: boki.testing.Context) -> None:
    """Its parent looked for what to do next without a rest, for as long as the pause lasted."""

    @workflow
    async def child() -> int:
        await flow.sleep(10)
        return 7

    @workflow
    async def parent() -> int:
        found: int = await flow.call(child)
        return found

    ctx = boki_context
    handle = await parent.start(ctx)
    await ctx.clock.advance(5)
    await handle.pause()
    await ctx.clock.advance(100)
    assert (await handle.status()).status == "paused"
    await handle.resume()
    assert await handle.result() == 7


async def test_a_timer_that_is_due_in_a_pause(boki_context: boki.testing.Context) -> None:
    """While a step still ran, it was asked for again and again."""
    may_end = asyncio.Event()

    @step
    async def slow() -> str:
        await may_end.wait()
        return "in time"

    @workflow
    async def impatient() -> str:
        try:
            async with asyncio.timeout(10):
                return await slow()
        except TimeoutError:
            return "too late"

    ctx = boki_context
    handle = await impatient.start(ctx)
    await ctx.clock.advance(5)
    await handle.pause()
    await ctx.clock.advance(100)
    await handle.resume()
    assert await handle.result() == "too late"


@workflow
async def closes() -> str:
    is_closed = False

    async def close(_: None) -> str:
        nonlocal is_closed
        await flow.sleep(6)
        is_closed = True
        return "closed well"

    flow.on_update("close", close)
    await flow.wait_for(lambda: is_closed and flow.all_handlers_finished())
    return "over"


@pytest.mark.parametrize("update_id", [None, "one"])
async def test_an_answer_that_comes_just_before_the_end_is_found(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch, update_id: str | None
) -> None:
    """The read had run out, the answer and the end came, and then it was asked whether the workflow runs. The caller
    was told that there was no answer.
    """
    ctx, state = boki_context, Handle._state

    async def slowly(self: Handle[Any], wait_s: float = 0.0) -> InvocationState:
        late = asyncio.Event()
        ctx.clock.call_at(ctx.clock.now_us + 3_000_000, late.set)
        with ctx.clock.waiting():
            await late.wait()
        return await state(self, wait_s)

    handle = await closes.start(ctx)
    monkeypatch.setattr(Handle, "_state", slowly)
    assert await handle.update("close", id=update_id) == "closed well"
