"""Logged calls from outside: cancelled, run again, and listed, also while engines die."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec
import pytest

from boki.books.calls import inquiries
from boki.books.calls.ledger import Accepted, Finished
from boki.books.calls.logged_calls import LoggedCalls
from boki.errors import BokiError, CallCancelled, FunctionFailed, NoSuchInvocation, Overloaded, Trimmed, WrongState
from boki.protocol.calls import Call, CallFilter, CallStatus, InvocationState, Outcome
from boki.retry import Retry
from tests.books.calls.call_world import CallWorld, Fault, Gate, a_call, echo, failing, now_us, run, time_passes
from tests.books.calls.test_taken_over import Cluster, with_engines


async def broken(_call: Call) -> Outcome:
    """A function that raises."""
    return failing(FunctionFailed("bad: ValueError: " + "no" * 1_000, error_type="ValueError", traceback="long"))


class Stubborn(Gate):
    """A function that notices when it is cancelled."""

    was_cancelled = False

    async def __call__(self, call: Call) -> Outcome:
        try:
            return await super().__call__(call)
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise


# Cancelling


def test_a_call_that_has_not_begun_never_runs() -> None:
    """Be it delayed, waiting for room or for its next run; its end says that nothing has happened."""

    async def scenario() -> None:
        world = CallWorld()
        world.bodies |= {"wait": Gate(), "bad": broken}
        calls = await world.start(max_running=1)
        retried = msgspec.structs.replace(a_call(4, "bad"), retry=Retry(first_s=60))
        await calls.accept(retried)
        await time_passes(1)
        await calls.accept(a_call(1, "wait"))
        await calls.accept(a_call(2))
        await calls.accept(a_call(3), delay_s=60)
        for number in (2, 3, 4):
            state = await calls.cancel(a_call(number).id)
            assert state.state == "cancelled"
            assert state.failure is not None
            assert state.failure.outcome == ("unknown" if number == 4 else "not_applied")
        await calls.cancel(a_call(1).id)
        await time_passes(1_000)
        assert [call.id for call in world.ran] == [retried.id, a_call(1).id]
        assert (calls.waiting_count, calls.running_count) == (0, 0)
        await calls.stop()

    run(scenario())


def test_the_body_of_a_running_call_is_cancelled() -> None:
    """And whoever waits for the call under its key is told."""

    async def scenario() -> None:
        world = CallWorld()
        body = world.bodies["wait"] = Stubborn()
        calls = await world.start()
        waiter = asyncio.create_task(calls.call_once(a_call(1, "wait"), "k"))
        await body.started.wait()
        state = await calls.cancel(a_call(1).id)
        assert (state.state, state.attempts, state.failure and state.failure.outcome) == ("cancelled", 1, "unknown")
        _, outcome = await waiter
        assert outcome.failure is not None
        assert outcome.failure.code == CallCancelled.code
        await time_passes(0.1)
        assert body.was_cancelled
        assert (calls.running_count, len(world.finished())) == (0, 1)
        await calls.stop()

    run(scenario())


def test_cancelling_again_changes_nothing_and_what_has_ended_is_refused() -> None:
    """The first end counts, and the time of its record, whatever the engine's own clock says."""

    async def scenario() -> None:
        world = CallWorld()
        world.clock = lambda: now_us() - 250_000
        calls = await world.start()
        await calls.accept(a_call(1), delay_s=60)
        first = await calls.cancel(a_call(1).id)
        await time_passes(5)
        again = await calls.cancel(a_call(1).id)
        assert again == first
        await calls.state(await calls.accept(a_call(2)), wait_s=5)
        with pytest.raises(
            WrongState, match=rf"call {a_call(2).id} has ended \(done\) and cannot be cancelled"
        ) as caught:
            await calls.cancel(a_call(2).id)
        assert caught.value.state == "done"
        with pytest.raises(NoSuchInvocation):
            await calls.cancel("f" * 32)
        await calls.stop()

    run(scenario())


def test_any_engine_cancels_a_call_wherever_it_runs() -> None:
    """Its body ends there, and it has one end."""

    @with_engines("a", "b")
    async def scenario(cluster: Cluster) -> None:
        body = Stubborn()
        cluster.bodies["wait"] = body
        await cluster.engines["a"].calls.accept(a_call(1, "wait"))
        await body.started.wait()
        await cluster.engines["b"].calls.cancel(a_call(1).id)
        await time_passes(1)
        assert body.was_cancelled
        for engine in cluster.engines.values():
            assert (await engine.calls.state(a_call(1).id)).state == "cancelled"
            assert (engine.calls.waiting_count, engine.calls.running_count) == (0, 0)
        assert len(cluster.entries(Finished)) == 1


def test_a_cancelled_call_of_a_lost_engine_is_not_run_by_its_heir() -> None:
    """What is cancelled while nobody runs it is over."""

    @with_engines("a", "b")
    async def scenario(cluster: Cluster) -> None:
        cluster.bodies["wait"] = Gate()
        await cluster.engines["a"].calls.accept(a_call(1, "wait"))
        await time_passes(1)
        cluster.lose("a")
        cluster.bodies.clear()
        await cluster.engines["b"].calls.cancel(a_call(1).id)
        await time_passes(20)
        assert not cluster.engines["b"].ran
        assert (await cluster.engines["b"].calls.state(a_call(1).id)).state == "cancelled"


@pytest.mark.parametrize("fault", ["refuse", "lose_request", "lose_answer", "halt_before", "halt_after"])
def test_of_an_end_and_a_cancellation_at_the_same_time_one_counts(fault: Fault) -> None:
    """At every operation of the log, also if the process dies there."""

    async def play(at: int | None) -> int:
        world = CallWorld()
        calls = await world.start()
        world.port.faults = {} if at is None else {at + len(world.port.operations): fault}
        before = len(world.port.operations)
        with suppress(BokiError, TimeoutError):
            await asyncio.wait_for(calls.accept(a_call(1)), 5)
        told: InvocationState | None = None
        with suppress(BokiError, TimeoutError):
            told = await asyncio.wait_for(calls.cancel(a_call(1).id), 5)
        await time_passes(20)
        count = len(world.port.operations) - before
        await world.kill()
        calls = await world.start()
        await time_passes(20)
        ended = world.finished()
        assert len(ended) == any(isinstance(entry, Accepted) for entry in world.entries()), (fault, at)
        assert told is None or ended[0].state == told.state, (fault, at)
        await calls.stop()
        return count

    count = run(play(None))
    assert count > 3
    for at in range(count):
        run(play(at))


# Running again


def test_a_call_that_failed_for_good_runs_again_under_its_id() -> None:
    """Its policy begins again, its count continues; the outcome is that of the last life."""

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["bad"] = broken
        calls = await world.start()
        call = msgspec.structs.replace(a_call(1, "bad"), retry=Retry(attempts=2, first_s=1))
        state = await calls.state(await calls.accept(call, key="k"), wait_s=60)
        assert (state.state, state.attempts) == ("failed", 2)
        world.bodies["bad"] = echo
        again = await calls.retry(call.id)
        assert (again.id, again.state) == (call.id, "accepted")
        state = await calls.state(call.id, wait_s=60)
        assert (state.state, state.attempts, state.errors) == ("done", 3, {"ValueError": 2})
        assert await calls.call_once(msgspec.structs.replace(call, id="e" * 32), "k") == (
            call.id,
            Outcome(state.result, None, {0: 7}),
        )
        with pytest.raises(WrongState, match="has ended well"):
            await calls.retry(call.id)
        await calls.stop()

    run(scenario())


def test_a_cancelled_call_can_be_run_again_and_one_that_has_not_ended_is_left_alone() -> None:
    """Repeating the request does no harm. It was accepted when it was, and is due now: no run is before that."""

    async def scenario() -> None:
        world = CallWorld()
        gate = world.bodies["wait"] = Gate()
        calls = await world.start()
        await calls.accept(a_call(1, "wait"), delay_s=60)
        accepted_us = (await calls.cancel(a_call(1).id)).accepted_us
        await time_passes(5)
        for _ in range(3):
            again = await calls.retry(a_call(1).id)
            assert again.state in ("accepted", "running")
            assert (again.accepted_us, again.due_us) == (accepted_us, accepted_us + 5_000_000)
            await time_passes(0.1)
        gate.opened.set()
        assert (await calls.state(a_call(1).id, wait_s=5)).state == "done"
        assert len(world.ran) == 1
        await calls.stop()

    run(scenario())


def test_a_call_whose_payload_is_gone_cannot_be_run_again() -> None:
    """Its end is kept for longer than its acceptance; the error says why, and what to do."""

    async def scenario() -> None:
        world = CallWorld()
        gate = Gate()

        async def body(call: Call) -> Outcome:
            await gate(call)
            return await broken(call)

        world.bodies["slow"] = body
        calls = await world.start(keep_s=100)
        await calls.accept(a_call(1, "slow"))
        await time_passes(90)
        gate.opened.set()
        await time_passes(1)
        await calls.accept(a_call(2))
        await time_passes(50)
        assert (await calls.state(a_call(1).id)).state == "failed"
        with pytest.raises(Trimmed, match=r"is gone: what was accepted is kept for 100 s\. Call the function again"):
            await calls.retry(a_call(1).id)
        await calls.stop()

    run(scenario())


def test_running_again_counts_against_the_calls_that_may_wait() -> None:
    """As if it were accepted again, which it is."""

    async def scenario() -> None:
        world = CallWorld()
        world.bodies |= {"bad": broken, "wait": Gate()}
        calls = await world.start(max_waiting=1)
        await calls.state(await calls.accept(a_call(1, "bad")), wait_s=5)
        await calls.accept(a_call(2, "wait"))
        with pytest.raises(Overloaded):
            await calls.retry(a_call(1).id)
        await world.kill()

    run(scenario())


def test_a_call_that_is_run_again_survives_a_restart() -> None:
    """Whichever engine accepted it again."""

    @with_engines("a", "b")
    async def scenario(cluster: Cluster) -> None:
        cluster.bodies["bad"] = broken
        first = cluster.engines["a"].calls
        await first.state(await first.accept(a_call(1, "bad")), wait_s=5)
        cluster.bodies["bad"] = Gate()
        await cluster.engines["b"].calls.retry(a_call(1).id)
        await time_passes(1)
        cluster.lose("b")
        cluster.bodies.clear()
        assert (await first.state(a_call(1).id, wait_s=10)).state == "done"
        assert [entry.state for entry in cluster.entries(Finished)] == ["failed", "done"]


# Listing


async def listed(calls: LoggedCalls, *states: CallStatus, **fields: object) -> list[int]:
    """The numbers of the calls on all pages of a list."""
    found: list[int] = []
    wanted = CallFilter(states=states, **fields)  # type: ignore[arg-type]
    while True:
        page = await calls.page(wanted)
        assert len(page.calls) <= wanted.limit
        found += [int(state.id, 16) for state in page.calls]
        if not page.before:
            return found
        wanted = msgspec.structs.replace(wanted, before=page.before)


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_a_list_has_every_call_once_whatever_the_pages(limit: int) -> None:
    """Those that changed last first; by state, function and time."""

    async def scenario() -> None:
        world = CallWorld()
        world.bodies |= {"wait": Gate(), "bad": broken}
        calls = await world.start()
        await calls.state(await calls.accept(a_call(1)), wait_s=5)
        await calls.state(await calls.accept(a_call(2, "bad")), wait_s=5)
        await calls.accept(a_call(3, "wait"))
        await time_passes(50)
        middle_us = now_us()
        await calls.accept(a_call(4), delay_s=3_600)
        await calls.accept(a_call(5), delay_s=3_600)
        await calls.cancel(a_call(5).id)
        await calls.accept(msgspec.structs.replace(a_call(6, "bad"), retry=Retry(first_s=60)))
        await time_passes(1)
        await calls.state(await calls.accept(a_call(7, "bad")), wait_s=5)
        assert await listed(calls, limit=limit) == [7, 6, 5, 4, 3, 2, 1]
        assert await listed(calls, "failed", limit=limit) == [7, 2]
        assert await listed(calls, "done", limit=limit) == [1]
        assert await listed(calls, "cancelled", limit=limit) == [5]
        assert await listed(calls, "running", "accepted", limit=limit) == [4, 3]
        assert await listed(calls, "retrying", "done", limit=limit) == [6, 1]
        assert await listed(calls, function="bad", limit=limit) == [7, 6, 2]
        assert await listed(calls, since_us=middle_us, limit=limit) == [7, 6, 5, 4]
        assert await listed(calls, until_us=middle_us, limit=limit) == [3, 2, 1]
        assert await listed(calls, function="nobody", limit=limit) == []
        world.bodies["bad"] = echo
        await calls.retry(a_call(2).id)
        await time_passes(1)
        assert await listed(calls, limit=limit) == [2, 7, 6, 5, 4, 3, 1]
        assert await listed(calls, "failed", limit=limit) == [7]
        await world.kill()
        calls = await world.start()
        await time_passes(0.1)
        assert sorted(await listed(calls, limit=limit)) == [1, 2, 3, 4, 5, 6, 7]
        await world.kill()

    run(scenario())


def test_a_list_shows_what_a_call_has_come_to_and_no_results() -> None:
    """Enough to decide what to do: attempts, times, errors, in few bytes."""

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["bad"] = broken
        calls = await world.start()
        await calls.state(await calls.accept(a_call(1, data=bytes(100_000))), wait_s=5)
        await calls.state(await calls.accept(a_call(2, "bad")), wait_s=5)
        await calls.accept(msgspec.structs.replace(a_call(3, "bad"), retry=Retry(first_s=60, jitter=0)))
        await time_passes(1)
        page = await calls.page(CallFilter())
        waits, failed, done = page.calls
        assert (waits.state, waits.attempts, waits.errors) == ("retrying", 1, {"ValueError": 1})
        assert waits.next_us > waits.started_us > 0
        assert (failed.state, failed.errors, failed.book) == ("failed", {"ValueError": 1}, "book")
        assert failed.failure is not None
        assert len(failed.failure.message) == 500
        assert (done.state, done.result, done.function) == ("done", None, "echo")
        assert len(msgspec.msgpack.encode(page)) < 5_000
        await world.kill()

    run(scenario())


def test_one_page_looks_at_a_bounded_number_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of what is rare may have empty pages, and comes to its end."""
    monkeypatch.setattr(inquiries, "_SCANNED", 10)
    monkeypatch.setattr(inquiries, "_READ_AT_ONCE", 5)

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["rare"] = echo
        calls = await world.start()
        await calls.state(await calls.accept(a_call(1, "rare")), wait_s=5)
        for number in range(2, 40):
            await calls.accept(a_call(number))
        await time_passes(1)
        before = len(world.port.operations)
        page = await calls.page(CallFilter(function="rare"))
        assert (page.calls, len(world.port.operations) - before) == ((), 2)
        assert page.before
        assert await listed(calls, function="rare") == [1]
        await calls.stop()

    run(scenario())
