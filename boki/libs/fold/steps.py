"""Steps: acting on the log as a dialogue of a body that decides with a driver that carries out.

A body is a generator: it yields an operation and is sent the answer, or the error is thrown into it. So one body serves
`async` functions (`run`), plain functions (`run_blocking`), Spark's tasks (`boki.spark.steps`), and tests that carry
out the steps of several bodies in any order, lose answers, and stop one between any two operations.

::

    def count_up(tag: str) -> Steps[int]:
        last = yield from tail(tag)
        number = 1 if last is None else int(last.data) + 1
        yield from append([NewRecord(b"%d" % number, [tag])], when=[Expect(tag, last.seqnum if last else 0)])
        return number

    number = await run(count_up("clicks"), ctx.logbook)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import sleep
from typing import Any, Final, TypeVar, assert_never

import msgspec

from boki import MAX_SEQNUM, BokiError, ConnectionLost, Expect, LogBook, NewRecord, Page, Record, blocking
from boki.retry import Backoff

PAGE_RECORDS: Final = 1_000
_NO_LOCK: Final = nullcontext()

T = TypeVar("T")


class Append(msgspec.Struct, frozen=True):
    """Append all records or none; the answer is their seqnums. `book`: "" is the driver's own, here and below."""

    records: Sequence[NewRecord]
    when: Sequence[Expect] = ()
    key: str | None = None
    book: str = ""


class ReadPage(msgspec.Struct, frozen=True):
    """Read records in ascending order; the answer is a `Page`."""

    tag: str | None
    start: int = 0
    stop: int | None = None
    limit: int = PAGE_RECORDS
    wait_s: float = 0.0
    book: str = ""
    start_time_s: float = 0.0


class Compare(msgspec.Struct, frozen=True):
    """Which of these tags end with another record than the one that is known? The answer is a `Compared`, or None if
    it cannot be told: then read.
    """

    rows: Sequence[tuple[str, int]]
    """Tags, and of each the seqnum of the last record that is known."""
    book: str = ""


class Tail(msgspec.Struct, frozen=True):
    """The last record of a tag up to `max_seqnum`, or None. `fresh`: linearizable, for the very last one only."""

    tag: str | None
    fresh: bool = False
    max_seqnum: int = MAX_SEQNUM
    book: str = ""


class Get(msgspec.Struct, frozen=True):
    """Exactly that record."""

    seqnum: int
    book: str = ""


class SetAuxdata(msgspec.Struct, frozen=True):
    """Cache data beside a record; the answer is None."""

    seqnum: int
    data: bytes
    book: str = ""


class Trim(msgspec.Struct, frozen=True):
    """Remove the records of a tag (None: of the whole book) below `before`; the answer is None."""

    before: int
    tag: str | None
    book: str = ""


class Sync(msgspec.Struct, frozen=True):
    """See whatever was acknowledged to anybody before; the answer is None."""

    book: str = ""


class AskGateway(msgspec.Struct, frozen=True):
    """Ask the gateway that is the way to the log, at a route of the library: only if `session.has_gateway`. The answer
    is the JSON that it answers with, as bytes.
    """

    target: str
    body: bytes
    """JSON."""
    book: str = ""


class Pause(msgspec.Struct, frozen=True):
    """Wait before the next operation; the answer is None."""

    seconds: float


Operation = Append | ReadPage | Compare | Tail | Get | SetAuxdata | Trim | Sync | AskGateway | Pause
Step = Operation | tuple[Operation, ...]
"""A tuple is carried out at once, in any order; its answer is the list of theirs."""
Steps = Generator[Step, Any, T]


async def run(steps: Steps[T], logbook: LogBook, *, pause: Callable[[float], Awaitable[object]] = asyncio.sleep) -> T:
    """Carry the steps out on a LogBook; what they come to. `pause` waits, in seconds."""

    async def carry_out(step: Step) -> Any:
        if isinstance(step, tuple):
            return await asyncio.gather(*map(carry_out, step))
        if isinstance(step, Pause):
            return await pause(step.seconds)
        return await _asked(step, logbook if step.book in ("", logbook.name) else logbook.session.logbook(step.book))

    try:
        step = next(steps)
        while True:
            try:
                answer = await carry_out(step)
            except BokiError as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def _asked(
    operation: Append | ReadPage | Compare | Tail | Get | SetAuxdata | Trim | Sync | AskGateway, book: LogBook
) -> Awaitable[Any]:
    match operation:
        case Append():
            return book.append_many(operation.records, when=tuple(operation.when), key=operation.key)
        case ReadPage(tag, start, stop, limit, wait_s, _, start_time_s):
            return book.read(tag, start=start, stop=stop, limit=limit, wait_s=wait_s, start_time_s=start_time_s)
        case Compare(rows):
            return book.session.compare(book.name, rows)
        case Tail(tag, fresh, max_seqnum):
            return book.check_tail(tag, fresh=True) if fresh else book.read_prev(tag, max_seqnum=max_seqnum)
        case Get():
            return book.get(operation.seqnum)
        case SetAuxdata(seqnum, data):
            return book.set_auxdata(seqnum, data)
        case Trim():
            return book.trim(operation.before, tag=operation.tag)
        case Sync():
            return book.sync()
        case AskGateway(target, body):
            return book.session.ask_gateway(target, body)
        case _:
            assert_never(operation)


def drive(
    steps: Generator[Any, Any, T], carry_out: Callable[[Any], Any], lock: AbstractContextManager[object] = _NO_LOCK
) -> T:
    """Carry the steps out by a function that blocks; what they come to. `lock` is held while the body decides."""
    try:
        with lock:
            step = next(steps)
        while True:
            try:
                answer = carry_out(step)
            except BokiError as error:
                with lock:
                    step = steps.throw(error)
            else:
                with lock:
                    step = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def run_blocking(
    steps: Steps[T],
    logbook: blocking.LogBook,
    *,
    pause: Callable[[float], object] = sleep,
    lock: AbstractContextManager[object] = _NO_LOCK,
) -> T:
    """Carry the steps out on the LogBook of a plain function; what they come to. `pause` waits, in seconds.

    `lock` is held while the body decides: for bodies of several threads that share what they remember.
    """

    def carry_out(step: Step) -> Any:
        if isinstance(step, tuple):
            return [carry_out(each) for each in step]
        if isinstance(step, Pause):
            return pause(step.seconds)
        book: Any = logbook if step.book in ("", logbook.name) else logbook.session.logbook(step.book)
        return _asked(step, book)  # its methods have the same names and arguments, and return the answer itself

    return drive(steps, carry_out, lock)


# Operations with typed answers


def append(
    records: Iterable[NewRecord], when: Iterable[Expect] = (), key: str | None = None, book: str = ""
) -> Steps[list[int]]:
    """The seqnums of these records, once they are durable."""
    seqnums: list[int] = yield Append(tuple(records), tuple(when), key, book)
    return seqnums


def page(read: ReadPage) -> Steps[Page]:
    """One page."""
    found: Page = yield read
    return found


def tail(tag: str | None, *, fresh: bool = False, max_seqnum: int = MAX_SEQNUM, book: str = "") -> Steps[Record | None]:
    """The last record of a tag, or None."""
    found: Record | None = yield Tail(tag, fresh, max_seqnum, book)
    return found


def get(seqnum: int, book: str = "") -> Steps[Record]:
    """That record."""
    found: Record = yield Get(seqnum, book)
    return found


def read_all(tag: str | None, start: int = 0, stop: int | None = None, book: str = "") -> Steps[list[Record]]:
    """All records of a tag from `start` on, as far as they can be seen now."""
    found: list[Record] = []
    while True:
        read = yield from page(ReadPage(tag, start, stop, book=book))
        found += read.records
        if read.is_end:
            return found
        start = read.next_start


def trim(before: int, tag: str | None, book: str = "") -> Steps[None]:
    """Remove the records of a tag below `before`."""
    yield Trim(before, tag, book)


def again(tries: int, backoff: Backoff, failure: str) -> Generator[Pause, Any, None]:
    """Pause after that many tries of what was lost or decided otherwise; `ConnectionLost` if they are used up.

    `failure` says what could not be done, and what to do next.
    """
    if tries >= backoff.tries:
        raise ConnectionLost(failure, outcome="unknown")
    yield Pause(backoff.pause_s(tries))
