"""Streams that cannot be, and the whole message."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pytest

from boki import Context, Event, Response, blocking, function
from boki.api.function import Function
from boki.api.http.response import parts_of
from boki.api.streaming import Chunks, Stream
from boki.cli.signatures import command_of, signature_of
from boki.errors import BokiError, ConfigError
from boki.libs.bokiqueue import consume
from boki.protocol.calls import CHUNK_BYTES, FunctionInfo, Payload, ResultChunk

ANY = Stream()
TEXT = Stream("text", has_response=False)


def a_list_of_numbers() -> None:
    @function
    async def numbers(ctx: Context) -> AsyncIterator[int]:
        yield 1


def not_an_iterator() -> None:
    @function
    def numbers(ctx: blocking.Context) -> bytes:  # type: ignore[misc]
        yield b"1"


def a_consumer() -> None:
    @consume("q")
    async def numbers(ctx: Context, payload: int) -> AsyncIterator[bytes]:
        yield b"1"


@pytest.mark.parametrize(
    ("register", "told"),
    [
        (
            a_list_of_numbers,
            (
                "yields its result, so it streams: annotate it with AsyncIterator (a plain def: Iterator) of bytes, "
                "str or boki.Event, not with collections.abc.AsyncIterator[int]; or return the result, and append "
                "records"
            ),
        ),
        (
            not_an_iterator,
            (
                "yields its result, so it streams: annotate it with AsyncIterator (a plain def: Iterator) of bytes, "
                "str or boki.Event, not with <class 'bytes'>; or return the result, and append records"
            ),
        ),
        (a_consumer, "consumes a queue, so no caller takes what it yields: append records"),
    ],
)
def test_a_generator_that_cannot_stream_is_refused_when_its_module_is_loaded(
    register: Callable[[], None], told: str
) -> None:
    """With what to write instead, and where."""
    with pytest.raises(ConfigError) as caught:
        register()
    place, _, words = caught.value.message.partition(") ")
    assert place.startswith("numbers (")
    assert words == told


def test_generators_of_both_kinds_are_functions() -> None:
    """Asynchronous ones run with the others of their module; annotations may be left out."""

    @function
    async def events(ctx: Context) -> AsyncIterator[Event | Response]:
        yield Event()

    @function
    def text(ctx: blocking.Context) -> Iterator[str]:
        yield ""

    @function
    async def whatever(ctx):  # type: ignore[no-untyped-def]
        yield b""

    infos = [Function.of(fn).info for fn in (events, text, whatever)]
    assert [(info.streams, info.is_async) for info in infos] == [(True, True), (True, False), (True, True)]


@pytest.mark.parametrize(
    ("stream", "items", "message"),
    [
        (ANY, ["a", b"b"], "f yields bytes after text: the items of a stream are of one kind"),
        (ANY, [b"a", Response()], "f yields a Response that is not its first item"),
        (ANY, [Response(), Response()], "f yields a Response that is not its first item"),
        (TEXT, [b"b"], "f yields bytes and its annotation says text: the items of a stream are of one kind"),
        (
            TEXT,
            [Response()],
            (
                "f yields a Response, and its annotation says that it does not: annotate it with "
                "AsyncIterator[... | Response] (a plain def: Iterator)"
            ),
        ),
        (
            ANY,
            [7],
            "f yields int: a stream is made of bytes, str or boki.Event (or write msgspec.json.encode(...))",
        ),
    ],
)
def test_items_that_a_stream_cannot_have_are_refused(stream: Stream, items: list[Any], message: str) -> None:
    """By the function's name."""
    chunks = Chunks("f", stream)
    with pytest.raises(BokiError) as caught:
        for item in items:
            chunks.of(item)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Event(event="a\nb"), "an event's event is a line of at most 200 characters, not 'a\\nb'"),
        (lambda: Event(id=7), "an event's id is a line of at most 200 characters, not 7"),  # type: ignore[arg-type]
        (
            lambda: Event(retry_ms="1\n\ndata: x"),  # type: ignore[arg-type]
            "an event's retry_ms is a number of milliseconds from 0 to 86,400,000, not '1\\n\\ndata: x'",
        ),
    ],
)
def test_an_event_that_cannot_be_sent_is_refused(make: Callable[[], Event], message: str) -> None:
    """A line break would begin another field."""
    with pytest.raises(BokiError) as caught:
        make()
    assert caught.value.message == message


def test_items_become_numbered_chunks_of_bounded_size_after_a_head() -> None:
    """The head is that of the function, with the content type of its items unless it says one."""
    chunks = Chunks("f", ANY)
    assert chunks.of(Response(status=201, headers={"A": "b"})) == []
    first, second = chunks.of("x" * (CHUNK_BYTES + 1))
    assert (first.number, second.number, len(first.data), len(second.data)) == (1, 2, CHUNK_BYTES, 1)
    status, headers, _ = parts_of(Payload("response", first.head))
    assert (status, headers) == (201, (("Content-Type", "text/plain; charset=utf-8"), ("A", "b")))
    assert (second.head, chunks.end()) == (b"", [])
    (only,) = Chunks("f", ANY).of(Response("body", content_type="text/csv"))
    assert parts_of(Payload("response", only.head))[1] == (("Content-Type", "text/csv"),)
    alone = Chunks("f", ANY)
    assert alone.of(Response(status=204)) == []
    (head,) = alone.end()
    assert (parts_of(Payload("response", head.head))[0], head.data) == (204, b"")


def test_a_head_leaves_before_any_item_if_it_is_known() -> None:
    """It is what the annotation says, once; a response says it itself, and leaves at once if its type is known."""

    def head_of(chunks: list[ResultChunk]) -> tuple[int, str]:
        (chunk,) = chunks
        assert chunk.data == b""
        status, headers, _ = parts_of(Payload("response", chunk.head))
        return status, dict(headers)["Content-Type"]

    silent = Chunks("f", TEXT)
    assert head_of(silent.begin()) == (200, "text/plain; charset=utf-8")
    assert silent.begin() == silent.end() == []
    (item,) = silent.of("a")
    assert (item.number, item.head) == (2, b"")
    answering = Stream("events", has_response=True)
    assert Chunks("f", answering).begin() == Chunks("f", ANY).begin() == []
    assert head_of(Chunks("f", answering).of(Response(status=201))) == (201, "text/event-stream")
    assert head_of(Chunks("f", ANY).of(Response(content_type="text/csv"))) == (200, "text/csv")
    assert head_of(Chunks("f", TEXT).end()) == (200, "text/plain; charset=utf-8")


def test_what_a_stream_is_made_of_is_read_from_its_annotation() -> None:
    """Several kinds, or none, are whatever comes first."""

    @function
    async def events(ctx: Context) -> AsyncIterator[Event]:
        yield Event()

    @function
    def text(ctx: blocking.Context) -> Iterator[str | Response]:
        yield ""

    @function
    async def mixed(ctx: Context) -> AsyncIterator[str | bytes]:
        yield ""

    @function
    async def whatever(ctx):  # type: ignore[no-untyped-def]
        yield b""

    assert [Function.of(fn).stream for fn in (events, text, mixed, whatever)] == [
        Stream("events", has_response=False),
        Stream("text", has_response=True),
        Stream(None, has_response=False),
        Stream(),
    ]


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Event("a\nb\r\nc"), "data: a\ndata: b\ndata: c\n\n"),
        (Event({"n": 1}, event="tick", id="7", retry_ms=10), 'id: 7\nevent: tick\nretry: 10\ndata: {"n":1}\n\n'),
        (Event(), "data: \n\n"),
    ],
)
def test_events_are_written_as_event_sources_read_them(event: Event, text: str) -> None:
    """Every line of the data is a field of its own."""
    assert event.encode().decode() == text


def test_what_comes_back_is_listed_by_its_kind() -> None:
    """A response and a stream are neither anything nor bytes."""

    @function
    async def answers(ctx: Context) -> Response:
        return Response()

    @function
    async def texts(ctx: Context) -> AsyncIterator[str]:
        yield ""

    told = [signature_of(Function.of(fn).info) for fn in (answers, texts)]
    assert told == ["answers() -> Response", "texts() -> stream"]


def test_no_command_is_shown_for_a_function_that_streams() -> None:
    """`boki invoke` prints a stream at its end, and it may have none."""
    info = FunctionInfo(name="visits", module="links", is_async=True, payload_encoding="text")
    assert command_of(info) == "boki invoke visits Ada"
    assert command_of(msgspec.structs.replace(info, streams=True)) == ""
