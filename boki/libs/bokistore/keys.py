"""Keys of updates and transactions, which count once under each."""

from __future__ import annotations

from collections.abc import Sequence

from boki import InvalidArgument
from boki.libs.bokistore.listing import is_derived
from boki.libs.bokistore.updates import Update
from boki.libs.fold.arguments import UNFIT
from boki.libs.fold.outbox import Outbox


def check_key(key: object) -> str | None:
    """`key`, if it may name a transaction or an update."""
    if key is None:
        return None
    if not isinstance(key, str) or not 0 < len(key.encode("utf-8", "surrogatepass")) <= 200 or UNFIT.search(key):
        raise InvalidArgument(
            f"key must be text of 1 to 200 bytes without control characters, not {key!r:.100}", field="key"
        )
    return key


def check_commit(key: object, outbox: Outbox | None, book: str) -> str | None:
    """`key`, if a transaction of that book may commit under it, or together with the outbox."""
    if key is not None and outbox is not None:
        raise InvalidArgument("what commits with an outbox has no key of its own: give one of the two", field="key")
    if outbox is not None and outbox.logbook.name != book:
        raise InvalidArgument(
            f"the outbox is of book {outbox.logbook.name!r}, and the store of book {book!r}: what commits together is "
            "in one book",
            field="outbox",
        )
    return check_key(key)


def is_same_work(one: Sequence[tuple[str, Sequence[Update]]], other: Sequence[tuple[str, Sequence[Update]]]) -> bool:
    """Whether two transactions write the same, in however many records. What follows from the items of a map is left
    out: a repetition finds the map made, and another version may keep its indexes otherwise.
    """
    return _joined(one) == _joined(other)


def _joined(updates: Sequence[tuple[str, Sequence[Update]]]) -> dict[str, list[Update]]:
    joined: dict[str, list[Update]] = {}
    for name, some in updates:
        if is_derived(name):
            continue
        joined.setdefault(name, []).extend(some)
    return joined
