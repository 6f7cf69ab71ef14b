"""Functions over HTTP: calls, asynchronous calls, invocations, keys, headers, and every way to be refused."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from boki.errors import (
    BokiError,
    CallLost,
    ConnectionLost,
    CorruptData,
    DeadlineExceeded,
    DiskFull,
    FunctionFailed,
    NoSuchFunction,
    Overloaded,
    Trimmed,
    Unavailable,
)
from boki.gateway.config import GatewayConfig
from boki.gateway.core import Budget, Standing
from boki.gateway.server.http.bodies import payload_encoding
from boki.log.operations import Failure
from boki.protocol.calls import Outcome, Payload
from tests.gateway.fake_backend import FakeBackend, refused, run, serving


def test_a_call_answers_its_result_with_its_id_and_position() -> None:
    """The result as it is, its content type, and what the caller needs to continue from there."""

    async def scenario() -> None:
        async with serving() as (_, backend, http), http.post("/function/echo", data=b'{"a":1}') as response:
            assert response.status == 200
            assert await response.read() == b'{"a":1}'
            assert response.headers["Content-Type"] == "application/json"
            (call,) = backend.started
            assert response.headers["Boki-Invocation"] == call.id
            assert response.headers["Boki-Position"] == "0:1.9"
            assert (call.function, call.book, call.timeout_us, call.depth) == ("echo", "echo", 60_000_000, 0)

    run(scenario())


@pytest.mark.parametrize(
    ("function", "body", "content_type"),
    [
        ("echo", b"[1]", "application/json"),
        ("text", "grüß".encode(), "text/plain; charset=utf-8"),
        ("raw", b"\xff\x00", "application/octet-stream"),
        ("echo", b"", "application/json"),
    ],
)
def test_results_come_in_their_encoding(function: str, body: bytes, content_type: str) -> None:
    """JSON, text and bytes each with their content type, and bytes untouched."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http), http.post(f"/function/{function}", data=body) as response:
            assert response.headers["Content-Type"] == content_type
            assert await response.read() == (body or b"null")

    run(scenario())


@pytest.mark.parametrize(
    ("content_type", "wanted", "encoding"),
    [
        ("", "json", "json"),
        ("", "text", "text"),
        ("application/x-www-form-urlencoded", "bytes", "bytes"),
        ("Application/JSON; charset=utf-8", "text", "json"),
        ("application/cloudevents+json", "text", "json"),
        ("text/plain", "json", "text"),
        ("application/octet-stream", "json", "bytes"),
        (";;;", "text", "text"),
    ],
)
def test_an_explicit_content_type_decides_how_a_body_is_read(content_type: str, wanted: Any, encoding: str) -> None:
    """Others are what a tool made up; then the function's own encoding counts."""
    assert payload_encoding(content_type, wanted) == encoding


def test_headers_choose_book_deadline_position_and_trace() -> None:
    """Each is handed on, and the trace comes back."""

    async def scenario() -> None:
        async with serving() as (_, backend, http):
            trace = f"00-{'a' * 32}-{'b' * 16}-01"
            headers = {"Boki-Book": "other", "Boki-Timeout": "1.5", "Boki-Position": "0:1.3", "traceparent": trace}
            async with http.post("/function/echo", headers=headers) as response:
                assert response.status == 200
            (call,) = backend.started
            assert (call.book, call.timeout_us, call.positions) == ("other", 1_500_000, {0: (1 << 43) | 3})
            assert call.traceparent == f"00-{'a' * 32}-{call.id[:16]}-01" == response.headers["traceparent"]

    run(scenario())


def test_the_functions_own_book_and_deadline_are_the_defaults_and_the_bound() -> None:
    """A caller may shorten the deadline, not lengthen it."""

    async def scenario() -> None:
        async with serving() as (_, backend, http):
            async with http.post("/function/shelf") as response:
                assert response.status == 200
            async with http.post("/function/shelf", headers={"Boki-Timeout": "3600"}) as response:
                assert response.status == 200
            assert [(call.book, call.timeout_us) for call in backend.started] == [("books.shelf", 60_000_000)] * 2

    run(scenario())


@pytest.mark.parametrize("trace", ["", "garbage", f"00-{'0' * 32}-{'b' * 16}-01", f"ff-{'a' * 32}-{'b' * 16}-01"])
def test_a_malformed_trace_is_ignored(trace: str) -> None:
    """As the W3C recommendation asks: a new trace starts, named after the invocation."""

    async def scenario() -> None:
        async with serving() as (_, backend, http):
            async with http.post("/function/echo", headers={"traceparent": trace}) as response:
                assert response.status == 200
            (call,) = backend.started
            assert call.traceparent.split("-")[1] == call.id

    run(scenario())


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Boki-Book", "no/slash"),
        ("Boki-Book", "x" * 129),
        ("Boki-Book", ""),
        ("Boki-Timeout", "soon"),
        ("Boki-Timeout", "-1"),
        ("Boki-Timeout", "0"),
        ("Boki-Timeout", "nan"),
        ("Boki-Timeout", "inf"),
        ("Boki-Timeout", "1e9"),
        ("Boki-Position", "nonsense"),
        ("Boki-Position", "0:1.x"),
        ("Boki-Position", "5:1.1"),
        ("Boki-Position", "0:2.1"),
        ("Boki-Position", "0:1." + "9" * 30),
        ("Boki-Position", "0:1.1," * 3000),
        ("Idempotency-Key", "x" * 256),
        ("Idempotency-Key", "tab\there"),
        ("Content-Encoding", "gzip"),
    ],
)
def test_a_bad_header_is_400_and_named(header: str, value: str) -> None:
    """Nothing is started."""

    async def scenario() -> None:
        async with serving() as (_, backend, http):
            async with http.post("/function/echo", headers={header: value}) as response:
                if response.status == 400 and "not a valid HTTP request" in await response.text():
                    return  # too long for a header: the parser refused it
                body = await refused(response, 400, "invalid_argument")
                field = body["details"].get("field")
                assert field in {header, "book" if header == "Boki-Book" else "body"}, body
                assert body["outcome"] == "not_applied"
            assert not backend.started

    run(scenario())


@pytest.mark.parametrize("header", ["Boki-Timeout", "Boki-Position"])
def test_a_bad_header_starts_no_workflow(header: str) -> None:
    """Also where the request itself has no use for what it says."""

    async def scenario() -> None:
        async with serving() as (_, backend, http):
            async with http.post("/flow/echo?id=a", headers={header: "x"}, json={}) as response:
                details = (await refused(response, 400, "invalid_argument"))["details"]
            assert (details["field"], backend.started) == (header, []), "before it looks for the workflow"

    run(scenario())


def test_unknown_functions_are_404_with_close_names() -> None:
    """A typing error is told what it was meant to be."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            for path in ("/function/ecko", "/asyncFunction/ecko"):
                async with http.post(path) as response:
                    body = await refused(response, 404, "no_such_function")
                    assert body["details"]["close"] == ["echo"]
                    assert "did you mean echo" in body["message"]
            async with http.post("/function/" + "%00" * 50) as response:
                await refused(response, 404, "no_such_function")

    run(scenario())


def test_strangers_are_shown_no_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Type and message for every caller; where in the code only with a token, or on this machine."""

    async def scenario() -> dict[str, Any]:
        async with serving() as (_, backend, http):
            async with http.post("/function/fail") as response:
                body = await refused(response, 422, "function_failed")
                assert response.headers["Boki-Invocation"] == backend.started[0].id
                assert response.headers["Boki-Position"] == "0:5.0"
            async with http.post("/asyncFunction/fail") as response:
                place = response.headers["Location"]
            async with http.get(f"{place}?wait_s=20") as response:
                state = await response.json()
                assert state["error"]["details"] == body["details"]
            details: dict[str, Any] = body["details"]
            assert (body["outcome"], details["error_type"]) == ("failed", "ValueError")
            return details

    assert "secret.py" in run(scenario())["traceback"]
    is_shown = [
        GatewayConfig(**one).shows_tracebacks  # type: ignore[arg-type]
        for one in ({"host": "0.0.0.0", "insecure": True}, {"host": "0.0.0.0", "token": "secret"}, {})
    ]
    assert is_shown == [False, True, True]
    monkeypatch.setattr(GatewayConfig, "shows_tracebacks", False)
    assert "traceback" not in run(scenario())


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Overloaded("full", retry_after_s=2.5), 429),
        (Unavailable("starting"), 503),
        (DiskFull("full"), 503),
        (NoSuchFunction("gone meanwhile"), 404),
        (CallLost("gone"), 500),
        (DeadlineExceeded("late"), 504),
        (ConnectionLost("broken"), 503),
        (CorruptData("bad"), 500),
        (Trimmed("gone", next_seqnum=5), 410),
        (FunctionFailed("no"), 422),
        (BokiError("something new"), 500),
    ],
)
def test_errors_have_the_status_codes_that_people_expect(error: BokiError, status: int) -> None:
    """Whether the call was refused or ended so, body and status are the same; some say when to come again."""

    async def scenario() -> None:
        async with serving(budget=Budget(hold_us=0)) as (gateway, backend, http):
            backend.refusal = error
            async with http.post("/function/echo") as response:
                body = await refused(response, status, error.code)
                assert (body["outcome"], body["retryable"]) == (error.outcome, error.retryable)
                assert response.headers.get("Retry-After") == {429: "3", 503: "1"}.get(status)
            backend.refusal = None
            task = asyncio.create_task(_post(http, "/function/hang"))
            await backend.until(lambda: bool(backend.hanging))
            for done in backend.hanging.values():
                done(Outcome(None, Failure.of(error)))
            assert await task == (status, body | {"message": error.message})
            assert gateway.core.is_idle

    run(scenario())


async def _post(http: aiohttp.ClientSession, path: str, **arguments: Any) -> tuple[int, Any]:
    async with http.post(path, **arguments) as response:
        return response.status, await response.json()


def test_a_method_that_a_path_does_not_take_is_405() -> None:
    """With the methods that it does take."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http), http.get("/function/echo") as response:
            await refused(response, 405, "invalid_argument")
            assert response.headers["Allow"] == "POST"

    run(scenario())


def test_calls_beyond_the_budget_are_429() -> None:
    """At once, with a time to come again; those in flight continue, and their place is free afterwards."""

    async def scenario() -> None:
        async with serving(budget=Budget(calls=2)) as (gateway, backend, http):
            tasks = [asyncio.create_task(_post(http, "/function/hang")) for _ in range(2)]
            await backend.until(lambda: len(backend.hanging) == 2)
            async with http.post("/function/echo") as response:
                await refused(response, 429, "overloaded")
                assert response.headers["Retry-After"] == "1"
            for done in backend.hanging.values():
                done(Outcome(Payload("json", b"1"), None))
            assert await asyncio.gather(*tasks) == [(200, 1), (200, 1)]
            assert gateway.core.is_idle
            assert (await _post(http, "/function/echo"))[0] == 200

    run(scenario())


def test_a_lost_engine_ends_its_calls_as_unknown() -> None:
    """The caller is told that it may have run; an answer that comes after all is dropped."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, http):
            task = asyncio.create_task(_post(http, "/function/hang"))
            await backend.until(lambda: bool(backend.hanging))
            gateway.engine_lost(backend.engines[0])
            status, body = await task
            assert (status, body["code"], body["outcome"]) == (500, "call_lost", "unknown")
            for done in backend.hanging.values():
                done(Outcome(Payload("json", b"1"), None))
            assert (await _post(http, "/function/echo"))[0] == 503
            gateway.engine_changed(backend.engines[0], Standing())
            assert (await _post(http, "/function/echo"))[0] == 200

    run(scenario())


def test_a_client_that_leaves_frees_its_place_when_its_call_ends() -> None:
    """Nothing leaks, and the call is not started again."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, http):
            task = asyncio.create_task(_post(http, "/function/hang"))
            await backend.until(lambda: bool(backend.hanging))
            task.cancel()
            for done in backend.hanging.values():
                done(Outcome(Payload("json", b"1"), None))
            assert (await _post(http, "/function/echo"))[0] == 200
            assert gateway.core.call_count == 0

    run(scenario())


# Asynchronous calls


def test_an_asynchronous_call_is_accepted_and_can_be_asked_for() -> None:
    """202 with an id and where to ask; then its state, result and times."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            async with http.post("/asyncFunction/echo", json={"n": 1}) as response:
                assert response.status == 202
                invocation_id = (await response.json())["id"]
                assert response.headers["Location"] == f"/invocation/{invocation_id}"
                assert response.headers["Boki-Invocation"] == invocation_id
            async with http.get(f"/invocation/{invocation_id}?wait_s=20") as response:
                state = await response.json()
            assert (state["id"], state["function"], state["book"]) == (invocation_id, "echo", "echo")
            assert (state["state"], state["result"], state["attempts"]) == ("done", {"n": 1}, 1)
            assert state["accepted_us"] == state["due_us"] <= state["started_us"] <= state["finished_us"]
            assert "error" not in state

    run(scenario())


@pytest.mark.parametrize(
    ("function", "body", "result"),
    [("text", b"hi", {"result": "hi"}), ("raw", b"\xff", {"result_base64": "/w=="})],
)
def test_results_of_any_encoding_fit_into_the_state(function: str, body: bytes, result: dict[str, str]) -> None:
    """Text as a string, bytes as base64."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            _, accepted = await _post(http, f"/asyncFunction/{function}", data=body)
            async with http.get(f"/invocation/{accepted['id']}?wait_s=20") as response:
                state = await response.json()
            assert {name: value for name, value in state.items() if name.startswith("result")} == result

    run(scenario())


def test_the_state_says_accepted_and_running_before_it_says_done() -> None:
    """A delayed call is accepted; one whose body is under way is running."""

    async def scenario() -> None:
        async with serving() as (_, backend, http):
            _, delayed = await _post(http, "/asyncFunction/echo?delay_s=60")
            _, running = await _post(http, "/asyncFunction/hang")
            await backend.until(lambda: bool(backend.hanging))
            states = []
            for accepted in (delayed, running):
                async with http.get(f"/invocation/{accepted['id']}") as response:
                    states.append(await response.json())
            assert [state["state"] for state in states] == ["accepted", "running"]
            assert states[0]["due_us"] - states[0]["accepted_us"] == 60_000_000

    run(scenario())


@pytest.mark.parametrize("path", ["/invocation/unknown", "/invocation/" + "0" * 32, "/invocation/%00"])
def test_unknown_invocations_are_404(path: str) -> None:
    """Whatever the id looks like."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http), http.get(path) as response:
            await refused(response, 404, "no_such_invocation")

    run(scenario())


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("POST", "/asyncFunction/echo?delay_s=-1", "delay_s"),
        ("POST", "/asyncFunction/echo?delay_s=1e12", "delay_s"),
        ("POST", "/asyncFunction/echo?delay=1", "delay"),
        ("POST", "/asyncFunction/echo?delay_s=1&delay_s=2", "delay_s"),
        ("GET", "/invocation/x?wait_s=61", "wait_s"),
        ("GET", "/invocation/x?wait_s=", "wait_s"),
    ],
)
def test_bad_query_parameters_are_400_and_named(method: str, path: str, field: str) -> None:
    """Unknown ones too, since they are mistakes that would go unnoticed."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http), http.request(method, path) as response:
            assert (await refused(response, 400, "invalid_argument"))["details"]["field"] == field

    run(scenario())


# Keys


def test_the_same_key_gives_the_first_answer_and_runs_nothing() -> None:
    """Result, id and position are those of the first call; another body or function is 409."""

    async def scenario() -> None:
        async with serving() as (_, backend, http):
            answers = []
            for _ in range(3):
                async with http.post("/function/echo", json=1, headers={"Idempotency-Key": "k 1"}) as response:
                    headers = [response.headers[name] for name in ("Boki-Invocation", "Boki-Position")]
                    answers.append((response.status, await response.json(), headers))
            assert answers == [answers[0]] * 3
            assert len(backend.started) == 1
            for path, body in (("/function/echo", 2), ("/function/shelf", 1), ("/asyncFunction/echo", 2)):
                async with http.post(path, json=body, headers={"Idempotency-Key": "k 1"}) as response:
                    error = await refused(response, 409, "key_reused")
                    assert error["details"]["field"] == "Idempotency-Key"
            status, accepted = await _post(http, "/asyncFunction/echo", json=1, headers={"Idempotency-Key": "k 1"})
            assert (status, accepted["id"]) == (202, answers[0][2][0])

    run(scenario())


def test_a_failure_is_given_again_under_its_key() -> None:
    """A function that raised has had its run."""

    async def scenario() -> None:
        async with serving() as (_, backend, http):
            for _ in range(2):
                async with http.post("/function/fail", headers={"Idempotency-Key": "k"}) as response:
                    await refused(response, 422, "function_failed")
            assert len(backend.started) == 1

    run(scenario())


def test_concurrent_duplicates_wait_for_the_first() -> None:
    """Ten at once: one runs, and all get its result."""

    async def scenario() -> None:
        async with serving() as (_, backend, http):
            headers = {"Idempotency-Key": "k"}
            tasks = [asyncio.create_task(_post(http, "/function/hang", json=7, headers=headers)) for _ in range(10)]
            await backend.until(lambda: bool(backend.hanging))
            await backend.until_waiting(0)
            for done in list(backend.hanging.values()):
                done(Outcome(Payload("json", b"7"), None))
            assert await asyncio.gather(*tasks) == [(200, 7)] * 10
            assert len(backend.started) == 1

    run(scenario())


def restart(backend: FakeBackend) -> FakeBackend:
    """A new process on the same log."""
    again = FakeBackend()
    again.log = backend.log
    return again


def test_a_key_holds_across_a_restart() -> None:
    """The first result is told again by the next process."""

    async def scenario() -> None:
        backend = FakeBackend()
        async with serving(backend) as (_, _, http):
            first = await _post(http, "/function/echo", json=5, headers={"Idempotency-Key": "k"})
        after = restart(backend)
        async with serving(after) as (_, _, http):
            assert await _post(http, "/function/echo", json=5, headers={"Idempotency-Key": "k"}) == first
            assert (await _post(http, "/function/echo", json=6, headers={"Idempotency-Key": "k"}))[0] == 409
            assert not after.started

    run(scenario())
