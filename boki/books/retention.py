"""Retention: books that trim themselves by age and size.

What a book keeps is a record of the system book `boki:retention`, so it is as durable and ordered as anything else; the
last record of a book's tag counts. Once in a while the engine folds the news and trims what is over. Ages are measured
from the log's time of each record to this engine's clock, so that quiet books age too; what readers see is decided by
the trim that follows, in the order of the log, alike for all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Protocol

import msgspec

from boki.api.append_gatherer import AppendGatherer
from boki.api.deadline import Caller
from boki.api.logbook import LogSession
from boki.api.port import LogPort
from boki.books.retention_rules import BOOK, Rule, Rules
from boki.errors import BokiError, ConditionFailed
from boki.host.clock import now_us
from boki.libs.fold.follower import Follower, FromTheBeginning
from boki.log.ids import SYSTEM_BOOK_PREFIX
from boki.log.metalog import Positions, merge_positions
from boki.log.operations import BookInfo, Books, ListBooks, SetRetention, TrimBook
from boki.log.record import Expect, Record

_log = logging.getLogger("boki.retention")


class Floors(Protocol):
    """What retention asks of the engine's index: `boki.engine.index.index.Index`."""

    def retention_floor(self, book: str, *, older_than_us: int | None, keep_bytes: int | None) -> int:
        """Return the trim floor of `book` under a rule of age and size."""

    def floor(self, book: str, tag: str | None) -> int:
        """Return the present trim floor of `book`."""


class Retention:
    """The rules, and the task that applies them every `interval_s`. `index` is the engine's own.

    Every engine with the index applies them; who comes second finds nothing to trim.
    """

    def __init__(self, port: LogPort, index: Floors, *, interval_s: float = 5.0) -> None:
        self._port = port
        self._index = index
        self._interval_s = interval_s
        self._caller = Caller(is_runtime=True)
        self._book = LogSession(port, AppendGatherer(port), self._caller).logbook(BOOK)
        self._source = FromTheBeginning(Rules, _rule)
        self._follower = Follower(self._source, None)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the rules, and begin to apply them."""
        await self._fold()
        self._task = asyncio.create_task(self._apply_for_ever(), name="retention")

    async def stop(self) -> None:
        """Stop applying rules."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    @property
    def positions(self) -> Positions:
        """What the rules have been read up to: who waits for it sees them all."""
        return self._caller.positions

    async def catch_up(self, positions: Positions) -> None:
        """Know the rules that a caller with these positions has seen, whichever engine set them."""
        merge_positions(self._caller.positions, positions)
        await self._fold()

    async def set(self, operation: SetRetention) -> None:
        """Keep the rule; durable when it returns. It may be set again without harm."""
        rule = Rule(operation.book, operation.age_s, operation.size_bytes)
        await self._book.append(msgspec.json.encode(rule), tags=[operation.book])
        await self._fold()

    async def lift(self, book: str, positions: Positions) -> bool:
        """Lift the rule of a book that is to be deleted: one of the same name begins without. Whether it had one.

        A rule that is set at the same time is for the book that follows, and stays.
        """
        merge_positions(self._caller.positions, positions)
        last = await self._book.check_tail(book, fresh=True)
        if last is None or _rule(last).is_empty:
            return False
        with contextlib.suppress(ConditionFailed):
            await self._book.append(msgspec.json.encode(Rule(book)), tags=[book], when=Expect(book, last.seqnum))
        return True

    def describe(self, books: Books) -> Books:
        """The books with their rules."""
        return Books(tuple(self._described(info) for info in books.books))

    def _described(self, info: BookInfo) -> BookInfo:
        rule = self._source.fold.by_book.get(info.name)
        if rule is None:
            return info
        return msgspec.structs.replace(info, retention_age_s=rule.age_s, retention_size_bytes=rule.size_bytes)

    async def _fold(self) -> dict[str, Rule]:
        await self._follower.catch_up(self._book)
        return self._source.fold.by_book

    async def _apply_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.apply()
            except BokiError as error:
                _log.warning("retention will be applied later: %s", error)
            except Exception:  # noqa: BLE001 - one bad round must not end retention permanently
                _log.exception("retention failed, and will be tried again")

    async def apply(self) -> None:
        """Trim every book with a rule down to it, once."""
        for rule in list((await self._fold()).values()):
            older_than_us = None if rule.age_s is None else now_us() - int(rule.age_s * 1_000_000)
            index = self._index
            floor = index.retention_floor(rule.book, older_than_us=older_than_us, keep_bytes=rule.size_bytes)
            if floor > index.floor(rule.book, None):
                await self._port.request(TrimBook(rule.book, floor), {}, 30.0)


def _rule(record: Record) -> Rule:
    return msgspec.json.decode(record.data, type=Rule)


async def list_books(port: LogPort, operation: ListBooks, positions: Positions, timeout_s: float) -> Books:
    """Books without those of the runtime itself, unless their prefix was asked for."""
    found: list[BookInfo] = []
    shows_system = operation.prefix.startswith(SYSTEM_BOOK_PREFIX)
    after = operation.after
    while True:
        page = await port.request(ListBooks(operation.prefix, after, operation.limit), positions, timeout_s)
        assert isinstance(page, Books)
        found += [info for info in page.books if shows_system or not info.name.startswith(SYSTEM_BOOK_PREFIX)]
        if len(found) >= operation.limit or not page.books:
            return Books(tuple(found[: operation.limit]))
        after = page.books[-1].name
