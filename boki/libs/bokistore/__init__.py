"""BokiStore: durable JSON objects in a LogBook, with transactions over any of them and a view of the past.

See docs/objects.md. For plain functions there is `boki.libs.bokistore.blocking`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from boki.libs.bokistore.collections import Counter, Map, StoredList, StoredSet
    from boki.libs.bokistore.determinism import check_deterministic
    from boki.libs.bokistore.machines import ReplicatedObject, accessor, mutator
    from boki.libs.bokistore.past import Version
    from boki.libs.bokistore.refusals import ConflictError, KeyExpired, NoSuchObject, WrongShape
    from boki.libs.bokistore.store import Snapshot, Store, StoredObject, Transaction

__all__ = [
    "ConflictError",
    "Counter",
    "KeyExpired",
    "Map",
    "NoSuchObject",
    "ReplicatedObject",
    "Snapshot",
    "Store",
    "StoredList",
    "StoredObject",
    "StoredSet",
    "Transaction",
    "Version",
    "WrongShape",
    "accessor",
    "check_deterministic",
    "mutator",
]

_MODULES: Final = {
    **dict.fromkeys(("Counter", "Map", "StoredList", "StoredSet"), "collections"),
    **dict.fromkeys(("ConflictError", "KeyExpired", "NoSuchObject", "WrongShape"), "refusals"),
    **dict.fromkeys(("Snapshot", "Store", "StoredObject", "Transaction"), "store"),
    **dict.fromkeys(("ReplicatedObject", "accessor", "mutator"), "machines"),
    "Version": "past",
    "check_deterministic": "determinism",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for: the CLI imports `face` whenever it starts, and nothing else of the store."""
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
