"""Objects over the log in memory: what callers see, and what is refused."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

import boki.testing
from boki import BokiError, InvalidArgument, KeyReused, TooLarge, WrongType
from boki.libs.bokistore import Store, StoredObject, WrongShape
from boki.libs.bokistore.memory import Memory
from boki.libs.bokistore.records import codec, row_tag
from tests.libs.bokiqueue.running import asynchronous


class User(msgspec.Struct):
    name: str
    age: int = 0


@dataclass
class Point:
    x: int
    y: int


class Model(pydantic.BaseModel):
    name: str


@asynchronous
async def test_what_is_written_is_read() -> None:
    """By paths, also from another store of the same book."""
    async with boki.testing.context() as ctx:
        ada = Store(ctx).object("user:ada")
        assert await ada.get() is None
        assert await ada.get("name", "nobody") == "nobody"
        assert not await ada.exists()
        await ada.set("name.first", "Ada")
        await ada.set(("name", "a.b"), [1, {"c": None}])
        again: StoredObject[Any] = Store(ctx.logbook).object("user:ada")
        assert await again.get() == {"name": {"first": "Ada", "a.b": [1, {"c": None}]}}
        assert await again.get(r"name.a\.b.-1.c", "default") is None
        assert await again.keys("name") == ["first", "a.b"]
        assert (await again.length("name"), await again.length("nothing")) == (2, 0)
        assert await again.exists("name.first")


@asynchronous
async def test_results_are_what_the_order_of_the_log_says() -> None:
    """Of updates at the same time each sees those before it: no increment is lost, no item is given twice."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        counter = store.object("counter")
        totals = await asyncio.gather(*(counter.increment("n") for _ in range(50)))
        assert sorted(totals) == list(range(1, 51))
        await counter.append("items", *range(20))
        items = await asyncio.gather(*(store.object("counter").pop("items", 0) for _ in range(25)))
        assert sorted(item for item in items if item is not None) == list(range(20))
        assert await counter.append("recent", *range(10), limit=3) == 3
        assert await counter.get("recent") == [7, 8, 9]
        assert await counter.insert("recent.0", "first") == 4
        assert await counter.delete("recent.1") is True
        assert await counter.delete("nothing") is False
        await counter.merge("", {"n": None, "recent": ["x"]})
        assert await counter.get() == {"items": [], "recent": ["x"]}


@asynchronous
async def test_an_update_is_one_record() -> None:
    """Of the object's row; the first one also lists the object."""
    async with boki.testing.context() as ctx:
        counter = Store(ctx).object("counter")
        for _ in range(3):
            await counter.increment("n")
        records = (await ctx.logbook.read()).records
        assert [record.tags for record in records] == [
            (row_tag("counter"), row_tag("/56")),
            *[(row_tag("counter"),)] * 2,
        ]


@asynchronous
async def test_values_are_copies() -> None:
    """What a caller does with them changes nothing else."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        mine = {"list": [1]}
        await store.object("x").set("", mine)
        mine["list"].append(2)
        for _ in range(2):
            read = await store.object("x").get()
            assert read == {"list": [1]}
            read["list"].append(3)
        async with store.transaction() as txn:
            (await txn.object("x").get("list")).append(4)
            assert await txn.object("x").get() == {"list": [1]}
        popped = await store.object("x").append("deep", [[1]])
        assert popped == 1
        (await store.object("x").pop("deep")).append(5)
        assert await store.object("x").get() == {"list": [1], "deep": []}


@asynchronous
async def test_typed_objects() -> None:
    """Structs, dataclasses and pydantic models go in and come out; what is no such thing says so."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.object("u").set("", User("Ada", 36))
        await store.object("p").set("", Point(1, 2))
        await store.object("m").set("", Model(name="x"))
        assert await store.object("u", User).get() == User("Ada", 36)
        assert await store.object("p", Point).get() == Point(1, 2)
        assert await store.object("m", Model).get() == Model(name="x")
        assert await store.object("u", User).get("age") == 36
        assert await store.object("none", User).get() is None
        for name, kind in (("p", User), ("p", Model), ("u", Point)):
            with pytest.raises(WrongShape, match=f"'{name}' does not hold {kind.__name__}"):
                await store.object(name, kind).get()
        for no_type in ("User", 5, [User]):
            with pytest.raises(InvalidArgument, match="no type that an object can be read as"):
                store.object("u", no_type)  # type: ignore[call-overload]
        version = await store.object("u").version()
        with pytest.raises(WrongShape, match="'u' does not hold User"):
            await store.object("u", User).set("", {"name": 5})
        await store.object("u", User).set("age", 37)
        assert await store.object("u", User).get() == User("Ada", 37)
        assert len([one async for one in store.history("u")]) == 2
        assert version < await store.object("u").version()


@asynchronous
async def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    """Also for those who read from the log again."""
    async with boki.testing.context() as ctx:
        x = Store(ctx).object("x")
        await x.set("n", 1)
        version = await x.version()
        with pytest.raises(WrongShape, match="through n"):
            await x.set("n.m", 1)
        with pytest.raises(WrongShape, match="not an array"):
            await x.append("n", 1)
        with pytest.raises(WrongShape, match="through n"):
            await x.get("n.m")
        with pytest.raises(WrongShape, match="neither an object nor an array"):
            await x.length("n")
        with pytest.raises(TooLarge, match="1,000,000 bytes"):
            await x.set("big", "x" * 1_000_000)
        await x.set("big", "x" * 999_000)
        with pytest.raises(TooLarge, match="spread it over several"):
            await x.set("more", "x" * 1_000)
        ctx.logbook.session.shared(Memory).forget()
        assert await x.get("n") == 1
        assert version < await x.version()
        await x.delete("big")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("", InvalidArgument),
        ("a b", InvalidArgument),
        ("a/b", InvalidArgument),
        (".", InvalidArgument),
        (5, InvalidArgument),
    ],
)
@asynchronous
async def test_names_that_no_object_can_have(name: Any, error: type[BokiError]) -> None:
    """They must fit into tags and URLs."""
    async with boki.testing.context() as ctx:
        with pytest.raises(error, match="name"):
            Store(ctx).object(name)


@asynchronous
async def test_arguments_that_are_wrong_are_refused_before_anything_is_appended() -> None:
    """With the field."""
    async with boki.testing.context() as ctx:
        x = Store(ctx).object("x")
        for work, field in (
            (lambda: x.increment("n", True), "by"),
            (lambda: x.increment("n", float("nan")), "by"),
            (lambda: x.increment("n", 1 << 64), "by"),
            (lambda: x.append("l", 1, limit=-1), "limit"),
            (lambda: x.pop("l", 3), "index"),
            (lambda: x.set("a..b", 1), "path"),
            (lambda: x.set("a", b"bytes"), "value"),
            (lambda: x.set("a", 1, key=""), "key"),
        ):
            with pytest.raises((InvalidArgument, WrongType)) as refused:
                await work()
            assert refused.value.field == field
        with pytest.raises(InvalidArgument, match=r"write Store\(ctx\)"):
            Store("book")  # type: ignore[arg-type]
        assert (await ctx.logbook.read()).records == []


@asynchronous
async def test_an_update_under_a_key_counts_once() -> None:
    """A repetition has the result of the first, from any process; another update under the key is refused."""
    async with boki.testing.context() as ctx:
        x = Store(ctx).object("x")
        assert await x.increment("n", key="a") == 1
        assert await x.increment("n") == 2
        assert await x.increment("n", key="a") == 1
        ctx.logbook.session.shared(Memory).forget()
        assert await x.increment("n", key="a") == 1
        for other in (x.increment("n", 2, key="a"), Store(ctx).object("y").increment("n", key="a")):
            with pytest.raises(KeyReused, match="another update"):
                await other
        assert await x.get("n") == 2
        await ctx.clock.advance(24 * 3600 + 1)
        assert await x.increment("n", key="a") == 3


@asynchronous
async def test_deleting_every_cache_changes_no_answer() -> None:
    """Neither what the process remembers nor auxiliary data is needed: they are left, used, and not missed."""
    async with boki.testing.context() as ctx:
        store, memory = Store(ctx), ctx.logbook.session.shared(Memory)
        for number in range(40):
            await store.object("x").append("l", number)
        expected = await store.object("x").get()
        for _ in range(3):
            memory.forget()
            assert await store.object("x").get() == expected
        records = (await ctx.logbook.read()).records
        assert records[-1].auxdata is not None
        for record in records:
            await ctx.logbook.set_auxdata(record.seqnum, b"\x01junk")
        memory.forget()
        assert await store.object("x").get() == expected


@asynchronous
async def test_a_deleted_book_is_empty() -> None:
    """Also for a process that remembers its objects, and whatever was written since is there."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.object("x").set("n", 1)
        await store.object("y").set("n", 1)
        assert await store.object("y").get("n") == 1
        await ctx.logbook.delete()
        assert await store.object("x").get() is None
        await store.object("y").set("m", 2)
        assert await store.object("y").get() == {"m": 2}
        async with store.transaction() as txn:
            assert await txn.object("x").increment("n") == 1
        assert await store.object("x").get() == {"n": 1}


@asynchronous
async def test_a_version_names_the_record_and_its_author() -> None:
    """The function and the invocation stand in the record."""
    async with boki.testing.context() as ctx:
        x = Store(ctx).object("x")
        assert await x.version() == 0
        await x.set("n", 1)
        record = await ctx.logbook.get(await x.version())
        write = codec.decode(record.data)
        assert write.author.function == ctx.function_name  # type: ignore[union-attr]
        assert write.author.invocation == ctx.invocation_id  # type: ignore[union-attr]
