"""A lane: how the rows of one partition get into one book exactly once, whatever is killed and started again.

Every chunk of rows is appended together with a **marker**, a record whose only tag is the lane's own, on condition that
the marker before it is still the tag's last record. So chunks of a lane form a chain, and of two tasks that write the
same partition only one can add the next link; the other sees by its digest whether it is the same link, and goes on
behind it, or refuses.

A chain begins with a marker that is appended under a key, so that it begins once in 24 hours even when nothing of it is
left. When Spark commits the batch, the driver notes in a book of the sinks' own what each lane held, and then trims the
markers, which takes them out of the book altogether. A batch that comes again finds that note: it adds nothing, or is
refused if its rows are others.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import groupby
from typing import Final

import msgspec

from boki.errors import BokiError, ConditionFailed, ConnectionLost, DeadlineExceeded, InvalidArgument
from boki.log.chunk import Group, encode_chunk
from boki.log.operations import Append, Read, Rejected
from boki.log.record import Expect, Record
from boki.runtime.log_calls import records_of
from boki.spark.columns import LEDGER, SINK_TAG_PREFIX
from boki.spark.gateway import Gateway
from boki.spark.rows import Rows

_PAGE: Final = 1000
_TRIES: Final = 20
BEGIN: Final = -1
"""The number of the marker that begins a batch's chain."""


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """What the record before a chunk's rows says."""

    batch: int
    chunk: int
    rows: int = 0
    digest: str = ""


class LaneNote(msgspec.Struct, frozen=True, kw_only=True):
    """What one lane has written in a batch: its chunks, their digests folded, and how far its markers reach."""

    partition: int
    book: str
    runs: tuple[tuple[int, int], ...] = ()
    """How many chunks, of how many rows each, one run after the other."""
    digest: str = ""
    last_seqnum: int = 0

    @property
    def sizes(self) -> list[int]:
        """The rows of each chunk.

        >>> LaneNote(partition=0, book="b", runs=((2, 8192), (1, 7))).sizes
        [8192, 8192, 7]
        """
        return [rows for times, rows in self.runs for _ in range(times)]


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """A record of the ledger: this batch of the query is complete."""

    batch: int
    lanes: tuple[LaneNote, ...]


class Lane:
    """One partition of one batch on its way into one book."""

    def __init__(self, gateway: Gateway, write: str, batch: int, partition: int, book: str) -> None:
        self._gateway = gateway
        self._write = write
        self._batch = batch
        self._partition = partition
        self._book = book
        self._tag = lane_tag(write, partition)
        self._sizes: list[int] = []
        """The rows of each chunk that has been given."""
        self._digest = ""
        self._there: list[Marker] = []
        """The chunks that an earlier attempt has appended."""
        self._last = 0
        self._noted = self._committed()
        if self._noted is None:
            self._begin()

    def _committed(self) -> LaneNote | None:
        """What the ledger says of this lane, if the batch is complete."""
        commit = last_commit(self._gateway, self._write)
        if commit is None or commit.batch < self._batch:
            return None
        if commit.batch > self._batch:
            raise _overtaken(self._batch, commit.batch)
        nothing = LaneNote(partition=self._partition, book=self._book)
        mine = (note for note in commit.lanes if (note.partition, note.book) == (self._partition, self._book))
        return next(mine, nothing)

    def _begin(self) -> None:
        """Find the end of the chain, or begin it."""
        for _ in range(_TRIES):
            if self._look():
                return
            marker = msgspec.json.encode(Marker(batch=self._batch, chunk=BEGIN))
            key = f"spark:{self._write}:{self._partition}:{self._batch}"
            group = Group([(marker, (self._tag,))], (Expect(self._tag, self._last),), key)
            try:
                rejected = self._append(encode_chunk(self._book, [group]))[1]
            except (ConnectionLost, DeadlineExceeded):
                continue
            if rejected is not None and rejected.seqnums and not self._look():
                self._noted = self._committed()
                if self._noted is None:
                    raise InvalidArgument(
                        f"the markers of this write are gone from book {self._book!r}, though it is not complete: was "
                        "the book deleted, or the write ended? Write under another writeId, or with a new checkpoint"
                    )
                return
        raise ConnectionLost(f"book {self._book!r} could not be written to in {_TRIES} tries", outcome="unknown")

    def _look(self) -> bool:
        """Read the chain; whether it is one of this batch."""
        records = _tagged(self._gateway, self._book, self._tag)
        markers = [msgspec.json.decode(record.data, type=Marker) for record in records]
        self._last = records[-1].seqnum if records else 0
        if markers and markers[-1].batch > self._batch:
            raise _overtaken(self._batch, markers[-1].batch)
        mine = [marker for marker in markers if marker.batch == self._batch]
        self._there = [marker for marker in mine if marker.chunk != BEGIN]
        return bool(mine)

    @property
    def next_rows(self) -> int | None:
        """How many rows the next chunk must have, because an earlier attempt has appended so many; None: any."""
        there = self._noted.sizes if self._noted is not None else [marker.rows for marker in self._there]
        at = len(self._sizes)
        return there[at] if at < len(there) else None

    def write(self, rows: Rows) -> None:
        """The next chunk of the partition: appended, unless it is there."""
        digest = rows.digest
        count = len(rows.data)
        if self._noted is None:
            for _ in range(_TRIES):
                if len(self._sizes) < len(self._there):
                    self._check_same(self._there[len(self._sizes)], count, digest)
                    break
                if self._try(rows, digest, count):
                    break
            else:
                raise ConnectionLost(
                    f"book {self._book!r} could not be written to in {_TRIES} tries", outcome="unknown"
                )
        self._sizes.append(count)
        self._digest = fold(self._digest, digest)

    def _try(self, rows: Rows, digest: str, count: int) -> bool:
        """Append the chunk; False: look again, somebody has, or nobody knows."""
        marker = Marker(batch=self._batch, chunk=len(self._sizes), rows=count, digest=digest)
        try:
            first, rejected = self._append(rows.chunk(self._book, msgspec.json.encode(marker), self._tag, self._last))
        except (ConnectionLost, DeadlineExceeded):
            self._look_on()
            return False
        if rejected is not None:
            self._look_on()
            return False
        self._last = first
        self._there.append(marker)
        return True

    def _look_on(self) -> None:
        """The chain has gone on, or not, and must still be there."""
        if not self._look():
            raise ConditionFailed(
                f"another attempt of batch {self._batch} has ended partition {self._partition} of this write to book "
                f"{self._book!r}: nothing was appended twice",
                book=self._book,
                tag=self._tag,
            )

    def _append(self, chunk: bytes) -> tuple[int, Rejected | None]:
        answer = self._gateway.append(Append(self._book, chunk))
        return answer.first_seqnum, answer.rejected[0] if answer.rejected else None

    def _check_same(self, there: Marker, count: int, digest: str) -> None:
        if (there.rows, there.digest) != (count, digest):
            raise _differs(self._batch, self._partition, self._book, f"chunk {there.chunk}")

    def end(self) -> LaneNote:
        """All rows were given: what is to be noted. Refused if an earlier attempt had others, or more."""
        runs = tuple((len(list(group)), rows) for rows, group in groupby(self._sizes))
        note = LaneNote(
            partition=self._partition, book=self._book, runs=runs, digest=self._digest, last_seqnum=self._last
        )
        if self._noted is not None:
            if (note.runs, note.digest) != (self._noted.runs, self._noted.digest):
                raise _differs(self._batch, self._partition, self._book, "the whole")
            return self._noted
        if len(self._sizes) < len(self._there):
            raise _differs(self._batch, self._partition, self._book, "the end")
        return note


def lane_tag(write: str, partition: int) -> str:
    """The tag of the markers of one partition."""
    return f"{SINK_TAG_PREFIX}{write}:{partition}"


def fold(before: str, digest: str) -> str:
    """The digest of chunks in a row.

    >>> fold(fold("", "a"), "b") != fold(fold("", "b"), "a")
    True
    """
    return blake2b(f"{before}/{digest}".encode(), digest_size=16).hexdigest()


def last_commit(gateway: Gateway, write: str) -> Commit | None:
    """The newest batch of that query that is complete."""
    records = _tagged(gateway, LEDGER, write)
    return msgspec.json.decode(records[-1].data, type=Commit) if records else None


def commit(gateway: Gateway, write: str, batch: int, lanes: Sequence[LaneNote], *, is_noted: bool) -> None:
    """The batch is complete: note it, if anybody may ask, and take the markers away. May be done twice."""
    if is_noted:
        known = last_commit(gateway, write)
        if known is None or known.batch < batch:
            data = msgspec.json.encode(Commit(batch=batch, lanes=tuple(lanes)))
            append_noted(gateway, write, data)
    for note in lanes:
        if note.last_seqnum:
            gateway.trim_tag(note.book, lane_tag(write, note.partition), note.last_seqnum + 1)


def append_noted(gateway: Gateway, write: str, data: bytes) -> None:
    """Append to the ledger until it is certain, and leave only the last record of the query."""
    for _ in range(_TRIES):
        try:
            answer = gateway.append(Append(LEDGER, encode_chunk(LEDGER, [Group([(data, (write,))])])))
        except (ConnectionLost, DeadlineExceeded):
            continue  # twice the same note does no harm
        gateway.trim_tag(LEDGER, write, answer.first_seqnum)
        return
    raise ConnectionLost(f"the commit could not be noted in book {LEDGER!r} in {_TRIES} tries", outcome="unknown")


def _tagged(gateway: Gateway, book: str, tag: str) -> list[Record]:
    """All records of a tag, as of now."""
    found: list[Record] = []
    start = 0
    while True:
        page = gateway.find(Read(book, tag, start, limit=_PAGE, fresh=not found))
        found += records_of(page)
        if page.is_end:
            return found
        start = page.next_start


def _differs(batch: int, partition: int, book: str, what: str) -> BokiError:
    return InvalidArgument(
        f"partition {partition} of batch {batch} has other rows than when it was written to book {book!r} before "
        f"({what} differs): exactly once needs the same rows in the same order. Sort within partitions, or cache what "
        "is not deterministic; nothing was appended",
        book=book,
        partition=partition,
        batch=batch,
    )


def _overtaken(batch: int, newer: int) -> BokiError:
    return InvalidArgument(
        f"batch {newer} of this query has been written, so batch {batch} is over: this is a task that came too late, "
        "or a checkpoint that was put back. Nothing was appended",
        batch=batch,
    )
