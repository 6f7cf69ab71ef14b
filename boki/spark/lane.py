"""A lane: how the rows of one partition get into one book exactly once, whatever is killed and started again.

Rows are appended in chunks. The last record of each chunk carries the lane's own tag, and a chunk is appended on
condition that the one before it is still the last under that tag. So the chunks of a lane form a chain, to which of two
tasks that write the same partition only one can add the next link. The other takes as many rows for its own next link,
sees by the rows themselves whether they are the same, and continues behind it, or refuses. (A link may be short: if
what feeds a task is killed, the task sees the end of its rows before Spark ends the task itself.)

Before a batch appends to a lane, it is noted in the ledger (`boki.spark.ledger`) where the lane stands, and the first
such note counts for all tasks: what stands behind that belongs to the batch. When Spark commits the batch, the driver
notes what each lane got (`boki.spark.commit`); a batch that comes again after that adds nothing, or is refused if its
rows are others. A task that comes too late finds that its lane has gone on, reads that its batch is over, and refuses.

A query has the same lanes in all its batches: two tags for each of its partitions and books, and one in the ledger. Of
its links only the last one stays, so that a late task finds its place taken. (Those of a write that has a name, and so
no other batch, go eventually: `boki.spark.finished`.)
"""

from __future__ import annotations

from itertools import count, groupby
from typing import Final

import pyarrow as pa

from boki.errors import BokiError, InvalidArgument, TooLarge
from boki.log.operations import Append, Found, Read
from boki.spark.columns import SINK_TAG_PREFIX, columns_of
from boki.spark.ledger import Begun, LaneNote, Ledger
from boki.spark.rows import Held, Rows, fold, rows_of
from boki.spark.steps import Steps, again, append, last_of, page, tagged

_PAGE: Final = 1000


class Attempt:
    """One attempt of a task: a partition of a batch of a write."""

    def __init__(self, write: str, batch: int, partition: int) -> None:
        self.write = write
        self.batch = batch
        self.partition = partition
        self.ledger = Ledger(write)
        self.is_repeated = False
        """The batch was complete before this attempt began: it only checks whether its rows are the same."""

    def start(self) -> Steps[None]:
        """Find out how the write stands."""
        yield from self.ledger.catch_up()
        if self.ledger.newest > self.batch:
            raise too_late(self.ledger, self.batch)
        self.is_repeated = self.ledger.complete == self.batch

    def check(self) -> Steps[None]:
        """`InvalidArgument` if the batch has ended meanwhile."""
        yield from self.ledger.catch_up()
        if self.ledger.newest > self.batch or self.ledger.complete == self.batch or self.ledger.is_failed:
            raise too_late(self.ledger, self.batch)

    def lane(self, book: str) -> Steps[Lane]:
        """The way into a book."""
        lane = Lane(self, book)
        yield from lane.begin()
        return lane


class Lane:
    """One partition of one batch on its way into one book."""

    def __init__(self, attempt: Attempt, book: str) -> None:
        self._attempt = attempt
        self._book = book
        self._place = attempt.partition, book
        self._tag = lane_tag(attempt.write, attempt.partition)
        self._first_tag = first_tag(self._tag)
        self._sizes: list[int] = []
        """The rows of each chunk that has been given."""
        self._digest = ""
        self._base = self._last = 0
        self._there: list[tuple[int, int]] = []
        """First and last seqnum of each chunk of this batch in the book."""
        self._tries = 0
        self._has_waited = False
        """For rows, since the ledger was read."""
        self._most_rows: int | None = None
        """What this system's limits allow, if they are narrower than usual."""
        self._noted = LaneNote(partition=attempt.partition, book=book)
        """Of a batch that is repeated: what it got."""

    def begin(self) -> Steps[None]:
        """Find the lane's base and, if an earlier attempt has been here, its chunks."""
        attempt, ledger = self._attempt, self._attempt.ledger
        if attempt.is_repeated:
            ledger.check_book(attempt.write, self._book)
            self._noted = ledger.lanes.get(self._place, self._noted)
            return
        if is_new := self._place not in ledger.bases:
            base = yield from last_of(self._book, self._tag)
            note = Begun(batch=attempt.batch, partition=attempt.partition, book=self._book, base=base)
            yield from ledger.note_begun(note)
            yield from attempt.check()
        self._base = self._last = ledger.bases[self._place]
        if not is_new:
            yield from self._look()

    def drain(self, held: Held, *, is_last: bool) -> Steps[None]:
        """Write what is held, chunk by chunk; what is not enough for one is left, unless no rows come any more."""
        while (rows := held.peek(self._next_rows, self._most_rows, is_last=is_last)) is not None:
            if (yield from self._put(rows)):
                held.drop(len(rows.data))
        self._has_waited = True

    @property
    def _next_rows(self) -> int | None:
        """How many rows the next chunk must have, because an earlier attempt has appended this many; None: any."""
        at = len(self._sizes)
        if self._attempt.is_repeated:
            sizes = self._noted.sizes
            return sizes[at] if at < len(sizes) else None
        if at < len(self._there):
            first, last = self._there[at]
            return last - first + 1
        return None

    def _put(self, rows: Rows) -> Steps[bool]:
        """The next chunk: appended, unless it is there. False: cut it again, another one may be there now."""
        if not self._attempt.is_repeated:
            if len(self._sizes) < len(self._there):
                yield from self._check_same(*self._there[len(self._sizes)], rows)
            elif not (yield from self._append(rows)):
                return False
        self._tries = 0
        self._sizes.append(len(rows.data))
        self._digest = fold(self._digest, rows.digest)
        return True

    def _append(self, rows: Rows) -> Steps[bool]:
        """Append the chunk. False: another task has, or that is unknown, or it is too large for this system."""
        if self._has_waited and not self._last:
            yield from self._attempt.check()  # lanes that are cleared look as if nobody had been here
        chunk = rows.chunk(self._book, self._first_tag, self._tag, self._last)
        try:
            first = yield from append(Append(self._book, chunk))
        except TooLarge:
            if len(rows.data) == 1:
                raise
            self._most_rows = len(rows.data) // 2
            return False
        if first is None:
            yield from again(self._tries, f"book {self._book!r} could not be written to")
            self._tries += 1
            yield from self._look()
            return False
        self._last = first + len(rows.data) - 1
        self._there.append((first, self._last))
        return True

    def _look(self) -> Steps[None]:
        """Read which chunks of this batch are there; refused if the batch is over."""
        for tries in count():
            last = [record.seqnum for record in (yield from tagged(self._book, self._tag, self._base))]
            first = [record.seqnum for record in (yield from tagged(self._book, self._first_tag, self._base + 1))]
            yield from self._attempt.check()  # after these: what a complete batch has left is trimmed
            if self._base and last[:1] != [self._base]:
                raise InvalidArgument(
                    f"the place of this query in book {self._book!r} is gone: was the book deleted while it wrote? "
                    "Begin again, with another checkpoint or writeId",
                    book=self._book,
                )
            behind = last[1:] if self._base else last
            if len(first) >= len(behind):  # another attempt may append between the two questions: that is for later
                self._there = list(zip(first, behind, strict=False))
                self._last = behind[-1] if behind else self._base
                return
            yield from again(tries, f"book {self._book!r} could not be read as one")

    def _check_same(self, first: int, last: int, rows: Rows) -> Steps[None]:
        """The chunk that is there has these rows, as far as it has not been trimmed since."""
        pages: list[Found] = []
        start = first
        while start <= last:
            pages.append((yield from page(Read(self._book, None, start, last + 1, _PAGE))))
            start = pages[-1].next_start
            if pages[-1].is_end:
                break
        columns = columns_of([slab for found in pages for slab in found.slabs])
        if columns is None or columns.count < last - first + 1:
            if len(rows.data) == last - first + 1:
                return  # trims have taken some of it: by its length it may be the same
        elif rows_of(columns.data, columns.tags.cast(pa.list_(pa.string()))).digest == rows.digest:
            return
        raise self._differs(f"chunk {len(self._sizes)}")

    def end(self) -> LaneNote:
        """All rows were given: what is to be noted. Refused if an earlier attempt had others, or more."""
        partition, book = self._place
        runs = tuple((len(list(group)), rows) for rows, group in groupby(self._sizes))
        if self._attempt.is_repeated:
            if (runs, self._digest) != (self._noted.runs, self._noted.digest):
                raise self._differs("the whole")
            return self._noted
        if len(self._sizes) < len(self._there):
            raise self._differs("the end")
        return LaneNote(partition=partition, book=book, runs=runs, digest=self._digest, last_seqnum=self._last)

    def _differs(self, what: str) -> BokiError:
        partition, book = self._place
        batch = self._attempt.batch
        return InvalidArgument(
            f"partition {partition} of batch {batch} has other rows than when it was written to book {book!r} before "
            f"({what} differs): exactly once needs the same rows in the same order, in as many partitions. Sort within "
            "partitions, or cache what is not deterministic; this task appended nothing behind that",
            book=book,
            partition=partition,
            batch=batch,
        )


def lane_tag(write: str, partition: int) -> str:
    """The tag of the last record of each chunk of a partition."""
    return f"{SINK_TAG_PREFIX}{write}:{partition}"


def first_tag(tag: str) -> str:
    """The tag of the first record of each chunk of that lane."""
    return f"{tag}:first"


def too_late(ledger: Ledger, batch: int) -> BokiError:
    """The batch is over, and somebody still writes it."""
    how = "failed" if ledger.is_failed else f"batch {ledger.newest} has begun or is complete"
    return InvalidArgument(
        f"batch {batch} of this query is over ({how}): this is a task or a driver that came too late, or a checkpoint "
        "that was put back. Nothing more was appended",
        batch=batch,
    )
