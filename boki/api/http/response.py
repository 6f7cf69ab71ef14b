"""`boki.Response`: an answer over HTTP that a function makes itself, with status, headers and body.

It travels like every result, as a `Payload`, in an encoding of its own: so it reaches every caller: HTTP, a
client, another function or the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin

import msgspec

from boki.api.payloads.values import ValueCodec, codec_for, decode_any, encode_any
from boki.errors import CorruptData, InvalidArgument
from boki.protocol.calls import Encoding, Payload

MAX_HEADERS: Final = 64
MAX_HEADER_BYTES: Final = 16 * 1024
"""All names and values of one response."""

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_VALUE: Final = re.compile(r"[ -~\t]*")
_LOCATION: Final = re.compile(r"[!-~]+")
_TRANSPORT: Final = frozenset(
    {
        "connection",
        "content-length",
        "date",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "server",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers of the connection, which belong to the gateway."""
_ADDED: Final = frozenset({"traceparent", "vary", "x-content-type-options"})
"""What the gateway adds, beside its own."""
_BODILESS: Final = frozenset({204, 205, 304})
CONTENT_TYPES: Final[Mapping[Encoding, str]] = {
    "json": "application/json",
    "text": "text/plain; charset=utf-8",
    "bytes": "application/octet-stream",
}


class _Told(msgspec.Struct, frozen=True, array_like=True):
    """A response as it travels."""

    status: int
    headers: tuple[tuple[str, str], ...]
    encoding: Encoding
    body: bytes


_decoder: Final = msgspec.msgpack.Decoder(_Told)
_encode: Final = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Response:
    """What an HTTP caller gets: `return Response("not here", status=404)`.

    The body is bytes, text, or anything that JSON can say; None is no body. `headers` is a mapping, or pairs if a name
    is there several times. `content_type` is that of the body unless it is given. Headers of the connection and those
    that start with `Boki-` belong to the gateway, and `Access-Control-` ones to its configuration.
    """

    body: Any = None
    _: KW_ONLY
    status: int = 200
    headers: Mapping[str, str] | Iterable[tuple[str, str]] = ()
    content_type: str = ""

    def __post_init__(self) -> None:
        if type(self.status) is not int or not 200 <= self.status <= 599:
            raise InvalidArgument(f"status must be an int from 200 to 599, not {self.status!r:.40}", field="status")
        if self.status in _BODILESS and self.body is not None:
            raise InvalidArgument(f"a response with status {self.status} has no body: leave it out", field="body")
        given = self.headers.items() if isinstance(self.headers, Mapping) else self.headers
        headers = tuple(check_header(pair) for pair in given)
        own_type = next((value for name, value in headers if name.lower() == "content-type"), "")
        if self.content_type and own_type not in ("", self.content_type):
            raise InvalidArgument("Content-Type is given twice: as content_type and in headers", field="headers")
        if self.content_type and not own_type:
            headers = (*headers, check_header(("Content-Type", self.content_type)))
        size_bytes = sum(len(name) + len(value) + 4 for name, value in headers)
        if len(headers) > MAX_HEADERS or size_bytes > MAX_HEADER_BYTES:
            raise InvalidArgument(
                f"a response may have {MAX_HEADERS} headers of {MAX_HEADER_BYTES:,} bytes together, not {len(headers)} "
                f"of {size_bytes:,}",
                field="headers",
            )
        object.__setattr__(self, "headers", headers)
        object.__setattr__(self, "content_type", self.content_type or own_type)

    @staticmethod
    def redirect(
        url: str, *, status: int = 302, headers: Mapping[str, str] | Iterable[tuple[str, str]] = ()
    ) -> Response:
        """Send the caller to another URL. `status`: 301, 302, 303, 307 or 308."""
        if status not in {301, 302, 303, 307, 308}:
            raise InvalidArgument(f"a redirect has status 301, 302, 303, 307 or 308, not {status!r}", field="status")
        if not isinstance(url, str) or not _LOCATION.fullmatch(url):
            raise InvalidArgument(
                f"a redirect's URL is printable ASCII without spaces, not {url!r:.80}: quote it (urllib.parse.quote)",
                field="url",
            )
        given = tuple(headers.items() if isinstance(headers, Mapping) else headers)
        return Response(status=status, headers=(*given, ("Location", url)))

    @property
    def header_list(self) -> tuple[tuple[str, str], ...]:
        """The headers as pairs, with the content type."""
        assert isinstance(self.headers, tuple), "made so"
        return self.headers

    def header(self, name: str, default: str = "") -> str:
        """The first value of a header, whatever the case of its name."""
        return next((value for known, value in self.header_list if known.lower() == name.lower()), default)


def _is_refused(name: str) -> bool:
    return name in _TRANSPORT or name in _ADDED or name.startswith(("boki-", "access-control-"))


def check_header(pair: object) -> tuple[str, str]:
    """A header that a function may send; `InvalidArgument` says why it may not."""
    if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(part, str) for part in pair)):
        raise InvalidArgument(f"headers are pairs of str, not {pair!r:.80}", field="headers")
    name, value = pair
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"{name!r:.60} is not the name of a header", field="headers")
    lower = name.lower()
    if lower in _TRANSPORT or lower.startswith("boki-"):
        raise InvalidArgument(f"header {name} belongs to the gateway: leave it out", field="headers")
    if lower.startswith("access-control-"):
        raise InvalidArgument(
            f"header {name} is set by the configuration of the gateway: list origins in cors.origins", field="headers"
        )
    if not _VALUE.fullmatch(value):
        raise InvalidArgument(
            f"header {name} must be printable ASCII in one line, not {value!r:.60}: quote or encode it", field="headers"
        )
    return name, value


def encode_response(response: Response, what: str) -> Payload:
    """The response as it travels; `InvalidArgument` if its body cannot be written."""
    body = Payload("bytes", b"") if response.body is None else encode_any(response.body, what)
    headers = response.header_list
    if response.body is not None and not response.header("Content-Type"):
        headers = (*headers, ("Content-Type", CONTENT_TYPES[body.encoding]))
    return Payload("response", _encode(_Told(response.status, headers, body.encoding, body.data)))


def parts_of(payload: Payload) -> tuple[int, tuple[tuple[str, str], ...], Payload]:
    """Status, headers and body of a response that came; `CorruptData` if it is none.

    The headers are checked again: a worker runs code of others.
    """
    try:
        told = _decoder.decode(payload.data)
        for pair in told.headers:
            check_header(pair)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidArgument) as error:
        raise CorruptData(f"a function's response cannot be read: {error}") from None
    if not 200 <= told.status <= 599:
        raise CorruptData(f"a function's response has the status {told.status}")
    return told.status, told.headers, Payload(told.encoding, told.body)


def result_of(payload: Payload, what: str) -> Any:
    """The value of a result whose annotation is not known here; a `Response` if the function made one."""
    if payload.encoding != "response":
        return decode_any(payload, what)
    status, headers, body = parts_of(payload)
    is_empty = not body.data and body.encoding == "bytes"
    return Response(None if is_empty else decode_any(body, what), status=status, headers=headers)


def received_response(status: int, headers: Mapping[str, str], body: bytes) -> Payload:
    """What a client got over HTTP, as the function's response, without what the gateway has added."""
    own = tuple((name, value) for name, value in headers.items() if not _is_refused(name.lower()))
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    encoding: Encoding = "json" if kind == "application/json" else "text" if kind.startswith("text/") else "bytes"
    return Payload("response", _encode(_Told(status, own, encoding, body)))


def told_response(told: dict[str, Any]) -> Response:
    """The response of a logged call, as the state of the call tells it in JSON."""
    encoded = told.get("result_base64")
    body = told.get("result") if encoded is None else msgspec.convert(encoded, bytes) or None
    headers = tuple((name, value) for name, value in told["headers"])
    return Response(body, status=told["status"], headers=headers)


class ResultCodec:
    """Results of one annotation, and responses where it says or leaves room for them."""

    def __init__(self, annotation: Any, what: str) -> None:
        rest = _without_response(annotation)
        self._takes_response = rest is not annotation or annotation is Any or annotation is object
        self._inner: ValueCodec | None = None if rest is None else codec_for(rest, what)
        self.encoding: Encoding = "response" if self._inner is None else self._inner.encoding
        self.schema: dict[str, Any] | None = {} if self._inner is None else self._inner.schema

    def encode(self, value: Any, what: str) -> Payload:
        """See `ValueCodec`."""
        if isinstance(value, Response) and self._takes_response:
            return encode_response(value, what)
        if self._inner is None:
            raise InvalidArgument(f"{what} must be a boki.Response, not {type(value).__name__}", field="result")
        return self._inner.encode(value, what)

    def decode(self, payload: Payload, what: str) -> Any:
        """See `ValueCodec`."""
        if payload.encoding == "response" or self._inner is None:
            return result_of(payload, what)
        return self._inner.decode(payload, what)


def _without_response(annotation: Any) -> Any:
    """The annotation without `Response`; None if nothing else is left."""
    if annotation is Response:
        return None
    if get_origin(annotation) in (Union, UnionType) and Response in get_args(annotation):
        return Union[tuple(one for one in get_args(annotation) if one is not Response)]  # noqa: UP007
    return annotation
