"""Workflows that go back in a round after the first one: its steps are numbered as those of the rounds before it."""

from __future__ import annotations

import pytest

import boki.testing
from boki import FunctionFailed, WrongState
from boki.libs.bokiflow import Handle, flow, step, workflow
from boki.libs.bokistore import Store

pytestmark = pytest.mark.usefixtures("each_mode")


@step
async def act(what: str) -> str:
    return what


@workflow
async def slow(n: int) -> int:
    await flow.sleep(10_000)
    return n


@workflow
async def rounds(number: int) -> str:
    """Each round but the second one leaves a child behind."""
    await act("before")
    if number != 2:
        await flow.start(slow, number, id=f"child {number}", parent_close="abandon")
    await act("after")
    if number < 3:
        await flow.receive("on")
        return flow.continue_as_new(number + 1)
    return str(await flow.receive("word"))


async def _paused_in(ctx: boki.testing.Context, number: int) -> Handle[str]:
    handle = await rounds.start(ctx, 1, id="r")
    for _ in range(number - 1):
        await handle.signal("on")
        await ctx.clock.advance(10)
    await handle.pause()
    await ctx.clock.advance(10)
    return handle


async def test_children_of_earlier_rounds_do_not_stand_in_the_way(boki_context: boki.testing.Context) -> None:
    """No step that is forgotten, or that a fork keeps, has started them."""
    ctx = boki_context
    handle = await _paused_in(ctx, 2)
    fork = await handle.fork(1, id="f")
    await handle.rewind(0)
    await ctx.clock.advance(10)
    assert (await slow.handle(ctx, "child 1").status()).status == "suspended", "it is untouched"
    assert (await handle.status()).status == (await fork.status()).status == "suspended"
    await handle.signal("on")
    await handle.signal("word", "done")
    assert await handle.result() == "done"


async def test_children_of_this_round_do(boki_context: boki.testing.Context) -> None:
    """Also if those of earlier rounds run."""
    handle = await _paused_in(boki_context, 3)
    with pytest.raises(WrongState, match=r"child slow 'child 3' of step 1 still runs, and the step would start"):
        await handle.rewind(0)
    with pytest.raises(WrongState, match=r"child slow 'child 3' of step 1 still runs, and reports to"):
        await handle.fork(2)
    assert await handle.rewind(2) == 2
    with pytest.raises(WrongState, match="pause it first"):
        await handle.rewind(2)


async def test_children_of_an_earlier_life_do_not_stand_in_the_way(boki_context: boki.testing.Context) -> None:
    """Another start of the id has begun with other steps."""
    ctx = boki_context
    handle = await _paused_in(ctx, 1)
    await handle.kill()
    handle = await rounds.start(ctx, 2, id="r", if_ended="again")
    await ctx.clock.advance(10)
    await handle.pause()
    await ctx.clock.advance(10)
    assert await handle.rewind(0) == 0


@workflow
async def errand(n: int) -> int:
    await act("begin")
    if n and await flow.store.read("is_broken"):
        raise ValueError("the code is wrong")
    await flow.sleep(10_000)
    return n


@workflow
async def sender() -> int:
    await flow.store.write("is_broken", True)
    return await flow.call(errand, 1, id="e")


async def test_a_child_that_was_rewound_stands_in_the_way(boki_context: boki.testing.Context) -> None:
    """It still belongs to the step, which would start another one beside it: its effects would be done twice."""
    ctx = boki_context
    parent = await sender.start(ctx, id="p")
    with pytest.raises(FunctionFailed):
        await parent.result()
    child = errand.handle(ctx, "e")
    async with Store(ctx).transaction() as txn:
        await txn.object("is_broken").set("", False)
    await child.rewind(0)
    await ctx.clock.advance(10)
    assert (await child.status()).status == "suspended"
    with pytest.raises(WrongState, match="still runs"):
        await parent.rewind(1)
