"""Transactions that commit together with the ack of a message, or with whatever else is in an outbox."""

from __future__ import annotations

import asyncio

import pytest

import boki.testing
from boki import ConditionFailed, Context, InvalidArgument, WrongState
from boki.libs.bokiqueue import Queue
from boki.libs.bokistore import Store
from boki.libs.bokistore.records import UNKNOWN_AUTHOR, signed, write_records
from boki.libs.bokistore.updates import Set
from boki.libs.bokistore.views import OWN_STREAK
from boki.libs.fold.outbox import Outbox
from tests.libs.bokiqueue.running import asynchronous


async def _add_up(ctx: Context, orders: Queue[int], turns: int = 0) -> int:
    """Add the messages to the object "sum", until none is left to take; how many commits were refused."""
    refused = 0
    while (message := await orders.lease(60)) is not None:
        try:
            async with orders.process(message) as out, Store(ctx).transaction(outbox=out) as txn:
                total = await txn.object("sum").get("n", 0)
                for _ in range(1 + turns):
                    await asyncio.sleep(0)
                await txn.object("sum").set("n", total + message.value)
                await txn.object("seen").append("all", message.value)
        except ConditionFailed:
            refused += 1
    return refused


@pytest.mark.parametrize("turns", range(5))
@asynchronous
async def test_a_message_takes_effect_on_objects_exactly_once(turns: int) -> None:
    """With its ack, all or none: where the transaction would conflict, the message comes again.

    Without a maximum of deliveries, since one message may lose to all others, one after another.
    """
    async with boki.testing.context() as ctx:
        orders: Queue[int] = Queue(ctx.logbook, "orders", type=int)
        await orders.create(max_deliveries=0)
        await orders.push_many(range(1, 21))
        refused = await asyncio.gather(*(_add_up(ctx, orders, turns) for _ in range(3)))
        values = await Store(ctx).object("sum").get("n"), await Store(ctx).object("seen").get("all")
        assert (values[0], sorted(values[1])) == (sum(range(1, 21)), list(range(1, 21)))
        assert sum(refused) > 0


@asynchronous
async def test_a_message_that_conflicts_too_often_is_a_dead_letter_and_took_no_effect() -> None:
    """Each message has taken effect or is a dead letter, never both; a redrive makes up for the rest."""
    async with boki.testing.context() as ctx:
        seen = Store(ctx).object("seen")
        orders: Queue[int] = Queue(ctx.logbook, "orders", type=int)
        await orders.create(max_deliveries=1)
        await orders.push_many(range(1, 21))
        refused = await asyncio.gather(*(_add_up(ctx, orders) for _ in range(3)))
        dead = [int(letter.data) for letter in await orders.dead_letters()]
        assert len(dead) == sum(refused) > 0
        assert sorted(await seen.get("all") + dead) == list(range(1, 21))
        await orders.redrive()
        assert await _add_up(ctx, orders) == 0
        assert sorted(await seen.get("all")) == list(range(1, 21))


@asynchronous
async def test_what_commits_with_an_outbox_is_no_guess() -> None:
    """Others have changed an object that was this process's own: nothing is decided by the old version, neither what
    the block concludes outside of the transaction, nor the fate of the message.
    """
    async with boki.testing.context() as ctx:
        stock = Store(ctx).object("stock")
        orders: Queue[int] = Queue(ctx.logbook, "orders", type=int)
        await orders.create(max_deliveries=1)
        await orders.push(10)
        for _ in range(OWN_STREAK):
            await stock.increment("tea")
        changed = [("stock", [Set(("tea",), b"99")])]
        [written] = write_records(changed, b"another process", signed(UNKNOWN_AUTHOR), is_transaction=False)
        await ctx.logbook.append(written.data, tags=written.tags)
        message = await orders.lease(60)
        assert message is not None
        async with orders.process(message) as out:
            async with Store(ctx).transaction(outbox=out) as txn:
                left = await txn.object("stock").increment("tea", -message.value)
            assert left == 89
        assert await stock.get("tea") == 89


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


@asynchronous
async def test_an_outbox_of_another_book_is_refused() -> None:
    """It would append what the transaction writes to that book, where none of it was read."""
    async with boki.testing.context() as ctx:
        other = Store(ctx.logbook_named("other"))
        out = Outbox(ctx.logbook)
        with pytest.raises(InvalidArgument, match="outbox is of book 'test', and the store of book 'other'"):
            async with other.transaction(outbox=out) as txn:
                await txn.object("x").set("n", 1)
        await out.commit()
        assert await Store(ctx).objects() == await other.objects() == []


@asynchronous
async def test_a_repetition_of_a_group_does_not_count_twice_here() -> None:
    """It has read what the first one has made, and writes that much again: the process knows what the log says."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.object("x").set("", 10)
        for _ in range(2):
            out = Outbox(ctx.logbook)
            async with store.transaction(outbox=out) as txn:
                await txn.object("x").increment("", -3)
            await out.commit(key="k")
            assert await store.object("x").get() == 7
