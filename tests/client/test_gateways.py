"""Clients of several gateways: which one is asked, and what is asked again of the next one."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from boki.api.http.exchange import HttpAnswer, HttpRequest, log_request
from boki.api.http.gateways import Attempts, Gateways
from boki.client import BlockingClient, Client
from boki.errors import BokiError, ConnectionLost, NotFound, Overloaded, Unavailable
from boki.log.operations import Read
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
            for appends in (True, False):
                async with Client(f"{broken},{gateway.url}") as client:
                    await (client.logbook("b").append(b"1", key="k") if appends else client.invoke("echo", 1, key="k"))
                    assert client._port._gateways.current == gateway.url, "the next request goes there"
                async with Client(f"{broken},{gateway.url}") as client:
                    with pytest.raises(ConnectionLost):
                        await (client.logbook("b").append(b"1") if appends else client.invoke("echo", 1))
                    assert client._port._gateways.current == gateway.url
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


URLS = "http://a:1,http://b:1,http://c:1"
KEYED = HttpRequest("POST", "/function/f", 9.0, {"Idempotency-Key": "k"})
READ = log_request(Read("b"), {}, 8.5)


def refusal(error: BokiError, **headers: str) -> HttpAnswer:
    """A gateway's answer that nothing was done."""
    body = {"code": error.code, "message": error.message, "outcome": error.outcome, "retryable": error.retryable}
    return HttpAnswer(error.http_status, headers, msgspec.json.encode(body))


@pytest.mark.parametrize("request_", [KEYED, READ], ids=["a change", "a read"])
def test_what_an_earlier_attempt_may_have_done_is_not_denied(request_: HttpRequest) -> None:
    """By the gateway that is asked next: that it does nothing says little about the one whose connection broke."""
    for last in (Unavailable("refused"), refusal(Overloaded("full"))):
        attempts = Attempts(Gateways("http://a:1,http://b:1"), request_, 0.0)
        url, *_ = attempts.begin(0.0)
        attempts.failed(url, ConnectionLost("it broke"), 0.1)
        url, *_ = attempts.begin(0.1)
        assert url == "http://b:1"
        outcome = "not_applied"
        try:
            if isinstance(last, HttpAnswer):
                assert attempts.is_answered(url, last)
            else:
                attempts.failed(url, last, 0.2)
        except BokiError as told:
            outcome = told.outcome
        assert outcome == ("not_applied" if request_ is READ else "unknown")


def test_a_lone_address_is_asked_once_more_where_its_connection_broke() -> None:
    """Gateways may share it: `boki up` starts three like that. What has no key is not, nor is a refused connection."""
    gateways = Gateways("http://a:1")
    for request in (KEYED, READ):
        attempts = Attempts(gateways, request, 0.0)
        attempts.failed(attempts.begin(0.0)[0], ConnectionLost("it broke"), 0.1)
        assert attempts.begin(0.1)[0] == "http://a:1"
        with pytest.raises(ConnectionLost):
            attempts.failed("http://a:1", ConnectionLost("again"), 0.2)
        attempts = Attempts(gateways, request, 0.0)
        with pytest.raises(Unavailable):
            attempts.failed(attempts.begin(0.0)[0], Unavailable("refused"), 0.1)
    unkeyed = Attempts(gateways, HttpRequest("POST", "/function/f", 9.0, {}), 0.0)
    with pytest.raises(ConnectionLost):
        unkeyed.failed(unkeyed.begin(0.0)[0], ConnectionLost("it broke"), 0.1)


def test_a_gateway_that_stops_is_left_and_its_refusal_is_no_answer() -> None:
    """Also behind a lost one, whose loss is what is told if nothing else comes."""
    attempts = Attempts(Gateways(URLS), KEYED, 0.0)
    attempts.failed(attempts.begin(0.0)[0], ConnectionLost("it broke"), 0.1)
    assert not attempts.is_answered(attempts.begin(0.1)[0], refusal(Unavailable("stopping"), connection="close"))
    with pytest.raises(ConnectionLost, match="it broke"):
        attempts.failed(attempts.begin(0.1)[0], Unavailable("refused"), 0.2)


@pytest.mark.parametrize("outcome", ["returned", "streamed"])
def test_what_a_function_answers_is_no_refusal(outcome: str) -> None:
    """Its own 503 by a gateway that stops is not asked for again: it would run twice. Nor does its 404 deny what an
    attempt before may have done.
    """
    busy = refusal(Unavailable("busy"), connection="close", **{"boki-outcome": outcome})
    attempts = Attempts(Gateways(URLS), HttpRequest("POST", "/function/f", 9.0, {}), 0.0)
    assert attempts.is_answered(attempts.begin(0.0)[0], busy)
    attempts = Attempts(Gateways(URLS), KEYED, 0.0)
    attempts.failed(attempts.begin(0.0)[0], ConnectionLost("it broke"), 0.1)
    assert attempts.is_answered(attempts.begin(0.1)[0], refusal(NotFound("no such order"), **{"boki-outcome": outcome}))


def test_the_deadline_is_shared_by_all_gateways() -> None:
    """One whose machine takes no packets leaves time for the others; none has more than the request had."""
    attempts = Attempts(Gateways(URLS), KEYED, 100.0)
    assert (attempts.begin(100.0), attempts.left_s(100.0)) == (("http://a:1", 3.0), 9.0)
    attempts.failed("http://a:1", Unavailable("no packets"), 103.0)
    assert (attempts.begin(103.0), attempts.left_s(103.0)) == (("http://b:1", 3.0), 6.0)
    with pytest.raises(Unavailable):
        attempts.failed("http://b:1", Unavailable("no packets"), 109.0)
