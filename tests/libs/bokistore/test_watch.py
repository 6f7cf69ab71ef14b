"""Watching an object: what it is now, and each version that comes."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import boki.testing
from boki.libs.bokistore import Store, Version, saving
from boki.libs.bokistore.memory import Memory
from boki.libs.fold import steps
from tests.libs.bokiqueue.running import asynchronous


@asynchronous
async def test_a_watcher_sees_every_version_in_order() -> None:
    """From the one that is there when it begins; what changes nothing is not one."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.object("x").set("n", 0)

        async def watch() -> list[Version]:
            seen = []
            async with aclosing(store.watch("x")) as versions:
                async for version in versions:
                    seen.append(version)
                    if not version.exists:
                        return seen
            return seen

        watching = asyncio.ensure_future(watch())
        for number in range(1, 4):
            await asyncio.sleep(0)
            await store.object("x").set("n", number)
            await store.object("y").set("n", number)
        await store.object("x").delete("m")
        await store.object("x").delete()
        seen = await watching
        values = [version.value for version in seen]
        assert values[-1] is None
        numbers = [value["n"] for value in values[:-1]]
        assert numbers == sorted(numbers)
        assert numbers[-1] == 3
        assert seen[0].invocation == ctx.invocation_id


@asynchronous
async def test_a_watcher_of_nothing_waits_for_it() -> None:
    """The first version says that there is none."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        async with aclosing(store.watch("x")) as versions:
            first = await anext(versions)
            assert (first.exists, first.seqnum) == (False, 0)
            waiting = asyncio.ensure_future(anext(versions))
            await asyncio.sleep(0)
            await store.object("x").set("n", 1)
            assert (await waiting).value == {"n": 1}


@asynchronous
async def test_a_transaction_of_several_records_is_one_version() -> None:
    """Of the value before its last record nobody may hear: it never was. Its other objects are not waited for."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        large = "x" * 600_000
        async with aclosing(store.watch("a")) as versions:
            await anext(versions)
            async with store.transaction() as txn:
                await txn.object("a").set("", large)
                await txn.object("a").set("", large + "a")
                await txn.object("b").set("", large)
            assert len((await ctx.logbook.read()).records) == 3
            seen = await anext(versions)
            await store.object("a").set("", 1)
            assert (await anext(versions)).value == 1
        assert (seen.seqnum, seen.value) == (txn.seqnum, large + "a")
        history = [version async for version in store.history("a")]
        assert [version.seqnum for version in history] == [txn.seqnum, await store.object("a").version()]
        assert history[0].value == large + "a"


@asynchronous
async def test_a_watcher_that_is_too_slow_goes_on_with_what_is_there() -> None:
    """What was trimmed before it was read is passed over."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.configure(history_s=0)
        async with aclosing(store.watch("x")) as versions:
            await anext(versions)
            await store.object("x").set("n", 1)
            assert (await anext(versions)).value == {"n": 1}
            for number in range(2, 30):
                await store.object("x").set("n", number)
            reader = ctx.logbook.session.shared(Memory).reader("test")
            await steps.run(saving.save(reader, "x"), ctx.logbook)
            assert (await anext(versions)).value == {"n": 29}
