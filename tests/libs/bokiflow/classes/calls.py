"""Children, ids and parents that end first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from boki import AlreadyExists, FunctionFailed, KeyReused
from boki.libs.bokiflow import WorkflowEnded, flow, workflow
from boki.testing import Context
from tests.libs.bokiflow.classes import case, do, done, result_of


@workflow
async def child(number: int) -> int:
    """Does something, waits, and doubles; 13 is unlucky."""
    await do(f"child {number}")
    await flow.sleep(10)
    if number == 13:
        raise ValueError("unlucky")
    return number * 2


@workflow
async def endless() -> None:
    """Undoes what it has done when it is cancelled."""
    flow.compensate(do, "undo")
    await flow.sleep(1_000_000)


@case("DBOS record_child_workflow_idempotent_on_db_retry")
async def a_child_runs_once(ctx: Context) -> None:
    @workflow
    async def parent() -> int:
        found: int = await flow.call(child, 1)
        return found

    assert await result_of(ctx, parent) == 2
    assert done() == {"child 1": 1}


@case("Hatchet bug_tests durable_spawn_index_collision")
async def children_side_by_side_are_told_apart(ctx: Context) -> None:
    @workflow
    async def parent() -> list[int]:
        return list(await asyncio.gather(*(flow.call(child, n) for n in range(5))))

    assert await result_of(ctx, parent) == [0, 2, 4, 6, 8]
    assert done() == {f"child {n}": 1 for n in range(5)}


@case("Hatchet bug_tests durable_child_key_duplicate_child")
async def one_id_is_one_child(ctx: Context) -> None:
    @workflow
    async def parent() -> list[int]:
        return list(await asyncio.gather(*(flow.call(child, 4, id="the child") for _ in range(3))))

    assert await result_of(ctx, parent) == [8, 8, 8]
    assert done() == {"child 4": 1}


@case("DBOS async_recovery_direct_child: a child that fails")
async def the_error_of_a_child_is_caught(ctx: Context) -> None:
    @workflow
    async def parent() -> str:
        try:
            await flow.call(child, 13)
        except FunctionFailed as error:
            await flow.sleep(10)
            return str(error.error_type)
        return ""

    assert await result_of(ctx, parent) == "ValueError"


@case("temporal workflow child: start and await later")
async def children_are_awaited_in_any_order(ctx: Context) -> None:
    @workflow
    async def parent() -> list[int]:
        children = [await flow.start(child, n) for n in range(3)]
        return [await each.result() for each in reversed(children)]

    assert await result_of(ctx, parent) == [4, 2, 0]
    assert done() == {f"child {n}": 1 for n in range(3)}


@case("temporal features child_workflow: a child that continues as new")
async def the_parent_waits_for_the_last_continuation(ctx: Context) -> None:
    @workflow
    async def turning(turn: int) -> int:
        await do(f"turn {turn}")
        return turn if turn == 3 else flow.continue_as_new(turn + 1)

    @workflow
    async def parent() -> int:
        found: int = await flow.call(turning, 0)
        return found

    assert await result_of(ctx, parent) == 3
    assert done() == {f"turn {n}": 1 for n in range(4)}


@case("durabletask: a continuation calls a child like the one before")
async def each_continuation_has_children_of_its_own(ctx: Context) -> None:
    @workflow
    async def parent(turn: int) -> int:
        found: int = await flow.call(child, turn)
        return found if turn == 3 else flow.continue_as_new(turn + 1)

    assert await result_of(ctx, parent, 1) == 6
    assert done() == {f"child {n}": 1 for n in (1, 2, 3)}


@case("Azure Durable: chains of sub-orchestrations")
async def children_of_children(ctx: Context) -> None:
    @workflow
    async def deeper(level: int) -> int:
        found: int = await flow.call(deeper, level - 1) if level else 0
        return found + 1

    assert await result_of(ctx, deeper, 5) == 6


@case("DBOS cancel_workflow_children; temporal parent close policy cancel")
async def a_cancelled_parent_cancels_its_child(ctx: Context) -> None:
    @workflow
    async def parent() -> None:
        await flow.call(endless, id="its child")

    handle = await parent.start(ctx)
    await ctx.clock.advance(5)
    await handle.cancel()
    with pytest.raises(FunctionFailed, match="WorkflowCancelled"):
        await handle.result()
    with pytest.raises(FunctionFailed, match="WorkflowCancelled"):
        await endless.handle(ctx, "its child").result()
    assert done() == {"undo": 1}


@case("durabletask: recursive terminate")
async def cancelling_reaches_grandchildren(ctx: Context) -> None:
    @workflow
    async def middle() -> None:
        await flow.call(endless, id="grandchild")

    @workflow
    async def parent() -> None:
        await flow.call(middle, id="middle")

    handle = await parent.start(ctx)
    await ctx.clock.advance(5)
    await handle.cancel()
    for each in (handle, middle.handle(ctx, "middle"), endless.handle(ctx, "grandchild")):
        with pytest.raises(FunctionFailed, match="WorkflowCancelled"):
            await each.result()
    assert done() == {"undo": 1}


@case("temporal parent close policy terminate")
async def a_child_that_is_killed_undoes_nothing(ctx: Context) -> None:
    assert await _left_behind(ctx, "kill") == "cancelled"
    assert done() == {}


@case("temporal parent close policy abandon")
async def a_child_that_is_abandoned_goes_on(ctx: Context) -> None:
    assert await _left_behind(ctx, "abandon") == "suspended"
    assert done() == {}


async def _left_behind(ctx: Context, policy: Any) -> str:
    @workflow
    async def parent() -> None:
        await flow.start(endless, id="left", parent_close=policy)
        await flow.sleep(1)

    await result_of(ctx, parent)
    await ctx.clock.advance(20)
    return (await endless.handle(ctx, "left").status()).status


@case("DBOS test_duplication_policy return_existing")
async def an_id_that_runs_is_used(ctx: Context) -> None:
    first = await child.start(ctx, 1, id="one")
    second = await child.start(ctx, 1, id="one")
    assert [await first.result(), await second.result()] == [2, 2]
    assert done() == {"child 1": 1}


@case("Temporal WorkflowIdConflictPolicy fail")
async def an_id_that_runs_is_refused(ctx: Context) -> None:
    await child.start(ctx, 1, id="one")
    with pytest.raises(AlreadyExists):
        await child.start(ctx, 1, id="one", if_running="fail")


@case("Stripe idempotency: an id with other arguments")
async def an_id_stands_for_one_payload(ctx: Context) -> None:
    await child.start(ctx, 1, id="one")
    with pytest.raises(KeyReused):
        await child.start(ctx, 2, id="one")


@case("Temporal WorkflowIdConflictPolicy terminate existing")
async def an_id_that_runs_is_killed_for_the_new_one(ctx: Context) -> None:
    await child.start(ctx, 1, id="one")
    await ctx.clock.advance(1)
    assert await result_of(ctx, child, 2, id="one", if_running="kill") == 4


@case("Temporal WorkflowIdReusePolicy: after it has ended")
async def an_id_that_has_ended_is_used_again(ctx: Context) -> None:
    assert await result_of(ctx, child, 1, id="one") == 2
    assert await result_of(ctx, child, 1, id="one") == 2
    assert await result_of(ctx, child, 3, id="one", if_ended="again") == 6
    assert done() == {"child 1": 1, "child 3": 1}


@case("Temporal WorkflowIdReusePolicy allow duplicate failed only")
async def an_id_that_has_failed_is_started_again(ctx: Context) -> None:
    with pytest.raises(FunctionFailed, match="unlucky"):
        await result_of(ctx, child, 13, id="one")
    assert await result_of(ctx, child, 3, id="one", if_ended="again_if_failed") == 6


@case("DBOS workflow_outcome_is_owned_by_the_pending_row")
async def a_killed_workflow_stays_killed(ctx: Context) -> None:
    handle = await child.start(ctx, 1, id="one")
    await handle.kill()
    await ctx.clock.advance(100)
    assert (await handle.status()).status == "cancelled"
    with pytest.raises(WorkflowEnded):
        await handle.resume()
