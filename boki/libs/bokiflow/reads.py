"""What the code of a workflow reads of stores and of the log, kept with its record: a check replays behind such a read.

`NotingWay` stands between a replay on a live system and the log, and notes the answers. `KnownWay` gives the same ones
without a log. Objects are noted as they were when they were read, and pages of the LogBook as they came.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from boki import BokiError, LogBook, Page, Record
from boki.libs.bokiflow.asking import Question
from boki.libs.bokistore.reading import Reader
from boki.libs.bokistore.records import Checkpoint
from boki.libs.bokistore.views import Rows, View, checkpoint_of, view_of
from boki.libs.bokistore.way import Way
from boki.libs.fold import steps
from boki.libs.fold.steps import ReadPage, Steps, Tail

R = TypeVar("R")

MOST_BYTES: Final = 8 << 20
"""What is read beyond this is not kept, and the check ends there."""
_NO_NONCE: Final = bytes(12)


class SeenObject(msgspec.Struct, frozen=True, array_like=True):
    """An object as of a seqnum."""

    name: str
    at: int
    last: int
    since: int
    version: int
    value: str | None
    """JSON; None: it did not exist."""

    def view(self) -> View | None:
        """The object as a store knows it; None if it cannot be one."""
        value = None if self.value is None else self.value.encode()
        return view_of(Checkpoint(self.name, self.last, self.since, self.version, value))


class SeenPage(msgspec.Struct, frozen=True, array_like=True):
    """A page of a tag of the LogBook."""

    tag: str | None
    start: int
    stop: int | None
    limit: int
    page: Page


class SeenLast(msgspec.Struct, frozen=True, array_like=True):
    """The last record of a tag up to a seqnum."""

    tag: str | None
    at: int
    record: Record | None


class Reads(msgspec.Struct, frozen=True, kw_only=True):
    """What the code has read when its workflow was recorded."""

    end: int
    """The end of the log then, if the workflow reads as of that because its journal does not say better; else 0."""
    objects: tuple[SeenObject, ...] = ()
    pages: tuple[SeenPage, ...] = ()
    lasts: tuple[SeenLast, ...] = ()


class NotRecordedError(Exception):
    """The record does not hold what is read."""


class _NotingReader(Reader):
    """Notes the objects that are read."""

    def __init__(self, book: str, way: NotingWay) -> None:
        super().__init__(Rows(), book)
        self._way = way

    def view_at(self, name: str, seqnum: int) -> Steps[View]:
        """See `Reader`."""
        view = yield from super().view_at(name, seqnum)
        self._way.note_object(name, seqnum, view)
        return view


class NotingWay(Way):
    """The way to the log of a replay that is recorded. It remembers no views of others, and saves none."""

    def __init__(self, logbook: LogBook) -> None:
        super().__init__(logbook)
        self.reader = _NotingReader(logbook.name, self)
        self._size = 0
        self._objects: dict[tuple[str, int], SeenObject] = {}
        self._pages: dict[tuple[str | None, int, int | None, int], SeenPage] = {}
        self._lasts: dict[tuple[str | None, int], SeenLast] = {}

    def reads(self, end: int) -> Reads:
        """What was noted."""
        objects, pages, lasts = self._objects.values(), self._pages.values(), self._lasts.values()
        return Reads(end=end, objects=tuple(objects), pages=tuple(pages), lasts=tuple(lasts))

    async def run(self, work: Steps[R]) -> R:
        """See `Way`."""
        return await steps.run(self._noted(work), self.logbook)

    def note_object(self, name: str, seqnum: int, view: View) -> None:
        """An object was read."""
        found = checkpoint_of(name, view)
        value = None if found.value is None else found.value.decode()
        if self._has_room(len(value or "")):
            self._objects[name, seqnum] = SeenObject(name, seqnum, found.last, found.since, found.version, value)

    def _noted(self, work: Steps[R]) -> Steps[R]:
        """The same steps; reads of the LogBook itself are noted, and not those that a view of an object is made of."""
        try:
            operation = next(work)
            while True:
                try:
                    answer = yield operation
                except BokiError as error:
                    operation = work.throw(error)
                else:
                    self._note(operation, answer)
                    operation = work.send(answer)
        except StopIteration as end:
            found: R = end.value
            return found

    def _note(self, operation: Any, answer: Any) -> None:
        if isinstance(operation, ReadPage) and not operation.book and self._has_room(_size(answer.records)):
            place = operation.tag, operation.start, operation.stop, operation.limit
            self._pages[place] = SeenPage(*place, answer)
        elif isinstance(operation, Tail) and not operation.book and self._has_room(_size([answer])):
            self._lasts[operation.tag, operation.max_seqnum] = SeenLast(operation.tag, operation.max_seqnum, answer)

    def _has_room(self, size: int) -> bool:
        self._size += size
        return self._size <= MOST_BYTES


class _KnownReader(Reader):
    """The objects that were noted."""

    def __init__(self, book: str, reads: Reads) -> None:
        super().__init__(Rows(), book)
        self._known = {(one.name, one.at): one for one in reads.objects}

    def view_at(self, name: str, seqnum: int) -> Steps[View]:
        """See `Reader`. `NotRecordedError`"""
        yield from ()
        found = self._known.get((name, seqnum))
        view = None if found is None else found.view()
        if view is None:
            raise NotRecordedError
        return view

    def prefetch(self, names: Any, seqnum: int) -> Steps[None]:  # noqa: ARG002
        """See `Reader`: there is nothing to fetch."""
        yield from ()


class KnownWay(Way):
    """The way to what was noted. `NotRecordedError` where that does not hold the answer."""

    def __init__(self, book: str, reads: Reads) -> None:  # it has no LogBook
        self.reader = _KnownReader(book, reads)
        self.shapes = {}
        self.new_nonce = lambda: _NO_NONCE
        self._pages = {(one.tag, one.start, one.stop, one.limit): one.page for one in reads.pages}
        self._lasts = {(one.tag, one.at): one.record for one in reads.lasts}

    def answer(self, question: Question, position: int) -> tuple[Any, Exception | None]:
        """The answer as of that seqnum, or the error that the body gets."""
        try:
            return steps.drive(question.ask(self, position), self._find), None
        except BokiError as error:
            return None, error

    def _find(self, operation: Any) -> Any:
        try:
            if isinstance(operation, ReadPage):
                return self._pages[operation.tag, operation.start, operation.stop, operation.limit]
            if isinstance(operation, Tail):
                return self._lasts[operation.tag, operation.max_seqnum]
        except KeyError:
            pass
        raise NotRecordedError


def _size(records: list[Record | None]) -> int:
    return sum(len(record.data) for record in records if record is not None)
