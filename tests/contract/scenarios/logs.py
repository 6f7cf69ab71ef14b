"""What a scenario is given, and the few things that many scenarios do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from typing import Any, Protocol

from boki import BokiError, BookInfo, LogBook, Page, Record
from boki.log.operations import TrimBook


class Logs(Protocol):
    """What a `boki.Context` has and a client can be given: a LogBook of one's own, and the others by name."""

    @property
    def logbook(self) -> LogBook: ...

    def logbook_named(self, name: str) -> LogBook: ...

    async def books(self, prefix: str = "", *, after: str = "", limit: int = 1000) -> list[BookInfo]: ...


class Clock(Protocol):
    async def advance(self, seconds: float) -> None: ...


class TimedLogs(Logs, Protocol):
    """Logs in virtual time."""

    clock: Clock


def other(logs: Logs, name: str = "other") -> LogBook:
    """Another book that nobody else uses."""
    return logs.logbook_named(f"{logs.logbook.name}.{name}")


async def read_all(book: LogBook, tag: str | None = None, limit: int = 1000) -> list[Record]:
    """Every record, page by page; no page is empty before the end."""
    records: list[Record] = []
    start = 0
    while True:
        page = await book.read(tag, start=start, limit=limit)
        assert len(page.records) <= limit
        assert page.next_start >= start
        if not page.records:
            return records
        assert page.next_start > page.records[-1].seqnum
        records += page.records
        start = page.next_start


async def data_of(book: LogBook, tag: str | None = None) -> list[bytes]:
    """The data of every record."""
    return [record.data for record in await read_all(book, tag)]


async def forget(book: LogBook, before: int, *tags: str) -> None:
    """`boki.extending.forget_tags`, of either kind of LogBook."""
    await book.session.ask(TrimBook(book.name, before, tags[0], forgets=tags))


async def take(records: AsyncIterator[Record], count: int) -> list[Record]:
    """The next `count` records of a subscription."""
    taken: list[Record] = []
    async for record in records:
        taken.append(record)
        if len(taken) == count:
            break
    return taken


async def take_pages(pages: AsyncIterator[Page], count: int) -> list[Record]:
    """Records of whole pages until there are `count` of them; no page is empty."""
    taken: list[Record] = []
    async for page in pages:
        assert page.records
        assert page.next_start > page.records[-1].seqnum
        taken += page.records
        if len(taken) >= count:
            break
    return taken


async def error_of(call: Coroutine[Any, Any, Any]) -> BokiError:
    """The error that the call must raise."""
    try:
        result = await call
    except BokiError as error:
        return error
    raise AssertionError(f"no error, but {result!r:.200}")
