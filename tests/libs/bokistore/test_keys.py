"""Transactions under a key: committed once, and a repetition decides as the first one did."""

from __future__ import annotations

import asyncio
import contextvars
from functools import partial
from typing import Any

import pytest

import boki.testing
from boki import KeyReused
from boki.libs.bokistore import Store, Transaction
from boki.libs.bokistore.refusals import UsedBefore
from tests.libs.bokiqueue.running import asynchronous


@asynchronous
async def test_a_transaction_under_a_key_is_committed_once() -> None:
    """A repetition sees what the first has seen, and changes nothing; what writes something else is refused."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.object("a").set("n", 10)

        async def pay(amount: int, key: str) -> int:
            async with store.transaction(key=key) as txn:
                left: int = await txn.object("a").increment("n", -amount)
                await txn.object("b").increment("n", amount)
            return left

        assert await pay(3, "one") == 7
        await store.object("a").set("n", 100)
        assert await pay(3, "one") == 7
        assert (await store.object("a").get("n"), await store.object("b").get("n")) == (100, 3)
        with pytest.raises(KeyReused, match="'one'"):
            await pay(4, "one")
        assert await pay(4, "two") == 96

        async def work(txn: Transaction) -> Any:
            return await txn.object("a").increment("n")

        results = await asyncio.gather(*(store.run(work, key="three") for _ in range(5)))
        assert set(results) == {97}
        assert await store.object("a").get("n") == 97


@asynchronous
async def test_a_repetition_decides_as_the_first_did_whatever_has_become_of_it() -> None:
    """Where the same work would be refused by now, or would write nothing: `run` looks before it says so."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.object("a").set("n", 10)

        async def withdraw_all(txn: Transaction) -> int:
            amount: int = await txn.object("a").get("n")
            if amount == 0:
                raise ValueError("there is nothing")
            await txn.object("a").set("n", 0)
            return amount

        async def claim(txn: Transaction) -> bool:
            if await txn.object("prize").exists():
                return False
            await txn.object("prize").set("winner", 1)
            return True

        for _ in range(3):
            assert await store.run(withdraw_all, key="w") == 10
            assert await store.run(claim, key="c") is True
        with pytest.raises(ValueError, match="nothing"):
            await store.run(withdraw_all, key="other")
        assert await store.run(claim, key="another") is False
        records = (await ctx.logbook.read()).records
        assert len(records) == 3


@asynchronous
async def test_a_key_of_records_alone_is_known_for_its_own() -> None:
    """A repetition that would write an object, other records or more of them decides as the first one did."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.object("x").set("n", 5)

        async def transfer(txn: Transaction) -> str:
            balance = await txn.object("x").get("n")
            if balance < 10:
                txn.append(b"refused", ["audit"])
                return "refused"
            if balance < 100:
                await txn.object("x").increment("n", -10)
                await txn.object("y").increment("n", 10)
            txn.append(b"transferred", ["audit"])
            txn.append(b"thanks", ["audit"])
            return "transferred"

        assert await store.run(transfer, key="k") == "refused"
        for balance in (50, 500, 6):
            await store.object("x").set("n", balance)
            assert await store.run(transfer, key="k") == "refused"
            assert await store.object("x").get("n") == balance
        assert await store.object("y").get() is None
        assert [record.data for record in (await ctx.logbook.read("audit")).records] == [b"refused"]


@asynchronous
async def test_two_repetitions_at_once_are_one_transaction() -> None:
    """The second one to commit had begun before the key was used: it is told so, and nothing is taken for its own."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        with pytest.raises(UsedBefore):
            async with store.transaction(key="k") as late:
                await late.object("x").set("n", 1)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(_note(store, "k"), context=contextvars.Context())
        assert await store.object("x").get() is None


@asynchronous
async def test_a_repetition_finds_the_map_that_the_first_has_made() -> None:
    """So it does not make it again, and is the same work all the same; with other items it is not."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)

        async def work(txn: Transaction, city: str = "Rome") -> int:
            people = txn.map("m", indexes=["city"])
            await people.set("a", {"city": city})
            return await people.increment("a", "n")

        for _ in range(2):
            assert await store.run(work, key="k") == 1
        with pytest.raises(KeyReused):
            await store.run(partial(work, city="Oslo"), key="k")
        assert await store.map("m", indexes=["city"]).where("city", "Rome") == [("a", {"city": "Rome", "n": 1})]


async def _note(store: Store, key: str) -> None:
    async with store.transaction(key=key) as txn:
        txn.append(b"noted", ["audit"])
