"""Function calls between a gateway and engines of other processes: each ends once, whatever gets lost."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

import boki.protocol.call_messages
from boki.errors import CallLost, Overloaded, Unavailable
from boki.log.operations import Read
from boki.protocol.messages import Message
from tests.books.calls.call_world import a_call, time_passes
from tests.engine.remote_world import GATEWAY, A, B, Cluster, home, in_cluster


def test_a_call_runs_at_the_engine_it_was_given_to() -> None:
    """With its payload, whatever its size, and what it has seen of the logs on both ways."""

    async def scenario(cluster: Cluster) -> None:
        call = msgspec.structs.replace(a_call(data=b"1" * 4_000_000), positions={0: 3})
        outcome = await cluster.call(B, call)
        assert (outcome.result, outcome.positions) == (call.payload, {0: 7})
        assert cluster.engines[B].functions.started == [call]
        assert not cluster.engines[A].functions.started

    in_cluster(scenario)


def test_the_calls_of_an_engine_that_is_gone_end_as_unknown() -> None:
    """At once when it is registered no more, or as another incarnation; the other's continue."""

    async def scenario(cluster: Cluster) -> None:
        first, second = cluster.call(A, a_call(1, "hang")), cluster.call(B, a_call(2, "hang"))
        await time_passes(0.1)
        cluster.register(B)
        failure = (await first).failure
        assert failure is not None
        assert (failure.code, failure.outcome) == (CallLost.code, "unknown")
        assert set(cluster.watcher.standings) == {B}
        cluster.engines[B].functions.end(a_call(2, "hang"))
        assert (await second).failure is None

    in_cluster(scenario)


def test_the_calls_of_a_silent_engine_end_as_unknown_after_seconds() -> None:
    """Its answers, which come when it wakes, find nobody; it gets new calls then."""

    async def scenario(cluster: Cluster) -> None:
        lost = cluster.call(A, a_call(1, "hang"))
        await time_passes(0.1)
        cluster.wire.loses = lambda sender, to, _message: A in (sender, to)
        await time_passes(1.0)
        assert not cluster.watcher.standings[A].takes_calls
        assert not lost.done()
        await time_passes(3.0)
        assert lost.result().failure is not None
        cluster.wire.loses = lambda *_: False
        await time_passes(1.0)
        assert cluster.watcher.standings[A].takes_calls
        cluster.engines[A].functions.end(a_call(1, "hang"))
        assert (await cluster.call(A, a_call(3))).failure is None

    in_cluster(scenario)


@pytest.mark.parametrize("kind", [boki.protocol.call_messages.StartCall, boki.protocol.call_messages.CallEnded])
def test_a_call_that_is_lost_on_the_way_ends_as_unknown_soon(kind: type[Message]) -> None:
    """The engine says that it has no such call: nobody waits for the call's own deadline."""

    async def scenario(cluster: Cluster) -> None:
        cluster.wire.loses = lambda _sender, _to, message: isinstance(message, kind)
        outcome = await asyncio.wait_for(cluster.call(A, a_call(timeout_s=3600)), 5.0)
        assert outcome.failure is not None
        assert (outcome.failure.code, outcome.failure.outcome) == (CallLost.code, "unknown")
        assert len(cluster.engines[A].functions.started) == (kind is boki.protocol.call_messages.CallEnded)

    in_cluster(scenario)


def test_a_message_that_comes_twice_runs_once() -> None:
    """Also when the call has ended in between."""

    async def scenario(cluster: Cluster) -> None:
        engine = cluster.engines[A]
        for call in (a_call(1, "hang"), a_call(2, "echo")):
            for _ in range(3):
                engine.service.deliver(GATEWAY, boki.protocol.call_messages.StartCall(77 + int(call.id, 16), call))
        assert [call.function for call in engine.functions.started] == ["hang", "echo"]
        engine.functions.end(a_call(1, "hang"))
        engine.service.deliver(GATEWAY, boki.protocol.call_messages.StartCall(78, a_call(1, "hang")))
        assert len(engine.functions.started) == 2

    in_cluster(scenario)


def test_an_engine_takes_so_many_calls_and_refuses_more() -> None:
    """At once, as not applied; what it has it says in its load."""

    async def scenario(cluster: Cluster) -> None:
        held = [cluster.call(A, a_call(number, "hang")) for number in (1, 2)]
        failure = (await cluster.call(A, a_call(3, "hang"))).failure
        assert failure is not None
        assert (failure.code, failure.outcome) == (Overloaded.code, "not_applied")
        await time_passes(0.2)
        assert (cluster.watcher.standings[A].running, cluster.watcher.standings[A].capacity) == (2, 2)
        for number in (1, 2):
            cluster.engines[A].functions.end(a_call(number, "hang"))
        await asyncio.gather(*held)
        assert (await cluster.call(A, a_call(4))).failure is None

    in_cluster(scenario, capacity=2)


def test_an_engine_that_drains_finishes_what_it_has_and_refuses_what_is_new() -> None:
    """The gateway knows it at once, and what was on its way is refused as not begun."""

    async def scenario(cluster: Cluster) -> None:
        held = cluster.call(A, a_call(1, "hang"))
        await time_passes(0.1)
        draining = asyncio.create_task(cluster.engines[A].service.drain(60))
        await time_passes(0.01)
        assert not cluster.watcher.standings[A].takes_calls
        failure = (await cluster.call(A, a_call(2))).failure
        assert failure is not None
        assert (failure.code, failure.outcome, failure.retryable) == (Unavailable.code, "not_applied", True)
        assert not draining.done()
        cluster.engines[A].functions.end(a_call(1, "hang"))
        await draining
        assert (await held).failure is None

    in_cluster(scenario)


def test_reads_that_wait_move_on_when_their_engine_drains() -> None:
    """Else a drain would last as long as the longest poll; the reader sees nothing of it, nor waits any longer."""

    async def scenario(cluster: Cluster) -> None:
        first, second = home(cluster)
        first.log.holds = second.log.holds = True
        read = Read("book", wait_us=20_000_000)
        asked = asyncio.create_task(cluster.backend.request(read, {}, 30.0))
        await time_passes(0.1)
        await asyncio.wait_for(first.service.drain(60), 1.0)
        await time_passes(0.1)
        rest = msgspec.structs.replace(read, wait_us=read.wait_us - 100_000)
        assert (first.log.operations, second.log.operations) == ([read], [rest])
        asked.cancel()

    in_cluster(scenario)


def test_an_engine_that_is_not_ready_is_not_asked() -> None:
    """The gateway is ready while any other is."""

    async def scenario(cluster: Cluster) -> None:
        cluster.engines[A].is_ready = False
        await time_passes(0.2)
        assert not cluster.watcher.standings[A].takes_calls
        assert cluster.backend.ready
        cluster.engines[B].is_ready = False
        await time_passes(0.2)
        assert not cluster.backend.ready
        assert set(cluster.backend.functions) == {"echo", "hang"}

    in_cluster(scenario)
