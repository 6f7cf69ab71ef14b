"""Checkpoints of objects, and what of their past is kept. Generators of operations, for the background.

An object that has had many updates is saved: a **checkpoint** is a record with its value, under a tag of its own. So a
reader that does not know the object reads one record and the few that came after. The process that has applied too
many records saves it, on condition that nobody has saved it meanwhile.

Then the row is **trimmed**, if the store has a `history`: below the newest checkpoint that is older than that, and that
every fork of the book can begin with. The last record that a checkpoint covers stays, because conditions name it.
"""

from __future__ import annotations

from typing import Final

from boki import MAX_SEQNUM, ConditionFailed, Expect, InvalidArgument, NewRecord, Page, Record
from boki.libs.bokistore.reading import Reader, origin_of
from boki.libs.bokistore.records import (
    FORKS,
    ORIGIN,
    SETTINGS,
    Checkpoint,
    Forked,
    Origin,
    Settings,
    checkpoints_tag,
    codec,
    row_tag,
)
from boki.libs.bokistore.views import checkpoint_of
from boki.libs.fold import steps
from boki.libs.fold.steps import Append, ReadPage, Steps

MAX_HISTORY_S: Final = 100 * 365 * 24 * 3600.0


def save(reader: Reader, name: str) -> Steps[None]:
    """Save an object as it is known here, and trim what is no longer needed of its past."""
    reader.due.discard(name)
    row = reader.rows.find(name)
    if row is None or row.is_being_saved or not row.newest.last:
        return
    if row.known_to <= row.saved:  # others have saved more than this process has read: it must not take their place
        return
    row.is_being_saved = True
    try:
        view, tag = row.newest, checkpoints_tag(name)
        record = NewRecord(codec.encode(checkpoint_of(name, view)), (tag,))
        row.replayed = 0
        try:
            seqnums: list[int] = yield Append((record,), (Expect(tag, last_seqnum=row.saved),))
        except ConditionFailed as error:
            row.saved = error.actual_seqnum  # another process was faster
            return
        row.saved = seqnums[0]
        yield from trim(reader, name)
    finally:
        row.is_being_saved = False


def trim(reader: Reader, name: str) -> Steps[None]:
    """Trim the object's row below the newest checkpoint that everything that is to stay readable can begin with."""
    settings = yield from settings_of(reader.book)
    if settings.history_us is None:
        return
    newest = yield from steps.tail(checkpoints_tag(name))
    if newest is None:
        return
    pinned = yield from pins(reader.book)
    limit_us = newest.time - settings.history_us
    base: tuple[Record, Checkpoint] | None = None
    for record in (yield from steps.read_all(checkpoints_tag(name))):
        found = codec.own(record.data)
        is_needed = record.time > limit_us or any(record.seqnum > at for at in pinned)
        if isinstance(found, Checkpoint) and found.object == name and found.last < record.seqnum and not is_needed:
            base = record, found
    if base is not None:
        yield from steps.trim(base[1].last, row_tag(name))
        yield from steps.trim(base[0].seqnum, checkpoints_tag(name))


def settings_of(book: str) -> Steps[Settings]:
    """The settings of the store in that book."""
    record = yield from steps.tail(SETTINGS, book=book)
    while record is not None:
        found = codec.own(record.data)
        if isinstance(found, Settings) and (found.history_us is None or found.history_us >= 0):
            return found
        record = yield from steps.tail(SETTINGS, max_seqnum=record.seqnum - 1, book=book)
    return Settings()


def configure(history_us: int | None) -> Steps[None]:
    """Set how long the past stays readable."""
    yield from steps.append([NewRecord(codec.encode(Settings(history_us)), (SETTINGS,))])


# forks


def pins(book: str) -> Steps[list[int]]:
    """The seqnums as of which forks of the book need it."""
    forks: dict[str, int] = {}
    for seqnum, found in (yield from _forked(book)):
        if found.is_over:
            forks.pop(found.book, None)
        else:
            at = min(found.at or seqnum, seqnum)  # what had not come yet is not in the fork
            forks[found.book] = min(at, forks.get(found.book, at))
    return list(forks.values())


def _forked(book: str) -> Steps[list[tuple[int, Forked]]]:
    """What the log says of forks of the book, with seqnums, in order."""
    said: list[tuple[int, Forked]] = []
    start = 0
    while True:
        page: Page = yield ReadPage(FORKS, start, book=book)
        for record in page.records:
            found = codec.own(record.data)
            if isinstance(found, Forked):
                said.append((record.seqnum, found))
        if page.is_end:
            return said
        start = page.next_start


def fork(book: str, name: str, at: int) -> Steps[Origin]:
    """Make the book `name` a copy of the objects of `book`; `at` 0: as they are now. Repeating it changes nothing."""
    if type(at) is not int or not 0 <= at <= MAX_SEQNUM:
        raise InvalidArgument(f"at must be a seqnum up to {MAX_SEQNUM:,}, or 0 for now, not {at!r:.40}", field="at")
    if (yield from steps.tail(None, fresh=True, book=name)) is not None:
        return (yield from _made_before(book, name, at))
    seqnums: list[int] = yield Append((NewRecord(codec.encode(Forked(name, at)), (FORKS,)),), book=book)
    origin = Origin(book, min(at or seqnums[0], seqnums[0]))
    try:
        yield Append((NewRecord(codec.encode(origin), (ORIGIN,)),), (Expect(ORIGIN, last_seqnum=0),), book=name)
    except ConditionFailed:
        return (yield from _made_before(book, name, at))  # another one was faster, or only this record was not trimmed
    return origin


def _made_before(book: str, name: str, at: int) -> Steps[Origin]:
    """What the book `name` with records is a copy of, if it is the same fork. `InvalidArgument`"""
    found = yield from origin_of(name)
    if found is None:
        raise InvalidArgument(
            f"book {name!r} has records already: a fork needs a book of its own, so choose another name", field="name"
        )
    known = found[0]
    if known.book != book or at not in (0, known.at):
        raise InvalidArgument(
            f"book {name!r} is a fork of book {known.book!r} as of {known.at} already: choose another name",
            field="name",
        )
    return known


def release(book: str, name: str) -> Steps[None]:
    """No longer keep what the fork `name` needs of this book. `InvalidArgument`: it never had such a fork."""
    if all(found.book != name for _, found in (yield from _forked(book))):
        raise InvalidArgument(
            f"book {book!r} has no fork {name!r:.140}, so nothing is kept for it: name the book of the fork",
            field="name",
        )
    yield Append((NewRecord(codec.encode(Forked(name, 0, is_over=True)), (FORKS,)),), book=book)
