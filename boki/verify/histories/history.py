"""A history: what clients asked, when, and what they were told, and in the end everything that can be read.

It is recorded from outside, by whoever plays the clients: a simulated world, a test with real processes, `boki chaos`.
Nothing in it comes from inside the system. Times are integer microseconds of one clock; on one machine, the monotonic
one. Every payload that is appended must be unique in the history (`payload_name` shortens long ones), except that an
append that is repeated under its key has the same payload each time.

A **session** is one line of operations whose token (`Boki-Position`) is handed on from each to the next; operations of
one session do not overlap. `fork` hands a session's token to a new one (a child call), `join` hands it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from boki.log.record import Expect

_MAX_NAME_BYTES: Final = 64


class Written(msgspec.Struct, frozen=True, array_like=True):
    """A record that a client wants to append. `tags` without the key's own."""

    payload: str
    tags: tuple[str, ...] = ()


class Condition(msgspec.Struct, frozen=True, array_like=True):
    """`when=Expect(tag, last_seqnum)`, or with a `count` that is not negative `when=Expect(tag, count=count)`."""

    tag: str
    last_seqnum: int = 0
    count: int = -1

    @property
    def is_counted(self) -> bool:
        """Whether it names how many records there are, and not the last one."""
        return self.count >= 0

    def expect(self) -> Expect:
        """The condition as the API has it."""
        return Expect(self.tag, count=self.count) if self.is_counted else Expect(self.tag, self.last_seqnum)


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """A record as a reader got it."""

    seqnum: int
    payload: str
    tags: tuple[str, ...] = ()
    time_us: int = 0


# what was asked


class Appending(msgspec.Struct, frozen=True, tag="append"):
    """`append` or `append_many`: all or none, neighbours. → `Ordered` or `Refused`"""

    records: tuple[Written, ...]
    when: tuple[Condition, ...] = ()
    key: str | None = None


class Reading(msgspec.Struct, frozen=True, tag="read"):
    """Records with `start <= seqnum < stop`, the first `limit` or, if `backward`, the last. → `Shown` or `Refused`

    `since_us`, if positive: only those that were ordered at or after that time of the log. `wait_us`: how long the
    answer may wait for a record.
    """

    tag: str | None = None
    start: int = 0
    stop: int = 1 << 63
    limit: int = 1
    backward: bool = False
    fresh: bool = False
    since_us: int = 0
    wait_us: int = 0


class Getting(msgspec.Struct, frozen=True, tag="get"):
    """Exactly that record. → `Shown` or `Refused`"""

    seqnum: int


class Trimming(msgspec.Struct, frozen=True, tag="trim"):
    """Records of the tag (of the book, if None) below `before` should go. → `Told` or `Refused`

    `forgets`: if none of the tag is left, it should count from 0 again.
    """

    before: int
    tag: str | None = None
    everything: bool = False
    forgets: bool = False


class Syncing(msgspec.Struct, frozen=True, tag="sync"):
    """What anybody had acknowledged should be seen from now on. → `Told` or `Refused`"""


Request = Appending | Reading | Getting | Trimming | Syncing

# what was told


class Ordered(msgspec.Struct, frozen=True, tag="ordered"):
    """The append's records, in order. Of a key used before: those of its first use."""

    seqnums: tuple[int, ...]


class Shown(msgspec.Struct, frozen=True, tag="shown"):
    """Records in ascending order.

    `is_end`: there is nothing more in the range. Else, forwards, nothing but these is in `start` until `next_start`;
    backwards, nothing but these is in `next_start` until `stop`. `first_seqnum`: trims have taken what was below; None
    if that was not written down.
    """

    records: tuple[Seen, ...]
    next_start: int = 0
    is_end: bool = True
    first_seqnum: int | None = None


class Told(msgspec.Struct, frozen=True, tag="told"):
    """It is done."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """An error. `outcome` as in `boki.errors`; of a condition that failed, `actual_seqnum` or `actual_count`."""

    code: str
    outcome: str
    actual_seqnum: int = 0
    actual_count: int = -1


Result = Ordered | Shown | Told | Refused

# the rows of a history


class Call(msgspec.Struct, tag="call"):
    """One operation. Without a `result` its client was lost or still waits: it may have happened.

    `needs` is the token that went with it, `positions` what came back: per log, metalog positions that grow.
    """

    session: str
    book: str
    request: Request
    start_us: int
    deadline_us: int
    end_us: int = 0
    result: Result | None = None
    needs: Mapping[int, int] = {}
    positions: Mapping[int, int] = {}
    is_abandoned: bool = False
    """The client was killed; nobody is owed an answer."""

    @property
    def is_impossible(self) -> bool:
        """Whether it is certain that it did not happen."""
        return isinstance(self.result, Refused) and self.result.outcome == "not_applied"


class Fork(msgspec.Struct, frozen=True, tag="fork"):
    """`child` begins with what `parent` has seen now."""

    parent: str
    child: str
    at_us: int


class Join(msgspec.Struct, frozen=True, tag="join"):
    """`parent` has now seen what `child` has."""

    child: str
    parent: str
    at_us: int


class Readout(msgspec.Struct, frozen=True, tag="readout"):
    """All that one reader could read of a book, or of one of its tags, in the end, when every fault was fixed."""

    reader: str
    book: str
    at_us: int
    records: tuple[Seen, ...]
    tag: str | None = None

    @property
    def row(self) -> str:
        """What was read, for a person."""
        return self.book if self.tag is None else f"{self.tag} in {self.book}"


Row = Call | Fork | Join | Readout

_encoder: Final = msgspec.json.Encoder()
_decoder: Final[msgspec.json.Decoder[Row]] = msgspec.json.Decoder(Row, strict=False)


class History:
    """The rows, in the order in which they happened: a call stands where it began."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.rows: list[Row] = list(rows)

    def begin(
        self,
        session: str,
        book: str,
        request: Request,
        now_us: int,
        deadline_us: int,
        needs: Mapping[int, int] | None = None,
    ) -> Call:
        """Note a call that is about to be made. Pass it to `end` when it has been answered."""
        call = Call(session, book, request, now_us, deadline_us, needs=dict(needs or {}))
        self.rows.append(call)
        return call

    @staticmethod
    def end(call: Call, result: Result, now_us: int, positions: Mapping[int, int] | None = None) -> None:
        """Note how a call ended: the first moment at which its client knows."""
        call.result, call.end_us, call.positions = result, now_us, dict(positions or {})

    def fork(self, parent: str, child: str, now_us: int) -> None:
        """A child call begins with its parent's token."""
        self.rows.append(Fork(parent, child, now_us))

    def join(self, child: str, parent: str, now_us: int) -> None:
        """A parent takes over its child's token."""
        self.rows.append(Join(child, parent, now_us))

    def read_out(self, reader: str, book: str, now_us: int, records: Sequence[Seen], tag: str | None = None) -> None:
        """Note all that a reader found in a book, or of a tag in it, in the end."""
        self.rows.append(Readout(reader, book, now_us, tuple(records), tag))

    @property
    def calls(self) -> list[Call]:
        """All calls, in the order in which they began."""
        return [row for row in self.rows if isinstance(row, Call)]

    def to_lines(self) -> Iterator[bytes]:
        """JSON, one row a line, without line ends."""
        return map(_encoder.encode, self.rows)

    @staticmethod
    def from_lines(lines: Iterable[bytes | str]) -> History:
        """The history behind `to_lines`; `msgspec.MsgspecError` if a line is none of it."""
        return History(_decoder.decode(line) for line in lines if line.strip())


def payload_name(data: bytes) -> str:
    """How a payload stands in a history: its text if it is short, else a beginning and a digest of all its bytes.

    >>> payload_name(b"c1-17")
    'c1-17'
    """
    if len(data) <= _MAX_NAME_BYTES:
        return data.decode("utf-8", "backslashreplace")
    return f"{data[:16].decode('utf-8', 'backslashreplace')}~{blake2b(data, digest_size=16).hexdigest()}"
