"""Updates of one object: what they are, and what they do to a value. Pure, and the same in every process.

A value is never changed in place: what lies on the path of an update is copied, everything else is shared with the
version before. The size of the object as JSON is carried along exactly, so that the limit is the same for every reader
of the log, whether it began with a checkpoint or with the first record.

An update that does not fit the value (`WrongShape`), or would make it too large, does nothing; nor do the others of its
record.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, Final, assert_never

import msgspec

from boki import InvalidArgument, TooLarge
from boki.libs.bokistore.json_values import MAX_INT, MIN_INT, MISSING, decode_strange, size_of
from boki.libs.bokistore.paths import MAX_SEGMENTS, Segments, index_of, show
from boki.libs.bokistore.refusals import WrongShape

MAX_OBJECT_BYTES: Final = 1_000_000
"""An object as JSON: a checkpoint of it is one record."""


class _Update(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    path: Segments


class Set(_Update, frozen=True, tag=1):
    """Put a value at the path; objects that are missing on the way are made. → None"""

    value: bytes
    """JSON, here and below."""


class Delete(_Update, frozen=True, tag=2):
    """Take the value at the path away, out of an array by moving up what follows. → whether there was one"""


class Increment(_Update, frozen=True, tag=3):
    """Add to the number at the path, 0 if there is none. → the new number"""

    by: int | float


class Append(_Update, frozen=True, tag=4):
    """Add items to the end of the array at the path, and drop the first ones beyond `limit`. → the new length"""

    values: bytes
    limit: int = 0
    """0: none."""


class Pop(_Update, frozen=True, tag=5):
    """Take the last (`index` -1) or first (0) item out of the array at the path. → the item; `MISSING`: it is empty"""

    index: int = -1


class Insert(_Update, frozen=True, tag=6):
    """Put an item into an array, before the one at the index that the path ends with. → the new length"""

    value: bytes


class Merge(_Update, frozen=True, tag=7):
    """Merge a JSON Merge Patch (RFC 7396) into the value at the path: null deletes. → None"""

    value: bytes


Update = Set | Delete | Increment | Append | Pop | Insert | Merge


class Changed(msgspec.Struct, frozen=True):
    """What updates have made of a value: `results` has one for each."""

    value: Any
    size_bytes: int
    results: tuple[Any, ...]


def apply(value: Any, size_bytes: int, updates: Sequence[Update]) -> Changed:
    """Apply all of the updates; or none of them, with `WrongShape` or `TooLarge`, or `InvalidArgument` for what no
    caller of this library can have written.

    `value` is `MISSING` for an object that does not exist, whose size is 0.
    """
    edit = _Edit(value, size_bytes)
    results = tuple([edit.apply(update) for update in updates])
    return Changed(edit.value, edit.size_bytes, results)


def look_up(value: Any, path: Segments) -> Any:
    """What stands at the path, or `MISSING`. `WrongShape`: the path leads through a scalar."""
    for depth, segment in enumerate(path):
        if value is MISSING:
            return MISSING
        if isinstance(value, dict):
            value = value.get(segment, MISSING)
        elif isinstance(value, list):
            index = _index(segment, value, path[:depth])
            value = value[index] if 0 <= index < len(value) else MISSING
        else:
            raise _scalar(value, path, depth)
    return value


class _Edit:
    """A value under change. It stands in a holder, so that the root is a value at a path like all others."""

    def __init__(self, value: Any, size_bytes: int) -> None:
        self._holder: dict[str, Any] = {} if value is MISSING else {"": value}
        self._size = 2 if value is MISSING else size_bytes + _HOLDER_BYTES
        self._own: dict[int, Any] = {id(self._holder): self._holder}
        """Containers that were made by this edit, so that they can be changed in place."""

    @property
    def value(self) -> Any:
        return self._holder.get("", MISSING)

    @property
    def size_bytes(self) -> int:
        return self._size - _HOLDER_BYTES if self._holder else 0

    def apply(self, update: Update) -> Any:
        if len(update.path) > MAX_SEGMENTS:
            raise InvalidArgument(f"a path has {len(update.path)} segments")
        result = self._change(update)
        if self._size - _HOLDER_BYTES > MAX_OBJECT_BYTES:
            raise TooLarge(
                f"an object may have at most {MAX_OBJECT_BYTES:,} bytes as JSON, not {self._size - _HOLDER_BYTES:,}: "
                "spread it over several, as a Map does",
                field="value",
                limit=MAX_OBJECT_BYTES,
            )
        return result

    def _change(self, update: Update) -> Any:
        match update:
            case Set(path, value):
                made = decode_strange(value)
                self._put(path, made, size_of(made))  # not len(value): a stranger's JSON may hold spaces
            case Delete(path):
                return self._delete(path)
            case Increment(path, by):
                total = _sum(look_up(self.value, path), by, path)
                self._put(path, total, size_of(total))
                return total
            case Append(path, values, limit):
                return self._append(path, _items(values), limit)
            case Pop(path, index):
                items = self._array(path)
                if not items:
                    return MISSING
                return self._take_out(self._opened(path), index % len(items))
            case Insert(path, value):
                return self._insert(path, decode_strange(value))
            case Merge(path, value):
                merged = _merged(look_up(self.value, path), decode_strange(value))
                self._put(path, merged, size_of(merged))
            case _:
                assert_never(update)
        return None

    # ways to a place

    def _opened(self, path: Segments) -> Any:
        """The container at the path, which exists, to be changed in place: all on the way are copied once."""
        container: Any = self._holder
        for segment in ("", *path):
            key = index_of(segment, len(container)) if isinstance(container, list) else segment
            inner = container[key]
            if id(inner) not in self._own:
                inner = inner.copy()
                self._own[id(inner)] = inner
                container[key] = inner
            container = inner
        return container

    def _parent(self, path: Segments) -> Any:
        """The container of the value at the path, to be changed; objects that are missing on the way are made."""
        if not path:
            return self._holder
        parent = look_up(self.value, path[:-1])
        if parent is MISSING:
            self._put(path[:-1], {}, 2)
        elif not isinstance(parent, (dict, list)):
            raise _scalar(parent, path, len(path) - 1)
        return self._opened(path[:-1])

    def _array(self, path: Segments) -> list[Any] | None:
        """The array at the path; None if there is nothing."""
        found = look_up(self.value, path)
        if found is MISSING:
            return None
        if not isinstance(found, list):
            raise WrongShape(f"{show(path)} is {_kind(found)}, not an array")
        return found

    # changes

    def _put(self, path: Segments, value: Any, size_bytes: int) -> None:
        parent = self._parent(path)
        key: Any = path[-1] if path else ""
        if isinstance(parent, list):
            key = _index(path[-1], parent, path[:-1])
            if not 0 <= key < len(parent):
                raise WrongShape(
                    f"{show(path[:-1])} is an array of {len(parent)} items, so nothing can be put at {path[-1]}: append"
                )
            self._size += size_bytes - size_of(parent[key])
        elif key in parent:
            self._size += size_bytes - size_of(parent[key])
        else:
            self._size += size_bytes + size_of(key) + 1 + (len(parent) > 0)
        parent[key] = value

    def _delete(self, path: Segments) -> bool:
        if look_up(self.value, path) is MISSING:
            return False
        if not path:
            self._holder.clear()
            self._size = 2
            return True
        parent = self._opened(path[:-1])
        if isinstance(parent, list):
            self._take_out(parent, _index(path[-1], parent, path[:-1]))
        else:
            value = parent.pop(path[-1])
            self._size -= size_of(value) + size_of(path[-1]) + 1 + (len(parent) > 0)
        return True

    def _append(self, path: Segments, values: list[Any], limit: int) -> int:
        if self._array(path) is None:
            self._put(path, [], 2)
        items = self._opened(path)
        for value in values:
            self._put_in(items, len(items), value)
        if 0 < limit < len(items):
            dropped = items[:-limit]
            del items[:-limit]
            self._size -= sum(size_of(value) + 1 for value in dropped)
        return len(items)

    def _insert(self, path: Segments, value: Any) -> int:
        if not path:
            raise WrongShape("there is no index in the path to insert at")
        items = self._array(path[:-1])
        if items is None:
            self._put(path[:-1], [], 2)
            items = []
        index = len(items) if path[-1] == "-1" else _index(path[-1], items, path[:-1])
        if index > len(items):
            raise WrongShape(f"{show(path[:-1])} is an array of {len(items)} items: nothing can be inserted at {index}")
        opened = self._opened(path[:-1])
        self._put_in(opened, index, value)
        return len(opened)

    def _put_in(self, items: list[Any], index: int, value: Any) -> None:
        self._size += size_of(value) + (len(items) > 0)
        items.insert(index, value)

    def _take_out(self, items: list[Any], index: int) -> Any:
        value = items.pop(index)
        self._size -= size_of(value) + (len(items) > 0)
        return value


_HOLDER_BYTES: Final = len(b'{"":}')


def _items(data: bytes) -> list[Any]:
    items = decode_strange(data)
    if not isinstance(items, list):
        raise InvalidArgument("what is appended is not a list")
    return items


def _index(segment: str, items: list[Any], path: Segments) -> int:
    index = index_of(segment, len(items))
    if index is None:
        raise WrongShape(f"{show(path)} is an array, and {segment!r:.60} is no index of one")
    return index


def _sum(old: Any, by: float, path: Segments) -> int | float:
    if old is MISSING:
        old = 0
    if isinstance(old, bool) or not isinstance(old, (int, float)):
        raise WrongShape(f"{show(path)} is {_kind(old)}, not a number")
    try:
        total: int | float = old + by
    except OverflowError:
        total = float("inf")
    if isinstance(total, int) and not MIN_INT <= total <= MAX_INT:
        raise WrongShape(f"{show(path)} would leave what 64 bits hold: {old} and {by} more")
    if isinstance(total, float) and not isfinite(total):
        raise WrongShape(f"{show(path)} would leave the numbers that JSON can say: {old} and {by} more")
    return total


def _merged(target: Any, patch: Any) -> Any:
    """RFC 7396, sharing what does not change."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key, MISSING), value)
    return merged


def _scalar(value: Any, path: Segments, depth: int) -> WrongShape:
    return WrongShape(f"path {show(path)} leads through {show(path[:depth])}, which is {_kind(value)}")


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return "text"
        case dict():
            return "an object"
        case list():
            return "an array"
        case _:
            return f"the number {value}"
