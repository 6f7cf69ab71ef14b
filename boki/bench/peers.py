"""What people use today, beside Boki in `boki bench queue`: Redis Streams and NATS JetStream, where they are installed.

Each is one server process on this machine, on loopback, over the same disk, told to sync every write before it
acknowledges it, with the load in this process. Redis takes messages permanently, as Boki's `pop` does (a consumer
group, NOACK); a work queue of JetStream is acked after each message, because it knows no other way.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final, Protocol

import uvloop

from boki import BokiError, Unavailable
from boki.bench.queue_flow import Pipe, QueueLoad, QueueRound, flow
from boki.launch.zookeeper.server import free_ports

_HOST: Final = "127.0.0.1"
_START_S: Final = 20.0
_ANSWER_S: Final = 30.0


class Kind(Protocol):
    """A system that Boki is measured beside."""

    name: str
    program: str
    client: str
    """The Python package that speaks with it."""

    def command(self, program: str, folder: Path, port: int) -> list[str]:
        """What starts a server over that folder, which acknowledges nothing that is not synced."""

    def pipe(self, port: int, load: QueueLoad) -> AbstractAsyncContextManager[Pipe]:
        """A fresh queue in that server, named as the load says."""


class RedisStreams:
    """A stream with a consumer group; the log is synced at each event loop turn before the answers leave."""

    name = "Redis Streams"
    program = "redis-server"
    client = "redis"

    def command(self, program: str, folder: Path, port: int) -> list[str]:
        """See `Kind`."""
        options = {"bind": _HOST, "port": str(port), "dir": str(folder), "save": "", "appendonly": "yes"}
        options |= {"appendfsync": "always", "maxclients": "1000"}
        return [program, *(word for name, value in options.items() for word in (f"--{name}", value))]

    @asynccontextmanager
    async def pipe(self, port: int, load: QueueLoad) -> AsyncIterator[Pipe]:
        """See `Kind`. Each producer and each consumer has a connection of its own."""
        from redis import asyncio as redis

        connections = load.producers + load.consumers + 1
        async with redis.Redis(host=_HOST, port=port, max_connections=connections, socket_timeout=_ANSWER_S) as client:
            await client.xgroup_create(load.queue, "group", id="0", mkstream=True)
            yield _RedisPipe(client, load.queue)


class _RedisPipe:
    def __init__(self, client: Any, stream: str) -> None:
        self._client = client
        self._stream = stream

    async def push(self, body: bytes) -> None:
        from redis.exceptions import RedisError

        try:
            await self._client.xadd(self._stream, {"body": body})
        except RedisError as error:
            raise BokiError(f"Redis: {error}") from None

    async def pop(self, wait_s: float) -> bytes | None:
        found = await self._client.xreadgroup(
            "group", "consumer", {self._stream: ">"}, count=1, block=round(wait_s * 1e3), noack=True
        )
        if not found:
            return None
        _, [(_, fields)] = found[0] if isinstance(found, list) else next(iter(found.items()))
        body: bytes = fields[b"body"]
        return body


class JetStream:
    """A stream with the retention of a work queue, and a durable pull consumer."""

    name = "NATS JetStream"
    program = "nats-server"
    client = "nats"

    def command(self, program: str, folder: Path, port: int) -> list[str]:
        """See `Kind`."""
        settings = folder / "nats.conf"
        settings.write_text(
            f'listen: "{_HOST}:{port}"\njetstream {{ store_dir: "{folder / "data"}", sync_interval: always }}\n',
            encoding="utf-8",
        )
        return [program, "-c", str(settings)]

    @asynccontextmanager
    async def pipe(self, port: int, load: QueueLoad) -> AsyncIterator[Pipe]:
        """See `Kind`. All share one connection, as its client wants it."""
        import nats
        from nats.js.api import RetentionPolicy, StreamConfig

        connection = await nats.connect(f"nats://{_HOST}:{port}", allow_reconnect=False)
        try:
            stream = connection.jetstream(timeout=_ANSWER_S)
            await stream.add_stream(
                StreamConfig(name=load.queue, subjects=[load.queue], retention=RetentionPolicy.WORK_QUEUE)
            )
            consumer = await stream.pull_subscribe(load.queue, durable="group", stream=load.queue)
            yield _JetStreamPipe(stream, consumer, load.queue)
        finally:
            await connection.close()


class _JetStreamPipe:
    def __init__(self, stream: Any, consumer: Any, subject: str) -> None:
        self._stream = stream
        self._consumer = consumer
        self._subject = subject

    async def push(self, body: bytes) -> None:
        from nats.errors import Error

        try:
            await self._stream.publish(self._subject, body, timeout=_ANSWER_S)
        except Error as error:
            raise BokiError(f"JetStream: {error}") from None

    async def pop(self, wait_s: float) -> bytes | None:
        from nats.errors import TimeoutError as NothingCame

        try:
            [message] = await self._consumer.fetch(1, timeout=wait_s)
        except NothingCame:
            return None
        await message.ack()
        body: bytes = message.data
        return body


KINDS: Final[tuple[Kind, ...]] = (RedisStreams(), JetStream())


def find_program(kind: Kind) -> str | None:
    """Its server: on PATH, or where pip puts programs."""
    return shutil.which(kind.program) or shutil.which(kind.program, path=str(Path(sys.executable).parent))


def installed() -> list[Kind]:
    """Those whose server is found and whose client can be imported."""
    return [kind for kind in KINDS if find_program(kind) and importlib.util.find_spec(kind.client)]


@dataclass(frozen=True, slots=True)
class Peer:
    """A running server."""

    kind: Kind
    version: str
    port: int

    def run(self, load: QueueLoad) -> QueueRound:
        """Send that load through a fresh queue."""

        async def run() -> QueueRound:
            async with self.kind.pipe(self.port, load) as pipe:
                return await flow(load, pipe)

        return uvloop.run(run())


@contextlib.contextmanager
def running(kind: Kind, scratch: Path) -> Iterator[Peer]:
    """A server of that kind over a temporary folder in `scratch`; both are gone at the end."""
    program = find_program(kind)
    assert program is not None, "it is installed"
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    version = next((word.removeprefix("v=").removeprefix("v") for word in told.split() if "." in word), "")
    with tempfile.TemporaryDirectory(prefix="boki-peer-", dir=scratch) as folder:
        (port,) = free_ports(1)
        command = kind.command(program, Path(folder), port)
        with Path(folder, "output").open("wb") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            uvloop.run(_answers(kind, port, process))
            yield Peer(kind, version, port)
        finally:
            process.kill()
            process.wait()


async def _answers(kind: Kind, port: int, process: subprocess.Popen[bytes]) -> None:
    until = monotonic() + _START_S
    while process.poll() is None and monotonic() < until:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(_HOST, port)
            writer.close()
            return
        await asyncio.sleep(0.05)
    raise Unavailable(f"{kind.program} does not answer on port {port}, exit code {process.poll()}")
