"""Gateways whose machine is gone: no end of a connection is heard, and clients must not wait for their deadlines."""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from boki.api.http import keepalive
from boki.client import BlockingClient, Client
from boki.errors import ConnectionLost, DeadlineExceeded
from tests.client.test_blocking_client import against
from tests.gateway.fake_backend import FakeBackend, run, serving
from tests.gateway.strangers import Answer, stranger

_ATTACH_FILTER = 26
"""Linux: a filter of packets."""
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)
"""Of each packet, keep 0 bytes."""


def cut_the_cable(writer: asyncio.StreamWriter) -> None:
    """From now on this end takes no packet in, so its kernel acknowledges nothing, as if its machine were gone."""
    program = ctypes.create_string_buffer(_DROP_ALL)
    filters = struct.pack("HL", 1, ctypes.addressof(program))
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, filters)


async def lost_with_the_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The machine goes when the request has arrived: nothing that was sent waits for its acknowledgement."""
    await reader.readuntil(b"\r\n\r\n")
    cut_the_cable(writer)


async def lost_before_the_request(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The machine goes when the connection is open."""
    cut_the_cable(writer)


async def stopped(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    """A process that is halted, on a machine that is well."""
    await reader.readuntil(b"\r\n\r\n")


@asynccontextmanager
async def silent(happens: Answer) -> AsyncIterator[str]:
    """The URL of a gateway that says nothing after that has happened."""
    is_over = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await happens(reader, writer)
        await is_over.wait()

    async with stranger(answer) as url, asyncio.timeout(30):
        try:
            yield url
        finally:
            is_over.set()


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least that a kernel can be told: two seconds and not ten."""
    monkeypatch.setattr(keepalive, "IDLE_S", 1)
    monkeypatch.setattr(keepalive, "PROBES", 1)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("gone", [lost_with_the_request, lost_before_the_request])
def test_a_lost_machine_is_left_long_before_the_deadline(gone: Answer) -> None:
    """What does no harm twice is asked of the next gateway; all else ends as `ConnectionLost`. A call without a
    deadline would wait for a day.
    """

    async def body() -> None:
        async with serving() as (gateway, backend, _), silent(gone) as lost:
            async with Client(f"{lost},{gateway.url}") as client:
                assert await client.invoke("echo", 1, key="k") == 1
                assert client._port._gateways.current == gateway.url
            async with Client(f"{lost},{gateway.url}") as client:
                assert (await client.logbook("b").read()).records == []
            async with Client(f"{lost},{gateway.url}") as client:
                with pytest.raises(ConnectionLost):
                    await client.invoke("echo", 2)
            assert len(backend.started) == 1

    run(body())


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("gone", [lost_with_the_request, lost_before_the_request])
def test_a_blocking_client_leaves_it_as_well(gone: Answer) -> None:
    """As with `Client`."""

    def ask(lost: str, gateway: str) -> None:
        with BlockingClient(f"{lost},{gateway}") as client:
            assert client.invoke("echo", 1, key="k") == 1
            assert client._port._gateways.current == gateway
        with BlockingClient(f"{lost},{gateway}") as client, pytest.raises(ConnectionLost):
            client.logbook("b").append(b"1")

    async def body() -> None:
        async with serving() as (gateway, _, _), silent(gone) as lost:
            await asyncio.to_thread(ask, lost, gateway.url)

    run(body())


@pytest.mark.usefixtures("hurried")
def test_a_call_may_be_silent_for_longer_than_that() -> None:
    """The kernel of a machine that is well answers for its processes, so only the deadline ends the wait."""

    async def body() -> None:
        async with (
            serving() as (gateway, _, _),
            silent(stopped) as halted,
            Client(f"{halted},{gateway.url}") as client,
        ):
            with pytest.raises(DeadlineExceeded):
                await client.invoke("echo", 1, key="k", timeout_s=3.5)
            assert client._port._gateways.current == gateway.url, "the next request goes there"

    run(body())


def test_every_connection_has_keepalive() -> None:
    """Of both clients: about ten seconds, which no test waits for."""

    def blocking(client: BlockingClient, _backend: FakeBackend) -> None:
        client.invoke("echo", 1)
        [(connection, *_)] = client._port._idle
        assert_told(connection.sock)

    against(blocking)
    made = keepalive.open_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1)))
    with made:
        assert_told(made)


def assert_told(made: socket.socket) -> None:
    assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    if sys.platform == "linux":
        told = [
            made.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        ]
        assert told == [5, 1, 5, 10_000]
