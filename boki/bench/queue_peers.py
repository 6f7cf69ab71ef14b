"""What people use today, beside Boki in `boki bench queue`: Redis Streams and NATS JetStream, where they are installed.

Each is one server process on this machine, on loopback, over the same disk, told to sync every write before it
acknowledges it, with the load in this process. Redis takes messages permanently, as Boki's `pop` does (a consumer
group, NOACK); a work queue of JetStream is acked after each message, because it knows no other way.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import uvloop

from boki import BokiError
from boki.bench import peer_servers
from boki.bench.peer_servers import HOST, NatsServer, RedisServer, Server
from boki.bench.queue_flow import Pipe, QueueLoad, QueueRound, flow

_ANSWER_S: Final = 30.0


class Kind(Protocol):
    """A system that Boki is measured beside. Its server acknowledges nothing that is not synced."""

    name: str

    @property
    def server(self) -> Server:
        """The program that keeps the queue."""

    def pipe(self, port: int, load: QueueLoad) -> AbstractAsyncContextManager[Pipe]:
        """A fresh queue in that server, named as the load says."""


class RedisStreams:
    """A stream with a consumer group; the log is synced at each event loop turn before the answers leave."""

    name = "Redis Streams"
    server = RedisServer()

    @asynccontextmanager
    async def pipe(self, port: int, load: QueueLoad) -> AsyncIterator[Pipe]:
        """See `Kind`. Each producer and each consumer has a connection of its own."""
        from redis import asyncio as redis

        connections = load.producers + load.consumers + 1
        async with redis.Redis(host=HOST, port=port, max_connections=connections, socket_timeout=_ANSWER_S) as client:
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
    server = NatsServer()

    @asynccontextmanager
    async def pipe(self, port: int, load: QueueLoad) -> AsyncIterator[Pipe]:
        """See `Kind`. All share one connection, as its client wants it."""
        import nats
        from nats.js.api import RetentionPolicy, StreamConfig

        connection = await nats.connect(f"nats://{HOST}:{port}", allow_reconnect=False)
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


def installed() -> list[Kind]:
    """Those whose server is found and whose client can be imported."""
    return [kind for kind in KINDS if peer_servers.is_installed(kind.server)]


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
    with peer_servers.running(kind.server, scratch) as started:
        yield Peer(kind, started.version, started.ports[0])
