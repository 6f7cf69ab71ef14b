"""Logged calls when the log fails or the process dies, at every single operation there is.

A scenario is played once undisturbed to count its log operations. Then it is played again with each fault at each of
them: a refusal, a lost request, a lost answer, a death right before or right after. Whatever happens, what was accepted
runs and has exactly one outcome, and what was refused has never happened.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import get_args

import pytest

from boki.books.calls.ledger import Accepted, Finished
from boki.books.calls.logged_calls import LoggedCalls
from boki.errors import BokiError
from boki.log.chunk import Group, encode_chunk
from boki.log.operations import Append
from boki.protocol.calls import Call, Outcome
from tests.books.calls.call_world import CallWorld, Fault, a_call, run, time_passes

FAULTS: tuple[Fault, ...] = get_args(Fault)
KEEP_S = 60.0

Client = Callable[[LoggedCalls], Awaitable[str]]


async def accept(calls: LoggedCalls) -> str:
    return await calls.accept(a_call(1))


async def accept_with_key(calls: LoggedCalls) -> str:
    return await calls.accept(a_call(1), key="k")


async def accept_delayed(calls: LoggedCalls) -> str:
    return await calls.accept(a_call(1), delay_s=10)


async def call_once(calls: LoggedCalls) -> str:
    invocation_id, outcome = await calls.call_once(a_call(1), "k")
    assert outcome.failure is None
    return invocation_id


async def accept_for_longer_than_is_kept(calls: LoggedCalls) -> str:
    return await calls.accept(a_call(1), delay_s=KEEP_S + 5)


SCENARIOS: list[Client] = [accept, accept_with_key, accept_delayed, call_once, accept_for_longer_than_is_kept]


async def play(world: CallWorld, client: Client, faults: dict[int, Fault]) -> str | BokiError | None:
    """Start, let the client do its thing, stop. None: the process died on the way."""

    async def life() -> str | BokiError:
        calls = await world.start(faults, keep_s=KEEP_S)
        answer: str | BokiError
        try:
            answer = await client(calls)
        except BokiError as error:
            answer = error
        await settled(calls)
        await calls.stop()
        return answer

    alive = asyncio.create_task(life())
    halted = asyncio.create_task(_halted(world))
    await asyncio.wait({alive, halted}, return_when=asyncio.FIRST_COMPLETED)
    if alive.done():
        halted.cancel()
        return alive.result()
    await world.kill()
    return None


async def settled(calls: LoggedCalls) -> None:
    """Return when all that was accepted has ended."""
    while calls.waiting_count:
        await time_passes(1.0)


async def _halted(world: CallWorld) -> None:
    await world.port.halted.wait()


def operation_count(client: Client) -> int:
    async def count() -> int:
        world = CallWorld()
        await play(world, client, {})
        return len(world.port.operations)

    return run(count())


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("client", SCENARIOS, ids=lambda client: client.__name__)
def test_whatever_fails_wherever_a_call_is_finished_once(client: Client, fault: Fault) -> None:
    """Every operation of the scenario fails in this way once; the promises hold after the next start."""
    count = operation_count(client)
    assert count > 5
    for at in range(count):
        run(_play_and_check(client, {at: fault}))


@pytest.mark.parametrize("second", ["refuse", "lose_answer", "halt_before"])
@pytest.mark.parametrize("client", SCENARIOS, ids=lambda client: client.__name__)
def test_after_a_lost_answer_a_second_failure_decides_nothing(client: Client, second: Fault) -> None:
    """What may have happened is not called off by a refusal of its repetition."""
    for at in range(operation_count(client)):
        run(_play_and_check(client, {at: "lose_answer", at + 1: second}))


async def _play_and_check(client: Client, faults: dict[int, Fault]) -> None:
    world = CallWorld()
    try:
        answer = await play(world, client, faults)
    except BokiError as error:  # the start itself failed
        answer = error
    where = f"{faults}: {answer!r}"
    acceptances = [entry for entry in world.entries() if isinstance(entry, Accepted) and not entry.accepted_us]
    assert len(acceptances) <= 1, where
    is_logged = any(isinstance(entry, Accepted | Finished) for entry in world.entries())
    if isinstance(answer, str):
        assert is_logged, where
    if isinstance(answer, BokiError) and answer.outcome == "not_applied":
        assert not is_logged, where
    calls = await world.start()
    await settled(calls)
    if is_logged:
        assert (await calls.state(a_call(1).id)).state == "done", where
    outcomes = Counter(entry.id for entry in world.finished())
    assert outcomes == ({a_call(1).id: 1} if is_logged else {}), where
    starts = [call.id for call in world.ran]
    if answer is not None:  # nobody died, so nobody had a reason to start it twice
        assert len(starts) <= 1, where
    if client in (call_once, accept_with_key):
        invocation_id, outcome = await calls.call_once(a_call(2), "k")
        assert invocation_id == (a_call(1).id if is_logged else a_call(2).id), where
        assert outcome.failure is None
    await calls.stop()


@pytest.mark.parametrize("operation", range(8))
def test_an_engine_stops_though_its_log_never_answers(operation: int) -> None:
    """The log falls silent permanently before some operation, and a stop still ends: the engine can begin again.

    One that waited for the record of a call's end, or for what its run has left to be appended, stayed away forever.
    """

    async def leave_something(call: Call) -> Outcome:
        left = Append("beside", encode_chunk("beside", [Group([(call.payload.data, ["t"])])]))
        return Outcome(call.payload, None, appends=(left,))

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["leaving"] = leave_something
        calls = await world.start()
        world.port.faults[len(world.port.operations) + operation] = "halt_before"
        calling = asyncio.create_task(calls.accept(a_call(1, "leaving")))
        await time_passes(100)
        async with asyncio.timeout(10):
            await calls.stop(0)
        await asyncio.wait([calling])
        await world.kill()

    run(scenario())
