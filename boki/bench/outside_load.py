"""Appends of HTTP clients to a book that is chosen by what is to be killed: the node of its primary, of its engine."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from boki.bench.load_functions.load import TAG, Timeline, Watch, watched_loop
from boki.bench.payloads import payloads
from boki.client import Client
from boki.errors import Unavailable
from boki.gateway.engine_registry import engine_weight
from boki.launch.up.health import leader_of
from boki.launch.up.state import ProcessState
from boki.log.ids import NodeId
from boki.log.membership import Role
from boki.log.view import place_book

_MOST_CONNECTIONS: Final = 100
_WHOLE_SHARE: Final = 0.95
"""Share of all records that the engine of a load appends at least: libraries of the cluster append a few themselves."""
Status = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Aim:
    """A node with several roles that is to be killed, and the load that is to notice it."""

    process: ProcessState
    primary: str
    """Of the physical log that holds the book."""
    engine: str
    """The engine that every gateway sends the book's appends to."""
    book: str

    @property
    def roles(self) -> tuple[str, ...]:
        """What the fault takes, by names."""
        return self.process.plays

    def is_met(self, before: Status, now: Status) -> bool:
        """Whether since `before` the engine has appended the load's records, under the same primary. A status without
        the figures of an engine says nothing: not met.
        """
        was, are = _appended(before), _appended(now)
        if self.primary not in leader_of(now).get("primaries", ()) or not was or was.keys() != are.keys():
            return False
        counts = {engine: are[engine] - was[engine] for engine in are}
        return counts[self.engine] > 0 and counts[self.engine] >= _WHOLE_SHARE * sum(counts.values())


def aim_at(wanted: str, processes: Sequence[ProcessState], primaries: Sequence[str], *, with_engine: bool) -> Aim:
    """The node that plays `wanted`. The book's engine is on that node (`with_engine`) or on another one.

    `Unavailable` if the node has no engine, or no other node has one.
    """
    process = next((row for row in processes if wanted in row.plays), None)
    engines = [name for row in processes for name in row.plays if name.startswith(Role.ENGINE)]
    log, primary = next(
        ((log, name) for log, name in enumerate(primaries) if name == wanted), (0, next(iter(primaries), ""))
    )
    if process is None or not primary or not any((name in process.plays) is with_engine for name in engines):
        where = "on" if with_engine else "beside"
        raise Unavailable(f"no engine {where} the node of {wanted}: {[row.names for row in processes]}")
    for book in (f"bench-{number}" for number in itertools.count()):
        engine = max(engines, key=lambda name: engine_weight(NodeId(name), book))
        if (engine in process.plays) is with_engine and place_book(book, len(primaries)) == log:
            return Aim(process, primary, engine, book)
    raise AssertionError("books are without number")


def _appended(status: Status) -> dict[str, int]:
    """Records that each engine has appended; empty if an engine does not answer."""
    engines = {name: told for name, told in status.get("nodes", {}).items() if name.startswith(Role.ENGINE)}
    if not all(told and "engine" in told for told in engines.values()):
        return {}
    return {name: int(told["engine"]["appended_records"]) for name, told in engines.items()}


async def append_from_outside(
    url: str, watch: Watch, book: str, avoided: Collection[str], begun: Callable[[tuple[str, ...]], None]
) -> Timeline:
    """Single appends from `watch.inflight` clients, each over a connection of its own to a gateway that is not
    `avoided`. `begun` is called with the gateways of the connections before the first append.

    Each append has a key, so that clients and gateways may repeat it at another gateway or engine.
    """
    bodies, keys, life = itertools.cycle(payloads(watch.size_bytes)), itertools.count(), os.urandom(8).hex()
    async with AsyncExitStack() as stack:
        clients = [await _connected(stack, url, avoided) for _ in range(watch.inflight)]
        books = [client.logbook(book) for client, _ in clients]
        begun(tuple(sorted({gateway for _, gateway in clients})))

        async def append(caller: int) -> None:
            await books[caller].append(next(bodies), tags=[TAG], key=f"{life}:{next(keys)}")

        return await watched_loop(append, watch)


async def _connected(stack: AsyncExitStack, url: str, avoided: Collection[str]) -> tuple[Client, str]:
    """A client whose one connection, which it keeps, is to a gateway that may be. Gateways of one machine share their
    address, and the kernel picks one for each connection.
    """
    for _ in range(_MOST_CONNECTIONS):
        client = Client(url)
        gateway = str((await client.status())["node"])
        if gateway not in avoided:
            return await stack.enter_async_context(client), gateway
        await client.close()
    raise Unavailable(f"{_MOST_CONNECTIONS} connections to {url} were all to {', '.join(sorted(avoided))}")
