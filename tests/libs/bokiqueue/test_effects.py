"""Effects that commit with an ack: what is refused, and when, and that of two blocks for one lease one commits."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from typing import Any

import pytest

import boki.testing
from boki import ConditionFailed, Expect, InvalidArgument, NewRecord, TooLarge
from boki.libs.bokiqueue import LeaseLost, Message, Queue
from boki.log.operations import Answer, Append, Operation
from boki.testing.memory_port import MemoryPort
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokiqueue.test_crashes import Process
from tests.libs.bokiqueue.test_queue import drain


@asynchronous
async def test_of_two_blocks_for_one_lease_one_commits() -> None:
    """The other is told, and none of its effects happens."""
    async with boki.testing.context() as ctx:
        queue: Queue[int] = Queue(ctx.logbook, "q")
        target: Queue[str] = Queue(ctx.logbook, "target")
        await target.create()
        await queue.push(1)
        message = await queue.lease(60)
        assert message is not None

        async def move(message: Message[int], name: str) -> None:
            async with queue.process(message) as out:
                out.push(target, name)

        ends = await asyncio.gather(move(message, "a"), move(copy.copy(message), "b"), return_exceptions=True)
        assert ends[0] is None
        assert isinstance(ends[1], LeaseLost)
        assert await drain(target) == ["a"]


class Held(Process):
    """A process whose appends wait until they may go."""

    def __init__(self, port: MemoryPort) -> None:
        super().__init__(port)
        self.may_go = asyncio.Event()
        self.may_go.set()

    async def request(self, operation: Operation, positions: Any, timeout_s: float) -> Answer:
        if isinstance(operation, Append):
            await self.may_go.wait()
        return await super().request(operation, positions, timeout_s)


@pytest.mark.parametrize("count", [1, 2])
@asynchronous
async def test_of_two_processes_that_were_given_one_lease_by_its_op_one_is_told_that_it_has_committed(
    count: int,
) -> None:
    """Also if the other one has as many effects; its own have not happened, and it is told so."""
    port = MemoryPort()
    held = Held(port)
    a: Queue[str] = Queue(Process(port).logbook(), "q")
    b: Queue[str] = Queue(held.logbook(), "q")
    await a.push("m")
    first, second = await a.lease(60, op="x"), await b.lease(60, op="x")
    assert first is not None
    assert second is not None
    assert first.id == second.id

    async def commit() -> None:
        async with b.process(second) as out:
            for _ in range(count):
                out.append(b"by b", tags=["effects"])

    held.may_go.clear()
    committing = asyncio.ensure_future(commit())
    for _ in range(60):
        await asyncio.sleep(0)
    async with a.process(first) as out:
        out.append(b"by a", tags=["effects"])
    held.may_go.set()
    with pytest.raises(LeaseLost):
        await committing
    assert [record.data for record in (await a.logbook.read("effects")).records] == [b"by a"]
    assert (await a.stats()).depth == 0


class Repeating(Process):
    """A process whose way to the log makes each append twice, and hears of the second one."""

    async def request(self, operation: Operation, positions: Any, timeout_s: float) -> Answer:
        if isinstance(operation, Append):
            await super().request(operation, positions, timeout_s)
        return await super().request(operation, positions, timeout_s)


@asynchronous
async def test_a_commit_that_is_made_again_on_its_way_is_its_own() -> None:
    """It stands under its key once, and the block finds its own name there."""
    port = MemoryPort()
    producer: Queue[str] = Queue(Process(port).logbook(), "q")
    await producer.push("m")
    queue: Queue[str] = Queue(Repeating(port).logbook(), "q")
    message = await queue.lease(60)
    assert message is not None
    async with queue.process(message) as out:
        out.append(b"once", tags=["effects"])
    assert len((await queue.logbook.read("effects")).records) == 1
    assert (await producer.stats()).depth == 0


@asynchronous
async def test_no_key_of_a_push_is_that_of_a_commit() -> None:
    """Users choose their keys freely."""
    async with boki.testing.context() as ctx:
        queue: Queue[Any] = Queue(ctx.logbook, "q")
        target: Queue[str] = Queue(ctx.logbook, "target")
        await target.create()
        await queue.push(1)
        message = await queue.lease(60)
        assert message is not None
        for key in (":" + message.receipt.replace("-", ":"), "q::" + message.receipt.replace("-", ":")):
            await queue.push("evil", key=key)
        async with queue.process(message) as out:
            out.push(target, "effect")
        assert await drain(target) == ["effect"]
        assert (await queue.stats()).groups[0].in_flight == 0


@asynchronous
async def test_what_cannot_be_appended_is_refused_in_the_block() -> None:
    """Where it is put into the outbox; the message comes back with that as the reason."""
    async with boki.testing.context() as ctx:
        queue: Queue[int] = Queue(ctx.logbook, "q")
        await queue.create(max_deliveries=1)
        wrong: list[tuple[Any, Any, type[Exception]]] = [
            (bytes(1_100_000), [], TooLarge),
            ("text", [], InvalidArgument),
            (b"x", [""], InvalidArgument),
        ]
        for data, tags, error in wrong:
            await queue.push(1)
            message = await queue.lease(60)
            assert message is not None
            with pytest.raises(error):
                async with queue.process(message) as out:
                    out.append(data, tags)
                    raise AssertionError("it was refused before")
        reasons = [letter.reason for letter in await queue.dead_letters()]
        assert [reason.split(": ")[1] for reason in reasons] == ["TooLarge", "WrongType", "InvalidArgument"]


@asynchronous
async def test_a_commit_that_is_refused_is_a_nack() -> None:
    """With the error as the reason: at once, and not when the lease has run out."""
    async with boki.testing.context() as ctx:
        queue: Queue[int] = Queue(ctx.logbook, "q")
        await queue.create(max_deliveries=1)
        await queue.push(1)
        message = await queue.lease(60)
        assert message is not None
        with pytest.raises(ConditionFailed):
            async with queue.process(message) as out:
                out.add((), [Expect("mine", 17)])
        (letter,) = await queue.dead_letters()
        assert "ConditionFailed" in letter.reason


@asynchronous
async def test_another_library_commits_with_the_ack_and_is_told_where_its_records_stand() -> None:
    """Under its own conditions; if they fail, nothing of the block happens, and nobody is told."""
    async with boki.testing.context() as ctx:
        queue: Queue[int] = Queue(ctx.logbook, "q")
        await queue.push_many([1, 2])
        told: list[list[int]] = []

        def on_commit(seqnums: Sequence[int]) -> None:
            told.append(list(seqnums))

        message = await queue.lease(60)
        assert message is not None
        async with queue.process(message) as out:
            out.append(b"an application's")
            out.add([NewRecord(b"a", ["mine"]), NewRecord(b"b", ["mine"])], [Expect("mine", 0)], on_commit=on_commit)
        stood = [record.seqnum for record in (await ctx.logbook.read("mine")).records]
        assert told == [stood]
        again = await queue.lease(60)
        assert again is not None
        with pytest.raises(ConditionFailed):
            async with queue.process(again) as out:
                out.add([NewRecord(b"c", ["mine"])], [Expect("mine", 0)], on_commit=on_commit)
        assert told == [stood]


@asynchronous
async def test_a_block_for_what_is_no_message_is_refused_before_it_begins() -> None:
    """A receipt, and what was popped: whatever the block does would be done, and nothing could commit with it."""
    async with boki.testing.context() as ctx:
        queue: Queue[int] = Queue(ctx.logbook, "q")
        await queue.push_many([1, 2])
        leased, popped = await queue.lease(60), await queue.pop()
        assert leased is not None
        wrong: list[tuple[Any, str]] = [(leased.receipt, "not str"), (popped, "for good"), (17, "not int")]
        for message, text in wrong:
            with pytest.raises(InvalidArgument, match=text):
                async with queue.process(message):
                    pytest.fail("the block has begun")
        await queue.ack(leased)
