"""Maps and sets: items, indexes, scans, and what conflicts with what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import boki.testing
from boki import InvalidArgument, TooLarge, WrongType
from boki.libs.bokistore import ConflictError, Map, Store
from boki.libs.bokistore.accesses import Direct
from boki.libs.bokistore.maps import MAX_PARTITIONS, MapRequests, Shape
from boki.libs.bokistore.memory import Memory
from boki.libs.bokistore.queries import WHOLE, Question
from boki.libs.bokistore.records import UNKNOWN_AUTHOR
from boki.libs.bokistore.refusals import conflict
from boki.libs.bokistore.transactions import Transaction
from boki.libs.fold import steps
from boki.libs.fold.steps import Steps
from boki.log.memory import MemoryLog
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokistore.interleaving import Process, logbook


def users(store: Any) -> Map:
    found: Map = store.map("users", partitions=4, indexes=["city", "tags.0"])
    return found


@asynchronous
async def test_items_are_put_found_and_taken_away() -> None:
    """Whole or in part, with keys of any text."""
    async with boki.testing.context() as ctx:
        items = Store(ctx).map("m", partitions=4)
        await items.set("a.b", {"n": 1})
        await items.set("ü/\n", [1])
        await items.set("a.b", 5, path="deep.er")
        assert await items.get("a.b") == {"n": 1, "deep": {"er": 5}}
        assert await items.get("a.b", "deep.er") == 5
        assert await items.get("none", default=0) == 0
        assert await items.increment("a.b", "n", 2) == 3
        assert await items.increment("count") == 1
        assert await items.length() == 3
        assert await items.get_many(["count", "none", "ü/\n"]) == {"count": 1, "ü/\n": [1]}
        assert await items.delete("count") is True
        assert await items.delete("count") is False
        assert [key for key, _ in await items.scan()] == ["a.b", "ü/\n"]


@asynchronous
async def test_a_map_is_what_it_was_made_as() -> None:
    """Another number of partitions, or other indexes, would not find its items: refused by name."""
    async with boki.testing.context() as ctx:
        await Store(ctx).map("m", partitions=4).set("a", 1)
        for forget in (False, True):
            if forget:
                ctx.logbook.session.shared(Memory).forget()
            for other in (Store(ctx).map("m", partitions=8), Store(ctx).map("m", partitions=4, indexes=["x"])):
                with pytest.raises(InvalidArgument, match="made with 4 partitions"):
                    await other.get("a")
        for partitions, indexes in ((0, []), (5000, []), (4, [""]), (4, ["a", "a"])):
            with pytest.raises(InvalidArgument):
                Store(ctx).map("n", partitions=partitions, indexes=indexes)
        for key in ("", "x" * 1001, 5):
            with pytest.raises((InvalidArgument, WrongType)):
                await Store(ctx).map("m", partitions=4).get(key)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="no index of 'city'"):
            await Store(ctx).map("m", partitions=4).where("city", 1)
        with pytest.raises(TooLarge):
            await Store(ctx).map("m", partitions=4).set("a", "x" * 1_000_000)


@asynchronous
async def test_what_only_reads_a_map_does_not_make_it() -> None:
    """Nor does a transaction that raises, nor a test that fails: the first write decides how it is made."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        for access in (store, store.at(0)):
            guessed = access.map("users", indexes=["age"])
            assert (await guessed.get("a"), await guessed.get_many(["a"]), await guessed.length()) == (None, {}, 0)
            assert await guessed.scan() == await guessed.where("age", 1) == []
        assert not await store.map("users").test_and_set_many({"a": 1}, {"a": 2})
        assert await store.map("users").test_and_set_many({"a": None}, {})
        with pytest.raises(ZeroDivisionError):
            async with store.transaction() as txn:
                await txn.map("users").increment("a")
                raise ZeroDivisionError
        assert (await ctx.logbook.read()).records == []
        people = users(store)
        await people.set("ada", {"city": "London"})
        assert await store.maps() == ["users"]
        assert await people.where("city", "London") == [("ada", {"city": "London"})]
        with pytest.raises(InvalidArgument, match="made with 4 partitions"):
            await store.map("users").length()


@asynchronous
async def test_a_transaction_that_saw_no_map_conflicts_with_its_first_write() -> None:
    """And of two first writes one decides how it is made."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        with pytest.raises(ConflictError):
            async with store.transaction() as txn:
                assert await txn.map("m").get("a") is None
                await txn.object("out").set("", 1)
                await store.map("m", partitions=4).set("b", 1)
        made = await asyncio.gather(
            *(store.map("n", partitions=number).set("a", number) for number in (2, 3)), return_exceptions=True
        )
        assert {type(one) for one in made} == {InvalidArgument, type(None)}
        assert await (await store.open_map("n")).get("a") == 2 + made.index(None)


@pytest.mark.parametrize("indexes", [(), ("n",)])
@asynchronous
async def test_a_map_is_made_again_after_its_book_was_deleted(indexes: tuple[str, ...]) -> None:
    """By the first write: what a process remembers of its shape does not outlast the book."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        items = store.map("m", partitions=2, indexes=indexes)
        for times in range(1, 7):
            for number in range(times):
                await items.set("a", {"n": number})
            await ctx.logbook.delete()
            await items.set("a", {"n": 0})
            assert await store.maps() == ["m"]
            assert await (await store.open_map("m")).scan() == [("a", {"n": 0})]


def test_a_map_that_others_have_made_anew_is_not_written_as_it_was() -> None:
    """They spread its items over other partitions, so neither would find what the other one has written."""
    log = MemoryLog()
    one, other = Process(logbook(log)), Process(logbook(log))

    def items(process: Process, partitions: int) -> MapRequests:
        direct = process.direct
        return MapRequests(direct, process.begin, "m", Shape(partitions), process.reader.shapes, direct)

    for _ in range(2):
        one.run(items(one, 2).set("a", "", 1))
    one.book.delete()
    other.run(items(other, 8).set("a", "", 2))
    with pytest.raises(InvalidArgument, match="made with 8 partitions") as raised:
        one.run(items(one, 2).set("a", "", 3))
    assert raised.value.outcome == "unknown"
    with pytest.raises(InvalidArgument, match="made with 8 partitions") as raised:
        one.run(items(one, 2).set("a", "", 3))
    assert raised.value.outcome == "not_applied"
    assert other.run(items(other, 8).get("a", "", None)) == 2


@pytest.mark.parametrize("read", [lambda items: items.get("a", "", None), lambda items: items.length()])
def test_a_map_that_others_have_made_anew_is_not_read_as_it_was(read: Callable[[MapRequests], Steps[Any]]) -> None:
    """The first read finds out that the book was deleted, and is repeated by what is present now."""
    one = Process(logbook())
    other = Process(one.book)

    def items(process: Process, partitions: int) -> MapRequests:
        direct = process.direct
        return MapRequests(direct, process.begin, "m", Shape(partitions), process.reader.shapes, direct)

    for _ in range(2):
        one.run(items(one, 2).set("a", "", 1))
    one.book.delete()
    other.run(items(other, 8).set("a", "", 2))
    with pytest.raises(InvalidArgument, match="made with 8 partitions"):
        one.run(read(items(one, 2)))


def test_a_transaction_that_makes_a_map_does_not_ask_for_it_again() -> None:
    """Whatever it writes next: it has the condition that nobody else makes it."""
    process = Process(logbook())
    txn = process.begin()

    def items() -> MapRequests:
        return MapRequests(txn, process.begin, "m", Shape(1), process.reader.shapes, process.direct)

    process.run(items().set("a", "", 1))
    assert list(items().set("b", "", 2)) == list(items().get("a", "", None)) == []
    process.run(txn.commit())
    txn = process.begin()
    assert process.run(items().get_many(["a", "b"])) == {"a": 1, "b": 2}


@asynchronous
async def test_pages_of_a_scan_are_stable() -> None:
    """Each begins after the last key of the one before, whatever came and went meanwhile."""
    async with boki.testing.context() as ctx:
        items = Store(ctx).map("m", partitions=4)
        await items.set_many({f"k{number:02}": number for number in range(30)})
        first = await items.scan(limit=10)
        assert [value for _, value in first] == list(range(10))
        await items.delete("k03")
        await items.set("k00a", 0)
        await items.set("k10a", 0)
        second = await items.scan(after=first[-1][0], limit=3)
        assert [key for key, _ in second] == ["k10", "k10a", "k11"]
        assert [key for key, _ in await items.scan(prefix="k1", start="k18")] == ["k18", "k19"]
        assert [key for key, _ in await items.scan(start="k27", stop="k29")] == ["k27", "k28"]


@asynchronous
async def test_an_index_finds_what_has_the_value() -> None:
    """It changes with the item, in one transaction; what has no such field is not in it."""
    async with boki.testing.context() as ctx:
        people = users(Store(ctx))
        await people.set("ada", {"city": "London", "tags": ["math"]})
        await people.set("bob", {"city": "London"})
        await people.set("eve", {"city": {"name": "Paris"}})
        await people.set("odd", 5)
        assert [key for key, _ in await people.where("city", "London")] == ["ada", "bob"]
        assert await people.where("tags.0", "math") == [("ada", {"city": "London", "tags": ["math"]})]
        assert [key for key, _ in await people.where("city", {"name": "Paris"})] == ["eve"]
        await people.set("ada", "Paris", path="city")
        await people.delete("bob")
        assert await people.where("city", "London") == []
        assert [key for key, _ in await people.where("city", "Paris")] == ["ada"]
        await people.set_many({"x": {"city": "Paris"}, "y": {"city": 1}})
        assert [key for key, _ in await people.where("city", "Paris")] == ["ada", "x"]
        assert await people.where("city", True) == []


def raw(ctx: boki.testing.Context, name: str) -> Steps[Any]:
    """A partition as an object."""
    reader = ctx.logbook.session.shared(Memory).reader(ctx.logbook.name)
    return Direct(reader, UNKNOWN_AUTHOR, lambda: b"").look(name, WHOLE)


@asynchronous
async def test_an_index_keeps_no_value_that_no_item_has() -> None:
    """Otherwise it would grow with each value that an item ever had, until the map refuses all writes."""
    async with boki.testing.context() as ctx:
        items = Store(ctx).map("m", partitions=1, indexes=["n"])
        for number in range(4):
            await items.set("a", {"n": number})
        await items.set("b", {"n": 3})
        assert await steps.run(raw(ctx, "m/i0/0"), ctx.logbook) == {"3": {"a": True, "b": True}}
        await items.delete("b")
        assert await steps.run(raw(ctx, "m/i0/0"), ctx.logbook) == {"3": {"a": True}}
        await items.delete("a")
        assert await steps.run(raw(ctx, "m/i0/0"), ctx.logbook) == {}


@asynchronous
async def test_items_with_the_same_value_leave_it_without_a_conflict() -> None:
    """Unless one of them is the last one that has it."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        people = users(store)
        await people.set_many({key: {"city": "Rome"} for key in "abcd"})
        async with store.transaction() as txn:
            await users(txn).set("a", {"city": "Oslo"})
            await people.set("b", {"city": "Bern"})
        with pytest.raises(ConflictError):
            async with store.transaction() as txn:
                await users(txn).set("c", {"city": "Oslo"})
                await people.delete("d")
        await people.set("c", {"city": "Oslo"})
        assert await people.where("city", "Rome") == []
        assert [key for key, _ in await people.where("city", "Oslo")] == ["a", "c"]


@asynchronous
async def test_a_map_of_the_most_partitions_is_looked_through() -> None:
    """They are more than the objects of a transaction that writes."""
    async with boki.testing.context() as ctx:
        items = Store(ctx).map("m", partitions=MAX_PARTITIONS, indexes=["city"])
        await items.set("a", {"city": "Rome"})
        assert await items.scan() == await items.where("city", "Rome") == [("a", {"city": "Rome"})]
        assert await items.length() == 1


class Overtaken(Transaction):
    """A transaction whose snapshot is trimmed while it reads."""

    def look_all(self, questions: Sequence[tuple[str, Question]]) -> Steps[list[Any]]:
        raise conflict([name for name, _ in questions], "book")


def test_a_scan_whose_snapshot_is_trimmed_begins_again() -> None:
    """The caller has no other snapshot to try."""
    process = Process(logbook())
    direct = process.direct
    begun = iter([process.begin(), Overtaken(process.reader, b"n", UNKNOWN_AUTHOR), process.begin()])
    items = MapRequests(direct, lambda: next(begun), "m", Shape(2), {}, direct)
    process.run(items.set("a", "", 1))
    assert process.run(items.scan("", "", None, None, 10)) == [("a", 1)]


@given(st.integers(0, 1 << 30))
@settings(max_examples=15, deadline=None)
def test_indexes_say_what_a_look_at_all_items_says(seed: int) -> None:
    """After any changes, some of them at the same time."""

    async def run() -> None:
        rng = Random(seed)
        async with boki.testing.context() as ctx:
            store = Store(ctx)
            people = users(store)

            async def change() -> None:
                key = rng.choice("abcd")
                match rng.randrange(4):
                    case 0:
                        await people.delete(key)
                    case 1:
                        await people.set(key, rng.choice(["x", "y"]), path="city")
                    case 2:
                        await people.set(key, {"city": rng.choice(["x", "y"]), "tags": [rng.randrange(2)]})
                    case _:
                        other = rng.choice("abcd")
                        await people.set_many({key: {"city": "z"}, other: {"city": "x"}})

            for _ in range(8):
                await asyncio.gather(*(change() for _ in range(3)), return_exceptions=False)
            everything = await people.scan()
            for city in ("x", "y", "z"):
                expected = [(key, item) for key, item in everything if item.get("city") == city]
                assert await people.where("city", city) == expected

    asyncio.run(run())


@asynchronous
async def test_a_scan_conflicts_with_what_it_would_have_met_and_with_nothing_else() -> None:
    """Phantoms are conflicts, in scans and in queries of an index."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        people = users(store)
        await people.set("ada", {"city": "London"})
        for looks, change, conflicts in (
            (lambda txn: users(txn).scan(prefix="b"), lambda: people.set("bob", {"city": "Rome"}), True),
            (lambda txn: users(txn).scan(prefix="x"), lambda: people.set("carl", {"city": "Rome"}), False),
            (lambda txn: users(txn).where("city", "Oslo"), lambda: people.set("dan", {"city": "Oslo"}), True),
            (lambda txn: users(txn).where("city", "Bern"), lambda: people.set("ella", {"city": "Oslo"}), False),
            (lambda txn: users(txn).length(), lambda: people.delete("ella"), True),
            (lambda txn: users(txn).get("dan", "city"), lambda: people.set("dan", 1, path="age"), False),
        ):
            try:
                async with store.transaction() as txn:
                    await looks(txn)
                    await txn.object("out").increment("n")
                    await change()
            except ConflictError:
                assert conflicts
            else:
                assert not conflicts


@asynchronous
async def test_test_and_set() -> None:
    """Of many items at once, by what others hold; None is an item that is not there."""
    async with boki.testing.context() as ctx:
        items = Store(ctx).map("m", partitions=4)
        assert await items.test_and_set_many({"a": None}, {"a": 1, "b": 2})
        assert not await items.test_and_set_many({"a": None}, {"a": 3})
        assert not await items.test_and_set_many({"a": 1.0}, {"a": 3})
        assert await items.test_and_set_many({"a": 1, "b": 2}, {"a": 2, "c": 3})
        assert await items.get_many(["a", "b", "c"]) == {"a": 2, "b": 2, "c": 3}
        winners = await asyncio.gather(*(items.test_and_set_many({"lock": None}, {"lock": n}) for n in range(6)))
        assert sum(winners) == 1
        await items.set("o", {"a": 1, "b": [{"c": 2, "d": 3}]})
        assert not await items.test_and_set_many({"o": {"b": [{"d": 3, "c": 2.0}], "a": 1}}, {"o": 1})
        assert await items.test_and_set_many({"o": {"b": [{"d": 3, "c": 2}], "a": 1}}, {"o": 1})


@asynchronous
async def test_maps_in_transactions_and_in_the_past() -> None:
    """They are objects."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        people = users(store)
        await people.set("ada", {"city": "London"})
        async with store.transaction() as txn:
            await users(txn).set("ada", "Paris", path="city")
            assert [key for key, _ in await users(txn).where("city", "Paris")] == ["ada"]
            assert await people.get("ada", "city") == "London"
        then = txn.seqnum
        await people.delete("ada")
        assert await users(store.at(then)).where("city", "Paris") == [("ada", {"city": "Paris"})]
        assert await users(store.at(then)).length() == 1
        assert await people.length() == 0


@asynchronous
async def test_sets() -> None:
    """Of several who add a member one is told that it is new."""
    async with boki.testing.context() as ctx:
        tags = Store(ctx).set("tags", partitions=2)
        assert sum(await asyncio.gather(*(tags.add("x") for _ in range(5)))) == 1
        assert await tags.add("y")
        assert await tags.contains("x")
        assert await tags.members() == ["x", "y"]
        assert (await tags.discard("x"), await tags.discard("x")) == (True, False)
        assert await tags.length() == 1
        assert await tags.add("x")
