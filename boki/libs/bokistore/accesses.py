"""The way to objects outside of a transaction: as they are now. Generators of operations.

An update of a single object is one append without a condition: it always counts, and its result is what the log's order
says, which a read of the row's news tells. A process that was the only one to change the object lately guesses that it
still is, and says so as a condition: then it knows the result without that read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from boki import BokiError, ConditionFailed, Expect, KeyReused, NewRecord, NotFound, TooLarge, Trimmed
from boki.extending import uncertain
from boki.libs.bokistore.far import FarViews
from boki.libs.bokistore.json_values import MISSING
from boki.libs.bokistore.listing import entry_of, with_names, without_names
from boki.libs.bokistore.queries import Question, answer_of
from boki.libs.bokistore.reading import Reader
from boki.libs.bokistore.records import Author, Write, codec, row_tag, signed, write_records
from boki.libs.bokistore.refusals import KeyExpired, WrongShape, key_expired, of_object
from boki.libs.bokistore.updates import Set, Update, apply
from boki.libs.bokistore.views import Outcome, Row, View, step
from boki.libs.fold import steps
from boki.libs.fold.steps import Steps


class Looks(Protocol):
    """What answers questions of objects."""

    def look(self, name: str, query: Question) -> Steps[Any]:
        """The answer to a question."""

    def look_all(self, questions: Sequence[tuple[str, Question]]) -> Steps[list[Any]]:
        """The answers to several, of the objects that stand with them."""

    def prefetch(self, names: Sequence[str]) -> Steps[None]:
        """Read several objects at once that are going to be asked, where that is of use."""


class Access(Looks, Protocol):
    """What the handle of an object does its work with."""

    def change(self, name: str, update: Update, key: str | None = None) -> Steps[Any]:
        """The result of an update. `key`: it counts once, however often it comes."""

    def version_of(self, name: str) -> Steps[int]:
        """From which seqnum on the object has its value; 0: nothing has changed it."""


def look_all(access: Looks, questions: Sequence[tuple[str, Question]]) -> Steps[list[Any]]:
    """The answers one by one, of objects that are read at once."""
    yield from access.prefetch(list(dict.fromkeys(name for name, _ in questions)))
    answers = []
    for name, question in questions:
        answers.append((yield from access.look(name, question)))
    return answers


class Direct:
    """Objects as they are now."""

    def __init__(self, reader: Reader, author: Author, new_nonce: Callable[[], bytes]) -> None:
        self._reader = reader
        self.author = author
        self._new_nonce = new_nonce

    @property
    def book(self) -> str:
        """The name of the LogBook."""
        return self._reader.book

    @property
    def is_far(self) -> bool:
        """Whether a gateway's views are nearer than the log."""
        return self._reader.is_far

    def prefetch(self, names: Sequence[str]) -> Steps[None]:  # noqa: ARG002
        """See `Access`: each question reads what is new anyway."""
        yield from ()

    def look(self, name: str, query: Question) -> Steps[Any]:
        """See `Access`."""
        if self._reader.is_far and self._reader.rows.find(name) is None:
            return (yield from FarViews(self._reader.book).look(name, query))
        view = yield from self._reader.now(name)
        return answer_of(name, query, view.value)

    def look_all(self, questions: Sequence[tuple[str, Question]]) -> Steps[list[Any]]:
        """See `Access`. Each as it is when it is asked."""
        return (yield from look_all(self, questions))

    def version_of(self, name: str) -> Steps[int]:
        """See `Access`."""
        view = yield from self._reader.now(name)
        return view.version

    def change(self, name: str, update: Update, key: str | None = None) -> Steps[Any]:
        """See `Access`. If the answer to the append is lost, the error says that the outcome is unknown: repeat it
        under a `key`.
        """
        row = yield from self._reader.begin(name)  # what cannot be read is not changed; afterwards it would be too late
        is_first = not row.writing and key is None
        row.writing += 1
        try:
            if is_first and self._reader.is_own(row):
                try:
                    return (yield from self._append_next(row, update))
                except (ConditionFailed, WrongShape, TooLarge):
                    row.own_streak = 0
            return (yield from self._append(name, update, key))
        finally:
            row.writing -= 1

    def _append_next(self, row: Row, update: Update) -> Steps[Any]:
        """Append on the condition that no other process has changed the object: then the result is known without a
        read, which costs as much as the append. `ConditionFailed`: one has.
        """
        view = row.newest
        changed = apply(view.value, view.size_bytes, [update])
        nonce: bytes = self._new_nonce()
        records = self._records(row.name, update, nonce)
        awaited = self._reader.rows.awaited
        awaited[nonce] = None  # another reader of this process may meet it first, and must know it for its own
        try:
            (seqnum,) = yield from steps.append(records, when=[Expect(row_tag(row.name), last_seqnum=view.last)])
        finally:
            del awaited[nonce]
        is_listed = changed.value is not MISSING
        after = View(changed.value, changed.size_bytes, seqnum, seqnum, seqnum, is_listed)
        row.learn(view.last, after, sum(len(record.data) for record in records))
        self._reader.measure(row)
        return changed.results[0]

    def _append(self, name: str, update: Update, key: str | None) -> Steps[Any]:
        nonce: bytes = self._new_nonce()
        records = self._records(name, update, nonce)
        awaited = self._reader.rows.awaited
        awaited[nonce] = None
        try:
            (seqnum,) = yield from steps.append(records, key=None if key is None else f"!o:{key}")
            try:
                row, _ = yield from self._reader.catch_up(name)
                outcome = awaited[nonce]
                if outcome is None:
                    outcome = yield from self._outcome_of(name, seqnum, update, nonce, key)
            except (KeyReused, KeyExpired):
                raise
            except BokiError as error:  # it stands in the log, whatever a read of it says
                raise uncertain(error) from error
        finally:
            del awaited[nonce]
        if outcome.error is not None:
            raise of_object(outcome.error, name)
        if row.newest.value is not MISSING and not row.newest.is_listed:
            yield from list_again(row, self._new_nonce(), self.author)
        return outcome.results[0]

    def _records(self, name: str, update: Update, nonce: bytes) -> list[NewRecord]:
        updates = with_names([(name, [update])], self._reader.is_listed)
        return write_records(updates, nonce, signed(self.author), is_transaction=False)

    def _outcome_of(self, name: str, seqnum: int, update: Update, nonce: bytes, key: str | None) -> Steps[Outcome]:
        """What the log says of a write at that seqnum: of this one, or of the first one under its key."""
        try:
            record = yield from steps.get(seqnum)
        except (NotFound, Trimmed):
            if key is None:
                raise
            raise key_expired(key, self._reader.book, seqnum) from None
        write = codec.own(record.data)
        is_own = isinstance(write, Write) and write.nonce == nonce
        if not isinstance(write, Write) or not (is_own or without_names(write.updates) == [(name, [update])]):
            raise KeyReused(
                f"key {key!r} was used for another update in book {self._reader.book!r}: nothing was changed; give "
                "each update a key of its own",
                key=key,
            )
        try:
            before = yield from self._reader.view_at(name, seqnum - 1)
        except Trimmed:
            if key is None:
                raise
            raise key_expired(key, self._reader.book, seqnum) from None
        _, _, outcome = step(before, name, record)
        return outcome


def list_again(row: Row, nonce: bytes, author: Author) -> Steps[None]:
    """Put into the list what was deleted by others while this process took it for there, and so is not in it.

    If this is cut off or refused, the next write of the object does it.
    """
    entry = entry_of(row.name)
    if entry is not None:
        updates: list[Update] = [Set(entry[1:], b"true")]
        records = write_records([(entry[0], updates)], nonce, author, is_transaction=False)
        with suppress(BokiError):
            yield from steps.append(records, when=[Expect(row_tag(row.name), last_seqnum=row.newest.last)])
