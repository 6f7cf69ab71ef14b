"""Logged calls that fail: when they run again, what is known of their runs, and that a restart changes none of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import pairwise

import msgspec
import pytest

from boki.books.calls.ledger import Accepted, Finished, Retrying, Started
from boki.errors import BokiError, CallLost, DeadlineExceeded, FunctionFailed, Overloaded, Unavailable
from boki.host.lines import FACTS, SPEAKER
from boki.protocol.calls import ATTENDS, PINNED, Call, ChosenId, Move, Outcome, version_of
from boki.retry import Retry
from tests.books.calls.call_world import (
    EPOCH_US,
    CallWorld,
    Fault,
    Gate,
    a_call,
    echo,
    failing,
    now_us,
    run,
    time_passes,
)

POLICY = Retry(attempts=3, first_s=10, factor=2, jitter=0)


def with_policy(number: int = 1, function: str = "bad", retry: Retry | None = POLICY) -> Call:
    return msgspec.structs.replace(a_call(number, function), retry=retry)


class Failing:
    """A function that fails so often, and notes when."""

    def __init__(self, error: BokiError, times: int) -> None:
        self.error = error
        self.left = times
        self.began_us: list[int] = []

    async def __call__(self, call: Call) -> Outcome:
        self.began_us.append(now_us())
        self.left -= 1
        return failing(self.error) if self.left >= 0 else await echo(call)


def value_error() -> BokiError:
    return FunctionFailed("bad: ValueError: no", error_type="ValueError")


def test_a_call_with_a_policy_runs_again_and_ends_well() -> None:
    """After the policy's delays, by the log's time; its state says what happened on the way."""

    async def scenario() -> None:
        world = CallWorld()
        bad = world.bodies["bad"] = Failing(value_error(), 2)
        calls = await world.start()
        invocation_id = await calls.accept(with_policy())
        await time_passes(5)
        state = await calls.state(invocation_id)
        assert (state.state, state.attempts, state.errors) == ("retrying", 1, {"ValueError": 1})
        assert abs(state.next_us - bad.began_us[0] - 10_000_000) < 100_000
        assert state.last_error is not None
        assert state.last_error.message == "bad: ValueError: no"
        state = await calls.state(invocation_id, wait_s=100)
        assert (state.state, state.attempts, state.errors) == ("done", 3, {"ValueError": 2})
        assert (state.started_us, state.last_started_us) == (bad.began_us[0], bad.began_us[-1])
        pauses = [round((later - earlier) / 1e6) for earlier, later in pairwise(bad.began_us)]
        assert pauses == [10, 20]
        kinds = [type(entry) for entry in world.entries()]
        assert kinds == [Accepted, Retrying, Started, Retrying, Started, Finished]
        await calls.stop()

    run(scenario())


def test_a_call_whose_attempts_are_used_up_has_failed_for_good() -> None:
    """With what the last run ended with, and a count of all."""

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["bad"] = Failing(value_error(), 99)
        calls = await world.start()
        state = await calls.state(await calls.accept(with_policy()), wait_s=100)
        assert (state.state, state.attempts, state.errors) == ("failed", 3, {"ValueError": 3})
        assert state.failure is not None
        assert state.failure.details["error_type"] == "ValueError"
        await calls.stop()

    run(scenario())


@pytest.mark.parametrize(
    ("error", "retry", "runs"),
    [
        (value_error(), None, 1),
        (DeadlineExceeded("late"), None, 1),
        (CallLost("gone"), None, 4),
        (DeadlineExceeded("late"), POLICY, 3),
        (value_error(), Retry(attempts=1), 1),
        (CallLost("gone"), Retry(attempts=1), 1),
        (value_error(), Retry(first_s=10, deadline_s=5), 1),
        (FunctionFailed("no", error_type="TerminalError", terminal=True), POLICY, 1),
    ],
)
def test_how_often_a_call_runs(error: BokiError, retry: Retry | None, runs: int) -> None:
    """Without a policy only if its worker is lost; with one as that says."""

    async def scenario() -> None:
        world = CallWorld()
        bad = world.bodies["bad"] = Failing(error, 99)
        calls = await world.start()
        state = await calls.state(await calls.accept(with_policy(retry=retry)), wait_s=1_000)
        assert (state.state, state.attempts, len(bad.began_us)) == ("failed", runs, runs)
        await calls.stop()

    run(scenario())


def test_an_error_may_say_itself_when_to_run_again() -> None:
    """Its delay wins over that of the policy."""

    async def scenario() -> None:
        world = CallWorld()
        bad = world.bodies["bad"] = Failing(FunctionFailed("busy", error_type="Busy", retry_after_s=500), 1)
        calls = await world.start()
        state = await calls.state(await calls.accept(with_policy()), wait_s=1_000)
        assert state.state == "done"
        assert round((bad.began_us[1] - bad.began_us[0]) / 1e6) == 500
        await calls.stop()

    run(scenario())


def test_refusals_between_runs_are_no_attempts() -> None:
    """A body that found no worker has not run, and shows so."""

    async def scenario() -> None:
        world = CallWorld()
        outcomes = [value_error(), *[Overloaded("full")] * 12, value_error()]

        async def body(call: Call) -> Outcome:
            return failing(outcomes.pop(0)) if outcomes else await echo(call)

        world.bodies["bad"] = body
        calls = await world.start()
        invocation_id = await calls.accept(with_policy())
        await time_passes(12)
        waits = await calls.state(invocation_id)
        assert (waits.state, waits.attempts) == ("retrying", 1)
        assert waits.next_us > waits.last_started_us, "it was shown as 1970"
        state = await calls.state(invocation_id, wait_s=1_000)
        assert (state.state, state.attempts, state.errors) == ("done", 3, {"ValueError": 2})
        await calls.stop()

    run(scenario())


def test_a_retry_survives_the_loss_of_its_engine() -> None:
    """The next run is due when it was, and its policy continues where it stood."""

    async def scenario() -> None:
        world = CallWorld()
        bad = world.bodies["bad"] = Failing(value_error(), 99)
        calls = await world.start()
        invocation_id = await calls.accept(with_policy())
        await time_passes(3)
        before = await calls.state(invocation_id)
        await world.kill()
        calls = await world.start()
        state = await calls.state(invocation_id)
        assert (state.state, state.next_us) == ("retrying", before.next_us)
        state = await calls.state(invocation_id, wait_s=1_000)
        assert (state.state, state.attempts, state.errors) == ("failed", 3, {"ValueError": 3})
        assert round((bad.began_us[1] - EPOCH_US) / 1e6) == 10
        await calls.stop()

    run(scenario())


def test_runs_that_a_restart_cut_off_are_counted() -> None:
    """The first start is the first start, whoever has run the call since."""

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["wait"] = Gate()
        calls = await world.start()
        invocation_id = await calls.accept(a_call(1, "wait"))
        first = await calls.state(invocation_id)
        await time_passes(60)
        await world.kill()
        world.bodies.clear()
        calls = await world.start()
        state = await calls.state(invocation_id, wait_s=10)
        assert (state.state, state.attempts, state.errors) == ("done", 2, {"call_lost": 1})
        assert state.started_us == first.started_us
        assert state.last_started_us - state.started_us > 59_000_000
        await calls.stop()

    run(scenario())


def test_a_call_that_may_run_once_is_not_run_again_after_a_restart() -> None:
    """It ends as lost, although nobody saw it end; one that had not begun runs."""

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["wait"] = Gate()
        calls = await world.start(max_running=1)
        for number in (1, 2):
            await calls.accept(with_policy(number, "wait", Retry(attempts=1)))
        await time_passes(1)
        await world.kill()
        world.bodies.clear()
        calls = await world.start(max_running=1)
        first = await calls.state(a_call(1).id, wait_s=10)
        assert (first.state, first.attempts, first.failure and first.failure.code) == ("failed", 1, "call_lost")
        second = await calls.state(a_call(2).id, wait_s=10)
        assert (second.state, second.attempts) == ("done", 1)
        assert [call.id for call in world.ran] == [a_call(1).id, a_call(2).id]
        await calls.stop()

    run(scenario())


def test_a_call_that_waits_for_its_retry_longer_than_records_are_kept_is_carried_forward() -> None:
    """With its runs, and to the same moment."""

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["bad"] = Failing(value_error(), 1)
        calls = await world.start(keep_s=60)
        await calls.accept(with_policy(retry=Retry(first_s=600, max_s=600, jitter=0)))
        await time_passes(5)
        due_us = (await calls.state(a_call(1).id)).next_us
        for number in range(2, 6):
            await calls.accept(a_call(number), delay_s=60)
            await time_passes(100)
        state = await calls.state(a_call(1).id)
        assert (state.state, state.next_us, state.errors) == ("retrying", due_us, {"ValueError": 1})
        assert not any(isinstance(entry, Retrying) for entry in world.entries())
        state = await calls.state(a_call(1).id, wait_s=1_000)
        assert (state.state, state.attempts) == ("done", 2)
        await calls.stop()

    run(scenario())


def test_one_that_waits_under_a_key_hears_the_last_outcome() -> None:
    """The policy holds for calls under a key, too; their callers wait for its end, within their time."""

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["bad"] = Failing(value_error(), 2)
        calls = await world.start()
        invocation_id, outcome = await calls.call_once(with_policy(), "k")
        assert outcome.failure is None
        assert await calls.call_once(with_policy(2), "k") == (invocation_id, outcome)
        await calls.stop()

    run(scenario())


def test_the_line_about_a_failed_run_says_all_of_it(caplog: pytest.LogCaptureFixture) -> None:
    """Attempt n of m, reason, when it runs again: one line of text, no value's notation. The call is who says it, so
    that `boki logs --function` finds it.
    """

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["bad"] = Failing(CallLost("the worker process\nof the call exited with status 3"), 99)
        calls = await world.start()
        with caplog.at_level("INFO", "boki.protocol.calls"):
            await calls.state(await calls.accept(with_policy(retry=Retry(attempts=2, first_s=3, jitter=0))), wait_s=60)
        await calls.stop()

    run(scenario())
    why = "ended with call_lost: the worker process of the call exited with status 3"
    assert [record.getMessage() for record in caplog.records] == [
        f"attempt 1 of 2 {why}; it runs again in 3.0 s",
        f"attempt 2 of 2 {why}; it has failed for good",
    ]
    assert [getattr(record, SPEAKER) for record in caplog.records] == ["bad[00000000]"] * 2
    assert [getattr(record, FACTS)["attempt"] for record in caplog.records] == [1, 2]


@pytest.mark.parametrize("fault", ["refuse", "lose_request", "lose_answer", "halt_before", "halt_after"])
def test_whatever_fails_between_two_runs_the_call_ends_once(fault: Fault) -> None:
    """At every operation of the log, also if the process dies there: as many runs as the policy says, one end."""

    async def play(at: int | None) -> int:
        world = CallWorld()
        world.bodies["bad"] = Failing(value_error(), 1)
        with suppress(BokiError, TimeoutError):  # the start itself may fail
            calls = await asyncio.wait_for(world.start({} if at is None else {at: fault}), 5)
            await asyncio.wait_for(calls.accept(with_policy()), 5)
        await time_passes(60)
        count = len(world.port.operations)
        await world.kill()
        calls = await world.start()
        await time_passes(60)
        ended = [entry for entry in world.finished() if entry.id == a_call(1).id]
        accepted = [entry for entry in world.entries() if isinstance(entry, Accepted)]
        assert len(ended) == bool(accepted), (fault, at)
        assert all(entry.outcome.failure is None and len(world.ran) <= entry.attempts <= 3 for entry in ended), (
            fault,
            at,
        )
        await calls.stop()
        return count

    count = run(play(None))
    assert count > 8
    for at in range(1, count):
        run(play(at))


def test_a_pinned_call_that_no_worker_takes_can_be_moved() -> None:
    """Its version may not start any more, such as after a bad deployment. On record as one that runs it would stay with
    that, and its state says why it waits. Once another version takes it, it continues.
    """

    async def scenario() -> None:
        world = CallWorld()

        async def body(call: Call) -> Outcome:
            assert call.chosen is not None
            broken = version_of(call.chosen.attributes) == 2
            return failing(Unavailable("module 'shop' cannot be run")) if broken else await echo(call)

        world.bodies["shop"] = body
        calls = await world.start(version=lambda _: 2)
        pinned = msgspec.structs.replace(with_policy(1, "shop"), chosen=ChosenId("s", attributes={PINNED: 0}))
        invocation_id = await calls.accept(pinned)
        for _ in range(2):
            await time_passes(40)
            state = await calls.state(invocation_id)
            assert (state.state, state.attempts, version_of(state.attributes)) == ("suspended", 0, 2)
            assert state.suspension is not None
            assert state.suspension.note == "no worker takes it: module 'shop' cannot be run"
        records = len(world.records())
        await time_passes(3_600)
        assert len(world.records()) - records <= 2 * 3_600 / 30 + 2
        state = await calls.state(invocation_id)
        moved = await calls.asked(invocation_id, 0, Move(1, state.attempts))
        assert (moved.state, version_of(moved.attributes)) == ("suspended", 1)
        state = await calls.state(invocation_id, wait_s=60)
        assert (state.state, state.attempts) == ("done", 1)
        await calls.stop()

    run(scenario())


def held_up(retry: Retry | None, **attributes: str) -> Call:
    """A call of a version that does not run for 100 s, and begins to fail then."""
    return msgspec.structs.replace(
        with_policy(1, "shop", retry), chosen=ChosenId("s", attributes={PINNED: 0, **attributes})
    )


@pytest.mark.parametrize(("deadline_s", "runs"), [(110, 1), (None, 3)])
def test_what_a_pinned_call_was_held_up_counts_as_time_since_it_was_due(deadline_s: float | None, runs: int) -> None:
    """And its first run knows when it was accepted: messages may have come meanwhile."""

    async def scenario() -> None:
        world = CallWorld()
        begun: list[Call] = []

        async def body(call: Call) -> Outcome:
            if now_us() < EPOCH_US + 100_000_000:
                return failing(Unavailable("module 'shop' cannot be run"))
            begun.append(call)
            return failing(value_error())

        world.bodies["shop"] = body
        calls = await world.start(version=lambda _: 2)
        policy = Retry(attempts=3, first_s=10, max_s=10, jitter=0, deadline_s=deadline_s)
        invocation_id = await calls.accept(held_up(policy))
        state = await calls.state(invocation_id, wait_s=600)
        assert (state.state, state.attempts, len(begun)) == ("failed", runs, runs)
        assert [call.run for call in begun] == [call.attempt for call in begun] == list(range(1, runs + 1))
        assert all(call.accepted_us == state.accepted_us for call in begun)
        await calls.stop()

    run(scenario())


def test_a_call_that_attends_to_something_is_not_suspended_for_want_of_a_worker() -> None:
    """Such as a query that nobody waits for any more: it would write records for as long as its version does not run.
    Nothing moves it.
    """

    async def scenario() -> None:
        world = CallWorld()

        async def body(_call: Call) -> Outcome:
            return failing(Unavailable("module 'shop' cannot be run"))

        world.bodies["shop"] = body
        calls = await world.start(version=lambda _: 2)
        await calls.accept(held_up(None, **{ATTENDS: "query"}))
        await time_passes(600)
        assert len(world.entries()) == 1
        await calls.stop()

    run(scenario())


def test_a_pinned_call_that_waits_for_room_is_not_suspended_for_want_of_a_worker() -> None:
    """Nor if its version is not there for a moment then, such as when another one is deployed."""

    async def scenario() -> None:
        world = CallWorld()
        offers = 0

        async def body(call: Call) -> Outcome:
            nonlocal offers
            offers += 1
            if offers == 20:
                return failing(Unavailable("it was replaced"))
            return failing(Overloaded("no room")) if offers < 30 else await echo(call)

        world.bodies["shop"] = body
        calls = await world.start(version=lambda _: 2)
        state = await calls.state(await calls.accept(held_up(None)), wait_s=600)
        assert (state.state, state.attempts) == ("done", 1)
        assert [type(entry) for entry in world.entries()] == [Accepted, Finished]
        await calls.stop()

    run(scenario())
