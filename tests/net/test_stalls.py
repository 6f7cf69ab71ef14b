"""A node that stalls while its peers give it up is there when it continues."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import suppress

import msgspec

from boki.log.membership import Member
from boki.net.traffic import Lane
from boki.protocol.messages import StoreBatch
from tests.net.nodes import Node, run

HEARTBEATS_S = 5.0
"""Longer than two intervals of the heartbeats that these sockets had: one meets the reset, the next one the end."""
STORAGE = """
import sys
import msgspec
from tests.net.nodes import Node, run

async def stand_still() -> None:
    storage = Node("storage-1")
    print(msgspec.json.encode(storage.member).decode(), flush=True)
    sys.stdin.readline()  # the event loop stands still; ZeroMQ's own thread does not
    before = len(await storage.received(1))
    print("went on", flush=True)
    await storage.received(before + 1)
    storage.links.close()

run(stand_still())
"""


async def _stands_still(child: asyncio.subprocess.Process) -> None:
    """Wait for longer than a heartbeat, or until the child has ended."""
    with suppress(TimeoutError):
        async with asyncio.timeout(HEARTBEATS_S):
            await child.wait()


def test_a_peer_that_leaves_while_this_node_stands_still_does_not_end_it() -> None:
    """libzmq's `Assertion failed: !_io_error` (found.md part 3, 1): input had stopped, the peer closed, a timer fell
    due. The same process reads what it had, and hears who connects next."""

    async def test() -> None:
        pipe = subprocess.PIPE
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", STORAGE, stdin=pipe, stdout=pipe)
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            member = msgspec.json.decode(await child.stdout.readline(), type=Member)
            engine = Node("engine-1", budgets_bytes=dict.fromkeys(Lane, 1 << 20))
            engine.links.set_peers([member])
            engine.send("storage-1", StoreBatch(b"first"))
            while not engine.links.counts[Lane.APPENDS].sent_count:  # noqa: ASYNC110 - until the connection is open
                await asyncio.sleep(0)
            while not engine.links.counts[Lane.APPENDS].dropped_count:  # no place is left on the way
                engine.send("storage-1", StoreBatch(bytes(128 << 10)))
                await asyncio.sleep(0)
            engine.links.close()
            await _stands_still(child)
            assert child.returncode is None
            child.stdin.write(b"\n")
            assert await child.stdout.readline() == b"went on\n"
            engine = Node("engine-1", incarnation=2)
            engine.links.set_peers([member])
            engine.send("storage-1", StoreBatch(b"again"))
            assert await child.wait() == 0
            engine.links.close()
        finally:
            if child.returncode is None:
                child.kill()

    run(test())
