"""What the body of a workflow asks of the log, and what it writes to the store: values, which `keeping` carries out.

A **question** is answered as of the workflow's position (`boki.libs.bokiflow.positions`) and needs no record. A
**write** is a command like a step: it has a number, its end is in the journal, and a replay gets that end. Its record
and those of the store are one group, so it is in the log once, or not at all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import permutations
from typing import Any, Final, Protocol

from msgspec.structs import replace

from boki import MAX_SEQNUM, BokiError, NewRecord, Page, Record, TooLarge
from boki.extending import Failure, decode_any, encode_any
from boki.libs.bokiflow.digests import digest_of
from boki.libs.bokiflow.joins import Base
from boki.libs.bokiflow.records import Result
from boki.libs.bokistore.json_values import MISSING, is_equal
from boki.libs.bokistore.overwriting import overwrite
from boki.libs.bokistore.parts import Parts
from boki.libs.bokistore.paths import Segments
from boki.libs.bokistore.queries import Question as Query
from boki.libs.bokistore.queries import ValueAt
from boki.libs.bokistore.records import Author
from boki.libs.bokistore.refusals import WrongShape
from boki.libs.bokistore.transactions import Transaction
from boki.libs.bokistore.updates import Set, Update
from boki.libs.bokistore.way import Way
from boki.libs.fold import steps
from boki.libs.fold.arguments import check_count
from boki.libs.fold.outbox import Outbox
from boki.libs.fold.steps import ReadPage, Steps

_PAGE_BYTES: Final = 4 << 20
"""A page of the log ends after the record that crosses this."""
_MOST_ORDERED: Final = 5
"""Orders of more objects than this are too many to try."""


class Question(Protocol):
    """Something to be read."""

    @property
    def subject(self) -> str:
        """What is read, for people."""

    def ask(self, way: Way, position: int) -> Steps[Any]:
        """The answer as of that seqnum; `Trimmed` if that is not in the log any more."""


class Look:
    """A query of an object."""

    def __init__(self, name: str, query: Query) -> None:
        self.subject = f"object {name}"
        self._name = name
        self._query = query

    def ask(self, way: Way, position: int) -> Steps[Any]:
        """See `Question`."""
        view = yield from way.reader.view_at(self._name, position)
        return self._query(view.value)


class VersionAt:
    """The version of an object."""

    def __init__(self, name: str) -> None:
        self.subject = f"object {name}"
        self._name = name

    def ask(self, way: Way, position: int) -> Steps[int]:
        """See `Question`."""
        view = yield from way.reader.view_at(self._name, position)
        version: int = view.version
        return version


class Load:
    """Objects for a transaction, which reads all of them as of the moment of its first one."""

    def __init__(self, txn: Draft, names: Sequence[str]) -> None:
        self.subject = f"object {', '.join(names)} in a transaction" if names else "the moment of a transaction"
        self._txn = txn
        self._names = names

    def ask(self, way: Way, position: int) -> Steps[None]:
        """See `Question`."""
        core = yield from self._txn.begun(way, position)
        yield from core.prefetch(self._names)
        for name in self._names:
            yield from core.load(name)


class ReadLog:
    """A page of a tag of the LogBook.

    How many records the log gives at once depends on what is in its cache, and so does auxiliary data. So the page is
    read on until its limits, without such data: a replay is given the same one.
    """

    def __init__(self, tag: str | None, start: int, stop: int | None, limit: int) -> None:
        self.subject = _log(tag)
        self._read = ReadPage(tag, start, stop, limit)

    def ask(self, way: Way, position: int) -> Steps[Page]:  # noqa: ARG002
        """See `Question`."""
        read = self._read
        check_count(read.start, "start", MAX_SEQNUM, least=0)
        stop = position + 1
        if read.stop is not None:
            stop = min(check_count(read.stop, "stop", MAX_SEQNUM, least=0), stop)
        start, records, size_bytes = min(read.start, stop), list[Record](), 0
        while True:
            page = yield from steps.page(ReadPage(read.tag, start, stop, read.limit - len(records)))
            for record in page.records:
                records.append(_without_auxdata(record))
                size_bytes += len(record.data)
                if size_bytes >= _PAGE_BYTES:
                    return replace(page, records=records, next_start=record.next_seqnum, is_end=False)
            if page.is_end or len(records) >= read.limit:
                return replace(page, records=records)
            start = page.next_start


class ReadLast:
    """The last record of a tag of the LogBook."""

    def __init__(self, tag: str | None) -> None:
        self.subject = _log(tag)
        self._tag = tag

    def ask(self, way: Way, position: int) -> Steps[Record | None]:  # noqa: ARG002
        """See `Question`."""
        last = yield from steps.tail(self._tag, max_seqnum=position)
        return None if last is None else _without_auxdata(last)


class Draft:
    """A transaction of a workflow, as far as it has come: made by its first read, in each execution."""

    def __init__(self) -> None:
        self.core: Transaction | None = None
        self.used: set[str] = set()
        """The objects that the code of the workflow, and its children, have used: not those that it began with."""
        self.extra: list[NewRecord] = []
        """Records of the application that are appended with it."""
        self.base: Base | None = None
        """What it begins with, if it is a part of the transaction of another workflow."""
        self.parts = Parts()
        """Blocks of several tasks inside of its block."""
        self.calls = 0
        """Number of children in it that have not ended."""
        self.failed = ""
        """Why it cannot be committed any more."""

    def begun(self, way: Way, position: int) -> Steps[Transaction]:
        """The transaction, which reads as of that seqnum, or as of the one that its parent reads as of."""
        if self.core is None:
            core = Transaction(way.reader, way.new_nonce(), Author())
            core.begin_at(position if self.base is None else self.base.snapshot)
            for name, updates in [] if self.base is None else self.base.written:
                for update in updates:
                    yield from core.change(name, update)
            self.core = self.core or core  # another task of the workflow may have been faster
        return self.core

    def use(self, names: Sequence[str]) -> None:
        """The code of the workflow uses these, which are loaded. What it writes is told in the order in which it first
        uses them, which is the same in every replay; the one in which they were loaded is not.
        """
        assert self.core is not None, "it has begun"
        known = self.used.union(name for name, _ in (self.base.written if self.base is not None else ()))
        new = [name for name in names if name not in known]
        self.core.put_last(new)
        self.used.update(names)

    @property
    def is_empty(self) -> bool:
        """Whether it has written nothing."""
        return not self.extra and (self.core is None or not self.core.written)


class Committing(Protocol):
    """Records that are appended with the journal."""

    def hand_over(self, outbox: Outbox) -> None:
        """Add them, with the conditions under which they count."""


class StoreWork(ABC):
    """Something that is written with the journal, in one group: what all kinds have in common."""

    waits = True
    is_fenced = True
    """Whether it is refused when the workflow has lost a lock that it holds."""
    is_pure: bool = False
    name: str
    digest: bytes

    @abstractmethod
    def prepare(self, way: Way, author: Author) -> Steps[tuple[Committing | None, Any]]:
        """What to append, with what it comes to; None if nothing is to be changed."""

    @abstractmethod
    def again(self) -> Steps[None]:
        """The log has refused it, because an object has changed meanwhile. `ConflictError`: that ends it."""

    def recognize(self, digest: bytes) -> None:  # noqa: B027
        """Take the digest that its record has, if an earlier version may have made it of the same work."""

    @staticmethod
    def result(value: Any) -> Result:
        """The record of what it comes to; an error is raised in the body."""
        if isinstance(value, BokiError):
            return Result(None, Failure.of(value))
        return Result(encode_any([] if value is MISSING else [value], "what a write came to"))

    @staticmethod
    def value(result: Result) -> Any:
        """See `boki.libs.bokiflow.machine.Work`."""
        if result.failure is not None:
            raise result.failure.error()
        if result.value is None:
            return None
        found = decode_any(result.value, "what a write came to")
        return found[0] if found else MISSING


class WriteWork(StoreWork):
    """One update of one object. `expects`: only if that is the value at its path; then it comes to whether it was."""

    def __init__(self, object_name: str, update: Update, expects: tuple[Segments, Any] | None = None) -> None:
        self.name = f"{type(update).__name__.lower()} {object_name}"
        self._object = object_name
        self._update = update
        self._expects = expects
        self._was_refused = False
        self.digest = digest_of((object_name, update, *(() if expects is None else expects)), {}, self.name)

    def prepare(self, way: Way, author: Author) -> Steps[tuple[Committing | None, Any]]:
        """See `StoreWork`. A whole object that is set comes to the same whatever it was: it is not read."""
        update = self._update
        if isinstance(update, Set) and not update.path and self._expects is None:
            may_guess = not self._was_refused
            blind = yield from overwrite(way.reader, self._object, update, author, way.new_nonce, may_guess=may_guess)
            if blind is not None:
                return blind, None
        core = Transaction(way.reader, way.new_nonce(), author)
        try:
            if self._expects is not None:
                path, expected = self._expects
                found = yield from core.look(self._object, ValueAt(path))
                if not is_equal(None if found is MISSING else found, expected):
                    return core, False  # what it has seen must hold where the record stands, as for a write
            result = yield from core.change(self._object, self._update)
        except (WrongShape, TooLarge) as error:
            return core, error  # so must what it does not fit
        return core, result if self._expects is None else True

    def again(self) -> Steps[None]:
        """See `StoreWork`: it is made again, of the newest version, and without a guess."""
        self._was_refused = True
        yield from ()


class CommitWork(StoreWork):
    """The end of a transaction."""

    name = "commit"

    def __init__(self, txn: Draft) -> None:
        self._txn = txn
        self._written = [] if txn.core is None else txn.core.written
        self.digest = self._digest_of(self._written)

    def _digest_of(self, written: Sequence[tuple[str, list[Update]]]) -> bytes:
        return digest_of((written, [(record.data, record.tags) for record in self._txn.extra]), {}, self.name)

    def recognize(self, digest: bytes) -> None:
        """See `StoreWork`. Until 2026-11-28 it told objects that were loaded side by side in the order of the log's
        answers.
        """
        if digest != self.digest and len(self._written) <= _MOST_ORDERED:
            told = (self._digest_of(order) for order in permutations(self._written))
            self.digest = next((each for each in told if each == digest), self.digest)

    def prepare(self, way: Way, author: Author) -> Steps[tuple[Transaction | None, Any]]:
        """See `StoreWork`."""
        core = self._txn.core
        if core is None:
            core = self._txn.core = Transaction(way.reader, way.new_nonce(), author)
        core.author = author
        while core.extra_count < len(self._txn.extra):
            core.append(self._txn.extra[core.extra_count])
        yield from ()
        return core, None

    def again(self) -> Steps[None]:
        """See `StoreWork`."""
        assert self._txn.core is not None, "it was prepared"
        yield from self._txn.core.rebase()


def _without_auxdata(record: Record) -> Record:
    return record if record.auxdata is None else replace(record, auxdata=None)


def _log(tag: str | None) -> str:
    return "the LogBook" if tag is None else f"tag {tag} of the LogBook"
