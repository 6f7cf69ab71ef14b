"""Waits of `def` workflows with a time limit: `TimeoutError` after it, and what came meanwhile is as if none were."""

from __future__ import annotations

from typing import Any

import pytest

import boki.testing
from boki import InvalidArgument
from boki.libs.bokiflow import workflow
from boki.libs.bokiflow.blocking import flow
from boki.testing import flows

pytestmark = pytest.mark.usefixtures("each_mode")


@workflow
def sleeper(seconds: float) -> str:
    flow.sleep(seconds)
    return "slept"


@workflow
def holder(seconds: float) -> None:
    with flow.lock("room"):
        flow.sleep(seconds)


def wait(what: str, timeout_s: float | None) -> Any:
    match what:
        case "receive":
            return flow.receive("word", timeout_s=timeout_s)
        case "promise":
            return flow.promise("word", timeout_s=timeout_s)
        case "wait_for":
            return flow.wait_for(lambda: False, timeout_s=timeout_s)
        case "call":
            return flow.call(sleeper, 60, id="called", timeout_s=timeout_s)
        case "lock":
            with flow.lock("room", timeout_s=timeout_s) as held:
                return held.token > 0
    child = flow.start(sleeper, 60, id="child")
    try:
        return child.result(timeout_s=timeout_s)
    except TimeoutError:
        return ["again", child.result(timeout_s=100)]


@workflow
def impatient(what: str) -> Any:
    begun = flow.now()
    try:
        found = wait(what, 10)
    except TimeoutError:
        found = "gave up"
    return [found, round((flow.now() - begun).total_seconds())]


WAITS = ("receive", "promise", "wait_for", "call", "lock")


@pytest.mark.parametrize("what", WAITS)
async def test_a_wait_ends_after_its_time(boki_context: boki.testing.Context, what: str) -> None:
    """It waited forever, though one of an `async def` workflow is ended by `asyncio.timeout`."""
    ctx = boki_context
    await holder.start(ctx, 60)
    await ctx.clock.advance(1)
    assert await (await impatient.start(ctx, what, id="i")).result() == ["gave up", 10]
    if what == "call":
        await ctx.clock.advance(5)
        assert (await sleeper.handle(ctx, "called").status()).status == "cancelled"


async def test_a_child_is_awaited_again(boki_context: boki.testing.Context) -> None:
    """A timeout of the wait leaves the child alone."""
    found, seconds = await (await impatient.start(boki_context, "child")).result()
    assert (found, seconds) == (["again", "slept"], 60)


@workflow
def patient(timeout_s: float | None) -> list[Any]:
    found = [flow.receive("word", timeout_s=timeout_s), flow.promise("word", timeout_s=timeout_s)]
    found.append(flow.call(sleeper, 5, timeout_s=timeout_s))
    flow.wait_for(lambda: True, timeout_s=timeout_s)
    with flow.lock("room", timeout_s=timeout_s):
        return found


@pytest.mark.parametrize("timeout_s", [None, 100, 1e9])
async def test_what_comes_in_time_is_taken(boki_context: boki.testing.Context, timeout_s: float | None) -> None:
    """As without a limit, and after each crash."""
    async for ctx in flows.every_crash():
        handle = await patient.start(ctx, timeout_s)
        await handle.signal("word", 1, key="k")
        await ctx.clock.advance(5)
        await handle.resolve("word", 2)
        assert await handle.result() == [1, 2, "slept"]


@workflow
def in_a_handler(_: None = None) -> str:
    def ask(_: Any) -> str:
        try:
            return str(flow.receive("never", timeout_s=5))
        except TimeoutError:
            return "gave up"

    flow.on_update("ask", ask)
    flow.receive("end")
    return "ended"


async def test_a_handler_gives_up_alone(boki_context: boki.testing.Context) -> None:
    """Its workflow waits as before."""
    handle = await in_a_handler.start(boki_context)
    assert await handle.update("ask") == "gave up"
    await handle.signal("end")
    assert await handle.result() == "ended"


@workflow
def wrong(seconds: float) -> str:
    try:
        flow.receive("word", timeout_s=seconds)
    except InvalidArgument as error:
        return str(error.details["field"])
    return ""


async def test_a_limit_is_a_number_of_seconds(boki_context: boki.testing.Context) -> None:
    """Not one below zero."""
    assert await (await wrong.start(boki_context, -1)).result() == "timeout_s"
