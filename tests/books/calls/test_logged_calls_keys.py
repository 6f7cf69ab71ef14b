"""Logged calls under idempotency keys: one run, one outcome, whoever asks and however often."""

from __future__ import annotations

import asyncio

import pytest

from boki.errors import (
    DeadlineExceeded,
    FunctionFailed,
    InvalidArgument,
    KeyReused,
    Trimmed,
)
from boki.protocol.calls import Call, Outcome, Payload
from tests.books.calls.call_world import CallWorld, Gate, a_call, echo, failing, run

DAY_S = 24 * 3600.0


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


def test_a_call_that_was_refused_unrun_does_not_burn_its_key() -> None:
    """Its corrected form runs once under the same key, also after a restart; then the key is taken."""

    async def scenario() -> None:
        world = CallWorld()

        async def body(call: Call) -> Outcome:
            return failing(InvalidArgument("no")) if call.payload.data == b"bad" else await echo(call)

        world.bodies["strict"] = body
        calls = await world.start()
        _, refusal = await calls.call_once(a_call(1, "strict", b"bad"), "k")
        assert refusal.failure is not None
        corrected = await asyncio.gather(*(calls.call_once(a_call(n, "strict", b"1"), "k") for n in range(2, 6)))
        assert [outcome.failure for _, outcome in corrected] == [None] * 4
        assert len({invocation_id for invocation_id, _ in corrected}) == 1
        await world.kill()
        calls = await world.start()
        assert await calls.call_once(a_call(6, "strict", b"1"), "k") == corrected[0]
        assert await calls.accept(a_call(7, "strict", b"1"), key="k") == corrected[0][0]
        assert (await calls.call_once(a_call(8, "strict", b"bad"), "k"))[1] == refusal
        with pytest.raises(KeyReused):
            await calls.call_once(a_call(9, "strict", b"2"), "k")
        assert len(world.ran) == 2
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
    """After the deadline the outcome is unknown to the caller; the body continues, and the key finds it."""

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
