"""The gateway as a whole: who is let in, whether it is ready, what it counts and says of itself, how it stops."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from boki.errors import ConfigError
from boki.gateway.config import GatewayConfig
from boki.gateway.core import GatewayCore
from boki.gateway.server.http.metrics import BUCKETS_S, MAX_SERIES, OTHER, GatewayMetrics
from boki.protocol.calls import FunctionInfo, Outcome, Payload
from tests.gateway.fake_backend import FakeBackend, refused, run, serving, turns_until
from tests.gateway.strangers import Raw

PROTECTED = ["/status", "/metrics", "/openapi.json", "/functions", "/logbook", "/invocation/x", "/flow/x/y", "/nowhere"]


# Who is let in


@pytest.mark.parametrize(
    "header", ["", "Bearer wrong", "Bearer", "Basic secret", "secret", "Bearer secret2", "bearer  "]
)
def test_without_the_token_nothing_but_the_probes_answers(header: str) -> None:
    """401 everywhere, also at paths that are not there; a wrong token is no better than none."""

    async def scenario() -> None:
        async with serving(token="secret") as (_, backend, http):
            headers = {"Authorization": header} if header else {}
            for path in PROTECTED:
                async with http.get(path, headers=headers) as response:
                    await refused(response, 401, "unauthorized")
                    assert response.headers["WWW-Authenticate"] == "Bearer"
            async with http.post("/function/echo", headers=headers) as response:
                await refused(response, 401, "unauthorized")
            assert not backend.started
            for path in ("/healthz", "/readyz"):
                async with http.get(path, headers=headers) as response:
                    assert response.status == 200

    run(scenario())


@pytest.mark.parametrize("header", ["Bearer secret", "bearer secret"])
def test_with_the_token_everything_answers(header: str) -> None:
    """The scheme's case does not matter; web pages with the token are welcome."""

    async def scenario() -> None:
        async with serving(token="secret") as (_, _backend, http):
            headers = {"Authorization": header, "Origin": "https://app.example", "Host": "boki.example"}
            async with http.post("/function/echo", headers=headers) as response:
                assert response.status == 200

    run(scenario())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost"}, 200),
        ({"Host": "[::1]:8080"}, 200),
        ({"Host": "127.0.0.1:1", "Origin": "http://127.0.0.1:1"}, 200),
        ({"Origin": "https://evil.example"}, 401),
        ({"Origin": "null"}, 401),
        ({"Host": "evil.example"}, 401),
        ({"Host": "127.0.0.1.evil.example"}, 401),
    ],
)
def test_without_a_token_web_pages_of_others_are_kept_out(headers: dict[str, str], status: int) -> None:
    """A browser on this machine must not run functions for any page that it shows."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http), http.post("/function/echo", headers=headers) as response:
            assert response.status == status

    run(scenario())


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org"])
def test_an_address_that_others_reach_needs_a_token_or_the_word(host: str) -> None:
    """The error says both ways out."""
    with pytest.raises(ConfigError, match=r"--token.*--insecure"):
        GatewayConfig(host=host)
    assert GatewayConfig(host=host, token="x").host == host
    assert GatewayConfig(host=host, insecure=True).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_the_machines_own_addresses_need_none(host: str) -> None:
    """And a token is not shown by accident."""
    assert "secret" not in repr(GatewayConfig(host=host, token="secret"))
    assert GatewayConfig(host=host).token == ""


@pytest.mark.parametrize("token", ["with space", "línea", "tab\t", "new\nline"])
def test_a_token_that_fits_in_no_header_is_refused(token: str) -> None:
    """It could never be sent."""
    with pytest.raises(ConfigError):
        GatewayConfig(token=token)


# What it says of itself


def test_it_is_ready_when_its_backend_is() -> None:
    """Health is about the process, readiness about whether a call would run."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, http):
            for ready, draining, status in ((True, False, 200), (False, False, 503), (True, True, 503)):
                backend.ready = ready
                if draining:
                    gateway.drain()
                async with http.get("/readyz") as response:
                    assert response.status == status
                    if status == 503:
                        await refused(response, 503, "unavailable")
                async with http.get("/healthz") as response:
                    assert await response.json() == {"status": "alive"}

    run(scenario())


def test_status_tells_modules_functions_and_what_is_in_flight() -> None:
    """A broken module is there with its error."""

    async def scenario() -> None:
        async with serving() as (_, backend, http):
            async with http.get("/status") as response:
                status = await response.json()
            assert (status["ready"], status["version"], status["functions"]) == (True, "1", sorted(backend.functions))
            assert [module["error"] for module in status["modules"]] == [
                None,
                "broken.py:3: SyntaxError: invalid syntax",
            ]
            assert status["gateway"]["engines"] == {"engine-1": 0}

    run(scenario())


@pytest.mark.parametrize(
    "path",
    ["/healthz", "/readyz", "/functions", "/openapi.json", "/logbook", "/logbook/b/read", "/logbook/b/records/1"],
)
def test_head_is_answered_as_get_is_without_a_body(path: str) -> None:
    """`curl -I`: the same status and headers, errors included, and the connection continues."""

    async def scenario() -> None:
        async with serving() as (gateway, _backend, http):
            async with http.get(path) as got:
                await got.read()
            changing = {"Date", "Boki-Position"}
            raw = await Raw.open(gateway.port)
            for _ in range(2):
                await raw.send(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
                async with asyncio.timeout(20):
                    head = (await raw.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                assert head[0].split()[1] == str(got.status)
                headers = dict(line.split(": ", 1) for line in head[1:] if line)
                assert {name: value for name, value in headers.items() if name not in changing} == {
                    name: value for name, value in got.headers.items() if name not in changing
                }
            await raw.close()

    run(scenario())


def test_what_takes_no_get_takes_no_head() -> None:
    """The methods that a path takes are told, HEAD among them where there is a GET."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            async with http.head("/function/echo") as response:
                assert (response.status, response.headers["Allow"]) == (405, "POST")
            async with http.delete("/status") as response:
                assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")

    run(scenario())


def test_a_subscription_has_a_head() -> None:
    """Which ends, though the subscription would not."""

    async def scenario() -> None:
        async with serving() as (gateway, _backend, http), http.head("/logbook/b/subscribe") as response:
            assert (response.status, response.content_type) == (200, "text/event-stream")
            assert await response.read() == b""
            assert gateway.core.stream_count == 0

    run(scenario())


def test_functions_are_listed_with_their_schemas() -> None:
    """All that is known of them without importing their modules."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http), http.get("/functions") as response:
            body = await response.json()
            shelf = next(info for info in body["functions"] if info["name"] == "shelf")
            assert (shelf["book"], shelf["module"], shelf["is_async"]) == ("books.shelf", "app", False)
            assert [module["module"] for module in body["modules"]] == ["app", "broken"]

    run(scenario())


async def scraped(http: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    async with http.get("/metrics") as response:
        assert response.status == 200
        families = text_string_to_metric_families(await response.text())
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }


def test_calls_and_requests_are_counted_by_how_they_ended() -> None:
    """By function and code, by route and code; names that nobody registered make no series."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            for path in ("/function/echo", "/function/echo", "/function/fail", "/function/nobody", "/nowhere"):
                async with http.post(path) as response:
                    await response.read()
            for seqnum in range(3):
                async with http.get(f"/logbook/b/records/{seqnum}") as response:
                    assert response.status == 404
            found = await scraped(http)

            def value(name: str, **labels: str) -> float:
                return found[name, frozenset(labels.items())]

            assert value("boki_calls_total", function="echo", code="ok") == 2
            assert value("boki_calls_total", function="fail", code="function_failed") == 1
            assert value("boki_http_requests_total", route="/function/{name}", code="no_such_function") == 1
            assert value("boki_http_requests_total", route="none", code="not_found") == 1
            assert value("boki_http_requests_total", route="/logbook/{book}/records/{seqnum}", code="not_found") == 3
            assert value("boki_call_seconds_count", function="echo") == 2
            assert value("boki_call_seconds_bucket", function="echo", le="+Inf") == 2
            assert value("boki_gateway_in_flight", kind="call") == 0
            assert value("boki_gateway_engine_calls", engine="engine-1") == 0
            assert not any("nobody" in dict(labels).values() for _, labels in found)

    run(scenario())


def test_series_are_bounded_and_durations_fall_into_their_buckets() -> None:
    """Whatever names come, memory does not grow."""
    metrics = GatewayMetrics(GatewayCore(), CollectorRegistry())
    for number in range(MAX_SERIES + 100):
        metrics.function(f"f{number}").count("ok", 0.0)
    assert len(metrics._functions) == MAX_SERIES + 1
    assert metrics.function(OTHER).codes == {"ok": 100}
    meter = metrics.route("/x")
    for duration_s in (0.0005, 0.001, 0.0011, 3.0, 1000.0):
        meter.count("ok", duration_s)
    buckets, total_s = meter.histogram()
    assert dict(buckets) == {str(bound): 2 + (bound > 0.001) + (bound > 2.5) for bound in BUCKETS_S} | {"+Inf": 5}
    assert total_s == pytest.approx(1003.0026)


# How it stops


def test_stopping_waits_for_calls_and_refuses_new_ones() -> None:
    """The answer of a call in flight still arrives."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, http):

            async def call() -> tuple[int, Any]:
                async with http.post("/function/hang") as response:
                    return response.status, await response.json()

            task = asyncio.create_task(call())
            await backend.until(lambda: bool(backend.hanging))
            async with http.get("/healthz") as response:  # a connection that is open when it stops
                assert response.status == 200
            stopping = asyncio.create_task(gateway.stop(20))
            await turns_until(lambda: gateway.core.is_draining)
            async with aiohttp.ClientSession(gateway.url) as newcomer:
                for path, status in (("/healthz", 200), ("/readyz", 503), ("/logbook/b/read", 503)):
                    async with newcomer.get(path) as response:
                        assert response.status == status
                async with newcomer.post("/function/echo") as response:
                    assert (await refused(response, 503, "unavailable"))["retryable"] is True
            for done in backend.hanging.values():
                done(Outcome(Payload("json", b"5"), None))
            assert await task == (200, 5)
            await stopping

    run(scenario())


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "once"}])
def test_stopping_does_not_wait_longer_than_it_is_told(headers: dict[str, str]) -> None:
    """A call that does not end is answered before the connection closes: nobody knows its outcome."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, http):

            async def call() -> None:
                async with http.post("/function/hang", headers=headers) as response:
                    assert (await refused(response, 503, "unavailable"))["outcome"] == "unknown"

            task = asyncio.create_task(call())
            await backend.until(lambda: bool(backend.hanging))
            await gateway.stop(0.05)
            await task
            assert gateway.core.is_idle

    run(scenario())


def test_long_polls_end_when_it_drains() -> None:
    """They can be asked again elsewhere."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, http):

            async def poll() -> None:
                async with http.get("/logbook/b/read_next?wait_s=20") as response:
                    await refused(response, 503, "unavailable")

            task = asyncio.create_task(poll())
            await backend.until_waiting()
            gateway.drain()
            await task
            assert gateway.core.is_idle

    run(scenario())


def test_functions_that_come_and_go_are_followed() -> None:
    """A reload is seen by the next request."""

    async def scenario() -> None:
        backend = FakeBackend()
        async with serving(backend) as (_, _, http):
            backend.functions["new"] = FunctionInfo(name="new", module="app", is_async=True)
            async with http.post("/function/new") as response:
                assert response.status == 200
            del backend.functions["new"]
            async with http.post("/function/new") as response:
                await refused(response, 404, "no_such_function")

    run(scenario())
