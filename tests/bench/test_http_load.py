"""The load over HTTP: what is sent, what is counted, and how wrk is read."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from boki.bench import http_load
from boki.bench.http_load import Post
from boki.bench.rows import Round
from boki.errors import BokiError

Handler = Callable[[web.Request], Awaitable[web.Response]]


BODY = '{"a": "\\"b"}'


def against(handler: Handler, *posts: Post) -> Round:
    """A round against a server whose functions are all that handler; the URLs of the requests are paths."""

    async def run() -> Round:
        application = web.Application()
        application.router.add_post("/function/{name}", handler)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host = f"http://127.0.0.1:{runner.addresses[0][1]}"
        there = [post._replace(url=host + post.url) for post in posts or (Post("/function/f", BODY),)]
        try:
            return await http_load.post_load(*there, callers=3, duration_s=0.2, token="it's")
        finally:
            await runner.cleanup()

    return asyncio.run(run())


def test_our_own_generator_sends_the_body_and_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent is JSON with the bearer token; every answer of the 200s counts."""
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    bodies = set()

    async def answer(request: web.Request) -> web.Response:
        bodies.add((await request.text(), request.content_type, request.headers["Authorization"]))
        return web.json_response(None)

    one = against(answer)
    assert http_load.generator_name() == "asyncio"
    assert bodies == {('{"a": "\\"b"}', "application/json", "Bearer it's")}
    assert one.op_count > 0
    assert (one.error_count, one.p50_ms is None) == (0, False)


def test_each_caller_has_a_request_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what callers do in common is theirs to choose, as one key of a virtual object or many."""
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    seen = set()

    async def answer(request: web.Request) -> web.Response:
        seen.add((request.path, await request.text()))
        return web.json_response(None)

    against(answer, Post("/function/a", "1"), Post("/function/b", "2"))
    assert seen == {("/function/a", "1"), ("/function/b", "2")}


def test_each_request_has_a_key_of_its_own_where_they_have_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a logged call would be made once, and asked forever after."""
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    keys = []

    async def answer(request: web.Request) -> web.Response:
        keys.append(request.headers.get("Idempotency-Key", ""))
        return web.json_response(None)

    one = against(answer, Post("/function/f", "1", "round-1:"))
    assert len(set(keys)) == len(keys) >= one.op_count > 0
    assert all(key.startswith("round-1:") for key in keys)


def test_answers_that_are_errors_count_as_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that refuses everything has no throughput."""
    monkeypatch.setattr(shutil, "which", lambda _name: None)

    async def refuse(_request: web.Request) -> web.Response:
        return web.Response(status=503)

    one = against(refuse)
    assert one.op_count == 0
    assert one.error_count > 0


def test_the_script_for_wrk_quotes_what_it_is_given(tmp_path: Path) -> None:
    """Body and token stand in it as Lua strings, whatever they hold."""
    text = http_load._write_script(tmp_path, [Post("http://here/function/f", BODY)], "it's").read_text()
    assert r'local posts, turn = {{"/function/f", "{\"a\": \"\\\"b\"}"}}, 0' in text
    assert """wrk.headers['Authorization'] = "Bearer it's\"""" in text
    assert "@" not in text


def test_the_closing_line_of_wrk_is_read() -> None:
    """Requests without errors, seconds, and milliseconds."""
    output = "Running 1s test\nBOKI 1200 200 2.000000 0.250000 1.500000\n"
    assert http_load.parse_wrk(output) == Round(1000, 200, 2.0, 0.25, 1.5)


def test_a_round_of_wrk_without_an_answer_has_no_latency() -> None:
    """On a busy machine none of 64 callers may have one within a second: that is no latency of zero."""
    assert http_load.parse_wrk("BOKI 0 0 1.100000 0.000000 0.000000") == Round(0, 0, 1.1, None, None)


def test_a_wrk_that_measured_nothing_is_an_error() -> None:
    """Its own message is shown."""
    with pytest.raises(BokiError, match="unable to connect"):
        http_load.parse_wrk("unable to connect to 127.0.0.1:1")
