"""JSON values: what an object holds, checked when it comes in, and measured as it is written.

Values in the store's memory are shared between versions and readers, so they are never changed in place: an update
copies what it changes (`boki.libs.bokistore.updates`), and callers are given copies.
"""

from __future__ import annotations

import re
from dataclasses import is_dataclass
from math import isfinite
from typing import Any, Final

import msgspec

from boki import InvalidArgument, TooLarge, WrongType

MAX_VALUE_DEPTH: Final = 32
"""How deep arrays and objects may be nested in one value. With the path to it, an object is twice as deep at most."""
MAX_OBJECT_DEPTH: Final = 64
MAX_INT: Final = (1 << 63) - 1
MIN_INT: Final = -(1 << 63)
_JSON_TYPES: Final = frozenset({dict, list, str, int, float, bool, type(None)})
_LONG_NUMBER: Final = re.compile(rb"[0-9]{19}")


class Missing(msgspec.Struct, frozen=True):
    """There is no value: of an object that does not exist, or at a path that leads nowhere. Not null."""


MISSING: Final = Missing()

_encoder: Final = msgspec.json.Encoder()
_in_order: Final = msgspec.json.Encoder(order="deterministic").encode
_decoder: Final = msgspec.json.Decoder()
_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder().decode


def encode(value: Any) -> bytes:
    """A value as JSON. The same value always gives the same bytes; objects keep the order of their keys."""
    return _encoder.encode(value)


def decode(data: bytes) -> Any:
    """The value of JSON that was written by `encode`."""
    return _decoder.decode(data)


def decode_strange(data: bytes, depth: int = MAX_VALUE_DEPTH) -> Any:
    """The value of JSON that anybody may have written; `InvalidArgument` if no update can hold it.

    The answer does not depend on how deep the caller's stack is: what is nested too deep is refused also where it could
    be decoded.
    """
    try:
        value = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"this is not JSON: {error}") from None
    if data.count(b"[") + data.count(b"{") > depth or _LONG_NUMBER.search(data):
        return checked(value, "value", depth)
    return value


def copy_of(value: Any) -> Any:
    """A value that its caller may change."""
    return _unpack(_pack(value)) if isinstance(value, (dict, list)) else value


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are spelled as the same JSON: 1 is not 1.0, and not true, and the order of keys counts."""
    if one is other:
        return True
    if one is MISSING or other is MISSING:
        return False
    return _encoder.encode(one) == _encoder.encode(other)


def is_equal(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON but for the order of keys, of which JSON says nothing."""
    return _in_order(one) == _in_order(other)


def plain(value: object, field: str = "value") -> Any:
    """What a caller wants to store, as a JSON value of its own; `InvalidArgument` names the place that is not JSON.

    Accepted: JSON values, tuples, and at the top dataclasses, `msgspec.Struct`s and pydantic models.
    """
    dump = getattr(value, "model_dump", None)
    if dump is not None and not isinstance(value, type):
        value = dump(mode="json")
    elif isinstance(value, msgspec.Struct) or (is_dataclass(value) and not isinstance(value, type)):
        try:
            value = msgspec.to_builtins(value, str_keys=True)
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise WrongType(f"{field} cannot be stored as JSON: {error}", field=field) from None
    return checked(value, field, MAX_VALUE_DEPTH)


def checked(value: object, place: str, depth: int) -> Any:
    """The value, built of nothing but dicts, lists and scalars that JSON can say and every reader can hold."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, place)
    if isinstance(value, int):
        if not MIN_INT <= value <= MAX_INT:
            raise InvalidArgument(
                f"{place} must be an integer of 64 bits: store a larger one as text", field=place.partition(".")[0]
            )
        return int(value)
    if isinstance(value, float):
        if not isfinite(value):
            raise InvalidArgument(
                f"{place} is {value}, which JSON cannot say: store None or text", field=place.partition(".")[0]
            )
        return float(value)
    if not isinstance(value, (dict, list, tuple)):
        raise WrongType(
            f"{place} is of type {type(value).__name__}, which is not JSON: store dict, list, str, int, float, bool or "
            "None",
            field=place.partition(".")[0],
        )
    if depth == 0:
        raise TooLarge(
            f"a value may be nested at most {MAX_VALUE_DEPTH} deep: {place[:60]}...",
            field=place.partition(".")[0],
            limit=MAX_VALUE_DEPTH,
        )
    if isinstance(value, dict):
        return {_key(key, place): checked(item, f"{place}.{key}", depth - 1) for key, item in value.items()}
    return [checked(item, f"{place}.{index}", depth - 1) for index, item in enumerate(value)]


def _key(key: object, place: str) -> str:
    if not isinstance(key, str):
        raise WrongType(
            f"a key of {place} is of type {type(key).__name__}: keys in JSON are text, so write str(key)",
            field=place.partition(".")[0],
        )
    return _text(key, place)


def _text(text: str, place: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(
            f"{place} holds a lone surrogate, which is no text: {text!r:.60}", field=place.partition(".")[0]
        ) from None
    return str(text)


def check_exact(value: object, place: str) -> None:
    """`WrongType` if a JSON value would not come back as it is: it has a subclass of a JSON type, a tuple, or an array
    or object that is in two places.
    """
    _check_exact(value, place, set())


def _check_exact(value: object, place: str, seen: set[int]) -> None:
    if type(value) not in _JSON_TYPES:
        raise WrongType(f"{place} is of type {type(value).__name__}, which JSON does not give back", field=place)
    if not isinstance(value, (dict, list)):
        return
    if id(value) in seen:
        raise WrongType(f"{place} is in a second place, too, and JSON gives back two copies", field=place)
    seen.add(id(value))
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(value, dict):
            _check_exact(key, f"the key {key!r:.60} of {place}", seen)
        _check_exact(item, f"{place}.{key!s:.60}", seen)


def size_of(value: Any) -> int:
    """Bytes of the value as JSON."""
    return len(_encoder.encode(value))
