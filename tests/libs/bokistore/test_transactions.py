"""Transactions over the log in memory: isolation, conflicts, keys, nesting, and what commits together."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest

import boki.testing
from boki import InvalidArgument, WrongState
from boki.libs.bokistore import ConflictError, Store, Transaction, WrongShape
from boki.libs.bokistore.records import row_tag
from tests.libs.bokiqueue.running import asynchronous


@asynchronous
async def test_all_or_nothing_in_one_append() -> None:
    """The writes of several objects are one record, under the tags of all."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        async with store.transaction() as txn:
            await txn.object("a").set("n", 1)
            await txn.object("b").set("n", 2)
            assert await store.object("a").get() is None
            assert await txn.object("a").get("n") == 1
        [record] = (await ctx.logbook.read()).records
        assert record.seqnum == txn.seqnum
        assert record.tags == (row_tag("a"), row_tag("/3"), row_tag("b"), row_tag("/57"))
        with pytest.raises(ZeroDivisionError):
            async with store.transaction() as txn:
                await txn.object("a").set("n", 5)
                print(1 / 0)
        assert await store.object("a").get("n") == 1
        assert len((await ctx.logbook.read()).records) == 1


@asynchronous
async def test_reads_are_of_one_moment() -> None:
    """What commits meanwhile is not seen, in no order of reads; a transaction that only reads never aborts."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        async with store.transaction() as setup:
            await setup.object("a").set("n", 50)
            await setup.object("b").set("n", 50)
        async with store.transaction() as txn:
            assert await txn.object("a").get("n") == 50
            async with asyncio.timeout(5):
                for _ in range(20):
                    await _moved(ctx, 1)
            assert await txn.object("b").get("n") == 50
            assert await txn.object("c").get("n") is None
        assert txn.seqnum == txn.snapshot
        assert await store.object("b").get("n") == 70


async def _moved(ctx: boki.testing.Context, amount: int) -> None:
    """From a to b, in a transaction of another task: not a part of the one that is open in this one."""

    async def move() -> None:
        async with Store(ctx.logbook_named(ctx.logbook.name)).transaction() as txn:
            await txn.object("a").increment("n", -amount)
            await txn.object("b").increment("n", amount)
            await txn.object("c").set("n", 1)

    await asyncio.get_running_loop().create_task(move(), context=contextvars.Context())


@asynchronous
async def test_a_read_that_is_wrong_by_now_is_a_conflict() -> None:
    """Named by object; nothing is changed, and the error says to run it again."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.object("x").set("n", 1)
        with pytest.raises(ConflictError, match="'x'") as conflict:
            async with store.transaction() as txn:
                await txn.object("y").set("n", await txn.object("x").get("n"))
                await txn.object("z").get()
                await store.object("x").set("n", 2)
        error = conflict.value
        assert (error.objects, error.retryable, error.outcome) == (["x"], True, "not_applied")
        assert await store.object("y").get() is None


@pytest.mark.parametrize(
    ("look", "change"),
    [
        (lambda o: o.get("a"), lambda o: o.set("b", 1)),
        (lambda o: o.get("a.x"), lambda o: o.set("a.y", 1)),
        (lambda o: o.exists("a"), lambda o: o.set("a.x", 9)),
        (lambda o: o.length("l"), lambda o: o.set("l.0", 9)),
        (lambda o: o.keys("a"), lambda o: o.increment("n")),
        (lambda o: o.get("a"), lambda o: o.set("a", {"x": 1})),
        (lambda o: o.set("a.z", 1), lambda o: o.set("a.w", 2)),
        (lambda o: o.append("l", 5), lambda o: o.set("n", 2)),
        (lambda o: o.get("a.missing"), lambda o: o.delete("l")),
    ],
)
@asynchronous
async def test_what_was_not_read_may_change(look: Any, change: Any) -> None:
    """The grain of a conflict is what the transaction has asked for: paths, lengths, keys. It commits on top."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.object("x").set("", {"a": {"x": 1}, "l": [1], "n": 0})
        async with store.transaction() as txn:
            await look(txn.object("x"))
            await txn.object("out").set("done", True)
            await change(store.object("x"))
        assert txn.seqnum
        assert await store.object("out").get("done")


@pytest.mark.parametrize(
    ("look", "change"),
    [
        (lambda o: o.get("a"), lambda o: o.set("a.x", 2)),
        (lambda o: o.get(), lambda o: o.set("b", 1)),
        (lambda o: o.get("a.x"), lambda o: o.set("a", {})),
        (lambda o: o.exists("b"), lambda o: o.set("b", 1)),
        (lambda o: o.length("l"), lambda o: o.append("l", 9)),
        (lambda o: o.keys("a"), lambda o: o.set("a.y", 1)),
        (lambda o: o.increment("n"), lambda o: o.increment("n")),
        (lambda o: o.pop("l"), lambda o: o.append("l", 9)),
        (lambda o: o.append("l", 5), lambda o: o.append("l", 9)),
        (lambda o: o.set("a.z", 1), lambda o: o.set("a", 2)),
        (lambda o: o.get("n"), lambda o: o.set("n", 0.0)),
        (lambda o: o.get("n"), lambda o: o.set("n", False)),
        (lambda o: o.delete("b"), lambda o: o.set("b", 1)),
    ],
)
@asynchronous
async def test_what_was_read_may_not_change(look: Any, change: Any) -> None:
    """Also what an update has returned, or whether it fitted."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.object("x").set("", {"a": {"x": 1}, "l": [1], "n": 0})
        with pytest.raises(ConflictError, match="'x'"):
            async with store.transaction() as txn:
                await look(txn.object("x"))
                await txn.object("out").set("done", True)
                await change(store.object("x"))
        assert await store.object("out").get() is None


@asynchronous
async def test_an_error_that_was_caught_is_a_read() -> None:
    """What made a transaction decide must still be so when it commits."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.object("x").set("a", 1)
        for value, conflicts in ((2, False), ({}, True)):
            try:
                async with store.transaction() as txn:
                    with pytest.raises(WrongShape):
                        await txn.object("x").set("a.b", 1)
                    await txn.object("out").set("n", 1)
                    await store.object("x").set("a", value)
            except ConflictError:
                assert conflicts
            else:
                assert not conflicts


@asynchronous
async def test_write_skew_is_a_conflict() -> None:
    """Two who each read both and write one: the published rule, which compares writes alone, lets both commit."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)

        async def leave(me: str, other: str, gate: asyncio.Barrier) -> bool:
            async with store.transaction() as txn:
                on_call = [await txn.object(name).get("on_call", True) for name in (me, other)]
                await gate.wait()
                if all(on_call):
                    await txn.object(me).set("on_call", False)
            return True

        gate = asyncio.Barrier(2)
        results = await asyncio.gather(leave("ada", "bob", gate), leave("bob", "ada", gate), return_exceptions=True)
        assert {type(result) for result in results} == {bool, ConflictError}


@asynchronous
async def test_transactional_functions_are_run_again() -> None:
    """Until they commit: no increment is lost, however many run at once."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)

        @store.transactional
        async def add(txn: Transaction, amount: int, *, to: str) -> int:
            """Read, think, write."""
            before: int = await txn.object(to).get("n", 0)
            await asyncio.sleep(0)
            await txn.object(to).set("n", before + amount)
            return before

        befores = await asyncio.gather(*(add(1, to="x") for _ in range(6)))
        assert sorted(befores) == list(range(6))
        assert await store.object("x").get("n") == 6


@asynchronous
async def test_a_transaction_inside_of_another_is_a_part_of_it() -> None:
    """It commits with it; if it raises and the outer one continues, its writes alone are undone."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)

        async def note(text: str, *, fail: bool = False) -> None:
            async with Store(ctx.logbook).transaction() as txn:
                await txn.object("notes").append("all", text)
                await txn.object(text).set("n", 1)
                txn.append(text.encode(), ["note"])
                if fail:
                    raise ZeroDivisionError

        async with store.transaction() as outer:
            await outer.object("x").set("n", 1)
            await note("one")
            with pytest.raises(ZeroDivisionError):
                await note("two", fail=True)
            assert await outer.object("notes").get("all") == ["one"]
            await note("three")
            with pytest.raises(InvalidArgument, match="outer"):
                async with store.transaction(key="k"):
                    pass
        assert await store.object("notes").get("all") == ["one", "three"]
        assert await store.object("two").get() is None
        records = (await ctx.logbook.read()).records
        assert [record.data for record in records[1:]] == [b"one", b"three"]
        assert records[0].seqnum == outer.seqnum


@asynchronous
async def test_an_inner_part_that_was_undone_is_still_a_read() -> None:
    """What it has seen made the outer one decide; and the undoing holds on a newer version, too."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.object("x").set("", {"a": 1, "b": 1})
        for path, conflicts in (("b", False), ("a", True)):
            try:
                async with store.transaction() as outer:
                    await outer.object("x").increment("c")
                    with pytest.raises(ZeroDivisionError):
                        async with store.transaction() as inner:
                            await inner.object("x").set("b", 99)
                            await inner.object("x").get("a")
                            raise ZeroDivisionError
                    await store.object("x").set(path, 7)
            except ConflictError:
                assert conflicts
            else:
                assert not conflicts
                assert await store.object("x").get() == {"a": 1, "b": 7, "c": 1}


@asynchronous
async def test_records_of_the_application_commit_with_it() -> None:
    """All or none, behind the writes."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        async with store.transaction() as txn:
            await txn.object("x").get()
            txn.append(b"seen", ["audit"])
        with pytest.raises(ConflictError):
            async with store.transaction() as txn:
                await txn.object("x").get()
                txn.append(b"not seen", ["audit"])
                await store.object("x").set("n", 1)
        assert [record.data for record in (await ctx.logbook.read("audit")).records] == [b"seen"]


@asynchronous
async def test_a_transaction_that_is_over_takes_nothing_more() -> None:
    """Whether it committed or raised."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        async with store.transaction() as txn:
            x = txn.object("x")
        with pytest.raises(WrongState, match="ended"):
            await x.set("n", 1)
        with pytest.raises(WrongState, match="ended"):
            txn.append(b"more")
        async with store.transaction() as txn:
            with pytest.raises(InvalidArgument, match="transaction"):
                await txn.object("x").set("n", 1, key="k")


@asynchronous
async def test_large_transactions_have_many_records_and_no_moment_between_them() -> None:
    """Whoever reads as of one of its records sees none of it, or all."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        async with store.transaction() as txn:
            for number in range(40):
                await txn.object(f"o{number}").set("n", number)
        seqnums = [record.seqnum for record in (await ctx.logbook.read()).records]
        assert len(seqnums) == 5
        for number in (0, 20, 39):
            assert await store.object(f"o{number}").version() == txn.seqnum == seqnums[-1]
            assert [version.seqnum async for version in store.history(f"o{number}")] == [txn.seqnum]
        for seqnum, expected in zip(seqnums, (None, None, None, None, 0), strict=True):
            assert await store.at(seqnum).object("o0").get("n") == expected
            assert await store.at(seqnum).object("o39").get("n") == (None if expected is None else 39)


@asynchronous
async def test_tasks_of_one_transaction_share_it() -> None:
    """They read at the same moment, whichever of them is first."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        for number in range(5):
            await store.object(f"o{number}").set("n", number)
        async with store.transaction() as txn:
            found = await asyncio.gather(*(txn.object(f"o{number}").get("n") for number in range(5)))
            await txn.object("sum").set("n", sum(found))
        assert await store.object("sum").get("n") == 10


@pytest.mark.parametrize("use", ["nothing", "a write", "a block", "a read", "a record"])
@asynchronous
async def test_a_part_that_raises_is_undone_alone_or_nothing_commits(use: str) -> None:
    """What another task has done meanwhile would be undone with it, or may have seen what was undone."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        has_begun, is_used = asyncio.Event(), asyncio.Event()

        async def part() -> None:
            async with store.transaction() as txn:
                await txn.object("a").set("n", 1)
                has_begun.set()
                await is_used.wait()
                raise ZeroDivisionError

        async def other(txn: Transaction) -> None:
            await has_begun.wait()
            match use:
                case "a write":
                    await txn.object("b").set("n", 1)
                case "a block":
                    async with store.transaction() as inner:
                        await inner.object("b").set("n", 1)
                case "a read":
                    assert await txn.object("a").get("n") == 1
                case "a record":
                    txn.append(b"more", ["audit"])
            is_used.set()

        async def work() -> None:
            async with store.transaction() as txn:
                await txn.object("c").set("n", 1)
                found = await asyncio.gather(part(), other(txn), return_exceptions=True)
                assert [type(one) for one in found] == [ZeroDivisionError, type(None)]

        if use == "nothing":
            await work()
            assert await store.objects() == ["c"]
        else:
            with pytest.raises(WrongState, match="while another task used"):
                await work()
            assert await store.objects() == []


@asynchronous
async def test_an_update_that_the_commit_overtakes_is_refused() -> None:
    """It would be lost, and its caller would take it for done."""
    async with boki.testing.context() as ctx:
        async with Store(ctx).transaction() as txn:
            await txn.object("a").set("n", 1)
            late = asyncio.ensure_future(txn.object("b").set("n", 1))
            await asyncio.sleep(0)
        with pytest.raises(WrongState, match="has ended"):
            await late
        assert await Store(ctx).objects() == ["a"]


@asynchronous
async def test_the_past_cannot_be_changed() -> None:
    """A snapshot only reads."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.object("x").set("n", 1)
        then = store.at(await store.object("x").version())
        await store.object("x").set("n", 2)
        assert await then.object("x").get("n") == 1
        with pytest.raises(InvalidArgument, match="cannot be changed"):
            await then.object("x").set("n", 3)


@asynchronous
async def test_a_transaction_does_not_end_before_the_blocks_inside_of_it() -> None:
    """It would commit a half of what their tasks write; and what these undo later must not undo what was committed."""
    async with boki.testing.context() as ctx:
        store, has_begun, may_raise = Store(ctx), asyncio.Event(), asyncio.Event()
        await store.object("x").set("n", 1)

        async def inner() -> None:
            async with store.transaction() as part:
                await part.object("x").increment("n")
                has_begun.set()
                await may_raise.wait()
                raise ZeroDivisionError

        with pytest.raises(WrongState, match=r"has not ended.*await its task"):
            async with store.transaction() as txn:
                await txn.object("y").set("n", 1)
                task = asyncio.create_task(inner())
                await has_begun.wait()
        may_raise.set()
        with pytest.raises(ZeroDivisionError):
            await task
        assert await store.object("x").get("n") == 1
        assert await store.object("y").get("n") is None
