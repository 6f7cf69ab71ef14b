"""Views of objects: the fold of an object's row, and what a process keeps of it.

`step` is the fold: a view and the next record of the row give the next view. A `Row` is what a process remembers of an
object: its newest views (a transaction may still read at an earlier seqnum), and how far it has read. `Rows` keeps the
rows of one book that were used last. Everything here is a cache of the log, and pure: when it is read is said in
`boki.libs.bokistore.reading`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from boki import BokiError, InvalidArgument, Page, Record, TooLarge
from boki.libs.bokistore.json_values import MAX_OBJECT_DEPTH, MISSING, decode_strange, encode
from boki.libs.bokistore.listing import puts_name
from boki.libs.bokistore.records import Checkpoint, Write, codec
from boki.libs.bokistore.refusals import WrongShape
from boki.libs.bokistore.updates import MAX_OBJECT_BYTES, Changed, apply

MAX_MORE: Final = 4_096
"""Maximum number of records of one transaction."""
VIEWS_KEPT: Final = 8
"""Views of one object that are kept: so far behind its newest one, a snapshot reads without the log."""
ROWS_BYTES: Final = 64 << 20
"""Bytes of views that a process keeps of the objects of one book, about."""
OWN_STREAK: Final = 4
"""After this many changes in a row by this process alone an object is taken for its own."""
_ROW_BYTES: Final = 600


class View(msgspec.Struct, frozen=True):
    """An object as of a record of its row. `value` is shared, and not to be changed."""

    value: Any = MISSING
    size_bytes: int = 0
    last: int = 0
    """The seqnum of the last record of the row that was seen; 0: there was none."""
    since: int = 0
    """From this seqnum on it holds."""
    version: int = 0
    """From which seqnum on it has this value, which is that of the record that changed it, or of the last record of its
    transaction; 0: nothing has changed it.
    """
    is_listed: bool = False
    """Whether a record is known to have put the object into the list of names since it exists."""


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a write in the log's order: the results of its updates, or why none of them was carried out."""

    seqnum: int
    results: tuple[Any, ...] = ()
    error: BokiError | None = None


def step(view: View, name: str, record: Record) -> tuple[View, Write | None, Outcome]:
    """The view after the next record of the object's row, the record if it is one of a store, and its outcome.

    What is not a write of this object, or does not fit it, changes nothing but `last`.
    """
    seqnum = record.seqnum
    write = codec.own(record.data)
    since = max(view.since, seqnum)
    if not isinstance(write, Write) or not 0 <= write.more < MAX_MORE:
        return msgspec.structs.replace(view, last=seqnum, since=since), None, Outcome(seqnum)
    since = max(since, seqnum + write.more)
    try:
        changed = changed_by(view, name, write)
    except (WrongShape, TooLarge, InvalidArgument) as error:
        passed = msgspec.structs.replace(view, last=seqnum, since=since)
        return passed, write, Outcome(seqnum, error=error)
    is_listed = changed.value is not MISSING and (view.is_listed or puts_name(write.updates, name))
    after = View(changed.value, changed.size_bytes, seqnum, since, seqnum + write.more, is_listed)
    return after, write, Outcome(seqnum, changed.results)


def changed_by(view: View, name: str, write: Write) -> Changed:
    """What the write makes of the object; raises what `updates.apply` raises."""
    own = [update for object_name, updates in write.updates if object_name == name for update in updates]
    return apply(view.value, view.size_bytes, own)


def view_of(checkpoint: Checkpoint) -> View | None:
    """The view that a checkpoint holds; None if it cannot be one."""
    if checkpoint.value is None:
        return View(MISSING, 0, checkpoint.last, checkpoint.since, checkpoint.version)
    try:
        value = decode_strange(checkpoint.value, MAX_OBJECT_DEPTH)
    except InvalidArgument:
        return None
    if len(checkpoint.value) > MAX_OBJECT_BYTES:
        return None
    size_bytes = len(encode(value))
    return View(value, size_bytes, checkpoint.last, checkpoint.since, checkpoint.version, checkpoint.is_listed)


def checkpoint_of(name: str, view: View) -> Checkpoint:
    """The view as a record, or as auxiliary data."""
    value = None if view.value is MISSING else encode(view.value)
    return Checkpoint(name, view.last, view.since, view.version, value, view.is_listed)


class Row:
    """What a process remembers of one object. `known_to`: all of the row below this seqnum has been read."""

    __slots__ = (
        "_awaited",
        "_brought",
        "_floor",
        "_origin",
        "_views",
        "is_being_saved",
        "is_quiet",
        "known_to",
        "name",
        "own_streak",
        "replayed",
        "saved",
        "together",
        "unsure_to",
        "writing",
    )

    def __init__(
        self,
        name: str,
        base: View,
        known_to: int,
        floor: int = 0,
        awaited: dict[bytes, Outcome | None] | None = None,
        saved: int = 0,
        origin: int = 0,
    ) -> None:
        self.name = name
        self.known_to = known_to
        self._floor = floor
        """Below this, trims have taken the records away, and `base` has what was in them."""
        self._origin = origin
        """Up to this seqnum `base` knows whether the book is a fork."""
        self.replayed = 0
        """Records that were applied since `base`, or since the object was saved."""
        self.saved = saved
        """The last record of the object's checkpoints that is known; 0: there is none."""
        self.is_being_saved = False
        self.is_quiet = False
        """Whether the last look at the row has found nothing new: then it is asked whether there is news before it is
        read.
        """
        self.together: tuple[str, ...] = ()
        """The other objects of the last transaction that began with this one."""
        self.own_streak = 0
        """Number of last records that this process has written, with no other one between them."""
        self.writing = 0
        """Updates of this process whose place in the row it does not know yet."""
        self.unsure_to = 0
        """While the newest record that is known lies below this seqnum, a write of this process that did not read the
        object is under way, or was not read yet.
        """
        self._views = [base]
        self._brought = [0]
        """By view, about how many bytes it does not share with the view before it."""
        self._awaited = {} if awaited is None else awaited

    @property
    def newest(self) -> View:
        """The newest view."""
        return self._views[-1]

    @property
    def views(self) -> Sequence[View]:
        """The views that are kept, in ascending order."""
        return self._views

    @property
    def size_bytes(self) -> int:
        """About how many bytes its views take: the oldest one, and of each later one what its record has brought. The
        rest is shared, except for the containers on the way to it, for which an eighth of the view is counted at least.
        """
        return _ROW_BYTES + self._views[0].size_bytes + sum(self._brought[1:])

    def at(self, seqnum: int) -> View | None:
        """The object as of that seqnum; None if that cannot be told without the log."""
        if not self._floor <= seqnum + 1 <= self.known_to:
            return None
        for view in reversed(self._views):
            if view.since <= seqnum:
                return view
        return None

    @property
    def is_blank(self) -> bool:
        """Whether nothing is known of the object: then it exists as soon as the book becomes a fork."""
        return self.newest.last == 0 and self.newest.value is MISSING

    def is_inherited(self, origins: Page | None) -> bool:
        """Whether the book has become a fork since this began. `origins`: a page of what it is a fork of."""
        is_new = origins is not None and any(origin.seqnum > self._origin for origin in origins.records)
        return is_new and self.is_blank

    def is_overtaken(self, page: Page, start: int) -> bool:
        """Whether trims, or the deletion of the book, may have taken away what this does not know of."""
        floor, newest = page.first_seqnum, self.newest
        is_gone = newest.last < floor and (newest.last > 0 or newest.value is not MISSING)
        return floor > self._floor and (floor > start or is_gone)

    def take(self, page: Page) -> None:
        """Apply what is new in a page of the row that began at or below `known_to`."""
        for record in page.records:
            if record.seqnum >= self.known_to and record.seqnum > self.newest.last:
                view, write, outcome = step(self.newest, self.name, record)
                self._push(view, len(record.data))
                if write is not None and write.nonce in self._awaited:
                    self._awaited[write.nonce] = outcome
                    self.own_streak += 1
                else:
                    self.own_streak = 0
        self.is_quiet = not page.records
        self.known_to = max(self.known_to, page.next_start)

    def has_news(self) -> None:
        """Somebody else has changed the object."""
        self.is_quiet = False
        self.own_streak = 0

    def has_no_news(self, next_start: int) -> None:
        """Below that seqnum the row has no record after the newest one that was known when this was asked. What was
        learned since then lies above.
        """
        self.known_to = max(self.known_to, next_start)

    def learn(self, before: int, view: View, brought: int) -> None:
        """Take in a write of this process that the log has accepted on condition that the row ended with `before`.
        `brought`: the bytes of its records.
        """
        if self.newest.last == before < view.last and self.known_to <= view.last + 1:
            self._push(view, brought)
            self.known_to = view.last + 1
            self.own_streak += 1

    def _push(self, view: View, brought: int) -> None:
        self.replayed += 1
        self._views.append(view)
        self._brought.append(min(view.size_bytes, max(brought, view.size_bytes // 8)))
        if len(self._views) > VIEWS_KEPT:
            del self._views[0], self._brought[0]


class Rows:
    """The rows of one book that were used last, up to about `ROWS_BYTES`."""

    def __init__(self, most_bytes: int = ROWS_BYTES) -> None:
        self._rows: OrderedDict[str, Row] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._most_bytes = most_bytes
        self.size_bytes = 0
        """About how much memory they take."""
        self.awaited: dict[bytes, Outcome | None] = {}
        """What has become of writes of this process, by nonce; None: that was not read yet."""

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, name: str) -> Row | None:
        """What is remembered of the object. It is used now."""
        row = self._rows.get(name)
        if row is not None:
            self._rows.move_to_end(name)
        return row

    def put(self, row: Row) -> Row:
        """Remember a row; if there is one of its object that has read further, that one stays, and is returned."""
        known = self._rows.get(row.name)
        if known is not None and known.known_to >= row.known_to:
            return known
        self.drop(row.name)
        self._rows[row.name] = row
        self.measure(row)
        return row

    def drop(self, name: str) -> None:
        """Forget an object."""
        self._rows.pop(name, None)
        self.size_bytes -= self._sizes.pop(name, 0)

    def clear(self) -> None:
        """Forget all of them: a reader begins with the log."""
        self._rows.clear()
        self._sizes.clear()
        self.size_bytes = 0

    def measure(self, row: Row) -> None:
        """A row has changed: count its bytes again, and forget what was used longest ago if there are too many."""
        if self._rows.get(row.name) is not row:
            return
        self.size_bytes += row.size_bytes - self._sizes.get(row.name, 0)
        self._sizes[row.name] = row.size_bytes
        for name in self._oldest():
            self.drop(name)

    def _oldest(self) -> Sequence[str]:
        left, oldest = self.size_bytes, list[str]()
        for name in self._rows:
            if left <= self._most_bytes or len(oldest) == len(self._rows) - 1:
                break
            oldest.append(name)
            left -= self._sizes[name]
        return oldest


def view_in(auxdata: bytes, name: str, seqnum: int) -> View | None:
    """The view in a record's auxiliary data, if it is of this object as of this record."""
    try:
        found = codec.own(auxdata)
    except BokiError:
        return None
    if not isinstance(found, Checkpoint) or found.object != name or found.last != seqnum:
        return None
    return view_of(found)
