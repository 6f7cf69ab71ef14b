"""Values: payloads, results and errors, as they are after a replay; and steps as they are called."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from boki import FunctionFailed, InvalidArgument, Retry
from boki.libs.bokiflow import NotDeterministic, StepFailed, flow, step, workflow
from boki.testing import Context
from tests.libs.bokiflow.classes import BODIES, add, case, do, done, result_of


@dataclass
class Order:
    """What data converters are tried with."""

    name: str
    items: list[int]


@case("temporalio/features data_converter json")
async def types_outlive_a_replay(ctx: Context) -> None:
    @step
    async def price(order: Order) -> Order:
        BODIES["price"] += 1
        return Order(order.name, [n * 2 for n in order.items])

    @workflow
    async def pricing(order: Order) -> Order:
        priced = await price(order)
        await flow.sleep(5)
        return await price(priced)

    assert await result_of(ctx, pricing, Order("tea", [1, 2])) == Order("tea", [4, 8])


@case("temporalio/features data_converter binary")
async def bytes_are_results(ctx: Context) -> None:
    @step
    async def read() -> bytes:
        return bytes(range(256))

    @workflow
    async def reading() -> int:
        found = await read()
        await flow.sleep(5)
        return sum(found)

    assert await result_of(ctx, reading) == sum(range(256))


@case("temporalio/features data_converter empty; failure")
async def an_unusual_text_is_a_result(ctx: Context) -> None:
    text = "\x00\u2028 äöü 🎬 'quoted' \\"

    @step
    async def say() -> str:
        return text

    @workflow
    async def saying() -> str:
        found = await say()
        await flow.sleep(5)
        return found

    assert await result_of(ctx, saying) == text


@case("DBOS: a workflow without steps")
async def a_body_that_does_nothing(ctx: Context) -> None:
    @workflow
    async def nothing() -> None:
        pass

    assert await result_of(ctx, nothing) is None


@case("Temporal test_workflow: a body that returns at once after a signal handler was set")
async def handlers_that_were_never_called(ctx: Context) -> None:
    @workflow
    async def ready() -> str:
        flow.on_signal("x", lambda _: None)
        flow.on_update("y", lambda _: None)
        flow.on_query("z", lambda _: 5)
        return await do("done")

    assert await result_of(ctx, ready) == "done"


@case("inngest: step ids that repeat in a loop")
async def the_same_step_many_times(ctx: Context) -> None:
    @workflow
    async def loop() -> int:
        total = 0
        for _ in range(8):
            total = await add(total, 1)
        return total

    assert await result_of(ctx, loop) == 8


@case("Restate: side effects in parallel branches")
async def branches_of_different_lengths(ctx: Context) -> None:
    @workflow
    async def branches() -> list[int]:
        async def chain(count: int) -> int:
            total = 0
            for n in range(count):
                total = await add(total, n)
            return total

        return list(await asyncio.gather(*(chain(count) for count in (4, 1, 3))))

    assert await result_of(ctx, branches) == [6, 0, 3]


@case("DBOS test_failures: an error with the same text twice")
async def errors_are_told_apart(ctx: Context) -> None:
    @step
    async def refuse(what: str) -> None:
        raise LookupError(what)

    @workflow
    async def collecting() -> list[str]:
        said = []
        for what in ("a", "b", "a"):
            try:
                await refuse(what)
            except StepFailed as error:
                said.append(error.message[-1])
        return said

    assert await result_of(ctx, collecting) == ["a", "b", "a"]


@case("Temporal test_activity: cancelled while it waits for its next attempt")
async def a_cancelled_step_is_not_tried_again(ctx: Context) -> None:
    @step(retry=Retry(attempts=9, first_s=50, max_s=50, jitter=0))
    async def failing() -> None:
        BODIES["failing"] += 1
        raise RuntimeError("again")

    @workflow
    async def impatient() -> str:
        try:
            async with asyncio.timeout(20):
                await failing()
        except TimeoutError:
            return await do("given up")
        return ""

    assert await result_of(ctx, impatient) == "given up"
    assert BODIES["failing"] <= 2


@case("DBOS: a nested helper that catches everything")
async def bare_excepts_hide_no_cancellation(ctx: Context) -> None:
    @workflow
    async def stubborn() -> str:
        try:
            await flow.sleep(500)
        except Exception:  # noqa: BLE001 - the case is that users write this
            await do("swallowed")
        return "over"

    handle = await stubborn.start(ctx)
    await ctx.clock.advance(2)
    await handle.cancel()
    with pytest.raises(FunctionFailed, match="WorkflowCancelled"):
        await handle.result()
    assert done() == {}


@case("Temporal sandbox: time.sleep and sockets")
async def sockets_are_refused(ctx: Context) -> None:
    @workflow
    async def reaching() -> str:
        try:
            await asyncio.open_connection("localhost", 1)
        except NotDeterministic as error:
            return error.code
        return ""

    assert await result_of(ctx, reaching) == "not_deterministic"


@case("DBOS: a step with keyword arguments and defaults")
async def arguments_are_the_same_however_they_are_passed(ctx: Context) -> None:
    @step
    async def join(a: str, *, b: str = "b", c: str = "c") -> str:
        return a + b + c

    @workflow
    async def joining() -> list[str]:
        return [await join("a"), await join("a", c="d"), await join(a="x", b="y", c="z")]

    assert await result_of(ctx, joining) == ["abc", "abd", "xyz"]


@case("Restate: a step inside of a step")
async def a_step_in_a_step_is_a_call(ctx: Context) -> None:
    @step
    async def outer(n: int) -> int:
        BODIES["outer"] += 1
        return await add(n, 1) + 1

    @workflow
    async def nesting() -> int:
        return await outer(1)

    assert await result_of(ctx, nesting) == 3
    assert BODIES["add"] == BODIES["outer"]


@case("Hatchet: payloads of several kinds")
async def payloads_are_given_as_they_were(ctx: Context) -> None:
    @workflow
    async def echo(value: Any) -> Any:
        await flow.sleep(1)
        return value

    for value in ([], {"a": [1, None]}, "text", 0, False, 1.5):
        assert await result_of(ctx, echo, value) == value


@case("Temporal: arguments that have no digest")
async def arguments_that_cannot_be_recorded(ctx: Context) -> None:
    @workflow
    async def careless() -> str:
        try:
            await add(object(), 1)  # type: ignore[arg-type]
        except InvalidArgument as error:
            return error.code
        return ""

    assert await result_of(ctx, careless) == "invalid_argument"
