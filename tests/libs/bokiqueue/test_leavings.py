"""What consumers leave behind who are cancelled, timed out, or refused: nothing is lost, and nobody else suffers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import boki.testing
from boki import BokiError, ConnectionLost, DeadlineExceeded, InvalidArgument, LogBook, Overloaded, Unavailable
from boki.api.deadline import Caller, Deadline
from boki.api.logbook import LogSession
from boki.libs.bokiqueue import LeaseLost, Queue, callers, lines
from boki.libs.bokiqueue.following import following
from boki.libs.bokiqueue.records import Act, OpenGroup, Push, decode
from boki.log.operations import Append, Get
from boki.testing.memory_port import ENDLESS_S, MemoryPort
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokiqueue.test_crashes import Process, drain
from tests.libs.bokiqueue.test_shards import turns
from tests.libs.bokiqueue.test_standing import Takers


class Hurt(Process):
    """A process to some of whose requests something happens first."""

    async def hurt(self, operation: Any) -> None:
        """By default nothing."""

    async def request(self, operation: Any, positions: Any, timeout_s: float) -> Any:
        await self.hurt(operation)
        return await super().request(operation, positions, timeout_s)


@asynchronous
async def test_the_only_consumer_of_a_process_swallows_nothing_when_it_is_cancelled() -> None:
    """At whatever turn of the loop: what it was given goes to other processes, though it never looks again itself."""
    for wait_s in (0, 60):
        for count in range(40):
            port = MemoryPort()
            queue: Queue[int] = Queue(Process(port).logbook(), "q")
            await queue.push(1)
            process = Process(port)
            popping = asyncio.ensure_future(Queue[int](process.logbook(), "q").pop(wait_s=wait_s))
            await turns(count)
            popping.cancel()
            (got,) = await asyncio.gather(popping, return_exceptions=True)
            await turns(60)
            values = [] if isinstance(got, BaseException) or got is None else [got.value]
            assert values + await drain(queue) == [1], (wait_s, count)


@asynchronous
async def test_a_caller_that_is_cancelled_as_an_error_comes_is_cancelled() -> None:
    """Else the error takes the place of the cancellation, and a loop that tries again never ends."""
    queue: Queue[int] = Queue(Process(MemoryPort()).logbook(), "q")
    await queue.create()
    waiting = asyncio.ensure_future(queue.pop(wait_s=60))
    await turns(40)
    shared = following(queue.logbook, "q", 1)
    shared._fail(Unavailable("the log cannot be read"))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    again = asyncio.ensure_future(queue.pop(wait_s=60))
    await turns(40)
    shared._fail(Unavailable("the log cannot be read"))
    with pytest.raises(BokiError, match="cannot be read"):
        await again


@asynchronous
async def test_a_message_whose_body_cannot_be_read_is_given_back() -> None:
    """Whoever takes it is cancelled, or refused, while its body is read from the log."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(callers.BodyStore.__init__, "__defaults__", (0,))
        port = MemoryPort()
        queue: Queue[int] = Queue(Process(port).logbook(), "q")
        await queue.push_many([1, 2, 3])

        class Slow(Hurt):
            is_asked = asyncio.Event()

            async def hurt(self, operation: Any) -> None:
                if isinstance(operation, Get):
                    self.is_asked.set()
                    await asyncio.Event().wait()

        slow = Slow(port)
        popping = asyncio.ensure_future(Queue[int](slow.logbook(), "q").pop(wait_s=60))
        await slow.is_asked.wait()
        popping.cancel()
        await asyncio.gather(popping, return_exceptions=True)
        await turns(60)
        message = await queue.pop()
        assert message is not None
        assert message.value == 1

        class Cut(Hurt):
            async def hurt(self, operation: Any) -> None:
                if isinstance(operation, Get):
                    raise ConnectionLost("the answer was lost")

        with pytest.raises(ConnectionLost):
            await Queue[int](Cut(port).logbook(), "q").pop()
        await turns(60)
        assert await drain(queue) == [2, 3]


@asynchronous
async def test_what_could_not_be_given_back_is_given_back_later() -> None:
    """The act that does it is refused, by an overloaded system, and made again."""
    port = MemoryPort()
    queue: Queue[int] = Queue(Process(port).logbook(), "q")
    await queue.push_many([1, 2, 3])
    await queue.create_group("")

    class Refusing(Hurt):
        count = 0
        gate = asyncio.Event()

        async def hurt(self, operation: Any) -> None:
            if isinstance(operation, Append):
                self.count += 1
                if self.count == 1:
                    await self.gate.wait()
                if self.count == 2:
                    raise Overloaded("the buffer is full", retryable=True)

    process = Refusing(port)
    consumer: Queue[int] = Queue(process.logbook(), "q")
    await consumer.stats()
    popping = asyncio.ensure_future(consumer.pop(wait_s=60))
    await turns(30)
    popping.cancel()
    await asyncio.gather(popping, return_exceptions=True)
    process.gate.set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("boki.libs.bokiqueue.following.PAUSE_S", 0.0)
        patch.setattr("boki.libs.bokiqueue.lines.REFUSED_S", 0.0)
        await turns(60)
    assert process.count == 3
    assert await drain(queue) == [1, 2, 3]


@asynchronous
async def test_ten_thousand_messages_are_given_back() -> None:
    """More than one act settles: all of them come again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "MAX_SETTLED", 100)
        for count in range(10, 40, 3):
            port = MemoryPort()
            queue: Queue[int] = Queue(Process(port).logbook(), "q")
            await queue.push_many(range(1_000))
            popping = asyncio.ensure_future(Queue[int](Process(port).logbook(), "q").pop_many(1_000, wait_s=60))
            await turns(count)
            popping.cancel()
            (got,) = await asyncio.gather(popping, return_exceptions=True)
            await turns(300)
            values = [] if isinstance(got, BaseException) else [message.value for message in got]
            assert sorted(values + await drain(queue)) == list(range(1_000)), count


def logbook(process: Process, left_s: float) -> LogBook:
    clock = process.port.clock.time
    caller = Caller(deadline=Deadline.after(left_s, clock), longest_poll_s=ENDLESS_S)
    return LogSession(process, process.appends, caller).logbook("test")


@asynchronous
async def test_one_callers_deadline_is_nobody_elses() -> None:
    """They share the acts of their process: what comes too late is refused before it joins one."""
    port = MemoryPort()
    process = Process(port)
    late: Queue[int] = Queue(logbook(process, 10), "q")
    queue: Queue[int] = Queue(process.logbook(), "q")
    await queue.push_many([1, 2])
    first, second = await queue.lease_many(2, 60)
    await late.stats()
    await port.clock.advance(11)
    refused, done = await asyncio.gather(late.ack(first), queue.ack(second), return_exceptions=True)
    assert done is None
    assert isinstance(refused, DeadlineExceeded)
    assert refused.outcome == "not_applied"
    assert (await queue.stats()).groups[0].done == 1


@asynchronous
async def test_a_hundred_thousand_receipts_are_settled_in_parts() -> None:
    """No act is too large for a record: strangers in the same process are not refused with it."""
    async with boki.testing.context() as ctx:
        queue: Queue[int] = Queue(ctx.logbook, "q")
        await queue.push_many(range(10))
        message = await queue.lease(60)
        assert message is not None
        receipts = [f"0-{number}-8796093022{number % 1000:03}" for number in range(100_000)]
        outcomes = await asyncio.gather(
            queue.ack(*receipts), queue.ack(message), queue.lease(61, wait_s=5), return_exceptions=True
        )
        assert isinstance(outcomes[0], LeaseLost)
        assert outcomes[1] is None
        assert not isinstance(outcomes[2], BaseException)


@asynchronous
async def test_text_that_is_none_is_refused_or_spelled_out() -> None:
    """Half a surrogate pair, as in names of files: in an op it is refused, in a reason it is escaped; no act hangs."""
    async with boki.testing.context() as ctx:
        queue: Queue[Any] = Queue(ctx.logbook, "q")
        await queue.push_many([1, 2])
        for refused in (queue.pop(op="\udcff"), queue.push(1, key="\udcff"), queue.push(1, group_key="\udcff")):
            with pytest.raises(InvalidArgument, match="text"):
                await refused
        message = await queue.lease(60)
        assert message is not None
        await queue.bury(message, reason="file \udcff not found")
        message = await queue.lease(60)
        assert message is not None
        with pytest.raises(OSError, match="bad"):
            async with queue.process(message, retry_s=1):
                raise OSError("bad \udcff")
        (letter,) = await queue.dead_letters()
        assert letter.reason == "file \\udcff not found"


@asynchronous
async def test_whatever_goes_wrong_with_an_act_is_said_to_those_who_wait() -> None:
    """Also what is no error of ours: nobody hangs, and the next act is made."""
    port = MemoryPort()
    queue: Queue[int] = Queue(Process(port).logbook(), "q")
    await queue.push(1)
    await queue.create_group("")

    class Broken(Hurt):
        count = 0

        async def hurt(self, operation: Any) -> None:
            if isinstance(operation, Append):
                self.count += 1
                if self.count == 1:
                    raise RuntimeError("a bug")

    broken: Queue[int] = Queue(Broken(port).logbook(), "q")
    with pytest.raises(BokiError, match="a bug") as caught:
        await broken.pop(wait_s=5)
    assert caught.value.outcome == "unknown"
    assert await drain(broken) == [1]


@asynchronous
async def test_an_act_whose_append_was_too_slow_is_made_again_while_its_caller_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An append has a deadline of its own, however long its caller may wait: nobody waits for an act that nobody makes
    again. The simulator found it by seed 621.
    """
    port = MemoryPort()
    queue: Queue[int] = Queue(Process(port).logbook(), "q")
    await queue.push(1)
    message = await queue.lease(60)
    assert message is not None
    append, failed = LogBook.append, 0

    async def slow(self: LogBook, data: bytes, *rest: Any, **more: Any) -> int:
        nonlocal failed
        if not failed and isinstance(decode(data), Act):
            failed += 1
            raise DeadlineExceeded("it was not ordered in time", outcome="unknown")
        return await append(self, data, *rest, **more)

    monkeypatch.setattr(LogBook, "append", slow)
    began_s = port.clock.time()
    await asyncio.wait_for(queue.ack(message), 20)
    assert failed
    assert port.clock.time() - began_s < 1
    assert (await queue.stats()).groups[0].done == 1


@asynchronous
async def test_what_comes_when_a_consumer_has_just_given_up_goes_to_others() -> None:
    """Its credit stands for a moment more: it is given back, is not counted as a delivery, and the credit ends."""
    for lease_s in (0, 60):
        port = MemoryPort()
        process = Process(port)
        queue: Queue[int] = Queue(Process(port).logbook(), "q")
        await queue.create(max_deliveries=1)
        gives_up: Queue[int] = Queue(process.logbook(), "q")
        waits = gives_up.lease(lease_s, wait_s=1) if lease_s else gives_up.pop(wait_s=1)
        given = asyncio.ensure_future(waits)
        await turns(60)
        await port.clock.advance(1)
        assert await given is None
        await queue.push(1)
        taking = asyncio.ensure_future(queue.lease(60, wait_s=5))
        await turns(60)
        assert not taking.done()
        await port.clock.advance(1)
        message = await taking
        assert message is not None
        assert message.deliveries == 1
        await queue.push(2)
        assert (await queue.pop()) is not None


@asynchronous
async def test_a_consumer_that_comes_again_is_given_what_came_meanwhile_at_once() -> None:
    """Without an append: a push that came between two waits is there already."""
    port = MemoryPort()
    queue: Queue[int] = Queue(Process(port).logbook(), "q")
    consumer: Queue[int] = Queue(Process(port).logbook(), "q")
    await queue.create()
    first = asyncio.ensure_future(asyncio.gather(consumer.pop(wait_s=9), consumer.pop(wait_s=9)))
    await turns(60)
    await queue.push_many([1, 2])
    await first
    waiting = [asyncio.ensure_future(consumer.pop(wait_s=900)) for _ in range(2)]
    await turns(20)
    before = len((await queue.logbook.read("!q:q:0")).records)
    await queue.push(3)
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert [message.value for task in done if (message := task.result()) is not None] == [3]
    more = (await queue.logbook.read("!q:q:0")).records[before:]
    assert [type(decode(record.data)) for record in more] == [Push], "and nothing else"
    for task in waiting:
        task.cancel()


def test_what_one_record_gave_to_two_groups_is_given_back_to_both() -> None:
    """A process that begins again from a checkpoint has heard of neither. The simulator found it by seed 11."""
    stream = Takers()
    stream.append(OpenGroup(0, "copy"))
    for group in ("", "copy"):
        stream.grant(b"taker", granted=1, group=group)
    stream.push()
    line = lines.Line(0, b"taker")
    line.begin(stream.state, 0)
    line.give_back_unknown(0)
    assert sorted(one.part.group for one in line.asked) == ["", "copy"]


@asynchronous
async def test_a_consumer_that_rests_leaves_no_credit_behind() -> None:
    """What is pushed after a quick consumer has left is given to nobody that cannot take it."""
    port = MemoryPort()
    leaving, pushing = Process(port), Process(port)
    queue, other = Queue[str](leaving.logbook(), "q"), Queue[str](pushing.logbook(), "q")
    await other.push("first")
    first = await queue.pop(wait_s=10)
    waiting = asyncio.ensure_future(queue.pop_many(5, wait_s=10))
    await turns(50)
    assert any(one.available for one in following(queue.logbook, "q", 1).lines[0].state.standing)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await leaving.access.come_to_rest()
    assert first is not None
    assert not any(one.available for one in following(queue.logbook, "q", 1).lines[0].state.standing)
    await other.push("second")
    second = await other.pop()
    assert second is not None
    assert second.value == "second"
