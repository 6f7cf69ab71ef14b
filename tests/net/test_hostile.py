"""Strangers at the door: whatever they send, the node refuses it, continues, and nothing is raised in the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

import boki.net.connection
from boki.log.ids import NodeId
from boki.log.membership import Role
from boki.net.codec import MAX_FRAMES, REFUSAL, Envelope, encode_envelope, encode_message, join_pack
from boki.net.keys import load_keys, make_keys
from boki.net.notices import Notices
from boki.net.traffic import Lane
from boki.protocol.messages import BatchesFetched, Holding, Ping, StoreBatch
from tests.net.nodes import Log, Node, Watcher, closing, run

STORAGE = NodeId("storage-1")
PREFIX = encode_envelope(Envelope("cluster", NodeId("engine-7"), Role.ENGINE, 1, STORAGE, 1))
BATCH = encode_message(StoreBatch(b"x"))[0]

OTHER_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"OTHER".ljust(20, b"\x00") + bytes(32)
"""How a ZeroMQ peer begins that has a way of its own to prove who it is."""

MALFORMED: dict[str, list[bytes]] = {
    "nothing": [b""],
    "an empty delimiter": [b"", join_pack(PREFIX, [BATCH])],
    "many empty frames": [b""] * 100,
    "noise": [bytes(range(256)) * 10],
    "HTTP": [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"],
    "the magic alone": [b"boki"],
    "a version alone": [b"boki\x01"],
    "a refusal": [REFUSAL + b"no"],
    "version 255": [b"boki\xff" + PREFIX[5:]],
    "an envelope that is longer than the frame": [b"boki\x01\xff\xff"],
    "an envelope that is longer than allowed": [b"boki\x01\xff\xff" + bytes(70_000)],
    "an empty envelope": [b"boki\x01\x00\x00" + b"\x90"],
    "an envelope of nil": [b"boki\x01\x00\x01\xc0\x90"],
    "a role that is none": [PREFIX.replace(b"\xa6engine", b"\xa6enginx") + b"\x90"],
    "an envelope with more than it should have": [b"boki\x01\x00\x21\x97" + PREFIX[8:] + b"\x00\x90"],
    "no body": [PREFIX],
    "a body that is no list": [PREFIX + b"\x01"],
    "a list that claims to be huge": [PREFIX + b"\xdd\xff\xff\xff\xff"],
    "a message that is none": [PREFIX + b"\x91\x91\xa6Nobody"],
    "a message with a field too few": [PREFIX + b"\x91\x91\xaaStoreBatch"],
    "a message with a field of another type": [PREFIX + b"\x91\x92\xaaStoreBatch\x01"],
    "text that is no UTF-8": [PREFIX + b"\x91\x91\xa4\xff\xff\xff\xff"],
    "nesting without end": [PREFIX + b"\x91" * 200_000],
    "a mark without its frame": [PREFIX + b"\x91\x91\xabStoreBatch+"],
    "a frame without its mark": [join_pack(PREFIX, [BATCH]), b"x"],
    "a mark in a frame": [PREFIX + b"\x91\x91\xa1+", b"\x91\xabStoreBatch+"],
    "a message in a frame that is none": [PREFIX + b"\x91\x91\xa1+", b"\xc1"],
    "batches without end": [
        PREFIX
        + b"\x91"
        + msgspec.msgpack.encode(["BatchesFetched+", BatchesFetched(1, 1, 0, 1, 0, Holding.HAVE, ()), 1 << 62])
    ],
    "one good message and one that is not allowed": [join_pack(PREFIX, [BATCH, encode_message(Ping(1))[0]])],
    "one good message and one that is local": [
        join_pack(PREFIX, [BATCH, msgspec.msgpack.encode(["FetchView", 1])])
    ],
    "more frames than are allowed": [join_pack(PREFIX, [BATCH])] + [b""] * (MAX_FRAMES + 10),
}  # fmt: skip


@contextmanager
def stranger(node: Node, lane: Lane = Lane.APPENDS) -> Iterator[Any]:
    """A raw socket that is connected to a node's lane."""
    context: zmq.Context[Any] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(f"tcp://{node.links.lanes[lane.name.lower()]}")
    try:
        yield socket
    finally:
        context.destroy(linger=0)


@asynccontextmanager
async def nothing_raised() -> AsyncIterator[None]:
    """Fails if anything was raised in a callback of the loop."""
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    yield
    await asyncio.sleep(0)
    assert not raised


@pytest.mark.parametrize("frames", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_malformed_is_refused_and_answered(frames: list[bytes]) -> None:
    """Nothing of it is delivered, its sender is told why, and the next message is taken as ever."""

    async def test() -> None:
        storage, engine = Node("storage-1"), Node("engine-1")
        async with nothing_raised():
            with closing(storage, engine), stranger(storage) as socket:
                answered = Watcher()
                asyncio.get_running_loop().add_reader(socket.FD, answered.tell)
                socket.send_multipart(frames)
                await answered.until(lambda: bool(socket.getsockopt(zmq.EVENTS) & zmq.POLLIN))
                assert socket.recv().startswith(REFUSAL)
                asyncio.get_running_loop().remove_reader(socket.FD)
                assert storage.links.counts[Lane.APPENDS].refused_count == 1
                socket.send(join_pack(PREFIX, [BATCH]))
                engine.send("storage-1", StoreBatch(b"y"))
                got = await storage.received(2)
                assert sorted(message.batch for message in got) == [b"x", b"y"]

    run(test())


def test_a_frame_over_the_limit_costs_its_sender_the_connection() -> None:
    """ZeroMQ itself refuses to make room for it; others continue."""

    async def test() -> None:
        storage, engine = Node("storage-1", max_message_bytes=100_000), Node("engine-1")
        async with nothing_raised():
            with closing(storage, engine), stranger(storage) as socket:
                monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
                gone = Watcher()
                asyncio.get_running_loop().add_reader(monitor.FD, gone.tell)
                socket.send(join_pack(PREFIX, [BATCH]) + bytes(1_000_000))
                await gone.until(lambda: bool(monitor.getsockopt(zmq.EVENTS) & zmq.POLLIN))
                asyncio.get_running_loop().remove_reader(monitor.FD)
                engine.send("storage-1", StoreBatch(b"y"))
                assert await storage.received(1) == [StoreBatch(b"y")]
                assert storage.links.counts[Lane.APPENDS].received_count == 1

    run(test())


def test_a_pack_over_the_limit_is_refused_whole() -> None:
    """Each frame may be small enough and all of them together still too much."""

    async def test() -> None:
        storage = Node("storage-1", max_message_bytes=100_000)
        with Log() as log:
            async with nothing_raised():
                with closing(storage), stranger(storage) as socket:
                    socket.send_multipart([join_pack(PREFIX, [BATCH]), *[bytes(100_000)] * 10])
                    await log.says("storage-1: refused", "11 frames of 10000", "over the limit")
                    assert not storage.inbox

    run(test())


def test_bytes_that_are_no_zeromq_at_all_do_no_harm() -> None:
    """A browser, a port scan, a connection that says nothing."""

    async def test() -> None:
        storage, engine = Node("storage-1"), Node("engine-1")
        with Log() as log:
            async with nothing_raised():
                with closing(storage, engine):
                    host, _, port = storage.links.lanes["appends"].rpartition(":")
                    writers = [(await asyncio.open_connection(host, int(port)))[1] for _ in range(3)]
                    writers[0].write(b"GET / HTTP/1.1\r\nHost: storage\r\n\r\n" * 100)
                    writers[1].write(OTHER_GREETING)
                    await log.says("storage-1: refused what a stranger sent: this is not Boki's protocol")
                    await log.says("storage-1: a connection to", "do not speak the same protocol")
                    engine.send("storage-1", StoreBatch(b"y"))
                    assert await storage.received(1) == [StoreBatch(b"y")]
                    for writer in writers:
                        writer.transport.abort()

    run(test())


@contextmanager
def impostor(answer: bytes) -> Iterator[Any]:
    """A raw peer that answers whatever it gets with `answer`."""
    context: zmq.Context[Any] = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    loop = asyncio.get_running_loop()

    def reply() -> None:
        while socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            socket.send_multipart([socket.recv_multipart()[0], answer])

    loop.add_reader(socket.FD, reply)
    try:
        yield {lane.name.lower(): f"127.0.0.1:{port}" for lane in Lane}
    finally:
        loop.remove_reader(socket.FD)
        context.destroy(linger=0)


def test_what_a_peer_gives_as_its_reason_cannot_write_the_log() -> None:
    """No line breaks, no control characters, no endless text."""

    async def test() -> None:
        with Log() as log, impostor(REFUSAL + b"\n\x1b[2Jroot: all is well\xff" + b"a" * 2000) as lanes:
            engine, storage = Node("engine-1"), Node("storage-1")
            async with nothing_raised():
                with closing(engine, storage):
                    engine.links.set_peers([msgspec.structs.replace(storage.member, lanes=lanes)])
                    engine.send("storage-1", StoreBatch(b"x"))
                    await log.says("engine-1: storage storage-1", r"refuses what this node sends: \n\x1b[2Jroot")
                    line = log.find("all is well")[0]
                    assert line.isprintable()
                    assert len(line) < 600

    run(test())


def test_an_answer_that_is_no_refusal_is_passed_over() -> None:
    """Nothing but a refusal ever comes back; what else does is not even looked at."""

    async def test() -> None:
        with impostor(join_pack(PREFIX, [BATCH])) as lanes:
            engine, storage = Node("engine-1"), Node("storage-1")
            async with nothing_raised():
                with closing(engine, storage):
                    engine.links.set_peers([msgspec.structs.replace(storage.member, lanes=lanes)])
                    for _ in range(10):
                        engine.send("storage-1", StoreBatch(b"x"))
                        await asyncio.sleep(0)
                    assert not engine.inbox

    run(test())


def test_the_log_says_a_thing_once_and_forgets_in_the_end() -> None:
    """A stranger that finds ever new ways to be wrong does not fill the memory."""
    with Log() as log:
        notices = Notices("storage-1")
        for number in range(5000):
            notices.say(30, f"reason {number}")
            notices.say(30, f"reason {number}")
        assert len(log.lines) == 5000
        assert len(notices._said) <= 1024


def test_a_bug_in_a_node_does_not_stop_its_lane() -> None:
    """What the node's own code raises is not hidden, and what has come behind it is still taken."""

    async def test() -> None:
        storage, engine = Node("storage-1"), Node("engine-1")
        raised: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context["exception"]))
        deliver = storage._deliver

        def stumble(sender: NodeId, message: Any) -> None:
            if message == StoreBatch(b"bad"):
                raise RuntimeError("a bug")
            deliver(sender, message)

        storage.links.detach(STORAGE)
        storage.links.attach(STORAGE, stumble)
        with closing(storage, engine):
            engine.send("storage-1", StoreBatch(b"first"))
            await storage.received(1)
            for batch in (b"bad", b"good"):
                engine.send("storage-1", StoreBatch(batch))
                engine.links._flush()
            assert await storage.received(2) == [StoreBatch(b"first"), StoreBatch(b"good")]
            assert [str(error) for error in raised] == ["a bug"]

    run(test())


def test_a_stranger_at_a_peers_port_is_outlived(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZeroMQ gives a connection up permanently after an error of protocol; the links do not."""
    monkeypatch.setattr(boki.net.connection, "RENEW_S", 0.01)

    async def test() -> None:
        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(OTHER_GREETING)
            writer.close()

        servers = [await asyncio.start_server(answer, "127.0.0.1", 0) for _ in Lane]
        ports = {
            lane.name.lower(): server.sockets[0].getsockname()[1] for lane, server in zip(Lane, servers, strict=True)
        }
        with Log() as log:
            engine, elsewhere = Node("engine-1"), Node("storage-1")
            with closing(engine, elsewhere):
                lanes = {lane: f"127.0.0.1:{port}" for lane, port in ports.items()}
                engine.links.set_peers([msgspec.structs.replace(elsewhere.member, lanes=lanes)])
                engine.send("storage-1", StoreBatch(b"x"))
                await log.says("engine-1: the connection to storage storage-1", "do not speak the same protocol")
                for server in servers:
                    server.close()
                    await server.wait_closed()
                storage = Node("storage-1", ports=ports)
                with closing(storage):
                    assert await storage.received(1) == [StoreBatch(b"x")]

    run(test())


def test_a_key_that_is_listed_later_opens_the_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose key was unknown is let in as soon as the others' list has it, without a restart of anybody."""
    monkeypatch.setattr(boki.net.connection, "RENEW_S", 0.01)
    make_keys(tmp_path / "all", {"engine-1": Role.ENGINE, "storage-1": Role.STORAGE})
    old = tmp_path / "old"
    old.mkdir()
    for file in (tmp_path / "all").iterdir():
        (old / file.name).write_text(
            "".join(line for line in file.read_text().splitlines(keepends=True) if not line.startswith("engine-1"))
        )
        (old / file.name).chmod(0o600)

    async def test() -> None:
        with Log() as log:
            engine = Node("engine-1", keys=load_keys(tmp_path / "all", NodeId("engine-1")))
            storage = Node("storage-1", keys=load_keys(old, STORAGE))
            with closing(engine, storage):
                engine.send("storage-1", StoreBatch(b"x"))
                await log.says("engine-1: the connection to storage storage-1", "refuses this node's key")
                (old / "cluster.keys").write_text((tmp_path / "all" / "cluster.keys").read_text())
                assert await storage.received(1) == [StoreBatch(b"x")]

    run(test())
