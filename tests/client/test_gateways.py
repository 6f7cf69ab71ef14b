"""Clients of several gateways: which one is asked, and what is asked again of the next one."""

from __future__ import annotations

import asyncio

import pytest

from boki.client import BlockingClient, Client
from boki.errors import ConnectionLost, Unavailable
from tests.client.test_blocking_client import against
from tests.gateway.fake_backend import FakeBackend, run, serving
from tests.gateway.strangers import stranger


async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A gateway that is killed while it has a request."""
    await reader.readuntil(b"\r\n\r\n")


def test_the_next_gateway_is_asked_when_one_is_gone() -> None:
    """And from then on at once; with none left, the error says that nothing was sent."""
    gone = "http://127.0.0.1:1"

    def test(client: BlockingClient, backend: FakeBackend) -> None:
        with BlockingClient(f"{gone},{client.url}") as other:
            other.invoke("echo", 1)
            assert other._port._gateways.current == client.url
            assert other.url == f"{gone},{client.url}"
        with BlockingClient(f"{gone},{gone}") as lost, pytest.raises(Unavailable):
            lost.invoke("echo", 1)

    against(test)


def test_what_does_no_harm_twice_is_asked_of_the_next_gateway() -> None:
    """Reads, and what has a key. All else may have happened, so its caller decides."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, _), stranger(close) as broken, stranger(close) as other:
            for repeatable in (True, False):
                key = "once" if repeatable else None
                for attempt in (
                    lambda client, key=key: client.logbook("b").append(b"1", key=key),
                    lambda client, key=key: client.invoke("echo", 1, key=key),
                ):
                    async with Client(f"{broken},{gateway.url}") as client:
                        if repeatable:
                            await attempt(client)
                        else:
                            with pytest.raises(ConnectionLost):
                                await attempt(client)
                        assert client._port._gateways.current == gateway.url, "the next request goes there"
            async with Client(f"{broken},{other},{gateway.url}") as client:
                assert (await client.logbook("b").read(limit=9)).records[0].data == b"1"
            async with Client(f"{broken},{other}") as client:
                with pytest.raises(ConnectionLost):
                    await client.logbook("b").read()
            assert len(backend.started) == 1

    run(scenario())


def test_a_blocking_client_does_as_much() -> None:
    """As with `Client`."""

    def body(broken: str, gateway: str) -> None:
        for key in ("once", None):
            with BlockingClient(f"{broken},{gateway}") as client:
                if key is None:
                    with pytest.raises(ConnectionLost):
                        client.logbook("b").append(b"1")
                else:
                    client.logbook("b").append(b"1", key=key)
                assert client._port._gateways.current == gateway
        with BlockingClient(f"{broken},{gateway}") as client:
            assert len(client.logbook("b").read().records) == 1

    async def scenario() -> None:
        async with serving() as (gateway, _, _), stranger(close) as broken:
            await asyncio.to_thread(body, broken, gateway.url)

    run(scenario())
