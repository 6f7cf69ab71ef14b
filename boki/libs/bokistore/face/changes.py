"""What a request over HTTP or a command wants done to an object, as a value, and doing it in a transaction."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from boki.libs.bokistore import StoredObject

Verb = Literal["set", "delete", "increment", "append", "insert", "pop", "merge"]
Amount = int | float
PlacePath = str | list[str | int]
MAX_CHANGES: Final = 1_000


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One update. `value` is what is put, inserted or merged; `values` are the items that are appended."""

    update: Verb
    path: PlacePath = ""
    value: Any = None
    values: list[Any] = []
    by: Amount = 1
    limit: int = 0
    index: int = -1


class NamedChange(Change, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An update of the object of that name."""

    object: str


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value of an object."""

    object: str
    path: PlacePath = ""


class Test(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A value that must be there; null: or none."""

    value: Any


async def carry_out(target: StoredObject[Any], change: Change, key: str | None = None) -> Any:
    """Do it; what the update returns."""
    match change.update:
        case "set":
            return await target.set(change.path, change.value, key=key)
        case "delete":
            return await target.delete(change.path, key=key)
        case "increment":
            return await target.increment(change.path, change.by, key=key)
        case "append":
            return await target.append(change.path, *change.values, limit=change.limit, key=key)
        case "insert":
            return await target.insert(change.path, change.value, key=key)
        case "pop":
            return await target.pop(change.path, change.index, key=key)
        case "merge":
            return await target.merge(change.path, change.value, key=key)
