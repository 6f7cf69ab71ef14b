"""Nothing grows without bounds, nothing old reaches a newer incarnation, and no lane waits for another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import zmq

from boki.log.ids import NodeId
from boki.log.membership import Member, Role
from boki.net.outbox import PACK_BYTES
from boki.net.traffic import Lane
from boki.protocol.messages import FetchBatches, Ping, Pong, StoreBatch
from tests.net.nodes import Log, Node, Watcher, closing, run

STORAGE = NodeId("storage-1")
KIB = 1024
BUDGETS = {Lane.CONTROL: 64 * KIB, Lane.APPENDS: 1024 * KIB, Lane.READS: 1024 * KIB}


@contextmanager
def deaf_storage() -> Iterator[tuple[Member, dict[str, Any]]]:
    """A peer that accepts connections and reads nothing, on sockets that hold as little as can be."""
    context: zmq.Context[Any] = zmq.Context()
    sockets, lanes = {}, {}
    for lane in Lane:
        socket = context.socket(zmq.ROUTER)
        socket.rcvhwm, socket.rcvbuf = 1, 4 * KIB
        lanes[lane.name.lower()] = f"127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"
        sockets[lane.name.lower()] = socket
    try:
        yield Member(node=STORAGE, role=Role.STORAGE, incarnation=1, lanes=lanes), sockets
    finally:
        context.destroy(linger=0)


async def read(socket: Any) -> list[bytes]:
    """One pack, as a raw socket gets it."""
    watcher, loop = Watcher(), asyncio.get_running_loop()
    loop.add_reader(socket.FD, watcher.tell)
    await watcher.until(lambda: bool(socket.getsockopt(zmq.EVENTS) & zmq.POLLIN))
    loop.remove_reader(socket.FD)
    frames: list[bytes] = socket.recv_multipart(zmq.NOBLOCK)
    return frames


async def stuff(engine: Node) -> None:
    """Send to a peer that does not read, until there is no place left for more.

    Not before the connection is open: what was dropped until then says nothing of what it takes.
    """
    engine.send(STORAGE, StoreBatch(b"first"))
    while not engine.links.counts[Lane.APPENDS].sent_count:  # noqa: ASYNC110 - until the connection is open
        await asyncio.sleep(0)
    while not engine.links.counts[Lane.APPENDS].dropped_count:
        engine.send(STORAGE, StoreBatch(bytes(128 * KIB)))
        await asyncio.sleep(0)


def test_a_peer_that_does_not_read_costs_its_budget_and_no_more() -> None:
    """What does not fit is dropped, the oldest first, and counted; the log says so once; it all ends with the peer."""

    async def test() -> None:
        with deaf_storage() as (member, _), Log() as log:
            engine = Node("engine-1", budgets_bytes=BUDGETS)
            engine.links.set_peers([member])
            size_bytes, count = 256 * KIB, 400
            for number in range(count):
                engine.send(STORAGE, StoreBatch(number.to_bytes(4, "big") * (size_bytes // 4)))
                await asyncio.sleep(0)
                assert engine.links.queued_bytes(Lane.APPENDS) <= BUDGETS[Lane.APPENDS] + PACK_BYTES + size_bytes
            counts = engine.links.counts[Lane.APPENDS]
            assert counts.dropped_count > 0
            assert len(log.find("takes messages more slowly")) == 1
            outbox = engine.links._peers[STORAGE].outboxes[Lane.APPENDS]
            assert outbox is not None
            waiting = counts.sent_count + counts.dropped_count + len(outbox._queue) + len(outbox._pack)
            assert waiting == count
            parcel = outbox._queue[-1][1] if outbox._queue else outbox._pack[-1]
            newest = parcel.frames[0].bytes[:4]
            assert int.from_bytes(newest, "big") == count - 1
            engine.links.set_peers([])
            assert engine.links.queued_bytes(Lane.APPENDS) == 0
            engine.links.close()

    run(test())


def test_a_message_larger_than_the_budget_goes_if_nothing_else_waits() -> None:
    """A budget bounds what waits; it does not make a message impossible."""

    async def test() -> None:
        engine, storage = Node("engine-1", budgets_bytes=dict.fromkeys(Lane, 10)), Node("storage-1")
        with closing(engine, storage):
            for _ in range(2):
                engine.send(STORAGE, StoreBatch(bytes(100)))
            assert await storage.received(1) == [StoreBatch(bytes(100))]
            assert engine.links.counts[Lane.APPENDS].dropped_count == 1

    run(test())


def test_lanes_do_not_wait_for_one_another() -> None:
    """While appends are stuffed up to the budget, reads and control pass at once."""

    async def test() -> None:
        with deaf_storage() as (member, sockets):
            engine = Node("engine-1", budgets_bytes=BUDGETS)
            engine.links.set_peers([member])
            await stuff(engine)
            engine.send(STORAGE, FetchBatches(1, 1, 0, 1, 0, 10, 100))
            assert b"FetchBatches" in (await read(sockets["reads"]))[1]
            engine.send(STORAGE, Pong(1, 1, 1))
            frames = await read(sockets["control"])
            assert b"Pong" in frames[1]
            engine.links.close()

    run(test())


def test_a_peer_that_reads_again_gets_the_newest() -> None:
    """What waited continues by itself, in order, as soon as the peer reads."""

    async def test() -> None:
        with deaf_storage() as (member, sockets):
            engine = Node("engine-1", budgets_bytes=BUDGETS)
            engine.links.set_peers([member])
            for number in range(400):
                engine.send(STORAGE, StoreBatch(number.to_bytes(4, "big") * (32 * KIB)))
                await asyncio.sleep(0)
            got: list[int] = []
            while not got or got[-1] != 399:
                frames = await read(sockets["appends"])
                got += [int.from_bytes(frame[:4], "big") for frame in frames[2:]]
            assert got == sorted(set(got))
            assert len(got) == engine.links.counts[Lane.APPENDS].sent_count
            assert engine.links.queued_bytes(Lane.APPENDS) == 0
            engine.links.close()

    run(test())


def test_what_is_too_large_is_not_sent() -> None:
    """A message over the limit is dropped at the sender, with an error in the log: no peer would take it."""

    async def test() -> None:
        with Log() as log:
            engine, storage = Node("engine-1", max_message_bytes=100 * KIB), Node("storage-1")
            with closing(engine, storage):
                engine.send(STORAGE, StoreBatch(bytes(101 * KIB)))
                engine.send(STORAGE, StoreBatch(b"small"))
                assert await storage.received(1) == [StoreBatch(b"small")]
                assert log.find("engine-1: a StoreBatch to storage-1 is larger than 102400 bytes")
                assert engine.links.counts[Lane.APPENDS].dropped_count == 1

    run(test())


def test_nothing_of_an_old_incarnation_reaches_a_new_one_at_its_address() -> None:
    """A node that starts again where it was: the sender does not know yet, and what it sends is refused by name."""

    async def test() -> None:
        with Log() as log:
            controller, old = Node("controller-1"), Node("storage-1")
            ports = {lane: int(address.rpartition(":")[2]) for lane, address in old.links.lanes.items()}
            with closing(controller, old):
                controller.send(STORAGE, Ping(1))
                await old.received(1)
                old.links.close()
                for number in range(2, 50):
                    controller.send(STORAGE, Ping(number))
                    await asyncio.sleep(0)
                new = Node("storage-1", incarnation=2, ports=ports)
                try:
                    refusal = ("storage-1: refused", "it is for incarnation 1, and storage-1 is 2")
                    while not log.find(*refusal):  # what went into the connection that was ending is lost
                        controller.send(STORAGE, Ping(50))
                        with suppress(TimeoutError):
                            async with asyncio.timeout(0.2):
                                await log.says(*refusal)
                    await log.says("controller-1: storage storage-1", "refuses", "it is for incarnation 1")
                    controller.send(STORAGE, Ping(51))
                    controller.links.set_peers([new.member])
                    controller.send(STORAGE, Ping(52))
                    assert await new.received(1) == [Ping(52)]
                finally:
                    new.links.close()

    run(test())


def test_a_change_of_membership_forgets_what_was_queued() -> None:
    """A peer with another incarnation, or at other addresses, is another peer: it gets only what is sent to it."""

    async def test() -> None:
        with deaf_storage() as (member, _):
            engine = Node("engine-1", budgets_bytes=BUDGETS)
            engine.links.set_peers([member])
            await stuff(engine)
            assert engine.links.queued_bytes(Lane.APPENDS) > 0
            moved = Node("storage-1", incarnation=1)
            with closing(moved, engine):
                assert engine.links.queued_bytes(Lane.APPENDS) == 0
                engine.send(STORAGE, StoreBatch(b"new"))
                assert await moved.received(1) == [StoreBatch(b"new")]

    run(test())


def test_a_connection_is_kept_while_the_member_stays_the_same() -> None:
    """A new membership that says the same of a peer loses nothing that is queued for it."""

    async def test() -> None:
        with deaf_storage() as (member, _):
            engine = Node("engine-1", budgets_bytes=BUDGETS)
            engine.links.set_peers([member])
            engine.send(STORAGE, StoreBatch(b"x"))
            outbox = engine.links._peers[STORAGE].outboxes[Lane.APPENDS]
            engine.links.set_peers([member, Member(node=NodeId("storage-2"), role=Role.STORAGE, incarnation=1)])
            assert engine.links._peers[STORAGE].outboxes[Lane.APPENDS] is outbox
            engine.links.close()

    run(test())


class Scripted:
    """A connection whose socket takes nothing at first, and whose events come as they are written down."""

    def __init__(self, events: list[int]) -> None:
        self.watched = self.socket = self
        self.sent: list[bytes] = []
        self._events = events

    @property
    def events(self) -> int:
        return self._events.pop(0)

    def send(self, frame: bytes, *_: Any, **__: Any) -> None:
        if self._events:
            raise zmq.Again
        self.sent.append(frame)
        self._events.append(0)

    def recv_multipart(self, *_: Any) -> list[bytes]:
        return [b"an answer"]

    def close(self) -> None:
        """Nothing to drop."""


def test_a_sign_that_comes_with_an_answer_is_not_missed() -> None:
    """ZeroMQ says once that it takes messages again, perhaps just when something else is looked at."""

    async def test() -> None:
        engine, storage = Node("engine-1"), Node("storage-1")
        with closing(engine, storage):
            engine.send(STORAGE, StoreBatch(b"x"))
            outbox = engine.links._peers[STORAGE].outboxes[Lane.APPENDS]
            assert outbox is not None
            outbox._connection.close()
            scripted = Scripted([zmq.POLLIN, zmq.POLLIN | zmq.POLLOUT, zmq.POLLOUT])
            outbox._connection = scripted  # type: ignore[assignment]
            outbox.flush()
            assert len(scripted.sent) == 1

    run(test())
