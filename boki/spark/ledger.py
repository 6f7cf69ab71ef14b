"""The ledger of the sinks: what is noted of each write in a book of their own, and what that says of it now.

Each write (a streaming query, a `writeId`, a slot) has one tag there, which outlives trims of the whole book. Under it
stand, of the batch that is under way, where each lane stood when the batch began in it; and of the last batch that is
complete, what each lane got. What is older is trimmed. Whoever acts on the ledger has read it to its end, and what must
not be done twice, or late, is noted on condition that it still ends there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from boki.errors import InvalidArgument, TooLarge, VersionTooNew
from boki.log.limits import DEFAULT_LIMITS
from boki.log.record import Expect, Record
from boki.spark.columns import LEDGER, SINK_TAG_PREFIX
from boki.spark.steps import Steps, again, append_record, tagged

_PART_BYTES: Final = DEFAULT_LIMITS.record_bytes // 2
"""The notes of a batch's lanes are cut into records of this size."""
FINISHED_TAG: Final = f"{SINK_TAG_PREFIX}!finished"
"""On the last note of each write that has one batch only, until its lanes are cleared (`boki.spark.finished`)."""
SILENT_US: Final = 48 * 3600 * 1_000_000
"""A write without a note for this long, by the log's time, is abandoned."""
_NAMED: Final = 5
Place = tuple[int, str]
"""A partition and a book."""


class LaneNote(msgspec.Struct, frozen=True, kw_only=True):
    """What a lane got in a batch: its chunks, their digests folded, and its last record."""

    partition: int
    book: str
    last_seqnum: int = 0
    runs: tuple[tuple[int, int], ...] = ()
    """How many chunks, of how many rows each, one run after the other."""
    digest: str = ""

    @property
    def place(self) -> Place:
        """Which lane it is."""
        return self.partition, self.book

    @property
    def sizes(self) -> list[int]:
        """The rows of each chunk.

        >>> LaneNote(partition=0, book="b", runs=((2, 8192), (1, 7))).sizes
        [8192, 8192, 7]
        """
        return [rows for times, rows in self.runs for _ in range(times)]


class Opened(msgspec.Struct, frozen=True, kw_only=True, tag="opened"):
    """A slot is taken, by somebody, for a batch."""

    batch: int
    owner: str


class Begun(msgspec.Struct, frozen=True, kw_only=True, tag="begun"):
    """A task is about to append to a lane, whose last record is `base`. The first such note of a lane counts."""

    batch: int
    partition: int
    book: str
    base: int


class Complete(msgspec.Struct, frozen=True, kw_only=True, tag="complete"):
    """A batch is complete, and its lanes got this; of several parts, each stands behind the one before it."""

    batch: int
    part: int
    is_last: bool
    lanes: tuple[LaneNote, ...]


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The batch is given up: its driver says that no task continues with it."""

    batch: int


_Note = Opened | Begun | Complete | Failed


class Ledger:
    """What the ledger says of one write, as far as it has been read."""

    def __init__(self, write: str) -> None:
        self.tag = f"{SINK_TAG_PREFIX}{write}"
        self.complete = -1
        """The last batch that is complete."""
        self.lanes: dict[Place, LaneNote] = {}
        """What its lanes got."""
        self.under_way = -1
        """The newest batch that has begun."""
        self.bases: dict[Place, int] = {}
        """Where its lanes stood then."""
        self.owner = ""
        self.is_failed = False
        self.last_seqnum = self.last_time_us = 0
        """The last note."""
        self._first_seqnum = self._complete_seqnum = 0
        self._parts: list[Complete] = []
        self._parts_seqnum = 0

    @property
    def newest(self) -> int:
        """The newest batch that it knows."""
        return max(self.complete, self.under_way)

    @property
    def is_untidy(self) -> bool:
        """Whether whoever noted the last batch did not come to trim what it left."""
        return self._first_seqnum < self._complete_seqnum

    @property
    def fence(self) -> int:
        """What is below this is of no use any more."""
        return self._complete_seqnum

    def check_book(self, write: str, book: str) -> None:
        """`InvalidArgument` if the last batch is complete without rows in that book: then it is another write's."""
        books = sorted({note.book for note in self.lanes.values() if note.runs})
        if book not in books:
            there = f"wrote to {', '.join(map(repr, books[:_NAMED]))}" if books else "had no rows"
            raise InvalidArgument(
                f"batch {self.complete} of write {write!r} is complete, and {there}: what is given now goes to book "
                f"{book!r}. What comes again needs the same rows, and a writeId is for one write only. Nothing was "
                "appended",
                book=book,
                batch=self.complete,
            )

    def add(self, record: Record) -> None:
        """Take in the next note."""
        self._first_seqnum = self._first_seqnum or record.seqnum
        self.last_seqnum, self.last_time_us = record.seqnum, record.time
        note = _decode(record)
        match note:
            case Complete():
                self._add_part(note, record.seqnum)
            case Opened():
                self._begin(note.batch)
                self.owner = note.owner
            case Begun() if note.batch > self.complete:
                self._begin(note.batch)
                if note.batch == self.under_way:  # else it is of a task that comes too late
                    self.bases.setdefault((note.partition, note.book), note.base)
            case Failed() if note.batch == self.under_way:
                self.is_failed = True

    def _begin(self, batch: int) -> None:
        if batch > self.under_way:
            self.under_way, self.bases, self.owner, self.is_failed = batch, {}, "", False

    def _add_part(self, note: Complete, seqnum: int) -> None:
        if note.part == 0:
            self._parts, self._parts_seqnum = [], seqnum
        self._parts.append(note)
        if note.is_last and note.batch > self.complete:
            self.complete = note.batch
            self.lanes = {lane.place: lane for part in self._parts for lane in part.lanes}
            self._complete_seqnum = self._parts_seqnum

    def catch_up(self) -> Steps[None]:
        """Read on to the end, as of now."""
        for record in (yield from tagged(LEDGER, self.tag, self.last_seqnum + 1)):
            self.add(record)

    def note(self, note: _Note, *, if_unchanged: bool = False, is_final: bool = False) -> Steps[int | None]:
        """Append a note; None: rejected, or unknown. `if_unchanged`: only if this is still the ledger's end.
        `is_final`: the last one of this write.
        """
        when = (Expect(self.tag, self.last_seqnum),) if if_unchanged else ()
        tags = (self.tag, FINISHED_TAG) if is_final else (self.tag,)
        return (yield from append_record(LEDGER, msgspec.json.encode(note), tags, when))

    def note_begun(self, note: Begun) -> Steps[None]:
        """Append where a lane stands; twice does no harm, because the first one counts."""
        tries = 0
        while (yield from self.note(note)) is None:
            yield from again(tries, f"the beginning of batch {note.batch} could not be noted in book {LEDGER!r}")
            tries += 1

    def note_complete(self, batch: int, lanes: Sequence[LaneNote], *, is_final: bool = False) -> Steps[bool]:
        """Append that the batch is complete, if the ledger is as it was read; False: it is not, or that is unknown.
        `is_final`: the write has no other batch.
        """
        for note in list(parts_of(batch, lanes)):
            seqnum = yield from self.note(note, if_unchanged=True, is_final=is_final and note.is_last)
            if seqnum is None:
                return False
            self.add(Record(seqnum, (self.tag,), msgspec.json.encode(note), None, self.last_time_us))
        return True


def write_of(note: Record) -> str:
    """The write of which that is the last note; "", which is none, if it is a stranger's."""
    tag = next((tag for tag in note.tags if tag != FINISHED_TAG), SINK_TAG_PREFIX)
    return tag.removeprefix(SINK_TAG_PREFIX)


def parts_of(batch: int, lanes: Sequence[LaneNote]) -> Iterator[Complete]:
    """The notes of a batch that is complete, each small enough for a record."""
    held: list[LaneNote] = []
    part = size_bytes = 0
    for lane in lanes:
        lane_bytes = len(msgspec.json.encode(lane))
        if lane_bytes > _PART_BYTES:
            raise TooLarge(
                f"partition {lane.partition} wrote {len(lane.sizes):,} chunks to book {lane.book!r}, whose note has "
                f"{lane_bytes:,} bytes, and one may have {_PART_BYTES:,}: write in several batches, or in more "
                "partitions",
                limit=_PART_BYTES,
            )
        if held and size_bytes + lane_bytes > _PART_BYTES:
            yield Complete(batch=batch, part=part, is_last=False, lanes=tuple(held))
            held, part, size_bytes = [], part + 1, 0
        held.append(lane)
        size_bytes += lane_bytes + 1
    yield Complete(batch=batch, part=part, is_last=True, lanes=tuple(held))


def _decode(record: Record) -> _Note:
    try:
        note: _Note = msgspec.json.decode(record.data, type=_Note)
    except msgspec.ValidationError as error:
        raise VersionTooNew(
            f"record {record.seqnum} of book {LEDGER!r} is no note that this version knows ({error}): a newer Boki has "
            "written under this query or writeId, use that one"
        ) from None
    except msgspec.DecodeError:
        raise InvalidArgument(
            f"record {record.seqnum} of book {LEDGER!r} is not of a sink: who writes there?"
        ) from None
    return note
