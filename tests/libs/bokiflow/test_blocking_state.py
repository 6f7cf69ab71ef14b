"""State of `def` workflows: transactions, parts, children in them and the log mean the same as in `async def` ones."""

from __future__ import annotations

from typing import Any

import pytest

import boki.testing
from boki import InvalidArgument, WrongState
from boki.libs.bokiflow import step, workflow
from boki.libs.bokiflow.blocking import flow
from boki.libs.bokistore import ConflictError, Store
from tests.libs.bokiflow.crashes import World, after_each_death, after_each_loss


@step
async def interfere(name: str, value: int) -> int:
    await Store(step.ctx).object(name).set("", value, key=step.key)
    return value


@workflow
def transfer(amount: int) -> list[int]:
    with flow.store.transaction() as txn:
        txn.prefetch("a", "b")
        left = txn.object("a").increment("", -amount)
        right = txn.object("b").increment("", amount)
        txn.append(b"moved", ["audit"])
    with flow.store.transaction() as txn:
        total = txn.object("a").get() + txn.object("b").get()
    return [left, right, total]


async def test_transactions_commit_once_whatever_crashes() -> None:
    """Two objects, a record of the application, and the workflow's own record: all or none, once."""
    deaths = 0
    async for world, found in after_each_death(transfer, 3):
        deaths += 1
        assert found == [-3, 3, 0]
        async with boki.testing.context("test", log=world.log) as ctx:
            assert len((await ctx.logbook.read("audit")).records) == 1
            assert await Store(ctx).object("a").get() == -3
    assert deaths > 4


@workflow
def in_parts(_: int) -> list[Any]:
    with flow.store.transaction() as txn:
        txn.object("kept").set("", 1)
        try:
            with flow.store.transaction() as part:
                part.object("undone").set("", 1)
                part.append(b"undone", ["audit"])
                raise KeyError
        except KeyError:
            pass
        within = txn.object("undone").get("", None)
    try:
        with flow.store.transaction() as txn:
            txn.object("kept").set("", 2)
            raise KeyError
    except KeyError:
        pass
    records = flow.log.read("audit").records
    return [flow.store.read("kept"), within, flow.store.read("undone"), len(records), flow.log.last("audit")]


async def test_a_part_that_raises_is_undone_alone(each_mode: None) -> None:
    """Its writes and records, and no others; a whole transaction that raises has done nothing."""
    assert await World().run(in_parts, 0) == [1, None, None, 0, None]


@workflow
def conflicting(_: int) -> list[Any]:
    outcomes: list[Any] = []
    try:
        with flow.store.transaction() as txn:
            seen = txn.object("x").get("", 0)
            flow.run(interfere, "x", 7)
            txn.object("y").set("", seen)
    except ConflictError as error:
        outcomes.append(error.details["objects"])
    tries = 0

    @flow.store.transactional
    def work(txn: Any, name: str) -> int:
        nonlocal tries
        tries += 1
        seen: int = txn.object(name).get("", 0)
        if tries < 3:
            flow.run(interfere, name, seen + 1)
        txn.object("y").set("", seen)
        return seen

    return [*outcomes, work("x"), tries]


async def test_a_conflict_is_recorded_and_the_transaction_is_made_again(each_mode: None) -> None:
    """What has changed meanwhile ends it, with the objects named; `transactional` begins again as of then."""
    world = World()
    assert await world.run(conflicting, 0) == [["x"], 9, 3]
    assert await world.run(conflicting, 0) == [["x"], 9, 3]


@workflow
def take(what: str) -> int:
    left = flow.store.object(what).increment("", -1)
    with flow.store.transaction() as txn:
        txn.object("taken").increment([what])
    if left < -2:
        raise ValueError(what)
    return int(left)


@workflow
def trip(wanted: list[str]) -> list[int]:
    with flow.store.transaction() as txn:
        found = [flow.call(take, what) for what in wanted]
        txn.object("trips").increment("")
    return found


async def counts(ctx: boki.testing.Context, *names: str) -> list[Any]:
    return [await Store(ctx).object(name).get("", None) for name in names]


async def test_children_commit_with_their_parent(boki_context: boki.testing.Context, each_mode: None) -> None:
    """A `def` parent and `def` children: one write of each object, of all of them, or none if one fails."""
    ctx = boki_context
    assert await (await trip.start(ctx, ["room", "seat", "room"])).result() == [-1, -1, -2]
    assert await counts(ctx, "room", "seat", "taken", "trips") == [-2, -1, {"room": 2, "seat": 1}, 1]
    with pytest.raises(Exception, match="room"):
        await (await trip.start(ctx, ["seat", "room"])).result()
    assert await counts(ctx, "room", "seat", "taken", "trips") == [-2, -1, {"room": 2, "seat": 1}, 1]


async def test_both_or_neither_at_every_lost_append() -> None:
    """An append whose answer is lost is repeated by another execution, and counts once."""
    losses = 0
    async for ctx in after_each_loss():
        losses += 1
        assert await (await trip.start(ctx, ["room", "seat"])).result() == [-1, -1]
        assert await counts(ctx, "room", "seat", "trips") == [-1, -1, 1]
    assert losses > 10


@workflow
def adding(_: int) -> int:
    def add(n: int) -> int:
        with flow.store.transaction() as txn:
            txn.object("sum").increment("", n)
            flow.run(interfere, "other", n)  # the workflow runs meanwhile, outside of this transaction
            txn.object("last").set("", n)
        return int(flow.store.read("sum"))

    flow.on_update("add", add)
    with flow.store.transaction() as txn:
        txn.object("begun").set("", True)
        flow.wait_for(lambda: not flow.is_replaying)
    flow.receive("end")
    flow.wait_for(flow.all_handlers_finished)
    return int(flow.store.read("sum", default=0))


async def test_a_handler_has_transactions_of_its_own(boki_context: boki.testing.Context) -> None:
    """Each message has a thread: the block of one is not the block of another."""
    handle = await adding.start(boki_context, 0, id="a")
    assert await handle.update("add", 2) == 2
    assert await handle.update("add", 3) == 5
    await handle.signal("end")
    assert await handle.result() == 5
    assert await counts(boki_context, "begun", "last") == [True, 3]


@workflow
def misusing(what: str) -> str:
    try:
        match what:
            case "key":
                flow.store.object("x").set("", 1, key="k")
            case "ended":
                with flow.store.transaction() as txn:
                    txn.object("x").set("", 1)
                txn.object("x").set("", 2)
            case "continued":
                with flow.store.transaction() as txn:
                    txn.object("x").set("", 1)
                    flow.continue_as_new(what)
            case "page":
                flow.log.read("notes", limit=0)
    except (InvalidArgument, WrongState) as error:
        return type(error).__name__
    return "nothing"


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("key", "InvalidArgument"),
        ("ended", "WrongState"),
        ("continued", "WrongState"),
        ("page", "InvalidArgument"),
    ],
)
async def test_what_cannot_be_is_refused(
    what: str, error: str, boki_context: boki.testing.Context, each_mode: None
) -> None:
    """The same errors as in `async def` workflows."""
    assert await (await misusing.start(boki_context, what)).result() == error


@workflow
def spends(fails: bool) -> list[Any]:
    try:
        with flow.store.transaction() as txn:
            flow.store.object("a").increment("", -1)
            swapped = flow.store.cond_write("a", 5, expected=-1)
            seen = txn.object("a").get()
            if fails:
                raise KeyError
    except KeyError:
        return [flow.store.read("a", default=None)]
    return [swapped, seen, flow.store.read("a")]


async def test_the_store_inside_of_a_block_is_in_its_transaction(each_mode: None) -> None:
    """As in an `async def` workflow."""
    assert await World().run(spends, True) == [None]
    assert await World().run(spends, False) == [True, 5, 5]


async def test_it_is_for_def_workflows() -> None:
    """Outside of one it says where it belongs."""
    with pytest.raises(InvalidArgument, match="outside of a workflow"):
        flow.store.read("x")
    with pytest.raises(InvalidArgument, match="outside of a workflow"):
        flow.log.read("x")
    with pytest.raises(InvalidArgument, match="outside of a workflow"), flow.store.transaction():
        pass
