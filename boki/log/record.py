"""A record as a reader sees it, and the page that bulk reads return."""

from __future__ import annotations

from typing import Any

import msgspec

from boki.errors import InvalidArgument


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record of a LogBook.

    `time` is the log's own, in microseconds since the epoch: the time of the cut that ordered the record. It never goes
    back within a book. `auxdata` is a cache that anybody may have set or lost; never rely on it.
    """

    seqnum: int
    tags: tuple[str, ...]
    data: bytes
    auxdata: bytes | None
    time: int

    @property
    def next_seqnum(self) -> int:
        """Where to continue reading after this record."""
        return self.seqnum + 1

    def json(self) -> Any:
        """The data, decoded as JSON; `InvalidArgument` if it is not JSON."""
        try:
            return msgspec.json.decode(self.data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidArgument(f"record {self.seqnum} does not hold JSON: {error}") from None


class Page(msgspec.Struct, frozen=True):
    """Some records in order, and where the next page starts. Never empty before the end.

    `first_seqnum`: trims have taken away what lay below it (0: nothing), so a reader that stood below it has missed it.
    `is_end`: there was nothing more in the range, so this reader has now seen all of it that stands below `next_start`,
    which lies at the end of the log as the reader knows it, and never between two records of one append.
    """

    records: list[Record]
    next_start: int
    first_seqnum: int = 0
    is_end: bool = False


class Expect(msgspec.Struct, frozen=True, array_like=True):
    """A condition of an append, decided at the append's own place in the order. Give exactly one of the two numbers.

    `last_seqnum`: the last record of `tag` in this book is this one (0: there is none). `count`: this many records of
    `tag` have ever been appended to this book. Trims do not lower a count, so a count needs a tag that outlives trims:
    one that begins with ``!``. With it a writer may have several appends in flight that each name their own place
    (Halfmoon, SOSP '23, section 4).
    """

    tag: str
    last_seqnum: int | None = None
    count: int | None = None

    @property
    def number(self) -> int:
        """What it expects as one number, for a column: a count of n is -1 - n."""
        if self.count is not None:
            return -1 - self.count
        assert self.last_seqnum is not None, "a condition is checked where it is made"
        return self.last_seqnum

    @staticmethod
    def of(tag: str, number: int) -> Expect:
        """The condition behind `number`."""
        return Expect(tag, number) if number >= 0 else Expect(tag, count=-1 - number)
