"""Both ends of a connection in the hands of a test: raw requests to a gateway, and servers that are none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Raw:
    """A connection whose bytes the test writes itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @staticmethod
    async def open(port: int, limit: int = 1 << 16) -> Raw:
        """Connect to a server of this machine."""
        return Raw(*await asyncio.open_connection("127.0.0.1", port, limit=limit))

    async def send(self, text: str | bytes) -> None:
        """Write these bytes."""
        self.writer.write(text.encode("latin-1") if isinstance(text, str) else text)
        await self.writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON body of the next answer."""
        async with asyncio.timeout(20):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(head[0].split()[1]), headers, json.loads(body) if body else None

    async def is_closed(self) -> bool:
        """Return once the other end has closed the connection."""
        async with asyncio.timeout(20):
            return await self.reader.read() == b""

    async def close(self) -> None:
        """Close this end, and wait until nothing is left of it."""
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


@asynccontextmanager
async def stranger(answer: Answer) -> AsyncIterator[str]:
    """The URL of a server that does this with every connection. At the end all of them are closed."""
    ends: list[asyncio.Event] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        end = asyncio.Event()
        ends.append(end)
        try:
            await answer(reader, writer)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            end.set()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for end in ends:
            await end.wait()
