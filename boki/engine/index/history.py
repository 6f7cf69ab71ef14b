"""The order history: of every seqnum ever ordered, where its record is and when it was ordered.

Each (term, log) has its own history, a chain of **pages**. A page is an `OrderTable` of a bounded number of cuts, so
that a checkpoint writes only the last ones, and old ones go to the disk until somebody asks about them. When each page
begins is always in memory: 16 bytes for about a thousand cuts.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final

from boki.engine.index.layout import (
    HISTORY_PAGES,
    HISTORY_STARTS,
    after_prefix,
    number_bytes,
    page_key,
    read_number,
    read_page_key,
)
from boki.engine.index.residence import IsOver, Residence
from boki.log.cuts import OrderTable, Piece
from boki.log.ids import POSITION_BITS, LogId, Term, make_seqnum
from boki.log.metalog import Cut
from boki.protocol.effects import Delete, Put

PAGE_ENTRIES: Final = 2048
"""A page takes no more cuts when its cuts and runs are this many."""

_PAGE_BYTES: Final = 1100
_HISTORY_BYTES: Final = 600


class LogHistory:
    """Of one (term, log). Made for the first cut, or with what the disk says about when its pages begin."""

    __slots__ = (
        "_clean_until",
        "_is_listed",
        "_is_open",
        "_log",
        "_open_bytes",
        "_pages",
        "_residence",
        "_starts",
        "_term",
        "_times",
        "_used",
        "_writing_from",
    )

    def __init__(self, residence: Residence, term: Term, log: LogId) -> None:
        self._residence = residence
        self._term = term
        self._log = log
        self._starts = array("q")
        self._times = array("q")
        self._pages: list[OrderTable | None] = []
        self._used = bytearray()
        self._clean_until = 0
        self._writing_from: int | None = None
        self._is_listed = False
        self._is_open = False
        self._open_bytes = 0
        residence.used_bytes += _HISTORY_BYTES
        residence.admit(self)

    def add_start(self, first_seqnum: int, time_us: int) -> None:
        """Learn from the disk that the next page begins there, and with a cut of that time."""
        self._starts.append(first_seqnum)
        self._times.append(time_us)
        self._pages.append(None)
        self._used.append(0)
        self._clean_until = len(self._pages)

    @property
    def has_cuts(self) -> bool:
        """Whether it has ordered anything."""
        return bool(self._pages)

    def _page(self, at: int) -> OrderTable:
        self._used[at] = 1
        page = self._pages[at]
        if page is None:
            stored = self._residence.disk.get(page_key(HISTORY_PAGES, self._term, self._log, self._starts[at]))
            assert stored is not None, "a page leaves memory only when the disk has it"
            page = self._pages[at] = OrderTable.decode(stored)
            self._residence.used_bytes += page.size_bytes + _PAGE_BYTES
        return page

    def pieces(self, cut: Cut) -> list[Piece]:
        """See `OrderTable.pieces`."""
        return self._page(-1).pieces(cut) if self._pages else OrderTable(self._term, self._log).pieces(cut)

    def apply_cut(self, cut: Cut) -> list[Piece]:
        """See `OrderTable.apply_cut`."""
        page = self._pages[-1] if self._is_open else self._open()
        assert page is not None, "the page that grows stays in memory"
        if page.entry_count >= PAGE_ENTRIES and page.next_seqnum > page.first_seqnum:
            page = self._add(page.successor())
        if len(self._times) < len(self._pages):
            self._times.append(cut.time_us)
        pieces = page.apply_cut(cut)
        grown = page.size_bytes - self._open_bytes
        self._open_bytes += grown
        self._residence.used_bytes += grown
        self._residence.dirty_bytes += grown
        self._clean_until = min(self._clean_until, len(self._pages) - 1)
        if not self._is_listed:
            self._is_listed = True
            self._residence.changed(self)
        return pieces

    def _open(self) -> OrderTable:
        """The page that grows, for the first cut since the index was started."""
        self._is_open = True
        if not self._pages:
            return self._add(OrderTable(self._term, self._log))
        page = self._page(len(self._pages) - 1)
        self._open_bytes = page.size_bytes
        return page

    def _add(self, page: OrderTable) -> OrderTable:
        self._starts.append(page.first_seqnum)
        self._pages.append(page)
        self._used.append(1)
        self._open_bytes = page.size_bytes
        self._residence.used_bytes += page.size_bytes + _PAGE_BYTES
        return page

    @property
    def next_seqnum(self) -> int:
        """The seqnum that the next record of this log gets."""
        if not self._pages:
            return make_seqnum(self._term, self._log, 0)
        return self._page(len(self._pages) - 1).next_seqnum

    def table_of(self, seqnum: int) -> OrderTable:
        """The table that describes this seqnum. If it never was ordered: `KeyError`, from here or from the table."""
        at = bisect_right(self._starts, seqnum) - 1
        if at < 0:
            raise KeyError(seqnum)
        return self._page(at)

    def first_seqnum_at(self, time_us: int) -> int | None:
        """See `OrderTable.first_seqnum_at`."""
        at = bisect_left(self._times, time_us)
        if at:
            # a page that begins before that time may reach beyond it
            found = self._page(at - 1).first_seqnum_at(time_us)
            if found is not None:
                return found
        return self._starts[at] if at < len(self._starts) else None

    # pages of which nothing is needed

    @property
    def _stored_until(self) -> int:
        """How many pages the disk has as they are."""
        return self._clean_until if self._writing_from is None else min(self._clean_until, self._writing_from)

    def complete_pages(self) -> list[tuple[int, int]]:
        """(first seqnum, that of the next page) of those that are on the disk and grow no more."""
        starts = self._starts
        return [(starts[at], starts[at + 1]) for at in range(min(self._stored_until, len(starts) - 1))]

    def drop(self, first_seqnum: int) -> list[Delete]:
        """Forget a complete page: the writes that delete it."""
        at = bisect_left(self._starts, first_seqnum)
        assert self._starts[at] == first_seqnum, "there is such a page"
        page = self._pages[at]
        if page is not None:
            self._residence.used_bytes -= page.size_bytes + _PAGE_BYTES
        del self._starts[at], self._times[at], self._pages[at], self._used[at]
        self._clean_until -= 1
        if self._writing_from is not None:
            self._writing_from -= 1
        keys = [page_key(kind, self._term, self._log, first_seqnum) for kind in (HISTORY_PAGES, HISTORY_STARTS)]
        return [Delete(key, key + b"\x00") for key in keys]

    # checkpoints and eviction: see `boki.engine.index.residence.Resident`

    def writes(self) -> Iterable[Put]:
        """The pages that have changed."""
        self._is_listed = False
        self._writing_from = self._clean_until
        self._clean_until = len(self._pages)
        for at in range(self._writing_from, len(self._pages)):
            place = (self._term, self._log, self._starts[at])
            yield Put(page_key(HISTORY_PAGES, *place), self._page(at).encode())
            yield Put(page_key(HISTORY_STARTS, *place), number_bytes(self._times[at]))

    def stored(self) -> None:
        """See `Resident.stored`."""
        self._writing_from = None

    def shrink(self) -> bool:
        """See `Resident.shrink`. The page that grows stays."""
        for at in range(min(self._stored_until, len(self._pages) - self._is_open)):
            page = self._pages[at]
            if page is not None and not self._used[at]:
                self._residence.used_bytes -= page.size_bytes + _PAGE_BYTES
                self._pages[at] = None
            self._used[at] = 0
        return True

    def leave_if_over(self, is_over: IsOver) -> bool:  # noqa: ARG002
        """See `Resident.leave_if_over`. The order of a log is never over."""
        return False


class OrderHistory:
    """Of all terms and logs."""

    def __init__(self, residence: Residence) -> None:
        self._residence = residence
        self._logs: dict[int, LogHistory] = {}
        for key, value in residence.disk.scan(HISTORY_STARTS, after_prefix(HISTORY_STARTS)):
            term, log, first_seqnum = read_page_key(key)
            self.log(term, log).add_start(first_seqnum, read_number(value))

    def log(self, term: Term, log: LogId) -> LogHistory:
        """The history of one log in one term, made if need be."""
        place = make_seqnum(term, log, 0) >> POSITION_BITS
        found = self._logs.get(place)
        if found is None:
            found = self._logs[place] = LogHistory(self._residence, term, log)
        return found

    def first_seqnum_at(self, time_us: int, places: Iterable[tuple[Term, LogId]]) -> int | None:
        """The first seqnum at or after that time in these logs, the latest of them first; None if there is none."""
        start = None
        for term, log in places:
            history = self._logs.get(make_seqnum(term, log, 0) >> POSITION_BITS)
            if history is None or not history.has_cuts:
                continue
            found = history.first_seqnum_at(time_us)
            if found is None:
                break  # all of it was before that time, and so was all that is earlier
            start = found
        return start

    def table_of(self, seqnum: int) -> OrderTable:
        """See `LogHistory.table_of`."""
        return self._logs[seqnum >> POSITION_BITS].table_of(seqnum)

    def time_of(self, seqnum: int) -> int:
        """When it was ordered; `KeyError` if it never was, or is in a page that was dropped."""
        return self.table_of(seqnum).cut_of(seqnum)[1]

    def cut_of(self, seqnum: int) -> tuple[int, int]:
        """See `OrderTable.cut_of`; time 0 of what is in a page that was dropped: whatever it was, it is long ago."""
        try:
            return self.table_of(seqnum).cut_of(seqnum)
        except KeyError:
            return seqnum, 0

    def complete_pages(self) -> list[tuple[int, int]]:
        """See `LogHistory.complete_pages`; those of all logs, in order."""
        return [page for place in sorted(self._logs) for page in self._logs[place].complete_pages()]

    def drop_page(self, first_seqnum: int) -> list[Delete]:
        """See `LogHistory.drop`."""
        return self._logs[first_seqnum >> POSITION_BITS].drop(first_seqnum)
