"""Follows what a workflow does: its journal and its inbox, record by record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from boki import LogBook, Record
from boki.libs.bokiflow.history import History
from boki.libs.bokiflow.records import inbox_tag, journal_tag, note_of
from boki.libs.bokiflow.timeline import Span, Timeline, span_of_note

_PAGE_RECORDS: Final = 1_000


class Tail:
    """The workflow of one logged call, from its beginning, or from where it was last continued as new."""

    def __init__(self, logbook: LogBook, invocation_id: str) -> None:
        self._logbook = logbook
        self._journal = journal_tag(invocation_id)
        self._inbox = inbox_tag(invocation_id)
        self._starts = {self._journal: 0, self._inbox: 0}
        self._history = History()
        self._timeline: Timeline | None = None

    async def spans(self, wait_s: float) -> AsyncIterator[Span]:
        """What is new since the last call, in the order of the log. Waits at most this long if there is nothing."""
        records = await self._read(0.0)
        if not records and wait_s:
            records = await self._read(wait_s)
        for record in sorted(records, key=lambda one: one.seqnum):
            span = self._span(record)
            if span is not None:
                yield span

    async def _read(self, wait_s: float) -> list[Record]:
        reads = [self._read_tag(tag, wait_s) for tag in self._starts]
        return [record for page in await asyncio.gather(*reads) for record in page]

    async def _read_tag(self, tag: str, wait_s: float) -> list[Record]:
        page = await self._logbook.read(tag, start=self._starts[tag], limit=_PAGE_RECORDS, wait_s=wait_s)
        self._starts[tag] = page.next_start
        return page.records

    def _span(self, record: Record) -> Span | None:
        if self._inbox in record.tags:
            note = note_of(record.data)
            return None if note is None else span_of_note(note, record.time)
        entry = self._history.fold(record.data, record.seqnum)
        if entry is None:
            return None
        if self._timeline is None or self._timeline.began_us != self._history.began_us:
            self._timeline = Timeline(self._history.began_us)
        return self._timeline.add(entry)
