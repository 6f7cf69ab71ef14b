"""Children that have joined a transaction, and are to be forked or rewound: that would be half of the transaction."""

from __future__ import annotations

from typing import Any

import pytest

import boki.testing
from boki import WrongState
from boki.libs.bokiflow import Handle, flow, step, workflow
from boki.libs.bokistore import Store

RUNS: dict[str, str] = {}
"""The ids of the children: they have none that was chosen."""


@step
async def act(what: str) -> str:
    return what


@workflow
async def take(what: str) -> int:
    """A write between two steps takes no number here: it is of the transaction."""
    RUNS[what] = flow.id
    await act("before")
    left: int = await flow.store.object(what).increment("")
    await flow.receive("on")
    await act("after")
    return left


@workflow
async def both() -> list[int]:
    async with flow.store.transaction() as txn:
        found = [await flow.call(take, what) for what in ("room", "seat")]
        await txn.object("trips").increment("")
    return found


async def _objects(ctx: boki.testing.Context) -> list[Any]:
    return [await Store(ctx).object(name).get("", None) for name in ("room", "seat", "trips")]


async def _begun(ctx: boki.testing.Context) -> tuple[Handle[list[int]], Handle[int]]:
    parent = await both.start(ctx, id="p")
    await ctx.clock.advance(10)
    return parent, _child(ctx, "room")


def _child(ctx: boki.testing.Context, what: str) -> Handle[int]:
    handle = take.handle(ctx, RUNS[what])
    handle.invocation_id = RUNS[what]
    return handle


async def _let_both_end(ctx: boki.testing.Context) -> None:
    for what in ("room", "seat"):
        await _child(ctx, what).signal("on")
        await ctx.clock.advance(10)


async def test_a_fork_is_refused(boki_context: boki.testing.Context) -> None:
    """It would write for itself, without the other half, or diverge."""
    ctx = boki_context
    parent, child = await _begun(ctx)
    with pytest.raises(WrongState, match="part of the transaction of the workflow that has called it: fork that one"):
        await child.fork(1, id="f")
    await _let_both_end(ctx)
    assert await parent.result() == [1, 1]
    with pytest.raises(WrongState, match="fork that one"):
        await child.fork(1, id="f")
    assert await _objects(ctx) == [1, 1, 1]


async def test_a_rewind_of_one_that_has_ended_is_refused(boki_context: boki.testing.Context) -> None:
    """The transaction is over: nobody would take what it comes to."""
    ctx = boki_context
    parent, child = await _begun(ctx)
    await _let_both_end(ctx)
    assert await parent.result() == [1, 1]
    with pytest.raises(WrongState, match="rewind that one, which calls it again"):
        await child.rewind(1)
    assert (await child.status()).status == "done"
    assert await _objects(ctx) == [1, 1, 1]


async def test_one_that_is_paused_can_be_rewound(boki_context: boki.testing.Context) -> None:
    """Its parent still waits for it, and commits with it."""
    ctx = boki_context
    parent, child = await _begun(ctx)
    await child.pause()
    await ctx.clock.advance(10)
    assert await child.rewind(0) == 0
    await _let_both_end(ctx)
    assert await parent.result() == [1, 1]
    assert await _objects(ctx) == [1, 1, 1]
