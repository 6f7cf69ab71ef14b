"""The end of a batch: the driver notes in the ledger that it is complete, and removes what is no longer needed.

The note stands only if the ledger is as the driver has read it: of two drivers one notes the batch, and the other sees
that it is noted. After that the lanes are trimmed by their own tags, so that users' trims take the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from boki.errors import BokiError, InvalidArgument
from boki.log.operations import TrimBook
from boki.spark.columns import LEDGER
from boki.spark.finished import sweep
from boki.spark.lane import first_tag, lane_tag, too_late
from boki.spark.ledger import Failed, LaneNote, Ledger
from boki.spark.steps import Steps, again, last_of


def commit(write: str, batch: int, lanes: Sequence[LaneNote], *, is_final: bool = False) -> Steps[None]:
    """The batch is complete. May be done twice. `is_final`: the write has no other batch, so its lanes are cleared
    later; now those of writes that are long over.
    """
    ledger = Ledger(write)
    tries = 0
    while True:
        yield from ledger.catch_up()
        if ledger.newest > batch:
            raise too_late(ledger, batch)
        if ledger.is_untidy:
            yield from tidy(ledger, write)
        if ledger.complete == batch:
            _check_same(ledger, lanes)
            return
        yield from _check_covered(ledger, write, batch, lanes)
        if (yield from ledger.note_complete(batch, lanes, is_final=is_final)):
            yield from tidy(ledger, write)
            if is_final:
                with suppress(BokiError):  # this write is complete, whatever there is about others
                    yield from sweep()
            return
        yield from again(tries, f"the commit of batch {batch} could not be noted in book {LEDGER!r}")
        tries += 1


def give_up(write: str, batch: int) -> Steps[None]:
    """The batch has failed, and no task continues with it. Best effort: what is not noted is given up by its age."""
    ledger = Ledger(write)
    yield from ledger.catch_up()
    if (ledger.under_way, ledger.complete < batch) == (batch, True):
        yield from ledger.note(Failed(batch=batch), if_unchanged=True)


def tidy(ledger: Ledger, write: str) -> Steps[None]:
    """Trim what the last complete batch has left: of each lane only the last link stays, of the ledger the notes of
    that batch. May be done twice.
    """
    lanes = [note for note in ledger.lanes.values() if note.runs]
    tags = [lane_tag(write, note.partition) for note in lanes]
    yield tuple(TrimBook(note.book, note.last_seqnum, tag) for note, tag in zip(lanes, tags, strict=True))
    yield tuple(
        TrimBook(note.book, note.last_seqnum + 1, first_tag(tag)) for note, tag in zip(lanes, tags, strict=True)
    )
    yield TrimBook(LEDGER, ledger.fence, ledger.tag)


def _check_same(ledger: Ledger, lanes: Sequence[LaneNote]) -> None:
    """The batch was complete before, with these lanes."""
    given = {note.place: (note.runs, note.digest) for note in lanes if note.runs}
    noted = {place: (note.runs, note.digest) for place, note in ledger.lanes.items() if note.runs}
    for partition, book in sorted(given.keys() | noted.keys()):
        if given.get((partition, book)) != noted.get((partition, book)):
            raise InvalidArgument(
                f"partition {partition} of batch {ledger.complete} has other rows than when it was written to book "
                f"{book!r} before: exactly once needs the same rows in the same order, in as many partitions. Nothing "
                "was appended",
                book=book,
                partition=partition,
                batch=ledger.complete,
            )


def _check_covered(ledger: Ledger, write: str, batch: int, lanes: Sequence[LaneNote]) -> Steps[None]:
    """No earlier run has written rows to a lane in which this one has none."""
    given = {note.place for note in lanes if note.runs}
    begun = ledger.bases if ledger.under_way == batch else {}
    for (partition, book), base in begun.items():
        if (partition, book) not in given and (yield from last_of(book, lane_tag(write, partition))) != base:
            raise InvalidArgument(
                f"an earlier run of batch {batch} wrote rows of partition {partition} to book {book!r}, and this run "
                "has none there: it has other rows, another number of partitions, or the writeId of another write, so "
                "what it appended may be there twice. The batch is not complete, and cannot be: begin again, with a "
                "new writeId or checkpoint, in an empty book. Whoever repeats a write must give the same rows, in as "
                "many partitions",
                book=book,
                partition=partition,
                batch=batch,
            )
