"""Calls that end with their acceptance: a body that only computes is run first, and nothing else happens before."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from boki.books.calls.ledger import JUST_BEFORE, Accepted, Finished, Started, id_tag
from boki.errors import KeyReused
from boki.log.operations import Append, Read
from boki.protocol.calls import PINNED, Begun, Call, ChosenId, Outcome, Payload, Suspension
from tests.books.calls.call_world import CallWorld, a_call, run, time_passes
from tests.books.calls.test_taken_over import Cluster, with_engines

GIVES_WAY = Outcome(None, None, suspended=Suspension(1))


def a_flow(number: int = 1, function: str = "flow", start: str = "s1") -> Call:
    """A call as a library starts it whose bodies are replayed."""
    return msgspec.structs.replace(a_call(number, function), chosen=ChosenId(start, attributes={PINNED: 0}))


async def computes(call: Call) -> Outcome:
    """A body that needs nothing."""
    return Outcome(call.payload, None)


async def has_an_effect(call: Call) -> Outcome:
    """A body that needs more than to compute."""
    return GIVES_WAY if call.is_tried else Outcome(call.payload, None)


async def takes_long(call: Call) -> Outcome:
    """A body that computes for longer than a try may take."""
    if call.is_tried:
        await asyncio.get_running_loop().create_future()
    return Outcome(call.payload, None)


def test_a_body_that_only_computes_ends_with_its_acceptance() -> None:
    """One append has both, and what asks for its state or starts it again finds a call like any other."""

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["flow"] = computes
        calls = await world.start()
        await calls.accept(a_flow())
        assert len([1 for operation in world.port.operations if isinstance(operation, Append)]) == 1
        accepted, finished = world.entries()
        assert isinstance(accepted, Accepted) and isinstance(finished, Finished)
        assert finished.accepted_seqnum == JUST_BEFORE and not accepted.call.is_tried
        state = await calls.state(a_flow().id)
        assert (state.state, state.attempts, state.result) == ("done", 1, a_flow().payload)
        await calls.accept(a_flow(start="s2"))
        copy = ChosenId("copy", copies=a_flow().id)
        await calls.accept(msgspec.structs.replace(a_flow(2), payload=Payload("json", b""), chosen=copy))
        assert (await calls.state(a_flow(2).id, wait_s=5)).result == a_flow().payload
        assert [call.id for call in world.ran if not call.is_tried] == [a_flow(2).id]
        await world.kill()
        again = await world.start()
        assert (again.waiting_count, (await again.state(a_flow().id)).state) == (0, "done")
        await world.kill()

    run(scenario())


def test_a_start_is_answered_with_what_has_come_of_it() -> None:
    """If the call ended with its acceptance, by this start, and the result is short; nothing is read for it."""

    async def scenario() -> None:
        world = CallWorld()
        world.bodies |= {"flow": computes, "effect": has_an_effect}
        calls = await world.start(replays=is_a_flow)
        assert await calls.begin(a_flow()) == Begun(a_flow().id, a_flow().payload)
        assert await calls.call_once(a_call(2, "flow"), "k") == (a_call(2).id, Outcome(a_call(2).payload, None))
        tags = {operation.tag for operation in world.port.operations if isinstance(operation, Read)}
        assert not tags & {id_tag(a_flow().id), id_tag(a_call(2).id)}
        assert await calls.begin(a_flow(start="s2")) == Begun(a_flow().id), "it stands for one that has ended"
        assert await calls.begin(a_flow(3, "effect")) == Begun(a_call(3).id)
        long = msgspec.structs.replace(a_flow(4), payload=Payload("bytes", bytes(100_000)))
        assert await calls.begin(long) == Begun(long.id)
        assert (await calls.state(long.id)).result == long.payload
        await world.kill()

    run(scenario())


def test_a_body_that_needs_more_is_accepted_and_begins_again() -> None:
    """It is on record before it may have an effect; after three such calls its function is left alone for a while."""

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["flow"] = has_an_effect
        calls = await world.start()
        for number in range(1, 6):
            await calls.accept(a_flow(number))
            assert (await calls.state(a_flow(number).id, wait_s=5)).state == "done"
        assert [call.is_tried for call in world.ran] == [True, False] * 3 + [False, False]
        await time_passes(10)
        await calls.accept(a_flow(6))
        await calls.state(a_flow(6).id, wait_s=5)
        assert [call.is_tried for call in world.ran[8:]] == [True, False]
        assert not any(isinstance(entry, Started) for entry in world.entries())
        await world.kill()

    run(scenario())


def test_an_acceptance_does_not_wait_for_a_long_body() -> None:
    """It is put off by milliseconds."""

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["flow"] = takes_long
        calls = await world.start()
        began_s = asyncio.get_running_loop().time()
        await calls.accept(a_flow())
        assert asyncio.get_running_loop().time() - began_s < 0.01
        assert (await calls.state(a_flow().id, wait_s=5)).state == "done"
        await world.kill()

    run(scenario())


def is_a_flow(function: str) -> bool:
    """What the functions that run say of their bodies."""
    return function == "flow"


def test_a_call_under_a_key_is_tried_if_its_function_is_replayed() -> None:
    """Both records are under the key: the same request finds them, another one is refused, and none runs again."""

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["flow"] = computes
        calls = await world.start(replays=is_a_flow)
        call = a_call(1, "flow")
        assert await calls.call_once(call, "k") == (call.id, Outcome(call.payload, None))
        assert [type(entry) for entry in world.entries()] == [Accepted, Finished]
        assert len([1 for operation in world.port.operations if isinstance(operation, Append)]) == 1
        assert await calls.call_once(a_call(2, "flow"), "k") == (call.id, Outcome(call.payload, None))
        with pytest.raises(KeyReused):
            await calls.call_once(a_call(3, "flow", data=b'"other"'), "k")
        await calls.call_once(a_call(4), "plain")
        assert await calls.accept(a_call(5, "flow")) == a_call(5).id
        assert (await calls.state(a_call(5).id, wait_s=5)).state == "done"
        assert [call.id for call in world.ran if not call.is_tried] == [a_call(4).id]
        await world.kill()

    run(scenario())


def test_a_call_under_a_key_that_needs_more_is_accepted() -> None:
    """Nothing is under the key until then."""

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["flow"] = has_an_effect
        calls = await world.start(replays=is_a_flow)
        call = a_call(1, "flow")
        assert await calls.call_once(call, "k") == (call.id, Outcome(call.payload, None))
        assert [ran.is_tried for ran in world.ran] == [True, False]
        await world.kill()

    run(scenario())


def test_only_calls_that_ask_for_a_version_are_tried() -> None:
    """A plain function may have an effect in its first line."""

    async def scenario() -> None:
        world = CallWorld()
        calls = await world.start()
        await calls.accept(a_call(1))
        await calls.accept(msgspec.structs.replace(a_call(2), chosen=ChosenId("s1")))
        attends = ChosenId("s1", attributes={PINNED: 0, "boki:attends": "gate"})
        await calls.accept(msgspec.structs.replace(a_call(3), chosen=attends))
        for number in (1, 2, 3):
            await calls.state(a_call(number).id, wait_s=5)
        assert not any(call.is_tried for call in world.ran)
        await world.kill()

    run(scenario())


def test_of_two_starts_at_two_engines_one_counts() -> None:
    """Both have tried the body, and the log decides whose outcome is the call's."""

    @with_engines("a", "b")
    async def scenario(cluster: Cluster) -> None:
        first, second = (cluster.engines[name].calls for name in "ab")
        cluster.bodies["flow"] = computes
        ids = await asyncio.gather(first.accept(a_flow(start="s1")), second.accept(a_flow(start="s2")))
        assert set(ids) == {a_flow().id}
        assert [len(cluster.entries(kind)) for kind in (Accepted, Finished)] == [1, 1]
        states = [await calls.state(a_flow().id, wait_s=5) for calls in (first, second)]
        assert [state.state for state in states] == ["done", "done"]


def test_of_two_calls_under_a_key_at_two_engines_one_counts() -> None:
    """Both have tried the body under ids of their own; both callers get the first one."""

    @with_engines("a", "b")
    async def scenario(cluster: Cluster) -> None:
        cluster.replayed.add("flow")
        first, second = (cluster.engines[name].calls for name in "ab")
        cluster.bodies["flow"] = computes
        calls = first.call_once(a_call(1, "flow"), "k"), second.call_once(a_call(2, "flow"), "k")
        ids = {found[0] for found in await asyncio.gather(*calls)}
        assert len(ids) == 1
        assert [len(cluster.entries(kind)) for kind in (Accepted, Finished)] == [1, 1]


def test_a_lost_answer_is_found_in_the_log() -> None:
    """The append is repeated, refused because it was carried out, and the start finds its own call."""

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["flow"] = computes
        calls = await world.start()
        at = len(world.port.operations)
        await world.kill()
        calls = await world.start({at: "lose_answer"})
        assert await calls.accept(a_flow()) == a_flow().id
        assert [type(entry) for entry in world.entries()] == [Accepted, Finished]
        assert (await calls.state(a_flow().id)).state == "done"
        await world.kill()

    run(scenario())


def test_a_lost_answer_of_a_call_under_a_key_is_found_in_the_log() -> None:
    """The key has the call's own records, and the body does not run again."""

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["flow"] = computes
        calls = await world.start()
        at = len(world.port.operations)
        await world.kill()
        calls = await world.start({at: "lose_answer"}, replays=is_a_flow)
        call = a_call(1, "flow")
        assert await calls.call_once(call, "k") == (call.id, Outcome(call.payload, None))
        assert [type(entry) for entry in world.entries()] == [Accepted, Finished]
        assert [ran.is_tried for ran in world.ran] == [True]
        await world.kill()

    run(scenario())
