"""`flow.continue_as_new`: the next execution gets all that the one before it has not taken, and nothing twice.

Temporal #1289 and #8097, durabletask-dotnet#387 and sdk-dotnet#427 are the threads behind it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import boki.testing
from boki import BokiError, FunctionFailed, InvalidArgument, TooLarge
from boki.libs.bokiflow import WorkflowEnded, flow, step, workflow
from boki.testing import flows

pytestmark = pytest.mark.usefixtures("each_mode")


@step
async def add(a: int, b: int) -> int:
    return a + b


class Sum(msgspec.Struct, frozen=True):
    """What a workflow that adds numbers hands over to the next round."""

    wanted: int
    total: int = 0
    count: int = 0


@workflow
async def sums(state: Sum) -> Sum:
    """A handler adds what comes; after each number, or several that come at once, it continues as new."""
    got: list[int] = []

    def take(number: int) -> int:
        got.append(number)
        return state.total + sum(got)

    flow.on_signal("add", take)
    flow.on_update("add", take)
    await flow.wait_for(lambda: bool(got))
    now = Sum(state.wanted, state.total + sum(got), state.count + len(got))
    return now if now.count >= now.wanted else flow.continue_as_new(now)


async def test_signals_to_a_handler_are_all_handled(boki_context: boki.testing.Context) -> None:
    """What is behind the signal by which the body continues is for the next round, also in the same page of the log."""
    ctx = boki_context
    handle = sums.handle(ctx, "s")
    for number in range(1, 8):
        await handle.signal("add", number)
    await sums.start(ctx, Sum(10), id="s")
    for number in range(8, 11):
        await handle.signal("add", number)
    assert await handle.result() == Sum(10, 55, 10)


async def test_an_update_that_was_answered_is_in_the_state(boki_context: boki.testing.Context) -> None:
    """While an answer is appended, the body has handed over its state: what comes then is for the next round."""
    ctx = boki_context
    handle = await sums.start(ctx, Sum(6), id="s")
    await ctx.clock.advance(1)
    answers = await asyncio.gather(*(handle.update("add", number) for number in (1, 2, 4, 8, 16, 32)))
    assert sorted(answers) == [1, 3, 7, 15, 31, 63]
    assert (await handle.result()).total == 63


async def test_no_crash_loses_a_message() -> None:
    """Before and after the record of each step, with messages on both sides of each continuation."""

    @workflow
    async def careful(state: Sum) -> Sum:
        got: list[int] = []
        flow.on_signal("add", got.append)
        await flow.wait_for(lambda: bool(got))
        total = await add(state.total, sum(got[: (taken := len(got))]))
        total += sum(got[taken:])
        now = Sum(state.wanted, total, state.count + len(got))
        return now if now.count >= now.wanted else flow.continue_as_new(now)

    async for ctx in flows.every_crash():
        handle = careful.handle(ctx, "c")
        for number in range(1, 4):
            await handle.signal("add", number)
        await careful.start(ctx, Sum(6), id="c")
        for number in range(4, 7):
            await handle.signal("add", number)
            await ctx.clock.advance(0.3)
        assert await handle.result() == Sum(6, 21, 6)


async def test_a_cancellation_behind_the_last_message(boki_context: boki.testing.Context) -> None:
    """The body has continued as new by then: the next round is cancelled."""

    @workflow
    async def turning(turn: int) -> None:
        await flow.receive("x")
        flow.continue_as_new(turn + 1)

    ctx = boki_context
    handle = await turning.start(ctx, 0, id="t")
    await ctx.clock.advance(10)
    assert (await handle.status()).status == "suspended"
    await asyncio.gather(handle.signal("x"), handle.cancel("enough"))
    with pytest.raises(FunctionFailed, match="enough"):
        await handle.result()


async def test_a_cancellation_that_was_obeyed_does_not_come_again(boki_context: boki.testing.Context) -> None:
    """Nor does a pause. The next round reads from the first message that nobody has taken, which stands before them."""

    @workflow
    async def stubborn(turn: int) -> Any:
        if turn:
            return await flow.receive("go")
        try:
            await flow.receive("never")
        except asyncio.CancelledError:
            flow.continue_as_new(1)

    ctx = boki_context
    handle = await stubborn.start(ctx, 0, id="s")
    await handle.signal("later")
    await ctx.clock.advance(5)
    await handle.pause()
    await ctx.clock.advance(5)
    await handle.cancel()
    await ctx.clock.advance(5)
    assert (await handle.status()).status == "suspended"
    await handle.signal("go", 7)
    assert await handle.result() == 7


async def test_a_message_that_nobody_takes_brings_none_back(boki_context: boki.testing.Context) -> None:
    """Each round reads from it on, and leaves out what any round before has taken."""

    @workflow
    async def turning(got: list[int]) -> list[int]:
        got = [*got, await flow.receive("x")]
        return got if len(got) == 6 else flow.continue_as_new(got)

    ctx = boki_context
    handle = turning.handle(ctx, "t")
    await handle.signal("never")
    for number in range(3):
        await handle.signal("x", number)
    await turning.start(ctx, [], id="t")
    for number in range(3, 6):
        await ctx.clock.advance(1)
        await handle.signal("x", number)
    assert await handle.result() == list(range(6))


@workflow
async def leaves_locks(state: Sum) -> Sum:
    """What it does between `continue_as_new` and its end takes some time."""
    got: list[int] = []
    flow.on_signal("add", got.append)
    await flow.lock("one")
    await flow.lock("two")
    await flow.wait_for(lambda: bool(got))
    now = Sum(state.wanted, state.total + sum(got), state.count + len(got))
    if now.count >= now.wanted:
        return now
    try:
        flow.continue_as_new(now)
    finally:
        await flow.sleep(2)


async def test_messages_while_the_body_is_unwound(boki_context: boki.testing.Context) -> None:
    """Its state is handed over: they are for the next round, and so is a request to cancel."""
    ctx = boki_context
    handle = await leaves_locks.start(ctx, Sum(4), id="l")
    for number in (1, 2, 3, 4):
        await handle.signal("add", number)
        await ctx.clock.advance(1)
    assert await handle.result() == Sum(4, 10, 4)
    handle = await leaves_locks.start(ctx, Sum(4), id="m")
    await handle.signal("add", 1)
    await ctx.clock.advance(1)
    await handle.cancel("enough")
    with pytest.raises(FunctionFailed, match="enough"):
        await handle.result()


async def test_a_body_that_catches_it_gets_its_messages(boki_context: boki.testing.Context) -> None:
    """It was asked for and did not come: the handlers work again once the body waits for something."""

    @workflow
    async def changes_its_mind() -> list[int]:
        got: list[int] = []
        flow.on_signal("x", got.append)
        try:
            flow.continue_as_new()
        except BaseException:  # noqa: BLE001 - as a careless body does
            await add(1, 1)
        await flow.wait_for(lambda: len(got) >= 2)
        return got

    ctx = boki_context
    handle = changes_its_mind.handle(ctx, "c")
    await handle.signal("x", 1)
    await changes_its_mind.start(ctx, id="c")
    await ctx.clock.advance(1)
    await handle.signal("x", 2)
    assert await handle.result() == [1, 2]


async def test_a_task_beside_the_body_takes_nothing_any_more(boki_context: boki.testing.Context) -> None:
    """It still runs while the body is unwound, and what it took would be lost with it."""

    @workflow
    async def besides(state: Sum) -> Sum:
        got: list[int] = []

        async def take() -> None:
            while True:
                got.append(await flow.receive("x"))

        task = asyncio.create_task(take())
        await flow.wait_for(lambda: bool(got))
        now = Sum(state.wanted, state.total + sum(got), state.count + len(got))
        if now.count >= now.wanted:
            task.cancel()
            return now
        try:
            flow.continue_as_new(now)
        finally:
            await add(1, 1)

    ctx = boki_context
    handle = besides.handle(ctx, "b")
    for number in (1, 2, 4):
        await handle.signal("x", number)
    await besides.start(ctx, Sum(4), id="b")
    await handle.signal("x", 8)
    assert await handle.result() == Sum(4, 15, 4)


async def test_a_body_that_waits_in_its_finally_takes_nothing_from_the_next_round(
    boki_context: boki.testing.Context,
) -> None:
    """The handlers work, as it may wait for them. What they took is not in the payload, so it is given back."""

    @workflow
    async def lingers(state: Sum) -> Sum:
        got: list[int] = []
        flow.on_signal("add", got.append)
        await flow.wait_for(lambda: bool(got))
        now = Sum(state.wanted, state.total + sum(got), state.count + len(got))
        if now.count >= now.wanted:
            return now
        try:
            flow.continue_as_new(now)
        finally:
            before = len(got)
            await flow.wait_for(lambda: len(got) > before)

    ctx = boki_context
    handle = lingers.handle(ctx, "l")
    await handle.signal("never")
    for number in (1, 2, 4):
        await handle.signal("add", number)
    await lingers.start(ctx, Sum(4), id="l")
    await ctx.clock.advance(5)
    await handle.signal("add", 8)
    assert await handle.result() == Sum(4, 15, 4)


async def test_what_a_body_receives_in_its_finally_stays_taken(boki_context: boki.testing.Context) -> None:
    """It has asked for it. The next round gets the signal that a handler took meanwhile, and what nobody took."""

    @workflow
    async def acknowledged(state: Sum) -> Sum:
        got: list[int] = []
        flow.on_signal("add", got.append)
        await flow.wait_for(lambda: bool(got))
        now = Sum(state.wanted, state.total + sum(got), state.count + len(got))
        if now.count >= now.wanted:
            return Sum(now.wanted, now.total, await flow.receive("ok"))
        try:
            flow.continue_as_new(now)
        finally:
            await flow.receive("ok")

    ctx = boki_context
    handle = await acknowledged.start(ctx, Sum(2), id="a")
    await handle.signal("add", 1)
    await ctx.clock.advance(1)
    await handle.signal("add", 2)
    await ctx.clock.advance(1)
    await handle.signal("ok", 7)
    await ctx.clock.advance(1)
    assert (await handle.status()).status == "suspended"
    await handle.signal("ok", 8)
    assert await handle.result() == Sum(2, 3, 8)


@pytest.mark.parametrize("way", ["group", "gather"])
async def test_a_task_beside_the_body_hands_over(boki_context: boki.testing.Context, way: str) -> None:
    """At the call: what comes while the body is unwound is for the next round."""

    @workflow
    async def besides(state: Sum) -> Sum:
        got: list[int] = []
        flow.on_signal("add", got.append)
        flow.on_update("add", got.append)
        await flow.wait_for(lambda: bool(got))
        now = Sum(state.wanted, state.total + sum(got), state.count + len(got))
        if now.count >= now.wanted:
            return now

        async def again() -> None:
            flow.continue_as_new(now)

        try:
            if way == "gather":
                await asyncio.gather(again(), flow.receive("never"))
            async with asyncio.TaskGroup() as group:
                group.create_task(again())
                await flow.receive("never")
        finally:
            await flow.sleep(1)
        raise AssertionError("it continues as new")

    ctx = boki_context
    handle = await besides.start(ctx, Sum(4), id="b")
    for number in (1, 2, 4):
        await handle.signal("add", number)
        await ctx.clock.advance(0.4)
    await handle.update("add", 8)
    assert await handle.result() == Sum(4, 15, 4)


@pytest.mark.parametrize("waits", ["directly", "in a gather"])
async def test_a_continuation_that_nobody_hears_of_stops_no_message(
    boki_context: boki.testing.Context, waits: str
) -> None:
    """It was raised in a task whose end nobody asks for: the body lives on, gets its messages, and can be cancelled."""

    @workflow
    async def careless() -> list[int]:
        async def again() -> None:
            flow.continue_as_new()

        task = asyncio.create_task(again())
        got: list[int] = []
        while len(got) < 2:
            if waits == "directly":
                got.append(await flow.receive("x"))
            else:
                got += await asyncio.gather(flow.receive("x"), flow.receive("x"))
        assert task.done()
        return got

    ctx = boki_context
    handle = await careless.start(ctx, id="c")
    for number in (1, 2):
        await ctx.clock.advance(1)
        await handle.signal("x", number)
    assert await handle.result() == [1, 2]
    handle = await careless.start(ctx, id="d")
    await ctx.clock.advance(1)
    await handle.cancel("enough")
    with pytest.raises(FunctionFailed, match="enough"):
        await handle.result()


# handlers that are running


class Turn(msgspec.Struct, frozen=True):
    """What `slow_handlers` begins a round with."""

    waits: bool
    total: int = 0
    is_last: bool = False


@workflow
async def slow_handlers(turn: Turn) -> int:
    """Its handler takes a minute, and it continues as new once one has begun, or when all have ended."""
    total, asked = turn.total, 0

    async def think(number: int) -> int:
        nonlocal asked, total
        asked += 1
        await flow.sleep(60)
        total += number
        return total

    if turn.is_last:
        return total
    flow.on_update("think", think)
    await flow.wait_for(lambda: asked > 0)
    if turn.waits:
        await flow.wait_for(flow.all_handlers_finished)
    return flow.continue_as_new(Turn(turn.waits, total, is_last=True))


async def test_a_handler_that_runs_refuses_a_continuation(boki_context: boki.testing.Context) -> None:
    """As it refuses the end: what it still does would not be in the payload."""
    handle = await slow_handlers.start(boki_context, Turn(waits=False))
    with pytest.raises(WorkflowEnded):
        await handle.update("think", 5)
    with pytest.raises(FunctionFailed, match=r"UnfinishedHandlers.*think.*all_handlers_finished"):
        await handle.result()


async def test_a_body_waits_for_its_handlers(boki_context: boki.testing.Context) -> None:
    """All that came until then are answered, and in the state."""
    ctx = boki_context
    handle = await slow_handlers.start(ctx, Turn(waits=True))
    await ctx.clock.advance(1)
    first = asyncio.create_task(handle.update("think", 5))
    await ctx.clock.advance(30)
    assert await handle.update("think", 7) == 12
    assert await first == 5
    assert await handle.result() == 12


# what is to be undone


@step
async def undo(what: str) -> None:
    UNDONE.append(what)


UNDONE: list[str] = []


@workflow(continue_after=1)
async def saga(how: str) -> str:
    if how == "again":
        return "forgotten"
    await flow.sleep(1)
    flow.compensate(undo, how)
    if how == "stays":
        flow.forget_compensations()
        flow.continue_as_new("again")
    if how == "now":
        flow.continue_as_new("again")
    flow.continue_if_long("again")
    if how == "fails":
        raise ValueError(how)
    return how


async def test_a_continuation_forgets_nothing_that_is_to_be_undone(boki_context: boki.testing.Context) -> None:
    """It did: what failed in the next round undid nothing of the one before."""
    UNDONE.clear()
    with pytest.raises(FunctionFailed, match=r"WrongState: .* it would forget its compensations \(undo\)"):
        await (await saga.start(boki_context, "now")).result()
    assert UNDONE == ["now"]
    with pytest.raises(FunctionFailed, match="ValueError"):
        await (await saga.start(boki_context, "fails")).result()
    assert UNDONE == ["now", "fails"]
    assert await (await saga.start(boki_context, "long")).result() == "long"
    assert await (await saga.start(boki_context, "stays")).result() == "forgotten"
    assert UNDONE == ["now", "fails"]


@workflow
async def changing(state: dict[str, int]) -> dict[str, int]:
    if state["round"]:
        return state
    state["round"] = 1
    try:
        flow.continue_as_new(state)
    finally:
        state["round"] = 7


async def test_the_state_is_handed_over_as_it_is_at_the_call(boki_context: boki.testing.Context) -> None:
    """It was encoded when the body had been unwound, with what that had changed: a handler's work counted twice."""
    assert await (await changing.start(boki_context, {"round": 0})).result() == {"round": 1}


@workflow
async def careless(what: Any) -> str:
    try:
        flow.continue_as_new("x" * 3_000_000 if what == "large" else object())
    except BokiError as error:
        return error.code


@pytest.mark.parametrize(("what", "code"), [("large", TooLarge.code), ("strange", InvalidArgument.code)])
async def test_a_payload_that_cannot_be_handed_over_is_an_error_of_the_call(
    boki_context: boki.testing.Context, what: str, code: str
) -> None:
    """It ended the workflow from outside: its code could do nothing about it, and its children were never closed."""
    assert await (await careless.start(boki_context, what)).result() == code
