"""Collections of `async` functions: maps, sets, lists and counters. The plain twin is `collections_blocking`.

::

    users = store.map("users", indexes=["city"])
    await users.set("ada", {"city": "London"})
    assert await users.where("city", "London") == [("ada", {"city": "London"})]

They are made of objects, so all of them can be used in a transaction (`txn.map("users")`) and as of the past.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from boki.libs.bokistore.maps import Item, MapRequests
from boki.libs.bokistore.paths import Path
from boki.libs.bokistore.requests import Requests
from boki.libs.bokistore.way import Way
from boki.libs.fold.steps import Steps

R = TypeVar("R")


class Map:
    """A map from text to JSON values, spread over partitions: neither reading nor conflicts are those of one object.

    A partition holds up to 1,000,000 bytes. Their number and the indexes are decided by the first write of the map.
    """

    def __init__(self, requests: MapRequests, way: Way) -> None:
        self._requests = requests
        self._way = way

    @property
    def name(self) -> str:
        """The map's name."""
        return self._requests.name

    async def get(self, key: str, path: Path = "", default: Any = None) -> Any:
        """The item, or the part of it at the path; `default` if there is none."""
        return await self._run(self._requests.get(key, path, default))

    async def set(self, key: str, value: Any, path: Path = "") -> None:
        """Put an item, or the part of it at the path."""
        await self._run(self._requests.set(key, path, value))

    async def increment(self, key: str, path: Path = "", by: float = 1) -> Any:
        """Add to the number that the item is or has at the path, 0 if there is none; the new number."""
        return await self._run(self._requests.increment(key, path, by))

    async def delete(self, key: str) -> bool:
        """Take an item away; whether there was one."""
        return await self._run(self._requests.delete(key))

    async def get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        """Those of the items that there are, as of one moment."""
        return await self._run(self._requests.get_many(keys))

    async def set_many(self, items: Mapping[str, Any]) -> None:
        """Put items, all or none."""
        await self._run(self._requests.set_many(items))

    async def test_and_set_many(self, expected: Mapping[str, Any], items: Mapping[str, Any]) -> bool:
        """Put items if others are as expected, where None means that there is none; whether they were put."""
        return await self._run(self._requests.test_and_set_many(expected, items))

    async def length(self) -> int:
        """The number of items."""
        return await self._run(self._requests.length())

    async def scan(
        self,
        *,
        prefix: str = "",
        start: str = "",
        stop: str | None = None,
        after: str | None = None,
        limit: int = 1_000,
    ) -> list[Item]:
        """Items in the order of their keys, with `start <= key < stop`; as of one moment.

        Continue with `after` the last key of a page: what is put or taken away meanwhile moves no other item.
        """
        return await self._run(self._requests.scan(prefix, start, stop, after, limit))

    async def where(self, field: str, value: Any, *, limit: int = 1_000) -> list[Item]:
        """Items whose `field`, which is one of the map's indexes, has that value; in the order of their keys."""
        return await self._run(self._requests.where(field, value, limit))

    async def _run(self, work: Steps[R]) -> R:
        return await self._way.run(work)


class StoredSet:
    """A set of texts, spread over partitions as a map is."""

    def __init__(self, requests: MapRequests, way: Way) -> None:
        self._requests = requests
        self._way = way

    async def add(self, member: str) -> bool:
        """Whether it is new. Of several who add it at the same time one is told that it is."""
        times: int = await self._way.run(self._requests.increment(member, "", 1))
        return times == 1

    async def discard(self, member: str) -> bool:
        """Take it away; whether it was there."""
        return await self._way.run(self._requests.delete(member))

    async def contains(self, member: str) -> bool:
        """Whether it is there."""
        return await self._way.run(self._requests.get(member, "", None)) is not None

    async def length(self) -> int:
        """The number of members."""
        return await self._way.run(self._requests.length())

    async def members(self, *, prefix: str = "", after: str | None = None, limit: int = 1_000) -> list[str]:
        """Members in order; continue with `after` the last one."""
        found = await self._way.run(self._requests.scan(prefix, "", None, after, limit))
        return [member for member, _ in found]


class Counter:
    """A number, which is a whole object. Increments never conflict, and each is given another number."""

    def __init__(self, requests: Requests[Any], way: Way) -> None:
        self._requests = requests
        self._way = way

    @property
    def name(self) -> str:
        """The object's name."""
        return self._requests.name

    async def value(self) -> Any:
        """The number; 0 if nothing was counted."""
        return await self._way.run(self._requests.number())

    async def increment(self, by: float = 1, *, key: str | None = None) -> Any:
        """Add to the number; the new one. Under a `key` it counts once in 24 hours."""
        return await self._way.run(self._requests.increment("", by, key))

    async def set(self, number: float, *, key: str | None = None) -> None:
        """Count from this number on."""
        await self._way.run(self._requests.set_number(number, key))


class StoredList:
    """An array of JSON values, which is a whole object of up to 1,000,000 bytes. Index -1 is the last item."""

    def __init__(self, requests: Requests[Any], way: Way) -> None:
        self._requests = requests
        self._way = way

    @property
    def name(self) -> str:
        """The object's name."""
        return self._requests.name

    async def append(self, *values: Any, limit: int = 0, key: str | None = None) -> int:
        """Add items to the end, and drop the first ones beyond `limit`; the new length. For `key` see `Counter`."""
        return await self._way.run(self._requests.append("", values, limit, key))

    async def insert(self, index: int, value: Any, *, key: str | None = None) -> int:
        """Put an item before the one at the index, -1: at the end; the new length."""
        return await self._way.run(self._requests.insert_item(index, value, key))

    async def pop(self, index: int = -1, default: Any = None, *, key: str | None = None) -> Any:
        """Take the last (-1) or first (0) item out; `default` if there is none."""
        return await self._way.run(self._requests.pop("", index, default, key))

    async def get(self, index: int, default: Any = None) -> Any:
        """The item at the index; `default` if there is none."""
        return await self._way.run(self._requests.item(index, default))

    async def set(self, index: int, value: Any, *, key: str | None = None) -> None:
        """Put another item at the index of one. `WrongShape`: there is none."""
        await self._way.run(self._requests.set_item(index, value, key))

    async def items(self, start: int = 0, stop: int | None = None) -> list[Any]:
        """Items from `start` on and below `stop`, as `list[start:stop]`."""
        return await self._way.run(self._requests.items(start, stop))

    async def length(self) -> int:
        """The number of items."""
        return await self._way.run(self._requests.length(""))
