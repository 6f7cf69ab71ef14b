"""What a request over HTTP or a command wants done to an object, as a value, and doing it in a transaction."""

from __future__ import annotations

from typing import Any, Final, Literal

import jsonpatch
import jsonpointer
import msgspec

from boki import InvalidArgument
from boki.libs.bokistore import StoredObject, WrongShape

Verb = Literal["set", "delete", "increment", "append", "insert", "pop", "merge"]
Amount = int | float
PlacePath = str | list[str | int]
MAX_CHANGES: Final = 1_000
MAX_PATCH: Final = 1_000


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


def patched(value: Any, patch: Any) -> Any:
    """The value after a JSON Patch (RFC 6902); a test that fails, or a place that is not there, is a `WrongShape`."""
    if not isinstance(patch, list) or len(patch) > MAX_PATCH:
        raise InvalidArgument(f"a JSON Patch is a list of at most {MAX_PATCH:,} operations", field="body")
    try:
        return jsonpatch.apply_patch(value, patch)
    except (jsonpatch.InvalidJsonPatch, TypeError, AttributeError) as error:
        raise InvalidArgument(f"this is not a JSON Patch (RFC 6902): {error}", field="body") from None
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as error:
        raise WrongShape(f"the JSON Patch does not fit, and nothing was changed: {error}") from None
