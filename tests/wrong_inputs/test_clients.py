"""What a new user gets wrong with the clients, and the whole message that comes back."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from boki import BlockingClient, Client, ConnectionLost, InvalidArgument, Retry, Unavailable
from boki.api.http.exchange import broken, invocations_request, refused
from tests.gateway.fake_backend import serving

URL = "http://127.0.0.1:8080"
RETRY_FIELDS = "Its fields: attempts, first_s, factor, max_s, jitter, deadline_s, errors, never, should_retry"
NO_URL = f"the URL of a gateway looks like {URL}, not like "
ROWS: dict[str, tuple[Callable[[], Any], str]] = {
    "no text": (lambda: BlockingClient(5), NO_URL + "5"),  # type: ignore[arg-type]
    "no text, async": (lambda: Client(None), NO_URL + "None"),  # type: ignore[arg-type]
    "port": (lambda: BlockingClient("http://127.0.0.1:99999"), NO_URL + "'http://127.0.0.1:99999'"),
    "bracket": (lambda: Client("http://[::1"), NO_URL + "'http://[::1'"),
    "token": (lambda: BlockingClient(URL, token=5), "the token must be a str, not int"),  # type: ignore[arg-type]
    "timeout": (
        lambda: BlockingClient(URL).invoke("f", timeout_s=1e-6),
        "timeout_s must be from 0.001 to 86,400 seconds, not 1e-06",
    ),
    "long timeout": (
        lambda: BlockingClient(URL).invoke("f", timeout_s=1e6),
        "timeout_s must be from 0.001 to 86,400 seconds, not 1e+06",
    ),
    "key": (
        lambda: BlockingClient(URL).invoke("f", key=5),  # type: ignore[call-overload]
        "key must be 1 to 255 characters of printable ASCII, not 5",
    ),
    "position": (
        lambda: BlockingClient(URL).see("soon"),
        "position must look like 0:2.7,1:1.3 (log:term.entries), each log once, not 'soon'",
    ),
    "no position": (lambda: Client(URL).see(5), "position must be a str, not int"),  # type: ignore[arg-type]
    "retry": (
        lambda: Retry(backoff=2),  # type: ignore[call-arg]
        f"Retry has no field backoff. {RETRY_FIELDS}",
    ),
    "retry, nearly": (
        lambda: Retry(attempt=2),  # type: ignore[call-arg]
        f"Retry has no field attempt; did you mean attempts? {RETRY_FIELDS}",
    ),
    "retry by place": (
        lambda: Retry(3),  # type: ignore[misc]
        "Retry takes its fields by name: write Retry(attempts=3)",
    ),
    "states": (
        lambda: BlockingClient(URL).calls(states="failed"),
        "states must be a list, not one str: write states=['failed']",
    ),
    "when": (
        lambda: BlockingClient(URL).logbook("b").append(b"x", when=("t", 0)),  # type: ignore[arg-type]
        "when holds 't', which is not an Expect: write when=Expect(tag, last_seqnum)",
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_the_refusal_says_what_is_wrong_and_what_to_do(row: tuple[Callable[[], Any], str]) -> None:
    """Before anything is sent, and as an error of Boki."""
    make, message = row
    with pytest.raises(InvalidArgument) as caught:
        make()
    assert caught.value.message == message


def test_a_limit_of_none_is_sent_and_not_passed_by() -> None:
    """The gateway refuses it; a page of 100 is not what was asked for."""
    assert invocations_request("", (), 0, 0, 0, 0).target == "/invocation?limit=0"


def test_a_client_is_of_one_event_loop() -> None:
    """Its connections cannot be used in the loop of another `asyncio.run`; they end with their own."""

    async def first() -> Client:
        async with serving() as (gateway, _, _):
            client = Client(gateway.url)
            assert await client.invoke("text", "a")
            await client.close()
            client = Client(gateway.url)
            assert await client.invoke("text", "a")
            return client

    client = asyncio.run(first())
    with pytest.raises(Unavailable) as caught:
        asyncio.run(client.invoke("text", "b"))
    told = (
        "this client belongs to the event loop that used it first: make one in each asyncio.run, or use BlockingClient"
    )
    assert (caught.value.message, caught.value.retryable) == (told, False)
    asyncio.run(client.close())


def test_a_gateway_without_tls_is_not_told_as_one_that_is_away() -> None:
    """The numbers of TLS errors are not those of the system: 1 is no "Operation not permitted"."""

    async def scenario() -> list[str]:
        async with serving() as (gateway, _, _):
            url = gateway.url.replace("http", "https")
            told = []
            async with Client(url) as client:
                with pytest.raises(Unavailable) as caught:
                    await client.status()
                told.append(caught.value.message.replace(url, "URL"))
            with pytest.raises(Unavailable) as caught:
                await asyncio.to_thread(BlockingClient(url).status)
            return [*told, caught.value.message.replace(url, "URL")]

    assert set(asyncio.run(scenario())) == {"no TLS with URL (WRONG_VERSION_NUMBER): write http://"}
    error = ssl.SSLCertVerificationError()
    error.verify_message = "self-signed certificate"
    assert refused("URL", error) == "no TLS with URL (self-signed certificate): check its certificate"


def test_a_stream_that_is_cut_off_names_its_call() -> None:
    """Rather than a connection that broke before the answer: its first part has come."""
    error = broken("URL", "why", {"boki-outcome": "streamed", "boki-invocation": "0123456789abcdef"})
    assert error.message == (
        "the stream of call 01234567 was cut off: its function raised, which the console of its system shows, or the "
        "connection broke"
    )
    assert not error.retryable
    assert isinstance(broken("URL", "why", {}), ConnectionLost)
