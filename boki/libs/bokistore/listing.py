"""The names of a book's objects, and of its maps: sets of names that are objects themselves. Pure.

An object is in the list if it exists. The record that makes an object puts its name into a partition of the list, and
the one that deletes it takes it out: one record, so the log orders both alike. Like any other objects the partitions
have a past, are inherited by forks, and conflict in transactions with what a page would have met.

A writer that does not know whether an object exists puts the name in, which changes nothing if it is there. One that
took it for existing, while it was deleted, leaves an object that is not listed: `View.is_listed` tells, and the next
write puts the name in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final
from zlib import crc32

from boki import BokiError
from boki.libs.bokistore.json_values import MISSING
from boki.libs.bokistore.updates import Delete, Set, Update, apply

OBJECTS: Final = ""
"""The list of objects, as the name of a map: its partitions are `/0` to `/63`."""
MAPS: Final = "/maps"
"""The list of maps."""
PARTITIONS: Final = 64
MAP_PARTITIONS: Final = 1

Updates = list[tuple[str, list[Update]]]


def entry_of(name: str) -> tuple[str, str] | None:
    """The partition in which an object of that name is listed, and its key there; None: it is in no list.

    >>> entry_of("user:ada"), entry_of("users/"), entry_of("users/3")
    (('/18', 'user:ada'), ('/maps/0', 'users'), None)
    """
    if "/" not in name:
        return f"{OBJECTS}/{crc32(name.encode()) % PARTITIONS}", name
    if name.endswith("/"):  # what a map was made with
        return f"{MAPS}/0", name[:-1]
    return None


def with_names(updates: Iterable[tuple[str, list[Update]]], is_listed: Callable[[str], bool]) -> Updates:
    """The updates, and those of the list that go with them. `is_listed`: what is known of an object."""
    whole: Updates = []
    for name, some in updates:
        whole.append((name, some))
        entry = entry_of(name)
        if entry is None:
            continue
        partition, key = entry
        is_deleted = any(isinstance(update, Delete) and not update.path for update in some)
        if (is_deleted or not is_listed(name)) and _makes(some):
            whole.append((partition, [Set((key,), b"true")]))
        elif is_deleted:
            whole.append((partition, [Delete((key,))]))
    return whole


def without_names(updates: Iterable[tuple[str, list[Update]]]) -> Updates:
    """The updates of users' objects and maps."""
    return [(name, some) for name, some in updates if not name.startswith("/")]


def is_derived(name: str) -> bool:
    """Whether that is what a map was made with, or an index: both follow from what its items are and how it is used.

    >>> [is_derived(name) for name in ("users", "users/3", "users/", "users/i0/3")]
    [False, False, True, True]
    """
    return name.endswith("/") or name.count("/") > 1


def puts_name(updates: Sequence[tuple[str, Sequence[Update]]], name: str) -> bool:
    """Whether these updates put the object into its list."""
    entry = entry_of(name)
    return entry is not None and any(
        partition == entry[0] and any(isinstance(update, Set) and update.path == entry[1:] for update in some)
        for partition, some in updates
    )


def _makes(updates: Sequence[Update]) -> bool:
    """Whether there is an object after these updates where there was none before."""
    try:
        return apply(MISSING, 0, updates).value is not MISSING
    except BokiError:
        return False
