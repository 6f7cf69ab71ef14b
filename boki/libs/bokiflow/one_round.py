"""Readers of a workflow that may run meanwhile: its journal and its inbox are read as of one round.

They are two reads, and a workflow that continues as new between them trims its inbox: the messages of the round that
the first read found are gone. It trims the journal first, and so does the sweep of one that has ended. So the inbox was
whole as long as the journal's last record is still there after it was read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from boki import LogBook, Record, WrongState
from boki.libs.bokiflow.history import History
from boki.libs.bokiflow.inbox import PAGE_RECORDS, InboxReader, unawaited
from boki.libs.bokiflow.records import inbox_tag, journal_tag
from boki.libs.fold.retrying import until_answered

T = TypeVar("T")

_TRIES: Final = 20


class RoundOver(Exception):
    """The round whose journal was read is over, and messages of it are gone."""


async def of_one_round(work: Callable[[], Awaitable[T]], subject: str) -> T:
    """What `work` returns, which reads a journal and then the inbox: again from the start where the round is over."""
    for _ in range(_TRIES):
        try:
            return await work()
        except RoundOver:
            continue
    raise WrongState(
        f"{subject} continued as new, or was trimmed, each of the {_TRIES} times that it was read: ask it again",
        state="changed",
    )


async def inbox_of(logbook: LogBook, run: str, history: History) -> InboxReader:
    """The inbox of the round that this history is of, read to its end. `RoundOver`"""
    inbox = InboxReader(logbook, inbox_tag(run), history.cursor, history.taken, unawaited, history.forgotten)
    inbox.lives = history.lives
    await inbox.read_to_end()
    await check_round(logbook, run, history.next_start)
    return inbox


async def records_of(logbook: LogBook, tag: str) -> list[Record]:
    """All records of that tag."""
    found: list[Record] = []
    start = 0
    while True:
        page = await until_answered(partial(logbook.read, tag, start=start, limit=PAGE_RECORDS))
        if not page.records:
            return found
        found += page.records
        start = page.next_start


async def check_round(logbook: LogBook, run: str, next_start: int) -> None:
    """Raise `RoundOver` if the journal's record in front of that seqnum, the last one that was read, is gone."""
    if not next_start:
        return
    page = await until_answered(partial(logbook.read, journal_tag(run), start=next_start - 1, limit=1))
    if not page.records or page.records[0].seqnum != next_start - 1:
        raise RoundOver
