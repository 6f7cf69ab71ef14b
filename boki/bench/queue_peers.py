"""What people use today, beside Boki: queues of Redis Streams and NATS JetStream, where they are installed.

In `boki bench queue` each is one server process on this machine, on loopback, over the same disk, told to sync every
write before it acknowledges it, with the load in this process; `boki bench peers` has others, whose rows say what they
sync. Redis takes messages permanently, as Boki's `pop` does (a consumer group, NOACK); a work queue of JetStream is
acked after each message, because it knows no other way.
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
from boki.bench.jet_streams import ANSWER_S, stream_of
from boki.bench.peer_servers import HOST, NatsServer, RedisServer, Server, Started
from boki.bench.queue_flow import Pipe, QueueLoad, QueueRound, flow


class Kind(Protocol):
    """A system that Boki is measured beside, as a queue."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def server(self) -> Server:
        """The program that keeps the queue, with its settings."""

    def pipe(self, started: Started, load: QueueLoad) -> AbstractAsyncContextManager[Pipe]:
        """A fresh queue in that server, named as the load says, and deleted afterwards."""


@dataclass(frozen=True, slots=True)
class RedisStreams:
    """A stream with a consumer group; the log is synced at each event loop turn before the answers leave."""

    server: RedisServer

    @property
    def name(self) -> str:
        """See `Kind`."""
        return "Redis Streams"

    @asynccontextmanager
    async def pipe(self, started: Started, load: QueueLoad) -> AsyncIterator[Pipe]:
        """See `Kind`. Each producer and each consumer has a connection of its own."""
        from redis import asyncio as redis

        options: dict[str, Any] = {"host": HOST, "port": started.ports[0], "socket_timeout": ANSWER_S}
        async with redis.Redis(max_connections=load.producers + load.consumers + 1, **options) as client:
            await client.xgroup_create(load.queue, "group", id="0", mkstream=True)
            try:
                yield _RedisPipe(client, load.queue)
            finally:
                await client.delete(load.queue)


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


@dataclass(frozen=True, slots=True)
class JetStream:
    """A stream with the retention of a work queue, and a durable pull consumer."""

    server: NatsServer

    @property
    def name(self) -> str:
        """See `Kind`."""
        return "NATS JetStream"

    @asynccontextmanager
    async def pipe(self, started: Started, load: QueueLoad) -> AsyncIterator[Pipe]:
        """See `Kind`. All share one connection, as its client wants it."""
        from nats.js.api import RetentionPolicy

        settings = {"num_replicas": self.server.replicas, "retention": RetentionPolicy.WORK_QUEUE}
        async with stream_of(started, load.queue, **settings) as stream:
            consumer = await stream.pull_subscribe(load.queue, durable="group", stream=load.queue)
            yield _JetStreamPipe(stream, consumer, load.queue)


class _JetStreamPipe:
    def __init__(self, stream: Any, consumer: Any, subject: str) -> None:
        self._stream = stream
        self._consumer = consumer
        self._subject = subject

    async def push(self, body: bytes) -> None:
        from nats.errors import Error

        try:
            await self._stream.publish(self._subject, body, timeout=ANSWER_S)
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


KINDS: Final[tuple[Kind, ...]] = (RedisStreams(RedisServer()), JetStream(NatsServer()))


def installed() -> list[Kind]:
    """Those whose server is found and whose client can be imported."""
    return [kind for kind in KINDS if peer_servers.is_installed(kind.server)]


def queue_round(kind: Kind, started: Started, load: QueueLoad) -> QueueRound:
    """Send that load through a fresh queue, from this process."""

    async def run() -> QueueRound:
        async with kind.pipe(started, load) as pipe:
            return await flow(load, pipe)

    return uvloop.run(run())


@dataclass(frozen=True, slots=True)
class Peer:
    """A running server."""

    kind: Kind
    started: Started

    def run(self, load: QueueLoad) -> QueueRound:
        """See `queue_round`."""
        return queue_round(self.kind, self.started, load)


@contextlib.contextmanager
def running(kind: Kind, scratch: Path) -> Iterator[Peer]:
    """A server of that kind over a temporary folder in `scratch`; both are gone at the end."""
    with peer_servers.running(kind.server, scratch) as started:
        yield Peer(kind, started)
