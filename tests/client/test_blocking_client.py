"""`boki.client.BlockingClient`: what `Client` does, from any thread, over connections that are kept for later."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from boki.api.http.blocking_port import _connect
from boki.api.http.exchange import HttpRequest
from boki.client import BlockingClient, Client
from boki.errors import (
    BokiError,
    ConnectionLost,
    DeadlineExceeded,
    FunctionFailed,
    InvalidArgument,
    KeyReused,
    NoSuchInvocation,
    Overloaded,
    Trimmed,
    Unauthorized,
    Unavailable,
)
from tests.client.test_client import Point, mirror, shout
from tests.gateway.fake_backend import FakeBackend, run, serving
from tests.gateway.strangers import stranger


def against(
    test: Callable[[BlockingClient, FakeBackend], None], backend: FakeBackend | None = None, **settings: Any
) -> None:
    """Run a blocking test in a thread beside a gateway."""

    async def scenario() -> None:
        async with serving(backend, **settings) as (gateway, used, _):

            def body() -> None:
                with BlockingClient(gateway.url, token=settings.get("token", "")) as client:
                    test(client, used)

            await asyncio.to_thread(body)

    run(scenario())


def test_it_has_the_methods_of_the_async_client() -> None:
    """With the same parameters, so that one page of documentation serves both."""
    for name, method in vars(Client).items():
        if not name.startswith("_") and callable(method):
            twin = getattr(BlockingClient, name)
            assert list(inspect.signature(twin).parameters) == list(inspect.signature(method).parameters), name


def test_functions_are_called_by_name_and_by_object() -> None:
    """As with `Client`."""

    def test(client: BlockingClient, backend: FakeBackend) -> None:
        assert client.invoke("echo", {"x": 1}, result_type=Point) == Point(1)
        assert client.invoke(mirror, Point(2)) == Point(2)
        assert client.invoke(shout) == ""
        assert client.invoke("raw", b"\xff") == b"\xff"
        assert [client.invoke("echo", 5, key="k") for _ in range(3)] == [5, 5, 5]
        with pytest.raises(KeyReused):
            client.invoke("echo", 6, key="k")
        done = client.invocation(client.invoke_later("echo", 7), wait_s=20)
        assert (done.state, done.result) == ("done", 7)
        with pytest.raises(NoSuchInvocation):
            client.invocation("0" * 32)
        assert [info.name for info in client.functions()] == sorted(backend.functions)
        assert client.status()["ready"] is True
        with pytest.raises(FunctionFailed):
            client.invoke("fail")
        assert client.position == "0:5.0"

    against(test)


def test_logbooks_are_those_that_functions_have() -> None:
    """Appends, pages, polls, trims and subscriptions."""

    def test(client: BlockingClient, backend: FakeBackend) -> None:
        book = client.logbook("b")
        seqnums = [book.append(b"%d" % n, ["t"]) for n in range(3)]
        seqnums += book.append_many([b"3", b"4"])
        assert [record.seqnum for record in book.read().records] == seqnums
        assert book.check_tail("t", fresh=True) == book.get(seqnums[2])
        found = [record.data for _, record in zip(range(3), book.subscribe("t"), strict=False)]
        assert found == [b"0", b"1", b"2"]
        assert [info.record_count for info in client.books()] == [5]
        book.trim(seqnums[1])
        with pytest.raises(Trimmed):
            book.get(seqnums[0])
        client.see("0:1.999")
        book.read()
        assert backend.operations[-1][1] == {0: (1 << 43) | 999}

    against(test)


def test_threads_share_a_client() -> None:
    """None waits for another, each gets its own answer, and what they have seen only grows."""

    def test(client: BlockingClient, backend: FakeBackend) -> None:
        def work(n: int) -> tuple[Any, int]:
            return client.invoke("echo", n), client.logbook("b").append(b"%d" % n)

        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(work, range(200)))
        assert [value for value, _ in answers] == list(range(200))
        assert len({seqnum for _, seqnum in answers}) == 200
        assert int(client.position.partition(".")[2]) >= 200
        records = {record.seqnum: record.data for record in client.logbook("b").read().records}
        assert all(records[seqnum] == b"%d" % n for n, (_, seqnum) in enumerate(answers))

    against(test)


def test_a_long_poll_in_one_thread_does_not_hold_up_another() -> None:
    """And is answered by it."""

    def test(client: BlockingClient, backend: FakeBackend) -> None:
        with ThreadPoolExecutor(1) as pool:
            poll = pool.submit(client.logbook("b").read_next, "t", wait_s=20)
            client.logbook("b").append(b"1", ["t"])
            record = poll.result(timeout=20)
        assert record is not None
        assert record.data == b"1"

    against(test)


def test_the_token_is_sent() -> None:
    """And a wrong one is told."""

    def test(client: BlockingClient, backend: FakeBackend) -> None:
        assert client.invoke("echo", 1) == 1
        with BlockingClient(client.url, token="other") as stranger_client, pytest.raises(Unauthorized):
            stranger_client.logbook("b").append(b"1")

    against(test, token="secret")


def test_connections_are_kept_for_the_next_request() -> None:
    """A hundred requests of one thread use one connection."""

    def test(client: BlockingClient, backend: FakeBackend) -> None:
        client.invoke("echo", 1)
        ((connection, *_),) = client._port._idle
        for n in range(100):
            client.invoke("echo", n)
        assert [kept for kept, *_ in client._port._idle] == [connection]

    against(test)


def test_a_restart_of_the_system_is_noticed_before_sending() -> None:
    """A connection that was closed meanwhile is not used, so nothing is unknown that need not be."""

    async def scenario() -> None:
        async with serving() as (gateway, _, _):
            client = BlockingClient(gateway.url)
            assert await asyncio.to_thread(client.invoke, "echo", 1) == 1
            port = gateway.port
        with pytest.raises(Unavailable):
            await asyncio.to_thread(client.invoke, "echo", 2)
        async with serving(FakeBackend(), port=port) as (_, _, _):
            assert await asyncio.to_thread(client.invoke, "echo", 3) == 3
        client.close()

    run(scenario())


def test_a_refused_connection_says_that_nothing_happened() -> None:
    """`Unavailable`, to be repeated without a thought."""

    async def scenario() -> None:
        async with serving() as (gateway, _, _):
            url = gateway.url
        with BlockingClient(url) as client:
            error = await _raises(Unavailable, lambda: client.logbook("b").append(b"1"))
        assert (error.outcome, error.retryable) == ("not_applied", True)

    run(scenario())


async def _raises(error: type[BokiError], work: Callable[[], Any]) -> BokiError:
    with pytest.raises(error) as caught:
        await asyncio.to_thread(work)
    return caught.value


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", b"garbage\r\n\r\n"])
def test_a_connection_that_breaks_says_that_it_may_have_happened(reply: bytes) -> None:
    """`ConnectionLost`, to be repeated only under a key; and the connection is not used again."""

    async def scenario() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(reply)

        async with stranger(answer) as url:
            with BlockingClient(url) as client:
                error = await _raises(ConnectionLost, lambda: client.logbook("b").append(b"1"))
                assert (error.outcome, error.retryable) == ("unknown", True)
                assert not client._port._idle

    run(scenario())


def test_an_answer_that_never_comes_ends_at_the_deadline() -> None:
    """And says that it may have happened."""

    async def scenario() -> None:
        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        async with stranger(hang) as url:
            with BlockingClient(url) as client:
                request = HttpRequest("GET", "/", 0.05)
                error = await _raises(DeadlineExceeded, lambda: client._port.send(request))
                assert error.outcome == "unknown"

    run(scenario())


def test_errors_arrive_as_they_were_raised() -> None:
    """Class, outcome and details; what cannot be sent is found before."""

    def test(client: BlockingClient, backend: FakeBackend) -> None:
        backend.refusal = Overloaded("full", retry_after_s=3)
        with pytest.raises(Overloaded) as caught:
            client.invoke("echo", 1)
        assert caught.value.retry_after_s == 3
        for attempt in (
            lambda: client.invoke(mirror, Point("no")),  # type: ignore[arg-type]
            lambda: client.invoke("echo", key="ü"),
            lambda: client.logbook("no name"),
            lambda: client.logbook("boki:calls").append(b"1"),
            lambda: client.see("?"),
        ):
            with pytest.raises(InvalidArgument):
                attempt()

    against(test)


def test_closing_keeps_no_connection() -> None:
    """Also none that comes back later."""

    def test(client: BlockingClient, backend: FakeBackend) -> None:
        client.invoke("echo", 1)
        connection = _connect(client.url, 1.0)
        client.close()
        assert not client._port._idle
        client._port._give_back(client.url, connection)
        assert not client._port._idle

    against(test)
