"""Trims what ended workflows have left: their journals and inboxes, a time after their end.

The last journal record of a workflow has a tag that says for how long its history is kept. Where workflows end, the
records of that tag are looked at once in a while, beside the calls: what has ended long enough ago is trimmed, and then
the tag itself. Of a workflow that was begun again since, nothing is trimmed before its own end is old enough. Several
processes may do the same at once: a trim that comes second does nothing.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from boki import BokiError, ConditionFailed, Context, Expect, LogBook, Record
from boki.extending import ended_before, ends_of
from boki.libs.bokiflow.clocks import clock_of
from boki.libs.bokiflow.records import Began, Entry, encode_entry, ended_tag, inbox_tag, journal_tag, run_of
from boki.libs.fold.registry import Tasks
from boki.libs.fold.retrying import until_answered
from boki.retry import Backoff

_log = logging.getLogger("boki.libs")

_SHARE: Final = 10
"""A look is due after this part of the time."""
_LEAST_US: Final = 1_000_000
_MOST_US: Final = 60_000_000
_PAGE: Final = 200
_AT_ONCE: Final = 20
_TRIES: Final = Backoff(tries=5)
_NEVER: Final = (1 << 62) - 1
"""As many records no tag has."""


def kept_s(ctx: Context, keep_s: float | None) -> float:
    """For how long the history of an ended workflow is kept; None: its decorator says nothing."""
    return ctx.logbook.session.caller.limits.history_s if keep_s is None else keep_s


class Sweeps:
    """The sweeps of one connection to the log. Made by `session.shared(Sweeps)`."""

    def __init__(self) -> None:
        self._tasks = Tasks()
        self._due_us: dict[tuple[str, str], int] = {}
        self._under_way: set[tuple[str, str]] = set()

    def workflow_ended(self, ctx: Context, keep_s: float) -> None:
        """Look at what has ended before, if that is due."""
        now_us = clock_of(ctx).now_us()
        key = ctx.logbook.name, ended_tag(keep_s)
        interval_us = max(_LEAST_US, min(int(keep_s * 1e6) // _SHARE, _MOST_US))
        if key in self._under_way or now_us < self._due_us.setdefault(key, now_us + interval_us):
            return
        self._due_us[key] = now_us + interval_us
        self._under_way.add(key)
        logbook = ctx.logbook.session.logbook(ctx.logbook.name, detached=True)
        self._tasks.spawn(self._sweep(logbook, key, now_us - int(keep_s * 1e6)))

    async def come_to_rest(self, patience_s: float) -> None:
        """Until no work is left beside the calls, or for that long."""
        await self._tasks.come_to_rest(patience_s)

    async def _sweep(self, logbook: LogBook, key: tuple[str, str], until_us: int) -> None:
        try:
            await sweep(logbook, key[1], until_us)
        except BokiError as error:
            _log.info("histories of ended workflows in book %s will be trimmed later: %s", logbook.name, error)
        finally:
            self._under_way.discard(key)


async def sweep(logbook: LogBook, tag: str, until_us: int) -> int:
    """Trim the histories of workflows whose last record, of that tag, and whose end are older: how many there were."""
    count = start = 0
    while True:
        read = partial(logbook.read, tag, start=start, limit=_PAGE)
        page = await until_answered(read, "ended workflows", _TRIES)
        old = [record for record in page.records if record.time < until_us]
        for some in (old[at : at + _AT_ONCE] for at in range(0, len(old), _AT_ONCE)):
            await asyncio.gather(*(_forget(logbook, record, until_us) for record in some))
        count += len(old)
        if old:
            start = old[-1].next_seqnum
            await until_answered(partial(logbook.trim, start, tag=tag), "a trim", _TRIES)
        if len(old) < _PAGE:
            return count


async def _forget(logbook: LogBook, record: Record, until_us: int) -> None:
    run = run_of(record.tags)
    calls = logbook.session.logbook(ends_of(run).book)
    if not run or not await until_answered(partial(ended_before, calls, run, until_us), "the end of a call", _TRIES):
        return
    before = record.next_seqnum
    await until_answered(partial(logbook.trim, before, tag=journal_tag(run)), "a trim", _TRIES)
    if await until_answered(partial(logbook.check_tail, inbox_tag(run)), "an inbox", _TRIES) is not None:
        await until_answered(partial(logbook.trim, before, tag=inbox_tag(run)), "a trim", _TRIES)


async def place_of(logbook: LogBook, tag: str) -> int:
    """How many records a journal has ever had, of which none is left: the log tells it by refusing a condition."""
    nothing = encode_entry(Entry(0, 0, 0, 0, Began()))
    try:
        await until_answered(partial(logbook.append, nothing, [tag], when=Expect(tag, count=_NEVER)), "a count")
    except ConditionFailed as error:
        return int(error.details["actual_count"])
    raise AssertionError("no tag has so many records")
