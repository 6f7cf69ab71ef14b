"""Streams of NATS JetStream for benchmarks, each with a connection to the server that leads it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, Final

from boki.bench.peer_servers import HOST, Started, server_name
from boki.errors import Unavailable

ANSWER_S: Final = 30.0
"""How long an answer of any peer may take."""
_LEADER_S: Final = 20.0
_TRY_S: Final = 2.0
_POLL_S: Final = 0.1


@asynccontextmanager
async def stream_of(started: Started, name: str, **settings: Any) -> AsyncIterator[Any]:
    """A JetStream context of a new stream of that name in files, with its subject; the stream is deleted afterwards."""
    import nats

    leader = await _new_stream(started, name, settings)
    connection = await nats.connect(f"nats://{HOST}:{leader}", allow_reconnect=False, pending_size=2**26)
    try:
        context = connection.jetstream(timeout=ANSWER_S)
        try:
            yield context
        finally:
            await context.delete_stream(name)
    finally:
        await connection.close()


async def _new_stream(started: Started, name: str, settings: dict[str, Any]) -> int:
    """Make the stream, as soon as the servers have a leader that can; the port of the server that leads it."""
    import nats
    from nats.errors import Error
    from nats.js.api import StreamConfig

    port = started.ports[0]
    until = monotonic() + _LEADER_S
    connection = await nats.connect(f"nats://{HOST}:{port}", allow_reconnect=False)
    try:
        context = connection.jetstream(timeout=_TRY_S)
        while True:
            try:
                made = await context.add_stream(StreamConfig(name=name, subjects=[name], **settings))
            except Error as error:
                if monotonic() > until:
                    raise Unavailable(f"JetStream makes no stream with {settings}: {error}") from None
                await asyncio.sleep(_POLL_S)
            else:
                leader = made.cluster.leader if made.cluster is not None else None
                return next((port for port in started.ports if server_name(port) == leader), port)
    finally:
        await connection.close()
