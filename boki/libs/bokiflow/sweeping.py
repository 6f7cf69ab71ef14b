"""Trims what ended workflows have left: their journals and inboxes, a time after their end.

The last journal record of a workflow has a tag that says for how long its history is kept. Where workflows end, the
records of that tag are looked at once in a while, beside the calls. Of a workflow that was begun again since, nothing
is trimmed before its own end is old enough. Several processes may do the same at once: a trim that comes second does
nothing.

**Two ages.** What ended `keep_s` ago is trimmed. The log still knows then how many records the journal has had, so a
late append of an execution that was cut off is refused. What ended `limits.key_window_s` ago, and `keep_s` ago, is
forgotten: nothing of the workflow is left in the log, and nothing of it costs memory or disk. By then no append of it
can be under way any more. That is as much as idempotency keys promise: after that time they are forgotten, too. Then
the records of the first tag are trimmed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from boki import BokiError, ConditionFailed, Context, LogBook, Record
from boki.extending import ended_before, ends_of, forget_tags
from boki.libs.bokiflow.clocks import clock_of
from boki.libs.bokiflow.records import (
    Began,
    Entry,
    encode_entry,
    ended_tag,
    inbox_tag,
    journal_tag,
    never,
    run_of,
    updates_tag,
)
from boki.libs.fold.registry import Tasks
from boki.libs.fold.retrying import until_answered
from boki.retry import Backoff

_log = logging.getLogger("boki.libs")

T = TypeVar("T")

_SHARE: Final = 10
"""A look is due after this part of the time."""
_LEAST_US: Final = 1_000_000
_MOST_US: Final = 60_000_000
_PAGE: Final = 200
_AT_ONCE: Final = 100
_TRIES: Final = Backoff(tries=5)


def kept_s(ctx: Context, keep_s: float | None) -> float:
    """For how long the history of an ended workflow is kept; None: its decorator says nothing."""
    return ctx.logbook.session.caller.limits.history_s if keep_s is None else keep_s


class Sweeps:
    """The sweeps of one connection to the log. Made by `session.shared(Sweeps)`."""

    def __init__(self) -> None:
        self._tasks = Tasks()
        self._due_us: dict[tuple[str, str], int] = {}
        self._under_way: set[tuple[str, str]] = set()
        self._trimmed_below: dict[tuple[str, str], int] = {}
        """The workflows whose last records stand below this seqnum of the tag are trimmed."""

    def workflow_ended(self, ctx: Context, keep_s: float, book: str = "") -> None:
        """Look at what has ended before, if that is due; in the LogBook of the caller, or that one."""
        now_us = clock_of(ctx).now_us()
        key = book or ctx.logbook.name, ended_tag(keep_s)
        interval_us = max(_LEAST_US, min(int(keep_s * 1e6) // _SHARE, _MOST_US))
        if key in self._under_way or now_us < self._due_us.setdefault(key, now_us + interval_us):
            return
        self._due_us[key] = now_us + interval_us
        self._under_way.add(key)
        logbook = ctx.logbook.session.logbook(key[0], detached=True)
        self._tasks.spawn(self._sweep(logbook, key, now_us, keep_s))

    async def come_to_rest(self, patience_s: float) -> None:
        """Until no work is left beside the calls, or for that long."""
        await self._tasks.come_to_rest(patience_s)

    async def _sweep(self, logbook: LogBook, key: tuple[str, str], now_us: int, keep_s: float) -> None:
        ages = ages_of(logbook, now_us, keep_s)
        try:
            self._trimmed_below[key] = await sweep(logbook, key[1], *ages, self._trimmed_below.get(key, 0))
        except BokiError as error:
            _log.info("histories of ended workflows in book %s will be trimmed later: %s", logbook.name, error)
        finally:
            self._under_way.discard(key)


def ages_of(logbook: LogBook, now_us: int, keep_s: float) -> tuple[int, int]:
    """What has ended before the first time is trimmed, and before the second one forgotten."""
    window_s = logbook.session.caller.limits.key_window_s
    return now_us - int(keep_s * 1e6), now_us - int(max(keep_s, window_s) * 1e6)


async def sweep(logbook: LogBook, tag: str, trim_us: int, forget_us: int, trimmed_below: int = 0) -> int:
    """Trim the histories of workflows whose last record, of that tag, and whose end are older than `trim_us`, and
    forget those that are older than `forget_us`. `trimmed_below`: what the sweep before has returned.
    """
    async for records in _ended_before(logbook, tag, 0, forget_us):
        await _leave(logbook, records, forget_us, is_forgotten=True)
        await until_answered(partial(logbook.trim, records[-1].next_seqnum, tag=tag), "a trim", _TRIES)
        trimmed_below = max(trimmed_below, records[-1].next_seqnum)
    async for records in _ended_before(logbook, tag, trimmed_below, trim_us):
        await _leave(logbook, records, trim_us, is_forgotten=False)
        trimmed_below = records[-1].next_seqnum
    return trimmed_below


async def _ended_before(logbook: LogBook, tag: str, start: int, until_us: int) -> AsyncIterator[list[Record]]:
    """The records of a tag that are older than that, many at a time.

    A page that is read may have few records long before the end: those whose bytes had left the cache end it.
    """
    is_end = False
    while not is_end:
        old: list[Record] = []
        while len(old) < _PAGE and not is_end:
            read = partial(logbook.read, tag, start=start, limit=_PAGE - len(old))
            page = await until_answered(read, "ended workflows", _TRIES)
            older = [record for record in page.records if record.time < until_us]
            is_end = page.is_end or len(older) < len(page.records)
            start = page.next_start
            old += older
        if old:
            yield old


async def _leave(logbook: LogBook, records: list[Record], until_us: int, *, is_forgotten: bool) -> None:
    """Trim or forget what the workflows have left whose last records these are. Inboxes are not counted, and forgotten:
    nothing expects a place there.
    """
    runs = [run for run in dict.fromkeys(run_of(record.tags) for record in records) if run]
    over = await _over(logbook, runs, until_us)
    before, journals = records[-1].next_seqnum, [journal_tag(run) for run in over]
    forgotten = await _used(logbook, [tag for run in over for tag in (inbox_tag(run), updates_tag(run))])
    if is_forgotten:
        forgotten += journals
    else:
        await _each(partial(_trim, logbook, before), await _used(logbook, journals))
    for some in (forgotten[at : at + _AT_ONCE] for at in range(0, len(forgotten), _AT_ONCE)):
        await until_answered(partial(forget_tags, logbook, before, some), "a trim", _TRIES)


async def _each(ask: Callable[[str], Awaitable[T]], names: list[str]) -> list[T]:
    """What each of these is answered with, some at a time."""
    found: list[T] = []
    for at in range(0, len(names), _AT_ONCE):
        found += await asyncio.gather(*map(ask, names[at : at + _AT_ONCE]))
    return found


async def _over(logbook: LogBook, runs: list[str], until_us: int) -> list[str]:
    """Those of the runs whose calls have ended before that time."""
    over: list[str] = []
    for some in (runs[at : at + _AT_ONCE] for at in range(0, len(runs), _AT_ONCE)):
        calls = logbook.session.logbook(ends_of(some[0]).book)
        ended = await until_answered(partial(ended_before, calls, some, until_us), "the ends of calls", _TRIES)
        over += [run for run, has_ended in zip(some, ended, strict=True) if has_ended]
    return over


async def _used(logbook: LogBook, tags: list[str]) -> list[str]:
    """Those of the tags that have records: one question for all of them, if the log understands it."""
    compare = partial(logbook.session.compare, logbook.name, [(tag, 0) for tag in tags])
    compared = await until_answered(compare, "a look at tags", _TRIES) if tags else None
    if compared is not None:
        return [tags[number] for number in compared.changed]
    tails = await _each(partial(_tail, logbook), tags)
    return [tag for tag, tail in zip(tags, tails, strict=True) if tail is not None]


async def _tail(logbook: LogBook, tag: str) -> Record | None:
    return await until_answered(partial(logbook.check_tail, tag), "a look at a tag", _TRIES)


async def _trim(logbook: LogBook, before: int, tag: str) -> None:
    await until_answered(partial(logbook.trim, before, tag=tag), "a trim", _TRIES)


async def place_of(logbook: LogBook, tag: str) -> int:
    """How many records a journal has ever had, of which none is left: the log tells it by refusing a condition."""
    nothing = encode_entry(Entry(0, 0, 0, 0, Began()))
    try:
        await until_answered(partial(logbook.append, nothing, [tag], when=never(tag)), "a count")
    except ConditionFailed as error:
        return int(error.details["actual_count"])
    raise AssertionError("no tag has so many records")
