"""Signals, updates, promises, queries, cancellation and pauses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from boki import FunctionFailed, InvalidArgument, WrongState
from boki.libs.bokiflow import Handle, WorkflowEnded, flow, workflow
from boki.testing import Context
from tests.libs.bokiflow.classes import add, case, do, done, result_of


@workflow
async def collector(wanted: int) -> list[Any]:
    """Takes that many signals, and does something with each."""
    found = []
    for _ in range(wanted):
        found.append(await flow.receive("x"))
        await do(f"x {found[-1]}")
    return found


@workflow
async def ledger(total: int) -> int:
    """An account that updates change, until a signal closes it."""
    is_closed = False

    async def deposit(cents: int) -> int:
        nonlocal total
        total = await add(total, cents)
        return total

    def positive(cents: int) -> None:
        if cents <= 0:
            raise ValueError("not positive")

    def close(_: Any) -> None:
        nonlocal is_closed
        is_closed = True

    flow.on_update("deposit", deposit, validator=positive)
    flow.on_query("total", lambda _: total)
    flow.on_signal("close", close)
    await flow.wait_for(lambda: is_closed)
    return total


@case("azure-functions-durable-extension#378, #573, #1410")
async def signals_before_the_start(ctx: Context) -> None:
    for n in range(3):
        await collector.handle(ctx, "early").signal("x", n)
    assert await result_of(ctx, collector, 3, id="early") == [0, 1, 2]


@case("durabletask#530, #1715")
async def a_signal_and_a_start_at_once(ctx: Context) -> None:
    for order in (1, -1):
        handle = collector.handle(ctx, f"both {order}")
        acts = [handle.signal("x", 7), collector.start(ctx, 1, id=handle.id)]
        await asyncio.gather(*acts[::order])
        assert await handle.result() == [7]


@case("durabletask#1715: terminate a Pending instance", crashes=False)
async def a_workflow_that_has_not_begun_is_killed(ctx: Context) -> None:
    handle = await collector.start(ctx, 1, id="pending", delay_s=100)
    await handle.kill()
    assert (await handle.status()).status == "cancelled"
    await ctx.clock.advance(200)
    assert done() == {}


@case("hatchet#1996: cancel what has not begun", crashes=False)
async def a_workflow_that_has_not_begun_is_cancelled(ctx: Context) -> None:
    handle = await collector.start(ctx, 1, id="pending", delay_s=100)
    await handle.cancel()
    with pytest.raises(FunctionFailed, match="WorkflowCancelled"):
        await handle.result()


@case("temporal#1289, #8097: signals against continue-as-new")
async def signals_outlive_continuations(ctx: Context) -> None:
    @workflow
    async def triples(first: int) -> int:
        assert [await flow.receive("x") for _ in range(3)] == [first, first + 1, first + 2]
        await do(f"round {first}")
        return first + 3 if first == 9 else flow.continue_as_new(first + 3)

    handle = await triples.start(ctx, 0, id="t")
    for n in range(12):
        await handle.signal("x", n)
        await ctx.clock.advance([0, 0.2, 3][n % 3])
    assert await handle.result() == 12
    assert set(done().values()) == {1}


@case("temporal features signals_block_continue_as_new; durabletask-dotnet#387")
async def signals_that_nobody_took_are_there_after_the_continuation(ctx: Context) -> None:
    @workflow
    async def late(turn: int) -> Any:
        if not turn:
            await flow.sleep(10)
            flow.continue_as_new(1)
        return [await flow.receive("a"), await flow.receive("b")]

    handle = await late.start(ctx, 0, id="l")
    await handle.signal("b", 2)
    await handle.signal("a", 1)
    assert await handle.result() == [1, 2]


@case("temporal features updates_do_not_block_continue_as_new")
async def updates_are_answered_after_the_continuation(ctx: Context) -> None:
    @workflow
    async def turning(turn: int) -> int:
        if not turn:
            await flow.sleep(10)
            flow.continue_as_new(1)
        asked: list[int] = []

        def ask(n: int) -> int:
            asked.append(n)
            return n * 2

        flow.on_update("ask", ask)
        await flow.wait_for(lambda: bool(asked))
        return asked[0]

    handle = await turning.start(ctx, 0, id="u")
    assert await handle.update("ask", 21) == 42
    assert await handle.result() == 21


@case("omes out_of_order_signals")
async def signals_are_awaited_in_any_order(ctx: Context) -> None:
    @workflow
    async def picky() -> list[Any]:
        return [await flow.receive(name) for name in ("c", "a", "b")]

    handle = await picky.start(ctx)
    for name in "abc":
        await handle.signal(name, name)
        await ctx.clock.advance(1)
    assert await handle.result() == ["c", "a", "b"]


@case("temporal features update deduplication")
async def an_update_counts_once_under_its_id(ctx: Context) -> None:
    handle = await ledger.start(ctx, 0)
    assert await handle.update("deposit", 5, id="five") == 5
    await ctx.clock.advance(10)
    assert await handle.update("deposit", 5, id="five") == 5
    await handle.signal("close")
    assert await handle.result() == 5


@case("temporal features update non_durable_reject, validation_replay")
async def a_refused_update_changes_nothing(ctx: Context) -> None:
    handle = await ledger.start(ctx, 1)
    with pytest.raises(FunctionFailed, match="not positive"):
        await handle.update("deposit", -1)
    await ctx.clock.advance(10)
    assert await handle.update("deposit", 1) == 2
    await handle.signal("close")
    assert await handle.result() == 2


@case("temporal test_update_with_start")
async def an_update_before_the_start(ctx: Context) -> None:
    handle = ledger.handle(ctx, "with start")
    asked = asyncio.ensure_future(_patient(handle, 4))
    await asyncio.sleep(0)
    await ledger.start(ctx, 1, id="with start")
    assert await asked == 5
    await handle.signal("close")
    assert await handle.result() == 5


async def _patient(handle: Handle[Any], cents: int) -> Any:
    return await handle.update("deposit", cents, id="first")


@case("temporal update_handler_can_use_lock_to_serialize")
async def handlers_take_turns(ctx: Context) -> None:
    @workflow
    async def serial() -> int:
        lock, total, count = asyncio.Lock(), 0, 0

        async def bump(by: int) -> int:
            nonlocal total, count
            async with lock:
                before = total
                await flow.sleep(1)
                total = await add(before, by)
            count += 1
            return total

        flow.on_update("bump", bump)
        await flow.wait_for(lambda: count == 3)
        return total

    handle = await serial.start(ctx)
    found = await asyncio.gather(*(handle.update("bump", n, id=str(n)) for n in (1, 2, 3)))
    assert max(found) == await handle.result() == 6


@case("temporal update_completion_is_honored_when_after_workflow_return")
async def the_update_that_ends_a_workflow_is_answered(ctx: Context) -> None:
    @workflow
    async def ending() -> str:
        asked = False

        def finish(_: Any) -> str:
            nonlocal asked
            asked = True
            return "finished"

        flow.on_update("finish", finish)
        await flow.wait_for(lambda: asked)
        return "done"

    handle = await ending.start(ctx)
    assert await handle.update("finish") == "finished"
    assert await handle.result() == "done"


@case("temporal workflow_return_is_honored_when_it_precedes_signal")
async def what_comes_after_the_end_is_without_effect(ctx: Context) -> None:
    handle = await collector.start(ctx, 1)
    await handle.signal("x", 1, key="first")
    assert await handle.result() == [1]
    await handle.signal("x", 1, key="first")
    for said in (handle.signal("x", 2, key="late"), handle.signal("x", 3), handle.cancel()):
        with pytest.raises(WorkflowEnded):
            await said
    assert await handle.result() == [1]


@case("temporal first_of_two_signal_completion_commands_is_honored")
async def the_first_of_two_signals_counts(ctx: Context) -> None:
    @workflow
    async def first() -> Any:
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def finish(value: Any) -> None:
            if not result.done():
                result.set_result(value)

        flow.on_signal("finish", finish)
        return await result

    handle = first.handle(ctx, "f")
    await handle.signal("finish", 1)
    await handle.signal("finish", 2)
    assert await result_of(ctx, first, id="f") == 1


@case("temporal unfinished_update_handler")
async def unfinished_handlers_of_updates(ctx: Context) -> None:
    await _is_unfinished(ctx, flow.on_update)


@case("temporal unfinished_signal_handler; sdk-dotnet#427")
async def unfinished_handlers_of_signals(ctx: Context) -> None:
    await _is_unfinished(ctx, flow.on_signal)


async def _is_unfinished(ctx: Context, register: Any) -> None:
    @workflow
    async def hasty() -> None:
        asked = False

        async def think(_: Any) -> None:
            nonlocal asked
            asked = True
            await flow.sleep(60)

        register("think", think)
        await flow.wait_for(lambda: asked)

    handle = await hasty.start(ctx)
    if register == flow.on_signal:
        await handle.signal("think")
    else:
        with pytest.raises(WrongState):
            await handle.update("think")
    with pytest.raises(FunctionFailed, match="UnfinishedHandlers"):
        await handle.result()


@case("temporal workflow_queries_doing_bad_things")
async def queries_only_read(ctx: Context) -> None:
    handle = await ledger.start(ctx, 3)
    await ctx.clock.advance(1)
    assert await handle.query("total") == 3
    with pytest.raises(InvalidArgument, match="no query"):
        await handle.query("nothing")
    await handle.signal("close")
    assert await handle.result() == 3


@case("Restate awakeables; Resonate C8: responses never regress")
async def the_first_value_of_a_promise_counts(ctx: Context) -> None:
    @workflow
    async def waiting() -> list[Any]:
        first = await flow.promise("p")
        await flow.sleep(10)
        return [first, await flow.promise("p")]

    handle = await waiting.start(ctx)
    await handle.resolve("p", 1)
    await handle.resolve("p", 2)
    assert await handle.result() == [1, 1]


@case("Resonate C11: a settled promise takes no new subscriptions")
async def a_promise_that_was_kept_before_anybody_asked(ctx: Context) -> None:
    @workflow
    async def waiting() -> Any:
        return await flow.promise("p")

    await waiting.handle(ctx, "w").resolve("p", "early")
    assert await result_of(ctx, waiting, id="w") == "early"


@case("Resonate C11: a settled promise takes no new subscriptions")
async def a_promise_that_was_settled_before_the_body_came_to_it(ctx: Context) -> None:
    @workflow
    async def waiting() -> Any:
        await flow.receive("go")
        return await flow.promise("p")

    handle = await waiting.start(ctx)
    await handle.resolve("p", "settled")
    await handle.signal("go")
    assert await handle.result(wait_s=60) == "settled"


@case("Restate awakeables: rejected")
async def a_promise_that_is_rejected(ctx: Context) -> None:
    @workflow
    async def waiting() -> str:
        try:
            await flow.promise("p")
        except WrongState as error:
            return error.message
        return ""

    handle = await waiting.start(ctx)
    await handle.reject("p", WrongState("out of stock"))
    assert await handle.result() == "out of stock"


@case("Resonate C6: resume skips an awaiter that is dead")
async def a_promise_of_a_workflow_that_was_killed(ctx: Context) -> None:
    @workflow
    async def waiting() -> Any:
        return await flow.promise("p")

    handle = await waiting.start(ctx)
    await handle.kill()
    with pytest.raises(WorkflowEnded):
        await handle.resolve("p", 1)
    await ctx.clock.advance(10)
    assert (await handle.status()).status == "cancelled"


@case("durabletask-python#42: test_suspend_and_resume")
async def signals_of_a_paused_workflow(ctx: Context) -> None:
    handle = await collector.start(ctx, 2)
    await handle.pause()
    await ctx.clock.advance(5)
    for n in range(2):
        await handle.signal("x", n)
    await ctx.clock.advance(100)
    assert (await handle.status()).status == "paused"
    assert done() == {}
    await handle.resume()
    assert await handle.result() == [0, 1]


@case("hatchet#2573, dapr#7751: cancel in every state")
async def a_paused_workflow_is_cancelled(ctx: Context) -> None:
    handle = await collector.start(ctx, 1)
    await handle.pause()
    await ctx.clock.advance(5)
    await handle.cancel()
    with pytest.raises(FunctionFailed, match="WorkflowCancelled"):
        await handle.result()


@case("temporal workflow_cancel_signal_and_timer_fired_in_same_task")
async def a_cancellation_and_a_signal_at_the_time_of_a_timer(ctx: Context) -> None:
    @workflow
    async def three() -> str:
        try:
            async with asyncio.timeout(10):
                return str(await flow.receive("x"))
        except TimeoutError:
            return "timer"
        except asyncio.CancelledError:
            return "cancelled"

    handle = await three.start(ctx)
    await ctx.clock.advance(9.9)
    await asyncio.gather(handle.cancel(), handle.signal("x", "signal"), ctx.clock.advance(0.2))
    result = await handle.result()
    assert result in {"timer", "cancelled", "signal"}
    assert await handle.result() == result


@case("DBOS cancel_after_final_step")
async def a_result_is_not_cancelled_afterwards(ctx: Context) -> None:
    @workflow
    async def quick() -> str:
        return await do("all")

    handle = await quick.start(ctx)
    assert await handle.result() == "all"
    for act in (handle.cancel, handle.kill, handle.pause):
        with pytest.raises(WorkflowEnded):
            await act()
    assert await handle.result() == "all"


@case("temporal workflow_uncancel_shield")
async def a_shielded_step_outlives_the_cancellation(ctx: Context) -> None:
    @workflow
    async def stubborn() -> int:
        task = asyncio.ensure_future(flow.run(add, 1, 2))
        try:
            await flow.sleep(100)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            assert current is not None
            current.uncancel()
        return await asyncio.shield(task)

    handle = await stubborn.start(ctx)
    await ctx.clock.advance(1)
    await handle.cancel()
    assert await handle.result() == 3


@case("temporal features cancellation: a second request during the clean-up")
async def the_clean_up_is_not_cancelled_again(ctx: Context) -> None:
    @workflow
    async def careful() -> None:
        flow.compensate(do, "second")
        flow.compensate(do, "first")
        await flow.sleep(1_000)

    handle = await careful.start(ctx)
    await ctx.clock.advance(1)
    await asyncio.gather(handle.cancel(), handle.cancel())
    with pytest.raises(FunctionFailed, match="WorkflowCancelled"):
        await handle.result()
    assert list(done()) == ["first", "second"]


@case("temporal features cancellation: a request while a failed workflow compensates")
async def compensations_are_not_cancelled(ctx: Context) -> None:
    async def slowly() -> None:
        await flow.sleep(10)
        await do("first")

    @workflow
    async def saga() -> None:
        flow.compensate(do, "second")
        flow.compensate(slowly)
        raise ValueError("no seats")

    handle = await saga.start(ctx)
    await ctx.clock.advance(1)
    await handle.cancel()
    with pytest.raises(FunctionFailed, match="ValueError: no seats"):
        await handle.result()
    assert list(done()) == ["first", "second"]


@case("DBOS recv_consume_idempotent_on_timeout")
async def a_signal_after_the_timeout_is_kept(ctx: Context) -> None:
    @workflow
    async def twice() -> list[Any]:
        try:
            async with asyncio.timeout(5):
                await flow.receive("x")
        except TimeoutError:
            await do("timeout")
        return [await flow.receive("x")]

    handle = await twice.start(ctx)
    await ctx.clock.advance(20)
    await handle.signal("x", 1)
    assert await handle.result() == [1]
    assert done() == {"timeout": 1}
