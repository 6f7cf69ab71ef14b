"""Logged calls: accepted once, run until they end, recorded once, kept for a while; in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from boki.calls import Call, Outcome, Payload
from boki.engine.ledger import BOOK, MAX_STARTS, Accepted, Checkpoint, Finished
from boki.errors import (
    BokiError,
    CallLost,
    DeadlineExceeded,
    FunctionFailed,
    InvalidArgument,
    KeyReused,
    NoSuchInvocation,
    Overloaded,
    TooLarge,
    Trimmed,
    Unavailable,
    VersionTooNew,
)
from boki.log.chunk import Group, encode_chunk
from boki.log.limits import Limits
from boki.log.operations import Append, Failure, Get
from tests.engine.call_world import CallWorld, a_call, now_us, run, time_passes

DAY_S = 24 * 3600.0


def failing(error: BokiError) -> Outcome:
    return Outcome(None, Failure.of(error))


class Gate:
    """A function that runs until the test lets it end."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, call: Call) -> Outcome:
        self.started.set()
        await self.opened.wait()
        return Outcome(call.payload, None)


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
        assert world.ran == [a_call(1)]
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
        assert (state.failure.code, state.attempts, len(world.ran)) == ("call_lost", MAX_STARTS, MAX_STARTS)
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
        state = await calls.state(await calls.accept(a_call(1, "busy")), wait_s=DAY_S)
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
    """Nothing is cut off and nothing waits for ever."""

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


# Keys


def test_the_first_outcome_is_given_again_under_its_key() -> None:
    """The body runs once; repeats get its id and its outcome, also after a restart, also the failure."""

    async def scenario() -> None:
        world = CallWorld()

        async def body(_call: Call) -> Outcome:
            return failing(FunctionFailed("no"))

        world.bodies["bad"] = body
        calls = await world.start()
        first = await calls.call_once(a_call(1), "k1")
        assert first == (a_call(1).id, Outcome(Payload("json", b'"hello"'), None, {0: 7}))
        assert await calls.call_once(a_call(2), "k1") == first
        bad = await calls.call_once(a_call(3, "bad"), "k2")
        await world.kill()
        calls = await world.start()
        assert await calls.call_once(a_call(4), "k1") == first
        assert await calls.call_once(a_call(5, "bad"), "k2") == bad
        assert bad[1].failure is not None
        assert [call.id for call in world.ran] == [a_call(1).id, a_call(3).id]
        await calls.stop()

    run(scenario())


def test_concurrent_duplicates_wait_for_the_first() -> None:
    """However many come while the body runs, it runs once, and all get its outcome."""

    async def scenario() -> None:
        world = CallWorld()
        gate = world.bodies["wait"] = Gate()
        calls = await world.start()
        tasks = [asyncio.create_task(calls.call_once(a_call(number, "wait"), "k")) for number in range(1, 21)]
        await gate.started.wait()
        gate.opened.set()
        answers = await asyncio.gather(*tasks)
        assert len({repr(answer) for answer in answers}) == 1
        assert len(world.ran) == 1
        assert len(world.finished()) == 1
        await calls.stop()

    run(scenario())


@pytest.mark.parametrize("other", [a_call(2, data=b"2"), a_call(2, "other")])
def test_another_request_under_the_same_key_is_refused(other: Call) -> None:
    """And the first one is not disturbed."""

    async def scenario() -> None:
        world = CallWorld()
        calls = await world.start()
        first = await calls.call_once(a_call(1), "k")
        for attempt in (
            calls.call_once(other, "k"),
            calls.accept(other, key="k"),
            calls.accept(a_call(3), key="k", delay_s=1),
        ):
            with pytest.raises(KeyReused) as caught:
                await attempt
            assert (caught.value.outcome, caught.value.invocation) == ("not_applied", first[0])
        assert await calls.call_once(a_call(4), "k") == first
        assert len(world.ran) == 1
        await calls.stop()

    run(scenario())


def test_asynchronous_calls_take_keys_too() -> None:
    """The same id is told again, and a synchronous repeat waits for the very same call."""

    async def scenario() -> None:
        world = CallWorld()
        calls = await world.start()
        invocation_id = await calls.accept(a_call(1), key="k")
        assert await calls.accept(a_call(2), key="k") == invocation_id
        assert (await calls.call_once(a_call(3), "k"))[0] == invocation_id
        assert len(world.ran) == 1
        await calls.stop()

    run(scenario())


def test_a_key_is_forgotten_after_a_day_of_the_logs_time() -> None:
    """Then it stands for a new call."""

    async def scenario() -> None:
        world = CallWorld()
        calls = await world.start(keep_s=7 * DAY_S)
        first = await calls.call_once(a_call(1), "k")
        await calls.accept(a_call(2), delay_s=DAY_S - 60)
        await calls.state(a_call(2).id, wait_s=2 * DAY_S)
        assert await calls.call_once(a_call(3), "k") == first
        await calls.accept(a_call(4), delay_s=120)
        await calls.state(a_call(4).id, wait_s=200)
        assert (await calls.call_once(a_call(5), "k"))[0] == a_call(5).id
        await calls.stop()

    run(scenario())


def test_a_key_whose_call_is_no_longer_kept_is_not_run_again() -> None:
    """If results are kept for less than keys, a repeat is told that the result is gone."""

    async def scenario() -> None:
        world = CallWorld()
        calls = await world.start(keep_s=60)
        await calls.call_once(a_call(1), "k")
        await calls.accept(a_call(2), delay_s=600)
        await calls.state(a_call(2).id, wait_s=700)
        with pytest.raises(Trimmed):
            await calls.call_once(a_call(3), "k")
        assert [call.id for call in world.ran] == [a_call(1).id, a_call(2).id]
        await calls.stop()

    run(scenario())


def test_a_caller_who_gives_up_can_come_back_for_the_outcome() -> None:
    """After the deadline the outcome is unknown to the caller; the body goes on, and the key finds it."""

    async def scenario() -> None:
        world = CallWorld()
        gate = world.bodies["wait"] = Gate()
        calls = await world.start()
        with pytest.raises(DeadlineExceeded) as caught:
            await calls.call_once(a_call(1, "wait", timeout_s=5), "k")
        assert (caught.value.outcome, caught.value.invocation) == ("unknown", a_call(1).id)
        gate.opened.set()
        assert (await calls.call_once(a_call(2, "wait"), "k"))[0] == a_call(1).id
        assert len(world.ran) == 1
        await calls.stop()

    run(scenario())


def test_a_cancelled_caller_leaves_the_call_running() -> None:
    """A client that disconnects does not undo what was accepted."""

    async def scenario() -> None:
        world = CallWorld()
        gate = world.bodies["wait"] = Gate()
        calls = await world.start()
        task = asyncio.create_task(calls.call_once(a_call(1, "wait"), "k"))
        await gate.started.wait()
        task.cancel()
        gate.opened.set()
        assert (await calls.state(a_call(1).id, wait_s=10)).state == "done"
        await calls.stop()

    run(scenario())


def test_calls_that_somebody_waits_for_do_not_queue_behind_the_others() -> None:
    """A full house of asynchronous calls delays no keyed one."""

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["wait"] = Gate()
        calls = await world.start(max_running=1)
        await calls.accept(a_call(1, "wait"))
        await calls.accept(a_call(2))
        assert (await calls.call_once(a_call(3), "k"))[0] == a_call(3).id
        assert [call.id for call in world.ran] == [a_call(1).id, a_call(3).id]
        await world.kill()

    run(scenario())


# Keeping house


def test_records_are_trimmed_when_they_are_older_than_they_are_kept() -> None:
    """By the log's time, and by nothing else."""

    async def scenario() -> None:
        world = CallWorld()
        calls = await world.start(keep_s=DAY_S)
        await calls.accept(a_call(1))
        assert (await calls.state(a_call(1).id, wait_s=0.9 * DAY_S)).state == "done"
        await calls.accept(a_call(2), delay_s=0.9 * DAY_S)
        await calls.state(a_call(2).id, wait_s=DAY_S)
        assert (await calls.state(a_call(1).id)).state == "done"
        await calls.accept(a_call(3), delay_s=0.3 * DAY_S)
        await calls.state(a_call(3).id, wait_s=DAY_S)
        with pytest.raises(NoSuchInvocation):
            await calls.state(a_call(1).id)
        assert (await calls.state(a_call(2).id)).state == "done"
        await calls.stop()

    run(scenario())


def test_a_call_that_waits_longer_than_records_are_kept_is_carried_forward() -> None:
    """It neither gets lost nor holds up trimming, and runs when it is due; also across restarts."""

    async def scenario() -> None:
        world = CallWorld()
        calls = await world.start(keep_s=DAY_S)
        await calls.accept(a_call(1, data=b'"late"'), delay_s=8 * DAY_S)
        accepted = await calls.state(a_call(1).id)
        for day in range(1, 6):
            await calls.accept(a_call(100 + day), delay_s=DAY_S)
            await calls.state(a_call(100 + day).id, wait_s=2 * DAY_S)
            if day == 3:
                await world.kill()
                calls = await world.start(keep_s=DAY_S)
        assert len(world.entries()) < 8
        waiting = await calls.state(a_call(1).id)
        assert (waiting.state, waiting.accepted_us, waiting.due_us) == (
            "accepted",
            accepted.accepted_us,
            accepted.due_us,
        )
        done = await calls.state(a_call(1).id, wait_s=8 * DAY_S)
        assert (done.state, done.result, done.due_us) == ("done", Payload("json", b'"late"'), accepted.due_us)
        assert 0 <= done.started_us - accepted.due_us < 1000
        await calls.stop()

    run(scenario())


def test_a_call_that_finishes_while_it_is_carried_forward_finishes_once() -> None:
    """The one that loses the race finds what the other has written."""

    async def scenario() -> None:
        world = CallWorld()
        gate = world.bodies["wait"] = Gate()
        calls = await world.start(keep_s=60)
        await calls.accept(a_call(1, "wait"))
        await gate.started.wait()
        await calls.accept(a_call(2), delay_s=100)
        await calls.state(a_call(2).id, wait_s=200)
        carried = [entry for entry in world.entries() if isinstance(entry, Accepted) and entry.call.id == a_call(1).id]
        assert [entry.accepted_us != 0 for entry in carried] == [True]
        gate.opened.set()
        assert (await calls.state(a_call(1).id, wait_s=10)).state == "done"
        assert len([entry for entry in world.finished() if entry.id == a_call(1).id]) == 1
        await calls.stop()

    run(scenario())


def test_a_restart_reads_from_the_last_checkpoint_on() -> None:
    """A clean stop leaves a checkpoint, and what lies below it is not read again."""

    async def scenario() -> None:
        world = CallWorld()
        calls = await world.start()
        for number in range(1, 30):
            await calls.accept(a_call(number))
            await calls.state(a_call(number).id, wait_s=10)
        await calls.accept(a_call(99), delay_s=DAY_S)
        await calls.stop()
        (checkpoint,) = [entry for entry in world.entries() if isinstance(entry, Checkpoint)]
        assert [waiting.id for waiting in checkpoint.waiting] == [a_call(99).id]
        calls = await world.start()
        assert calls.waiting_count == 1
        reads = [operation for operation in world.port.operations if getattr(operation, "start", 0)]
        assert reads
        assert all(read.start >= checkpoint.fold_from for read in reads)  # type: ignore[union-attr]
        assert (await calls.state(a_call(99).id, wait_s=2 * DAY_S)).state == "done"
        await calls.stop()

    run(scenario())


def test_stopping_refuses_new_calls_and_leaves_the_rest_for_the_next_start() -> None:
    """Who waits is told that it is unknown; the call is not lost."""

    async def scenario() -> None:
        world = CallWorld()
        gate = world.bodies["wait"] = Gate()
        calls = await world.start()
        waiter = asyncio.create_task(calls.call_once(a_call(1, "wait"), "k"))
        await gate.started.wait()
        await calls.stop(drain_s=1)
        _, outcome = await waiter
        assert outcome.failure is not None
        assert (outcome.failure.code, outcome.failure.outcome) == ("unavailable", "unknown")
        with pytest.raises(Unavailable):
            await calls.accept(a_call(2))
        world.bodies.clear()
        calls = await world.start()
        assert (await calls.call_once(a_call(3, "wait"), "k"))[0] == a_call(1).id
        await calls.stop()

    run(scenario())


def test_records_of_a_newer_version_stop_the_start() -> None:
    """A downgrade is refused by name instead of running calls that are not understood."""

    async def scenario() -> None:
        world = CallWorld()
        chunk = encode_chunk(BOOK, [Group([(b"\x02new", ("accepted",))])])
        world.log.answer(Append(BOOK, chunk), now_us())
        with pytest.raises(VersionTooNew):
            await world.start()
        assert not world.ran

    run(scenario())


def test_what_is_recorded_is_what_the_first_to_finish_recorded() -> None:
    """Another runner of the same call may have been faster: its outcome counts, and is told."""

    async def scenario() -> None:
        world = CallWorld()
        gate = world.bodies["wait"] = Gate()
        calls = await world.start()
        waiter = asyncio.create_task(calls.call_once(a_call(1, "wait"), "k"))
        await gate.started.wait()
        other = CallWorld()
        other.log = world.log

        async def body(_call: Call) -> Outcome:
            return Outcome(Payload("json", b'"other"'), None)

        other.bodies["wait"] = body
        await (await other.start()).state(a_call(1).id, wait_s=10)
        gate.opened.set()
        assert (await waiter)[1].result == Payload("json", b'"other"')
        assert [type(entry) for entry in world.entries()] == [Accepted, Finished]
        await calls.stop()
        await other.calls.stop()

    run(scenario())
