"""The processes of `boki bench floor`: a client, a primary and two backups that pass fixed-size records on, on uvloop.

There is no protocol: no index, no checksum, no encoding, no order to agree on. What is sent are records back to back,
and what comes back is the number of bytes that are durable so far, in 8 bytes. All that is known of a record that goes
through a cluster of three is that it takes these hops and these syncs.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast

import uvloop

from boki.bench.rounds import closed_loop
from boki.bench.rows import Round

COUNT_BYTES: Final = 8
FILE_BYTES: Final = 64 << 20
_MOST_UNSENT_BYTES: Final = 1 << 30
"""The client bounds what is in flight, so no transport has to."""


class SyncedFile:
    """A file of zeros that is overwritten again and again, so that no sync has to make it longer."""

    def __init__(self, path: Path, size_bytes: int = FILE_BYTES) -> None:
        self._size_bytes = size_bytes
        self._next = 0
        path.write_bytes(bytes(size_bytes))
        self._file = os.open(path, os.O_WRONLY)
        os.fsync(self._file)

    def write(self, data: bytes) -> None:
        """Write that and sync it; what does not fit behind the last write begins at the start again."""
        if self._next + len(data) > self._size_bytes:
            self._next = 0
        self._next += os.pwrite(self._file, data, self._next)
        os.fdatasync(self._file)


class Gathering(asyncio.Protocol):
    """What comes in one turn of the loop is handled together: that is a batch."""

    def __init__(self, on_batch: Callable[[bytes, asyncio.Transport], None]) -> None:
        self._on_batch = on_batch
        self._parts: list[bytes] = []
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=_MOST_UNSENT_BYTES)

    def data_received(self, data: bytes) -> None:
        """Gather until this turn of the loop has read all sockets."""
        if not self._parts:
            asyncio.get_running_loop().call_soon(self._handle)
        self._parts.append(data)

    def _handle(self) -> None:
        batch, self._parts = b"".join(self._parts), []
        self._on_batch(batch, self.transport)


class Counts:
    """Numbers that come as 8 bytes each, perhaps in pieces: the newest of them."""

    def __init__(self) -> None:
        self.newest = 0
        self._rest = b""

    def take(self, data: bytes) -> int:
        """The newest number with what has just come."""
        data = self._rest + data
        whole = len(data) - len(data) % COUNT_BYTES
        if whole:
            self.newest = int.from_bytes(data[whole - COUNT_BYTES : whole], "little")
        self._rest = data[whole:]
        return self.newest


class Primary:
    """Passes records on to both backups, makes them durable itself, and answers what two of the three have."""

    def __init__(self, answer: Callable[[int], None], file: SyncedFile | None) -> None:
        self._answer = answer
        self._file = file
        self._durable_bytes = [0, 0, 0]
        self._answered_bytes = 0

    def store(self, batch: bytes) -> None:
        """Make it durable here."""
        if self._file is not None:
            self._file.write(batch)
        self.note(0, self._durable_bytes[0] + len(batch))

    def note(self, replica: int, durable_bytes: int) -> None:
        """That replica has this many bytes by now: answer if a second one had as many."""
        self._durable_bytes[replica] = durable_bytes
        committed_bytes = sorted(self._durable_bytes)[1]
        if committed_bytes > self._answered_bytes:
            self._answered_bytes = committed_bytes
            self._answer(committed_bytes)


def run_backup(listening: socket.socket, path: Path | None) -> None:
    """A process: write what comes, sync it, and say how much there is."""

    async def serve() -> None:
        file = SyncedFile(path) if path is not None else None
        stored_bytes = 0

        def store(batch: bytes, transport: asyncio.Transport) -> None:
            nonlocal stored_bytes
            if file is not None:
                file.write(batch)
            stored_bytes += len(batch)
            transport.write(stored_bytes.to_bytes(COUNT_BYTES, "little"))

        await _serve(listening, lambda: Gathering(store))

    uvloop.run(serve())


def run_primary(listening: socket.socket, backups: Sequence[str], path: Path | None) -> None:
    """A process: the primary of one client after the other. Its backups count from its start, and so does it."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        clients: list[asyncio.Transport] = []
        primary = Primary(
            lambda durable_bytes: clients[-1].write(durable_bytes.to_bytes(COUNT_BYTES, "little")),
            SyncedFile(path) if path is not None else None,
        )

        async def connected(replica: int, address: str) -> asyncio.Transport:
            counts = Counts()

            def heard(data: bytes, _transport: asyncio.Transport) -> None:
                primary.note(replica, counts.take(data))

            _, backup = await loop.create_unix_connection(lambda: Gathering(heard), address)
            return backup.transport

        others = [await connected(number, address) for number, address in enumerate(backups, 1)]

        def take(batch: bytes, transport: asyncio.Transport) -> None:
            clients[:] = [transport]
            for other in others:
                other.write(batch)
            loop.call_soon(primary.store, batch)  # in the next turn: uvloop sends at the end of this one

        await _serve(listening, lambda: Gathering(take))

    uvloop.run(serve())


async def _serve(listening: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
    server = await asyncio.get_running_loop().create_unix_server(protocol, sock=listening)
    await server.serve_forever()


def run_client(address: str, inflight: int, size_bytes: int, duration_s: float, sent_bytes: int) -> Round:
    """One round of callers that append one record after the other. `sent_bytes`: what earlier rounds have sent."""

    async def run() -> Round:
        loop = asyncio.get_running_loop()
        waiting: deque[asyncio.Future[None]] = deque()
        counts = Counts()
        answered_bytes = sent_bytes
        record = b"x" * size_bytes  # no zeros: those are in the files before

        def heard(data: bytes, _transport: asyncio.Transport) -> None:
            nonlocal answered_bytes
            durable_bytes = counts.take(data)
            while answered_bytes + size_bytes <= durable_bytes:
                answered_bytes += size_bytes
                waiting.popleft().set_result(None)

        _, primary = await loop.create_unix_connection(lambda: Gathering(heard), address)

        def append(_caller: int) -> Awaitable[Any]:
            waiting.append(loop.create_future())
            primary.transport.write(record)
            return waiting[-1]

        one = await closed_loop(append, inflight, duration_s)
        primary.transport.close()
        return one

    return uvloop.run(run())
