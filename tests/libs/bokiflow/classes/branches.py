"""Workflows that go back: forked at a step, and rewound."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from boki import AlreadyExists, FunctionFailed, WrongState
from boki.libs.bokiflow import Handle, Limit, StepFailed, flow, step, workflow
from boki.testing import Context
from tests.libs.bokiflow.classes import BROKEN, DONE, case, do, done, result_of


@step
async def act(what: str) -> str:
    """An effect that takes a key, unless it is broken."""
    if what in BROKEN:
        raise ValueError(f"{what} is broken")
    DONE.setdefault(step.key, what)
    return f"{what} {done()[what]}"


async def rewound(ctx: Context, handle: Handle[Any], at: int | None = None) -> int:
    """The step that it was rewound to. On a cluster the engine that is asked next may hear of it a little later."""
    found = await handle.rewind(at)
    await ctx.clock.advance(1)
    return found


@workflow
async def order(what: str) -> list[str]:
    """Three effects, and a day between the second and the third."""
    found = [await act("stock")]
    flow.compensate(act, "undo stock")
    found.append(await act(what))
    await flow.sleep(30)
    return [*found, await act("ship")]


@case("DBOS fork_from_failure")
async def a_fork_of_a_failed_workflow_repeats_what_failed(ctx: Context) -> None:
    BROKEN.add("pay")
    handle = await order.start(ctx, "pay", id="first")
    with pytest.raises(FunctionFailed, match="pay is broken"):
        await handle.result()
    BROKEN.clear()
    assert await (await handle.fork(id="fork")).result() == ["stock 1", "pay 1", "ship 1"]
    assert (await handle.status()).status == "failed"
    assert done() == {"stock": 1, "undo stock": 1, "pay": 1, "ship": 1}


@case("Restate RestartAsNewInvocation.restartFromPrefix")
async def a_fork_at_a_step_keeps_what_is_in_front_of_it(ctx: Context) -> None:
    handle = await order.start(ctx, "pay", id="first", attributes={"customer": "Ada"})
    await ctx.clock.advance(5)
    forked = await handle.fork(1, id="fork")
    assert await handle.result() == ["stock 1", "pay 1", "ship 1"]
    assert await forked.result() == ["stock 1", "pay 2", "ship 2"]
    assert (await forked.status()).attributes == {"customer": "Ada", "boki:forked_from": "first"}
    assert done() == {"stock": 1, "pay": 2, "ship": 2}


@case("DBOS fork_events, fork_streams")
async def a_fork_has_the_messages_of_the_steps_it_keeps(ctx: Context) -> None:
    @workflow
    async def listener() -> list[Any]:
        found = []
        for _ in range(3):
            found.append(await flow.receive("word"))
            await do(found[-1])
        return found

    handle = await listener.start(ctx, id="first")
    for word in ("a", "b", "c"):
        await handle.signal("word", word)
        await ctx.clock.advance(2)
    assert await handle.result() == ["a", "b", "c"]
    forked = await handle.fork(2, id="fork")
    await ctx.clock.advance(5)
    assert (await forked.status()).status == "suspended"
    await forked.signal("word", "d")
    assert await forked.result() == ["a", "b", "d"]
    assert done() == {"a": 1, "b": 1, "c": 1, "d": 1}


@workflow
async def helper(what: str) -> str:
    """A child, which fails as long as its step is broken."""
    return await act(what)


@workflow
async def parent() -> list[str]:
    """Has two children, one after the other."""
    return [await flow.call(helper, "one"), await flow.call(helper, "two")]


@case("DBOS fork_replacement_children")
async def a_fork_keeps_the_children_in_front_and_has_its_own_behind(ctx: Context) -> None:
    handle = await parent.start(ctx, id="first")
    assert await handle.result() == ["one 1", "two 1"]
    assert await (await handle.fork(1, id="fork")).result() == ["one 1", "two 2"]
    assert done() == {"one": 1, "two": 2}


@case("DBOS fork_workflow: an id that is taken; Temporal WorkflowIdConflictPolicy fail")
async def a_fork_takes_no_id_that_is_in_use(ctx: Context) -> None:
    handle = await order.start(ctx, "pay", id="first")
    await ctx.clock.advance(5)
    await order.handle(ctx, "told").signal("word", 1)
    for used in ("first", "told"):
        with pytest.raises(AlreadyExists, match="fork to an id that is free"):
            await handle.fork(1, id=used)
    assert await handle.result() == ["stock 1", "pay 1", "ship 1"]


@case("durabletask rewind: only failed activities run again")
async def a_rewound_workflow_repeats_what_failed(ctx: Context) -> None:
    BROKEN.add("ship")
    handle = await order.start(ctx, "pay", id="one")
    with pytest.raises(FunctionFailed, match="ship is broken"):
        await handle.result()
    BROKEN.clear()
    assert await rewound(ctx, handle, 3) == 3
    assert await handle.result() == ["stock 1", "pay 1", "ship 1"]
    assert done() == {"stock": 1, "pay": 1, "ship": 1, "undo stock": 1}


@case("durabletask rewind: failed sub-orchestrations run again")
async def a_rewound_workflow_starts_its_failed_child_again(ctx: Context) -> None:
    BROKEN.add("two")
    handle = await parent.start(ctx, id="one")
    with pytest.raises(FunctionFailed, match="two is broken"):
        await handle.result()
    BROKEN.clear()
    assert await rewound(ctx, handle) == 1
    assert await handle.result() == ["one 1", "two 1"]
    assert done() == {"one": 1, "two": 1}


@case("Temporal reset: signals that came later are applied again")
async def a_rewound_workflow_hears_what_it_had_heard(ctx: Context) -> None:
    @workflow
    async def tally(count: int) -> list[Any]:
        found = [await act("begin")]
        found += [await flow.receive("word") for _ in range(count)]
        return [*found, await act("end")]

    handle = await tally.start(ctx, 2, id="one")
    await ctx.clock.advance(2)
    for word in ("a", "b"):
        await handle.signal("word", word)
    assert await handle.result() == ["begin 1", "a", "b", "end 1"]
    for turn in (2, 3):
        await rewound(ctx, handle, 0)
        assert await handle.result() == [f"begin {turn}", "a", "b", f"end {turn}"]


@case("Temporal reset: of one that runs")
async def what_runs_is_not_rewound(ctx: Context) -> None:
    handle = await order.start(ctx, "pay", id="one")
    await ctx.clock.advance(5)
    with pytest.raises(WrongState, match="pause it first, or kill it"):
        await handle.rewind(1)
    await handle.pause()
    await ctx.clock.advance(2)
    assert await rewound(ctx, handle, 1) == 1
    assert await handle.result() == ["stock 1", "pay 2", "ship 1"]


@case("Temporal reset after cancel: the request is not obeyed again")
async def a_cancelled_workflow_is_rewound(ctx: Context) -> None:
    handle = await order.start(ctx, "pay", id="one")
    await ctx.clock.advance(5)
    await handle.cancel("a mistake")
    with pytest.raises(FunctionFailed, match="a mistake"):
        await handle.result()
    assert await rewound(ctx, handle, 3) == 3
    assert await handle.result() == ["stock 1", "pay 1", "ship 1"]
    assert done() == {"stock": 1, "undo stock": 1, "pay": 1, "ship": 1}


@case("DBOS fork_from_failure: a failure that the body had caught")
async def a_failure_that_was_caught_is_repeated(ctx: Context) -> None:
    @workflow
    async def cautious() -> str:
        try:
            return await act("pay")
        except StepFailed:
            return await act("bill")

    BROKEN.add("pay")
    assert await result_of(ctx, cautious, id="one") == "bill 1"
    BROKEN.clear()
    handle = cautious.handle(ctx, "one")
    assert await (await handle.fork(id="fork")).result() == "pay 1"
    assert await rewound(ctx, handle) == 0
    assert await handle.result() == "pay 2"


@workflow(limit=Limit(concurrency=1, when_full="cancel_running"))
async def pushed_out(what: str) -> str:
    """Waits for a word, and cleans up if a later one takes its place."""
    flow.on_query("what", lambda _: what)
    await act(what)
    try:
        await flow.receive("go")
    except asyncio.CancelledError:
        await act("clean up")
        raise
    return await act("end")


@case("Hatchet concurrency_cancel_in_progress; Temporal reset, query: of one that its limit has cancelled")
async def a_workflow_that_its_limit_has_cancelled_goes_back(ctx: Context) -> None:
    handle = await pushed_out.start(ctx, "first", id="one")
    await ctx.clock.advance(3)
    await pushed_out.start(ctx, "second", id="two")
    with pytest.raises(FunctionFailed, match="a later start takes its place"):
        await handle.result()
    assert await handle.query("what") == "first"
    whole = await handle.fork(id="whole")
    await rewound(ctx, handle)
    for one in (whole, handle):
        with pytest.raises(FunctionFailed, match="a later start takes its place"):
            await one.result()
    assert done() == {"first": 1, "clean up": 1, "second": 1}
    forked = await handle.fork(1, id="fork")
    await rewound(ctx, handle, 0)
    for one in (forked, handle):
        await one.signal("go")
        assert (await one.result()).startswith("end")
    assert done() == {"first": 2, "clean up": 1, "second": 1, "end": 2}


@case("Temporal reset, DBOS fork_workflow: behind a continuation")
async def a_fork_of_a_later_round_repeats_nothing(ctx: Context) -> None:
    @workflow
    async def rounds(turn: int) -> list[str]:
        found = [await act(f"a{turn}"), await act(f"b{turn}")]
        if turn == 0:
            flow.continue_as_new(1)
        await flow.receive("go")
        return [*found, await act("end")]

    handle = await rounds.start(ctx, 0, id="one")
    await ctx.clock.advance(3)
    forked = await handle.fork(2, id="fork")
    for one in (handle, forked):
        await one.signal("go")
    assert [(await one.result())[:2] for one in (handle, forked)] == [["a1 1", "b1 1"]] * 2
    assert done() == {"a0": 1, "b0": 1, "a1": 1, "b1": 1, "end": 2}
