"""Logs of other systems, for `boki bench peers`: records appended to NATS JetStream and Redis Streams.

The load runs in a process of its own for each client, as that on Boki runs in worker processes. Each client is the
system's usual one for Python under uvloop, and appends to a stream of its own. JetStream has one connection a client,
to the server that leads the stream. Redis's client does one command at a time on a connection, so that it has one for
each append in flight, up to 256 of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final, Literal

import uvloop

from boki import BokiError
from boki.bench import peer_servers
from boki.bench.jet_streams import ANSWER_S, stream_of
from boki.bench.payloads import payloads
from boki.bench.peer_servers import HOST, NatsServer, RedisServer, Server, Started
from boki.bench.queue_flow import QueueLoad, QueueRound
from boki.bench.queue_peers import JetStream, Kind, RedisStreams, queue_round
from boki.bench.rounds import closed_loop
from boki.bench.rows import Round, together

Append = Callable[[int], Awaitable[object]]
_MOST_CONNECTIONS: Final = 256


@dataclass(frozen=True, slots=True)
class LogLoad:
    """What each client does in one round."""

    inflight: int
    size_bytes: int
    duration_s: float
    batch_records: int = 1
    """Records of one append; more than one are appended in the system's own way of many."""


@dataclass(frozen=True, slots=True)
class LogPeer:
    """A system with a log. `appending` opens a fresh stream in it; `batch_is` says what an append of many is."""

    queue: Kind
    appending: Callable[[Started, int, LogLoad], AbstractAsyncContextManager[Append]]
    batch_is: str

    @property
    def server(self) -> Server:
        """The program, with its settings."""
        return self.queue.server

    @property
    def name(self) -> str:
        """What rows call it: the system, its replicas and its durability."""
        return f"{self.queue.name} R{self.server.replicas}, {self.server.durability}"

    @contextlib.contextmanager
    def running(self, scratch: Path, most_clients: int) -> Iterator[RunningPeer]:
        """The system over a temporary folder in `scratch`, and processes for its clients; all are gone at the end."""
        context = multiprocessing.get_context("spawn")
        with (
            peer_servers.running(self.server, scratch) as started,
            ProcessPoolExecutor(most_clients, mp_context=context) as processes,
        ):
            yield RunningPeer(self, started, processes)


@dataclass(frozen=True, slots=True)
class RunningPeer:
    """A peer that answers."""

    peer: LogPeer
    started: Started
    processes: ProcessPoolExecutor

    def run(self, clients: int, load: LogLoad) -> Round:
        """One round of that many clients at the same time, each in a process of its own."""
        rounds = [self.processes.submit(append_round, self.peer, self.started, load) for _ in range(clients)]
        return together([one.result() for one in rounds])

    def deliver(self, load: QueueLoad) -> QueueRound:
        """One round of producers and consumers, all in one process."""
        return self.processes.submit(queue_round, self.peer.queue, self.started, load).result()


def append_round(peer: LogPeer, started: Started, load: LogLoad) -> Round:
    """One client's round, in this process."""

    async def run() -> Round:
        async with peer.appending(started, peer.server.replicas, load) as append:
            return await closed_loop(append, load.inflight, load.duration_s)

    return uvloop.run(run())


@asynccontextmanager
async def redis_stream(started: Started, _replicas: int, load: LogLoad) -> AsyncIterator[Append]:
    """XADD to a stream that is deleted afterwards. A batch is a pipeline: one request and one answer on the wire."""
    from redis import asyncio as redis
    from redis.exceptions import RedisError

    connections = min(load.inflight, _MOST_CONNECTIONS)
    options: dict[str, Any] = {"host": HOST, "port": started.ports[0], "socket_timeout": ANSWER_S}
    pool = redis.BlockingConnectionPool(max_connections=connections, timeout=ANSWER_S, **options)
    stream, bodies = f"bench-{uuid.uuid4().hex}", cycle(payloads(load.size_bytes))

    async with redis.Redis.from_pool(pool) as client:
        await asyncio.gather(*(client.ping() for _ in range(connections)))  # opens them before the round

        async def append(_caller: int) -> None:
            try:
                if load.batch_records == 1:
                    await client.xadd(stream, {"body": next(bodies)})
                    return
                batch = client.pipeline(transaction=False)
                for _ in range(load.batch_records):
                    batch.xadd(stream, {"body": next(bodies)})
                await batch.execute()
            except RedisError as error:
                raise BokiError(f"Redis: {error}") from None

        yield append
        await client.delete(stream)


@asynccontextmanager
async def jet_stream(started: Started, replicas: int, load: LogLoad) -> AsyncIterator[Append]:
    """Acknowledged publishing to a stream. A batch is that many publishes in flight, each acknowledged by itself."""
    from nats.errors import Error

    name, bodies = f"bench-{uuid.uuid4().hex}", cycle(payloads(load.size_bytes))
    async with stream_of(started, name, num_replicas=replicas) as stream:

        async def append(_caller: int) -> None:
            try:
                if load.batch_records == 1:
                    await stream.publish(name, next(bodies), timeout=ANSWER_S)
                    return
                batch = islice(bodies, load.batch_records)
                await asyncio.gather(*[await stream.publish_async(name, body) for body in batch])
            except Error as error:
                raise BokiError(f"JetStream: {error}") from None

        yield append


def _jet_stream(replicas: int, *, is_synced: bool) -> LogPeer:
    kind = JetStream(NatsServer(replicas, is_synced))
    return LogPeer(kind, jet_stream, "publishes in flight, each with its acknowledgement")


def _redis(appendfsync: Literal["always", "everysec"]) -> LogPeer:
    return LogPeer(RedisStreams(RedisServer(appendfsync)), redis_stream, "one pipeline of XADD, not all or none")


REFERENCE: Final = _jet_stream(3, is_synced=False)
"""What all others are compared with."""
LOG_PEERS: Final[tuple[LogPeer, ...]] = (
    REFERENCE,
    _jet_stream(3, is_synced=True),
    _jet_stream(1, is_synced=False),
    _jet_stream(1, is_synced=True),
    _redis("always"),
    _redis("everysec"),
)
