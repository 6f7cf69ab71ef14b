"""What is said to workflows from outside, in whatever state they are, and what they undo."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from boki import CallCancelled, FunctionFailed, InvalidArgument, WrongState
from boki.libs.bokiflow import NoSuchWorkflow, OutcomeUnknown, StepFailed, WorkflowEnded, flow, step, workflow
from boki.testing import Context
from tests.libs.bokiflow.classes import BODIES, add, case, do, done, result_of


@workflow
async def waiter(count: int) -> list[Any]:
    """Takes signals, and does something between them."""
    found = []
    for _ in range(count):
        found.append(await flow.receive("x"))
        await do(f"took {found[-1]}")
    return found


@workflow
async def saga(steps: list[str]) -> None:
    """Does each of these, notes how to undo it, and waits to be cancelled."""
    for what in steps:
        flow.compensate(do, f"undo {what}")
        await do(what)
    await flow.sleep(100_000)


async def fails(handle: Any, match: str) -> None:
    """The workflow ends with that error."""
    with pytest.raises(FunctionFailed, match=match):
        await handle.result()


@case("DBOS test_workflow_management: cancel while nothing was done")
async def a_cancellation_before_the_first_step(ctx: Context) -> None:
    handle = await saga.start(ctx, [])
    await ctx.clock.advance(1)
    await handle.cancel()
    await fails(handle, "WorkflowCancelled")
    assert done() == {}


@case("Temporal saga sample: cancelled in the middle")
async def a_cancelled_saga_undoes_what_it_began(ctx: Context) -> None:
    handle = await saga.start(ctx, ["a", "b", "c"])
    await ctx.clock.advance(2)
    await handle.cancel("enough")
    await fails(handle, "enough")
    assert list(done()) == ["a", "b", "c", "undo c", "undo b", "undo a"]


@case("Restate: kill leaves everything as it is")
async def a_killed_saga_undoes_nothing(ctx: Context) -> None:
    handle = await saga.start(ctx, ["a", "b"])
    await ctx.clock.advance(2)
    await handle.kill()
    with pytest.raises(CallCancelled):
        await handle.result()
    await ctx.clock.advance(5)
    assert list(done()) == ["a", "b"]


@case("durabletask: terminate while paused")
async def a_paused_workflow_is_killed(ctx: Context) -> None:
    handle = await waiter.start(ctx, 1)
    await handle.pause("wait")
    await ctx.clock.advance(2)
    await handle.kill()
    assert (await handle.status()).status == "cancelled"


@case("Hatchet workflow_pause: paused twice, resumed once")
async def pausing_twice_is_pausing_once(ctx: Context) -> None:
    handle = await waiter.start(ctx, 1)
    await handle.pause()
    await handle.pause()
    await ctx.clock.advance(2)
    await handle.signal("x", 1)
    await handle.resume()
    assert await handle.result() == [1]


@case("Restate PauseResume: resumed though it was not paused")
async def resuming_what_runs_does_nothing(ctx: Context) -> None:
    handle = await waiter.start(ctx, 1)
    await handle.resume()
    await handle.signal("x", 1)
    assert await handle.result() == [1]


@case("durabletask-python#42: paused before anything has happened")
async def a_pause_before_the_start(ctx: Context) -> None:
    handle = await waiter.start(ctx, 1, delay_s=5)
    await handle.pause()
    await handle.signal("x", 1)
    await ctx.clock.advance(15)
    assert done() == {}
    await handle.resume()
    assert await handle.result() == [1]


@case("DBOS list_workflows: the reason of a pause")
async def the_reason_of_a_pause_is_told(ctx: Context) -> None:
    handle = await waiter.start(ctx, 1)
    await handle.pause("the bank is closed")
    await ctx.clock.advance(2)
    state = await handle.status()
    assert (state.status, "the bank is closed" in state.note) == ("paused", True)
    await handle.kill()


@case("Temporal: signal by key, sent again after a lost answer")
async def a_signal_under_a_key_is_taken_once(ctx: Context) -> None:
    handle = await waiter.start(ctx, 2)
    for _ in range(3):
        await handle.signal("x", "a", key="one")
    await handle.signal("x", "b", key="two")
    assert await handle.result() == ["a", "b"]


@case("Temporal: signals of a name that nobody takes")
async def signals_that_nobody_takes_hold_nothing_up(ctx: Context) -> None:
    handle = await waiter.start(ctx, 1)
    for n in range(3):
        await handle.signal("unknown", n)
    await handle.signal("x", 1)
    assert await handle.result() == [1]


@case("omes ebb_and_flow: bursts and silence")
async def bursts_of_signals(ctx: Context) -> None:
    handle = await waiter.start(ctx, 12)
    for burst in range(3):
        await asyncio.gather(*(handle.signal("x", burst) for _ in range(4)))
        await ctx.clock.advance(3)
    assert await handle.result() == [0] * 4 + [1] * 4 + [2] * 4


@case("Temporal signal_handler async: handlers side by side")
async def handlers_run_side_by_side(ctx: Context) -> None:
    @workflow
    async def busy() -> list[int]:
        finished: list[int] = []

        async def handle_one(n: int) -> None:
            await flow.sleep(10 - n)
            finished.append(await add(n, 0))

        flow.on_signal("x", handle_one)
        await flow.wait_for(lambda: len(finished) == 3)
        return finished

    handle = await busy.start(ctx)
    for n in (0, 4, 8):
        await handle.signal("x", n)
    assert await handle.result() == [8, 4, 0]


@case("Temporal: a signal handler that fails")
async def a_handler_that_raises_ends_its_workflow(ctx: Context) -> None:
    @workflow
    async def fragile() -> None:
        def refuse(_: Any) -> None:
            raise ValueError("cannot take it")

        flow.on_signal("x", refuse)
        await flow.sleep(1_000)

    handle = await fragile.start(ctx)
    await handle.signal("x")
    await fails(handle, "cannot take it")


@case("Temporal update: a handler that fails answers with it and the workflow goes on")
async def an_update_that_fails_is_answered(ctx: Context) -> None:
    @workflow
    async def robust() -> str:
        def refuse(_: Any) -> None:
            raise ValueError("not now")

        flow.on_update("x", refuse)
        return str(await flow.receive("end"))

    handle = await robust.start(ctx)
    for _ in range(2):
        with pytest.raises(FunctionFailed, match="not now"):
            await handle.update("x")
    await handle.signal("end", "fine")
    assert await handle.result() == "fine"


@case("Temporal features update worker_restart")
async def an_update_to_a_suspended_workflow(ctx: Context) -> None:
    @workflow
    async def sleepy() -> int:
        total = 0

        async def bump(by: int) -> int:
            nonlocal total
            total = await add(total, by)
            return total

        flow.on_update("bump", bump)
        await flow.receive("end")
        return total

    handle = await sleepy.start(ctx)
    for n in range(3):
        await ctx.clock.advance(5)
        assert await handle.update("bump", 2) == 2 * n + 2
    await handle.signal("end")
    assert await handle.result() == 6


@case("Temporal features update task_failure: nobody handles it", crashes=False)
async def an_update_that_nobody_handles_ends_with_the_workflow(ctx: Context) -> None:
    handle = await waiter.start(ctx, 1)
    asked = asyncio.ensure_future(handle.update("unknown", 1))
    await ctx.clock.advance(1)
    await handle.signal("x", 1)
    assert await handle.result() == [1]
    with pytest.raises(WrongState):
        await asked


@case("Temporal query after the workflow has closed")
async def a_query_of_a_workflow_that_has_ended(ctx: Context) -> None:
    @workflow
    async def quick() -> int:
        total = 0
        flow.on_query("total", lambda _: total)
        total = await add(3, 4)
        return total

    handle = await quick.start(ctx)
    assert await handle.result() == 7
    assert await handle.query("total") == 7


@case("Temporal query with an argument; a query that fails")
async def queries_take_arguments_and_may_fail(ctx: Context) -> None:
    @workflow
    async def table() -> None:
        flow.on_query("double", lambda n: n * 2)
        flow.on_query("bad", lambda _: 1 // 0)
        await flow.receive("end")

    handle = await table.start(ctx)
    await ctx.clock.advance(1)
    assert await handle.query("double", 4) == 8
    with pytest.raises(ZeroDivisionError):
        await handle.query("bad")
    await handle.signal("end")
    await handle.result()


@case("DBOS: a workflow that was never started")
async def what_was_never_started_is_unknown(ctx: Context) -> None:
    handle = waiter.handle(ctx, "nobody")
    for act in (handle.status, handle.cancel, handle.kill, handle.pause, handle.resume):
        with pytest.raises(NoSuchWorkflow):
            await act()


@case("Restate CancelInvocation: cancelled twice")
async def the_second_cancellation_changes_nothing(ctx: Context) -> None:
    handle = await saga.start(ctx, ["a"])
    await ctx.clock.advance(1)
    await handle.cancel("first")
    await fails(handle, "first")
    with pytest.raises(WorkflowEnded):
        await handle.cancel("second")
    assert list(done()) == ["a", "undo a"]


@case("Temporal wait_cancellation_completed: a body that returns all the same")
async def a_cancelled_body_may_return(ctx: Context) -> None:
    @workflow
    async def graceful() -> str:
        try:
            await flow.sleep(1_000)
        except asyncio.CancelledError:
            return await do("parting words")
        return ""

    handle = await graceful.start(ctx)
    await ctx.clock.advance(1)
    await handle.cancel()
    assert await handle.result() == "parting words"


@case("Restate awakeable: resolved while nobody runs")
async def a_promise_of_a_suspended_workflow(ctx: Context) -> None:
    @workflow
    async def waiting() -> list[Any]:
        return [await flow.promise("a"), await do("between"), await flow.promise("b")]

    handle = await waiting.start(ctx)
    for n, name in enumerate("ab"):
        await ctx.clock.advance(5)
        await handle.resolve(name, n)
    assert await handle.result() == [0, "between", 1]


@case("Resonate C8: a promise that was resolved and then rejected")
async def a_resolved_promise_is_not_rejected(ctx: Context) -> None:
    @workflow
    async def waiting() -> Any:
        return await flow.promise("p")

    handle = waiting.handle(ctx, "once")
    await handle.resolve("p", "kept")
    await handle.reject("p", WrongState("too late"))
    assert await result_of(ctx, waiting, id="once") == "kept"


@case("Restate awakeable: several who wait for one")
async def a_promise_wakes_all_who_wait(ctx: Context) -> None:
    @workflow
    async def waiting() -> list[Any]:
        return list(await asyncio.gather(*(flow.promise("p") for _ in range(3))))

    handle = await waiting.start(ctx)
    await ctx.clock.advance(1)
    await handle.resolve("p", 5)
    assert await handle.result() == [5, 5, 5]


@case("AWS durable: at most once, cut off and told apart from a failure")
async def a_step_at_most_once_is_not_begun_again(ctx: Context) -> None:
    @step(at_most_once=True)
    async def launch() -> str:
        BODIES["launch"] += 1
        return "launched"

    @workflow
    async def mission() -> str:
        try:
            found = await launch()
        except OutcomeUnknown:
            found = "unknown"
        await flow.sleep(5)
        return found

    assert await result_of(ctx, mission) in {"launched", "unknown"}
    assert BODIES["launch"] <= 1


@case("Temporal maximum_attempts 1: an at-most-once step that fails")
async def a_step_at_most_once_that_fails(ctx: Context) -> None:
    @step(at_most_once=True)
    async def launch() -> None:
        BODIES["launch"] += 1
        raise ValueError("exploded")

    @workflow
    async def mission() -> str:
        try:
            await launch()
        except StepFailed as error:
            return error.message
        except OutcomeUnknown:
            return "exploded, or unknown"
        return ""

    assert "exploded" in await result_of(ctx, mission)
    assert BODIES["launch"] <= 1


@case("Temporal continue_as_new: a chain of many")
async def a_long_chain_of_continuations(ctx: Context) -> None:
    @workflow
    async def countdown(number: int) -> str:
        await do(f"{number}")
        return "over" if number == 0 else flow.continue_as_new(number - 1)

    assert await result_of(ctx, countdown, 7) == "over"
    assert done() == {f"{n}": 1 for n in range(8)}


@case("Temporal continue_as_new: a timer that still runs when the body continues")
async def a_continuation_waits_for_no_timer(ctx: Context) -> None:
    @workflow
    async def turning(turn: int) -> int:
        task = asyncio.create_task(flow.sleep(50_000))
        await add(turn, 1)
        assert not task.done()
        return turn if turn == 2 else flow.continue_as_new(turn + 1)

    before_us = ctx.clock.now_us
    assert await result_of(ctx, turning, 0) == 2
    assert ctx.clock.now_us - before_us < 40_000_000_000


@case("Temporal: cancelled between two continuations")
async def a_cancellation_reaches_the_continuation(ctx: Context) -> None:
    @workflow
    async def for_ever(turn: int) -> None:
        await flow.sleep(2)
        flow.continue_as_new(turn + 1)

    handle = await for_ever.start(ctx, 0)
    await ctx.clock.advance(7)
    await handle.cancel("stop turning")
    await fails(handle, "stop turning")


@case("DBOS: two handles of one workflow")
async def every_handle_tells_the_same(ctx: Context) -> None:
    handle = await waiter.start(ctx, 1, id="shared")
    other = waiter.handle(ctx, "shared")
    await other.signal("x", 3)
    assert await asyncio.gather(handle.result(), other.result()) == [[3], [3]]
    assert (await handle.status()).status == (await other.status()).status == "done"


@case("Temporal: invalid ids and names")
async def ids_that_no_tag_takes_are_refused(ctx: Context) -> None:
    for flow_id in ("", "x" * 300):
        with pytest.raises(InvalidArgument):
            waiter.handle(ctx, flow_id)
    with pytest.raises(InvalidArgument):
        await waiter.handle(ctx, "fine").signal("")


@case("inngest: compensations that read what was done")
async def compensations_are_recorded_steps(ctx: Context) -> None:
    @workflow
    async def transfer() -> None:
        total = await add(1, 2)
        flow.compensate(do, f"undo {total}")
        await flow.sleep(5)
        raise ValueError("no")

    await fails(await transfer.start(ctx), "no")
    assert done() == {"undo 3": 1}
