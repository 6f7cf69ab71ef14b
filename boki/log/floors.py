"""Trim floors: what trims have taken away, as a storage node needs to know it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from boki.log.metalog import ForgetTags, Trim, Trims

_RETIRED_FLOORS: Final = 20_000
DELETED: Final = ""
"""Stands where a tag stands, for the floor of a deletion. No tag is empty."""


FloorRow = tuple[str, str | None, int]
"""(book, tag, floor): the tag is None for the book's own floor."""


class Floors:
    """Per book and per tag of a book, the seqnum below which records are gone. Floors never go back.

    A record may be freed when its book's floor has passed it, or the floors of all its tags (design section 4, "Trim";
    `boki.storage.freeing`).
    System tags are exempt from the book's floor: a record that has one is kept until the tag's own floor has passed it.
    Only a deletion of the book spares nothing.

    A floor under which this node has nothing left is **retired**: a node that was away may still hold such records, and
    learns of the trim from a peer. So the last of these are remembered, but cost nothing else.
    """

    def __init__(self, rows: Iterable[FloorRow] = (), retired: Iterable[FloorRow] = ()) -> None:
        self._books: dict[str, dict[str | None, int]] = {}
        for book, tag, floor in rows:
            self._books.setdefault(book, {})[tag] = floor
        self._retired: dict[tuple[str, str | None], int] = {(book, tag): floor for book, tag, floor in retired}

    def apply(self, trim: Trims, tail_seqnum: int) -> bool:
        """Move a floor; `tail_seqnum` is the next seqnum at the trim's place in the order. True if it moved."""
        floors = self._books.setdefault(trim.book, {})
        floor = min(trim.before, tail_seqnum)
        tags: Sequence[str | None] = trim.tags if isinstance(trim, ForgetTags) else (_tag_of(trim),)
        moved = [tag for tag in tags if floor > floors.get(tag, 0)]
        floors.update(dict.fromkeys(moved, floor))
        return bool(moved)

    def merge(self, rows: Iterable[FloorRow]) -> None:
        """Take over what somebody else knows; of two floors the higher one counts."""
        for book, tag, floor in rows:
            floors = self._books.setdefault(book, {})
            floors[tag] = max(floor, floors.get(tag, 0))

    def touches(self, book: str) -> bool:
        """Whether anything of the book has been trimmed."""
        return book in self._books

    def of(self, book: str) -> Mapping[str | None, int]:
        """The floors of a book by tag, as in `FloorRow`."""
        return self._books.get(book, {})

    def retired_at(self, book: str, tag: str | None) -> int:
        """Nothing was left below this when that floor was dropped; 0 if that is not known."""
        return self._retired.get((book, tag), 0)

    def rows(self) -> list[FloorRow]:
        """All floors, for a checkpoint."""
        return [(book, tag, floor) for book, floors in self._books.items() for tag, floor in floors.items()]

    @property
    def has_retired(self) -> bool:
        """Whether a floor was ever dropped: what stood below it is gone."""
        return bool(self._retired)

    def retired(self) -> list[FloorRow]:
        """Floors that were dropped, the oldest first; only the last ones, if they were many."""
        return [(book, tag, floor) for (book, tag), floor in self._retired.items()]

    def drop(self, rows: Iterable[FloorRow]) -> None:
        """Retire floors that stand as they were given: no record is left below them."""
        for book, tag, floor in rows:
            floors = self._books.get(book, {})
            if floors.get(tag) == floor:
                del floors[tag]
                if not floors:
                    del self._books[book]
                self._retired.pop((book, tag), None)
                self._retired[book, tag] = floor
        while len(self._retired) > _RETIRED_FLOORS:
            del self._retired[next(iter(self._retired))]

    @property
    def highest(self) -> int:
        """No record at or above this is free."""
        return max((floor for floors in self._books.values() for floor in floors.values()), default=0)


def _tag_of(trim: Trim) -> str | None:
    return DELETED if trim.everything else trim.tag
