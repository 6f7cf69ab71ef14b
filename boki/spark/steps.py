"""Steps: what sinks do to the log, as a dialogue of a core that decides with a shell that carries out.

A core is a generator: it yields an operation and is sent the answer, or the error is thrown into it. So tests carry out
the steps of several tasks in any order, lose answers and wait for nothing; `run` does it for real.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import sleep
from typing import Final, TypeVar

import msgspec

from boki.errors import BokiError, ConnectionLost, CorruptData, DeadlineExceeded
from boki.log.chunk import Group, encode_chunk
from boki.log.ids import MAX_SEQNUM
from boki.log.operations import Answer, Append, Appended, Found, Operation, Read, TrimBook
from boki.log.record import Expect, Record
from boki.runtime.log_calls import first_record, records_of
from boki.spark.gateway import Gateway

TRIES: Final = 30
"""How often something is tried whose answer is lost, or in which others are faster: about a minute of pauses."""
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.5
_PAGE: Final = 1000
_AT_ONCE: Final = 8
"""So many trims are on their way together."""

T = TypeVar("T")


class Pause(msgspec.Struct, frozen=True):
    """Wait so long before going on."""

    seconds: float


Step = Operation | Pause | tuple[TrimBook, ...]
Steps = Generator[Step, Answer | None, T]


def run(gateway: Gateway, steps: Steps[T]) -> T:
    """Carry the steps out; what they come to."""
    try:
        step = next(steps)
        while True:
            try:
                answer = _carry_out(gateway, step)
            except BokiError as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def _carry_out(gateway: Gateway, step: Step) -> Answer | None:
    if isinstance(step, Pause):
        sleep(step.seconds)
        return None
    if isinstance(step, tuple):
        if len(step) <= _AT_ONCE // 2:
            for trim in step:
                gateway.ask(trim)
        else:
            with ThreadPoolExecutor(_AT_ONCE) as threads:
                list(threads.map(gateway.ask, step))
        return None
    return gateway.ask(step, is_repeatable=not isinstance(step, Append))


def again(tries: int, what: str) -> Steps[None]:
    """Wait before the next try, longer each time; after `TRIES` of them say what could not be done."""
    if tries >= TRIES:
        raise ConnectionLost(
            f"{what} in {TRIES} tries: no answer came, or others were always faster. Look at the system with "
            "`boki status`, and run this again: with its writeId, or its checkpoint, it goes on from what is there; "
            "what has neither of them appends all its rows once more",
            outcome="unknown",
        )
    yield Pause(min(_FIRST_PAUSE_S * 2**tries, _LONGEST_PAUSE_S))


def append(operation: Append) -> Steps[int | None]:
    """The first seqnum of what was appended; None: it was rejected, or nobody knows."""
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
