"""Trims the book of logged calls. An unfinished call whose acceptance is old is carried forward first.

So is the end of a call that reports to an unfinished one, which may ask for it only now: it may have slept, or was
paused, for longer than ends are kept. Else it would not find the call, or start it a second time. The kept end has no
place in lists, and is gone when the call that it reports to has ended. What attends to something, such as a schedule,
never ends, and does without.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import msgspec

from boki.books.calls.call_book import CallBook
from boki.books.calls.ledger import Finished, runs_of
from boki.books.calls.lives import carry_forward
from boki.books.calls.waiting import Waiting
from boki.errors import TooLarge
from boki.log.record import Record
from boki.protocol.calls import ATTENDS, KEPT_END_TAG, ends_tag

_CARRIED_AT_ONCE: Final = 200
_TRIMS_TO_CARRY: Final = 8
"""However many calls are suspended, this many trims carry them all forward: a fraction of those in a day."""
_CARRIED_TOGETHER: Final = 32
_ASKED_TOGETHER: Final = 1_000
_ENDS_OF_ONE: Final = 1_000
"""Maximum number of ends that one trim keeps for one unfinished call, the newest: a workflow may run for years."""


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
            await self._keep_ends(floor)
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
            with suppress(TooLarge):  # an earlier version has accepted it: what came before it can be trimmed
                await self._book.carry(carry_forward(*loaded, waiting, runs), waiting.seqnum)

    async def _keep_ends(self, below: int) -> None:
        """Record those ends once more that stand below that seqnum and that an unfinished call may still ask for."""
        waiting = self._book.ledger.waiting
        ids = list(waiting)
        for some in (ids[i : i + _ASKED_TOGETHER] for i in range(0, len(ids), _ASKED_TOGETHER)):
            for parent in await self._book.with_ends(some):
                known = waiting.get(parent)
                if known is not None and ATTENDS not in (known.attributes or {}):
                    await self._keep_ends_for(parent, below)

    async def _keep_ends_for(self, parent: str, below: int) -> None:
        ends: list[tuple[Finished, Record]] = []
        while len(ends) < _ENDS_OF_ONE:
            limit = min(_CARRIED_TOGETHER, _ENDS_OF_ONE - len(ends))
            page = await self._book.ended(ends_tag(parent), below, 0, limit)
            if not page:
                break
            below = page[-1][1].seqnum
            ends += page
        ends.reverse()  # the newest is recorded last: the next trim takes it for the newest, too
        for at in range(0, len(ends), _CARRIED_TOGETHER):
            some = ends[at : at + _CARRIED_TOGETHER]
            await asyncio.gather(*(self._keep_end(*each) for each in some if each[0].reports_to == parent))

    async def _keep_end(self, entry: Finished, record: Record) -> None:
        last = await self._book.last(entry.id)
        if last is not None and last[1].seqnum == record.seqnum:  # else it was kept before, or has been run again
            again = msgspec.structs.replace(entry, ended_us=entry.ended_us or record.time)
            with suppress(TooLarge):  # by the few bytes that it has more: one end must not hold up all trimming
                await self._book.append_after(again, record.seqnum, [KEPT_END_TAG, ends_tag(entry.reports_to)])
