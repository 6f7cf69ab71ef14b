"""Streams between processes of one machine: ZeroMQ introduces, the stream carries, and what ends it harms nobody."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from boki.log.ids import NodeId
from boki.net.codec import encode_message, join_pack
from boki.net.framing import frame_head
from boki.net.local import TICKET, LocalDoor, Shortcut, _proof
from boki.net.notices import Notices
from boki.net.outbox import PACK_BYTES, Outbox
from boki.net.stream import Stream
from boki.net.traffic import Lane
from boki.protocol.messages import AskTail, FetchMetalog, Message, Ping, ShardProgress, StoreBatch
from tests.net.nodes import Log, Node, Watcher, closing, keys_for, run

KIB = 1024


@pytest.fixture(params=[False, True], ids=["plain", "keys"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Settings for a node's links, without keys and with them."""

    def make(name: str) -> dict[str, Any]:
        return {"has_shortcuts": True} | ({"keys": keys_for(tmp_path, name)} if request.param else {})

    return make


def way(node: Node, to: str, lane: Lane) -> Outbox:
    outbox = node.links._peers[NodeId(to)].outboxes[lane]
    assert outbox is not None
    return outbox


async def take_shortcut(node: Node, peer: Node, message: Message, lane: Lane) -> Outbox:
    """Send something over ZeroMQ, and wait until there is a stream."""
    node.send(peer.name, message)
    await peer.received(1)
    outbox = way(node, peer.name, lane)
    while not outbox.has_shortcut:  # noqa: ASYNC110 - until the ticket has come and was shown
        await asyncio.sleep(0)
    peer.inbox.clear()
    return outbox


async def stopped(shortcut: Shortcut) -> None:
    """Let the listening side end the stream, and wait until this side has seen it."""
    while shortcut.is_open:  # noqa: ASYNC110 - until the loop has read the end
        await asyncio.sleep(0)


def test_messages_arrive_in_order_over_the_stream(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small and large ones, with keys and without; ZeroMQ carries none of them any more."""

    async def test() -> None:
        engine, storage = Node("engine-1", **settings("engine-1")), Node("storage-1", **settings("storage-1"))
        with closing(engine, storage):
            outbox = await take_shortcut(engine, storage, StoreBatch(b"first"), Lane.APPENDS)
            over_zmq: list[bytes] = []
            monkeypatch.setattr(outbox, "_send_zmq", lambda first, _frames: over_zmq.append(first))
            sent = [StoreBatch(number.to_bytes(2, "big") * (1 if number % 2 else 70_000)) for number in range(100)]
            for message in sent:
                engine.send("storage-1", message)
            assert await storage.received(len(sent)) == sent
            assert over_zmq == []
            assert engine.links.queued_bytes(Lane.APPENDS) == 0

    run(test())


def test_a_stream_speaks_for_the_key_that_its_ticket_was_given_to(tmp_path: Path) -> None:
    """A pack that names another node is refused there, and the sender learns why, as on ZeroMQ's connection."""

    async def test() -> None:
        engine = Node("engine-1", keys=keys_for(tmp_path, "engine-1"), has_shortcuts=True)
        storage = Node("storage-1", keys=keys_for(tmp_path, "storage-1"), has_shortcuts=True)
        with closing(engine, storage), Log() as log:
            await take_shortcut(engine, storage, StoreBatch(b"first"), Lane.APPENDS)
            peer = engine.links._peers[storage.name]
            peer.prefixes[engine.name] = peer.prefixes[engine.name].replace(b"engine-1", b"engine-9")
            engine.send("storage-1", StoreBatch(b"forged"))
            await log.says("storage-1: refused what engine-1 of this machine sent", "engine-9")
            await log.says("engine-1: storage storage-1", "refuses", "engine-9")
            assert storage.inbox == []

    run(test())


def test_a_message_that_the_role_may_not_send_is_refused_on_a_stream() -> None:
    """The same rules of lanes and roles hold."""

    async def test() -> None:
        engine, storage = Node("engine-1", has_shortcuts=True), Node("storage-1", has_shortcuts=True)
        with closing(engine, storage), Log() as log:
            outbox = await take_shortcut(engine, storage, StoreBatch(b"first"), Lane.APPENDS)
            prefix = engine.links._peers[storage.name].prefixes[engine.name]
            assert outbox._shortcut is not None
            assert outbox._shortcut.send([join_pack(prefix, [encode_message(Ping(1))[0]])])
            await log.says("storage-1: refused", "engine engine-1 may not send Ping")
            assert storage.inbox == []

    run(test())


def test_when_a_stream_ends_packs_go_over_zeromq_until_there_is_another() -> None:
    """Neither end of it loses the way; what was in the kernel may be lost, as on any connection."""

    async def test() -> None:
        engine, storage = Node("engine-1", has_shortcuts=True), Node("storage-1", has_shortcuts=True)
        with closing(engine, storage):
            outbox = await take_shortcut(engine, storage, StoreBatch(b"first"), Lane.APPENDS)
            assert storage.links._door is not None
            assert outbox._shortcut is not None
            for stream in list(storage.links._door._streams.values()):
                stream.close()
            await stopped(outbox._shortcut)
            engine.send("storage-1", StoreBatch(b"over ZeroMQ"))
            assert await storage.received(1) == [StoreBatch(b"over ZeroMQ")]
            outbox._ask()  # and not a second later
            while not outbox.has_shortcut:  # noqa: ASYNC110 - until the next ticket was shown
                await asyncio.sleep(0)
            engine.send("storage-1", StoreBatch(b"over the next one"))
            assert (await storage.received(2))[1] == StoreBatch(b"over the next one")

    run(test())


def test_a_peer_that_does_not_read_its_stream_costs_the_budget_and_no_more() -> None:
    """What does not fit is dropped, the oldest first; when the peer reads again, the newest is what it gets last."""

    async def test() -> None:
        budgets = dict.fromkeys(Lane, 1 << 20)
        engine = Node("engine-1", budgets_bytes=budgets, has_shortcuts=True)
        storage = Node("storage-1", has_shortcuts=True)
        with closing(engine, storage):
            await take_shortcut(engine, storage, StoreBatch(b"first"), Lane.APPENDS)
            assert storage.links._door is not None
            streams = list(storage.links._door._streams.values())
            for stream in streams:
                stream._loop.remove_reader(stream._descriptor)
            size_bytes = 256 * KIB
            number = 0
            while engine.links.counts[Lane.APPENDS].dropped_count < 30:  # the kernel holds as much as it may first
                number += 1
                engine.send("storage-1", StoreBatch(number.to_bytes(4, "big") * (size_bytes // 4)))
                await asyncio.sleep(0)
                assert engine.links.queued_bytes(Lane.APPENDS) <= (1 << 20) + PACK_BYTES + size_bytes
            newest = number.to_bytes(4, "big")
            for stream in streams:
                stream._loop.add_reader(stream._descriptor, stream._readable)
            while not storage.messages or storage.messages[-1].batch[:4] != newest:
                await storage.received(len(storage.inbox) + 1)
            assert engine.links.queued_bytes(Lane.APPENDS) == 0

    run(test())


def test_what_can_wait_goes_with_the_next_message_or_after_a_moment() -> None:
    """A batch in front of what follows it, anything else behind, all on one stream and in one call; else alone."""

    async def test() -> None:
        engine, storage = Node("engine-1", has_shortcuts=True), Node("storage-1", has_shortcuts=True)
        with closing(engine, storage):
            outbox = await take_shortcut(engine, storage, FetchMetalog(1, 0, 0), Lane.CONTROL)
            assert outbox._shortcut is not None
            assert outbox._shortcut._stream is not None
            calls: list[int] = []
            send = outbox._shortcut._stream.send

            def counted(*packs: Any) -> bool:
                calls.append(len(packs))
                return send(*packs)

            outbox._shortcut._stream.send = counted  # type: ignore[method-assign]
            batch, urgent, late = StoreBatch(bytes(10_000)), FetchMetalog(1, 0, 1), AskTail(1, 0)
            engine.links._patience._timer = asyncio.get_running_loop().call_later(60, lambda: None)  # it never comes
            engine.send("storage-1", batch, can_wait=True)
            await asyncio.sleep(0)
            assert calls == []
            engine.send("storage-1", urgent)
            assert await storage.received(2) == [batch, urgent]
            assert calls == [1], "both are one pack, in one call"
            assert engine.links.counts[Lane.APPENDS].sent_count == 0
            engine.links._patience.close()
            engine.send("storage-1", late, can_wait=True)
            assert await storage.received(3) == [batch, urgent, late]
            assert engine.links.queued_bytes(Lane.CONTROL) == 0

    run(test())


def test_what_can_wait_keeps_its_order_under_one_envelope() -> None:
    """Something urgent for the same node takes it along in front of itself."""

    async def test() -> None:
        engine, storage = Node("engine-1", has_shortcuts=True), Node("storage-1", has_shortcuts=True)
        with closing(engine, storage):
            await take_shortcut(engine, storage, FetchMetalog(1, 0, 0), Lane.CONTROL)
            sent = [AskTail(number, 0) for number in range(4)]
            for message in sent:
                engine.send("storage-1", message, can_wait=message.request % 2 == 0)
            assert await storage.received(4) == sent

    run(test())


def test_what_can_wait_is_not_sent_with_messages_to_another_process() -> None:
    """Each process is woken by what is for it."""

    async def test() -> None:
        engine, storage = Node("engine-1", has_shortcuts=True), Node("storage-1", has_shortcuts=True)
        other = Node("storage-2", has_shortcuts=True)
        with closing(engine, storage, other):
            outbox = await take_shortcut(engine, storage, FetchMetalog(1, 0, 0), Lane.CONTROL)
            engine.links._patience._timer = asyncio.get_running_loop().call_later(60, lambda: None)  # it never comes
            engine.send("storage-1", AskTail(1, 0), can_wait=True)
            engine.send("storage-2", AskTail(2, 0))
            assert await other.received(1) == [AskTail(2, 0)]
            assert outbox.queued_bytes > 0
            engine.send("storage-1", AskTail(3, 0))
            assert await storage.received(2) == [AskTail(1, 0), AskTail(3, 0)]

    run(test())


def test_batches_keep_their_lane_while_much_is_queued_beside_or_in_front() -> None:
    """What is small and urgent is not delayed by batches, nor does a small batch overtake a large one."""

    async def test() -> None:
        engine, storage = Node("engine-1", has_shortcuts=True), Node("storage-1", has_shortcuts=True)
        with closing(engine, storage):
            outbox = await take_shortcut(engine, storage, FetchMetalog(1, 0, 0), Lane.CONTROL)
            outbox.queued_bytes += 1 << 20
            engine.send("storage-1", StoreBatch(b"batch"), can_wait=True)
            assert await storage.received(1) == [StoreBatch(b"batch")]
            assert engine.links.counts[Lane.APPENDS].sent_count == 1
            outbox.queued_bytes -= 1 << 20
            engine.send("storage-1", StoreBatch(b"large"))
            engine.send("storage-1", StoreBatch(b"small"), can_wait=True)
            assert (await storage.received(3))[1:] == [StoreBatch(b"large"), StoreBatch(b"small")]
            assert engine.links.counts[Lane.APPENDS].sent_count == 3

    run(test())


def test_a_peer_elsewhere_or_behind_a_proxy_is_not_asked() -> None:
    """Links that go through a proxy all do, and another machine's registration names another machine."""

    async def test() -> None:
        proxied = Node("engine-1", has_shortcuts=True, proxy="127.0.0.1:1")
        assert proxied.member.machine == ""
        proxied.links.close()
        engine, storage = Node("engine-1", has_shortcuts=True), Node("storage-1", has_shortcuts=True)
        storage.links.machine = "another"
        with closing(engine, storage):
            engine.send("storage-1", ShardProgress(1, 0, 1, 1, 1, True))
            engine.send("storage-1", StoreBatch(b"first"))
            await storage.received(1)
            assert way(engine, "storage-1", Lane.APPENDS)._shortcut is None

    run(test())


def test_where_no_socket_can_be_opened_zeromq_carries_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node says so, registers no machine, and works."""

    def refuse(*_: object) -> None:
        raise PermissionError("not here")

    async def test() -> None:
        with Log() as log, monkeypatch.context() as patched:
            patched.setattr("boki.net.local.LocalDoor", refuse)
            storage = Node("storage-1", has_shortcuts=True)
            assert log.find("cannot listen for processes of this machine", "not here")
        engine = Node("engine-1", has_shortcuts=True)
        with closing(engine, storage):
            assert storage.member.machine == ""
            engine.send("storage-1", StoreBatch(b"first"))
            assert await storage.received(1) == [StoreBatch(b"first")]

    run(test())


def test_a_broken_stream_takes_no_more_packs() -> None:
    """Neither at once nor when the kernel reports room: they would be lost, and ZeroMQ can carry them."""

    async def test() -> None:
        for fills in (False, True):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            has_room: list[bool] = []
            stream = Stream(
                ours,
                asyncio.get_running_loop(),
                1000,
                on_pack=lambda _frames: None,
                on_room=lambda: has_room.append(True),  # noqa: B023 - called in this round
                on_end=ended.set_result,
            )
            while fills and stream.send([bytes(1 << 20)]):
                pass
            theirs.close()
            taken = [stream.send([b"more"]) for _ in range(3)]
            assert taken == ([False] * 3 if fills else [True, False, False])
            await ended
            assert has_room == []
            assert not stream.send([b"more"])

    run(test())


class Door:
    """A door, what it has let in, and clients that speak to it as they like."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, list[bytes]]] = []
        self.watcher = Watcher()
        self.door = LocalDoor(asyncio.get_running_loop(), 1000, Notices("storage-1"))

    def ticket(self, user: str) -> bytes:
        return self.door.ticket(user, self._take)

    def _take(self, frames: list[bytes], user: str, _answer: object) -> None:
        self.heard.append((user, frames))
        self.watcher.tell()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected.connect(self.door._name)
        return await asyncio.open_unix_connection(sock=connected)


def pack(*frames: bytes) -> bytes:
    return frame_head([len(frame) for frame in frames]) + b"".join(frames)


def hello(ticket: bytes) -> bytes:
    number, secret = ticket[len(TICKET) :][:16], ticket[len(TICKET) + 16 :][:32]
    return number + _proof(secret, b"connects")


def test_a_stream_without_a_good_ticket_is_closed_and_nothing_of_it_is_taken() -> None:
    """Neither an unknown ticket, nor one whose secret is not known, nor one that was used, nor too much at once."""

    async def test() -> None:
        door = Door()
        used = door.ticket("engine-1")
        reader, writer = await door.connect()
        writer.write(pack(hello(used)) + pack(b"taken"))
        await door.watcher.until(lambda: bool(door.heard))
        assert door.heard == [("engine-1", [b"taken"])]
        fresh = hello(door.ticket("engine-2"))
        for bad in (bytes(48), hello(used), fresh[:16] + bytes(32), fresh[:20], b"x" * 49, fresh + b"x"):
            _, other = streams = await door.connect()
            other.write(pack(bad) + pack(b"not taken"))
            assert await streams[0].read() == b""
            other.close()
        _, other = streams = await door.connect()
        other.write(pack(fresh, b"and more"))
        assert await streams[0].read() == b""
        other.close()
        assert len(door.heard) == 1
        assert door.door.stream_count == 1
        writer.write(pack(bytes(1001)))  # over the limit of a pack
        await reader.read()
        assert door.door.stream_count == 0
        writer.close()
        door.door.close()

    run(test())


def test_connections_that_say_nothing_are_bounded() -> None:
    """The oldest makes room: 64 may wait, and one that has a ticket still comes in."""

    async def test() -> None:
        door = Door()
        silent = [await door.connect() for _ in range(65)]
        assert await silent[0][0].read() == b""
        assert len(door.door._waiting) == 64
        _, writer = await door.connect()
        writer.write(pack(hello(door.ticket("engine-1"))) + pack(b"taken"))
        await door.watcher.until(lambda: bool(door.heard))
        for _, other in silent:
            other.close()
        writer.close()
        door.door.close()

    run(test())


def test_tickets_that_nobody_uses_are_bounded() -> None:
    """A stranger may ask as often as it likes."""

    async def test() -> None:
        door = Door()
        for _ in range(2000):
            door.ticket("")
        assert len(door.door._tickets) == 1024
        door.door.close()

    run(test())


def test_a_ticket_connects_to_no_socket_of_another_program() -> None:
    """A peer chooses the name in its ticket: it must not make this process speak to the desktop's bus, say."""

    async def test() -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind("\0another-program-of-this-test")
        listener.listen()
        listener.setblocking(False)
        shortcut = Shortcut(asyncio.get_running_loop(), 4096, lambda: None, lambda _frame: None)
        shortcut.use(TICKET + bytes(48) + b"\0another-program-of-this-test")
        with pytest.raises(BlockingIOError):
            listener.accept()
        shortcut.close()
        listener.close()

    run(test())


def test_a_listener_that_does_not_know_the_secret_is_sent_nothing() -> None:
    """Whoever listens under the name in a ticket must prove to have given it."""

    async def test() -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind("\0boki-test-impostor")
        listener.listen()
        listener.setblocking(False)
        loop, changes = asyncio.get_running_loop(), []
        shortcut = Shortcut(loop, 4096, lambda: changes.append(shortcut.is_open), lambda _frame: None)
        shortcut.use(TICKET + bytes(16) + b"s" * 32 + b"\0boki-test-impostor")
        connected, _ = await loop.sock_accept(listener)
        assert await loop.sock_recv(connected, 1000) == pack(bytes(16) + _proof(b"s" * 32, b"connects"))
        await loop.sock_sendall(connected, pack(bytes(32)))
        assert await loop.sock_recv(connected, 1000) == b""
        assert changes == []
        assert not shortcut.is_open
        connected.close()
        listener.close()

    run(test())
