"""A lane: how the rows of one partition get into one book exactly once, whatever is killed and started again.

Rows are appended in chunks. The last record of each chunk carries the lane's own tag, and a chunk is appended on
condition that the one before it is still the last under that tag. So the chunks of a lane form a chain, to which of two
tasks that write the same partition only one can add the next link. The other takes as many rows for its own next link,
sees by the rows themselves whether they are the same, and goes on behind it, or refuses. (A link may be short: if what
feeds a task is killed, the task sees the end of its rows before Spark ends the task itself.)

When Spark commits a batch, the driver notes in a book of the sinks' own how far each lane has come. What stands behind
that in a lane belongs to the batch that is under way; a batch that comes again after its commit adds nothing, or is
refused if its rows are others. A task that comes too late finds that its lane has gone on, and appends nothing.

A query has the same lanes in all its batches: two tags for each of its partitions and books, and one record in the
sinks' book. Nothing is left of a batch but its rows. Writes that have no name share such lanes (`boki.spark.slots`).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import groupby
from typing import Final

import msgspec
import pyarrow as pa

from boki.errors import BokiError, ConnectionLost, DeadlineExceeded, InvalidArgument
from boki.log.chunk import Group, encode_chunk
from boki.log.operations import Append, Found, Read
from boki.log.record import Record
from boki.runtime.log_calls import records_of
from boki.spark.columns import LEDGER, SINK_TAG_PREFIX, columns_of
from boki.spark.gateway import Gateway
from boki.spark.rows import Rows, rows_of

SLOT_PREFIX: Final = "!batch:"
"""Ids of writes that have no name start so, and those that have one do not."""
_PAGE: Final = 1000
_TRIES: Final = 20


class LaneNote(msgspec.Struct, frozen=True, kw_only=True):
    """How far a lane has come, and what it wrote in the last batch: its chunks, and their digests folded."""

    partition: int
    book: str
    last_seqnum: int = 0
    runs: tuple[tuple[int, int], ...] = ()
    """How many chunks, of how many rows each, one run after the other."""
    digest: str = ""

    @property
    def sizes(self) -> list[int]:
        """The rows of each chunk.

        >>> LaneNote(partition=0, book="b", runs=((2, 8192), (1, 7))).sizes
        [8192, 8192, 7]
        """
        return [rows for times, rows in self.runs for _ in range(times)]


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """A record of the ledger: this batch of the query is complete. Of lanes that it left alone, where they stand.

    `is_open`: of a slot, the next batch is being written.
    """

    batch: int
    lanes: tuple[LaneNote, ...]
    is_open: bool = False

    def lane(self, partition: int, book: str) -> LaneNote:
        """What it says of a lane; nothing has been written there if it does not know it."""
        found = (note for note in self.lanes if (note.partition, note.book) == (partition, book))
        return next(found, LaneNote(partition=partition, book=book))

    def after(self, batch: int, lanes: Sequence[LaneNote]) -> Commit:
        """The commit of a later batch, which has written to these lanes."""
        written = {(note.partition, note.book) for note in lanes}
        others = (
            LaneNote(partition=note.partition, book=note.book, last_seqnum=note.last_seqnum)
            for note in self.lanes
            if (note.partition, note.book) not in written
        )
        return Commit(batch=batch, lanes=(*lanes, *others))


class Lane:
    """One partition of one batch on its way into one book."""

    def __init__(self, gateway: Gateway, write: str, batch: int, partition: int, book: str) -> None:
        self._gateway = gateway
        self._place = (batch, partition, book)
        self._book = book
        self._is_shared = write.startswith(SLOT_PREFIX)
        self._tag = lane_tag(write, partition)
        self._first_tag = f"{self._tag}:first"
        self._sizes: list[int] = []
        """The rows of each chunk that has been given."""
        self._digest = ""
        self._there: list[tuple[int, int]] = []
        """First and last seqnum of each chunk of this batch in the book."""
        before = last_commit(gateway, write) or Commit(batch=-1, lanes=())
        if before.batch > batch:
            raise InvalidArgument(
                f"batch {before.batch} of this query is complete, so batch {batch} is over: this is a task that came "
                "too late, or a checkpoint that was put back. Nothing was appended",
                batch=batch,
            )
        note = before.lane(partition, book)
        self._noted = note if before.batch == batch else None
        self._base = self._last = note.last_seqnum
        if self._noted is None:
            self._look()

    def _look(self) -> None:
        """Read which chunks of this batch are there."""
        for _ in range(_TRIES):
            last = [record.seqnum for record in tagged(self._gateway, self._book, self._tag, self._base)]
            first = [record.seqnum for record in tagged(self._gateway, self._book, self._first_tag, self._base + 1)]
            if self._base and last[:1] != [self._base]:
                if self._is_shared:  # the book was deleted, and that write is over: nobody misses it
                    self._base = self._last = 0
                    continue
                raise InvalidArgument(
                    f"the place of this query in book {self._book!r} is gone: was the book deleted? Begin anew, with "
                    "another checkpoint or writeId",
                    book=self._book,
                )
            behind = last[1:] if self._base else last
            if len(first) >= len(behind):  # another attempt may append between the two questions: that is for later
                self._there = list(zip(first, behind, strict=False))
                self._last = behind[-1] if behind else self._base
                return
        raise ConnectionLost(f"book {self._book!r} could not be read as one in {_TRIES} tries")

    @property
    def next_rows(self) -> int | None:
        """How many rows the next chunk must have, because an earlier attempt has appended so many; None: any."""
        there = self._noted.sizes if self._noted is not None else [last - first + 1 for first, last in self._there]
        at = len(self._sizes)
        return there[at] if at < len(there) else None

    def write(self, rows: Rows) -> None:
        """The next chunk of the partition: appended, unless it is there."""
        if self._noted is None:
            for _ in range(_TRIES):
                if len(self._sizes) < len(self._there):
                    self._check_same(*self._there[len(self._sizes)], rows)
                    break
                if self._try(rows):
                    break
                self._look()
            else:
                raise ConnectionLost(
                    f"book {self._book!r} could not be written to in {_TRIES} tries", outcome="unknown"
                )
        self._sizes.append(len(rows.data))
        self._digest = fold(self._digest, rows.digest)

    def _try(self, rows: Rows) -> bool:
        """Append the chunk; False: somebody has, or nobody knows."""
        chunk = rows.chunk(self._book, self._first_tag, self._tag, self._last)
        try:
            answer = self._gateway.append(Append(self._book, chunk))
        except (ConnectionLost, DeadlineExceeded):
            return False
        if answer.rejected:
            return False
        self._last = answer.first_seqnum + len(rows.data) - 1
        self._there.append((answer.first_seqnum, self._last))
        return True

    def _check_same(self, first: int, last: int, rows: Rows) -> None:
        """The chunk that is there has these rows, as far as it has not been trimmed since."""
        pages: list[Found] = []
        start = first
        while start <= last:
            pages.append(self._gateway.find(Read(self._book, None, start, last + 1, _PAGE)))
            start = pages[-1].next_start
            if pages[-1].is_end:
                break
        columns = columns_of([slab for page in pages for slab in page.slabs])
        if columns is None or columns.count < last - first + 1:
            if len(rows.data) == last - first + 1:
                return  # trims have taken some of it: by its length it may be the same
        elif rows_of(columns.data, columns.tags.cast(pa.list_(pa.string()))).digest == rows.digest:
            return
        raise self._differs(f"chunk {len(self._sizes)}")

    def end(self) -> LaneNote:
        """All rows were given: what is to be noted. Refused if an earlier attempt had others, or more."""
        _, partition, book = self._place
        runs = tuple((len(list(group)), rows) for rows, group in groupby(self._sizes))
        if self._noted is not None:
            if (runs, self._digest) != (self._noted.runs, self._noted.digest):
                raise self._differs("the whole")
            return self._noted
        if len(self._sizes) < len(self._there):
            raise self._differs("the end")
        return LaneNote(partition=partition, book=book, runs=runs, digest=self._digest, last_seqnum=self._last)

    def _differs(self, what: str) -> BokiError:
        batch, partition, book = self._place
        return InvalidArgument(
            f"partition {partition} of batch {batch} has other rows than when it was written to book {book!r} before "
            f"({what} differs): exactly once needs the same rows in the same order. Sort within partitions, or cache "
            "what is not deterministic; nothing was appended",
            book=book,
            partition=partition,
            batch=batch,
        )


def lane_tag(write: str, partition: int) -> str:
    """The tag of the last record of each chunk of a partition."""
    return f"{SINK_TAG_PREFIX}{write}:{partition}"


def fold(before: str, digest: str) -> str:
    """The digest of chunks in a row.

    >>> fold(fold("", "a"), "b") != fold(fold("", "b"), "a")
    True
    """
    return blake2b(f"{before}/{digest}".encode(), digest_size=16).hexdigest()


def last_commit(gateway: Gateway, write: str) -> Commit | None:
    """The newest batch of that query that is complete."""
    records = tagged(gateway, LEDGER, write)
    return msgspec.json.decode(records[-1].data, type=Commit) if records else None


def commit(gateway: Gateway, write: str, batch: int, lanes: Sequence[LaneNote]) -> None:
    """The batch is complete. May be done twice."""
    before = last_commit(gateway, write) or Commit(batch=-1, lanes=())
    if before.batch >= batch:
        return
    note = msgspec.json.encode(before.after(batch, lanes))
    for _ in range(_TRIES):
        try:
            answer = gateway.append(Append(LEDGER, encode_chunk(LEDGER, [Group([(note, (write,))])])))
        except (ConnectionLost, DeadlineExceeded):
            continue  # twice the same note does no harm
        gateway.trim_tag(LEDGER, write, answer.first_seqnum)
        return
    raise ConnectionLost(f"the commit could not be noted in book {LEDGER!r} in {_TRIES} tries", outcome="unknown")


def tagged(gateway: Gateway, book: str, tag: str, start: int = 0) -> list[Record]:
    """All records of a tag, as of now."""
    found: list[Record] = []
    while True:
        page = gateway.find(Read(book, tag, start, limit=_PAGE, fresh=not found))
        found += records_of(page)
        if page.is_end:
            return found
        start = page.next_start
