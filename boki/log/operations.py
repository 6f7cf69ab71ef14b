"""The LogBook's operations as values: what a function, a client or a library asks of an engine, and the answers.

One vocabulary for the worker's unix socket, the binary HTTP endpoint, the engine and `MemoryLog`, so that every way
into the log has the same meaning. `boki.api.logbook` turns method calls into these and answers into results.
"""

from __future__ import annotations

from typing import Any

import msgspec

from boki.errors import BokiError, ErrorBody, Outcome
from boki.log.ids import MAX_SEQNUM
from boki.log.metalog import Positions


class Append(msgspec.Struct, frozen=True, array_like=True, tag="append"):
    """Order the records of a chunk (`boki.log.chunk`). → `Appended`"""

    book: str
    chunk: bytes


class Read(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """Records of a tag (of the book, if None) with `start <= seqnum < stop`. → `Found`

    The first `limit` of them in ascending order, or the last `limit` if `backward`. If there is none and `wait_us` is
    positive, the answer waits that long for one. `fresh`: linearizable. `start_time_us`, if positive, raises `start` to
    the first record at or after that time. The answer may hold fewer than `limit`, but none only if there is none.
    """

    book: str
    tag: str | None = None
    start: int = 0
    stop: int = MAX_SEQNUM
    limit: int = 1
    backward: bool = False
    wait_us: int = 0
    fresh: bool = False
    start_time_us: int = 0


class Get(msgspec.Struct, frozen=True, array_like=True, tag="get"):
    """Exactly that record. → `Found` with one record, or `NotFound` or `Trimmed`"""

    book: str
    seqnum: int


class Compare(msgspec.Struct, frozen=True, array_like=True, tag="compare"):
    """Tags of a book, and for each the seqnum of the last record that the caller knows. → `Compared`

    Cheaper than a read of each: most tags of a caller that looks often have no news, and one answer says so for all.
    """

    book: str
    tags: tuple[str, ...]
    lasts: tuple[int, ...]


class TrimBook(msgspec.Struct, frozen=True, array_like=True, tag="trim"):
    """See `boki.log.metalog.Trim`; with `everything` the book is deleted, as a whole: `before` is `MAX_SEQNUM`.

    `forgets`: these tags are trimmed and, if nothing of them is left, forgotten (`boki.log.metalog.ForgetTags`). `tag`
    is the first of them, so that an earlier version, which overlooks the others, trims no more than that one.
    → `Done` once this reader has applied it
    """

    book: str
    before: int
    tag: str | None = None
    everything: bool = False
    forgets: tuple[str, ...] = ()


class SetAuxdata(msgspec.Struct, frozen=True, array_like=True, tag="aux"):
    """Cache `data` beside the record. → `Done`"""

    book: str
    seqnum: int
    data: bytes


class Sync(msgspec.Struct, frozen=True, array_like=True, tag="sync"):
    """Catch up with everything acknowledged before this call. → `Done`, whose positions say how far"""

    book: str


class ListBooks(msgspec.Struct, frozen=True, array_like=True, tag="books"):
    """The names of books that have records, ascending, after `after`. → `Books`"""

    prefix: str = ""
    after: str = ""
    limit: int = 1000


class SetRetention(msgspec.Struct, frozen=True, array_like=True, tag="retain"):
    """Let the book be trimmed by age and size from now on; None lifts a bound. → `Done`"""

    book: str
    age_s: float | None = None
    size_bytes: int | None = None


Operation = Append | Read | Get | Compare | TrimBook | SetAuxdata | Sync | ListBooks | SetRetention


class Rejected(msgspec.Struct, frozen=True, array_like=True):
    """One group of an append that was not appended.

    With `seqnums`, the group's key had been used: those are the records of its first use. Otherwise the condition on
    `tag` failed, whose last record is `actual_seqnum`. If it was a condition on the count, `expected_count` and
    `actual_count` are not negative.
    """

    group: int
    tag: str
    expected_seqnum: int
    actual_seqnum: int
    seqnums: tuple[int, ...] = ()
    expected_count: int = -1
    actual_count: int = -1


class Appended(msgspec.Struct, frozen=True, array_like=True, tag="appended"):
    """The chunk's i-th record has seqnum `first_seqnum + i`, except in the groups that were rejected."""

    first_seqnum: int
    rejected: tuple[Rejected, ...] = ()


class Slab(msgspec.Struct, frozen=True, array_like=True):
    """Records of one cut: a chunk, and the seqnum of each of its records as little-endian 64-bit integers."""

    seqnums: bytes
    time_us: int
    chunk: bytes
    aux: dict[int, bytes] = {}


class Found(msgspec.Struct, frozen=True, array_like=True, tag="found"):
    """Records in ascending order.

    `next_start`: where the next page starts (after a backward read: the first seqnum returned). `first_seqnum`: the
    earliest seqnum that trimming has left in that tag's reach; records below it are gone. `is_end`: there was nothing
    more in the range.
    """

    slabs: tuple[Slab, ...]
    next_start: int
    first_seqnum: int = 0
    is_end: bool = True


class Compared(msgspec.Struct, frozen=True, array_like=True, tag="compared"):
    """`changed`: which of the tags, by their number, end with another record than the caller knows, or with none. The
    others have no other record from that one on and below `next_start`.
    """

    changed: tuple[int, ...]
    next_start: int


class BookInfo(msgspec.Struct, frozen=True, omit_defaults=False):
    """A book as lists show it. `size_bytes` counts payloads since the book's floor, about."""

    name: str
    record_count: int
    first_seqnum: int
    last_seqnum: int
    last_time_us: int
    size_bytes: int
    retention_age_s: float | None = None
    retention_size_bytes: int | None = None


class Books(msgspec.Struct, frozen=True, array_like=True, tag="booklist"):
    """Books by name."""

    books: tuple[BookInfo, ...]


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """It is done."""


class Failure(msgspec.Struct, frozen=True, array_like=True, tag="failure"):
    """The error, to be raised where the operation was called."""

    code: str
    message: str
    outcome: Outcome
    retryable: bool
    details: dict[str, Any] = {}

    @staticmethod
    def of(error: BokiError) -> Failure:
        """The error as a value."""
        return Failure(error.code, error.message, error.outcome, error.retryable, error.details)

    def error(self) -> BokiError:
        """The value as an error, to be raised."""
        return BokiError.from_body(ErrorBody(self.code, self.message, self.outcome, self.retryable, self.details))


Answer = Appended | Found | Compared | Books | Done | Failure


class Request(msgspec.Struct, frozen=True, array_like=True):
    """An operation under way: whom to answer, what its caller has seen, and until when an answer is of use.

    `timeout_us` is what is left, not a time of day, because clocks differ between machines.
    """

    id: int
    positions: Positions
    timeout_us: int
    operation: Operation


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """The answer to the request of that id, and what its caller has seen now."""

    id: int
    positions: Positions
    answer: Answer
