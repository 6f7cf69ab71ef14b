"""State of workflows: reads without records, writes once, transactions, whatever crashes."""

from __future__ import annotations

import asyncio
from os import urandom
from typing import Any
from unittest.mock import patch

import pytest

import boki.testing
from boki import BokiError, InvalidArgument, WrongState
from boki.api.function import Function
from boki.libs.bokiflow import flow, step, workflow
from boki.libs.bokiflow.blocking import flow as blocking_flow
from boki.libs.bokiflow.keeping import Keeper
from boki.libs.bokiflow.storing import FlowTransaction
from boki.libs.bokistore import ConflictError, Store, memory
from boki.libs.bokistore.records import ORIGIN
from boki.libs.bokistore.views import OWN_STREAK
from boki.log.operations import Answer, Appended, Compare, Operation
from tests.libs.bokiflow.crashes import (
    DyingLog,
    World,
    after_each_death,
    in_run,
)


@step
async def other_writes(name: str, value: int) -> int:
    """Somebody else changes an object meanwhile."""
    await Store(step.ctx).object(name).set("", value, key=step.key)
    return value


async def in_book(world: World, name: str) -> Any:
    """An object of the world's book."""
    async with boki.testing.context("test", log=world.log) as ctx:
        return await Store(ctx).object(name).get()


@workflow
async def ten_reads_and_a_write(n: int) -> int:
    total = n
    for number in range(10):
        total += await flow.store.read(f"in:{number}", default=number)
    await flow.store.write("out", total)
    return total


async def test_ten_reads_and_one_write_are_one_append() -> None:
    """With the acceptance of the call and its end three: the end of the journal leaves in one batch with the latter."""
    world = World()
    assert await world.run(ten_reads_and_a_write, 5) == 50
    assert world.log.append_count == 1
    assert await in_book(world, "out") == 50


@workflow
async def reads_around_others(_: int) -> list[int]:
    seen = [await flow.store.read("x", default=0)]
    await other_writes("x", 1)
    seen.append(await flow.store.read("x"))
    seen += await asyncio.gather(*(flow.store.read("x") for _ in range(3)))
    await flow.store.write("x", 2)
    seen.append(await flow.store.read("x"))
    assert await flow.store.cond_write("x", 3, expected=2)
    assert not await flow.store.cond_write("x", 4, expected=2)
    seen.append(await flow.store.object("x").increment("", 10))
    return seen


async def test_reads_see_what_was_written_before_and_a_replay_reads_the_same(each_mode: None) -> None:
    """A position is that of the last step; what others write later is not there, however often it is replayed."""
    world = World()
    wanted = [0, 1, 1, 1, 1, 2, 13]
    assert await world.run(reads_around_others, 0) == wanted
    async with boki.testing.context("test", log=world.log) as ctx:
        await Store(ctx).object("x").set("", 99)
    assert await world.run(reads_around_others, 0) == wanted
    assert await in_book(world, "x") == 99


async def test_writes_are_made_once_whatever_crashes() -> None:
    """At every append, in the log or not, and at every boundary: the same result, and the same state."""
    async for world, found in after_each_death(reads_around_others, 0):
        assert found == [0, 1, 1, 1, 1, 2, 13]
        assert await in_book(world, "x") == 13


@workflow
async def transfer(amount: int) -> list[int]:
    async with flow.store.transaction() as txn:
        left = await txn.object("a").increment("", -amount)
        right = await txn.object("b").increment("", amount)
        txn.append(b"moved", ["audit"])
    async with flow.store.transaction() as txn:
        total = await txn.object("a").get() + await txn.object("b").get()
    return [left, right, total]


async def test_transactions_commit_once_whatever_crashes() -> None:
    """Two objects, a record of the application, and the workflow's own record: all or none, once."""
    async for world, found in after_each_death(transfer, 3):
        assert found == [-3, 3, 0]
        async with boki.testing.context("test", log=world.log) as ctx:
            assert len((await ctx.logbook.read("audit")).records) == 1
            assert await Store(ctx).object("a").get() == -3


@workflow
async def sharing(uses: str) -> str:
    has_begun, is_used = asyncio.Event(), asyncio.Event()

    async def part() -> None:
        async with flow.store.transaction() as txn:
            await txn.object("a").set("", 1)
            has_begun.set()
            await is_used.wait()
            raise KeyError

    async def other() -> None:
        await has_begun.wait()
        if uses:
            async with flow.store.transaction() as txn:
                await txn.object("b").set("", 1)
        is_used.set()

    try:
        async with flow.store.transaction() as txn:
            await txn.object("c").set("", 1)
            await asyncio.gather(part(), other(), return_exceptions=True)
    except WrongState as error:
        return error.message
    return "committed"


async def test_a_part_that_raises_is_undone_alone_or_nothing_commits(each_mode: None) -> None:
    """What another task has written meanwhile would be undone with it."""
    world = World()
    assert "while another task used" in await world.run(sharing, "uses")
    assert [await in_book(world, name) for name in "abc"] == [None, None, None]
    world = World()
    assert await world.run(sharing, "") == "committed"
    assert [await in_book(world, name) for name in "abc"] == [None, None, 1]


@workflow
async def conflicting(_: int) -> list[Any]:
    outcomes: list[Any] = []
    try:
        async with flow.store.transaction() as txn:
            seen = await txn.object("x").get("", 0)
            await other_writes("x", 7)
            await txn.object("y").set("", seen)
    except ConflictError as error:
        outcomes.append(error.details["objects"])
    tries = 0

    async def work(txn: Any) -> int:
        nonlocal tries
        tries += 1
        seen: int = await txn.object("x").get("", 0)
        if tries < 3:
            await other_writes("x", seen + 1)
        await txn.object("y").set("", seen)
        return seen

    outcomes += [await flow.store.run(work), tries]
    return outcomes


async def test_a_conflict_is_recorded_and_the_transaction_is_made_again(each_mode: None) -> None:
    """What has changed meanwhile ends it, with the objects named; `run` begins again as of then."""
    world = World()
    assert await world.run(conflicting, 0) == [["x"], 9, 3]
    assert await world.run(conflicting, 0) == [["x"], 9, 3]
    assert await in_book(world, "y") == 9


@workflow
async def counting(name: str) -> int:
    for _ in range(5):
        await asyncio.gather(*(flow.store.object(name).increment("") for _ in range(2)))
    found: int = await flow.store.read(name)
    return found


async def test_workflows_that_write_one_object_lose_nothing(each_mode: None) -> None:
    """What was refused because others were faster is made again."""
    async with boki.testing.context() as ctx:
        handles = [await counting.start(ctx, "n", id=str(n)) for n in range(4)]
        assert max([await handle.result() for handle in handles]) == 40
        versions = [version async for version in Store(ctx).history("n")]
        assert len({version.step for version in versions}) == 40


@workflow
async def strange(what: str) -> str:
    try:
        match what:
            case "shape":
                await flow.store.write("text", "a")
                await flow.store.object("text").set("b.c", 1)
            case "key":
                await flow.store.object("x").set("", 1, key="k")
            case "name":
                await flow.store.read("a b")
            case "ended":
                async with flow.store.transaction() as txn:
                    await txn.object("x").set("", 1)
                await txn.object("x").set("", 2)
    except BokiError as error:
        return f"{type(error).__name__}"
    return "nothing"


@pytest.mark.parametrize(
    ("what", "error"),
    [("shape", "WrongShape"), ("key", "InvalidArgument"), ("name", "InvalidArgument"), ("ended", "WrongState")],
)
async def test_what_cannot_be_is_refused_in_each_replay_alike(what: str, error: str, each_mode: None) -> None:
    """A definite error, and nothing changed."""
    async with boki.testing.context() as ctx:
        assert await (await strange.start(ctx, what)).result() == error


async def test_state_is_for_workflows() -> None:
    """Outside of one there is no position to read at."""
    with pytest.raises(InvalidArgument, match="outside of a workflow"):
        await flow.store.read("x")


@workflow
async def following(_: int) -> list[Any]:
    flow.on_query("x", lambda _: seen)
    seen = [await flow.store.read("x", default=0)]
    await flow.receive("go")
    seen.append(await flow.store.read("x", default=0))
    page = await flow.log.read("notes")
    last = await flow.log.last("notes")
    return [*seen, [record.data.decode() for record in page.records], last.data.decode() if last else None]


async def test_a_message_moves_the_position_to_itself(each_mode: None) -> None:
    """So a workflow sees what the sender had written before; also records of its LogBook. Queries replay the same."""
    async with boki.testing.context() as ctx:
        handle = await following.start(ctx, 0, id="f")
        await ctx.clock.advance(5)
        assert await handle.query("x") == [0]
        await Store(ctx).object("x").set("", 5)
        await ctx.logbook.append(b"one", ["notes"])
        assert await handle.query("x") == [0]
        await handle.signal("go")
        assert await handle.result() == [0, 5, ["one"], "one"]


@workflow
async def late_reader(_: int) -> list[int]:
    found = []
    for value in range(3):
        await other_writes("x", value)
        await other_writes("z", value)
        await flow.sleep(1)
        found.append(await flow.store.read("x"))
    return found


async def test_a_read_long_after_the_last_event_is_answered(each_mode: None) -> None:
    """The record that it reads as of has been durable for a while, or is on its way."""
    assert await World().run(late_reader, 0) == [0, 1, 2]


@workflow
def plain(_: int) -> list[Any]:
    blocking_flow.store.write("p", 1)
    swapped = blocking_flow.store.cond_write("p", 2, expected=1)
    return [blocking_flow.store.read("p"), swapped, blocking_flow.store.read("q", default=0)]


async def test_a_def_workflow_has_the_same_state(each_mode: None) -> None:
    """One thing after the other, without `await`."""
    async with boki.testing.context() as ctx:
        assert await (await plain.start(ctx, 0)).result() == [2, True, 0]


async def test_reads_of_the_present_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ablation of positions: a replay reads what came later."""

    async def now(self: Keeper) -> int:
        last = await self._ctx.logbook.check_tail()
        return 1 if last is None else last.seqnum

    monkeypatch.setattr(Keeper, "_base", now)
    world = World()
    first = await world.run(late_reader, 0)
    async with boki.testing.context("test", log=world.log) as ctx:
        await Store(ctx).object("x").set("", 99)
    assert await world.run(late_reader, 0) != first


@workflow
async def blind(_: int) -> None:
    await flow.store.object("n").increment("")


@workflow
async def puts(value: int) -> None:
    await flow.store.write("n", value)


async def made_of(ctx: boki.testing.Context) -> tuple[list[Any], list[str]]:
    """The values that an object has had, and the names of the objects that there are."""
    store = Store(ctx)
    return [version.value async for version in store.history("n")], await store.objects()


@pytest.mark.parametrize("writes", [blind, puts])
async def test_a_blind_write_counts_once_whatever_crashes(writes: Any) -> None:
    """What the test before this one takes away; also of a write that has no condition but that on the journal."""
    async for world, _ in after_each_death(writes, 1):
        async with boki.testing.context("test", log=world.log) as ctx:
            assert await made_of(ctx) == ([1], ["n"])


@pytest.mark.parametrize("writes", [blind, puts])
async def test_of_two_executions_that_race_one_writes(writes: Any) -> None:
    """The condition on the journal decides, in the same append."""
    async with boki.testing.context("test") as outer:
        runs = [Function.of(writes).run(in_run(outer, 1), 1) for _ in range(2)]
        await asyncio.gather(*runs)
        assert await made_of(outer) == ([1], ["n"])


class StoreLog(DyingLog):
    """Notes what is asked of the store, and what is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Operation] = []
        self.refused_count = 0

    def answer(self, operation: Operation, now_us: int) -> Answer:
        tags = operation.tags if isinstance(operation, Compare) else [getattr(operation, "tag", None) or ""]
        if any(tag.startswith("!o") for tag in tags):
            self.asked.append(operation)
        answer = super().answer(operation, now_us)
        self.refused_count += len(answer.rejected) if isinstance(answer, Appended) else 0
        return answer


@workflow
async def puts_many(n: int) -> None:
    for number in range(n):
        await flow.store.write(f"out:{number}", number)


async def test_a_write_of_a_whole_object_is_one_append_and_no_read(
    each_mode: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process asks once whether its book is a fork; of the objects it asks nothing, but for one write in 256."""
    monkeypatch.setattr(memory, "urandom", lambda count: b"\1" + urandom(count - 1))  # it is none of those
    world = World(log := StoreLog())
    await world.run(puts_many, 5)
    assert log.append_count == 5
    assert log.asked == [Compare("test", (ORIGIN,), (0,))]
    assert [await in_book(world, f"out:{number}") for number in range(5)] == list(range(5))


@workflow
async def puts_again(n: int) -> int:
    for number in range(n):
        await flow.store.write("n", number)
        await flow.sleep(1)
    found: int = await flow.store.read("n")
    return found


async def test_an_object_of_one_process_is_written_again_without_a_read() -> None:
    """Once the process has read its own first writes of it, beside the workflow."""
    async with boki.testing.context("test", log=(log := StoreLog())) as ctx:
        handle = await puts_again.start(ctx, 20, id="w")
        await ctx.clock.advance(10)
        asked = len(log.asked)
        await ctx.clock.advance(8)
        assert len(log.asked) == asked
        await ctx.clock.advance(30)
        assert await handle.result() == 19
        assert log.refused_count == 0
        assert (await made_of(ctx))[0] == list(range(20))


@pytest.mark.parametrize("times", [1, 3 * OWN_STREAK])
async def test_workflows_that_put_one_object_at_once_all_do(times: int) -> None:
    """Nothing is refused while nobody takes the object for its own, and the last one in the log's order counts."""

    @workflow
    async def puts_values(n: int) -> None:
        for number in range(times):
            await flow.store.write("n", [n, number])

    async with boki.testing.context("test", log=(log := StoreLog())) as ctx:
        handles = [await puts_values.start(ctx, n, id=str(n)) for n in range(8)]
        await asyncio.gather(*(handle.result() for handle in handles))
        assert log.refused_count == 0
        values, names = await made_of(ctx)
        assert sorted(values) == [[n, number] for n in range(8) for number in range(times)]
        assert await Store(ctx).object("n").get() == values[-1]
        assert names == ["n"]


async def test_an_object_that_was_deleted_elsewhere_is_listed_again() -> None:
    """By the process of the workflow, which takes it for listed."""
    async with boki.testing.context("test") as ctx, boki.testing.context("test", log=ctx._calls_made.port.log) as other:
        await (await puts.start(ctx, 1, id="one")).result()
        await Store(other).object("n").delete("")
        assert await Store(other).objects() == []
        await (await puts.start(ctx, 2, id="two")).result()
        await ctx.clock.advance(1)
        assert await Store(other).objects() == ["n"]
        assert await Store(other).object("n").get() == 2


_log: list[Any] = []


@step
async def another_process_counts() -> None:
    """With a memory of its own."""
    async with boki.testing.context("test", log=_log[-1]) as ctx:
        await Store(ctx).object("counted").increment("n")


@workflow
async def counts_beside_another_process(n: int) -> int:
    for _ in range(n):
        await flow.store.object("counted").increment("n")
    await another_process_counts()
    await flow.store.object("counted").increment("n")
    found: int = await flow.store.read("counted", "n")
    return found


async def test_an_object_that_was_ones_own_is_written_when_it_is_no_longer() -> None:
    """A write that is refused is made again of what is new, not of what its process takes for the newest (chaos)."""
    world = World()
    _log.append(world.log)
    async with asyncio.timeout(20):
        assert await world.run(counts_beside_another_process, 2 * OWN_STREAK) == 2 * OWN_STREAK + 2


@workflow
async def spends(how: str) -> list[Any]:
    tries = 0

    async def work(txn: FlowTransaction) -> list[Any]:
        nonlocal tries
        tries += 1
        before = await txn.object("a").get("", 0)
        left = await flow.store.object("a").increment("", -1)
        await flow.store.write("spent", before - left)
        if how == "waits":
            await flow.sleep(100)
        swaps = [await flow.store.cond_write("spent", 2, expected=expected) for expected in (7, 1)]
        if how == "fails":
            raise KeyError(how)
        return [await txn.object("spent").get(), await flow.store.read("a"), swaps]

    try:
        return [*await flow.store.run(work), tries]
    except KeyError:
        return [await flow.store.read("a", default=None), await flow.store.read("spent", default=None)]


async def test_the_store_inside_of_a_block_is_in_its_transaction(each_mode: None) -> None:
    """Such writes were made at once, also where the block raised; the transaction then was in conflict with them."""
    world = World()
    assert await world.run(spends, "fails") == [None, None]
    assert await World().run(spends, "") == [2, -1, [False, True], 1]
    assert await in_book(world, "spent") is None


async def test_what_had_written_by_itself_inside_of_a_block_does_so_in_a_replay(
    boki_context: boki.testing.Context, each_mode: None
) -> None:
    """A workflow that waits in a block while Boki is upgraded does not diverge from its journal."""
    ctx = boki_context
    with (
        patch("boki.libs.bokiflow.state.transaction_here", lambda: None),  # as an earlier Boki did
        patch("boki.libs.bokiflow.storing.transaction_here", lambda: None),
    ):
        handle = await spends.start(ctx, "waits")
        await ctx.clock.advance(10)
    assert (await handle.status()).status == "suspended"
    assert await Store(ctx).object("spent").get() == 1
    assert await handle.result() == [None, -1, [False, True], 1]
