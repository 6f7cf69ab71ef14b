"""Streams between an engine and a gateway of a cluster, over links that lose, repeat and end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import boki.protocol.call_messages
from boki.dispatch.server.streams import FORGET_US
from boki.errors import FunctionFailed
from boki.gateway.backend import StreamControl
from boki.log.operations import Failure
from boki.protocol.calls import Outcome, Payload, ResultChunk
from boki.protocol.messages import Message
from boki.worker.frames import Streamed, Taken
from tests.books.calls.call_world import a_call, time_passes
from tests.engine.remote_world import A, Cluster, in_cluster

DONE = Outcome(Payload("bytes", b""), None)


class Stream:
    """A call that streams: its worker's side, and what its gateway has had."""

    def __init__(self, cluster: Cluster) -> None:
        self.engine = cluster.engines[A]
        self.had: list[ResultChunk] = []
        self.ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        call = a_call(1, "hang")
        self.control: StreamControl = cluster.backend.start_call(A, call, self.ended.set_result, self.had.append)
        self.call = call

    def send(self, *numbers: int) -> None:
        """Chunks come from the worker."""
        for number in numbers:
            chunk = ResultChunk(number, b"%d" % number, b"head" if number == 1 else b"")
            self.engine.functions.streams.deliver(7, Streamed(1, chunk))

    def end(self, outcome: Outcome = DONE) -> None:
        """The worker says how the call has ended."""
        self.engine.functions.hanging.pop(self.call.id)(outcome)

    @property
    def numbers(self) -> list[int]:
        return [chunk.number for chunk in self.had]


def losing_first(kind: type[Message], count: int) -> Callable[..., bool]:
    """Lose the first few messages of a kind."""
    left = count

    def loses(_sender: object, _to: object, message: Message) -> bool:
        nonlocal left
        if isinstance(message, kind) and left:
            left -= 1
            return True
        return False

    return loses


def test_chunks_arrive_in_order_and_what_is_taken_reaches_the_worker() -> None:
    """And the end comes when all of it is taken."""

    async def scenario(cluster: Cluster) -> None:
        stream = Stream(cluster)
        await time_passes(0.05)
        stream.send(1, 2, 3)
        stream.end()
        await time_passes(0.05)
        assert stream.numbers == [1, 2, 3]
        assert stream.had[0].head == b"head"
        stream.control.taken(2)
        await time_passes(0.05)
        assert stream.engine.functions.told == [Taken(1, 2)]
        assert not stream.ended.done()
        stream.control.taken(3)
        await time_passes(0.05)
        assert stream.ended.result() == DONE

    in_cluster(scenario)


def test_lost_chunks_are_sent_again_and_repeated_ones_are_taken_once() -> None:
    """When the gateway says for the second time how far it is; so is a lost word of what was taken."""

    async def scenario(cluster: Cluster) -> None:
        stream = Stream(cluster)
        await time_passes(0.05)
        cluster.wire.loses = losing_first(boki.protocol.call_messages.StreamChunk, 1)
        stream.send(1, 2, 3)
        await time_passes(0.05)
        assert stream.numbers == []  # 2 and 3 have come before their turn
        stream.control.taken(0)
        await time_passes(0.05)
        assert stream.numbers == [1, 2, 3]
        stream.control.taken(0)
        cluster.wire.loses = losing_first(boki.protocol.call_messages.StreamTaken, 1)
        stream.control.taken(3)
        await time_passes(0.05)
        assert stream.numbers == [1, 2, 3]
        assert Taken(1, 3) not in stream.engine.functions.told
        stream.control.taken(3)
        await time_passes(0.05)
        assert stream.engine.functions.told[-1] == Taken(1, 3)

    in_cluster(scenario)


def test_a_caller_that_leaves_has_the_call_cancelled() -> None:
    """At once, also if its word is lost: a chunk that nobody waits for is answered with it."""

    async def scenario(cluster: Cluster) -> None:
        stream = Stream(cluster)
        await time_passes(0.05)
        stream.control.stop()
        await time_passes(0.05)
        assert stream.engine.functions.cancelled == [1]
        failure = stream.ended.result().failure
        assert failure is not None
        stream.send(1)
        await time_passes(0.05)
        assert stream.numbers == []

    in_cluster(scenario)


def test_a_gateway_that_is_gone_does_not_keep_a_stream() -> None:
    """What nobody takes for a minute is given up, and its call is cancelled."""

    async def scenario(cluster: Cluster) -> None:
        stream = Stream(cluster)
        await time_passes(0.05)
        stream.send(1)
        cluster.wire.loses = lambda _sender, to, _message: to == A
        await time_passes(FORGET_US / 1e6 - 1)
        assert stream.engine.functions.cancelled == []
        await time_passes(2)
        assert stream.engine.functions.cancelled == [1]

    in_cluster(scenario)


def test_a_stream_that_fails_ends_at_once() -> None:
    """What is under way does not matter any more."""

    async def scenario(cluster: Cluster) -> None:
        stream = Stream(cluster)
        await time_passes(0.05)
        stream.send(1)
        stream.end(Outcome(None, Failure.of(FunctionFailed("no"))))
        await time_passes(0.05)
        failure = stream.ended.result().failure
        assert failure is not None
        assert failure.message == "no"
        assert stream.numbers == [1]

    in_cluster(scenario)
