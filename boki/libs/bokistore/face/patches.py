"""JSON Patch (RFC 6902). Whoever sends one is a stranger: what it may cost is bounded, and errors do not repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import jsonpatch
import jsonpointer

from boki import InvalidArgument, TooLarge
from boki.libs.bokistore import WrongShape
from boki.libs.bokistore.json_values import encode
from boki.libs.bokistore.updates import MAX_OBJECT_BYTES

MAX_PATCH: Final = 1_000
_LEADS_NOWHERE: Final = "its path leads nowhere"


def patched(value: Any, patch: Any) -> Any:
    """The value, which is changed in place, after a JSON Patch.

    `WrongShape`: a test fails, or there is no such place. `TooLarge`: it copies more than an object may have. Twenty
    operations that each copy what the one before has doubled would otherwise fill the memory of the gateway.
    """
    if not isinstance(patch, list) or len(patch) > MAX_PATCH:
        raise InvalidArgument(f"a JSON Patch is a list of at most {MAX_PATCH:,} operations", field="body")
    try:
        jsonpatch.JsonPatch(patch)
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError, AttributeError) as error:
        raise _no_patch(error) from None
    copied_bytes = 0
    for number, operation in enumerate(patch):
        try:
            copied_bytes += _copied_bytes(value, operation)
            if copied_bytes > MAX_OBJECT_BYTES:
                raise TooLarge(
                    f"the JSON Patch copies more than {MAX_OBJECT_BYTES:,} bytes, as many as an object may have, and "
                    "nothing was changed: put the values instead",
                    field="body",
                    limit=MAX_OBJECT_BYTES,
                )
            value = _applied(value, operation)
        except (jsonpatch.InvalidJsonPatch, KeyError) as error:  # a member is missing
            raise _no_patch(error) from None
        except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError, IndexError) as error:
            shown = f"operation {number} ({operation['op']} {operation['path']!r:.100})"
            raise WrongShape(
                f"the JSON Patch does not fit, and nothing was changed: {shown}: {_reason(error)}"
            ) from None
        except RecursionError:
            raise TooLarge("the JSON Patch nests values too deep, and nothing was changed", field="body") from None
    return value


def _no_patch(error: Exception) -> InvalidArgument:
    what = f"the member {error} is missing" if isinstance(error, KeyError) else f"{error!s:.200}"
    return InvalidArgument(f"this is not a JSON Patch (RFC 6902): {what}", field="body")


def _copied_bytes(value: Any, operation: Mapping[str, Any]) -> int:
    return len(encode(_at(value, operation["from"]))) if operation["op"] == "copy" else 0


def _applied(value: Any, operation: Mapping[str, Any]) -> Any:
    if operation["op"] != "test":
        return jsonpatch.apply_patch(value, [operation], in_place=True)
    if not is_equal(_at(value, operation["path"]), operation["value"]):
        raise jsonpatch.JsonPatchTestFailed("another value stands there")
    return value


def _at(value: Any, path: str) -> Any:
    return jsonpointer.resolve_pointer(value, path)


def is_equal(one: Any, other: Any) -> bool:
    """Whether two values are equal as the RFC says: 1 is 1.0, and not true.

    >>> is_equal([1, {"a": 2}], [1.0, {"a": 2}]), is_equal([1], [True]), is_equal(0, False)
    (True, False, False)
    """
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_equal(one[key], other[key]) for key in one)
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def _reason(error: Exception) -> str:
    """What the library says, but for the values that it repeats."""
    if isinstance(error, jsonpatch.JsonPatchTestFailed | jsonpatch.JsonPatchConflict):
        return f"{error!s:.200}"
    return _LEADS_NOWHERE
