"""Finished writes: removes what a write with a `writeId` has left in its lanes, once no task can be late.

The last note of a complete write carries a tag more, which all such writes share. Whoever commits one looks at the
oldest few under it. Of those that are older than `SILENT_US`, by the log's time, the lanes are trimmed of their tags,
and then the note of the shared one. Under the write's own tag it stays permanently: a repetition of the write finds it
complete, and compares, and appends nothing.

What a late task finds where the lanes are gone: it reads its ledger when it begins, when it enters a lane, when an
append is refused, and before it begins a chain for which it had to wait for rows (`boki.spark.lane`). So it reads that
its write is complete, and appends nothing. Only age keeps out a task that had looked, and was about to begin a chain,
on condition that nothing stands under the tag, if that request comes after the lane was cleared. Requests end after
half a minute, so its process would have to stall for two days between two steps, and then continue. Further links
of a chain are safe from that, too: they expect one before them.
"""

from __future__ import annotations

from typing import Final

from boki.api.log_calls import first_record, records_of
from boki.log.operations import Read, TrimBook
from boki.spark.columns import LEDGER
from boki.spark.lane import first_tag, lane_tag
from boki.spark.ledger import FINISHED_TAG, SILENT_US, Ledger, write_of
from boki.spark.steps import Steps, page

_MOST_SWEPT: Final = 8
"""This many old writes are cleared by a new one, which adds one: what was left over by many goes in time."""


def sweep() -> Steps[None]:
    """Clear the lanes of the writes that have been complete for longest, if that is long enough. May be done twice."""
    newest = first_record((yield from page(Read(LEDGER, FINISHED_TAG, backward=True, fresh=True))))
    if newest is None:
        return
    for record in records_of((yield from page(Read(LEDGER, FINISHED_TAG, limit=_MOST_SWEPT)))):
        if newest.time - record.time < SILENT_US:
            return
        write = write_of(record)
        ledger = Ledger(write)
        yield from ledger.catch_up()
        lanes = [note for note in ledger.lanes.values() if note.runs]
        tags = [lane_tag(write, note.partition) for note in lanes]
        for names in (tags, [first_tag(tag) for tag in tags]):
            yield tuple(
                TrimBook(note.book, note.last_seqnum + 1, name) for note, name in zip(lanes, names, strict=True)
            )
        yield TrimBook(LEDGER, record.seqnum + 1, FINISHED_TAG)
