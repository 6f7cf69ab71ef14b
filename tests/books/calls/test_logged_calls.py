"""Logged calls: accepted once, run until they end, recorded once, kept for a while; in virtual time."""

from __future__ import annotations

import msgspec
import pytest

from boki.books.calls.ledger import Accepted
from boki.books.calls.logged_calls import LoggedCalls
from boki.books.calls.waiting import Owner
from boki.errors import (
    CallLost,
    FunctionFailed,
    InvalidArgument,
    NoSuchInvocation,
    Overloaded,
    TooLarge,
)
from boki.log.limits import Limits
from boki.log.metalog import Positions
from boki.log.operations import Answer, Get, Operation, Read
from boki.protocol.calls import Call, Outcome, Payload
from boki.retry import LOSSES_ONLY
from tests.books.calls.call_world import (
    CallWorld,
    FaultyPort,
    Gate,
    a_call,
    echo,
    failing,
    now_us,
    run,
    time_passes,
)

DAY_S = 24 * 3600.0


# Asynchronous calls


def test_an_accepted_call_runs_and_its_result_is_kept() -> None:
    """The id comes at once, the result later, with the times of the log."""

    async def scenario() -> None:
        world = CallWorld()
        calls = await world.start()
        invocation_id = await calls.accept(a_call(1))
        state = await calls.state(invocation_id, wait_s=10)
        assert (state.state, state.result, state.attempts) == ("done", Payload("json", b'"hello"'), 1)
        assert state.accepted_us <= state.started_us <= state.finished_us
        assert world.ran == [msgspec.structs.replace(a_call(1), run=1, attempt=1, accepted_us=state.accepted_us)]
        await calls.stop()

    run(scenario())


def test_accepted_means_that_the_call_is_in_the_log() -> None:
    """When the id is told, the record is there, also if the process dies in the next moment."""

    async def scenario() -> None:
        world = CallWorld()
        gate = world.bodies["wait"] = Gate()
        calls = await world.start()
        invocation_id = await calls.accept(a_call(1, "wait"))
        assert [type(entry) for entry in world.entries()] == [Accepted]
        await gate.started.wait()
        assert (await calls.state(invocation_id)).state == "running"
        await world.kill()
        world.bodies.clear()
        calls = await world.start()
        state = await calls.state(invocation_id, wait_s=10)
        assert state.state == "done"
        assert [call.id for call in world.ran] == [invocation_id, invocation_id]
        await calls.stop()

    run(scenario())


def test_a_function_that_raises_is_not_run_again() -> None:
    """The failure is the outcome, with type and message."""

    async def scenario() -> None:
        world = CallWorld()

        async def body(_call: Call) -> Outcome:
            return failing(FunctionFailed("boom", error_type="ValueError"))

        world.bodies["bad"] = body
        calls = await world.start()
        state = await calls.state(await calls.accept(a_call(1, "bad")), wait_s=10)
        assert state.state == "failed"
        assert state.failure is not None
        assert (state.failure.code, state.failure.details["error_type"]) == ("function_failed", "ValueError")
        assert len(world.ran) == 1
        await calls.stop()

    run(scenario())


def test_a_call_whose_worker_dies_every_time_fails_with_that_reason() -> None:
    """It is run a bounded number of times, with pauses."""

    async def scenario() -> None:
        world = CallWorld()

        async def body(_call: Call) -> Outcome:
            raise CallLost("the worker is gone")

        world.bodies["bad"] = body
        calls = await world.start()
        state = await calls.state(await calls.accept(a_call(1, "bad")), wait_s=60)
        assert state.failure is not None
        assert (state.failure.code, state.attempts, len(world.ran)) == (
            "call_lost",
            LOSSES_ONLY.attempts,
            LOSSES_ONLY.attempts,
        )
        assert state.finished_us - state.started_us > 500_000
        await calls.stop()

    run(scenario())


def test_a_call_that_finds_no_room_waits_for_it() -> None:
    """It was accepted, so an overload of the workers delays it and does not end it."""

    async def scenario() -> None:
        world = CallWorld()
        refusals = 20

        async def body(call: Call) -> Outcome:
            if len(world.ran) <= refusals:
                return failing(Overloaded("full"))
            return Outcome(call.payload, None)

        world.bodies["busy"] = body
        calls = await world.start()
        invocation_id = await calls.accept(a_call(1, "busy"))
        await time_passes(1)
        waits = await calls.state(invocation_id)
        assert (waits.state, waits.attempts, waits.started_us) == ("accepted", 0, 0)
        state = await calls.state(invocation_id, wait_s=DAY_S)
        assert (state.state, state.attempts, len(world.ran)) == ("done", 1, refusals + 1)
        await calls.stop()

    run(scenario())


def test_no_more_than_the_bound_run_at_once_and_payloads_stay_in_the_log() -> None:
    """Those beyond the bound are read from the log when their turn comes."""

    async def scenario() -> None:
        world = CallWorld()
        gate = world.bodies["wait"] = Gate()
        calls = await world.start(max_running=2)
        for number in range(1, 6):
            await calls.accept(a_call(number, "wait", b"%d" % number))
        assert (calls.running_count, calls.waiting_count, len(world.ran)) == (2, 5, 2)
        reads = sum(isinstance(operation, Get) for operation in world.port.operations)
        gate.opened.set()
        for number in range(1, 6):
            state = await calls.state(a_call(number).id, wait_s=10)
            assert state.result == Payload("json", b"%d" % number)
        assert sum(isinstance(operation, Get) for operation in world.port.operations) == reads + 3
        assert [call.payload.data for call in world.ran] == [b"1", b"2", b"3", b"4", b"5"]
        await calls.stop()

    run(scenario())


def test_too_many_waiting_calls_are_refused_before_they_are_logged() -> None:
    """The bound is answered with a time after which to come again."""

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["wait"] = Gate()
        calls = await world.start(max_waiting=2)
        await calls.accept(a_call(1, "wait"))
        await calls.accept(a_call(2, "wait"))
        with pytest.raises(Overloaded) as caught:
            await calls.accept(a_call(3, "wait"))
        assert (caught.value.outcome, caught.value.retry_after_s) == ("not_applied", 1)
        assert len(world.entries()) == 2
        await world.kill()

    run(scenario())


def test_a_result_that_is_too_large_for_a_record_fails_and_says_so() -> None:
    """Nothing is cut off and nothing waits forever."""

    async def scenario() -> None:
        world = CallWorld(Limits(record_bytes=2000, request_bytes=100_000))

        async def body(_call: Call) -> Outcome:
            return Outcome(Payload("bytes", bytes(3000)), None)

        world.bodies["large"] = body
        calls = await world.start()
        state = await calls.state(await calls.accept(a_call(1, "large")), wait_s=10)
        assert state.failure is not None
        assert (state.failure.code, state.failure.outcome) == ("too_large", "failed")
        assert "3,000 bytes" in state.failure.message
        with pytest.raises(TooLarge):
            await calls.accept(a_call(2, data=bytes(3000)))
        await calls.stop()

    run(scenario())


def test_unknown_ids_are_not_found() -> None:
    """Whatever text comes as an id."""

    async def scenario() -> None:
        world = CallWorld()
        calls = await world.start()
        for text in ("0" * 32, "", "x" * 5000, "\n", "../" * 10):
            with pytest.raises(NoSuchInvocation):
                await calls.state(text)
        await calls.stop()

    run(scenario())


def test_a_call_that_another_engine_accepted_just_now_is_known() -> None:
    """Whoever was told its id may ask any engine for it, also one whose index has not come so far (seed 119)."""

    class Behind(FaultyPort):
        """Sees nothing of the log before it asks for its tail."""

        async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
            if isinstance(operation, Read) and operation.backward and not operation.fresh:
                return await super().request(Read("nothing"), positions, timeout_s)
            return await super().request(operation, positions, timeout_s)

    async def scenario() -> None:
        world = CallWorld()
        calls = await world.start()
        invocation_id = await calls.accept(a_call(1), delay_s=3600)
        other = LoggedCalls(Behind(world.log), echo, me=Owner("engine-2", 2), clock=now_us)
        await other.start()
        assert (await other.state(invocation_id)).state == "accepted"
        with pytest.raises(NoSuchInvocation):
            await other.state("0" * 32)
        await other.stop()
        await calls.stop()

    run(scenario())


# Delays


def test_a_delayed_call_runs_when_it_is_due_by_the_logs_time() -> None:
    """Not a moment earlier, also across a restart in between."""

    async def scenario() -> None:
        world = CallWorld()
        calls = await world.start()
        invocation_id = await calls.accept(a_call(1), delay_s=3600)
        state = await calls.state(invocation_id, wait_s=3000)
        assert (state.state, state.due_us - state.accepted_us) == ("accepted", 3_600_000_000)
        await world.kill()
        calls = await world.start()
        done = await calls.state(invocation_id, wait_s=7200)
        assert (done.state, done.accepted_us, done.due_us) == ("done", state.accepted_us, state.due_us)
        assert 0 <= done.started_us - state.due_us < 1000
        await calls.stop()

    run(scenario())


def test_a_delay_that_passed_while_nobody_ran_is_made_up_for() -> None:
    """The call runs as soon as somebody is there again."""

    async def scenario() -> None:
        world = CallWorld()
        calls = await world.start()
        invocation_id = await calls.accept(a_call(1), delay_s=60)
        await world.kill()
        await time_passes(1000)
        calls = await world.start()
        assert (await calls.state(invocation_id, wait_s=1)).state == "done"
        await calls.stop()

    run(scenario())


@pytest.mark.parametrize("delay_s", [-1, float("nan"), float("inf"), 366 * DAY_S])
def test_delays_beyond_a_year_and_no_numbers_are_refused(delay_s: float) -> None:
    """The error names the field and the limit."""

    async def scenario() -> None:
        world = CallWorld()
        calls = await world.start()
        with pytest.raises(InvalidArgument, match="a year"):
            await calls.accept(a_call(1), delay_s=delay_s)
        await calls.stop()

    run(scenario())
