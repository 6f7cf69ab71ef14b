"""The page sweep: drops pages of the order history in which no record is left.

A page says where records are and when they were ordered, also of those that trims have taken away since. So with each
checkpoint a cursor goes on a little way through the rows on the disk, and notes which pages their records stand in. At
the end of a round the others go.

A round is about the pages that were complete and on the disk when it began: all their records were in rows on the disk
by then, or gone. A row may be written again behind the cursor while a round lasts, so what checkpoints write is noted,
too. Memory may still hold a row whose keys were swept because they are too old to matter: nothing asks for its records,
and its key counts as one that was never used.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from boki.engine.index.book_row import row_seqnums
from boki.engine.index.history import OrderHistory
from boki.engine.index.layout import BOOK_ROWS, TAG_ROWS, after_prefix
from boki.protocol.effects import Delete, DiskReader, Put

_LEAST: Final = 8
"""Fewer complete pages than these are not worth a round."""
_GROWTH: Final = 2
_KINDS: Final = (TAG_ROWS, BOOK_ROWS)


class PageSweep:
    """The cursor. It rests until there are twice as many pages as the last round has left."""

    def __init__(self, disk: DiskReader, history: OrderHistory) -> None:
        self._disk = disk
        self._history = history
        self._kept = 0
        self._cursor: bytes | None = None
        self._starts: Sequence[int] = ()
        self._stops: Sequence[int] = ()
        self._is_needed = bytearray()

    def go_on(self, key_count: int, writes: Iterable[Put | Delete]) -> Iterator[Delete]:
        """Look at that many keys more, and at what is written now; at the end of a round, the pages to delete."""
        if self._cursor is None and not self._begin():
            return
        for write in writes:
            if isinstance(write, Put) and write.key.startswith(_KINDS):
                self._note(row_seqnums(write.key, write.value))
        for key, value in self._next_keys(key_count):
            self._note(row_seqnums(key, value))
        if self._cursor is None:
            yield from self._end()

    def _begin(self) -> bool:
        pages = self._history.complete_pages()
        if len(pages) < _LEAST + _GROWTH * self._kept:
            return False
        self._starts = array("q", [start for start, _ in pages])
        self._stops = array("q", [stop for _, stop in pages])
        self._is_needed = bytearray(len(pages))
        self._cursor = TAG_ROWS
        return True

    def _next_keys(self, key_count: int) -> Iterator[tuple[bytes, bytes]]:
        for kind in _KINDS:
            for key, value in self._disk.scan(max(kind, self._cursor or kind), after_prefix(kind)):
                if not key_count:
                    self._cursor = key
                    return
                key_count -= 1
                yield key, value
        self._cursor = None

    def _note(self, seqnums: Sequence[int]) -> None:
        """The pages in which these stand are needed."""
        starts, stops, at = self._starts, self._stops, 0
        while at < len(seqnums):
            page = bisect_right(starts, seqnums[at]) - 1
            if page >= 0 and seqnums[at] < stops[page]:
                self._is_needed[page] = True
                at = bisect_left(seqnums, stops[page], at)
            elif page + 1 < len(starts):
                at = bisect_left(seqnums, starts[page + 1], at)
            else:
                return

    def _end(self) -> Iterator[Delete]:
        for start, is_needed in zip(self._starts, self._is_needed, strict=True):
            if not is_needed:
                yield from self._history.drop_page(start)
        self._kept = sum(self._is_needed)
        self._starts = self._stops = ()
