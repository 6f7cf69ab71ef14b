"""Other systems that count durably, for `boki bench store --peers`: Restate's virtual objects, and Redis.

Each runs on this machine, on loopback, over the same disk, and acknowledges nothing that is not synced. Restate is one
server and one service process, called over HTTP by this process. Redis is one server with a connection for each caller;
it has no functions and no transactions over what was read, so it shows what the bare increment costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, Protocol

import uvloop

from boki import BokiError
from boki.bench import peer_servers
from boki.bench.flow_peers import Restate
from boki.bench.http_load import Post, post_load
from boki.bench.peer_servers import HOST, RedisServer
from boki.bench.rounds import closed_loop
from boki.bench.rows import Round

Count = Callable[[int, float], Round]
"""Callers and seconds: a round in which each caller increments a counter of its own."""


class StorePeer(Protocol):
    """A system with durable counters."""

    name: str

    def lacks(self) -> str:
        """The command that installs what is missing on this machine; "": nothing."""

    def running(self, scratch: Path) -> AbstractContextManager[Count]:
        """The system over a temporary folder in `scratch`; both are gone at the end."""


class RestateCounters:
    """Virtual objects of Restate, one for each caller."""

    name = "Restate"

    def lacks(self) -> str:
        """See `StorePeer`."""
        return Restate().lacks()

    @contextmanager
    def running(self, scratch: Path) -> Iterator[Count]:
        """See `StorePeer`."""
        with Restate().serving("restate_counters", scratch) as ingress:

            def count(callers: int, duration_s: float) -> Round:
                posts = [Post(f"{ingress}/Counter/{caller}/add", "1") for caller in range(callers)]
                return asyncio.run(post_load(*posts, callers=callers, duration_s=duration_s))

            yield count


class RedisCounters:
    """INCR, one key for each caller."""

    name = "Redis"

    def lacks(self) -> str:
        """See `StorePeer`."""
        return "" if peer_servers.is_installed(RedisServer()) else "pip install 'boki[peers]', and redis-server"

    @contextmanager
    def running(self, scratch: Path) -> Iterator[Count]:
        """See `StorePeer`."""
        with peer_servers.running(RedisServer(), scratch) as started:
            yield lambda callers, duration_s: uvloop.run(_count(started.ports[0], callers, duration_s))


STORE_PEERS: Final[tuple[StorePeer, ...]] = (RestateCounters(), RedisCounters())


async def _count(port: int, callers: int, duration_s: float) -> Round:
    from redis import asyncio as redis
    from redis.exceptions import RedisError

    async with redis.Redis(host=HOST, port=port, max_connections=callers) as client:

        async def increment(caller: int) -> None:
            try:
                await client.incr(f"counter:{caller}")
            except RedisError as error:
                raise BokiError(f"Redis: {error}") from None

        return await closed_loop(increment, callers, duration_s)
