"""Transactions across called workflows: one commit, all or nothing, whatever crashes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import boki.testing
from boki import BokiError
from boki.libs.bokiflow import flow, step, workflow
from boki.libs.bokiflow.asking import Draft, Load
from boki.libs.bokiflow.hooks import installed
from boki.libs.bokiflow.joins import Base
from boki.libs.bokistore import ConflictError, Store
from boki.libs.bokistore.updates import Increment
from boki.libs.bokistore.way import Way
from tests.libs.bokiflow.crashes import NO_DEATH, AroundSteps, World, after_each_loss, all_deaths


class Empty(Exception):
    """Nothing is left."""


@step
async def interfere(name: str, value: int) -> int:
    await Store(step.ctx).object(name).set("", value, key=step.key)
    return value


@workflow
async def take(what: str) -> int:
    """Takes one of those that are left; it may be called alone, or in a transaction."""
    item = flow.store.object(what)
    left: int = await item.get("", 2)
    if left < 1:
        raise Empty(what)
    await item.set("", left - 1)
    async with flow.store.transaction() as txn:
        await txn.object("taken").increment([what])
        txn.append(what.encode(), ["audit"])
    return await flow.store.read(what)


@workflow
async def both(wanted: list[str]) -> list[int]:
    """All of it, or nothing."""
    async with flow.store.transaction() as txn:
        found = [await flow.call(take, what) for what in wanted]
        await txn.object("trips").increment("")
    return found


async def counts(ctx: boki.testing.Context, *names: str) -> list[Any]:
    return [await Store(ctx).object(name).get("", None) for name in names]


async def test_children_commit_with_their_parent(boki_context: boki.testing.Context, each_mode: None) -> None:
    """Their reads see what the parent and earlier children wrote; nobody sees anything before the commit."""
    ctx = boki_context
    assert await (await both.start(ctx, ["room", "seat", "room"])).result() == [1, 1, 0]
    assert await counts(ctx, "room", "seat", "taken", "trips") == [0, 1, {"room": 2, "seat": 1}, 1]
    writes = (await ctx.logbook.read("!o:room")).records
    assert len(writes) == 1, "one commit"
    assert [record.data for record in (await ctx.logbook.read("audit")).records] == [b"room", b"seat", b"room"]


async def test_a_child_that_fails_leaves_nothing(boki_context: boki.testing.Context, each_mode: None) -> None:
    """Not of itself, not of those before it, and not of its parent."""
    ctx = boki_context
    await Store(ctx).object("seat").set("", 0)
    with pytest.raises(BokiError, match="seat"):
        await (await both.start(ctx, ["room", "seat"])).result()
    assert await counts(ctx, "room", "seat", "taken", "trips") == [None, 0, None, None]


async def test_a_caught_failure_does_not_commit(boki_context: boki.testing.Context) -> None:
    """What made the child fail was read in the transaction and is not checked, so that cannot be committed."""

    @workflow
    async def stubborn() -> None:
        async with flow.store.transaction() as txn:
            try:
                await flow.call(take, "none")
            except BokiError:
                await txn.object("trips").increment("")

    ctx = boki_context
    await Store(ctx).object("none").set("", 0)
    with pytest.raises(BokiError, match="cannot commit, because take failed in it"):
        await (await stubborn.start(ctx)).result()
    assert await counts(ctx, "trips") == [None]


@workflow
async def reads_only(name: str) -> int:
    found: int = await flow.store.read(name, default=5)
    return found


async def test_what_a_child_has_read_must_hold_at_the_commit(boki_context: boki.testing.Context) -> None:
    """Write skew through a child: its read counts as a read of the transaction; `run` makes all of it again."""
    outcomes: list[Any] = []

    @workflow
    async def skewed() -> None:
        tries = 0

        async def work(txn: Any) -> int:
            nonlocal tries
            tries += 1
            seen: int = await flow.call(reads_only, "x")
            if tries < 3:
                await interfere("x", 10 * tries)
            await txn.object("y").set("", seen)
            return seen

        try:
            async with flow.store.transaction() as txn:
                await txn.object("y").set("", await flow.call(reads_only, "x"))
                await interfere("x", 7)
        except ConflictError as error:
            outcomes.append(error.details["objects"])
        outcomes.append(await flow.store.run(work))

    ctx = boki_context
    await (await skewed.start(ctx)).result()
    assert outcomes == [["x"], 20]
    assert await counts(ctx, "x", "y") == [20, 20]


async def test_children_at_once_may_use_different_objects_only(boki_context: boki.testing.Context) -> None:
    """Of two at once that use one object, one has not seen the other: that is an error that names it."""

    @workflow
    async def at_once(wanted: list[str]) -> None:
        async with flow.store.transaction():
            await asyncio.gather(*(flow.call(bump, what) for what in wanted))

    @workflow
    async def bump(what: str) -> int:
        return await flow.store.object(what).increment("")

    ctx = boki_context
    await (await at_once.start(ctx, ["a", "b", "c"])).result()
    assert await counts(ctx, "a", "b", "c") == [1, 1, 1]
    with pytest.raises(BokiError, match="bump has used 'a', which its parent or another child wrote meanwhile"):
        await (await at_once.start(ctx, ["a", "a"])).result()
    assert await counts(ctx, "a") == [1]


async def test_a_child_has_used_what_it_uses_alone(boki_context: boki.testing.Context, each_mode: None) -> None:
    """What its parent had written before is no object of its own: it is not in the way of another child that uses it,
    and what was put without a read may have been changed by others.
    """

    @workflow
    async def bump(what: str) -> int:
        return await flow.store.object(what).increment("")

    @workflow
    async def inner(what: str) -> int:
        return await flow.call(bump, what)

    @workflow
    async def outer(wanted: list[str]) -> None:
        async with flow.store.transaction() as txn:
            await txn.object("trips").increment("")
            await txn.object("last").set("", wanted)
            await asyncio.gather(*(flow.call(inner, what) for what in wanted))
            await interfere("last", 7)

    ctx = boki_context
    await (await outer.start(ctx, ["trips", "seat"])).result()
    assert await counts(ctx, "trips", "seat", "last") == [2, 1, ["trips", "seat"]]


async def test_tasks_that_begin_with_what_their_parent_has_written_share_one_draft(
    boki_context: boki.testing.Context,
) -> None:
    """In a process that has to read these objects first, each of the first reads began with a draft of its own."""
    store, way = Store(boki_context), Way(boki_context.logbook)
    await store.object("a").set("", 1)
    end = await boki_context.logbook.append(b"the moment")
    way.reader.rows.clear()
    draft = Draft()
    draft.base = Base(end, [("a", [Increment((), 1)])])
    await asyncio.gather(*(way.run(Load(draft, [name]).ask(way, end)) for name in "xy"))
    assert draft.core is not None
    assert sorted(draft.core.used) == ["a", "x", "y"]


async def test_grandchildren_join_too(boki_context: boki.testing.Context, each_mode: None) -> None:
    """A child of a child, with conditional writes and parts that are undone."""

    @workflow
    async def inner(n: int) -> bool:
        assert await flow.store.read("a") == n
        return await flow.store.cond_write("a", n + 1, expected=n)

    @workflow
    async def middle(n: int) -> bool:
        await flow.store.write("a", n)
        try:
            async with flow.store.transaction() as txn:
                await txn.object("b").set("", 1)
                raise KeyError
        except KeyError:
            pass
        assert not await flow.store.cond_write("a", 0, expected=77)
        return bool(await flow.call(inner, n))

    @workflow
    async def outer() -> bool:
        async with flow.store.transaction() as txn:
            await txn.object("a").set("", 1)
            found = await flow.call(middle, 5)
            assert await txn.object("a").get() == 6
        return bool(found)

    ctx = boki_context
    assert await (await outer.start(ctx)).result() is True
    assert await counts(ctx, "a", "b") == [6, None]


async def test_both_or_neither_at_every_crash() -> None:
    """The parent's process dies at each append, in the log or not, and at each boundary of its commands."""
    first = World()
    with installed(AroundSteps(first)):
        assert await first.run(both, ["room", "seat"]) == [1, 1]
    deaths = all_deaths(first.appends, first.boundaries)
    assert len(deaths) > 15
    for death in [NO_DEATH, *deaths]:
        world = World()
        with installed(AroundSteps(world)):
            assert await world.run(both, ["room", "seat"], death=death) == [1, 1], death
        async with boki.testing.context("test", log=world.log) as ctx:
            assert await counts(ctx, "room", "seat", "taken", "trips") == [1, 1, {"room": 1, "seat": 1}, 1], death
            assert len((await ctx.logbook.read("audit")).records) == 2


async def test_both_or_neither_at_every_lost_append() -> None:
    """Each append of parent and children is lost once, with and without its effect."""
    tries = 0
    async for ctx in after_each_loss():
        assert await (await both.start(ctx, ["room", "seat"])).result() == [1, 1]
        assert await counts(ctx, "room", "seat", "taken", "trips") == [1, 1, {"room": 1, "seat": 1}, 1]
        tries += 1
    assert tries > 10


async def test_transactions_of_many_take_nothing_twice(boki_context: boki.testing.Context) -> None:
    """Twelve compete for what is enough for five: five have both, the others have nothing."""

    @flow.store.transactional
    async def reserve(txn: Any, who: int) -> int:
        await flow.call(take, "room")
        await flow.call(take, "seat")
        return who

    @workflow
    async def reserving(who: int) -> int:
        return await reserve(who)

    ctx = boki_context
    await Store(ctx).object("room").set("", 5)
    await Store(ctx).object("seat").set("", 9)
    handles = [await reserving.start(ctx, who) for who in range(12)]
    won = 0
    for handle in handles:
        try:
            await handle.result()
            won += 1
        except BokiError as error:
            assert "room" in str(error)
    assert won == 5
    assert await counts(ctx, "room", "seat", "taken") == [0, 4, {"room": 5, "seat": 5}]


async def test_what_a_joined_child_refuses(boki_context: boki.testing.Context) -> None:
    """An id, another LogBook, to continue as new, and to be left when the block ends."""

    @workflow(book="elsewhere")
    async def stranger() -> None: ...

    @workflow
    async def endless() -> None:
        flow.continue_as_new()

    @workflow
    async def parent(how: str) -> None:
        async with flow.store.transaction():
            if how == "id":
                await flow.call(take, "a", id="x")
            elif how == "book":
                await flow.call(stranger)
            elif how == "again":
                await flow.call(endless)
            else:
                left = asyncio.create_task(flow.call(take, "a"))
                await asyncio.wait([left], timeout=0)

    said = {
        "id": "has no id of its own",
        "book": "stranger runs in LogBook 'elsewhere'",
        "again": "cannot continue as new",
        "left": "have not ended: await them",
    }
    for how, message in said.items():
        with pytest.raises(BokiError, match=message):
            await (await parent.start(boki_context, how)).result()
