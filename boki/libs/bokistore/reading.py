"""Reading objects: the news of a row, an object as of a seqnum, and where a reader begins. Generators of operations.

A process that knows an object reads only what came since, with one read; its end says up to which seqnum the view is
good. One that does not know it begins with the newest view that it finds: auxiliary data of the row's last record, a
checkpoint, the book that this one is a fork of, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from boki import MAX_SEQNUM, BokiError, Page, Record, TooLarge, Trimmed
from boki.extending import Compared, uncertain
from boki.libs.bokistore import far
from boki.libs.bokistore.records import ORIGIN, Checkpoint, Origin, checkpoints_tag, codec, row_tag
from boki.libs.bokistore.under_way import Behind, UnderWay
from boki.libs.bokistore.views import OWN_STREAK, Row, Rows, View, checkpoint_of, step, view_in, view_of
from boki.libs.fold import steps
from boki.libs.fold.steps import Compare, ReadPage, SetAuxdata, Steps, Sync, Tail

T = TypeVar("T")

LEAVE_VIEW_AFTER: Final = 16
"""A reader that began without a view and has read this many records leaves one, as auxiliary data, for the next."""
SAVE_AFTER: Final = 256
"""An object is saved when a process has applied this many records since it began with a view of it."""
MAX_AUXDATA_BYTES: Final = 60_000
FIRST_RECORDS: Final = 16
"""Maximum number of records that a reader asks for before it knows whether there is something better to begin with."""
MAX_WHOLE: Final = 256
"""Maximum number of objects that are opened so at once: one comparison has a limit, too."""
_LOOKS: Final = 3
"""Reads after which a transaction no longer waits for others of its process."""
_LOOK_S: Final = 0.005


class Reader:
    """The way to the objects of one book. `rows`: what this process remembers of them; `other`: the way to a book that
    this one is a fork of.
    """

    def __init__(self, rows: Rows, book: str, other: Callable[[str], Reader] | None = None) -> None:
        self.rows = rows
        self.book = book
        self.under_way = UnderWay(rows.awaited)
        self.due: set[str] = set()
        """Objects that should be saved, for whoever does that in the background."""
        self.save_after = SAVE_AFTER
        self.guess_after = OWN_STREAK
        """After this many changes in a row by this process alone it takes an object for its own."""
        self.is_far = False
        """Whether a gateway is on the way to the log, whose views are nearer than the records (`far`)."""
        self.shapes: dict[str, Any] = {}
        """How the book's maps were made (`maps`). It counts until a row was overtaken: the book may have been deleted.
        """
        self.is_plain = False
        """Whether the book is known to be no fork, and never to become one. It counts as long as `shapes` do."""
        self.follow_ups: list[tuple[str, Steps[None]]] = []
        """What is to be done of an object after it was written, in the background (`Memory`)."""
        self._other = other or (lambda name: Reader(Rows(), name))
        self._begins_whole = True
        """Whether objects are opened with their first records: of those that were opened last, most began with them.
        Where they begin with checkpoints, these records would be read for nothing.
        """

    def is_listed(self, name: str) -> bool:
        """Whether the object is known to exist, and to be in the list of names."""
        row = self.rows.find(name)
        return row is not None and row.newest.is_listed

    # the newest view

    def catch_up(self, name: str) -> Steps[tuple[Row, int]]:
        """Read what is new of an object; its row, and the seqnum below which all of it has been seen by this caller."""
        row, seen_to = self.rows.find(name), 0
        begins = row is None or not row.replayed
        if row is None:
            row, seen_to = yield from self._open(name)
        if not seen_to:
            row, seen_to = yield from self._read_on(row, None)
        if begins and row.replayed >= LEAVE_VIEW_AFTER:
            yield from self._leave_view(row)
        return row, seen_to

    def now(self, name: str) -> Steps[View]:
        """The newest view that this caller has seen all of: others of its process may have read on meanwhile, and where
        it reads next that may not have come yet.
        """
        row, seen_to = yield from self.catch_up(name)
        if row.newest.since < seen_to or not seen_to:
            return row.newest
        return (yield from self.view_at(name, seen_to - 1))

    def begin(self, name: str) -> Steps[Row]:
        """The row of an object, from wherever it begins; `Trimmed`: a fork needs what the other book no longer has."""
        row = self.rows.find(name)
        if row is None:
            row, _ = yield from self._open(name)
        return row

    def begin_with(self, name: str) -> Steps[int]:
        """`catch_up` of the first object of a transaction, and of those that the last one which began with it has used:
        one answer is often enough for all of them. The seqnum below which the first one is known.
        """
        row = self.rows.find(name)
        if row is not None and row.together and self._may_compare(row):
            others = [other for other in map(self.rows.find, row.together) if other is not None]
            compared = yield from self.compare([row, *filter(self._may_compare, others)])
            if compared:
                return compared
        _, seen_to = yield from self.catch_up(name)
        return seen_to

    def guess_with(self, name: str) -> int | None:
        """A seqnum as of which this process knows the object, and those that were used with it the last time, if it
        alone has changed them lately and knows of nothing newer. Others may have changed them: a commit would tell.
        """
        row = self.rows.find(name)
        if row is None:
            return None
        rows = [row, *map(self.rows.find, row.together)]
        known = [one for one in rows if one is not None and self.is_own(one) and not one.writing]
        seqnum = min((one.known_to for one in known), default=0) - 1
        is_newest = len(known) == len(rows) and all(one.newest.since <= seqnum for one in known)
        return seqnum if is_newest else None

    def is_own(self, row: Row | None) -> bool:
        """Whether this process takes the object for its own: it alone has changed it lately, as far as it knows."""
        return row is not None and row.own_streak >= self.guess_after and row.newest.last >= row.unsure_to

    def expect_news(self, names: Iterable[str]) -> None:
        """A condition on one of these objects has failed: read their rows, without asking first, and do not guess."""
        for name in names:
            row = self.rows.find(name)
            if row is not None:
                row.has_news()

    def wait_for(self, behind: Behind) -> Steps[None]:
        """Until these commits of the process are over. A look is a read that lasts until a record comes to the row, so
        no timer is needed, and a commit that ends without a record delays no other for long.
        """
        for _ in range(_LOOKS):
            left = [(name, commit) for name, commit in behind if not commit.is_over]
            row = self.rows.find(left[0][0]) if left else None
            if row is None or self.is_far:
                return
            yield from self._read_on(row, None, _LOOK_S)

    def _read_on(self, row: Row, stop: int | None, wait_s: float = 0.0) -> Steps[tuple[Row, int]]:
        """Read the row to its end, or to `stop`. What was trimmed meanwhile is in a checkpoint: begin with that."""
        name, start = row.name, row.known_to
        if not wait_s and self._may_compare(row):
            compared = yield from self.compare([row])
            if compared:
                return row, compared
            start = row.known_to
        while True:
            read = ReadPage(row_tag(name), start, stop, wait_s=wait_s, book=self.book)
            origins = None
            if row.is_blank:
                [page], origins = yield from self._with_origins([row], [read])
            else:
                page = yield from steps.page(read)
            if row.is_overtaken(page, start) or row.is_inherited(origins):
                self.shapes.clear()
                self.is_plain = False
                self.rows.drop(name)
                row, _ = yield from self._open(name, floor=page.first_seqnum)
                start = row.known_to
                if stop is not None and start >= stop:
                    return row, stop
                continue
            row.take(page)
            if page.records:
                self.measure(row)
            start = page.next_start
            if page.is_end:
                return row, start

    def _with_origins(self, rows: Sequence[Row], reads: Sequence[ReadPage]) -> Steps[tuple[list[Page], Page | None]]:
        """Pages of rows, and if one is blank of what the book is a fork of: it may have become one after a look at it.
        The pages of blank rows end where that is known.
        """
        blank = [row.is_blank for row in rows]
        if not any(blank):
            pages: list[Page] = yield tuple(reads)
            return pages, None
        *pages, origins = yield (*reads, ReadPage(ORIGIN, limit=1, book=self.book))
        if not origins.is_end:
            return pages, origins
        found = zip(pages, blank, strict=True)
        return [_below(origins.next_start, page) if is_blank else page for page, is_blank in found], origins

    def _may_compare(self, row: Row) -> bool:
        """Whether it is worth asking if there is news of the row before it is read. A row that was never written is
        always read: trims may have taken away all that was written.
        """
        return row.is_quiet and row.newest.last > 0 and not self.is_far

    def compare(self, rows: Sequence[Row]) -> Steps[int]:
        """Ask for news of rows that may be compared. Below the answer, those without news are known; 0: the first one
        has news, or it cannot be told.
        """
        known = [(row_tag(row.name), row.newest.last) for row in rows]
        compared: Compared | None = yield Compare(known, self.book)
        if compared is None:
            rows[0].is_quiet = False
            return 0
        for number, row in enumerate(rows):
            if number in compared.changed:
                row.has_news()
            else:
                row.has_no_news(compared.next_start)
        return 0 if 0 in compared.changed else compared.next_start

    def measure(self, row: Row) -> None:
        """A row has grown: it is due to be saved, or others are forgotten for it."""
        self.rows.measure(row)
        if row.replayed >= self.save_after and not row.is_being_saved:
            self.due.add(row.name)

    def _open(self, name: str, stop: int | None = None, floor: int = 0) -> Steps[tuple[Row, int]]:
        """A row to begin with, and the seqnum below which its caller has seen all of it, up to `stop`; 0: read on.
        `floor`: the lowest seqnum of the row that trims have left.
        """
        if self.is_far:
            [row] = yield from self._open_far([name], floor=floor)
            return row, row.known_to  # a view that the gateway has just read
        opened = yield from self._open_all([name], stop, floor)
        return opened[name]

    def _open_all(self, names: Sequence[str], stop: int | None, floor: int = 0) -> Steps[dict[str, tuple[Row, int]]]:
        """The same for several objects at once."""
        opened: dict[str, tuple[Row, int]] = {}
        if self._begins_whole and not floor and len(names) <= MAX_WHOLE:
            opened = yield from self._open_whole(names, stop)
        left = [name for name in names if name not in opened]
        if not left:
            return opened
        found: list[Record | None] = yield tuple(tail for name in left for tail in self._beginnings(name))
        whole_count = len(opened)
        for number, name in enumerate(left):
            last, checkpoint, origin = begins = found[3 * number : 3 * number + 3]
            whole_count += checkpoint is None and origin is None and (last is None or last.auxdata is None)
            opened[name] = (yield from self._begin(name, begins, floor)), 0
        if not floor:
            self._begins_whole = 2 * whole_count >= len(names)
        return opened

    def _open_whole(self, names: Sequence[str], stop: int | None) -> Steps[dict[str, tuple[Row, int]]]:
        """Those of the objects that begin with their first record, opened with the first few: one round for most.

        What was saved, trimmed or inherited does not. Compare and pages are answered at different moments, so a page
        counts up to the moment at which there was neither a checkpoint nor a book that this one is a fork of.
        """
        rows = [*((checkpoints_tag(name), 0) for name in names), (ORIGIN, 0)]
        pages = [ReadPage(row_tag(name), 0, stop, FIRST_RECORDS, book=self.book) for name in names]
        lasts = [Tail(row_tag(name), book=self.book) for name in names]
        found: list[Any] = yield (Compare(rows, self.book), *pages, *lasts)
        compared: Compared | None = found[0]
        opened: dict[str, tuple[Row, int]] = {}
        if compared is None or len(names) in compared.changed:
            return opened
        for number, name in enumerate(names):
            page, last = found[1 + number], found[1 + number + len(names)]
            if number in compared.changed or page.first_seqnum:
                continue
            # the last record is of use where the first ones are not all: it may have a view of those in between
            row = yield from self._begin(name, (None if page.is_end else last, None, None), 0)
            known = _below(compared.next_start, page)
            row.take(known)
            self.measure(row)
            opened[name] = row, known.next_start if known.is_end else 0
        return opened

    def _open_far(self, names: Sequence[str], at: int = -1, floor: int = 0) -> Steps[list[Row]]:
        """Rows that begin with the gateway's views."""
        try:
            views = yield from far.ask(self.book, far.Wanted(objects=list(names), at=at))
        except TooLarge:
            if len(names) == 1:
                raise
            half = len(names) // 2  # the objects are more than one request brings
            rows = yield from self._open_far(names[:half], at, floor)
            return rows + (yield from self._open_far(names[half:], at, floor))
        known_to, awaited = max(views.seqnum + 1, floor), self.rows.awaited
        held = zip(names, map(far.view_of, views.objects), strict=True)
        return [self.rows.put(Row(name, view, known_to, floor, awaited, 0, views.seqnum)) for name, view in held]

    def _beginnings(self, name: str) -> tuple[Tail, ...]:
        """Where the view to begin with may be found."""
        tags = (row_tag(name), checkpoints_tag(name), ORIGIN)
        return tuple(Tail(tag, book=self.book) for tag in tags)

    def _begin(self, name: str, found: Sequence[Record | None], floor: int) -> Steps[Row]:
        last, checkpoint, origin = found
        base = None
        if last is not None and last.auxdata is not None:
            base = view_in(last.auxdata, name, last.seqnum)
        if base is None:
            base = yield from self._saved(name, checkpoint)
        if base is None:
            base = View() if origin is None else (yield from self.inherited(name))
        known_to = max(base.last + 1 if base.last else 0, floor)
        saved, known = (0 if record is None else record.seqnum for record in (checkpoint, origin))
        return self.rows.put(Row(name, base, known_to, floor, self.rows.awaited, saved, known))

    def prefetch(self, names: Sequence[str], seqnum: int) -> Steps[None]:
        """Read the rows of several objects up to that seqnum at once, as far as that goes without a look back."""
        cold = [name for name in names if self.rows.find(name) is None]
        if cold and self.is_far:
            for first in range(0, len(cold), far.MAX_ASKED):
                yield from self._open_far(cold[first : first + far.MAX_ASKED], seqnum)
        elif cold:
            yield from self._open_all(cold, _above(seqnum))
        rows = [row for name in names if (row := self.rows.find(name)) is not None and row.known_to <= seqnum]
        quiet = [row for row in rows if self._may_compare(row)]
        if quiet:
            yield from self.compare(quiet)
            rows = [row for row in rows if row.known_to <= seqnum]
        if not rows:
            return
        starts = [row.known_to for row in rows]
        reads = [
            ReadPage(row_tag(row.name), start, _above(seqnum), book=self.book)
            for row, start in zip(rows, starts, strict=True)
        ]
        pages, origins = yield from self._with_origins(rows, reads)
        for row, start, page in zip(rows, starts, pages, strict=True):
            if row.is_inherited(origins):
                self.rows.drop(row.name)
            elif not row.is_overtaken(page, start):
                row.take(page)
                if page.records:
                    self.measure(row)

    def _saved(self, name: str, record: Record | None) -> Steps[View | None]:
        """The view in that record of the object's checkpoints, or in the newest one before it."""
        while record is not None:
            found = codec.own(record.data)
            if isinstance(found, Checkpoint) and found.object == name and found.last < record.seqnum:
                view = view_of(found)
                if view is not None:
                    return view
            record = yield from steps.tail(checkpoints_tag(name), max_seqnum=record.seqnum - 1, book=self.book)
        return None

    def _leave_view(self, row: Row) -> Steps[None]:
        view = row.newest
        if view.last and view.size_bytes < MAX_AUXDATA_BYTES:
            yield SetAuxdata(view.last, codec.encode(checkpoint_of(row.name, view)), self.book)

    # forks

    def inherited(self, name: str) -> Steps[View]:
        """The object as it was in the book that this one is a fork of; without one it does not exist."""
        origin = yield from origin_of(self.book)
        if origin is None:
            return View()
        view = yield from self._other(origin[0].book).view_at(name, origin[0].at)
        return View(view.value, view.size_bytes, version=view.version, is_listed=view.is_listed)

    # as of a seqnum

    def view_at(self, name: str, seqnum: int) -> Steps[View]:
        """The object as of that seqnum. `Trimmed`: that is too long ago."""
        row = self.rows.find(name)
        if row is None:
            row, _ = yield from self._open(name, _above(seqnum))
        view = row.at(seqnum)
        if view is None and row.known_to <= seqnum and row.newest.since <= seqnum:
            row, _ = yield from self._read_on(row, _above(seqnum))
            if row.known_to <= seqnum:  # it is not there yet where this caller reads
                yield Sync(self.book)
                row, _ = yield from self._read_on(row, _above(seqnum))
            view = row.at(min(seqnum, row.known_to - 1))
        if view is None:
            view = yield from self.rebuild(name, seqnum)
        return view

    def views_of(self, names: Sequence[str], seqnum: int = -1) -> Steps[tuple[int, dict[str, View]]]:
        """Objects as of that seqnum, or (-1) as of the end of the log where the first one is read; which that is."""
        if seqnum < 0:
            _, seen_to = yield from self.catch_up(names[0])
            seqnum = max(0, seen_to - 1)
        yield from self.prefetch(names, seqnum)
        views: dict[str, View] = {}
        for name in names:
            views[name] = yield from self.view_at(name, seqnum)
        return seqnum, views

    def view_at_time(self, name: str, time_us: int) -> Steps[View]:
        """The object as it was at that time of the log. `Trimmed`"""
        origin = yield from origin_of(self.book)
        if origin is not None and time_us < origin[1].time:
            return (yield from self._other(origin[0].book).view_at_time(name, time_us))
        read = ReadPage(row_tag(name), limit=1, book=self.book, start_time_s=(time_us + 1) / 1e6)
        page = yield from steps.page(read)
        seqnum = page.records[0].seqnum - 1 if page.records else max(0, page.next_start - 1)
        return (yield from self.view_at(name, seqnum))

    def rebuild(self, name: str, seqnum: int) -> Steps[View]:
        """The object as of that seqnum, from the log alone. `Trimmed`"""
        newest = yield from steps.tail(checkpoints_tag(name), max_seqnum=seqnum, book=self.book)
        view = yield from self._saved(name, newest)
        if view is None:
            view = yield from self.inherited(name)
        start = view.last + 1 if view.last else 0
        while True:
            page = yield from steps.page(ReadPage(row_tag(name), start, _above(seqnum), book=self.book))
            if page.first_seqnum > start:
                start = max(start, (yield from self._begin_after(name, page, view, seqnum)))
            for record in page.records:
                after, write, _ = step(view, name, record)
                if write is None or record.seqnum + write.more <= seqnum:
                    view = after
            start = max(start, page.next_start)
            if page.is_end:
                return view

    def _begin_after(self, name: str, page: Page, view: View, seqnum: int) -> Steps[int]:
        """Where a row begins of which trims have taken away the beginning; `Trimmed` if that was needed as of then."""
        newest = yield from steps.tail(checkpoints_tag(name), max_seqnum=MAX_SEQNUM, book=self.book)
        if newest is not None or view.last or seqnum + 1 < page.first_seqnum:
            raise Trimmed(
                f"object {name!r} of book {self.book!r} was trimmed below seqnum {page.first_seqnum}: read or "
                "fork it as of then or later, and keep more with a longer history",
                next_seqnum=page.first_seqnum,
            )
        return page.first_seqnum  # the book was deleted: there is nothing before


def _below(stop: int, page: Page) -> Page:
    """As much of a page as lies below that seqnum."""
    if page.next_start <= stop:
        return page
    records = [record for record in page.records if record.seqnum < stop]
    return msgspec.structs.replace(page, records=records, next_start=stop)


def _above(seqnum: int) -> int:
    """Where a read ends that includes that seqnum."""
    return min(seqnum + 1, MAX_SEQNUM)


def origin_of(book: str) -> Steps[tuple[Origin, Record] | None]:
    """What that book is a fork of, and the record that says so."""
    page = yield from steps.page(ReadPage(ORIGIN, limit=1, book=book))
    for record in page.records:
        found = codec.own(record.data)
        if isinstance(found, Origin):
            return found, record
    return None


def certain(reads: Steps[T]) -> Steps[T]:
    """Reads that tell the outcome of a commit: an error of theirs says nothing of that."""
    try:
        return (yield from reads)
    except BokiError as error:
        raise uncertain(error) from error
