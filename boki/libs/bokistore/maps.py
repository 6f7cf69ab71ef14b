"""Maps: many items under one name, spread over objects so that neither reading nor conflicts are those of one.

The items of a map are spread over its **partitions** by a hash of the key. A partition is an object like any other,
whose keys are those of the items; an index is partitioned by the value of its field, and has the keys of the items with
it. So a map is read, changed, and looked through by the same queries and updates, within transactions and without, and
all that holds for objects holds for it: a scan conflicts with a change that it would have met, and with no other.

Names of partitions have a "/", which no other object's name has. How many there are and what is indexed is decided by
the transaction that first writes the map, and stays; until then it is empty, whatever the reader takes it for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeVar
from zlib import crc32

import msgspec

from boki import InvalidArgument, WrongType
from boki.libs.bokistore.accesses import Access, Direct, Looks
from boki.libs.bokistore.far import FarViews
from boki.libs.bokistore.json_values import MISSING, Missing, copy_of, encode, is_equal, plain
from boki.libs.bokistore.paths import LONE_SURROGATE, MAX_SEGMENT_CHARS, Path, Segments, parse_path
from boki.libs.bokistore.queries import WHOLE, Count, FirstKeys, IsEmpty, Question, Scan, ValueAt
from boki.libs.bokistore.reading import certain
from boki.libs.bokistore.refusals import ConflictError, NoSuchObject, WrongShape
from boki.libs.bokistore.requests import check_number, data_of
from boki.libs.bokistore.transactions import Transaction
from boki.libs.bokistore.updates import Delete, Increment, Set, Update, look_up
from boki.libs.fold.arguments import check_count, check_list
from boki.libs.fold.steps import Pause, Steps
from boki.retry import Backoff

MAX_PARTITIONS: Final = 1_024
MAX_INDEXES: Final = 8
MAX_PAGE: Final = 10_000
_AGAIN: Final = Backoff(first_s=0.002, longest_s=0.25, jitter=0.0, tries=12)

T = TypeVar("T")
Item = tuple[str, Any]


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a map was made with."""

    partitions: int = 16
    indexes: tuple[str, ...] = ()
    """Paths into items, whose values are indexed."""


class MapRequests:
    """What can be asked of one map. `access`: the way to its objects; `begin` starts a transaction where the access is
    to objects as they are now, since an item and what it is indexed by change together.
    """

    def __init__(
        self,
        access: Access,
        begin: Callable[[], Transaction],
        name: str,
        shape: Shape,
        known: dict[str, Shape],
        direct: Direct,
    ) -> None:
        self.name = name
        self._access = access
        self._begin = begin
        self._wished = shape
        self._known = known
        """The shapes of the book's maps, as they were read: they do not change, unless the book is deleted."""
        self._direct = direct

    # the shape

    def _found(self, access: Looks) -> Steps[Shape | None]:
        """How the map was made; None: it was not, or the transaction has looked itself, and knows."""
        if isinstance(access, Transaction) and f"{self.name}/" in access.used:
            return None
        known = self._known.get(self.name)
        if known is None:
            value = yield from self._direct.look(f"{self.name}/", WHOLE)
            if value is MISSING:
                return None
            known = self._known[self.name] = msgspec.convert(value, Shape)
        return self._checked(known)

    def _checked(self, made: Shape) -> Shape:
        if made != self._wished:
            raise InvalidArgument(
                f"map {self.name!r} was made with {made.partitions} partitions and indexes {list(made.indexes)}, "
                f"which cannot change: use these, not {self._wished.partitions} and {list(self._wished.indexes)}",
                field="partitions",
            )
        return made

    def _shape(self, access: Looks) -> Steps[Shape]:
        """How to read it: a map that was not made is empty. In a transaction it is a conflict if it is made then."""
        found = yield from self._found(access)
        if found is None and access is not self._direct:
            value = yield from access.look(f"{self.name}/", WHOLE)
            found = None if value is MISSING else self._checked(msgspec.convert(value, Shape))
        return found or self._wished

    def _made(self, txn: Access) -> Steps[Shape]:
        """How to write it: the transaction makes it, if it was not made."""
        found = yield from self._found(txn)
        if found is None:
            value = yield from txn.look(f"{self.name}/", WHOLE)
            if value is not MISSING:
                return self._checked(msgspec.convert(value, Shape))
            yield from txn.change(f"{self.name}/", Set((), encode(msgspec.to_builtins(self._wished))))
        return self._wished

    def _by_shape(self, read: Callable[[], Steps[T]]) -> Steps[T]:
        """A read by what is known of the shape: again if it has found out that the book was deleted."""
        was_known = self.name in self._known
        found = yield from read()
        if was_known and self.name not in self._known:
            found = yield from read()
        return found

    # single items

    def get(self, key: str, path: Path, default: Any) -> Steps[Any]:
        """A copy of an item, or of a part of it."""
        segments = _way_to(key, path)
        found = yield from self._by_shape(lambda: self._get(key, segments))
        return default if found is MISSING else copy_of(found)

    def _get(self, key: str, segments: Segments) -> Steps[Any]:
        shape = yield from self._shape(self._access)
        return (yield from self._access.look(self._partition(shape, key), ValueAt(segments)))

    def get_many(self, keys: Iterable[str]) -> Steps[dict[str, Any]]:
        """Those of the items that there are, as of one moment."""
        wanted = [check_item_key(key) for key in check_list(keys, "keys")]
        return (yield from self._read(lambda access: self._get_many(access, wanted)))

    def _get_many(self, access: Looks, keys: Sequence[str]) -> Steps[dict[str, Any]]:
        shape = yield from self._shape(access)
        asked = [(self._partition(shape, key), ValueAt((key,))) for key in keys]
        values = yield from access.look_all(asked)
        return {key: copy_of(value) for key, value in zip(keys, values, strict=True) if value is not MISSING}

    def set(self, key: str, path: Path, value: Any) -> Steps[None]:
        """Put an item, or a part of one."""
        yield from self._change(Set(_way_to(key, path), data_of(value)))

    def increment(self, key: str, path: Path, by: float) -> Steps[Any]:
        """Add to a number."""
        update = Increment(_way_to(key, path), check_number(by, "by"))
        return (yield from self._change(update))

    def delete(self, key: str) -> Steps[bool]:
        """Take an item away."""
        existed: bool = yield from self._change(Delete((check_item_key(key),)))
        return existed

    def set_many(self, items: Mapping[str, Any]) -> Steps[None]:
        """Put items, all or none."""
        yield from self.test_and_set_many({}, items)

    def test_and_set_many(self, expected: Mapping[str, Any], items: Mapping[str, Any]) -> Steps[bool]:
        """Put items if others are as expected; None: there is none. Whether they were."""
        for field, given in (("expected", expected), ("items", items)):
            if not isinstance(given, Mapping):
                raise WrongType(f"{field} must be a dict of items by key, not {type(given).__name__}", field=field)
        tests = {check_item_key(key): plain(value) for key, value in expected.items()}
        new = [Set((check_item_key(key),), data_of(value)) for key, value in items.items()]
        return (yield from self._together(lambda txn: self._test_and_set(txn, tests, new)))

    def _test_and_set(self, access: Access, tests: Mapping[str, Any], new: Sequence[Set]) -> Steps[bool]:
        shape = yield from self._shape(access)
        names = [self._partition(shape, key) for key in (*tests, *(update.path[0] for update in new))]
        yield from access.prefetch(list(dict.fromkeys(names)))
        for key, value in tests.items():
            found = yield from access.look(self._partition(shape, key), ValueAt((key,)))
            if not is_equal(None if found is MISSING else found, value):
                return False
        if new:
            yield from self._made(access)
            for update in new:
                yield from self._apply(access, shape, update)
            yield from self._make_again(access)
        return True

    def _change(self, update: Update) -> Steps[Any]:
        """An update of one item, with its indexes."""
        shape = yield from self._found(self._access)
        if shape is None or shape.indexes or self._access is not self._direct:
            return (yield from self._together(lambda txn: self._make_and_apply(txn, update)))
        result = yield from self._access.change(self._partition(shape, update.path[0]), update)
        if self.name not in self._known:  # the book was deleted, as the write has found out
            yield from certain(self._together(self._made))
        return result

    def _make_and_apply(self, txn: Access, update: Update) -> Steps[Any]:
        shape = yield from self._made(txn)
        result = yield from self._apply(txn, shape, update)
        yield from self._make_again(txn)
        return result

    def _make_again(self, txn: Access) -> Steps[None]:
        """After a write, which may have found out that the book was deleted: others may have made the map since."""
        if self.name not in self._known:
            yield from self._made(txn)

    def _apply(self, access: Access, shape: Shape, update: Update) -> Steps[Any]:
        """Within a transaction: the item, and what it is found by before and after."""
        partition, key = self._partition(shape, update.path[0]), update.path[0]
        item = ValueAt((key,))
        before = _indexed(shape, (yield from access.look(partition, item))) if shape.indexes else {}
        result = yield from access.change(partition, update)
        after = _indexed(shape, (yield from access.look(partition, item))) if shape.indexes else {}
        for field in shape.indexes:
            old, new = before.get(field), after.get(field)
            if old == new:
                continue
            if old is not None:
                index = self._index(shape, field, old)
                yield from access.change(index, Delete((old, key)))
                if (yield from access.look(index, IsEmpty((old,)))):  # else each value ever indexed would take room
                    yield from access.change(index, Delete((old,)))
            if new is not None:
                yield from access.change(self._index(shape, field, new), Set((new, key), b"true"))
        return result

    def _read(self, work: Callable[[Looks], Steps[T]]) -> Steps[T]:
        """The same for what only reads: a gateway answers those that are far from the log."""
        if self._access is self._direct and self._direct.is_far:
            return (yield from work(FarViews(self._direct.book)))
        return (yield from self._by_shape(lambda: self._together(work, only_reads=True)))

    def _together(self, work: Callable[[Access], Steps[T]], *, only_reads: bool = False) -> Steps[T]:
        """In the transaction that this map is used in, or in one of its own, again while it conflicts."""
        if self._access is not self._direct:
            return (yield from work(self._access))
        tries = 0
        while True:
            txn = self._begin()
            txn.only_reads = only_reads
            try:
                result = yield from work(txn)
                yield from txn.commit()
            except ConflictError:
                tries += 1
                if tries >= _AGAIN.tries:
                    raise
                yield Pause(_AGAIN.pause_s(tries))
            else:
                return result

    # many items

    def scan(self, prefix: str, start: str, stop: str | None, after: str | None, limit: int) -> Steps[list[Item]]:
        """Items in the order of their keys."""
        check_count(limit, "limit", MAX_PAGE)
        for field, text in (("prefix", prefix), ("start", start), ("stop", stop or ""), ("after", after or "")):
            if not isinstance(text, str):
                raise WrongType(f"{field} must be a str, not {type(text).__name__}", field=field)
            if LONE_SURROGATE.search(text):
                raise InvalidArgument(f"{field} must be text, without lone surrogates: {text!r:.60}", field=field)
        query = Scan(prefix, start, stop, after, limit)
        return (yield from self._read(lambda access: self._scan(access, query, limit)))

    def _scan(self, access: Looks, query: Question, limit: int) -> Steps[list[Item]]:
        shape = yield from self._shape(access)
        pages = yield from access.look_all([(name, query) for name in self._partitions(shape)])
        found = sorted(chain.from_iterable(pages), key=_key_of)
        return [(key, copy_of(value)) for key, value in found[:limit]]

    def length(self) -> Steps[int]:
        """The number of items."""
        return (yield from self._read(self._length))

    def _length(self, access: Looks) -> Steps[int]:
        shape = yield from self._shape(access)
        return sum((yield from access.look_all([(name, Count()) for name in self._partitions(shape)])))

    def where(self, field: str, value: Any, limit: int) -> Steps[list[Item]]:
        """Items whose field has that value, in the order of their keys."""
        check_count(limit, "limit", MAX_PAGE)
        if field not in self._wished.indexes:
            raise InvalidArgument(
                f"map {self.name!r} has no index of {field!r}: it has {list(self._wished.indexes)}", field="field"
            )
        indexed = _spelled(plain(value, "value"))
        return (yield from self._read(lambda access: self._where(access, field, indexed, limit)))

    def _where(self, access: Looks, field: str, indexed: str, limit: int) -> Steps[list[Item]]:
        shape = yield from self._shape(access)
        keys = yield from access.look(self._index(shape, field, indexed), FirstKeys(indexed, limit))
        items = yield from self._get_many(access, keys)
        return list(items.items())

    # places

    def _partitions(self, shape: Shape) -> list[str]:
        return [f"{self.name}/{number}" for number in range(shape.partitions)]

    def _partition(self, shape: Shape, key: str) -> str:
        return f"{self.name}/{crc32(key.encode()) % shape.partitions}"

    def _index(self, shape: Shape, field: str, indexed: str) -> str:
        number = shape.indexes.index(field)
        return f"{self.name}/i{number}/{crc32(indexed.encode()) % shape.partitions}"


def shape_of(access: Access, name: str) -> Steps[Shape]:
    """How the map of that name was made; `NoSuchObject`"""
    found = yield from access.look(f"{name}/", WHOLE)
    if found is MISSING:
        raise NoSuchObject(f"there is no map {name!r}: its first write makes it", object=name)
    return msgspec.convert(found, Shape)


def check_shape(partitions: object, indexes: Iterable[str]) -> Shape:
    """What a map is to be made with."""
    fields = check_list(indexes, "indexes") if not isinstance(indexes, str) else (indexes,)
    for field in fields:
        if not parse_path(field):
            raise InvalidArgument("an index is of a field of the items: name its path", field="indexes")
    if len(set(fields)) != len(fields) or len(fields) > MAX_INDEXES:
        raise InvalidArgument(f"a map has at most {MAX_INDEXES} indexes, each of another field", field="indexes")
    return Shape(check_count(partitions, "partitions", MAX_PARTITIONS), fields)


def check_item_key(key: object) -> str:
    """`key`, if an item can have it."""
    if not isinstance(key, str):
        raise WrongType(f"an item's key must be a str, not {type(key).__name__}: write str(key)", field="key")
    if not key or len(key) > MAX_SEGMENT_CHARS:
        raise InvalidArgument(f"an item's key must be 1 to {MAX_SEGMENT_CHARS:,} characters", field="key")
    parse_path((key,))
    return key


def _way_to(key: str, path: Path) -> Segments:
    """The path to a part of an item within its partition."""
    return parse_path((check_item_key(key), *parse_path(path)))


def _key_of(item: Sequence[Any]) -> str:
    key: str = item[0]
    return key


def _indexed(shape: Shape, item: Any | Missing) -> dict[str, str]:
    """By field, as what an item is found; fields that it does not have are not indexed."""
    found = {}
    for field in shape.indexes:
        segments: Segments = parse_path(field)
        try:
            value = look_up(item, segments)
        except WrongShape:
            value = MISSING
        if value is not MISSING:
            found[field] = _spelled(value)
    return found


def _spelled(value: Any) -> str:
    """A value as the key of an index: its JSON."""
    spelled = encode(value).decode()
    if len(spelled) > MAX_SEGMENT_CHARS:
        raise InvalidArgument(
            f"a value that is indexed may have at most {MAX_SEGMENT_CHARS:,} characters as JSON, not {len(spelled):,}",
            field="value",
        )
    return spelled
