"""What the store refuses: the error names the object and what is wrong, and nothing was changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import pytest

import boki.testing
from boki import MAX_SEQNUM, InvalidArgument, TooLarge, Trimmed, WrongType
from boki.libs.bokistore import Store, WrongShape
from boki.libs.bokistore.memory import Memory
from boki.libs.bokistore.reading import SAVE_AFTER
from boki.libs.bokistore.records import row_tag
from boki.libs.fold.outbox import Outbox
from tests.libs.bokiqueue.running import asynchronous


@asynchronous
async def test_a_wrong_shape_names_its_object() -> None:
    """However it is asked for, and in a transaction over several objects, too."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.object("x").set("", {"name": "Ada", "n": 1})
        x, then = store.object("x"), store.at(await store.object("x").version()).object("x")
        await x.get()
        works: list[Callable[[], Awaitable[Any]]] = [
            lambda: x.set("name.first", 1),
            lambda: x.get("name.first"),
            lambda: x.length("n"),
            lambda: then.get("name.first"),
            lambda: store.run(lambda txn: txn.object("x").get("name.first")),
            lambda: store.run(lambda txn: txn.object("x").increment("name")),
        ]
        for work in works:
            with pytest.raises(WrongShape, match=r"^object 'x': ") as refused:
                await work()
            assert refused.value.object == "x"
        with pytest.raises(TooLarge, match=r"^object 'x': .*1,000,000 bytes") as too_large:
            await x.set("big", "x" * 999_990)
        assert (too_large.value.object, too_large.value.limit) == ("x", 1_000_000)
        users = store.map("users")
        await users.set("ada", {"age": "old"})
        with pytest.raises(WrongShape, match=r"^map 'users': ada.age is text"):
            await users.increment("ada", "age")


@asynchronous
async def test_what_is_no_moment_and_no_fork_is_refused() -> None:
    """Before anything is appended."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.object("x").set("n", 1)
        await store.fork("trial")
        count = len((await ctx.logbook.read()).records)
        for time in (datetime.min, datetime.max, datetime, "now", -1):
            with pytest.raises(WrongType, match="time must be a datetime"):
                store.at(time=time)
        for at in (-1, MAX_SEQNUM + 1, 1 << 64, True, "1"):
            with pytest.raises(InvalidArgument, match="at must be a seqnum"):
                await store.fork("other", at=at)  # type: ignore[arg-type]
        for name in ("", "other", 5):
            with pytest.raises(InvalidArgument, match="has no fork"):
                await store.release(name)  # type: ignore[arg-type]
        assert len((await ctx.logbook.read()).records) == count
        await store.release("trial")
        await store.release("trial")


@asynchronous
async def test_text_that_is_none_and_lists_that_are_none_are_refused() -> None:
    """Lone surrogates, control characters in keys, and one str where several are due."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        users = store.map("users")
        for key in ("\ud800", "a\n"):
            with pytest.raises(InvalidArgument, match="key must be text of 1 to 200 bytes without control characters"):
                await store.object("x").increment("n", key=key)
        for work in (users.scan, store.objects):
            with pytest.raises(InvalidArgument, match="prefix must be text"):
                await work(prefix="\ud800")
        with pytest.raises(WrongType, match=r"keys must be a list, not one str: write keys=\['ada'\]"):
            await users.get_many("ada")
        with pytest.raises(WrongType, match="indexes must be a list, not int"):
            store.map("users", indexes=5)  # type: ignore[arg-type]
        with pytest.raises(TooLarge, match="at most 32 segments, not 33"):
            await users.set("ada", 1, path=["x"] * 32)
        with pytest.raises(WrongType, match="items must be a dict of items by key, not list"):
            await users.set_many(["ada"])  # type: ignore[arg-type]
        async with store.transaction() as txn:
            with pytest.raises(WrongType, match="tags must be a list, not one str"):
                txn.append(b"x", tags="audit")
        with pytest.raises(WrongType, match="tags must be a list, not one str"):
            Outbox(ctx.logbook).append(b"x", "audit")
        assert (await ctx.logbook.read()).records == []


@asynchronous
async def test_a_transaction_that_writes_too_much_is_told_so() -> None:
    """In its own words: to append in several calls would not be one transaction."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        with pytest.raises(TooLarge, match=r"a transaction may write at most 4,194,304 bytes in all.*: split it"):
            async with store.transaction() as txn:
                for number in range(5):
                    await txn.object(f"x{number}").set("", "x" * 900_000)
        assert (await ctx.logbook.read()).records == []


@asynchronous
async def test_a_fork_of_what_was_trimmed_is_not_changed() -> None:
    """Nor a fork of it: the object could not be read any more, and its outcome not be told."""
    async with boki.testing.context() as ctx:
        store, memory = Store(ctx), ctx.logbook.session.shared(Memory)
        await store.configure(history_s=0)
        for _ in range(SAVE_AFTER + 10):
            await store.object("x").increment("n")
        await memory.come_to_rest()
        memory.forget()
        [first, *_] = (await ctx.logbook.read(row_tag("x"))).records
        late = await store.fork("late", at=first.seqnum - 1)
        deeper = await late.fork("deeper")
        for fork in (late, deeper):
            for work in (
                lambda x: x.set("n", 1),
                lambda x: x.set("", {"n": 1}),
                lambda x: x.increment("n", key="once"),
                lambda x: x.get("n"),
            ):
                with pytest.raises(Trimmed, match="fork it as of then or later") as refused:
                    await work(fork.object("x"))
                assert refused.value.outcome == "not_applied"
            assert (await fork.way.logbook.read(row_tag("x"))).records == []
            assert await fork.object("y").increment("n") == 1
