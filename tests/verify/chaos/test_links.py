"""Links that can be cut: bytes stop in one direction only, and arrive when the link is healed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from boki.verify.chaos.links import Links


class Echo:
    """A server that says back what it hears, and remembers it."""

    def __init__(self) -> None:
        self.heard = asyncio.Queue[bytes]()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            await self.heard.put(data)
            writer.write(data.upper())
        writer.close()


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[Links, Echo, asyncio.StreamReader, asyncio.StreamWriter]]:
    """Node a, connected through its proxy to the echo server that is node b."""
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    links = Links(lambda _host, asked: "b" if asked == port else "")
    proxy = await links.open_proxy("a")
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy)
    writer.write(b"\x05\x01\x00")
    assert await reader.readexactly(2) == b"\x05\x00"
    writer.write(b"\x05\x01\x00\x01\x7f\x00\x00\x01" + port.to_bytes(2, "big"))
    assert (await reader.readexactly(10))[1] == 0
    try:
        yield links, echo, reader, writer
    finally:
        writer.close()
        await links.close()
        server.close()


def in_loop(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(body, 20))


def test_a_cut_stops_one_direction_and_healing_delivers_what_was_held_back() -> None:
    """What b says does not reach a, though b continues hearing a; then it does, in order."""

    async def body() -> None:
        async with linked() as (links, echo, reader, writer):
            await links.cut([("b", "a")])
            writer.write(b"one")
            assert await echo.heard.get() == b"one"
            answer = asyncio.ensure_future(reader.readexactly(3))
            writer.write(b"two")
            assert await echo.heard.get() == b"two"
            assert not answer.done()
            assert links.held_back["b", "a"] == 3
            assert not links.held_back["a", "b"]
            await links.heal()
            assert await answer == b"ONE"
            assert await reader.readexactly(3) == b"TWO"

    in_loop(body())


def test_the_other_direction_is_cut_by_itself() -> None:
    """b hears nothing while the link from a is cut."""

    async def body() -> None:
        async with linked() as (links, echo, reader, writer):
            await links.cut([("a", "b")])
            writer.write(b"late")
            while not links.held_back["a", "b"]:  # noqa: ASYNC110 - the link tells nobody
                await asyncio.sleep(0)
            assert echo.heard.empty()
            await links.heal()
            assert await echo.heard.get() == b"late"
            assert await reader.readexactly(4) == b"LATE"

    in_loop(body())


def test_a_link_that_was_cut_twice_carries_when_it_was_healed_twice() -> None:
    """Two faults may hold at once, and each takes back its own."""

    async def body() -> None:
        async with linked() as (links, _, reader, writer):
            await links.cut([("b", "a"), ("b", "c")])
            await links.cut([("b", "a")])
            await links.heal([("b", "a")])
            writer.write(b"late")
            answer = asyncio.ensure_future(reader.readexactly(4))
            while not links.held_back["b", "a"]:  # noqa: ASYNC110 - the link tells nobody
                await asyncio.sleep(0)
            assert not answer.done()
            await links.heal([("b", "a")])
            assert await answer == b"LATE"

    in_loop(body())


def test_a_reset_breaks_the_connections_of_a_node() -> None:
    """Both ends see it."""

    async def body() -> None:
        async with linked() as (links, _, reader, writer):
            writer.write(b"there")
            assert await reader.readexactly(5) == b"THERE"
            assert links.reset("b") == 1
            assert links.reset("c") == 0
            with suppress(ConnectionResetError):
                assert await reader.read() == b""

    in_loop(body())


def test_what_is_not_socks_is_turned_away() -> None:
    """The connection is closed, and the proxy continues."""

    async def body() -> None:
        async with linked() as (links, _, _, _):
            port = await links.open_proxy("c")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()

    in_loop(body())
