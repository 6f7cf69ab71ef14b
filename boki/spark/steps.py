"""Steps of Spark's sinks: bodies as in `boki.libs.fold.steps`, whose operations are the log's own.

Rows travel as whole chunks, and lanes compare columns as they are stored, so operations here are those of
`boki.log.operations`, carried out by a gateway, and no LogBook makes an object of each record.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import sleep
from typing import Final, TypeVar

from boki.api.log_calls import first_record, records_of
from boki.errors import ConnectionLost, CorruptData, DeadlineExceeded
from boki.libs.fold import steps as fold_steps
from boki.libs.fold.steps import Pause, drive
from boki.log.chunk import Group, encode_chunk
from boki.log.ids import MAX_SEQNUM
from boki.log.operations import Answer, Append, Appended, Found, Operation, Read, TrimBook
from boki.log.record import Expect, Record
from boki.retry import Backoff
from boki.spark.gateway import Gateway

TRIES: Final = 30
"""Maximum number of tries of what is lost, or in which others are faster: about a minute of pauses."""
_BACKOFF: Final = Backoff(longest_s=2.5, jitter=0.0, tries=TRIES + 1)
_PAGE: Final = 1000
_AT_ONCE: Final = 8
"""Trims that are on their way together."""

T = TypeVar("T")

Step = Operation | Pause | tuple[TrimBook, ...]
Steps = Generator[Step, Answer | None, T]


def run(gateway: Gateway, steps: Steps[T]) -> T:
    """Carry the steps out; what they come to."""

    def carry_out(step: Step) -> Answer | None:
        if isinstance(step, Pause):
            sleep(step.seconds)
            return None
        if not isinstance(step, tuple):
            return gateway.ask(step, is_repeatable=not isinstance(step, Append))
        if len(step) <= _AT_ONCE // 2:
            for trim in step:
                gateway.ask(trim)
        else:
            with ThreadPoolExecutor(_AT_ONCE) as threads:
                list(threads.map(gateway.ask, step))
        return None

    return drive(steps, carry_out)


def again(tries: int, what: str) -> Steps[None]:
    """Pause before the next try, longer each time; after `TRIES` of them say what could not be done."""
    failure = (
        f"{what} in {TRIES} tries: no answer came, or others were always faster. Look at the system with "
        "`boki status`, and run this again: with its writeId, or its checkpoint, it goes on from what is there; "
        "what has neither of them appends all its rows once more"
    )
    yield from fold_steps.again(tries + 1, _BACKOFF, failure)


def append(operation: Append) -> Steps[int | None]:
    """The first seqnum of what was appended; None: it was rejected, or that is unknown."""
    try:
        answer = yield operation
    except (ConnectionLost, DeadlineExceeded):
        return None
    assert isinstance(answer, Appended)
    return None if answer.rejected else answer.first_seqnum


def append_record(book: str, data: bytes, tags: Sequence[str], when: Sequence[Expect] = ()) -> Steps[int | None]:
    """Append one record, on these conditions; see `append`."""
    return (yield from append(Append(book, encode_chunk(book, [Group([(data, tags)], when)]))))


def page(read: Read) -> Steps[Found]:
    """The answer to a read, behind which there is another page or nothing: whoever reads on comes to an end."""
    answer = yield read
    assert isinstance(answer, Found)
    if not (answer.is_end or read.backward or read.start < answer.next_start):
        raise CorruptData(f"a page of book {read.book!r} from {read.start} goes on at {answer.next_start}")
    return answer


def tagged(book: str, tag: str, start: int = 0, *, fresh: bool = True) -> Steps[list[Record]]:
    """All records of a tag, as of now."""
    found: list[Record] = []
    while True:
        answer = yield from page(Read(book, tag, start, limit=_PAGE, fresh=fresh and not found))
        found += records_of(answer)
        if answer.is_end:
            return found
        start = answer.next_start


def last_of(book: str, tag: str) -> Steps[int]:
    """The last record of a tag as of now; 0: there is none."""
    record = first_record((yield from page(Read(book, tag, 0, MAX_SEQNUM, backward=True, fresh=True))))
    return record.seqnum if record is not None else 0
