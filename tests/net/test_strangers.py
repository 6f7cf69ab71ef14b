"""Connections to a node's port that prove nothing: bounded, so that its disk keeps the descriptors that it needs."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from boki.log.membership import Member
from boki.net import strangers
from boki.net.strangers import DESCRIPTOR, Strangers
from boki.protocol.messages import Ping
from tests.net.nodes import Node, keys_for, run

STORAGE = """
import resource, sys
from pathlib import Path
import msgspec
from boki.protocol.effects import Put
from boki.host.rocksdb import RocksDb
from boki.log.membership import Member
from boki.protocol.messages import Pong
from tests.net.nodes import Node, keys_for, run

resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))

async def serve(folder: Path) -> None:
    storage = Node("storage-1", keys=keys_for(folder / "keys", "storage-1"))
    print(msgspec.json.encode(storage.member).decode(), flush=True)
    storage.links.set_peers([msgspec.json.decode(sys.stdin.readline(), type=Member)])
    for count in range(1, 1_000_000):
        await storage.received(count)
        disk = RocksDb(folder / "disk")  # opens its files, writes new ones, and reads their folder
        disk.write([Put(b"%d" % count, b"value")])
        disk.sync()
        disk.close()
        storage.send("controller-1", Pong(count, 0, 1))

run(serve(Path(sys.argv[1])))
"""
FLOOD = """
import resource, select, socket, sys, time
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = [socket.socket() for _ in range(500)]
waiting = select.poll()
for connection in held:
    connection.setblocking(False)
    connection.connect_ex(("127.0.0.1", int(sys.argv[1])))
    waiting.register(connection, select.POLLOUT)
left, until = len(held), time.monotonic() + 3  # those for which there is no descriptor stay in the kernel
while left and time.monotonic() < until:
    for descriptor, _ in waiting.poll(100):
        waiting.unregister(descriptor)
        left -= 1
print("flooded", flush=True)
sys.stdin.read()
"""


@contextmanager
def child(program: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A Python process that runs this."""
    words = [sys.executable, "-c", program, *map(str, arguments)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    """The next line that it prints."""
    assert process.stdout is not None
    return process.stdout.readline()


def test_a_flood_of_strangers_leaves_the_disk_its_descriptors(tmp_path: Path) -> None:
    """1,000 connections without a handshake took all of 512 descriptors (found.md, H2). While they stand, links that
    are open continue, new ones are made, and files are opened and written."""
    keys = keys_for(tmp_path / "keys", "controller-1")

    async def test(storage: subprocess.Popen[str], resources: ExitStack) -> None:
        member = msgspec.json.decode(line(storage), type=Member)
        controller, late = Node("controller-1", keys=keys), Node("controller-1", keys=keys)
        for node in (controller, late):
            resources.callback(node.links.close)
            node.links.set_peers([member])
        assert storage.stdin is not None
        storage.stdin.write(msgspec.json.encode(controller.member).decode() + "\n")
        storage.stdin.flush()
        controller.send("storage-1", Ping(1))
        await controller.received(1)
        port = member.lanes["control"].rpartition(":")[2]
        floods = [resources.enter_context(child(FLOOD, port)) for _ in range(2)]
        assert [line(flood) for flood in floods] == ["flooded\n"] * 2
        for count in range(2, 5):
            controller.send("storage-1", Ping(count))
            await controller.received(count)
        late.send("storage-1", Ping(5))
        await controller.received(5)
        assert storage.poll() is None

    with child(STORAGE, tmp_path) as storage, ExitStack() as resources:
        run(test(storage, resources))


def test_the_oldest_stranger_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shut down and stays open for its owner, ZeroMQ. Who has brought a pack stays connected, and a descriptor
    that is something else by now is left alone."""
    monkeypatch.setattr(strangers, "_MAX_COUNT", 2)
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as resources:
        lane = Strangers(server.getsockname()[1])
        ends = []
        for _ in range(5):
            client = resources.enter_context(socket.create_connection(server.getsockname()))
            client.setblocking(False)
            ends.append((client, resources.enter_context(server.accept()[0])))
        file = resources.enter_context((tmp_path / "table").open("wb"))
        known, old, *others = [end.fileno() for _, end in ends]
        assert not lane.note(zmq.EVENT_ACCEPTED, known)
        frame: Any = {DESCRIPTOR: str(known)}
        lane.know(frame)
        assert [lane.note(zmq.EVENT_ACCEPTED, number) for number in (old, file.fileno(), others[0])] == [
            False,
            False,
            True,
        ]
        assert ends[1][0].recv(1) == b""
        assert [end.fileno() for _, end in ends] == [known, old, *others]
        assert lane.note(zmq.EVENT_ACCEPTED, others[1])
        file.write(b"goes on")
        assert not lane.note(zmq.EVENT_DISCONNECTED, others[0])
        assert not lane.note(zmq.EVENT_ACCEPTED, others[2])
        for client, _ in (ends[0], *ends[2:]):
            with pytest.raises(BlockingIOError):
                client.recv(1)
