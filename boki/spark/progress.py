"""How far a pipeline has come, as its progress book says it.

Each batch is a record (`Done`), behind records with what each of its books has had since the beginning (`Part`), this
many
 books each that a record stays small. Once twice as many parts stand behind each other as all books fill, a batch
repeats all books, and what lies before is trimmed: so the book, and what a reader goes through, grow with the number of
LogBooks and not with time. A part may be there twice, because a run was killed between its appends: it says the same.

The book also has the id of each lake that was ever begun with it (`register`): some bytes, permanently, by which a lake
of another system is told from one of this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, TypeVar

import msgspec

from boki.api.log_calls import records_of
from boki.errors import Unavailable
from boki.log.operations import Read
from boki.spark.claim import Claim
from boki.spark.gateway import Gateway

DONE_TAG: Final = "!pipeline:"
PARTS_TAG: Final = "!pipeline-books:"
LAKES_TAG: Final = "!ingest-lake:"
BOOKS_A_PART: Final = 200
_PARTS_AN_APPEND: Final = 16
KEPT: Final = 1000
"""This many batches are remembered, at least."""
_PAGE: Final = 1000
_TRIES: Final = 5

T = TypeVar("T")


class BookProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Of one book, in a batch or since the pipeline began."""

    records: int = 0
    dead: int = 0
    last_seqnum: int = 0
    last_time_us: int = 0

    def plus(self, other: BookProgress) -> BookProgress:
        """Both together.

        >>> BookProgress(records=2, last_seqnum=5).plus(BookProgress(records=1, dead=1, last_seqnum=9)).records
        3
        """
        return BookProgress(
            records=self.records + other.records,
            dead=self.dead + other.dead,
            last_seqnum=max(self.last_seqnum, other.last_seqnum),
            last_time_us=max(self.last_time_us, other.last_time_us),
        )


def added(known: Mapping[str, BookProgress], more: Mapping[str, BookProgress]) -> dict[str, BookProgress]:
    """Of the books that have more, both together.

    >>> added({"a": BookProgress(records=1), "b": BookProgress()}, {"a": BookProgress(records=2)})["a"].records
    3
    """
    nothing = BookProgress()
    return {name: known.get(name, nothing).plus(book) for name, book in more.items()}


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Which batch it is, so that another one is never taken for it."""

    query: str
    """Spark's id of the query, which its checkpoint keeps."""
    number: int
    end: str
    """A digest of where it ends."""
    position: dict[str, Any] = {}
    """Where it ends, as the form of `boki.spark.offsets` without books; empty if it is not known."""

    @staticmethod
    def of(query: str, number: int, end: str) -> Batch:
        """The batch that ends there, as the checkpoint's text says it.

        >>> Batch.of("q", 7, '{"below": "5", "books": {}}').position
        {'below': '5'}
        """
        try:
            value = msgspec.json.decode(end)
        except msgspec.DecodeError:
            value = None
        position = {key: value[key] for key in ("logs", "below") if key in value} if isinstance(value, dict) else {}
        return Batch(
            query=query, number=number, end=blake2b(end.encode(), digest_size=16).hexdigest(), position=position
        )


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """A record of the progress book: everything until this batch is in the Parquet."""

    pipeline: str
    batch: Batch
    records: int
    dead: int
    run: str
    since: int
    """The parts of all books stand behind this seqnum, and before this record."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What some books have had since the query began."""

    query: str
    books: dict[str, BookProgress]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    done: Done | None = None
    seqnum: int = 0
    """Of `done`."""
    books: dict[str, BookProgress] = {}
    parts: int = 0
    """How many a reader goes through."""

    def has(self, batch: Batch) -> bool:
        """Whether that very batch is the last one."""
        return self.done is not None and self.done.batch == batch

    def number(self, query: str | None) -> int:
        """The last batch of that query; -1 if there is none."""
        return self.done.batch.number if self.done is not None and self.done.batch.query == query else -1


def register(claim: Claim, lake: str) -> None:
    """Write the lake's id into the progress book. Before the lake has a checkpoint: see `is_registered`."""
    claim.append([(lake.encode(), (LAKES_TAG + claim.pipeline,))], f"lake:{lake}")


def is_registered(claim: Claim, lake: str) -> bool:
    """Whether the progress book knows the lake: else the lake's checkpoint is of another system, or progress book."""
    tag, start = LAKES_TAG + claim.pipeline, 0
    while True:
        found = claim.gateway.find(Read(claim.book, tag, start, limit=_PAGE, fresh=True))
        if any(record.data == lake.encode() for record in records_of(found)):
            return True
        if found.is_end:
            return False
        start = found.next_start


def read_progress(gateway: Gateway, book: str, pipeline: str) -> Progress:
    """What the book says now."""
    for _ in range(_TRIES):
        last = records_of(gateway.find(Read(book, DONE_TAG + pipeline, backward=True, fresh=True)))
        if not last:
            return Progress()
        done = msgspec.json.decode(last[0].data, type=Done)
        books: dict[str, BookProgress] = {}
        parts, at = 0, done.since + 1
        while True:
            found = gateway.find(Read(book, PARTS_TAG + pipeline, at, last[0].seqnum, _PAGE))
            if found.first_seqnum > done.since + 1:
                break  # a newer batch has repeated all books, and these were trimmed
            for record in records_of(found):
                part = msgspec.json.decode(record.data, type=Part)
                if part.query == done.batch.query:
                    books |= part.books
                parts += 1
            if found.is_end:
                return Progress(done=done, seqnum=last[0].seqnum, books=books, parts=parts)
            at = found.next_start
    raise Unavailable(f"book {book!r} is trimmed faster than it can be read; try again", retryable=True)


def note(claim: Claim, before: Progress, batch: Batch, books: Mapping[str, BookProgress]) -> Progress:
    """Write that the batch is in the Parquet, with what it had of each book. A new query begins at nothing."""
    is_new = before.done is None or before.done.batch.query != batch.query
    known = {} if is_new else before.books
    touched = added(known, books)
    together = known | touched
    is_whole = is_new or before.parts + _count(touched) > 2 * _count(together)
    written = together if is_whole else touched
    since = before.seqnum if is_whole or before.done is None else before.done.since
    done = Done(
        pipeline=claim.pipeline,
        batch=batch,
        records=sum(book.records for book in books.values()),
        dead=sum(book.dead for book in books.values()),
        run=claim.run.id,
        since=since,
    )
    parts = [
        (msgspec.json.encode(Part(query=batch.query, books=dict(some))), (PARTS_TAG + claim.pipeline,))
        for some in _in_pieces(list(written.items()), BOOKS_A_PART)
    ]
    records = [*parts, (msgspec.json.encode(done), (DONE_TAG + claim.pipeline,))]
    seqnums: list[int] = []
    for turn, some in enumerate(_in_pieces(records, _PARTS_AN_APPEND)):
        seqnums += claim.append(some, f"{batch.query}:{batch.number}:{turn}")
    if is_whole and before.done is not None:
        claim.gateway.trim_tag(claim.book, PARTS_TAG + claim.pipeline, before.done.since + 1)
    _forget(claim, batch.number)
    parts_behind = len(parts) + (0 if is_whole else before.parts)
    return Progress(done=done, seqnum=seqnums[-1], books=together, parts=parts_behind)


def regain(claim: Claim, before: Progress, batch: Batch, books: Mapping[str, BookProgress]) -> Progress:
    """Write again how far a query is, from what its batches hold: it was put aside for another one, or its lake was put
    back as it was earlier.
    """
    if before.done is None:
        raise ValueError("there is nothing to put aside")
    done = msgspec.structs.replace(before.done, batch=batch)
    empty = Progress(done=done, seqnum=before.seqnum, books=dict(books), parts=2 * _count(books) + 1)
    return note(claim, empty, batch, {})


def _in_pieces(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (values[at : at + size] for at in range(0, len(values), size))


def _count(books: Mapping[str, BookProgress]) -> int:
    """The parts that they fill."""
    return -(-len(books) // BOOKS_A_PART)


def _forget(claim: Claim, number: int) -> None:
    """Every so often trim the batches that are long done."""
    if number % KEPT:
        return
    tag = DONE_TAG + claim.pipeline
    found = claim.gateway.find(Read(claim.book, tag, limit=KEPT, backward=True))
    seqnums = [record.seqnum for record in records_of(found)]
    if len(seqnums) == KEPT:
        claim.gateway.trim_tag(claim.book, tag, min(seqnums))
