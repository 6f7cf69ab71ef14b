"""Transactions that commit together with the ack of a message, or with whatever else is in an outbox."""

from __future__ import annotations

import asyncio

import pytest

import boki.testing
from boki import ConditionFailed, InvalidArgument, WrongState
from boki.libs.bokiqueue import Queue
from boki.libs.bokistore import Store
from boki.libs.fold.outbox import Outbox
from tests.libs.bokiqueue.running import asynchronous


@asynchronous
async def test_a_message_takes_effect_on_objects_exactly_once() -> None:
    """With its ack, all or none: where the transaction would conflict, the message comes again."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        orders: Queue[int] = Queue(ctx.logbook, "orders", type=int)
        await orders.push_many(range(1, 21))

        async def work() -> int:
            refused = 0
            while (message := await orders.lease(60)) is not None:
                try:
                    async with orders.process(message) as out, Store(ctx).transaction(outbox=out) as txn:
                        total = await txn.object("sum").get("n", 0)
                        await asyncio.sleep(0)
                        await txn.object("sum").set("n", total + message.value)
                        await txn.object("seen").append("all", message.value)
                except ConditionFailed:
                    refused += 1
            return refused

        refused = await asyncio.gather(*(work() for _ in range(3)))
        assert await store.object("sum").get("n") == sum(range(1, 21))
        seen = await store.object("seen").get("all")
        assert sorted(seen) == list(range(1, 21))
        assert sum(refused) > 0


@asynchronous
async def test_a_block_that_raises_leaves_nothing() -> None:
    """Neither the write nor the ack."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        orders: Queue[int] = Queue(ctx.logbook, "orders", type=int)
        await orders.push(1)
        message = await orders.lease(60)
        assert message is not None
        with pytest.raises(ZeroDivisionError):
            async with orders.process(message) as out:
                async with store.transaction(outbox=out) as txn:
                    await txn.object("x").set("n", 1)
                raise ZeroDivisionError
        assert await store.object("x").get() is None
        again = await orders.lease(60)
        assert again is not None
        assert again.value == 1


@asynchronous
async def test_reads_are_conditions_of_the_group() -> None:
    """Also of a transaction that wrote nothing; and what was committed is known without a read."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        for changed in (False, True):
            out = Outbox(ctx.logbook)
            out.append(b"decided", ["audit"])
            async with store.transaction(outbox=out) as txn:
                await txn.object("x").get("n")
                await txn.object("y").increment("n")
            if changed:
                await store.object("x").set("n", 1)
                with pytest.raises(ConditionFailed):
                    await out.commit()
            else:
                await out.commit()
            assert await store.object("y").get("n") == 1
        assert len((await ctx.logbook.read("audit")).records) == 1


@asynchronous
async def test_what_an_outbox_does_not_take() -> None:
    """Two transactions of one object, of which one would not see the other; a key; a part of another transaction."""
    async with boki.testing.context() as ctx:
        store, out = Store(ctx), Outbox(ctx.logbook)
        async with store.transaction(outbox=out) as txn:
            await txn.object("x").increment("n")
        async with store.transaction(outbox=out) as txn:
            await txn.object("y").increment("n")
        with pytest.raises(WrongState, match="object 'x' is in another transaction"):
            async with store.transaction(outbox=out) as txn:
                await txn.object("x").increment("n")
        with pytest.raises(InvalidArgument, match="key"):
            store.transaction(outbox=out, key="k")
        async with store.transaction():
            with pytest.raises(InvalidArgument, match="outer"):
                async with store.transaction(outbox=out):
                    pass
        await out.commit()
        assert (await store.object("x").get("n"), await store.object("y").get("n")) == (1, 1)
