"""A new life of a logged call begins while something of its old life is left: a body that is slow to end, a retry."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec
import pytest

from boki.books.calls.call_book import CallBook
from boki.books.calls.ledger import CODEC, Accepted, CallEntry, Finished
from boki.books.calls.waiting import Owner
from boki.errors import FunctionFailed, WrongState
from boki.log.operations import Answer, Operation, Read
from boki.log.record import Page, Record
from boki.protocol.calls import Call, ChosenId, Outcome, Payload, Suspension
from boki.retry import Retry
from tests.books.calls.call_world import CallWorld, FaultyPort, Gate, a_call, echo, failing, now_us, run, time_passes
from tests.books.calls.test_taken_over import Cluster, with_engines


class Slow(Gate):
    """A body that takes its time when it is cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.left = asyncio.Event()

    async def __call__(self, call: Call) -> Outcome:
        try:
            return await super().__call__(call)
        finally:
            while not self.left.is_set():
                with suppress(asyncio.CancelledError):
                    await self.left.wait()


class Leaving(Gate):
    """A body whose end is awaited for as long as it takes, when it is cancelled once."""

    def __init__(self) -> None:
        super().__init__()
        self.left = asyncio.Event()

    async def __call__(self, call: Call) -> Outcome:
        try:
            return await super().__call__(call)
        except asyncio.CancelledError:
            await self.left.wait()
            raise


def hold_back(port: FaultyPort) -> asyncio.Event:
    """Let an engine hear of no new record until the event is set."""
    answer, may_follow = port._answer, asyncio.Event()

    async def held(operation: Operation) -> Answer:
        found = await answer(operation)
        if isinstance(operation, Read) and operation.wait_us:
            await may_follow.wait()
        return found

    port._answer = held  # type: ignore[method-assign]
    return may_follow


def start(number: int, attempts: int = 4) -> Call:
    """The start of that number, under the same id; one that has ended gives way to it."""
    return msgspec.structs.replace(
        a_call(1, "body"),
        chosen=ChosenId(f"start-{number}", if_ended="again"),
        retry=Retry(attempts=attempts, first_s=10.0, jitter=0.0),
    )


@pytest.mark.parametrize("attempts", [1, 4])
def test_a_call_that_is_started_again_while_its_body_ends_has_its_first_run_then(attempts: int) -> None:
    """No engine was lost: the record of the new life says that it runs, and it waits for the old body."""

    async def scenario() -> None:
        world = CallWorld()
        body = world.bodies["body"] = Slow()
        calls = await world.start()
        await calls.accept(start(1, attempts))
        await body.started.wait()
        await calls.cancel(start(1).id)
        await calls.accept(start(2, attempts))
        await time_passes(1)
        assert len(world.ran) == 1, "one body at a time"
        world.bodies["body"] = echo
        body.left.set()
        state = await calls.state(start(2).id, wait_s=100)
        assert (state.state, state.attempts, state.errors) == ("done", 1, {})
        assert [(call.run, call.attempt) for call in world.ran] == [(1, 1), (1, 1)]
        await calls.stop()

    run(scenario())


def test_a_cancellation_of_one_life_leaves_the_next_alone() -> None:
    """Who cancels may have looked before the call was started again. Repeated, it is answered the same."""

    async def scenario() -> None:
        world = CallWorld()
        body = world.bodies["body"] = Gate()
        calls = await world.start()
        await calls.accept(start(1))
        await body.started.wait()
        first = await calls.state(start(1).id)
        await time_passes(1)
        for _ in range(2):
            assert (await calls.asked(start(1).id, 0, first.life_us)).state == "cancelled"
        await calls.accept(start(2))
        with pytest.raises(WrongState, match="started again"):
            await calls.asked(start(1).id, 0, first.life_us)
        assert (await calls.state(start(2).id)).state == "running"
        await calls.cancel(start(2).id)
        await calls.stop()

    run(scenario())


def test_a_cancellation_of_one_life_leaves_a_retry_of_it_alone() -> None:
    """A retry keeps when the call was accepted, and begins another life all the same."""

    async def scenario() -> None:
        world = CallWorld()
        body = world.bodies["body"] = Gate()
        calls = await world.start()
        await calls.accept(start(1))
        await body.started.wait()
        first = await calls.state(start(1).id)
        ended = await calls.asked(start(1).id, 0, first.life_us)
        await time_passes(1)
        again = await calls.asked(start(1).id, 0, "retry")
        assert (again.accepted_us, ended.life_us) == (first.accepted_us, first.life_us)
        with pytest.raises(WrongState, match="started again"):
            await calls.asked(start(1).id, 0, first.life_us)
        assert (await calls.asked(start(1).id, 0, again.life_us)).state == "cancelled"
        await calls.stop()

    run(scenario())


def test_a_call_that_was_cancelled_and_is_retried_runs_when_nothing_of_its_last_run_is_left() -> None:
    """The engine hears of the cancellation twice, from its caller and from the log: it still waits for the end."""

    async def scenario() -> None:
        world = CallWorld()
        body = world.bodies["body"] = Leaving()
        calls = await world.start()
        await calls.accept(start(1))
        await body.started.wait()
        await calls.cancel(start(1).id)
        await time_passes(0.1)
        await calls.retry(start(1).id)
        await time_passes(1)
        assert len(world.ran) == 1, "one body at a time"
        world.bodies["body"] = echo
        body.left.set()
        assert (await calls.state(start(1).id, wait_s=10)).state == "done"
        assert len(world.ran) == 2
        await calls.stop()

    run(scenario())


def test_an_old_body_does_not_end_a_new_life_that_its_engine_began_before_it_read_of_the_cancellation() -> None:
    """Another engine had cancelled the call. The old body is cancelled as soon as that is read; a new one is not."""

    @with_engines("a", "b")
    async def scenario(cluster: Cluster) -> None:
        may_follow = hold_back(cluster.engines["a"].port)
        body = cluster.bodies["body"] = Gate()
        calls = cluster.engines["a"].calls
        await calls.accept(start(1))
        await body.started.wait()
        await cluster.engines["b"].calls.cancel(start(1).id)
        await calls.accept(start(2))
        new = cluster.bodies["body"] = Gate()
        may_follow.set()
        await time_passes(1)
        assert new.started.is_set()
        assert (await calls.state(start(2).id)).state == "running"
        new.opened.set()
        state = await calls.state(start(2).id, wait_s=10)
        assert (state.state, state.attempts, cluster.runs[start(2).id]) == ("done", 1, 2)


@pytest.mark.parametrize("ends_by", ["result", "failure", "suspension"])
def test_an_old_body_that_ends_by_itself_ends_no_new_life_that_its_engine_began(ends_by: str) -> None:
    """Another engine had cancelled the call, and this one has not read of it when the old body ends."""

    @with_engines("a", "b")
    async def scenario(cluster: Cluster) -> None:
        may_follow = hold_back(cluster.engines["a"].port)
        old = Gate()

        async def ends(call: Call) -> Outcome:
            await old(call)
            if ends_by == "failure":
                return failing(FunctionFailed("of the old life"))
            if ends_by == "suspension":
                return Outcome(None, None, suspended=Suspension(now_us() + 3_600_000_000))
            return Outcome(Payload("json", b'"of the old life"'), None)

        cluster.bodies["body"] = ends
        calls = cluster.engines["a"].calls
        await calls.accept(start(1))
        await old.started.wait()
        await cluster.engines["b"].calls.cancel(start(1).id)
        await calls.accept(start(2))
        new = cluster.bodies["body"] = Gate()
        old.opened.set()
        await time_passes(1)
        may_follow.set()
        await time_passes(1)
        assert new.started.is_set()
        new.opened.set()
        state = await calls.state(start(2).id, wait_s=100)
        assert (state.state, state.attempts, state.errors) == ("done", 1, {})
        assert (state.result, cluster.runs[start(2).id]) == (start(2).payload, 2)


def test_an_engine_that_stops_does_not_wait_for_the_end_of_a_body() -> None:
    """Its worker may have asked for a write that the log does not decide."""

    async def scenario() -> None:
        world = CallWorld()
        body = world.bodies["body"] = Leaving()
        calls = await world.start()
        await calls.accept(start(1))
        await body.started.wait()
        await asyncio.wait_for(calls.stop(0), 1)
        body.left.set()
        await time_passes(0)

    run(scenario())


def test_a_new_life_that_a_lost_engine_began_is_claimed_while_the_old_body_ends() -> None:
    """That run may have had effects, so it counts."""

    @with_engines("a", "b")
    async def scenario(cluster: Cluster) -> None:
        body = cluster.bodies["body"] = Slow()
        await cluster.engines["a"].calls.accept(start(1))
        await body.started.wait()
        await cluster.engines["a"].calls.cancel(start(1).id)
        gate = cluster.bodies["body"] = Gate()
        await cluster.engines["b"].calls.accept(start(2))
        await gate.started.wait()
        cluster.lose("b")
        await time_passes(10)
        cluster.bodies["body"] = echo
        body.left.set()
        state = await cluster.engines["a"].calls.state(start(2).id, wait_s=100)
        assert (state.state, state.attempts, state.errors) == ("done", 2, {"call_lost": 1})


@pytest.mark.parametrize("is_retried", [False, True])
def test_a_retry_that_an_old_life_waited_for_does_not_run_the_new_one(*, is_retried: bool) -> None:
    """It was cancelled while it waited. When that retry would have been due, the body of the new life still runs."""

    async def scenario() -> None:
        world = CallWorld()

        async def fail(_call: Call) -> Outcome:
            return failing(FunctionFailed("no"))

        async def work(call: Call) -> Outcome:
            await time_passes(30)
            return Outcome(call.payload, None)

        world.bodies["body"] = fail
        calls = await world.start(tries=False)
        await calls.accept(start(1))
        await time_passes(1)
        assert (await calls.state(start(1).id)).state == "retrying"
        await calls.cancel(start(1).id)
        world.bodies["body"] = work
        await (calls.retry(start(1).id) if is_retried else calls.accept(start(2)))
        await time_passes(100)
        assert (await calls.state(start(1).id)).state == "done"
        assert len(world.ran) == 2, "one body at a time"
        await calls.stop()

    run(scenario())


@pytest.mark.parametrize("is_over", [False, True])
def test_who_waits_for_a_new_life_is_not_told_the_end_of_the_old_one(is_over: bool) -> None:
    """The fold lags behind what this engine has appended, and comes to the end of the old life only now."""

    async def scenario() -> None:
        me = Owner("engine-1", 1)
        book = CallBook(CallWorld().port, me)
        known = Accepted(start(1), b"", owner=me)
        ends = [Finished(start(1).id, "body", "book", failing(FunctionFailed(why)), 0, 0, 0, 1) for why in "ab"]
        lives: list[CallEntry] = [known, ends[0], known, ends[1]]
        for seqnum, entry in enumerate(lives[:3], 1):
            book.ledger.learn(seqnum, 0, entry)
        told = asyncio.create_task(book.end_of(start(1).id, 10))
        await asyncio.sleep(0)
        if is_over:
            book.ledger.learn(4, 0, ends[1])
        records = [Record(seqnum, (), CODEC.encode(entry), None, seqnum) for seqnum, entry in enumerate(lives, 1)]
        await book.take(book._book, Page(records[:2], 3))
        await asyncio.sleep(0)
        assert not told.done()
        await book.take(book._book, Page(records[2:], 5, is_end=True))
        assert await told == (ends[1], 4)

    run(scenario())
