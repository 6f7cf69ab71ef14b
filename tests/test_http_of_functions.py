"""Functions over HTTP in a running system: own routes, responses and the request, with real worker processes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from boki import BlockingClient, Client, FunctionFailed, Response
from boki.launch.dev import Dev
from tests.contract.live import LoopThread, dev_system
from tests.gateway.fake_backend import refused
from tests.gateway.strangers import Raw

_UTF_8 = "; percent-encode the bytes of its UTF-8, as %C3%A9 for é"
FUNCTIONS = Path(__file__).parent / "http_functions" / "functions"


@pytest.fixture(scope="module")
def system() -> Iterator[tuple[LoopThread, Dev]]:
    """One system for the file: its worker processes stay warm."""
    with dev_system(functions=FUNCTIONS) as (loop, dev):
        yield loop, dev


def over_http(system: tuple[LoopThread, Dev], work: Callable[[aiohttp.ClientSession], Awaitable[None]]) -> None:
    """Do it in the system's loop, with a session whose relative URLs lead there."""
    loop, dev = system

    async def whole() -> None:
        async with aiohttp.ClientSession(dev.url) as http:
            await work(http)

    loop.run(whole())


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [
        ("/shops/tea%20house/items?count=3&tags=a&tags=b&day=2026-01-02&utm_source=x", None, None),
        ("/shops/tea%20house/items?count=3", b'{"note": "n", "tags": []}', {"note": "n", "tags": [], "day": None}),
        ("/models/tea%20house?count=3", None, {"count": 3}),
    ],
)
def test_path_query_and_body_fill_the_fields_of_the_payload(
    system: tuple[LoopThread, Dev], path: str, body: bytes | None, fields: dict[str, Any] | None
) -> None:
    """Each converted to its type; what is unknown in the query is no field's business."""

    async def work(http: aiohttp.ClientSession) -> None:
        async with http.request("GET" if body is None else "POST", path, data=body) as response:
            found = await response.json()
            assert response.status == 200, found
            assert (found["shop"], found["count"]) == ("tea house", 3)
            wanted = {"tags": ["a", "b"], "day": "2026-01-02", "note": ""} if fields is None else fields
            assert found == {"shop": "tea house", "count": 3} | wanted

    over_http(system, work)


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        (
            "GET",
            "/shops/a/items?count=x",
            b"",
            "query parameter count of search (GET /shops/{shop}/items): expected int, got 'x'",
        ),
        (
            "GET",
            "/shops/a/items?count=1&count=2",
            b"",
            "query parameter count of search (GET /shops/{shop}/items) may be given only once",
        ),
        ("GET", "/shops/a/items?shop=b", b"", "shop is given in the path and in the query: leave one out"),
        ("POST", "/shops/a/items", b'{"shop":"b"}', "shop is given in the URL and in the body: leave one out"),
        ("POST", "/shops/a/items", b"[1]", "the body must be a JSON object: Expected object, got array"),
        ("GET", "/square?number=2", b"3", "number is given in the URL and in the body: leave one out"),
        ("GET", "/shops/a/items?tags=%ff", b"", "the query is not UTF-8: 'tags=%ff'" + _UTF_8),
        ("GET", "/shops/%ff/items", b"", "path parameter shop of GET /shops/{shop}/items is not UTF-8: '%ff'" + _UTF_8),
        (
            "GET",
            "/shops/a/items?day=soon",
            b"",
            "query parameter day of search (GET /shops/{shop}/items): invalid RFC3339 encoded date, got 'soon'",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    system: tuple[LoopThread, Dev], method: str, path: str, body: bytes, message: str
) -> None:
    """A 400 with the place and the reason, before the function runs."""

    async def work(http: aiohttp.ClientSession) -> None:
        url = aiohttp.client.URL(system[1].url + path, encoded=True)
        async with http.request(method, url, data=body) as response:
            assert (await refused(response, 400, "invalid_argument"))["message"] == message

    over_http(system, work)


def test_a_response_is_sent_as_the_function_made_it(system: tuple[LoopThread, Dev]) -> None:
    """Redirects, status, repeated headers, bodies of each form; with the invocation's id and the gateway's headers."""

    async def work(http: aiohttp.ClientSession) -> None:
        async with http.get("/u/abc", allow_redirects=False) as response:
            assert (response.status, response.headers["Location"]) == (302, "https://example.com/abc")
            assert await response.read() == b""
            assert response.headers["Boki-Outcome"] == "returned"
            assert len(response.headers["Boki-Invocation"]) == 32
            assert response.headers["X-Content-Type-Options"] == "nosniff"
        async with http.get("/u/new", allow_redirects=False) as response:
            assert response.headers["Location"] == "https://example.com/new"
        async with http.get("/u/gone") as response:
            assert (response.status, await response.json()) == (410, {"why": "gone"})
            assert response.headers.getall("Set-Cookie") == ["a=1", "b=2"]
        async with http.post("/function/seen_blocking") as response:
            assert (await response.text(), response.content_type) == ("<p>POST</p>", "text/html")
        async with http.post("/function/anything", json=[1]) as response:
            assert (response.status, response.content_type) == (201, "application/vnd.mine+json")
            assert await response.read() == b"[1]"
        async with http.get("/square?number=12") as response:
            assert await response.json() == 144

    over_http(system, work)


@pytest.mark.parametrize(
    "path", ["/square?number=12", "/u/new", "/u/gone", "/long", "/ticks/3", "/shops/a/items?count=x"]
)
def test_head_is_answered_where_get_is(system: tuple[LoopThread, Dev], path: str) -> None:
    """By the same function, with its status and headers, and no body; a stream ends after its head."""

    async def work(http: aiohttp.ClientSession) -> None:
        found = []
        for method in ("GET", "HEAD"):
            async with http.request(method, path, allow_redirects=False) as response:
                body = await response.read()
                changing = {"Boki-Invocation", "Date", "traceparent", "Transfer-Encoding"}
                headers = sorted((name, value) for name, value in response.headers.items() if name not in changing)
                headers = [header for header in headers if header != ("Content-Length", "0")]  # says nothing of HEAD
                found.append((response.status, headers))
                assert method == "GET" or body == b""
        assert found[0] == found[1]

    over_http(system, work)


def test_a_function_sees_its_request_without_secrets(system: tuple[LoopThread, Dev]) -> None:
    """Method, path, query, headers and address; nothing that proves the caller; nothing if it was not called so."""

    async def work(http: aiohttp.ClientSession) -> None:
        headers = {"User-Agent": "me", "Authorization": "Bearer x", "Proxy-Authorization": "y"}
        async with http.get("/seen/a%2Fb?tag=1&tag=2", headers=headers) as response:
            assert await response.json() == {
                "method": "GET",
                "path": "/seen/a/b",
                "route": "GET /seen/{name}",
                "name": "a/b",
                "tags": ["1", "2"],
                "agent": "me",
                "secrets": [],
                "client": "127.0.0.1",
            }
        async with http.post("/function/seen?tag=3", headers=headers) as response:
            found = await response.json()
            assert (found["method"], found["route"], found["tags"]) == ("POST", "", ["3"])
        async with http.post("/function/seen", headers={"Idempotency-Key": "k"}) as response:
            assert await response.json() is None  # a logged call
        async with http.post("/function/parent") as response:
            assert await response.json() == [302, "https://example.com/x", 410, {"why": "gone"}, None]
        async with http.post("/function/seen", headers={f"X-{n}": "x" * 8000 for n in range(9)}) as response:
            body = await refused(response, 413, "too_large")
            assert "65,536 bytes" in body["message"]

    over_http(system, work)


def test_paths_and_methods_that_are_nobodys_are_told(system: tuple[LoopThread, Dev]) -> None:
    """405 names the methods of all routes of the path; a key goes to where calls are logged."""

    async def work(http: aiohttp.ClientSession) -> None:
        async with http.delete("/shops/a/items") as response:
            body = await refused(response, 405, "invalid_argument")
            assert response.headers["Allow"] == "GET, HEAD, POST"
            assert body["message"] == "/shops/a/items takes GET, HEAD, POST, not DELETE"
        for path in ("/shops//items", "/shops/a", "/none"):
            async with http.get(path) as response:
                await refused(response, 404, "not_found")
        async with http.get("/square?number=1", headers={"Idempotency-Key": "k"}) as response:
            body = await refused(response, 400, "invalid_argument")
            told = "GET /square does not log its calls: send the header Idempotency-Key to POST /function/square"
            assert body["message"] == told

    over_http(system, work)


@pytest.mark.parametrize(
    ("function", "payload", "message"),
    [
        ("careless", "Boki-Position", "header Boki-Position belongs to the gateway: leave it out"),
        ("careless", "Transfer-Encoding", "header Transfer-Encoding belongs to the gateway: leave it out"),
        ("wrong", None, "result of wrong must be a boki.Response, not str"),
    ],
)
def test_what_a_response_cannot_be_fails_the_call(
    system: tuple[LoopThread, Dev], function: str, payload: str | None, message: str
) -> None:
    """By the name of the header, in the function's own error."""

    async def work(http: aiohttp.ClientSession) -> None:
        async with http.post(f"/function/{function}", data=payload) as response:
            assert message in (await refused(response, 422, "function_failed"))["message"]

    over_http(system, work)


def test_clients_and_logged_calls_get_responses_too(system: tuple[LoopThread, Dev]) -> None:
    """As the value that the function returned, whatever its status; also from the log, and once under a key."""
    with BlockingClient(system[1].url) as client:
        gone = client.invoke("follow", "gone")
        assert (gone.status, gone.body) == (410, {"why": "gone"})
        there = Response(
            status=302, headers={"location": "https://example.com/x"}
        )  # a client's names are in lower case
        assert client.invoke("follow", "x") == there
        assert client.invoke("seen_blocking").body == "<p>POST</p>"
        assert client.invoke("follow", "x", key="once") == there
        call = client.invoke_later("follow", "gone")
        state = client.invocation(call, wait_s=20)
        assert (state.state, state.result.status, state.result.body) == ("done", 410, {"why": "gone"})
        empty = client.invocation(client.invoke_later("follow", "empty"), wait_s=20)
        assert empty.result.body == client.invoke("follow", "empty").body == {}


def test_openapi_lists_the_routes(system: tuple[LoopThread, Dev]) -> None:
    """Each with its method, its variables and the function that it calls."""

    async def work(http: aiohttp.ClientSession) -> None:
        async with http.get("/openapi.json") as response:
            paths = (await response.json())["paths"]
        item = paths["/shops/{shop}/items"]
        assert sorted(item) == ["get", "post"]
        assert item["get"]["operationId"] == "get./shops/{shop}/items"
        assert {"name": "shop", "in": "path", "required": True, "schema": {"type": "string"}} in item["get"][
            "parameters"
        ]
        assert {"name": "count", "in": "query", "schema": {"type": "integer", "default": 1}} in item["get"][
            "parameters"
        ]
        assert "requestBody" not in item["get"]
        assert "requestBody" in item["post"]

    over_http(system, work)


# Streams

NO_STREAM = (
    "ticks streams its result, which only HTTP callers of /function/ticks and of its routes can take, without an "
    "Idempotency-Key: call a function that returns, or iterate over it in your own code"
)


def test_events_and_lines_are_streamed_by_functions_of_both_kinds(system: tuple[LoopThread, Dev]) -> None:
    """More chunks than may be under way at once, complete and in order, with the head that the function gives."""

    async def work(http: aiohttp.ClientSession) -> None:
        async with http.get("/ticks/40") as response:
            assert (response.status, response.content_type) == (200, "text/event-stream")
            assert response.headers["Cache-Control"] == "no-cache"
            assert response.headers["Boki-Outcome"] == "streamed"
            wanted = "".join(f'id: {n}\ndata: {{"n":{n}}}\n\n' for n in range(40))
            assert await response.text() == wanted
        async with http.post("/function/lines", json=40) as response:
            assert (response.status, response.headers["X-Mine"]) == (201, "1")
            assert response.headers["Content-Type"] == "text/plain; charset=utf-8"
            assert await response.text() == "".join(f"line {n}\n" for n in range(40))
        async with http.post("/function/nothing") as response:
            assert (response.status, await response.read()) == (200, b"")

    over_http(system, work)


def test_clients_get_a_stream_whole(system: tuple[LoopThread, Dev]) -> None:
    """As bytes, or as a response if the function gave it a status of its own."""
    with BlockingClient(system[1].url) as client:
        assert client.invoke("ticks", 1) == b'id: 0\ndata: {"n":0}\n\n'
        answer = client.invoke("lines", 2)
        assert isinstance(answer, Response)
        assert (answer.status, answer.header("X-Mine"), answer.body) == (201, "1", "line 0\nline 1\n")


@pytest.mark.parametrize("function", ["ticks", "answered_ticks"])
def test_clients_are_told_that_events_ended_in_an_error(system: tuple[LoopThread, Dev], function: str) -> None:
    """As for any call: events that look whole are none, whatever status they have; an error event of its own is."""
    with BlockingClient(system[1].url) as client, pytest.raises(FunctionFailed) as failed:
        client.invoke(function, -2)
    assert failed.value.message == f"{function}: ValueError: that was all"
    assert failed.value.outcome == "failed"
    with BlockingClient(system[1].url) as client:
        assert client.invoke("own_error_event") == b"event: error\ndata: mine\n\n"


def test_a_failure_before_the_first_item_is_an_ordinary_answer(system: tuple[LoopThread, Dev]) -> None:
    """Nothing has been sent yet."""

    async def work(http: aiohttp.ClientSession) -> None:
        async with http.get("/ticks/x") as response:
            await refused(response, 400, "invalid_argument")

    over_http(system, work)


@pytest.mark.parametrize(
    ("function", "status", "text"),
    [("silent", 200, "data: now\n\n"), ("silent_blocking", 200, "now"), ("silent_response", 202, "now")],
)
def test_a_stream_that_is_silent_at_first_has_its_head(
    system: tuple[LoopThread, Dev], function: str, status: int, text: str
) -> None:
    """The first item comes when the client, which has the head, has done something."""

    async def work(http: aiohttp.ClientSession) -> None:
        log = f"log-{function}"
        async with Client(system[1].url) as client, http.post(f"/function/{function}", data=log) as response:
            assert (response.status, response.headers["Boki-Outcome"]) == (status, "streamed")
            await client.logbook(log).append(b"now")
            assert await response.text() == text

    over_http(system, work)


@pytest.mark.parametrize(("function", "payload"), [("lines", -3), ("mixed", None), ("slow", None)])
def test_a_failure_in_the_middle_shows(system: tuple[LoopThread, Dev], function: str, payload: int | None) -> None:
    """The body never ends well: an error of the function, a wrong item, the deadline."""

    async def work(http: aiohttp.ClientSession) -> None:
        data = b"" if payload is None else str(payload).encode()
        async with http.post(f"/function/{function}", data=data) as response:
            got = await response.content.readany()
            assert got
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.content.read()

    over_http(system, work)


def test_a_failure_in_the_middle_shows_to_old_clients(system: tuple[LoopThread, Dev]) -> None:
    """As of proxies that speak HTTP/1.0, where the end of the connection is the end of the body: it is reset."""

    async def work(_: aiohttp.ClientSession) -> None:
        for payload, is_whole in ((3, True), (-3, False)):
            raw = await Raw.open(system[1].gateway.port)
            text = str(payload)
            await raw.send(f"POST /function/lines HTTP/1.0\r\nContent-Length: {len(text)}\r\n\r\n{text}")
            if is_whole:
                assert (await raw.reader.read()).endswith(b"line 2\n")
            else:
                with pytest.raises(ConnectionResetError):
                    await raw.reader.read()
            await raw.close()

    over_http(system, work)


def test_a_failure_in_the_middle_of_events_is_an_event(system: tuple[LoopThread, Dev]) -> None:
    """So that a browser is told, and does not only reconnect."""

    async def work(http: aiohttp.ClientSession) -> None:
        async with http.get("/ticks/-2") as response:
            events = (await response.text()).split("\n\n")
            assert [event.partition("\n")[0] for event in events[:2]] == ["id: 0", "id: 1"]
            name, _, data = events[2].partition("\n")
            assert name == "event: error"
            assert "ticks: ValueError: that was all" in data

    over_http(system, work)


def test_who_cannot_take_a_stream_is_told(system: tuple[LoopThread, Dev]) -> None:
    """The log, a key, and another function; each by the function's name."""

    async def work(http: aiohttp.ClientSession) -> None:
        requests: list[tuple[str, dict[str, str]]] = [
            ("/asyncFunction/ticks", {}),
            ("/function/ticks", {"Idempotency-Key": "k"}),
        ]
        for path, headers in requests:
            async with http.post(path, data=b"1", headers=headers) as response:
                assert (await refused(response, 400, "invalid_argument"))["message"] == NO_STREAM
        async with http.post("/function/calls_a_stream") as response:
            assert await response.text() == NO_STREAM

    over_http(system, work)


@pytest.mark.parametrize("function", ["flood", "flood_blocking"])
def test_a_client_that_does_not_read_makes_the_function_wait_and_one_that_leaves_ends_it(
    system: tuple[LoopThread, Dev], function: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Back-pressure reaches the generator through gateway, engine and worker; then it is closed, which is no error."""
    _, dev = system

    async def work(http: aiohttp.ClientSession) -> None:
        async with Client(dev.url) as client:
            book = client.logbook(f"log-{function}")
            response = await http.post(f"/function/{function}", data=book.name)
            await response.content.readexactly(200_000)
            sent = await book.check_tail("sent", fresh=True)
            while True:  # it comes to rest: what lies in buffers, and no more
                start = 0 if sent is None else sent.next_seqnum
                found = await book.read_next("sent", min_seqnum=start, wait_s=1)
                if found is None:
                    break
                sent = found
            assert sent is not None
            assert int(sent.data) < 200  # of an endless number; sockets hold some megabytes
            response.close()
            if function == "flood":
                assert await book.read_next("ended", wait_s=20) is not None
            else:
                async with http.post("/function/was_ended", data=book.name) as answer:  # waits for the worker
                    assert await answer.json() is True

    over_http(system, work)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    core = dev.gateway.core
    assert (core.stream_count, core.stream_bytes) == (0, 0)
