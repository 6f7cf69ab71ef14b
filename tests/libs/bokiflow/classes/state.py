"""Keyed state, locks and transactions: read as of a position, written once, taken in turns, all or none."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import pytest

from boki import FunctionFailed
from boki.libs.bokiflow import LockLost, WouldDeadlock, flow, step, workflow
from boki.libs.bokiflow.locks import watching
from boki.libs.bokistore import ConflictError, Store
from boki.testing import Context
from tests.libs.bokiflow.classes import DONE, case, do, done, ended_as, result_of, until


@step
async def other_writes(name: str, value: int) -> int:
    """Something else changes an object meanwhile."""
    await Store(step.ctx).object(name).set("", value, key=step.key)
    return value


async def values(ctx: Context, *names: str) -> list[Any]:
    """Objects of the LogBook as they are now."""
    return [await Store(ctx).object(name).get("", None) for name in names]


@workflow
async def visitor(order: dict[str, Any]) -> int:
    """Takes the lock, counts itself by a read and a write with time in between, and leaves it."""
    async with flow.lock("room") as held:
        await do(f"{flow.id} in")
        seen = await flow.store.read("visits", default=0)
        await flow.sleep(order.get("stay_s", 5))
        if order.get("fails"):
            raise ValueError("it fails inside")
        await flow.store.write("visits", seen + 1)
        await do(f"{flow.id} out")
    return held.token


@case("Halfmoon: reads without log records are made at the cursor")
async def a_replay_reads_what_was_read(ctx: Context) -> None:
    @workflow
    async def reading() -> list[int]:
        seen = [await flow.store.read("x", default=0)]
        await other_writes("x", 1)
        seen.append(await flow.store.read("x"))
        await flow.store.write("x", 2)
        seen.append(await flow.store.read("x"))
        await flow.sleep(10)
        seen.append(await flow.store.read("x"))
        seen.append(await flow.store.object("x").increment("", 10))
        return seen

    handle = await reading.start(ctx)
    await ctx.clock.advance(5)
    await Store(ctx).object("x").set("", 50)
    assert await handle.result() == [0, 1, 2, 50, 60]
    assert await values(ctx, "x") == [60]


@case("Beldi: exactly-once conditional write")
async def one_of_several_conditional_writes_counts(ctx: Context) -> None:
    @workflow
    async def claim(who: str) -> bool:
        won = await flow.store.cond_write("seat", who, expected=None)
        await flow.sleep(1)
        again = await flow.store.cond_write("seat", who, expected=None)
        assert not again
        return won

    handles = [await claim.start(ctx, f"n{number}") for number in range(4)]
    won = [await handle.result() for handle in handles]
    assert won.count(True) == 1
    assert await values(ctx, "seat") == [f"n{won.index(True)}"]


@case("Restate StatePatching; lost updates")
async def increments_of_several_workflows_all_count(ctx: Context) -> None:
    @workflow
    async def counting() -> None:
        for _ in range(2):
            await asyncio.gather(*(flow.store.object("n").increment("") for _ in range(2)))
            await do(flow.id)

    handles = [await counting.start(ctx, id=str(number)) for number in range(3)]
    for handle in handles:
        await handle.result()
    assert await values(ctx, "n") == [12]
    assert done() == {str(number): 2 for number in range(3)}


@case("Beldi twopl.go: Lock")
async def a_lock_has_one_holder_at_a_time(ctx: Context) -> None:
    handles = []
    for number in range(4):
        handles.append(await visitor.start(ctx, {}, id=f"n{number}"))
        await ctx.clock.advance(1)
    tokens = [await handle.result() for handle in handles]
    assert tokens == sorted(set(tokens)), "higher for each later holder"
    assert list(DONE.values()) == [f"n{number} {way}" for number in range(4) for way in ("in", "out")]
    assert await values(ctx, "visits") == [4]


@case("durabletask entities: a failure unlocks")
async def a_lock_is_left_however_its_workflow_ends(ctx: Context) -> None:
    orders = {"fails": {"fails": True}, "cancel": {"stay_s": 200}, "kill": {"stay_s": 200}, "last": {}}
    handles = {}
    for way, order in orders.items():
        handles[way] = await visitor.start(ctx, order, id=way)
        await ctx.clock.advance(1)
    assert await ended_as(handles["fails"]) == "ValueError"
    for way in ("cancel", "kill"):
        await until(ctx, lambda way=way: f"{way} in" in done())  # type: ignore[misc]
        await (handles[way].cancel() if way == "cancel" else handles[way].kill())
    assert await handles["last"].result() > 0
    assert await values(ctx, "visits") == [1]


@case("hatchet#2432: a queue behind what was killed while it waited")
async def a_waiter_that_gives_up_holds_up_nothing(ctx: Context) -> None:
    @workflow
    async def impatient() -> str:
        try:
            async with asyncio.timeout(5), flow.lock("room"):
                return "inside"
        except TimeoutError:
            return await do("gave up")

    handles = [await visitor.start(ctx, {"stay_s": 30}, id="n0")]
    await ctx.clock.advance(1)
    gives_up = await impatient.start(ctx)
    await ctx.clock.advance(1)
    handles += [await visitor.start(ctx, {}, id=f"n{number}") for number in (1, 2)]
    await ctx.clock.advance(1)
    await handles[1].kill()
    assert await gives_up.result() == "gave up"
    assert await handles[0].result() < await handles[2].result()
    assert await values(ctx, "visits") == [2]


@case("Kleppmann: fencing tokens; boki.md 7.1", crashes=False)
async def what_a_former_holder_writes_is_refused(ctx: Context) -> None:
    """The watch over the holder errs: it takes it for ended. The log's condition is what protects the store then."""

    @workflow
    async def former() -> str:
        async with flow.lock("room"):
            await do("former in")
            await flow.sleep(30)
            try:
                await flow.store.write("visits", 100)
            except LockLost:
                return await do("lost")
        return ""

    async def gone(*_: object) -> bool:
        return True

    handle = await former.start(ctx)
    await until(ctx, lambda: bool(done()))
    with patch.object(watching, "_has_ended", gone):
        other = await visitor.start(ctx, {}, id="other")
        await ctx.clock.advance(10)
    assert await other.result() > 0
    assert await handle.result() == "lost"
    assert await values(ctx, "visits") == [1]


@workflow
async def two_locks(order: list[str]) -> list[str]:
    """Takes both locks in this order, and again from the beginning if it would deadlock."""
    refused = []
    while True:
        try:
            async with flow.lock(order[0]):
                await flow.sleep(5)
                async with flow.lock(order[1]):
                    await flow.store.object("done").increment("")
                    return refused
        except WouldDeadlock as error:
            refused.append(f"{error.details['held']} before {error.details['key']}")
            await flow.sleep(1)


@case("wait-die, wound-wait: locks that are taken crosswise")
async def locks_that_are_taken_crosswise_do_not_deadlock(ctx: Context) -> None:
    older = await two_locks.start(ctx, ["a", "b"])
    await ctx.clock.advance(1)
    younger = await two_locks.start(ctx, ["b", "a"])
    ring = [await two_locks.start(ctx, [f"k{n}", f"k{(n + 1) % 4}"]) for n in range(4)]
    assert await older.result() == []
    assert await younger.result() == ["b before a"]
    assert any([await handle.result() for handle in ring])
    assert await values(ctx, "done") == [6]


@workflow
async def transfer(order: list[Any]) -> int:
    """Moves an amount from one account to another, and refuses what is not there."""
    source, target, amount = order

    async def move(txn: Any) -> int:
        left: int = await txn.object(source).increment("", -amount)
        if left < 0:
            raise ValueError("not enough")
        await flow.sleep(1)
        await txn.object(target).increment("", amount)
        txn.append(b"moved", ["audit"])
        return left

    found: int = await flow.store.run(move)
    await do(f"{source} to {target}")
    return found


@case("DynamoDB TransactWriteItems (Alternator test_transact.py): all or none")
async def a_transaction_is_made_once_over_all_its_keys(ctx: Context) -> None:
    for name in "abc":
        await Store(ctx).object(name).set("", 10)
    orders = [["a", "b", 7], ["b", "c", 7], ["c", "a", 7], ["a", "b", 100]]
    handles = [await transfer.start(ctx, order, id=str(number)) for number, order in enumerate(orders)]
    assert [await ended_as(handle) for handle in handles].count("ValueError") == 1
    assert await values(ctx, *"abc") == [10, 10, 10]
    assert len((await ctx.logbook.read("audit")).records) == 3
    assert done() == {f"{source} to {target}": 1 for source, target, _ in orders[:3]}


@case("Hermitage g2-item: write skew")
async def what_a_transaction_has_read_holds_when_it_commits(ctx: Context) -> None:
    @workflow
    async def on_leave(order: list[str]) -> str:
        me, other = order

        async def leave(txn: Any) -> bool:
            if not await txn.object(other).get():
                return False
            await flow.sleep(5)
            await txn.object(me).set("", False)
            return True

        return "leaves" if await flow.store.run(leave) else "stays"

    for name in ("ada", "bob"):
        await Store(ctx).object(name).set("", True)
    handles = [await on_leave.start(ctx, order) for order in (["ada", "bob"], ["bob", "ada"])]
    assert sorted([await handle.result() for handle in handles]) == ["leaves", "stays"]
    assert sorted(await values(ctx, "ada", "bob")) == [False, True]


@workflow
async def looks(name: str) -> bool:
    """Only reads."""
    found: bool = await flow.store.read(name)
    return found


@case("Hermitage g2-item, through a called workflow")
async def what_a_called_workflow_has_read_holds_when_its_parent_commits(ctx: Context) -> None:
    @workflow
    async def on_leave(order: list[str]) -> bool:
        me, other = order

        async def leave(txn: Any) -> bool:
            is_covered: bool = await flow.call(looks, other)
            await flow.sleep(5)
            if is_covered:
                await txn.object(me).set("", False)
            return is_covered

        return await flow.store.run(leave)

    for name in ("ada", "bob"):
        await Store(ctx).object(name).set("", True)
    handles = [await on_leave.start(ctx, order) for order in (["ada", "bob"], ["bob", "ada"])]
    assert sorted([await handle.result() for handle in handles]) == [False, True]
    assert sorted(await values(ctx, "ada", "bob")) == [False, True]


@case("FoundationDB: a conflict is a write to the read set; recorded as a step is")
async def a_conflict_is_an_outcome(ctx: Context) -> None:
    @workflow
    async def conflicting() -> list[Any]:
        try:
            async with flow.store.transaction() as txn:
                seen = await txn.object("x").get("", 0)
                await other_writes("x", 7)
                await txn.object("y").set("", seen)
        except ConflictError as error:
            await flow.sleep(10)
            return [error.details["objects"], await flow.store.read("y")]
        return []

    assert await result_of(ctx, conflicting) == [["x"], None]
    assert await values(ctx, "x", "y") == [7, None]


@workflow
async def take(what: str) -> int:
    """Takes one of those that are left: by itself, or in the transaction of its parent."""
    left: int = await flow.store.object(what).get("", 0)
    if left < 1:
        raise LookupError(what)
    await flow.store.object(what).set("", left - 1)
    return await flow.store.object("taken").increment([what])


@workflow
async def trip(what: list[str]) -> list[int]:
    """All of it, or nothing."""

    async def book(_: Any) -> list[int]:
        return [await flow.call(take, each) for each in what]

    return list(await flow.store.run(book))


@case("Boki 7.1, Beldi: transactions across functions, travel reservation")
async def called_workflows_commit_with_their_parent(ctx: Context) -> None:
    await Store(ctx).object("hotel").set("", 2)
    await Store(ctx).object("flight").set("", 9)
    handles = [await trip.start(ctx, ["hotel", "flight"], id=str(number)) for number in range(4)]
    found = [await ended_as(handle) for handle in handles]
    assert sum(isinstance(each, list) for each in found) == 2, found
    assert await values(ctx, "hotel", "flight", "taken") == [0, 7, {"hotel": 2, "flight": 2}]


@case("Restate setStateThenFailShouldPersistState: decided the other way for transactions")
async def a_called_workflow_that_fails_leaves_nothing(ctx: Context) -> None:
    await Store(ctx).object("hotel").set("", 1)
    with pytest.raises(FunctionFailed, match="flight"):
        await result_of(ctx, trip, ["hotel", "flight"])
    assert await values(ctx, "hotel", "flight", "taken") == [1, None, None]

    @workflow
    async def stubborn() -> None:
        async with flow.store.transaction() as txn:
            with suppress(FunctionFailed):
                await flow.call(take, "flight")
            await txn.object("trips").increment("")

    with pytest.raises(FunctionFailed, match="cannot commit, because take failed in it"):
        await result_of(ctx, stubborn)
    assert await values(ctx, "trips") == [None]


@case("boki.md 7.1: the published commit forgets read locks")
async def what_was_only_read_is_free_again(ctx: Context) -> None:
    @workflow
    async def looking(way: str) -> int:
        async with flow.store.transaction() as txn:
            seen: int = await txn.object("x").get("", 0)
            await flow.call(looking_child)
        if way == "lock":
            async with flow.lock("x"):
                seen = await flow.store.read("x")
        await do(f"looked {way}")
        await flow.receive("go")
        if way == "fails":
            raise ValueError(way)
        return seen

    @workflow
    async def looking_child() -> int:
        found: int = await flow.store.read("x", default=0)
        return found

    @workflow
    async def writing() -> int:
        async with asyncio.timeout(20), flow.lock("x"), flow.store.transaction() as txn:
            return int(await txn.object("x").increment(""))

    await Store(ctx).object("x").set("", 1)
    for number, way in enumerate(("reads", "lock", "fails")):
        handle = await looking.start(ctx, way)
        await until(ctx, lambda way=way: f"looked {way}" in done())  # type: ignore[misc]
        assert await result_of(ctx, writing) == number + 2, "while that one has not ended"
        await handle.signal("go")
        assert await ended_as(handle) == ("ValueError" if way == "fails" else number + 1)
