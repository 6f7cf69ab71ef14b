"""Rows of the index that somebody waits on for long: one small registration for each, however many there are.

A waiting read (`boki.engine.reads`) is tried again at each change of its book, has a deadline, and brings its records.
That suits a few. A hundred thousand suspended calls wait for days, each for a tag of its own, and must cost nothing
while nothing comes for them: here each is one entry of a table that the index looks at while it applies a chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from boki.engine.index.index import Index
from boki.engine.waiter import Ended, Unstamped, Waiter
from boki.log.ids import MAX_SEQNUM
from boki.log.operations import Done
from boki.protocol.effects import Token

_ANY: Final = 1
"""No record has the seqnum 0."""


class _Watch(msgspec.Struct, eq=False, gc=False):
    """The least seqnum that is waited for, and the shell's token. Of a watch for any record, as those of workflows that
    only sleep, the token alone is kept.
    """

    min_seqnum: int
    token: Token


class Watches:
    """What is waited for, by book and tag. Each watch is answered once, with `Done`, and is over then."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._rows: dict[str, dict[str, Token | _Watch | list[_Watch]]] = {}
        index.watched += (self._rows,)

    @property
    def count(self) -> int:
        """Number of watches that have not been answered."""
        return sum(len(_all(waiting)) for tags in self._rows.values() for waiting in tags.values())

    def add(self, book: str, tag: str, min_seqnum: int, token: Token) -> list[Unstamped]:
        """Answer as soon as the tag has a record at or above `min_seqnum`: at once, if it has one already."""
        if self._has(book, tag, min_seqnum):
            return [Ended(Waiter(book, token), Done())]
        tags = self._rows.setdefault(book, {})
        others = _all(tags.get(tag))
        if others:
            tags[tag] = [*others, _Watch(min_seqnum, token)]
        else:
            tags[tag] = _Watch(min_seqnum, token) if min_seqnum > _ANY else token
        return []

    def remove(self, book: str, tag: str, token: Token) -> None:
        """Forget the watch. Repeatable."""
        tags = self._rows.get(book, {})
        left = [watch for watch in _all(tags.get(tag)) if watch.token is not token]
        if left:
            tags[tag] = left
        elif tags.pop(tag, None) is not None and not tags:
            del self._rows[book]

    def on_applied(self, rows: Iterable[tuple[str, str]]) -> list[Unstamped]:
        """These rows may have got records: the index names the ones whose records it has refused, too."""
        effects: list[Unstamped] = []
        if not self._rows:
            return effects
        for book, tag in sorted(rows):  # any order, but one that two runs share
            for watch in _all(self._rows.get(book, {}).get(tag)):
                if self._has(book, tag, watch.min_seqnum):
                    self.remove(book, tag, watch.token)
                    effects.append(Ended(Waiter(book, watch.token), Done()))
        return effects

    def _has(self, book: str, tag: str, min_seqnum: int) -> bool:
        return len(self._index.page(book, tag, min_seqnum, MAX_SEQNUM, 1)) > 0


def _all(waiting: Token | _Watch | list[_Watch] | None) -> Sequence[_Watch]:
    """All watches of a row: most have one, without a list."""
    if waiting is None:
        return ()
    if isinstance(waiting, list):
        return waiting
    return (waiting if isinstance(waiting, _Watch) else _Watch(_ANY, waiting),)
