"""Links that can be cut: every connection between nodes goes through a user-space proxy that knows who talks to whom.

Each node is given a SOCKS5 proxy of its own (RFC 1928, CONNECT without authentication), so the proxy knows the source
by the port that was dialled and the destination by what was asked for. A cut stops bytes in one direction, wherever the
connection was opened; nothing is lost in TCP's sense, so what was on its way arrives when the link is healed: late,
which is the nastier fault. `reset` breaks the connections instead.

ZooKeeper's clients speak no SOCKS: they get a plain forwarder to it, `forward`, which is cut the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

_CHUNK_BYTES = 256 << 10
_HANDSHAKE_S = 5.0


@dataclass(eq=False)
class _Connection:
    """One open connection through the proxy."""

    source: str
    destination: str
    writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]


class Links:
    """Proxies for the nodes of one cluster. `name_of(host, port)` tells which node listens there; "" if unknown."""

    def __init__(self, name_of: Callable[[str, int], str]) -> None:
        self._name_of = name_of
        self._cut: Counter[tuple[str, str]] = Counter()
        self.carried: Counter[tuple[str, str]] = Counter()
        """Bytes that went through, by (source, destination)."""
        self.held_back: Counter[tuple[str, str]] = Counter()
        """Bytes that a cut has met. They went through later."""
        self._changed = asyncio.Condition()
        self._servers: list[asyncio.Server] = []
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open_proxy(self, source: str) -> int:
        """A SOCKS5 proxy for `source`: its port on loopback."""
        return await self._listen(lambda reader, writer: self._serve(source, reader, writer))

    async def forward(self, source: str, destination: str, host: str, port: int) -> int:
        """A port whose connections go to `host:port`, as the link from `source` to `destination`."""
        return await self._listen(lambda reader, writer: self._connect(source, destination, host, port, reader, writer))

    async def _listen(self, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> int:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self._servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    # faults

    async def cut(self, links: Iterable[tuple[str, str]]) -> None:
        """Let nothing more through in these directions, until each has been healed as often as it was cut."""
        async with self._changed:
            self._cut.update(links)

    async def heal(self, links: Iterable[tuple[str, str]] | None = None) -> None:
        """Let them carry again, what was held back first. None: all."""
        async with self._changed:
            self._cut -= Counter(links) if links is not None else self._cut
            self._changed.notify_all()

    def reset(self, node: str) -> int:
        """Break all connections from and to a node; how many there were."""
        broken = [one for one in self._connections if node in (one.source, one.destination)]
        for connection in broken:
            for writer in connection.writers:
                writer.transport.abort()
        return len(broken)

    async def close(self) -> None:
        """Stop listening and break all connections."""
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            for writer in connection.writers:
                writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # carrying bytes

    async def _serve(self, source: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                host, port = await _read_request(reader, writer)
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
            writer.transport.abort()
            return
        with contextlib.suppress(asyncio.CancelledError):  # `close`: nobody waits for this task
            await self._connect(source, self._name_of(host, port), host, port, reader, writer, is_socks=True)

    async def _connect(
        self,
        source: str,
        destination: str,
        host: str,
        port: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_socks: bool = False,
    ) -> None:
        if is_socks:
            # Always granted, and broken afterwards if need be: libzmq 4.3 aborts when a proxy refuses.
            writer.write(b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00")
        try:
            upstream, downstream = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        connection = _Connection(source, destination, (writer, downstream))
        self._connections.add(connection)
        pumps = [
            asyncio.ensure_future(self._pump(source, destination, reader, downstream)),
            asyncio.ensure_future(self._pump(destination, source, upstream, writer)),
        ]
        self._tasks.update(pumps)
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._connections.discard(connection)
            for pump in pumps:
                pump.cancel()
            self._tasks.difference_update(pumps)
            writer.transport.abort()
            downstream.transport.abort()

    async def _pump(
        self, source: str, destination: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                if (source, destination) in self._cut:
                    self.held_back[source, destination] += len(data)
                    async with self._changed:
                        await self._changed.wait_for(lambda: (source, destination) not in self._cut)
                self.carried[source, destination] += len(data)
                writer.write(data)
                await writer.drain()


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, int]:
    """The host and port that a SOCKS5 client asks for. `ValueError` if it speaks something else."""
    version, method_count = await reader.readexactly(2)
    if version != 5 or 0 not in await reader.readexactly(method_count):
        raise ValueError("not SOCKS5 without authentication")
    writer.write(b"\x05\x00")
    version, command, _, kind = await reader.readexactly(4)
    if version != 5 or command != 1:
        raise ValueError("only CONNECT is carried out")
    match kind:
        case 1:
            host = str(ipaddress.IPv4Address(await reader.readexactly(4)))
        case 3:
            host = (await reader.readexactly((await reader.readexactly(1))[0])).decode("idna")
        case 4:
            host = str(ipaddress.IPv6Address(await reader.readexactly(16)))
        case _:
            raise ValueError(f"unknown kind of address {kind}")
    return host, int.from_bytes(await reader.readexactly(2), "big")
