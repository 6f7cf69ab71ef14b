"""Results that are streamed: what a generator function yields, as the chunks that travel.

A stream is bytes, text, or server-sent events (`Event`): what its annotation says, else whatever comes first. A
`Response` that is yielded first says status, headers and content type. The head leaves with it, with the first item, or
`HEAD_AFTER_S` after the generator has begun, so that a client of a stream that is silent at first is answered.

Chunks are small and counted, so that whoever carries them holds few bytes: a worker sends `WINDOW` of them ahead of
what its caller has taken, and then the generator waits.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable, Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

import msgspec

from boki.api.http.response import Response, encode_response
from boki.errors import ConfigError, InvalidArgument, WrongType
from boki.protocol.calls import CHUNK_BYTES, ResultChunk

HEAD_AFTER_S: Final = 0.25
"""How long a stream whose head is known has until it leaves: an error until then is an ordinary answer."""
_ONE_LINE: Final = re.compile(r"[^\r\n\x00]{0,200}")
_MAX_RETRY_MS: Final = 24 * 3600 * 1000
_ITERATORS: Final = (AsyncIterator, AsyncIterable, AsyncGenerator, Iterator, Iterable, Generator)

Kind = Literal["bytes", "text", "events"]
_HEADS: Final[dict[Kind, Response]] = {
    "bytes": Response(content_type="application/octet-stream"),
    "text": Response(content_type="text/plain; charset=utf-8"),
    "events": Response(content_type="text/event-stream", headers={"Cache-Control": "no-cache"}),
}


@dataclass(frozen=True, slots=True)
class Event:
    """A server-sent event: `yield Event({"count": 3})`. `data` is text, or anything that JSON can say."""

    data: Any = ""
    event: str = ""
    """Its kind; a browser's `EventSource` gives events of a kind to listeners of that name."""
    id: str = ""
    """A reader that reconnects sends the last one as `Last-Event-ID`."""
    retry_ms: int | None = None
    """After how long a reader reconnects."""

    def __post_init__(self) -> None:
        for name in ("event", "id"):
            value = getattr(self, name)
            if not isinstance(value, str) or not _ONE_LINE.fullmatch(value):
                raise InvalidArgument(
                    f"an event's {name} is a line of at most 200 characters, not {value!r:.60}", field=name
                )
        retry_ms = self.retry_ms
        if retry_ms is not None and (type(retry_ms) is not int or not 0 <= retry_ms <= _MAX_RETRY_MS):
            raise InvalidArgument(
                f"an event's retry_ms is a number of milliseconds from 0 to {_MAX_RETRY_MS:,}, not {retry_ms!r:.60}",
                field="retry_ms",
            )

    def encode(self) -> bytes:
        """The event as it is sent."""
        text = self.data if isinstance(self.data, str) else msgspec.json.encode(self.data).decode()
        lines = [f"{name}: {value}" for name, value in (("id", self.id), ("event", self.event)) if value]
        lines += [] if self.retry_ms is None else [f"retry: {self.retry_ms}"]
        lines += [f"data: {line}" for line in re.split("\r\n|\r|\n", text)]
        return ("\n".join(lines) + "\n\n").encode()


_KINDS: Final[dict[Any, Kind]] = {bytes: "bytes", str: "text", Event: "events"}


@dataclass(frozen=True, slots=True)
class Stream:
    """What a generator function is annotated to yield."""

    kind: Kind | None = None
    """What its items are; None: the first one shows."""
    has_response: bool = True
    """Whether it may decide on status and headers, by yielding a `Response` first."""


class Chunks:
    """Makes the chunks of one stream of what its function yields."""

    def __init__(self, function: str, stream: Stream) -> None:
        self.count = 0
        """How many there are so far."""
        self._function = function
        self._stream = stream
        self._head: Response | None = None
        self._kind: Kind | None = stream.kind

    @property
    def has_known_head(self) -> bool:
        """Whether the head is the same whatever comes, so that it may leave before anything does."""
        return self._stream.kind is not None and not self._stream.has_response

    def begin(self) -> list[ResultChunk]:
        """The head, if it is known and has not left."""
        return [self._next(b"")] if self.has_known_head and not self.count else []

    def of(self, item: Any) -> list[ResultChunk]:
        """The chunks of one more item. `WrongType` if it cannot be one of this stream."""
        if isinstance(item, Response):
            if not self._stream.has_response:
                raise WrongType(
                    f"{self._function} yields a Response, and its annotation says that it does not: annotate it with "
                    "AsyncIterator[... | Response] (a plain def: Iterator)",
                    field="stream",
                )
            if self.count or self._head is not None:
                raise WrongType(f"{self._function} yields a Response that is not its first item", field="stream")
            self._head = item
            if item.body is None:
                return [self._next(b"")] if item.content_type or self._kind else []
            item = item.body
        kind, data = self._encoded(item)
        if self._kind not in (None, kind):
            known = "and its annotation says" if self._stream.kind else "after"
            raise WrongType(
                f"{self._function} yields {kind} {known} {self._kind}: the items of a stream are of one kind",
                field="stream",
            )
        self._kind = kind
        return [self._next(data[at : at + CHUNK_BYTES]) for at in range(0, len(data), CHUNK_BYTES)]

    def end(self) -> list[ResultChunk]:
        """What is still to be sent when the generator has ended: a head without a body."""
        return [] if self.count or (self._head is None and self._kind is None) else [self._next(b"")]

    def _next(self, data: bytes) -> ResultChunk:
        head = b""
        if not self.count:
            default = _HEADS[self._kind or "bytes"]
            own = self._head or default
            if not own.content_type:
                own = Response(status=own.status, headers=(*default.header_list, *own.header_list))
            head = encode_response(
                Response(status=own.status, headers=own.header_list), f"head of {self._function}"
            ).data
        self.count += 1
        return ResultChunk(self.count, data, head)

    def _encoded(self, item: Any) -> tuple[Kind, bytes]:
        if isinstance(item, Event):
            return "events", item.encode()
        if isinstance(item, str):
            return "text", item.encode()
        if isinstance(item, (bytes, bytearray, memoryview)):
            return "bytes", bytes(item)
        raise WrongType(
            f"{self._function} yields {type(item).__name__}: a stream is made of bytes, str or boki.Event "
            "(or write msgspec.json.encode(...))",
            field="stream",
        )


def no_stream(function: str) -> InvalidArgument:
    """The error for a call whose caller cannot take a stream: another function, a queue, or the log."""
    return InvalidArgument(
        f"{function} streams its result, which only HTTP callers of /function/{function} and of its routes can take, "
        "without an Idempotency-Key: call a function that returns, or iterate over it in your own code",
        field="function",
    )


def check_stream(annotation: Any, where: str, streams: bool) -> Stream | None:
    """What a generator function streams; None: it is none. `ConfigError` if it cannot stream, or if what is annotated
    as a stream is none.
    """
    origin = get_origin(annotation) or annotation
    if not streams and origin in _ITERATORS:
        raise ConfigError(
            f"{where} is annotated as a stream and yields nothing: yield its parts, or annotate the result"
        )
    if not streams:
        return None
    if annotation is Any:
        return Stream()
    items = get_args(annotation)[:1] or (Any,)
    if origin not in _ITERATORS or not all(_may_stream(item) for item in items):
        raise ConfigError(
            f"{where} yields its result, so it streams: annotate it with AsyncIterator (a plain def: Iterator) of "
            f"bytes, str or boki.Event, not with {annotation!r:.100}; or return the result, and append records"
        )
    return _stream_of(items[0])


def _stream_of(item: Any) -> Stream:
    parts = set(get_args(item)) if get_origin(item) in (Union, UnionType) else {item}
    kinds = {_KINDS.get(part) for part in parts - {Response}}
    return Stream(kinds.pop() if len(kinds) == 1 else None, has_response=bool(parts & {Response, Any}))


def _may_stream(item: Any) -> bool:
    if get_origin(item) in (Union, UnionType):
        return all(_may_stream(one) for one in get_args(item))
    return item is Any or item in (bytes, str, Event, Response)
