"""Messages between processes' links: they arrive, in order, on their lane, packed, and encoded once."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

import boki.net.zmq
from boki.errors import ConfigError
from boki.log.ids import NodeId
from boki.log.membership import Role
from boki.net.codec import encode_message
from boki.net.traffic import Lane
from boki.protocol.messages import (
    BatchesFetched,
    FetchBatches,
    Holding,
    InstallView,
    Message,
    Ping,
    Pong,
    ShardProgress,
    StoreBatch,
)
from tests.net.nodes import Node, closing, keys_for, run


def progress(number: int) -> ShardProgress:
    return ShardProgress(1, 0, 1, 1, number, True)


@pytest.fixture(params=[False, True], ids=["plain", "keys"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Settings for a node's links, without keys and with them."""
    return lambda name: {"keys": keys_for(tmp_path, name)} if request.param else {}


def test_messages_arrive_in_order_on_every_lane(settings: Any) -> None:
    """Between two nodes and within a lane nothing is lost or overtaken while both keep up, with keys and without."""

    async def test() -> None:
        engine, storage = Node("engine-1", **settings("engine-1")), Node("storage-1", **settings("storage-1"))
        with closing(engine, storage):
            sent: list[Message] = []
            for number in range(100):
                batch = StoreBatch(number.to_bytes(2, "big") * (1 if number % 2 else 5000))
                sent += [batch, FetchBatches(number, 1, 0, 1, 0, 10, 100)]
            for message in sent:
                engine.send("storage-1", message)
            got = await storage.received(len(sent))
            for kind in (StoreBatch, FetchBatches):
                assert [m for m in got if type(m) is kind] == [m for m in sent if type(m) is kind]
            assert {sender for sender, _ in storage.inbox} == {"engine-1"}
            answer = BatchesFetched(1, 1, 0, 1, 0, Holding.HAVE, (bytes(9000), b"x"))
            storage.send("engine-1", answer)
            assert await engine.received(1) == [answer]
            assert storage.links.counts[Lane.APPENDS].received_count == 100
            assert engine.links.counts[Lane.READS].sent_count == 100
            assert engine.links.queued_bytes(Lane.APPENDS) == 0

    run(test())


def test_what_is_sent_in_one_turn_travels_together() -> None:
    """A hundred messages of one turn of the loop are one pack."""

    async def test() -> None:
        storage, engine = Node("storage-1"), Node("engine-1")
        packs = 0
        with closing(storage, engine):
            storage.send("engine-1", progress(0))
            await engine.received(1)
            take = engine.links._inlets[0]._take

            def counted() -> int:
                nonlocal packs
                packs += 1
                return take()

            engine.links._inlets[0]._take = counted  # type: ignore[method-assign]
            for number in range(100):
                storage.send("engine-1", progress(number))
            await engine.received(101)
            assert packs == 1

    run(test())


def test_a_message_to_several_nodes_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch goes to all its replicas from the same bytes; the next one is another message, even if it is equal."""
    encoded: list[Message] = []

    def counted(message: Message) -> Any:
        encoded.append(message)
        return encode_message(message)

    monkeypatch.setattr(boki.net.zmq, "encode_message", counted)

    async def test() -> None:
        engine, *storage = Node("engine-1"), Node("storage-1"), Node("storage-2")
        with closing(engine, *storage):
            first, second = StoreBatch(bytes(10_000)), StoreBatch(bytes(10_000))
            for batch in (first, second):
                for node in storage:
                    engine.send(node.name, batch)
            for node in storage:
                assert await node.received(2) == [first, second]
            assert len(encoded) == 2

    run(test())


def test_nodes_of_the_same_process_are_handed_the_message_itself() -> None:
    """Without encoding, at once, and whatever its class; `detach` ends it."""

    async def test() -> None:
        engine = Node("engine-1")
        with closing(engine):
            got: list[Any] = []
            engine.links.attach(NodeId("coordinator"), lambda sender, message: got.append((sender, message)))
            message = InstallView(())
            engine.send("coordinator", message)
            assert got == [("engine-1", message)]
            assert got[0][1] is message
            engine.links.send(NodeId("coordinator"), engine.name, message)
            assert engine.inbox == [("coordinator", message)]
            engine.links.detach(NodeId("coordinator"))
            engine.send("coordinator", message)
            assert len(got) == 1

    run(test())


@pytest.mark.parametrize("has_shortcuts", [False, True], ids=["zmq", "streams"])
def test_a_process_is_told_when_another_one_ends(has_shortcuts: bool) -> None:
    """At once, and not by the silence of that one: its connections end with it."""

    async def test() -> None:
        engine = Node("engine-1", has_shortcuts=has_shortcuts)
        storage = Node("storage-1", has_shortcuts=has_shortcuts)
        ended = asyncio.Event()
        engine.links.on_lost = ended.set
        with closing(engine, storage):
            engine.send("storage-1", FetchBatches(1, 1, 0, 1, 0, 10, 100))
            assert await storage.received(1) == [FetchBatches(1, 1, 0, 1, 0, 10, 100)]
            assert not ended.is_set()
            storage.links.close()
            await ended.wait()

    run(test())


def test_what_is_sent_to_nobody_is_lost_and_counted() -> None:
    """An unknown name, a member that tells no address or none that can be, and links that are closed."""

    async def test() -> None:
        storage = Node("storage-1")
        with closing(storage):
            engine = Node("engine-1")
            for lanes in ({}, {"control": "nowhere"}):
                member = engine.member.__class__(node=engine.name, role=Role.ENGINE, incarnation=1, lanes=lanes)
                storage.links.set_peers([member])
                storage.send("engine-1", progress(1))
            storage.send("engine-9", progress(1))
            assert storage.links.counts[Lane.CONTROL].dropped_count == 3
            engine.links.close()
            engine.links.close()
            storage.links.close()
            storage.send("engine-1", progress(1))
            assert storage.links.counts[Lane.CONTROL].dropped_count == 4

    run(test())


def test_a_peer_that_comes_later_gets_what_was_sent_before() -> None:
    """What was sent while a registered peer could not be reached yet waits for it."""

    async def test() -> None:
        first = Node("storage-1")
        member = first.member
        first.links.close()
        engine = Node("engine-1")
        engine.links.set_peers([member])
        engine.send("storage-1", StoreBatch(b"early"))
        await asyncio.sleep(0)
        ports = {lane: int(address.rpartition(":")[2]) for lane, address in member.lanes.items()}
        second = Node("storage-1", ports=ports)
        assert second.links.lanes == member.lanes
        try:
            assert await second.received(1) == [StoreBatch(b"early")]
        finally:
            second.links.close()
            engine.links.close()

    run(test())


def ipv6_loopback() -> str:
    """`::1`, or IPv4's on a machine without."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return "127.0.0.1"
    return "::1"


def test_ports_and_addresses_are_checked() -> None:
    """A port in use, and a wildcard that could not be told to others, are refused at start."""

    async def test() -> None:
        storage = Node("storage-1")
        with closing(storage):
            port = int(storage.links.lanes["control"].rpartition(":")[2])
            with pytest.raises(ConfigError, match="cannot listen"):
                Node("storage-2", ports={"control": port})
            with pytest.raises(ConfigError, match="advertise"):
                Node("storage-2", host="0.0.0.0")
        storage = Node("storage-2", host="0.0.0.0", advertise="localhost")
        engine = Node("engine-1", host=ipv6_loopback())
        with closing(storage, engine):
            assert storage.links.lanes["reads"].startswith("localhost:")
            engine.send("storage-2", StoreBatch(b"x"))
            await storage.received(1)
            storage.send("engine-1", Pong(1, 1, 1))
            await engine.received(1)

    run(test())


def test_heartbeats_pass_between_roles() -> None:
    """A controller pings whom it likes, and is answered."""

    async def test() -> None:
        controller, storage = Node("controller-1"), Node("storage-1")
        with closing(controller, storage):
            controller.send("storage-1", Ping(7))
            assert await storage.received(1) == [Ping(7)]
            storage.send("controller-1", Pong(7, 1, 1))
            assert await controller.received(1) == [Pong(7, 1, 1)]

    run(test())
