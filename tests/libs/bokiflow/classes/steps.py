"""Steps: once recorded, retried as they say, failing as they should."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from boki import FunctionFailed, Retry, TerminalError
from boki.libs.bokiflow import CompensationFailed, StepFailed, flow, step, workflow
from boki.testing import Context
from tests.libs.bokiflow.classes import BODIES, add, case, do, done, result_of


@case("DBOS test_singleexec simple_workflow")
async def two_starts_of_one_id(ctx: Context) -> None:
    @workflow
    async def simple() -> str:
        return await do("once")

    handles = await asyncio.gather(*(simple.start(ctx, id="one") for _ in range(3)))
    assert [await handle.result() for handle in handles] == ["once"] * 3
    assert done() == {"once": 1}
    assert BODIES["once"] <= 2


@case("DBOS test_singleexec step_sequence")
async def steps_in_sequence(ctx: Context) -> None:
    @workflow
    async def sequence() -> list[str]:
        return [await do(f"step {n}") for n in range(4)]

    assert await result_of(ctx, sequence) == [f"step {n}" for n in range(4)]
    assert list(done()) == [f"step {n}" for n in range(4)]


@case("DBOS test_singleexec step_undoredo")
async def a_step_is_undone_and_done_again(ctx: Context) -> None:
    @step
    async def refuse() -> None:
        raise ValueError("not now")

    @workflow
    async def undo_redo() -> int:
        await do("do")
        try:
            await refuse()
        except StepFailed:
            await do("undo")
            await do("do")
        return 3

    assert await result_of(ctx, undo_redo) == 3
    assert done() == {"do": 2, "undo": 1}


@case("DBOS test_failures step_timeout_is_checkpointed_and_replayed")
async def a_timeout_is_recorded(ctx: Context) -> None:
    @step(timeout_s=2)
    async def slow() -> None:
        BODIES["slow"] += 1
        await asyncio.Event().wait()

    @workflow
    async def hurry() -> str:
        try:
            await slow()
        except StepFailed as error:
            await flow.sleep(10)
            return str(error.error_type)
        return ""

    assert await result_of(ctx, hurry) == "TimeoutError"
    assert BODIES["slow"] <= 2


@case("DBOS test_failures step_timeout_does_not_claim_a_cancelled_step")
async def a_cancelled_step_has_not_timed_out(ctx: Context) -> None:
    @step(timeout_s=50)
    async def slow() -> None:
        await asyncio.Event().wait()

    @workflow
    async def waiting() -> None:
        await slow()

    handle = await waiting.start(ctx)
    await ctx.clock.advance(5)
    await handle.cancel("enough")
    with pytest.raises(FunctionFailed, match="WorkflowCancelled"):
        await handle.result()


@case("DBOS test_failures step_retries_no_final_sleep", races=False)
async def no_delay_after_the_last_attempt(ctx: Context) -> None:
    @step(retry=Retry(attempts=3, first_s=10, jitter=0))
    async def failing() -> None:
        BODIES["failing"] += 1
        raise RuntimeError("again")

    @workflow
    async def persistent() -> float:
        before = flow.now()
        with pytest.raises(StepFailed):
            await failing()
        return (flow.now() - before).total_seconds()

    assert 30 <= await result_of(ctx, persistent) < 31
    assert 3 <= BODIES["failing"] <= 4


@case("DBOS test_failures should_retry_on_last_attempt")
async def should_retry_is_asked_each_time(ctx: Context) -> None:
    @step(retry=Retry(attempts=9, first_s=0.1, should_retry=lambda error: "final" not in str(error)))
    async def failing() -> None:
        BODIES["failing"] += 1
        raise RuntimeError("final" if step.attempt == 3 else "again")

    @workflow
    async def persistent() -> str:
        try:
            await failing()
        except StepFailed as error:
            return error.message
        return ""

    assert "final" in await result_of(ctx, persistent)


@case("DBOS test_failures recovery_during_retries")
async def attempts_go_on_after_a_suspension(ctx: Context) -> None:
    @step(retry=Retry(attempts=4, first_s=100, max_s=100, jitter=0))
    async def flaky() -> int:
        if step.attempt < 4:
            raise RuntimeError("again")
        return step.attempt

    @workflow
    async def patient() -> int:
        return await flaky()

    handle = await patient.start(ctx)
    await ctx.clock.advance(50)
    assert (await handle.status()).status == "suspended"
    assert await handle.result() == 4


@case("DBOS test_failures nonserializable_return")
async def a_result_that_cannot_be_recorded(ctx: Context) -> None:
    @step
    async def strange() -> object:
        return object()

    @workflow
    async def careless() -> str:
        try:
            await strange()
        except StepFailed as error:
            return error.message
        return ""

    assert "strange" in await result_of(ctx, careless)


class Declined(Exception):
    """Of a user."""


@case("DBOS test_failures error_serialization")
async def declared_errors_keep_their_class(ctx: Context) -> None:
    @step(raises=(Declined,))
    async def charge() -> None:
        raise Declined(51, "no funds")

    @workflow
    async def pay() -> list[Any]:
        try:
            await charge()
        except Declined as error:
            await flow.sleep(5)
            return list(error.args)
        return []

    assert await result_of(ctx, pay) == [51, "no funds"]


@case("Temporal features activity_retry_delay")
async def an_error_sets_its_own_delay(ctx: Context) -> None:
    class Busy(Exception):
        retry_after_s = 70.0

    @step(retry=Retry(attempts=2, first_s=1))
    async def ask() -> str:
        if step.attempt == 1:
            raise Busy
        return "answer"

    @workflow
    async def polite() -> float:
        before = flow.now()
        await ask()
        return (flow.now() - before).total_seconds()

    assert 70 <= await result_of(ctx, polite) < 71


@case("Temporal features activity non-retryable types")
async def errors_that_are_never_retried(ctx: Context) -> None:
    @step(retry=Retry(attempts=5, never=("ValueError",)))
    async def failing() -> None:
        BODIES["failing"] += 1
        raise ValueError("for good")

    @workflow
    async def once() -> None:
        await failing()

    with pytest.raises(FunctionFailed, match="for good"):
        await result_of(ctx, once)
    assert BODIES["failing"] <= 2


@case("Hatchet examples non_retryable")
async def terminal_errors_are_final(ctx: Context) -> None:
    @step(retry=Retry(attempts=5))
    async def failing() -> None:
        BODIES["failing"] += 1
        raise TerminalError("stop")

    @workflow
    async def once() -> None:
        await failing()

    with pytest.raises(FunctionFailed, match="stop"):
        await result_of(ctx, once)
    assert BODIES["failing"] <= 2


@case("Temporal features activity_heartbeat_details", crashes=False)
async def the_next_attempt_sees_the_details(ctx: Context) -> None:
    @step(retry=Retry(first_s=1))
    async def crawl() -> int:
        begin: int = step.details or 0
        if not begin:
            step.heartbeat(7)
            await asyncio.sleep(0)
            raise ConnectionError("half-way")
        return begin

    @workflow
    async def crawling() -> int:
        return await crawl()

    assert await result_of(ctx, crawling) == 7


@case("Restate RunRetry.executedOnlyOnce")
async def a_step_before_a_failing_one_is_not_repeated(ctx: Context) -> None:
    @step(retry=Retry(attempts=3, first_s=30))
    async def flaky() -> None:
        if step.attempt < 3:
            raise RuntimeError("again")

    @workflow
    async def two() -> None:
        await do("first")
        await flaky()

    await result_of(ctx, two)
    assert done() == {"first": 1}
    assert BODIES["first"] <= 2


@case("inngest-py#136", crashes=False)
async def parallel_steps_run_at_once(ctx: Context) -> None:
    arrived = [asyncio.Event(), asyncio.Event()]

    @step
    async def meet(n: int) -> int:
        arrived[n].set()
        await arrived[1 - n].wait()
        return n

    @workflow
    async def together() -> list[int]:
        return list(await asyncio.gather(meet(0), meet(1)))

    assert await result_of(ctx, together) == [0, 1]


@case("inngest-py#179")
async def a_workflow_is_no_step(ctx: Context) -> None:
    @workflow
    async def inner() -> int:
        return 1

    @workflow
    async def outer() -> int:
        found: int = await inner()
        return found

    with pytest.raises(FunctionFailed, match="is a workflow, which is started and not called"):
        await result_of(ctx, outer)


@case("DBOS gather_distinct_steps_deterministic_order")
async def results_come_in_the_order_of_the_arguments(ctx: Context) -> None:
    @workflow
    async def together() -> list[str]:
        found = await asyncio.gather(*(do(f"step {n}") for n in range(5)))
        await flow.sleep(3)
        return list(found)

    assert await result_of(ctx, together) == [f"step {n}" for n in range(5)]


@case("DBOS test_failures nondeterministic_workflow", crashes=False)
async def what_diverges_is_paused(ctx: Context) -> None:
    turns: list[int] = []

    @workflow
    async def moody() -> None:
        turns.append(0)
        await add(len(turns), 0)
        await flow.sleep(100)

    handle = await moody.start(ctx)
    await ctx.clock.advance(200)
    state = await handle.status()
    assert state.status == "paused"
    assert "add#0" in state.note


@case("Hatchet on_failure")
async def what_was_done_is_undone_in_reverse(ctx: Context) -> None:
    @workflow
    async def saga() -> None:
        for what in ("hotel", "flight", "car"):
            await do(what)
            flow.compensate(do, f"no {what}")
        raise ValueError("no money")

    with pytest.raises(FunctionFailed, match="no money"):
        await result_of(ctx, saga)
    assert list(done()) == ["hotel", "flight", "car", "no car", "no flight", "no hotel"]


@case("Restate saga: a compensation that fails")
async def the_other_compensations_are_still_made(ctx: Context) -> None:
    @step
    async def broken() -> None:
        raise RuntimeError("closed")

    @workflow
    async def saga() -> None:
        flow.compensate(do, "first")
        flow.compensate(broken)
        raise ValueError("no money")

    with pytest.raises(FunctionFailed, match=CompensationFailed.__name__):
        await result_of(ctx, saga)
    assert done() == {"first": 1}


@case("Hatchet bug_tests payload_bug_on_replay")
async def a_replay_is_given_the_payload_as_it_was(ctx: Context) -> None:
    @workflow
    async def greedy(items: list[int]) -> int:
        total = 0
        while items:
            total = await add(total, items.pop())
            await flow.sleep(10)
        return total

    assert await result_of(ctx, greedy, [1, 2, 3]) == 6


@case("DBOS test_failures: a step without a result")
async def none_is_a_result(ctx: Context) -> None:
    @step
    async def nothing() -> None:
        BODIES["nothing"] += 1

    @workflow
    async def quiet() -> bool:
        await nothing()
        await flow.sleep(5)
        return True

    assert await result_of(ctx, quiet)
    assert BODIES["nothing"] <= 2
