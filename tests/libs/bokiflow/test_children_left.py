"""Children that are left when their parent ends: whose they are, what they are, and what they leave behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import boki.testing
from boki import Context, function
from boki.extending import REPLAYED, Function, Payload
from boki.libs.bokiflow import flow, step, workflow
from boki.libs.bokiflow.handles import Handle
from boki.libs.bokiflow.records import inbox_tag, journal_tag
from boki.libs.bokiflow.work import CHILD, child_of
from boki.protocol.calls import Call, ChosenId

pytestmark = pytest.mark.usefixtures("each_mode")

UNDONE: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    UNDONE.clear()


@step
async def undo(what: str) -> None:
    UNDONE.append(what)


@step
async def quick(what: str) -> str:
    return what


@workflow(keep_s=10)
async def kid() -> str:
    flow.compensate(undo, "kid")
    await quick("kid")
    await flow.sleep(1_000)
    return "grown up"


@workflow(keep_s=10)
async def leaving(how: str) -> None:
    """Start a child by its function or by its name, and end."""
    target = "kid" if how == "by name" else kid
    await flow.start(target, id="left", parent_close="kill" if how == "killed" else "cancel")
    await flow.sleep(5)


@workflow(keep_s=10)
async def short() -> None:
    await quick("short")


async def records_of(ctx: Context, handle: Handle[str]) -> int:
    """Number of records in the journal and the inbox of a workflow."""
    pages = [await ctx.logbook.read(tag(handle.invocation_id)) for tag in (journal_tag, inbox_tag)]
    return sum(len(page.records) for page in pages)


async def days_pass(ctx: boki.testing.Context) -> None:
    """Days, in which workflows end, with which those are swept that ended before."""
    for _ in range(3):
        await ctx.clock.advance(24 * 3_600)
        await (await short.start(ctx)).result()
        await ctx.clock.advance(100)


@pytest.mark.parametrize("how", ["by function", "by name"])
async def test_a_child_is_asked_to_cancel_however_it_was_called(how: str) -> None:
    """Its compensations run, also if its parent knows it by its name alone."""
    async with boki.testing.context(functions=[kid]) as ctx:
        await (await leaving.start(ctx, how)).result()
        await ctx.clock.advance(20)
        assert (await kid.handle(ctx, "left").status()).status == "cancelled"
        assert UNDONE == ["kid"]


@workflow
async def calling_by_name() -> None:
    await flow.start("stopped")
    await flow.sleep(5)


@function
async def stopped(ctx: Context) -> None:
    """Ends when it is killed: it hears nothing of requests."""
    try:
        await asyncio.Event().wait()
    finally:
        UNDONE.append("stopped")


async def test_a_function_that_was_called_by_name_is_killed() -> None:
    """It cannot be asked."""
    async with boki.testing.context(functions=[stopped]) as ctx:
        await (await calling_by_name.start(ctx)).result()
        await ctx.clock.advance(1)
        assert UNDONE == ["stopped"]


async def test_a_call_that_somebody_else_has_started_is_left_alone(boki_context: boki.testing.Context) -> None:
    """It has the id that the workflow starts it under, and stands for that start. Its owner waits for it."""
    owned = await kid.start(boki_context, id="left")
    await boki_context.clock.advance(1)
    for how in ("by function", "killed"):
        await (await leaving.start(boki_context, how)).result()
    await boki_context.clock.advance(20)
    assert (await owned.status()).status == "suspended"
    assert await owned.result() == "grown up"
    assert UNDONE == []


async def test_a_child_that_was_begun_again_is_closed_again(boki_context: boki.testing.Context) -> None:
    """A request to end belongs to one life of a child."""
    for _ in range(2):
        await (await leaving.start(boki_context, "by function", id="parent", if_ended="again")).result()
        await boki_context.clock.advance(20)
        left = kid.handle(boki_context, "left")
        assert (await left.status()).status == "cancelled"
        await left.rewind(0)
    assert UNDONE == ["kid", "kid"]


@pytest.mark.parametrize("is_parent_killed", [False, True])
async def test_what_a_killed_child_leaves_is_trimmed(
    boki_context: boki.testing.Context, is_parent_killed: bool
) -> None:
    """A killed workflow cannot record its own end, by which its history is found."""
    parent = await leaving.start(boki_context, "killed")
    await boki_context.clock.advance(3)
    if is_parent_killed:
        await parent.kill()
    await boki_context.clock.advance(100)
    left = kid.handle(boki_context, "left")
    assert (await left.status()).status == "cancelled"
    assert await records_of(boki_context, left) > 0
    await days_pass(boki_context)
    assert await records_of(boki_context, left) == 0


async def test_what_a_killed_run_of_a_schedule_leaves_is_trimmed(boki_context: boki.testing.Context) -> None:
    """Each tick ends the run of the one before, which records no end."""
    runs = await kid.schedule(boki_context, id="s", every_s=60, overlap="kill")
    await boki_context.clock.advance(200)
    await runs.pause()
    keys = {tick.key for tick in (await runs.state()).recent}
    left = [kid.handle(boki_context, f"s@{key}") for key in keys]
    killed = [one for one in left if (await one.status()).status == "cancelled"]
    assert killed
    await days_pass(boki_context)
    assert [await records_of(boki_context, one) for one in killed] == [0] * len(killed)


@pytest.mark.parametrize(("target", "policy"), [(kid, "cancel"), (stopped, "kill")])
def test_an_engine_knows_what_is_called_by_name(target: Callable[..., Any], policy: str) -> None:
    """Where a call is accepted, its function says whether it can be asked to end; others are not asked."""
    info = Function.of(target).info
    chosen = ChosenId("s", attributes={CHILD: "3 cancel", REPLAYED: False})
    call = Call("0" * 32, info.name, Payload("bytes", b""), "b", 1, chosen=chosen)
    logged = info.to_be_logged(call).chosen
    assert logged is not None
    assert child_of(logged.attributes) == (3, policy)
    assert info.to_be_logged(msgspec.structs.replace(call, chosen=None)).chosen is None


@workflow
async def cache(is_bad: bool) -> str:
    if is_bad:
        raise ValueError("fails")
    await flow.receive("go")
    return "cached"


@workflow
async def uses_cache() -> None:
    await flow.start(cache, True, id="cache")
    await flow.receive("end")


@pytest.mark.parametrize("how", ["ends", "is killed"])
async def test_a_child_that_somebody_else_has_started_again_is_left_alone(
    boki_context: boki.testing.Context, how: str
) -> None:
    """It is another life of the id, and no child of this parent."""
    ctx = boki_context
    parent = await uses_cache.start(ctx, id="p")
    await ctx.clock.advance(5)
    others = await cache.start(ctx, False, id="cache", if_ended="again")
    await ctx.clock.advance(5)
    if how == "ends":
        await parent.signal("end")
        await parent.result()
    else:
        await parent.kill()
    await ctx.clock.advance(20)
    await others.signal("go")
    assert await others.result() == "cached"


@workflow
async def shares(how: str) -> str:
    """Waits for a call that another caller may have started under the id."""
    if how == "started":
        return str(await (await flow.start(kid, id="left")).result())
    return str(await flow.call(kid, id="left"))


@pytest.mark.parametrize("how", ["called", "started"])
async def test_the_end_of_a_call_that_somebody_else_has_started_is_heard(
    boki_context: boki.testing.Context, how: str
) -> None:
    """It is reported to another call, or to none, and the workflow that waits for it is suspended meanwhile."""
    ctx = boki_context
    await kid.start(ctx, id="left")
    waiting = [await shares.start(ctx, how) for _ in range(2)]
    await ctx.clock.advance(10)
    assert [(await one.status()).status for one in waiting] == ["suspended"] * 2
    await ctx.clock.advance(1_100)
    assert [(await one.status()).status for one in waiting] == ["done"] * 2
    assert await waiting[0].result() == "grown up"


@step
async def mended(what: str) -> str:
    if not UNDONE:
        raise ValueError(what)
    return what


@workflow
async def brittle() -> str:
    await flow.sleep(50)
    found = await mended("whole")
    await flow.sleep(500)
    return found


@workflow
async def calls_brittle() -> str:
    return await flow.call(brittle, id="b")


async def test_the_end_of_a_child_that_was_rewound_is_heard(boki_context: boki.testing.Context) -> None:
    """Its parent was paused when it failed, and has not heard of that."""
    ctx = boki_context
    parent = await calls_brittle.start(ctx)
    await ctx.clock.advance(10)
    await parent.pause()
    await ctx.clock.advance(100)
    child = brittle.handle(ctx, "b")
    assert (await child.status()).status == "failed"
    UNDONE.append("what was wrong")
    await child.rewind()
    await parent.resume()
    await ctx.clock.advance(1_000)
    assert (await parent.status()).status == "done"
    assert await parent.result() == "whole"


async def test_a_child_that_was_rewound_is_closed_with_its_parent(boki_context: boki.testing.Context) -> None:
    """However long ago it was started first: it reports to the same workflow as before."""
    ctx = boki_context
    parent = await calls_brittle.start(ctx)
    await ctx.clock.advance(10)
    await parent.pause()
    await ctx.clock.advance(100)
    UNDONE.append("what was wrong")
    child = brittle.handle(ctx, "b")
    await child.rewind()
    logged = ctx._calls._logged[child.invocation_id]  # type: ignore[attr-defined]
    assert logged.call.chosen.reports_to == parent.invocation_id


async def test_a_call_that_somebody_else_has_started_again_stops_no_rewind_and_no_fork(
    boki_context: boki.testing.Context,
) -> None:
    """It has the id of a child, and is none any more."""
    ctx = boki_context
    parent = await uses_cache.start(ctx, id="p")
    await ctx.clock.advance(5)
    await cache.start(ctx, False, id="cache", if_ended="again")
    await ctx.clock.advance(5)
    assert await (await parent.fork(1, id="f")).fork(1, id="g")
    await parent.kill()
    await ctx.clock.advance(10)
    assert await parent.rewind(0) == 0
