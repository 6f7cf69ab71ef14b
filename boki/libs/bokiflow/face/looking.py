"""Reads what a workflow did: its journal and its inbox, as a timeline."""

from __future__ import annotations

from typing import Final, NamedTuple

from boki import LogBook
from boki.libs.bokiflow.records import Note, inbox_tag, journal_tag, note_of
from boki.libs.bokiflow.replaying import kept_letters, read_history
from boki.libs.bokiflow.timeline import Span, Timeline

_PAGE_RECORDS: Final = 1_000
_MAX_MESSAGES: Final = 10_000


class Seen(NamedTuple):
    """What a workflow did since it began, or last continued as new."""

    began_us: int
    """When that was, by the workflow's time; 0: nothing is recorded yet."""
    continuations: int
    spans: list[Span]


async def look(logbook: LogBook, invocation_id: str) -> Seen:
    """The workflow of that call. Of its messages, the first 10,000 that are kept."""
    history = await read_history(logbook, journal_tag(invocation_id))
    kept = [(history.began_us, letter.note) for letter in kept_letters(history)]  # when they came is not known any more
    notes = kept + await _notes(logbook, inbox_tag(invocation_id))
    began_us = history.began_us or min((time_us for time_us, _ in notes), default=0)
    timeline = Timeline(began_us)
    for entry in history.entries:
        timeline.add(entry)
    continuations = history.continued.number if history.continued is not None else 0
    return Seen(began_us, continuations, timeline.spans(notes))


async def _notes(logbook: LogBook, tag: str) -> list[tuple[int, Note]]:
    """The messages, each with the time of its record."""
    found: list[tuple[int, Note]] = []
    start = 0
    while len(found) < _MAX_MESSAGES:
        page = await logbook.read(tag, start=start, limit=_PAGE_RECORDS)
        if not page.records:
            break
        for record in page.records:
            note = note_of(record.data)
            if note is not None:
                found.append((record.time, note))
        start = page.next_start
    return found
