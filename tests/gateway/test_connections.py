"""Connections that misbehave: bodies that are too large or never come, heads that are none, readers that stall."""

from __future__ import annotations

import asyncio
import gc
import gzip
import logging
from typing import Any

import pytest

from boki.gateway.config import Timeouts
from boki.gateway.server.http import crowd
from boki.gateway.server.http.library_port import LibraryPort
from boki.host import line_budget
from boki.log.limits import Limits
from boki.protocol.calls import FunctionInfo
from tests.gateway.fake_backend import refused, run, serving, turns_until
from tests.gateway.strangers import Raw

LIMITS = Limits(record_bytes=1000, request_bytes=5000)


def head(path: str = "/function/echo", **headers: str) -> str:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{lines}\r\n"


@pytest.mark.parametrize("path", ["/function/echo", "/asyncFunction/echo", "/logbook/b/append", "/logbook"])
def test_a_body_over_the_limit_is_refused_before_it_is_sent(path: str) -> None:
    """Its length is enough: nobody waits for ten gigabytes."""

    async def scenario() -> None:
        async with serving(limits=LIMITS) as (gateway, backend, _):
            raw = await Raw.open(gateway.port)
            kind = "application/vnd.boki+msgpack" if path == "/logbook" else "application/json"
            await raw.send(head(path, Content_Length="10000000000", Content_Type=kind))
            status, _, body = await raw.answer()
            assert (status, body["code"], body["outcome"]) == (413, "too_large", "not_applied")
            assert gateway.core.is_idle
            assert not backend.started
            await raw.close()

    run(scenario())


def test_a_body_that_hides_its_length_is_cut_off_at_the_limit() -> None:
    """Chunks are counted as they come."""

    async def scenario() -> None:
        async with serving(limits=LIMITS) as (gateway, backend, _):
            raw = await Raw.open(gateway.port)
            await raw.send(head(Transfer_Encoding="chunked"))
            for _ in range(6):
                await raw.send(b"3e8\r\n" + bytes(1000) + b"\r\n")
            status, _, body = await raw.answer()
            assert (status, body["code"]) == (413, "too_large")
            assert gateway.core.is_idle
            assert not backend.started
            await raw.close()

    run(scenario())


def test_a_chunked_body_within_the_limit_is_taken() -> None:
    """And its budget is that of the limit only while it is read."""

    async def scenario() -> None:
        async with serving(limits=LIMITS) as (gateway, _backend, _):
            raw = await Raw.open(gateway.port)
            await raw.send(head(Transfer_Encoding="chunked") + "2\r\n[1\r\n2\r\n,2\r\n1\r\n]\r\n0\r\n\r\n")
            assert (await raw.answer())[::2] == (200, [1, 2])
            assert gateway.core.bytes_in_flight == 0
            await raw.close()

    run(scenario())


def test_a_head_that_is_never_complete_is_closed() -> None:
    """Also one that trickles, and a connection that says nothing at all."""

    async def scenario() -> None:
        async with serving(timeouts=Timeouts(head_s=0.1, first_head_s=0.1)) as (gateway, _backend, _):
            silent, trickling, second = [await Raw.open(gateway.port) for _ in range(3)]
            await trickling.send("POST /function/echo HTTP/1.1\r\nHost: 1")
            await second.send(head(Content_Length="1") + "1")
            assert (await second.answer())[0] == 200
            await second.send("POST /func")
            for raw in (silent, trickling, second):
                assert await raw.is_closed()
                await raw.close()

    run(scenario())


def test_a_body_that_never_comes_is_given_up() -> None:
    """Nothing was done, and its place is free."""

    async def scenario() -> None:
        async with serving(timeouts=Timeouts(body_s=0.1)) as (gateway, backend, _):
            raw = await Raw.open(gateway.port)
            await raw.send(head(Content_Length="10") + "12345")
            status, _, body = await raw.answer()
            assert (status, body["code"], body["outcome"]) == (504, "deadline_exceeded", "not_applied")
            assert gateway.core.is_idle
            assert not backend.started
            await raw.close()

    run(scenario())


def test_a_client_that_leaves_in_its_body_frees_its_place() -> None:
    """The call is never started."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, http):
            raw = await Raw.open(gateway.port)
            await raw.send(head(Content_Length="10") + "12345")
            await turns_until(lambda: gateway.core.call_count == 1)
            await raw.close()
            await turns_until(lambda: gateway.core.call_count == 0)
            assert not backend.started
            async with http.post("/function/echo") as response:
                assert response.status == 200

    run(scenario())


def test_continue_is_said_only_to_bodies_that_will_be_taken() -> None:
    """curl asks before it sends a large body."""

    async def scenario() -> None:
        async with serving(limits=LIMITS) as (gateway, _backend, _):
            raw = await Raw.open(gateway.port)
            await raw.send(head(Content_Length="3", Expect="100-continue"))
            assert (await raw.answer())[0] == 100
            await raw.send("[1]")
            assert (await raw.answer())[::2] == (200, [1])
            await raw.send(head(Content_Length="6000", Expect="100-continue"))
            assert (await raw.answer())[0] == 413
            await raw.close()

    run(scenario())


@pytest.mark.parametrize(
    "text",
    [
        "nonsense\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        "POST /function/echo HTTP/9.9\r\n\r\n",
        head(Content_Length="abc"),
        head(Content_Length="-1"),
        head(Content_Length="1", Transfer_Encoding="chunked"),
        head(X_Long="x" * 20_000),
        "POST /" + "x" * 20_000 + " HTTP/1.1\r\n\r\n",
        head(**{f"X_{n}": "1" for n in range(500)}),
    ],
    ids=lambda text: repr(text)[:30],
)
def test_what_is_no_http_is_400_in_the_common_form(text: str) -> None:
    """And the connection is closed, because nobody knows where the next request would begin."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, _):
            raw = await Raw.open(gateway.port)
            await raw.send(text)
            status, _, body = await raw.answer()
            assert (status, body["code"], body["outcome"]) == (400, "invalid_argument", "not_applied")
            assert await raw.is_closed()
            assert not backend.started
            await raw.close()

    run(scenario())


def test_packed_bodies_are_refused_and_never_unpacked() -> None:
    """A small body that grows to a large one is nobody's friend."""

    async def scenario() -> None:
        async with serving() as (_, backend, http):
            body = gzip.compress(bytes(1_000_000))
            async with http.post("/function/raw", data=body, headers={"Content-Encoding": "gzip"}) as response:
                assert (await refused(response, 400, "invalid_argument"))["details"]["field"] == "body"
            assert not backend.started

    run(scenario())


def test_connections_are_bounded() -> None:
    """The one too many is told so by the answer to its request; when another closes there is room again."""

    async def scenario() -> None:
        async with serving(max_connections=2) as (gateway, _backend, _):
            first, second = await Raw.open(gateway.port), await Raw.open(gateway.port)
            for raw in (first, second):
                await raw.send(head(Content_Length="1") + "1")
                assert (await raw.answer())[0] == 200
            third = await Raw.open(gateway.port)
            await third.send(head(Content_Length="1") + "1")
            status, headers, body = await third.answer()
            assert (status, body["code"], headers["retry-after"]) == (503, "unavailable", "1")
            assert await third.is_closed()
            await first.send("GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert (await first.answer())[0] == 200
            assert await first.is_closed()
            fourth = await Raw.open(gateway.port)
            await fourth.send(head(Content_Length="1") + "1")
            assert (await fourth.answer())[0] == 200
            for raw in (first, second, third, fourth):
                await raw.close()

    run(scenario())


def test_probes_are_served_when_no_connection_is_free() -> None:
    """A full gateway is alive: an orchestrator that restarts it makes things worse (found.md, H2)."""

    async def scenario() -> None:
        async with serving(max_connections=1) as (gateway, _backend, _):
            member = await Raw.open(gateway.port)
            await member.send(head(Content_Length="1") + "1")
            assert (await member.answer())[0] == 200
            for path in ("/healthz", "/readyz"):
                probe = await Raw.open(gateway.port)
                await probe.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert (await probe.answer())[0] == 200
                assert await probe.is_closed()
                await probe.close()
            await member.close()

    run(scenario())


@pytest.mark.parametrize("stranger_s", [0.0, 3600.0])
def test_silent_connections_make_room(monkeypatch: pytest.MonkeyPatch, stranger_s: float) -> None:
    """A flood of connections that say nothing keeps nobody out, also one so quick that none of them has had its time;
    one that was let in once is never put out."""

    async def scenario() -> None:
        async with serving(max_connections=8) as (gateway, _backend, _):
            member = await Raw.open(gateway.port)
            await member.send(head(Content_Length="1") + "1")
            assert (await member.answer())[0] == 200
            silent = [await Raw.open(gateway.port) for _ in range(40)]
            newcomer = await Raw.open(gateway.port)
            for raw in (newcomer, member):
                await raw.send(head(Content_Length="1") + "1")
                assert (await raw.answer())[0] == 200
            assert len(gateway._connections.connections) <= 8 + crowd.MAX_GUESTS
            for raw in (*silent, member, newcomer):
                await raw.close()

    monkeypatch.setattr(crowd, "STRANGER_S", stranger_s)
    run(scenario())


def test_a_functions_own_route_lets_its_caller_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """As every other call does: its connection is never put out, and one beyond the limit is refused."""

    async def scenario() -> None:
        async with serving(max_connections=1) as (gateway, backend, _):
            backend.functions["new"] = FunctionInfo(name="new", module="app", is_async=True, http=("GET /new",))
            ask = "GET /new HTTP/1.1\r\nHost: localhost\r\n\r\n"
            member = await Raw.open(gateway.port)
            await member.send(ask)
            assert (await member.answer())[0] == 200
            guest = await Raw.open(gateway.port)
            for raw, status in ((guest, 503), (member, 200)):
                await raw.send(ask)
                assert (await raw.answer())[0] == status
            for raw in (member, guest):
                await raw.close()

    monkeypatch.setattr(crowd, "STRANGER_S", 0.0)
    run(scenario())


def test_refused_connections_write_one_line_a_second(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many strangers connect, the log grows by a line and a count, and never by a traceback (found.md, M6)."""

    async def scenario() -> None:
        async with serving(max_connections=1) as (gateway, _backend, _):
            first = await Raw.open(gateway.port)
            await first.send(head(Content_Length="1") + "1")
            assert (await first.answer())[0] == 200
            for _ in range(20):
                refused_one = await Raw.open(gateway.port)
                await refused_one.send(head(Content_Length="1") + "1")
                assert (await refused_one.answer())[0] == 503
                await refused_one.close()
            await first.close()
        gc.collect()  # a task whose exception nobody has retrieved says so when it is collected

    monkeypatch.setattr(line_budget, "WINDOW_S", 60.0)  # no slow machine makes two of it
    with caplog.at_level(logging.INFO):
        run(scenario())
    assert [record.getMessage() for record in caplog.records] == [
        "a connection from 127.0.0.1 was refused: 1 connections are open, as many as this gateway takes",
        "19 more connections were refused in the last second",
    ]
    assert not any(record.exc_info for record in caplog.records)


def test_clients_that_reset_in_their_body_write_one_line_a_second(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reset is the client's doing: no traceback, no error (found.md, M6)."""

    async def scenario() -> None:
        async with serving() as (gateway, _backend, _):
            for _ in range(10):
                raw = await Raw.open(gateway.port)
                await raw.send(head(Content_Length="10") + "12345")
                await turns_until(lambda: gateway.core.call_count == 1)
                raw.writer.transport.abort()
                await turns_until(lambda: gateway.core.call_count == 0)
                await raw.close()

    monkeypatch.setattr(line_budget, "WINDOW_S", 60.0)  # no slow machine makes two of it
    with caplog.at_level(logging.INFO):
        run(scenario())
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.INFO, "a client left before its request POST /function/echo was answered"),
        (logging.INFO, "9 more clients left before their request was answered"),
    ]
    assert not any(record.exc_info for record in caplog.records)


def test_requests_in_one_go_are_answered_in_order() -> None:
    """Pipelining, and the paths in all forms that HTTP allows."""

    async def scenario() -> None:
        async with serving() as (gateway, _backend, _):
            raw = await Raw.open(gateway.port)
            paths = ["/function/echo", f"http://127.0.0.1:{gateway.port}/function/echo", "/function/ech%6F", "/x"]
            await raw.send("".join(head(path, Content_Length="1") + str(n) for n, path in enumerate(paths)))
            answers = [await raw.answer() for _ in paths]
            assert [(status, body) for status, _, body in answers[:3]] == [(200, 0), (200, 1), (200, 2)]
            assert answers[3][0] == 404
            await raw.close()

    run(scenario())


def test_a_reader_of_a_large_answer_who_stalls_is_cut_off() -> None:
    """Its answer does not stay in memory forever."""

    async def scenario() -> None:
        async with serving(timeouts=Timeouts(reader_s=0.1)) as (gateway, _backend, http):
            async with http.post("/logbook/b/append", data=bytes(1 << 20)) as response:
                assert response.status == 200
            raw = await Raw.open(gateway.port, limit=1024)
            asked = "GET /logbook/b/read HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            await raw.send(asked * 16)
            open_connections = lambda: len(gateway._connections.connections)  # noqa: E731
            await turns_until(lambda: open_connections() == 2)
            await turns_until(lambda: open_connections() == 1)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await raw.reader.readexactly(16 << 20)
            await raw.close()

    run(scenario())


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/logbook/b/append", b"data"),
        ("POST", "/logbook/b/append_many", b'{"records": []}'),
        ("PUT", "/logbook/b/records/1/auxdata", b"data"),
        ("POST", "/logbook/b/trim", b'{"before": 1}'),
    ],
)
def test_the_time_of_a_request_begins_behind_its_body(
    method: str, path: str, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the body is on its way: the caller's deadline is for what is done with it."""
    order: list[str] = []
    for name in ("body", "session"):
        before = getattr(LibraryPort, name)

        def noting(*given: Any, name: str = name, before: Any = before) -> Any:
            order.append(name)
            return before(*given)

        monkeypatch.setattr(LibraryPort, name, noting)

    async def scenario() -> None:
        async with serving() as (_, _backend, http), http.request(method, path, data=body) as response:
            await response.read()

    run(scenario())
    assert order[0] == "body"
