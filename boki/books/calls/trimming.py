"""Trims the book of logged calls. An unfinished call whose acceptance is old is carried forward first."""

from __future__ import annotations

import asyncio
from typing import Final

from boki.books.calls.call_book import CallBook
from boki.books.calls.ledger import Finished, runs_of
from boki.books.calls.lives import carry_forward
from boki.books.calls.waiting import Waiting

_CARRIED_AT_ONCE: Final = 200
_TRIMS_TO_CARRY: Final = 8
"""However many calls are suspended, this many trims carry them all forward: a fraction of those in a day."""
_CARRIED_TOGETHER: Final = 32


class Trimmer:
    """The trims of one engine."""

    def __init__(self, book: CallBook) -> None:
        self._book = book
        self._floor = 0

    async def trim(self, older_than_us: int) -> None:
        """Trim what was recorded before that time, by the log's time. Unfinished calls are carried forward first."""
        kept = await self._book.first_seqnum_at(older_than_us)
        ledger = self._book.ledger
        wanted = ledger.fold_from if kept is None else kept
        held = ledger.waiting_below(wanted, max(_CARRIED_AT_ONCE, len(ledger.waiting) // _TRIMS_TO_CARRY))
        for some in (held[i : i + _CARRIED_TOGETHER] for i in range(0, len(held), _CARRIED_TOGETHER)):
            await asyncio.gather(*(self.carry(waiting) for waiting in some))
        floor = self._book.ledger.trim_floor(wanted)
        if floor > self._floor:
            await self._book.trim(floor)
            self._floor = floor

    async def carry(self, waiting: Waiting) -> None:
        """Carry a call forward, unless it has changed: then the next trim looks at it again."""
        loaded = await self._book.load_call(waiting)
        found = self._book.ledger.waiting.get(waiting.id)
        if loaded is None or found != waiting:
            return
        last = await self._book.newest(waiting.id)
        if last is not None and not isinstance(last[0], Finished) and last[1].seqnum == waiting.seqnum:
            runs = runs_of(last[0], last[1].time)
            await self._book.carry(carry_forward(*loaded, waiting, runs), waiting.seqnum)
