"""Requests to an object: the arguments of a call, checked, as a query or an update. One body for async and plain code.

`boki.libs.bokistore.store` and `boki.libs.bokistore.blocking` carry them out.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import isfinite
from typing import Any, Final, Generic, TypeVar

import msgspec

from boki import InvalidArgument, TooLarge, WrongType
from boki.libs.bokistore.accesses import Access
from boki.libs.bokistore.json_values import MAX_INT, MIN_INT, MISSING, copy_of, decode, encode, plain
from boki.libs.bokistore.keys import check_key
from boki.libs.bokistore.paths import Path, parse_path
from boki.libs.bokistore.queries import IsThere, ItemsAt, KeysAt, LengthAt, NumberAt, ValueAt
from boki.libs.bokistore.records import check_object_name
from boki.libs.bokistore.refusals import WrongShape
from boki.libs.bokistore.updates import (
    MAX_OBJECT_BYTES,
    Append,
    Delete,
    Increment,
    Insert,
    Merge,
    Pop,
    Set,
    Update,
)
from boki.libs.fold.steps import Steps

T = TypeVar("T")

MAX_ITEMS: Final = 1_000_000


class Requests(Generic[T]):
    """What can be asked of one object. `kind`: the type of the whole object; None: plain JSON."""

    def __init__(self, access: Access, name: str, kind: type[T] | None) -> None:
        self.name = check_object_name(name)
        self._access = access
        self._kind = _check_type(kind)

    # questions

    def get(self, path: Path, default: Any) -> Steps[Any]:
        """A copy of the value at the path."""
        segments = parse_path(path)
        found = yield from self._access.look(self.name, ValueAt(segments))
        if found is MISSING:
            return default
        if self._kind is not None and not segments:
            return typed(found, self._kind, self.name)
        return copy_of(found)

    def exists(self, path: Path) -> Steps[bool]:
        """Whether there is a value at the path."""
        found: bool = yield from self._access.look(self.name, IsThere(parse_path(path)))
        return found

    def length(self, path: Path) -> Steps[int]:
        """The number of items of an array or object."""
        found: int = yield from self._access.look(self.name, LengthAt(parse_path(path)))
        return found

    def keys(self, path: Path) -> Steps[list[str]]:
        """The keys of an object."""
        found: list[str] = yield from self._access.look(self.name, KeysAt(parse_path(path)))
        return list(found)

    def number(self) -> Steps[Any]:
        """The number that the object is; 0 if there is none."""
        return (yield from self._access.look(self.name, NumberAt()))

    def set_number(self, number: float, key: str | None) -> Steps[None]:
        """Make the object a number."""
        yield from self._change(Set((), encode(check_number(number, "number"))), key)

    def item(self, index: int, default: Any) -> Steps[Any]:
        """An item of the array that the object is; `index` may count from its end."""
        found = yield from self._access.look(self.name, ItemsAt((), _index(index), None if index == -1 else index + 1))
        return copy_of(found[0]) if found else default

    def set_item(self, index: int, value: Any, key: str | None) -> Steps[None]:
        """Replace an item of the array that the object is."""
        yield from self._change(Set((str(_index(index)),), data_of(value)), key)

    def insert_item(self, index: int, value: Any, key: str | None) -> Steps[int]:
        """Put an item into the array that the object is."""
        length: int = yield from self._change(Insert((str(_index(index)),), data_of(value)), key)
        return length

    def items(self, start: int, stop: int | None) -> Steps[list[Any]]:
        """Items of the array that the object is."""
        for name, value in (("start", start), ("stop", stop)):
            if value is not None and (type(value) is not int or not -MAX_ITEMS <= value <= MAX_ITEMS):
                raise InvalidArgument(f"{name} must be a number of items, not {value!r:.40}", field=name)
        found: list[Any] = copy_of((yield from self._access.look(self.name, ItemsAt((), start, stop))))
        return found

    def version(self) -> Steps[int]:
        """The seqnum of the last record that changed the object."""
        return self._access.version_of(self.name)

    # updates

    def set(self, path: Path, value: Any, key: str | None) -> Steps[None]:
        """Put a value at the path; of a handle with a type, the whole object only if that can be read as it."""
        segments, data = parse_path(path), data_of(value)
        if self._kind is not None and not segments:
            typed(decode(data), self._kind, self.name)
        yield from self._change(Set(segments, data), key)

    def delete(self, path: Path, key: str | None) -> Steps[bool]:
        """Take the value at the path away."""
        existed: bool = yield from self._change(Delete(parse_path(path)), key)
        return existed

    def increment(self, path: Path, by: float, key: str | None) -> Steps[Any]:
        """Add to a number."""
        return (yield from self._change(Increment(parse_path(path), check_number(by, "by")), key))

    def append(self, path: Path, values: Iterable[Any], limit: int, key: str | None) -> Steps[int]:
        """Add items to an array."""
        if type(limit) is not int or not 0 <= limit <= MAX_ITEMS:
            raise InvalidArgument(f"limit must be 0 to {MAX_ITEMS:,} items, not {limit!r:.40}", field="limit")
        length: int = yield from self._change(Append(parse_path(path), data_of(list(values)), limit), key)
        return length

    def insert(self, path: Path, value: Any, key: str | None) -> Steps[int]:
        """Put an item into an array."""
        length: int = yield from self._change(Insert(parse_path(path), data_of(value)), key)
        return length

    def pop(self, path: Path, index: int, default: Any, key: str | None) -> Steps[Any]:
        """Take an item out of an array."""
        if type(index) is not int or index not in (0, -1):
            raise InvalidArgument(
                f"index must be -1 (the last item) or 0 (the first), not {index!r:.40}", field="index"
            )
        item = yield from self._change(Pop(parse_path(path), index), key)
        return default if item is MISSING else copy_of(item)

    def merge(self, path: Path, patch: Any, key: str | None) -> Steps[None]:
        """Merge a JSON Merge Patch."""
        yield from self._change(Merge(parse_path(path), data_of(patch)), key)

    def _change(self, update: Update, key: str | None) -> Steps[Any]:
        return self._access.change(self.name, update, check_key(key))


def check_number(number: object, field: str) -> float:
    """`number`, if JSON can say it."""
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise WrongType(f"{field} must be a number, not {type(number).__name__}", field=field)
    if not (isfinite(number) if isinstance(number, float) else MIN_INT <= number <= MAX_INT):
        raise InvalidArgument(f"{field} must be a finite number of at most 64 bits", field=field)
    return number


def _index(index: object) -> int:
    """`index`, if it may be that of an item."""
    if type(index) is not int or not -1 <= index <= MAX_ITEMS:
        raise InvalidArgument(f"index must be 0 or more, or -1 for the last item, not {index!r:.40}", field="index")
    return index


def data_of(value: Any) -> bytes:
    """What a caller wants to store, as the JSON of an update."""
    data = encode(plain(value))
    if len(data) > MAX_OBJECT_BYTES:
        raise TooLarge(
            f"an object may have at most {MAX_OBJECT_BYTES:,} bytes as JSON, not {len(data):,}: spread it over "
            "several, as a Map does",
            field="value",
            limit=MAX_OBJECT_BYTES,
        )
    return data


def _check_type(kind: Any) -> Any:
    try:
        is_known = kind is None or _can_be_read(kind)
    except TypeError:  # not even hashable
        is_known = False
    if not is_known:
        raise InvalidArgument(
            f"{kind!r:.60} is no type that an object can be read as: give a Struct, a dataclass, a TypedDict, or a "
            "pydantic model",
            field="type",
        )
    return kind


@lru_cache(maxsize=256)
def _can_be_read(kind: Any) -> bool:
    if hasattr(kind, "model_validate"):
        return True
    try:
        msgspec.json.Decoder(kind)
    except TypeError:
        return False
    return True


def typed(value: Any, kind: type[T], name: str) -> T:
    """The value as that type: a `msgspec.Struct`, a dataclass, a `TypedDict`, or a pydantic model."""
    validate = getattr(kind, "model_validate", None)
    try:
        if validate is not None:
            made: T = validate(copy_of(value))
            return made
        return msgspec.convert(copy_of(value), kind)
    except (msgspec.ValidationError, ValueError) as error:
        shown = getattr(kind, "__name__", str(kind))
        raise WrongShape(f"object {name!r} does not hold {shown}: {error}") from None
