"""The past of objects: as of a seqnum or a time, and version by version. Generators of operations."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from boki import MAX_SEQNUM, InvalidArgument, NotFound, Page, Record, Trimmed, WrongType
from boki.libs.bokistore.accesses import look_all
from boki.libs.bokistore.json_values import MISSING, copy_of
from boki.libs.bokistore.listing import without_names
from boki.libs.bokistore.queries import Question, answer_of
from boki.libs.bokistore.reading import Reader
from boki.libs.bokistore.records import Write, checkpoints_tag, codec, row_tag
from boki.libs.bokistore.updates import Update
from boki.libs.bokistore.views import View, step
from boki.libs.fold import steps
from boki.libs.fold.steps import Get, ReadPage, Steps, Sync

HISTORY_PAGE: Final = 256


class AsOf:
    """Objects as they were at a seqnum, or at a time of the log. They can only be read."""

    def __init__(self, reader: Reader, seqnum: int | None, time_us: int | None = None) -> None:
        self._reader = reader
        self.seqnum = seqnum
        self._time_us = time_us

    def _view(self, name: str) -> Steps[View]:
        if self.seqnum is not None:
            return (yield from self._reader.view_at(name, self.seqnum))
        return (yield from self._reader.view_at_time(name, self._time_us or 0))

    def prefetch(self, names: Sequence[str]) -> Steps[None]:
        """See `accesses.Access`."""
        if self.seqnum is not None:
            yield from self._reader.prefetch(names, self.seqnum)

    def look(self, name: str, query: Question) -> Steps[Any]:
        """See `accesses.Access`. `Trimmed`: that is too long ago."""
        view = yield from self._view(name)
        return answer_of(name, query, view.value)

    def look_all(self, questions: Sequence[tuple[str, Question]]) -> Steps[list[Any]]:
        """See `accesses.Access`."""
        return (yield from look_all(self, questions))

    def version_of(self, name: str) -> Steps[int]:
        """See `accesses.Access`."""
        view = yield from self._view(name)
        version = view.version
        return version

    def change(self, name: str, update: Update, key: str | None = None) -> Steps[Any]:  # noqa: ARG002
        """The past is not changed."""
        raise InvalidArgument(
            f"object {name!r} as it was cannot be changed: change store.object({name!r}), or fork the store",
            field="object",
        )


class Version(msgspec.Struct, frozen=True):
    """One version of an object, and where it comes from. What is not known is ""."""

    seqnum: int
    """From which seqnum on the object has this value: `store.at(seqnum)` shows it."""
    time_s: float
    """When the log ordered it, in seconds since the epoch."""
    value: Any
    """The whole object; None if it was deleted (`exists` tells it from null)."""
    exists: bool
    function: str = ""
    invocation: str = ""
    step: str = ""
    is_transaction: bool = False
    objects: tuple[str, ...] = ()
    """All objects that the same record has changed."""


class History:
    """The versions of an object in order from `start` on, page by page. Those that were trimmed are not in it."""

    def __init__(self, reader: Reader, name: str, start: int = 0) -> None:
        self._reader = reader
        self._name = name
        self._first = check_start(start)
        self._view: View | None = None
        self._start = 0
        self.is_end = False

    def page(self) -> Steps[list[Version]]:
        """The next versions. After a trim that has overtaken it, it continues with what is left."""
        book = self._reader.book
        while True:
            if self._view is None:
                self._view, self._start = yield from self._begin()
            page: Page = yield ReadPage(row_tag(self._name), self._start, limit=HISTORY_PAGE, book=book)
            if page.first_seqnum <= self._start:
                break
            self._view = None
        versions = []
        for record in page.records:
            after, write, _ = step(self._view, self._name, record)
            version = yield from _made(self._reader, self._name, record, write, after)
            if version is not None and version.seqnum >= self._first:
                versions.append(version)
            self._view = after
        self._start, self.is_end = page.next_start, page.is_end
        return versions

    def _begin(self) -> Steps[tuple[View, int]]:
        """The view before the first record that is wanted, or that trims have left, and where to read on."""
        tag, book = checkpoints_tag(self._name), self._reader.book
        tried = -1
        while True:
            page: Page = yield ReadPage(row_tag(self._name), limit=1, book=book)
            floor = page.first_seqnum
            if not page.records or not (floor or self._first > 1):
                return (yield from self._reader.inherited(self._name)), floor
            first = self._first - 1
            if floor:
                checkpoint: Page = yield ReadPage(tag, limit=1, book=book)
                if not checkpoint.records:
                    return View(), floor
                first = max(first, page.records[0].seqnum, checkpoint.records[0].seqnum)
            try:
                view = yield from self._reader.view_at(self._name, first)
            except Trimmed:
                if floor <= tried:
                    raise
                tried = floor  # another trim may have come meanwhile
            else:
                return view, max(floor, view.last + 1)


class Watch:
    """The versions of an object from now on: `take` is given the records of its row, one after the other."""

    def __init__(self, reader: Reader, name: str) -> None:
        self._reader = reader
        self._name = name
        self._view = View()
        self.start = 0
        """The seqnum from which on the row is to be read."""

    def begin(self) -> Steps[Version]:
        """The object as it is now."""
        row, self.start = yield from self._reader.catch_up(self._name)
        self._view = row.at(self.start - 1) or row.newest
        self.start = max(self.start, self._view.last + 1)
        view = self._view
        if view.version:
            try:
                record: Record = yield Get(view.version, self._reader.book)
            except (NotFound, Trimmed):  # of another book, or another life of this one
                return Version(view.version, 0.0, *_shown(view))
            write = codec.own(record.data)
            if isinstance(write, Write):
                return _version(record, write, view)
        return Version(view.version, 0.0, *_shown(view))

    def take(self, record: Record) -> Steps[Version | None]:
        """The version that the next record of the row makes; None: it makes none."""
        self._view, write, _ = step(self._view, self._name, record)
        self.start = record.next_seqnum
        return (yield from _made(self._reader, self._name, record, write, self._view))


def _made(reader: Reader, name: str, record: Record, write: Write | None, view: View) -> Steps[Version | None]:
    """The version that this record has made with that view; None: it made none."""
    if write is None or view.version != record.seqnum + write.more:
        return None
    if (yield from _continues(reader, name, record, write)):
        return None
    return _version(record, write, view)


def _continues(reader: Reader, name: str, record: Record, write: Write) -> Steps[bool]:
    """Whether a later record of the same transaction changes the object, too: then it never had the value between."""
    if not write.more or not write.nonce:
        return False
    stop = record.seqnum + write.more + 1
    read = ReadPage(row_tag(name), record.next_seqnum, stop, limit=1, book=reader.book)
    page = yield from steps.page(read)
    if not page.records and page.next_start < stop:  # it is not there yet where this caller reads
        yield Sync(reader.book)
        page = yield from steps.page(read)
    found = codec.own(page.records[0].data) if page.records else None
    return isinstance(found, Write) and found.nonce == write.nonce


def _shown(view: View) -> tuple[Any, bool]:
    return (None, False) if view.value is MISSING else (copy_of(view.value), True)


def _version(record: Record, write: Write, view: View) -> Version:
    return Version(
        view.version,
        record.time / 1e6,
        *_shown(view),
        write.author.function,
        write.author.invocation,
        write.author.step,
        write.is_transaction,
        tuple(dict.fromkeys(name for name, _ in without_names(write.updates))),
    )


def check_start(start: object) -> int:
    """`start`, if a history can begin there."""
    if type(start) is not int or not 0 <= start <= MAX_SEQNUM:
        raise WrongType(f"start must be a seqnum from 0 to {MAX_SEQNUM}, not {start!r:.40}", field="start")
    return start


def check_moment(seqnum: object, time: object) -> tuple[int | None, int | None]:
    """A seqnum, or a time in seconds since the epoch or as a `datetime`, in microseconds: exactly one of them."""
    if (seqnum is None) == (time is None):
        raise InvalidArgument("give either the seqnum or the time: write at(seqnum) or at(time=...)", field="seqnum")
    if time is None:
        if type(seqnum) is not int or not 0 <= seqnum <= MAX_SEQNUM:
            raise WrongType(f"a seqnum must be an int from 0 to {MAX_SEQNUM}, not {seqnum!r:.40}", field="seqnum")
        return seqnum, None
    try:
        seconds = time.timestamp() if isinstance(time, datetime) else time
    except (ValueError, OverflowError):  # of the year 1, where local time has no seconds since the epoch
        seconds = None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < 1e11:
        raise WrongType(f"time must be a datetime, or seconds since the epoch, not {time!r:.40}", field="time")
    return None, round(seconds * 1e6)
