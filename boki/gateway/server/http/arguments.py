"""Headers, queries and JSON bodies as checked values. Every refusal names the field, and says what it should look like.

Whoever calls may send anything: unknown query parameters and JSON fields are refused too, because they are mistakes
that would otherwise go unnoticed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any, Final, Literal, TypeVar, get_args, get_origin
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp.web import BaseRequest
from multidict import CIMultiDictProxy

from boki.api.http import exchange as http_exchange
from boki.api.http.exchange import KEY, MAX_TIMEOUT_S, MIN_TIMEOUT_S, POSITION, TIMEOUT, TRACEPARENT
from boki.api.payloads.json_faults import why_not_json
from boki.errors import InvalidArgument
from boki.log.ids import MAX_LOG, MAX_SEQNUM
from boki.log.metalog import Positions, parse_positions

_TRACEPARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

Body = TypeVar("Body")


def seconds(text: str, field: str, most: float) -> float:
    """A number of seconds from 0 to `most`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= most:
        raise InvalidArgument(
            f"{field} must be a number of seconds from 0 to {most:,.0f}, not {text[:60]!r}", field=field
        )
    return value


def timeout_us(headers: CIMultiDictProxy[str]) -> int | None:
    """How long its caller waits, from the `Boki-Timeout` header."""
    text = headers.get(TIMEOUT)
    if text is None:
        return None
    value = seconds(text, TIMEOUT, MAX_TIMEOUT_S)
    if value < MIN_TIMEOUT_S:
        raise InvalidArgument(f"{TIMEOUT} must be at least {MIN_TIMEOUT_S:g} s, not {text[:60]!r}", field=TIMEOUT)
    return int(value * 1e6)


def positions(headers: CIMultiDictProxy[str]) -> Positions:
    """What the caller has seen of the logs, from the `Boki-Position` header."""
    text = headers.get(POSITION)
    return parse_positions(text) if text else {}


def check_positions(positions: Positions, field: str) -> None:
    """Hold positions of a stranger to what they can be at all."""
    for log, position in positions.items():
        if not (0 <= log <= MAX_LOG and 0 <= position <= MAX_SEQNUM):
            raise InvalidArgument(f"{field} names no place in a log: {log}, {position}", field=field)


def check_log_headers(headers: CIMultiDictProxy[str]) -> None:
    """Refuse before anything is done what a session of the log would refuse; its time has not begun yet."""
    timeout_us(headers)
    check_positions(positions(headers), POSITION)


def key(headers: CIMultiDictProxy[str]) -> str | None:
    """The idempotency key, if there is one."""
    text = headers.get(KEY)
    return None if text is None else http_exchange.check_key(text)


def trace_for(headers: CIMultiDictProxy[str], invocation_id: str) -> str:
    """The call's `traceparent`: the caller's trace, or one that starts here, named after the invocation.

    One that is malformed is ignored, as the W3C recommendation asks.
    """
    given = headers.get(TRACEPARENT)
    if given is not None and _TRACEPARENT.fullmatch(given):
        return f"{given[:36]}{invocation_id[:16]}{given[52:]}"
    return f"00-{invocation_id}-{invocation_id[:16]}-00"


def query(request: BaseRequest, allowed: Collection[str], *repeated: str) -> Mapping[str, str]:
    """The query parameters. Each may be given once, but for `repeated`, whose values `query_list` gives."""
    check_query(request)
    values = request.query
    for name in set(values):
        if name not in allowed:
            raise InvalidArgument(
                f"unknown query parameter {name[:60]!r}; allowed: {', '.join(sorted(allowed)) or 'none'}",
                field=name[:60],
            )
        if name not in repeated and len(values.getall(name)) > 1:
            raise InvalidArgument(f"query parameter {name!r} may be given only once", field=name)
    return values


def check_query(request: BaseRequest) -> None:
    """Refuse a query that is not UTF-8."""
    raw = request.rel_url.raw_query_string
    if "%" in raw:
        try:
            unquote_to_bytes(raw).decode()
        except UnicodeDecodeError:
            raise InvalidArgument(
                f"the query is not UTF-8: {raw[:60]!r}; percent-encode the bytes of its UTF-8, as %C3%A9 for é",
                field="query",
            ) from None


def query_list(request: BaseRequest, name: str) -> list[str]:
    """All values of a query parameter that may be repeated."""
    return request.query.getall(name, [])


def query_seconds(values: Mapping[str, str], name: str, most: float) -> float:
    """A number of seconds; 0 if it is not given."""
    text = values.get(name)
    return 0.0 if text is None else seconds(text, name, most)


def flag(text: str, name: str) -> bool:
    """`true` or `false`."""
    if text not in {"true", "false"}:
        raise InvalidArgument(f"{name} must be true or false, not {text[:60]!r}", field=name)
    return text == "true"


def whole_number(text: str, field: str, most: int = MAX_SEQNUM, least: int = 0) -> int:
    """A whole number from `least` to `most`, as decimal digits."""
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and least <= int(text) <= most):
        raise InvalidArgument(f"{field} must be a whole number from {least} to {most}, not {text[:60]!r}", field=field)
    return int(text)


def json_body(data: bytes, decoder: msgspec.json.Decoder[Body]) -> Body:
    """The body as a checked value; `InvalidArgument` names the field that is wrong."""
    return _json("body", "the body", data, decoder)


def json_header(name: str, text: str, decoder: msgspec.json.Decoder[Body], example: str) -> Body:
    """A header as a checked value; `InvalidArgument` names the header, and the field that is wrong."""
    return _json(
        name, f"{name} must be a JSON object such as {example}: it", text.encode(errors="surrogateescape"), decoder
    )


def _json(root: str, shown: str, data: bytes, decoder: msgspec.json.Decoder[Body]) -> Body:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$")
        field = place.rstrip("`").lstrip(".").removeprefix("[...]").lstrip(".")  # that is any item: none is named
        if text == _TOO_LARGE:
            raise InvalidArgument(
                f"{shown} has a number that 64 bits cannot hold: send it as text", field=root
            ) from None
        what = " of ".join(filter(None, (field, root))) if root != "body" else field or root
        raise InvalidArgument(_told(text, field, what, decoder.type), field=field or root) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{shown} is not JSON: {why_not_json(data) or error}", field=root) from None
    except RecursionError:
        raise InvalidArgument(f"{shown} is nested too deeply", field=root) from None


_TOO_LARGE: Final = "Number out of range"
_UNKNOWN_FIELD: Final = "Object contains unknown field "
_INVALID_CHOICE: Final = "Invalid enum value "
_INDEX: Final = re.compile(r"\[[^\]]*\]")


def _told(text: str, field: str, what: str, kind: Any) -> str:
    """What is wrong with a field (`what` in words) of a value of that type, and what may stand there instead."""
    found = _type_at(kind, field)
    text = text.replace("`", "")
    if text.startswith(_UNKNOWN_FIELD) and _is_struct(found):
        name = text.removeprefix(_UNKNOWN_FIELD)
        allowed = sorted(one.encode_name for one in msgspec.structs.fields(found) if not _is_function(one.type))
        near = get_close_matches(name, allowed, n=1)
        guess = f"; did you mean {near[0]}?" if near else "."
        return f"{what}: there is no field {name[:60]!r}{guess} Allowed: {', '.join(allowed)}"
    if text.startswith(_INVALID_CHOICE) and get_origin(found) is Literal:
        *others, last = get_args(found)
        return f"{what} must be {', '.join(others)} or {last}, not {text.removeprefix(_INVALID_CHOICE)[:60]}"
    return f"{what}: {text[:1].lower()}{text[1:]}"


def _type_at(kind: Any, field: str) -> Any:
    """The type that a body of that type has at a field such as `records[0].tags`; None if that cannot be told."""
    for part in _INDEX.sub("", field).split(".") if field else ():
        fields = {one.encode_name: one.type for one in msgspec.structs.fields(kind)} if _is_struct(kind) else {}
        kind = fields.get(part)
        kind = next((inner for inner in (kind, *get_args(kind)) if _is_struct(inner)), kind)
    return kind


def _is_function(kind: Any) -> bool:
    """Whether a field is for Python alone, because JSON has no functions."""
    return any(get_origin(part) is Callable for part in (kind, *get_args(kind)))


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
