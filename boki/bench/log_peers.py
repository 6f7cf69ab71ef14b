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
from pathlib import Path
from time import monotonic
from typing import Any, Final

import uvloop

from boki import BokiError, Unavailable
from boki.bench import peer_servers
from boki.bench.peer_servers import HOST, NatsServer, RedisServer, Server, Started, server_name
from boki.bench.rounds import closed_loop
from boki.bench.rows import Round, together

Append = Callable[[int], Awaitable[object]]
_ANSWER_S: Final = 30.0
_LEADER_S: Final = 20.0
_TRY_S: Final = 2.0
_POLL_S: Final = 0.1
_MOST_CONNECTIONS: Final = 256


@dataclass(frozen=True, slots=True)
class LogLoad:
    """What each client does in one round."""

    inflight: int
    size_bytes: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class LogPeer:
    """A system with a log. `appending` opens a fresh stream in it."""

    kind: str
    server: Server
    appending: Callable[[Started, int, LogLoad], AbstractAsyncContextManager[Append]]

    @property
    def name(self) -> str:
        """What rows call it: the system, its replicas and its durability."""
        return f"{self.kind} R{self.server.replicas}, {self.server.durability}"

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


def append_round(peer: LogPeer, started: Started, load: LogLoad) -> Round:
    """One client's round, in this process."""

    async def run() -> Round:
        async with peer.appending(started, peer.server.replicas, load) as append:
            return await closed_loop(append, load.inflight, load.duration_s)

    return uvloop.run(run())


@asynccontextmanager
async def redis_stream(started: Started, _replicas: int, load: LogLoad) -> AsyncIterator[Append]:
    """XADD to a stream that is deleted afterwards."""
    from redis import asyncio as redis
    from redis.exceptions import RedisError

    connections = min(load.inflight, _MOST_CONNECTIONS)
    options: dict[str, Any] = {"host": HOST, "port": started.ports[0], "socket_timeout": _ANSWER_S}
    pool = redis.BlockingConnectionPool(max_connections=connections, timeout=_ANSWER_S, **options)
    stream, body = f"bench-{uuid.uuid4().hex}", bytes(load.size_bytes)

    async with redis.Redis.from_pool(pool) as client:
        await asyncio.gather(*(client.ping() for _ in range(connections)))  # opens them before the round

        async def append(_caller: int) -> None:
            try:
                await client.xadd(stream, {"body": body})
            except RedisError as error:
                raise BokiError(f"Redis: {error}") from None

        yield append
        await client.delete(stream)


@asynccontextmanager
async def jet_stream(started: Started, replicas: int, load: LogLoad) -> AsyncIterator[Append]:
    """Acknowledged publishing to a stream in files that is deleted afterwards."""
    import nats
    from nats.errors import Error

    name, body = f"bench-{uuid.uuid4().hex}", bytes(load.size_bytes)
    leader = await _new_stream(started, replicas, name)
    connection = await nats.connect(f"nats://{HOST}:{leader}", allow_reconnect=False, pending_size=2**26)
    try:
        stream = connection.jetstream(timeout=_ANSWER_S)

        async def append(_caller: int) -> None:
            try:
                await stream.publish(name, body, timeout=_ANSWER_S)
            except Error as error:
                raise BokiError(f"JetStream: {error}") from None

        yield append
        await stream.delete_stream(name)
    finally:
        await connection.close()


async def _new_stream(started: Started, replicas: int, name: str) -> int:
    """Make the stream, as soon as the servers have a leader that can; the port of the server that leads it."""
    import nats
    from nats.errors import Error
    from nats.js.api import StreamConfig

    port = started.ports[0]
    until = monotonic() + _LEADER_S
    connection = await nats.connect(f"nats://{HOST}:{port}", allow_reconnect=False)
    try:
        stream = connection.jetstream(timeout=_TRY_S)
        while True:
            try:
                made = await stream.add_stream(StreamConfig(name=name, subjects=[name], num_replicas=replicas))
            except Error as error:
                if monotonic() > until:
                    raise Unavailable(f"JetStream makes no stream of {replicas} replicas: {error}") from None
                await asyncio.sleep(_POLL_S)
            else:
                leader = made.cluster.leader if made.cluster is not None else None
                return next((port for port in started.ports if server_name(port) == leader), port)
    finally:
        await connection.close()


def _jet_stream(replicas: int, *, is_synced: bool) -> LogPeer:
    return LogPeer("NATS JetStream", NatsServer(replicas, is_synced), jet_stream)


REFERENCE: Final = _jet_stream(3, is_synced=False)
"""What all others are compared with."""
LOG_PEERS: Final[tuple[LogPeer, ...]] = (
    REFERENCE,
    _jet_stream(3, is_synced=True),
    _jet_stream(1, is_synced=False),
    _jet_stream(1, is_synced=True),
    LogPeer("Redis Streams", RedisServer("always"), redis_stream),
    LogPeer("Redis Streams", RedisServer("everysec"), redis_stream),
)
