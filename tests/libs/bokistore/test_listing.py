"""The names of objects: who is listed, in pages that stay, now, in the past and in forks. And who wrote a version."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import boki.testing
from boki import InvalidArgument, WrongType
from boki.libs.bokiflow import step, workflow
from boki.libs.bokistore import Store, WrongShape
from boki.libs.bokistore.memory import Memory
from boki.libs.fold.current_step import CURRENT_STEP
from boki.log.memory import MemoryLog
from tests.libs.bokiflow.crashes import RUN_ID, World
from tests.libs.bokiqueue.running import asynchronous


@asynchronous
async def test_objects_that_exist_are_listed() -> None:
    """However they were made and deleted, in the order of their names; maps and their parts are no objects."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        assert await store.objects() == []
        await store.object("b").set("x", 1)
        await store.counter("c").increment()
        async with store.transaction() as txn:
            await txn.list("a").append("item")
            await txn.object("gone").set("", 1)
        await store.map("users", indexes=["city"]).set("ada", {"city": "London"})
        await store.set("tags").add("green")
        assert await store.object("gone").delete() is True
        assert await store.object("never").delete() is False
        with pytest.raises(WrongShape):
            await store.object("never").insert("items.7", 1)
        await store.object("never").pop("items")
        assert await store.objects() == ["a", "b", "c"]
        assert await store.maps() == ["tags", "users"]
        await store.object("gone").set("again", 1)
        ctx.logbook.session.shared(Memory).forget()
        assert await store.objects(prefix="g") == ["gone"]


@asynchronous
async def test_pages_stay_where_they_are() -> None:
    """What comes and goes between two of them moves no other name; a wrong argument is refused by name."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        for number in range(25):
            await store.object(f"user:{number:02}").set("n", number)
        first = await store.objects(prefix="user:", limit=10)
        await store.object("user:00").delete()
        await store.object("user:095").set("n", 0)
        second = await store.objects(prefix="user:", after=first[-1], limit=10)
        assert first == [f"user:{number:02}" for number in range(10)]
        assert second == ["user:095", *(f"user:{number:02}" for number in range(10, 19))]
        with pytest.raises(InvalidArgument, match="limit"):
            await store.objects(limit=0)
        wrong: Any = 5
        with pytest.raises(WrongType, match="prefix"):
            await store.objects(prefix=wrong)


@asynchronous
async def test_the_list_has_a_past_and_is_inherited() -> None:
    """As all objects are; a fork has names of its own from then on."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.object("a").set("n", 1)
        then = await store.object("a").version()
        await store.object("b").set("n", 1)
        fork = await store.fork("trial")
        await fork.object("a").delete()
        await fork.object("c").set("n", 1)
        await fork.object("b").set("n", 2)
        assert await store.at(then).objects() == ["a"]
        assert await store.objects() == ["a", "b"]
        assert await fork.objects() == ["b", "c"]


@asynchronous
async def test_an_object_that_was_deleted_behind_a_writer_is_listed() -> None:
    """The writer took it for listed, as it was when it last looked; so it puts the name in afterwards."""
    log = MemoryLog()
    async with boki.testing.context(log=log) as ctx, boki.testing.context(log=log) as other:
        mine, theirs = Store(ctx).object("a"), Store(other).object("a")
        await mine.set("n", 1)
        await theirs.delete()
        assert await mine.increment("n") == 1
        assert await Store(other).objects() == ["a"]


@asynchronous
async def test_a_transaction_conflicts_with_names_that_it_would_have_found() -> None:
    """And with no others: a page is a scan."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.object("a:1").set("n", 1)

        async def count_after(name: str) -> int:
            async with store.transaction() as txn:
                found = await txn.objects(prefix="a:")
                await asyncio.gather(store.object(name).set("n", 1))
                await txn.object("count").set("", len(found))
            return len(found)

        assert await count_after("b:1") == 1
        with pytest.raises(boki.BokiError, match="read what others changed"):
            await count_after("a:2")


@asynchronous
async def test_counters_and_lists_are_objects() -> None:
    """With their own methods, in transactions and in the past; what is no number or array is refused."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        hits, feed = store.counter("hits"), store.list("feed")
        assert (await hits.value(), await feed.items(), await feed.get(0, "none")) == (0, [], "none")
        assert await asyncio.gather(*(hits.increment(2) for _ in range(3))) == [2, 4, 6]
        assert (await hits.increment(key="k"), await hits.increment(key="k")) == (7, 7)
        then = await store.object("hits").version()
        await hits.set(1.5)
        assert (await hits.value(), await store.at(then).counter("hits").value()) == (1.5, 7)
        assert await feed.insert(0, "b") == 1
        assert await feed.append("c", "d", "e") == 4
        assert await feed.append("f", limit=4) == 4
        await feed.set(-1, {"g": [1]})
        assert await feed.items() == ["c", "d", "e", {"g": [1]}]
        assert (await feed.items(1, 3), await feed.items(-1), await feed.get(-1)) == (
            ["d", "e"],
            [{"g": [1]}],
            {"g": [1]},
        )
        assert (await feed.pop(0), await feed.length()) == ("c", 3)
        async with store.transaction() as txn:
            await txn.counter("hits").increment(await txn.list("feed").length())
        assert await hits.value() == 4.5
        for wrong in (
            store.counter("feed").value(),
            store.list("hits").items(),
            store.list("hits").append(1),
            feed.set(9, 1),
        ):
            with pytest.raises(WrongShape):
                await wrong
        for refused in (hits.increment(float("nan")), hits.set("1"), feed.get("x"), feed.get(-2)):  # type: ignore[arg-type]
            with pytest.raises((InvalidArgument, WrongType)):
                await refused


@step
async def write(number: int) -> None:
    await Store(step.ctx).object("a").set("n", number)


@workflow
async def write_twice() -> None:
    await write(1)
    await write(2)


@asynchronous
async def test_a_step_of_a_workflow_is_the_author_of_what_it_writes() -> None:
    """With its place in the workflow, its function and its invocation."""
    world = World()
    await world.run(write_twice)
    async with boki.testing.context(log=world.log) as ctx:
        versions = [version async for version in Store(ctx).history("a")]
    assert [version.step for version in versions] == ["0 write", "1 write"]
    assert [(version.function, version.invocation) for version in versions] == [("write_twice", RUN_ID)] * 2


@asynchronous
async def test_a_version_names_the_step_that_wrote_it() -> None:
    """Of an update, and of a transaction; outside of a step there is none."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.object("a").set("n", 1)
        token = CURRENT_STEP.set("3 charge")
        await store.object("a").increment("n")
        async with store.transaction() as txn:
            await txn.object("a").increment("n")
        CURRENT_STEP.reset(token)
        assert [version.step async for version in store.history("a")] == ["", "3 charge", "3 charge"]
