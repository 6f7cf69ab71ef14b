"""`boki.client.Client` against a real gateway: calls, LogBooks, positions, and what its errors say."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp.helpers import calculate_timeout_when

from boki import Context, blocking, function
from boki.api.http.exchange import HttpAnswer, HttpRequest, call_request, check_url, error_of
from boki.client import BlockingClient, Client
from boki.errors import (
    BokiError,
    ConditionFailed,
    ConnectionLost,
    CorruptData,
    DeadlineExceeded,
    FunctionFailed,
    InvalidArgument,
    KeyReused,
    NoSuchFunction,
    NoSuchInvocation,
    Overloaded,
    TooLarge,
    Trimmed,
    Unauthorized,
    Unavailable,
)
from boki.log.ids import MAX_SEQNUM
from boki.log.limits import Limits
from boki.log.operations import Read
from boki.log.record import Expect
from boki.protocol.calls import Outcome, Payload
from tests.gateway.fake_backend import FakeBackend, run, serving
from tests.gateway.strangers import stranger


@dataclass
class Point:
    x: int


@function(name="echo")
async def mirror(ctx: Context, point: Point) -> Point:
    """What the gateway's `echo` looks like to somebody who has its source."""
    return point


@function(name="text")
def shout(ctx: blocking.Context, text: str = "") -> str:
    """A blocking function with a default."""
    return text


# Calls


def test_functions_are_called_by_name_and_by_object() -> None:
    """By object, payload and result are of its types; by name they are what came, or of a type that is asked for."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, _), Client(gateway.url) as client:
            assert await client.invoke("echo", {"x": 1}) == {"x": 1}
            assert await client.invoke("echo", {"x": 1}, result_type=Point) == Point(1)
            assert await client.invoke(mirror, Point(2)) == Point(2)
            assert await client.invoke("echo") is None
            assert await client.invoke("text", "grüß") == "grüß"
            assert await client.invoke(shout, "hi") == "hi"
            assert await client.invoke("raw", b"\xff") == b"\xff"
            assert [call.payload for call in backend.started[2:4]] == [
                Payload("json", b'{"x":2}'),
                Payload("json", b""),
            ]
            await client.invoke("echo", book="other", timeout_s=1.5)
            assert (backend.started[-1].book, backend.started[-1].timeout_us) == ("other", 1_500_000)

    run(scenario())


@pytest.mark.parametrize(
    ("function", "payload", "error"),
    [
        (mirror, Point("no"), InvalidArgument),  # type: ignore[arg-type]
        ("echo", object(), InvalidArgument),
        ("no name", 1, InvalidArgument),
        (len, 1, InvalidArgument),
        ("ecko", 1, NoSuchFunction),
        ("fail", 1, FunctionFailed),
    ],
)
def test_calls_raise_what_went_wrong(function: Any, payload: Any, error: type[BokiError]) -> None:
    """What cannot be sent is found here, the rest over there: the same errors as inside of a function."""

    async def scenario() -> None:
        async with serving() as (gateway, _backend, _), Client(gateway.url) as client:
            with pytest.raises(error):
                await client.invoke(function, payload)

    run(scenario())


def test_a_result_of_another_type_is_named() -> None:
    """`result_type` is checked, not trusted."""

    async def scenario() -> None:
        async with serving() as (gateway, _backend, _), Client(gateway.url) as client:
            with pytest.raises(InvalidArgument, match="result of echo"):
                await client.invoke("echo", [1], result_type=Point)

    run(scenario())


def test_later_calls_and_their_invocations() -> None:
    """An id at once, then state, result and error as Python values."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, _), Client(gateway.url) as client:
            done = await client.invocation(await client.invoke_later("echo", {"x": 1}), wait_s=20, result_type=Point)
            assert (done.state, done.result, done.error, done.is_over) == ("done", Point(1), None, True)
            raw = await client.invocation(await client.invoke_later("raw", b"\xff"), wait_s=20)
            assert raw.result == b"\xff"
            failed = await client.invocation(await client.invoke_later("fail"), wait_s=20)
            assert isinstance(failed.error, FunctionFailed)
            assert failed.error.error_type == "ValueError"
            waiting = await client.invocation(await client.invoke_later("echo", delay_s=60.5))
            assert (waiting.state, waiting.due_us - waiting.accepted_us) == ("accepted", 60_500_000)
            same = [await client.invoke_later("echo", 1, key="k") for _ in range(2)]
            assert same[0] == same[1]
            with pytest.raises(KeyReused):
                await client.invoke_later("echo", 2, key="k")
            with pytest.raises(NoSuchInvocation):
                await client.invocation("0" * 32)
            assert len(backend.started) == 4

    run(scenario())


def test_a_key_runs_a_function_once() -> None:
    """Also with concurrent repeats, as a client does that does not know whether its request arrived."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, _), Client(gateway.url) as client:
            answers = await asyncio.gather(*(client.invoke("echo", 5, key="k") for _ in range(8)))
            assert answers == [5] * 8
            assert len(backend.started) == 1
            with pytest.raises(KeyReused):
                await client.invoke("echo", 6, key="k")
            for key in ("", "ü", "x" * 256, "a\nb"):
                with pytest.raises(InvalidArgument, match="key must be 1 to 255 characters"):
                    await client.invoke("echo", 6, key=key)

    run(scenario())


def test_seqnums_in_errors_of_calls_are_numbers_again() -> None:
    """They are strings only while they travel as JSON; other digits stay what they are."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, http), Client(gateway.url) as client:
            backend.refusal = Trimmed("gone", next_seqnum=1 << 62, tag="5")
            async with http.post("/function/echo") as response:
                assert (await response.json())["details"] == {"next_seqnum": str(1 << 62), "tag": "5"}
            with pytest.raises(Trimmed) as caught:
                await client.invoke("echo", 1)
            assert caught.value.details == {"next_seqnum": 1 << 62, "tag": "5"}

    run(scenario())


# LogBooks


def test_logbooks_are_those_that_functions_have() -> None:
    """The very same class over another port: appends, reads, conditions, keys, trims, subscriptions."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, _), Client(gateway.url) as client:
            book = client.logbook("b")
            first = await book.append(b"1", ["t"], when=Expect("t", 0))
            with pytest.raises(ConditionFailed) as caught:
                await book.append(b"2", ["t"], when=Expect("t", 0))
            assert caught.value.actual_seqnum == first
            assert await book.append(b"k", key="k") == await book.append(b"k", key="k")
            more = await book.append_many([b"2", (b"3", ["t"])])
            assert [record.data for record in (await book.read("t")).records] == [b"1", b"3"]
            assert (await book.get(more[0])).data == b"2"
            await book.set_auxdata(first, b"aux")
            record = await book.read_next("t")
            assert record is not None
            assert record.auxdata == b"aux"
            waiting = asyncio.create_task(book.read_next("new", wait_s=60))
            await backend.until_waiting()
            await book.append(b"new", ["new"])
            arrived = await waiting
            assert arrived is not None
            assert arrived.data == b"new"
            async for record in book.subscribe("t"):
                if record.data == b"3":
                    break
            await book.sync()
            await book.set_retention(age_s=60.0)
            assert [info.name for info in await client.books()] == ["b"]
            await book.trim(more[0])
            with pytest.raises(Trimmed):
                await book.get(first)
            await book.delete()
            assert await client.books() == []

    run(scenario())


def test_appends_that_are_made_together_travel_together() -> None:
    """A hundred appends are few requests."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, _), Client(gateway.url) as client:
            before = len(backend.operations)
            book = client.logbook("b")
            seqnums = await asyncio.gather(*(book.append(b"%d" % n) for n in range(100)))
            assert len(set(seqnums)) == 100
            assert len(backend.operations) - before <= 2

    run(scenario())


def test_limits_are_checked_before_anything_is_sent() -> None:
    """And again where it arrives, for clients that were told other limits."""

    async def scenario() -> None:
        limits = Limits(record_bytes=10, request_bytes=1000)
        async with serving(limits=limits) as (gateway, backend, _):
            before = len(backend.operations)
            for client in (Client(gateway.url, limits=limits), Client(gateway.url)):
                async with client:
                    with pytest.raises(TooLarge):
                        await client.logbook("b").append(bytes(11))
            with pytest.raises(InvalidArgument):
                await Client(gateway.url).logbook("boki:calls").append(b"1")
            assert len(backend.operations) == before

    run(scenario())


# Positions


def test_a_client_reads_what_it_has_written_across_books_and_calls() -> None:
    """Every answer raises what it has seen, every request carries it, and it can be handed to another client."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, _), Client(gateway.url) as client, Client(gateway.url) as other:
            assert client.position == ""
            await client.logbook("a").append(b"1")
            seen = client.position
            assert seen.startswith("0:1.")
            await client.logbook("b").read()
            assert backend.operations[-1][1] == {0: (1 << 43) | int(seen[4:])}
            await client.invoke("echo", 1)
            assert backend.started[-1].positions == backend.operations[-1][1]
            assert client.position == "0:1.9"
            with pytest.raises(FunctionFailed):
                await client.invoke("fail")
            assert client.position == "0:5.0"
            other.see("0:1.3")
            other.see("0:1.2")
            assert other.position == "0:1.3"
            with pytest.raises(InvalidArgument):
                other.see("nonsense")

    run(scenario())


def test_functions_and_status_are_told() -> None:
    """For tools that look at a system."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, _), Client(gateway.url) as client:
            assert await client.functions() == sorted(backend.functions.values(), key=lambda info: info.name)
            assert (await client.status())["ready"] is True

    run(scenario())


# Errors


def test_the_token_is_sent() -> None:
    """Without it, or with another, the error says so."""

    async def scenario() -> None:
        async with serving(token="secret") as (gateway, _backend, _):
            async with Client(gateway.url, token="secret") as client:
                assert await client.invoke("echo", 1) == 1
                await client.logbook("b").append(b"1")
            for token in ("", "other"):
                async with Client(gateway.url, token=token) as client:
                    with pytest.raises(Unauthorized):
                        await client.invoke("echo", 1)
                    with pytest.raises(Unauthorized):
                        await client.logbook("b").append(b"1")

    run(scenario())


def test_a_refused_connection_says_that_nothing_happened() -> None:
    """`Unavailable`, to be repeated without a thought."""

    async def scenario() -> None:
        async with serving() as (gateway, _backend, _):
            url = gateway.url
        async with Client(url) as client:
            for attempt in (client.invoke("echo", 1), client.logbook("b").append(b"1"), client.status()):
                with pytest.raises(Unavailable, match="is the system running") as caught:
                    await attempt
                assert (caught.value.outcome, caught.value.retryable) == ("not_applied", True)

    run(scenario())


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", b"HTTP/1.1 2"])
def test_a_connection_that_breaks_says_that_it_may_have_happened(reply: bytes) -> None:
    """`ConnectionLost`, to be repeated only under a key."""

    async def scenario() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(reply)

        async with stranger(answer) as url, Client(url) as client:
            for attempt in (client.invoke("echo", 1), client.logbook("b").append(b"1")):
                with pytest.raises(ConnectionLost) as caught:
                    await attempt
                assert (caught.value.outcome, caught.value.retryable) == ("unknown", True)

    run(scenario())


def test_an_answer_that_never_comes_ends_at_the_deadline() -> None:
    """And says that it may have happened."""

    async def scenario() -> None:
        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        async with stranger(hang) as url, Client(url) as client:
            with pytest.raises(DeadlineExceeded) as caught:
                await client._port.send(HttpRequest("GET", "/", 0.05))
            assert (caught.value.outcome, caught.value.retryable) == ("unknown", True)

    run(scenario())


def test_the_acceptance_of_a_call_is_not_waited_for_all_day() -> None:
    """A gateway gives up after 30 s; one whose machine is gone says nothing at all."""
    options: dict[str, Any] = {"book": None, "key": None}
    accepted = call_request("/asyncFunction/", "echo", 1, {}, **options)
    assert accepted.request.timeout_s < 60
    called = call_request("/function/", "echo", 1, {}, **options)
    assert called.request.timeout_s > 3600, "its function may take so long"


def test_a_long_deadline_is_not_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """aiohttp does that, to a whole second of the loop's clock, where nobody tells it not to (chaos)."""
    asked: list[aiohttp.ClientTimeout] = []

    def refuse(_session: object, *_: object, timeout: aiohttp.ClientTimeout, **__: object) -> None:
        asked.append(timeout)
        raise OSError("far enough")

    async def scenario() -> None:
        monkeypatch.setattr(aiohttp.ClientSession, "request", refuse)
        async with Client("http://127.0.0.1:1") as client:
            with pytest.raises(ConnectionLost):
                await client._port.send(HttpRequest("GET", "/", 10.5))

    run(scenario())
    assert calculate_timeout_when(10.2, asked[0].total or 0.0, asked[0].ceil_threshold) == pytest.approx(20.7, abs=0.1)


def test_errors_of_the_log_arrive_as_they_were_raised() -> None:
    """Class, outcome and details."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, _), Client(gateway.url) as client:
            for error in (CorruptData("gone"), Overloaded("full", retry_after_s=3), ConnectionLost("broken")):
                backend.failures.append(error)
                with pytest.raises(type(error)) as caught:
                    await client.logbook("b").append(b"1")
                assert caught.value.body() == error.body()
            backend.refusal = Overloaded("full", retry_after_s=3)
            with pytest.raises(Overloaded) as caught_too:
                await client.invoke("echo", 1)
            assert caught_too.value.retry_after_s == 3

    run(scenario())


@pytest.mark.parametrize(
    ("status", "body", "kind", "outcome"),
    [
        (502, b"<html>bad gateway</html>", ConnectionLost, "unknown"),
        (404, b"not here", BokiError, "not_applied"),
        (
            200,
            b'{"code": "trimmed", "message": "m", "details": {"message": "x", "outcome": "y"}}',
            Trimmed,
            "not_applied",
        ),
        (500, b'{"code": "of_the_future", "message": "m", "outcome": "failed"}', BokiError, "failed"),
        (500, b'{"code": "trimmed", "message": "m", "outcome": "maybe"}', ConnectionLost, "unknown"),
    ],
)
def test_answers_of_strangers_become_errors_too(status: int, body: bytes, kind: type[BokiError], outcome: str) -> None:
    """A proxy's page, a newer gateway's code, odd details: never another exception."""
    error = error_of(HttpAnswer(status, {}, body))
    assert (type(error), error.outcome) == (kind, outcome)


def test_a_closed_client_says_so() -> None:
    """Nothing was sent, and trying again is no use."""

    async def scenario() -> None:
        async with serving() as (gateway, _, _http):
            async with Client(gateway.url) as client:
                await client.logbook("a").append(b"x")
            with pytest.raises(Unavailable, match="closed") as error:
                await client.logbook("a").append(b"x")
            assert (error.value.outcome, error.value.retryable) == ("not_applied", False)

    run(scenario())


@pytest.mark.parametrize("url", ["", "localhost:8080", "ftp://x", "http://", "http://x?y=1", "http://x/#f"])
def test_urls_that_are_none_are_refused_at_once(url: str) -> None:
    """With an example of one."""
    with pytest.raises(InvalidArgument, match=r"http://127\.0\.0\.1:8080"):
        Client(url)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 0.0])
def test_times_that_are_none_are_refused_before_anything_is_sent(seconds: float) -> None:
    """Both clients name the argument; nobody listens at the address, so that nothing can have been sent."""
    nowhere = "http://127.0.0.1:9"
    with (
        BlockingClient(nowhere) as blocked,
        pytest.raises(InvalidArgument, match=r"timeout_s must be (above 0|finite)"),
    ):
        blocked.invoke("echo", timeout_s=seconds)

    async def body() -> None:
        async with Client(nowhere) as client:
            with pytest.raises(InvalidArgument, match=r"timeout_s must be (above 0|finite)"):
                await client.invoke("echo", timeout_s=seconds)
            if seconds:
                with pytest.raises(InvalidArgument, match="delay_s"):
                    await client.invoke_later("echo", delay_s=seconds)
                with pytest.raises(InvalidArgument, match="wait_s"):
                    await client.invocation("0" * 32, wait_s=seconds)

    asyncio.run(body())


def test_urls_may_have_a_path() -> None:
    """Behind a proxy that serves more than Boki."""
    assert check_url("https://example.org/boki/") == "https://example.org/boki"


def test_backward_reads_and_the_end_of_the_log_cross_the_wire() -> None:
    """The largest numbers survive msgpack and JSON."""

    async def scenario() -> None:
        backend = FakeBackend()
        async with serving(backend) as (gateway, _, _), Client(gateway.url) as client:
            await client.logbook("b").append(b"1")
            record = await client.logbook("b").read_prev()
            assert record is not None
            read = backend.operations[-1][0]
            assert isinstance(read, Read)
            assert read.stop == MAX_SEQNUM
            assert msgspec.json.decode(msgspec.json.encode(record.seqnum)) == record.seqnum
            backend.hanging.clear()
            task = asyncio.create_task(client.invoke("hang", 7))
            await backend.until(lambda: bool(backend.hanging))
            for done in backend.hanging.values():
                done(Outcome(Payload("json", b"7"), None, {0: MAX_SEQNUM}))
            assert await task == 7
            assert client.position.endswith(str((1 << 43) - 1))

    run(scenario())
