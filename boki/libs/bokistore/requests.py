"""Requests to an object: the arguments of a call, checked, as a query or an update. One body for async and plain code.

`boki.libs.bokistore.store` and `boki.libs.bokistore.blocking` carry them out.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any, Final, Generic, TypeVar

import msgspec

from boki import InvalidArgument, TooLarge, WrongType
from boki.libs.bokistore.accesses import Access
from boki.libs.bokistore.drafts import Query
from boki.libs.bokistore.json_values import MAX_INT, MIN_INT, MISSING, copy_of, encode, plain
from boki.libs.bokistore.paths import Path, Segments, parse_path, show
from boki.libs.bokistore.records import check_object_name
from boki.libs.bokistore.refusals import WrongShape
from boki.libs.bokistore.transactions import check_key
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
    look_up,
)
from boki.libs.fold.steps import Steps

T = TypeVar("T")

MAX_ITEMS: Final = 1_000_000


class Requests(Generic[T]):
    """What can be asked of one object. `kind`: the type of the whole object; None: plain JSON."""

    def __init__(self, access: Access, name: str, kind: type[T] | None) -> None:
        self.name = check_object_name(name)
        self._access = access
        self._kind = kind

    # questions

    def get(self, path: Path, default: Any) -> Steps[Any]:
        """A copy of the value at the path."""
        segments = parse_path(path)
        found = yield from self._access.look(self.name, value_at(segments))
        if found is MISSING:
            return default
        if self._kind is not None and not segments:
            return typed(found, self._kind, self.name)
        return copy_of(found)

    def exists(self, path: Path) -> Steps[bool]:
        """Whether there is a value at the path."""
        segments = parse_path(path)
        found: bool = yield from self._access.look(self.name, lambda value: look_up(value, segments) is not MISSING)
        return found

    def length(self, path: Path) -> Steps[int]:
        """The number of items of an array or object."""
        found: int = yield from self._access.look(self.name, length_at(parse_path(path)))
        return found

    def keys(self, path: Path) -> Steps[list[str]]:
        """The keys of an object."""
        found: list[str] = yield from self._access.look(self.name, keys_at(parse_path(path)))
        return list(found)

    def version(self) -> Steps[int]:
        """The seqnum of the last record that changed the object."""
        return self._access.version_of(self.name)

    # updates

    def set(self, path: Path, value: Any, key: str | None) -> Steps[None]:
        """Put a value at the path."""
        yield from self._change(Set(parse_path(path), data_of(value)), key)

    def delete(self, path: Path, key: str | None) -> Steps[bool]:
        """Take the value at the path away."""
        existed: bool = yield from self._change(Delete(parse_path(path)), key)
        return existed

    def increment(self, path: Path, by: float, key: str | None) -> Steps[Any]:
        """Add to a number."""
        if isinstance(by, bool) or not isinstance(by, (int, float)):
            raise WrongType(f"by must be a number, not {type(by).__name__}", field="by")
        if not (isfinite(by) if isinstance(by, float) else MIN_INT <= by <= MAX_INT):
            raise InvalidArgument("by must be a finite number of at most 64 bits", field="by")
        return (yield from self._change(Increment(parse_path(path), by), key))

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


def value_at(segments: Segments) -> Query:
    """What stands at a path."""
    return lambda value: look_up(value, segments)


def length_at(segments: Segments) -> Query:
    """How many items stand at a path: 0 if there is nothing."""
    return lambda value: len(_container(value, segments))


def keys_at(segments: Segments) -> Query:
    """The keys of the object at a path: none if there is nothing."""

    def keys(value: Any) -> list[str]:
        found = _container(value, segments)
        if isinstance(found, list):
            raise WrongShape(f"{show(segments)} is an array, which has no keys")
        return list(found)

    return keys


def _container(value: Any, segments: Segments) -> dict[str, Any] | list[Any]:
    found = look_up(value, segments)
    if found is MISSING:
        return {}
    if not isinstance(found, (dict, list)):
        raise WrongShape(f"{show(segments)} is neither an object nor an array")
    return found


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
