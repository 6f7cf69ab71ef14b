"""Continue as new: what the next round of a workflow gets, and what holds from round to round."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from boki import FunctionFailed
from boki.libs.bokiflow import flow, workflow
from boki.testing import Context
from tests.libs.bokiflow.classes import add, case, do, done


@workflow
async def adder(state: tuple[int, int, int]) -> int:
    """Handlers add what comes. It continues as new whenever something came, until that was enough."""
    wanted, total, count = state
    got: list[int] = []

    def take(number: int) -> int:
        got.append(number)
        return total + sum(got)

    flow.on_signal("add", take)
    flow.on_update("add", take)
    await flow.wait_for(lambda: bool(got))
    total, count = total + sum(got), count + len(got)
    return total if count >= wanted else flow.continue_as_new((wanted, total, count))


@case("temporal#1289, #8097: signals to a handler against continue-as-new")
async def handlers_get_every_signal(ctx: Context) -> None:
    handle = adder.handle(ctx, "a")
    for number in (1, 2, 4):
        await handle.signal("add", number)
    await adder.start(ctx, (6, 0, 0), id="a")
    for number in (8, 16, 32):
        await handle.signal("add", number)
        await ctx.clock.advance(0.2)
    assert await handle.result() == 63


@case("temporal#4801: updates that come together against continue-as-new")
async def answered_updates_are_in_the_state(ctx: Context) -> None:
    handle = await adder.start(ctx, (3, 0, 0), id="a")
    answers = await asyncio.gather(*(handle.update("add", number, id=f"{number}") for number in (1, 2, 4)))
    assert max(answers) == 7
    assert await handle.result() == 7


@case("temporal features update.deduplication: an update repeated after continue-as-new")
async def a_repeated_update_gives_its_answer(ctx: Context) -> None:
    handle = await adder.start(ctx, (3, 0, 0), id="a")
    assert await handle.update("add", 1, id="one") == 1
    assert await handle.update("add", 2, id="two") == 3
    assert await handle.update("add", 1, id="one") == 1
    assert await handle.update("add", 4, id="three") == 7
    assert await handle.result() == 7


@case("sdk-dotnet#427: a handler that still runs when the body continues as new")
async def a_running_handler_refuses_a_continuation(ctx: Context) -> None:
    @workflow
    async def hasty(waits: bool) -> str:
        begun: list[str] = []

        async def think(what: str) -> None:
            begun.append(what)
            await flow.sleep(5)
            await do(what)

        flow.on_signal("think", think)
        await flow.wait_for(lambda: bool(begun))
        if waits:
            await flow.wait_for(flow.all_handlers_finished)
        if begun == ["last"]:
            return "over"
        return flow.continue_as_new(waits)

    handle = await hasty.start(ctx, True, id="patient")
    await handle.signal("think", "first")
    await handle.signal("think", "second")
    await ctx.clock.advance(20)
    await handle.signal("think", "last")
    assert await handle.result() == "over"
    assert done() == {"first": 1, "second": 1, "last": 1}
    handle = await hasty.start(ctx, False, id="hasty")
    await handle.signal("think", "lost")
    with pytest.raises(FunctionFailed, match=r"UnfinishedHandlers.*think"):
        await handle.result()


@case("durabletask-dotnet#387: a cancellation behind the event that continues as new")
async def a_cancellation_behind_the_last_message(ctx: Context) -> None:
    @workflow
    async def turning(turn: int) -> None:
        await do(f"turn {turn}")
        await flow.receive("x")
        flow.continue_as_new(turn + 1)

    handle = await turning.start(ctx, 0, id="t")
    await ctx.clock.advance(5)
    await handle.signal("x")
    await handle.cancel("enough")
    with pytest.raises(FunctionFailed, match="enough"):
        await handle.result()


@case("Temporal ParentClosePolicy: a child of an earlier round")
async def children_of_earlier_rounds_are_closed(ctx: Context) -> None:
    @workflow
    async def child() -> None:
        flow.compensate(do, "child undone")
        await flow.receive("never")

    @workflow
    async def parent(turn: int) -> Any:
        if not turn:
            await flow.start(child, id="child")
        await add(turn, 1)
        return turn if turn == 2 else flow.continue_as_new(turn + 1)

    assert await (await parent.start(ctx, 0, id="p")).result() == 2
    await ctx.clock.advance(5)
    assert (await child.handle(ctx, "child").status()).status == "cancelled"
