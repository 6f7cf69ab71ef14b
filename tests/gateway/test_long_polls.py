"""Long polls whose client leaves end at once, and take nothing from those that stay; what was begun is finished."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import msgspec
import pytest

from boki.api.http.exchange import LOG_CONTENT_TYPE
from boki.log.metalog import Positions
from boki.log.operations import Answer, Append, Operation, Read, Request
from tests.gateway.fake_backend import refused, run, serving, turns_until
from tests.gateway.strangers import Raw

READ = Request(7, {}, 30_000_000, Read("empty", wait_us=20_000_000))


def head(method: str, path: str, body: bytes = b"", kind: str = "application/json") -> bytes:
    fields = f"Host: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}"
    return f"{method} {path} HTTP/1.1\r\n{fields}\r\n\r\n".encode() + body


async def ask(http: aiohttp.ClientSession, method: str, path: str, **arguments: Any) -> Any:
    async with http.request(method, path, **arguments) as response:
        body = await response.json()
        assert response.status == 200, body
        return body


@pytest.mark.parametrize(
    "request_bytes",
    [
        head("GET", "/logbook/empty/read?wait_s=20"),
        head("GET", "/logbook/empty/read_next?wait_s=20"),
        head("GET", "/logbook/empty/subscribe"),
        head("POST", "/logbook", msgspec.msgpack.encode(READ), LOG_CONTENT_TYPE),
        head("POST", "/queue/b/q/pop?wait_s=20"),
        head("POST", "/queue/b/q/pop?wait_s=20&lease_s=30"),
        head("POST", "/queue/b/full?wait_s=20", b"2"),
        head("POST", "/queue/b/full/push_many", b'{"messages": [2], "wait_s": 20}'),
    ],
    ids=["read", "read_next", "subscribe", "binary", "pop", "lease", "push", "push_many"],
)
def test_a_poll_whose_client_leaves_is_over(request_bytes: bytes) -> None:
    """Its place in the budget is free although nothing came and no time has passed."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, http):
            await ask(http, "PUT", "/queue/b/q", json={})
            await ask(http, "PUT", "/queue/b/full", json={"max_length": 1})
            await ask(http, "POST", "/queue/b/full", json=1)
            raw = await Raw.open(gateway.port)
            await raw.send(request_bytes)
            await backend.until_waiting()
            assert not gateway.core.is_idle
            await raw.close()
            await turns_until(lambda: gateway.core.is_idle)

    run(scenario())


def test_a_poll_for_an_invocation_is_over_when_its_client_leaves() -> None:
    """The call itself continues."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, http):
            async with http.post("/asyncFunction/hang") as response:
                invocation_id = (await response.json())["id"]
            await backend.until(lambda: bool(backend.hanging))
            raw = await Raw.open(gateway.port)
            await raw.send(head("GET", f"/invocation/{invocation_id}?wait_s=20"))
            await turns_until(lambda: gateway.core.poll_count == 1)
            await raw.close()
            await turns_until(lambda: gateway.core.is_idle)
            assert backend.hanging

    run(scenario())


@pytest.mark.parametrize("lease", ["", "&lease_s=30"])
def test_consumers_that_have_left_are_given_nothing(lease: str) -> None:
    """All that is pushed after they left goes to who asks for it then: they do not swallow a message each."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, http):
            await ask(http, "PUT", "/queue/b/q", json={})
            for _ in range(3):
                raw = await Raw.open(gateway.port)
                await raw.send(head("POST", f"/queue/b/q/pop?wait_s=20{lease}"))
                await backend.until_waiting()
                await raw.close()
                await turns_until(lambda: gateway.core.is_idle)
            await ask(http, "POST", "/queue/b/q/push_many", json={"messages": [1, 2, 3, 4]})
            found = await ask(http, "POST", f"/queue/b/q/pop?count=9{lease}")
            assert [one["json"] for one in found["messages"]] == [1, 2, 3, 4]

    run(scenario())


def test_a_consumer_that_stays_is_served_when_another_one_leaves() -> None:
    """Also if the one that left was the one that read the log for both."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, http):
            await ask(http, "PUT", "/queue/b/q", json={})
            raw = await Raw.open(gateway.port)
            await raw.send(head("POST", "/queue/b/q/pop?wait_s=20"))
            await backend.until_waiting()
            staying = asyncio.create_task(ask(http, "POST", "/queue/b/q/pop?wait_s=20"))
            await turns_until(lambda: gateway.core.poll_count == 2)
            await raw.close()
            await turns_until(lambda: gateway.core.poll_count == 1)
            await ask(http, "POST", "/queue/b/q", json="for who stays")
            assert [one["text"] for one in (await staying)["messages"]] == ["for who stays"]

    run(scenario())


def test_what_is_begun_is_finished_though_its_client_leaves() -> None:
    """A call runs to its end: only waiting ends with the connection."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, _http):
            raw = await Raw.open(gateway.port)
            await raw.send(head("POST", "/function/hang"))
            await backend.until(lambda: bool(backend.hanging))
            await raw.close()
            other = await Raw.open(gateway.port)
            await other.send(head("GET", "/logbook/empty/read?wait_s=20"))  # was accepted after that one was closed
            await backend.until_waiting()
            assert gateway.core.call_count == 1
            await other.close()
            await turns_until(lambda: gateway.core.poll_count == 0)
            assert gateway.core.call_count == 1

    run(scenario())


@pytest.mark.parametrize("lease", ["", "&lease_s=30"])
def test_what_a_poll_was_about_to_get_is_given_back_when_the_gateway_stops(
    monkeypatch: pytest.MonkeyPatch, lease: str
) -> None:
    """Its take was on its way into the log: the poll is told that it got nothing, and so nobody else lacks it."""
    held, go = asyncio.Event(), asyncio.Event()
    appended: list[Operation] = []

    async def scenario() -> None:
        async with serving() as (gateway, backend, http):
            await ask(http, "PUT", "/queue/b/q", json={})
            async with http.post(f"/queue/b/q/pop?count=9{lease}") as response:  # the group is there from now on
                assert response.status == 200
            request = backend.request

            async def holding_the_take(operation: Operation, positions: Positions, timeout_s: float) -> Answer:
                if isinstance(operation, Append):
                    appended.append(operation)
                    if len(appended) == 1:
                        held.set()
                        await go.wait()
                return await request(operation, positions, timeout_s)

            monkeypatch.setattr(backend, "request", holding_the_take)
            poll = asyncio.create_task(http.post(f"/queue/b/q/pop?wait_s=20{lease}"))
            await held.wait()
            await ask(http, "POST", "/queue/b/q", json="kept")
            stopping = asyncio.create_task(gateway.stop(1_000))
            async with await poll as response:
                await refused(response, 503, "unavailable")
            go.set()
            await stopping
        async with serving(backend) as (_, _backend, http):
            found = await ask(http, "POST", "/queue/b/q/pop")
            assert [one["text"] for one in found["messages"]] == ["kept"]

    run(scenario())
