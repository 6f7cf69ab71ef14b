"""Where plain code may use handles and contexts: in steps, once whatever crashes, and not in bodies and event loops."""

from typing import Any

import pytest

import boki.testing
from boki import InvalidArgument
from boki.libs.bokiflow import NotDeterministic, flow, step, workflow
from boki.testing import flows

pytestmark = pytest.mark.usefixtures("each_mode")

HELD: list[Any] = []
"""Contexts of a step, which code of other workflows reaches though it should not."""


@pytest.fixture(autouse=True)
def forget() -> None:
    HELD.clear()


@workflow
async def pending(n: int) -> int:
    await flow.receive("go")
    return n


@workflow
async def counts() -> int:
    count = 0

    def one_more(_: Any) -> None:
        nonlocal count
        count += 1

    flow.on_signal("one", one_more)
    await flow.receive("end")
    return count


@step
def sends(word: str) -> None:
    counts.handle(step.blocking_ctx, "c").signal(word, key=step.key)


@workflow
def sends_both() -> None:
    sends("one")
    sends("end")


async def test_a_plain_step_signals_once_whatever_crashes() -> None:
    """Under the key of the step: it may run again, and the message is sent once."""
    contexts = 0
    async for ctx in flows.every_crash():
        contexts += 1
        handle = await counts.start(ctx, id="c")
        await (await sends_both.start(ctx)).result()
        assert await handle.result() == 1
    assert contexts > 4


@workflow
async def reaches_out(how: str) -> str:
    try:
        if how == "start":
            pending.start(HELD[0], 1)
        elif how == "status":
            pending.handle(HELD[0], "a").status()
        elif how == "schedule":
            pending.schedule_handle(HELD[0], "s").state()
        elif how == "async start":
            await pending.start(HELD[1], 1)
        elif how == "async signal":
            await pending.handle(HELD[1], "a").signal("go")
        elif how == "async schedule":
            await pending.schedule_handle(HELD[1], "s").state()
    except NotDeterministic as error:
        return str(error)
    return "nothing was refused"


@workflow
def plainly_reaches_out(how: str) -> str:
    try:
        if how == "start":
            pending.start(HELD[0], 1)
        elif how == "status":
            pending.handle(HELD[0], "a").status()
        elif how == "schedule":
            pending.schedule_handle(HELD[0], "s").state()
        elif how == "context":
            HELD[0].logbook.append(b"")
    except NotDeterministic as error:
        return str(error)
    return "nothing was refused"


@step
def hold() -> None:
    HELD[:] = [step.blocking_ctx, step.ctx]


@workflow
async def holds() -> None:
    await flow.run(hold)
    await flow.receive("end")


@pytest.mark.parametrize("how", ["start", "status", "schedule", "async start", "async signal", "async schedule"])
async def test_a_body_is_refused(boki_context: boki.testing.Context, how: str) -> None:
    """A replay would do it again: in the body of a workflow a handle says so, with what to do instead."""
    handle = await holds.start(boki_context)
    await boki_context.clock.advance(1)
    assert "call it in a step" in await (await reaches_out.start(boki_context, how)).result()
    await handle.kill()


@pytest.mark.parametrize("how", ["start", "status", "schedule", "context"])
async def test_a_plain_body_is_refused(boki_context: boki.testing.Context, how: str) -> None:
    """Its thread and the loop would wait for each other."""
    handle = await holds.start(boki_context)
    await boki_context.clock.advance(1)
    assert "call it in a step" in await (await plainly_reaches_out.start(boki_context, how)).result()
    await handle.kill()


@step
async def stops_the_loop(how: str) -> str:
    try:
        if how == "start":
            pending.start(step.blocking_ctx, 1)
        else:
            step.blocking_ctx.logbook.append(b"")
    except InvalidArgument as error:
        return str(error)
    return "nothing was refused"


@workflow
async def has_an_async_step(how: str) -> str:
    return await stops_the_loop(how)


@pytest.mark.parametrize("how", ["start", "append"])
async def test_an_async_step_is_refused(boki_context: boki.testing.Context, how: str) -> None:
    """It runs in the loop that it would wait for."""
    assert "event loop, which it would stop" in await (await has_an_async_step.start(boki_context, how)).result()


async def test_the_thread_of_a_loop_is_refused(boki_blocking_context: boki.testing.BlockingContext) -> None:
    """Blocking code would stop what else runs in it."""
    handle = pending.handle(boki_blocking_context, "a")
    with pytest.raises(InvalidArgument, match="thread of an event loop"):
        handle.status()
