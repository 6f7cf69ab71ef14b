"""Answers count in the budget until their reader has taken them, and pages are bounded by what they are as JSON."""

from __future__ import annotations

import asyncio
import io
import socket
from base64 import b64decode
from typing import Any

import aiohttp
import pytest

from boki.gateway.config import Timeouts
from boki.gateway.core import Budget, GatewayCore, Share
from boki.gateway.server.http.records import data_body
from boki.log.limits import Limits
from tests.gateway.fake_backend import FakeBackend, refused, run, serving, turns_until
from tests.gateway.strangers import Raw

MIB = 1 << 20
PAGE = Limits(record_bytes=8 * MIB, request_bytes=9 * MIB, page_bytes=9 * MIB)
"""A page of one record is then larger than what the kernel keeps for a reader that does not read."""
READ = "GET /logbook/zeros/read HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
CALL = "POST /function/echo HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "


async def deaf(port: int) -> Raw:
    """A client that will not read: what the kernel takes for it is small beside the answers."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
    raw = Raw(*await asyncio.open_connection(sock=client, limit=1024))
    raw.writer.transport.pause_reading()
    return raw


async def append(http: aiohttp.ClientSession, data: bytes, book: str = "zeros") -> None:
    async with http.post(f"/logbook/{book}/append", data=io.BytesIO(data)) as response:
        assert response.status == 200


def test_readers_that_do_not_read_get_no_more_than_the_budget() -> None:
    """100 readers of 4 MiB of NUL bytes cost 6.9 GB (found.md, H3). What does not fit is 429, small requests continue,
    and a reader that leaves gives its bytes back."""

    async def scenario() -> None:
        budget = Budget(bytes_in_flight=24 * MIB)
        async with serving(budget=budget, limits=PAGE) as (gateway, _, http):
            core = gateway.core
            await append(http, b"x" * 8 * MIB)
            readers = [await deaf(gateway.port) for _ in range(6)]
            for raw in readers:
                await raw.send(READ)
            await turns_until(lambda: core.answer_count == 2)
            async with http.get("/logbook/zeros/read") as response:
                await refused(response, 429, "overloaded")
            assert core.bytes_in_flight <= budget.bytes_in_flight
            assert core.request_count == 0
            await append(http, b"small", "other")
            async with http.get("/logbook/other/read") as response:
                assert response.status == 200
            for raw in readers:
                raw.writer.transport.abort()
            await turns_until(lambda: core.is_idle)
            assert core.bytes_in_flight == 0

    run(scenario())


def test_results_that_are_not_read_hold_the_place_of_their_bodies() -> None:
    """250 callers of an echo of 4 MB that did not read cost 1.5 GB: a result takes the place of its body, and the next
    caller is refused before its body is read."""

    async def scenario() -> None:
        budget = Budget(bytes_in_flight=25 * MIB)
        async with serving(budget=budget, limits=PAGE) as (gateway, backend, http):
            body = b"[" + b" " * (8 * MIB) + b"]"
            callers = [await deaf(gateway.port) for _ in range(3)]
            for raw in callers:
                await raw.send(f"{CALL}{len(body)}\r\n\r\n".encode() + body)
            await turns_until(lambda: gateway.core.answer_count == 3)
            async with http.post("/function/echo", data=io.BytesIO(body)) as response:
                await refused(response, 429, "overloaded")
            assert len(backend.started) == 3
            assert gateway.core.call_count == 0
            for raw in callers:
                raw.writer.transport.abort()
            await turns_until(lambda: gateway.core.is_idle)
            assert gateway.core.bytes_in_flight == 0

    run(scenario())


def test_an_answer_that_cannot_be_had_again_may_use_the_overdraft() -> None:
    """Results and popped messages are dropped only beyond it, and then the outcome is unknown."""
    core = GatewayCore(Budget(bytes_in_flight=100, overdraft_bytes=50))
    first, second, third = (Share(core) for _ in range(3))
    first.take(90)
    with pytest.raises(Exception, match="90 of 100 bytes are in flight") as caught:
        second.exchange(20, is_repeatable=True)
    assert (caught.value.outcome, caught.value.retryable) == ("not_applied", True)  # type: ignore[attr-defined]
    second.exchange(60, is_repeatable=False)
    with pytest.raises(Exception, match="it was carried out, but 150 of 150") as caught:
        third.exchange(1, is_repeatable=False)
    assert (caught.value.outcome, caught.value.retryable) == ("unknown", False)  # type: ignore[attr-defined]
    for share in (first, second, third, third):
        share.release()
    assert core.is_idle
    assert core.bytes_in_flight == 0


def test_a_drain_waits_for_answers_that_are_being_read() -> None:
    """A gateway is idle when its last answer is taken."""

    async def scenario() -> None:
        async with serving(limits=PAGE) as (gateway, _, http):
            await append(http, b"x" * 8 * MIB)
            raw = await deaf(gateway.port)
            await raw.send(READ)
            await turns_until(lambda: gateway.core.answer_count == 1)
            assert not gateway.core.is_idle
            raw.writer.transport.resume_reading()
            status, _, body = await raw.answer()
            assert (status, len(body["records"][0]["text"])) == (200, 8 * MIB)
            await turns_until(lambda: gateway.core.is_idle)
            await raw.close()

    run(scenario())


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (b"", "text"),
        (b"a line\r\n\tand more", "text"),
        ("Grüße".encode(), "text"),
        (b'{"a": "\\n", "b": ""}' * 100, "text"),
        (b"\x1b[1mbold\x1b[0m and then some plain text", "text"),
        (bytes(1000), "base64"),
        (b"\x00\x01", "base64"),
        (b"\xff", "base64"),
    ],
)
def test_data_with_many_control_characters_is_base64(data: bytes, form: str) -> None:
    """JSON writes each in six bytes. A few of them, and all other text, stay text."""
    body = data_body(data)
    assert list(body) == [form]
    assert (body[form].encode() if form == "text" else b64decode(body[form])) == data


@pytest.mark.parametrize("direction", ["false", "true"])
def test_a_page_is_bounded_by_what_it_is_as_json(direction: str) -> None:
    """It ends early, says where the next one starts, and following that finds every record once."""
    limits = Limits(record_bytes=1000, page_bytes=2000)

    async def scenario() -> None:
        async with serving(limits=limits) as (_, _, http):
            for number in range(9):
                await append(http, b'"' * 300 + b"%d" % number)
            await append(http, b'"' * 1000)
            found: list[str] = []
            start, stop = "0", str((1 << 63) - 1)
            for _ in range(20):
                query = {"start": start, "stop": stop, "backward": direction}
                async with http.get("/logbook/zeros/read", params=query) as response:
                    raw = await response.read()
                    page: dict[str, Any] = await response.json()
                assert len(raw) < 2000 + 1000 or len(page["records"]) == 1
                texts = [record["text"][300:] for record in page["records"]]
                found = texts + found if direction == "true" else found + texts
                if direction == "true":
                    stop = page["next_start"]
                else:
                    start = page["next_start"]
                if page["is_end"]:
                    break
            assert found == [*"012345678", '"' * 700]

    run(scenario())


def test_bodies_count_as_they_arrive() -> None:
    """64 connections that announced bodies and sent nothing held the whole budget (found.md, M2). They hold nothing."""

    async def scenario() -> None:
        limits, budget = Limits(record_bytes=MIB, request_bytes=4 * MIB), Budget(bytes_in_flight=8 * MIB)
        async with serving(limits=limits, budget=budget) as (gateway, _, http):
            path = "POST /logbook/b/append HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            idle = [await Raw.open(gateway.port) for _ in range(8)]
            for raw in idle[:4]:
                await raw.send(f"{path}Content-Length: {4 * MIB}\r\n\r\n")
            for raw in idle[4:]:
                await raw.send(f"{path}Transfer-Encoding: chunked\r\n\r\n400\r\n{'x' * 1024}\r\n")
            await turns_until(lambda: gateway.core.bytes_in_flight == 4 * 1024)
            assert gateway.core.request_count == 8
            await append(http, bytes(MIB))
            for raw in idle:
                await raw.close()
            await turns_until(lambda: gateway.core.is_idle)
            assert gateway.core.bytes_in_flight == 0

    run(scenario())


def test_a_body_that_trickles_is_given_up() -> None:
    """It has to come at a rate, not only to an end."""

    async def scenario() -> None:
        timeouts = Timeouts(body_idle_s=0.1, body_bytes_per_s=1000)
        async with serving(FakeBackend(), timeouts=timeouts) as (gateway, _, _):
            raw = await Raw.open(gateway.port)
            await raw.send(f"{CALL}1000\r\n\r\n" + "x" * 20)
            status, _, body = await raw.answer()
            assert (status, body["code"], body["outcome"]) == (504, "deadline_exceeded", "not_applied")
            assert "20 bytes of it did" in body["message"]
            assert gateway.core.is_idle
            await raw.close()

    run(scenario())


def test_polls_leave_room_for_others() -> None:
    """4,096 idle consumers made every append and read 429 (found.md, M2)."""

    async def scenario() -> None:
        async with serving(budget=Budget(requests=1, polls=3)) as (gateway, backend, http):
            polls = [asyncio.create_task(http.get("/logbook/b/read?wait_s=20")) for _ in range(2)]
            await backend.until_waiting(2)
            assert gateway.core.poll_count == 2
            await append(http, b"1", "other")
            backend.expire_waits()
            for poll in polls:
                (await poll).close()

    run(scenario())
