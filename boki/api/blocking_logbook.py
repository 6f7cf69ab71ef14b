"""The LogBook of blocking code: the same methods as in `boki.api.logbook`, without `await`.

What the methods mean stands in `boki.api.log_calls`, once for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

from boki.api import log_calls
from boki.api.compare_gatherer import Rows
from boki.api.deadline import DEFAULT_TIMEOUT_S, Caller
from boki.api.log_calls import DEFAULT_PAGE_RECORDS, Appendable, Cursor, OnTrimmed, Tags, When, shared
from boki.api.port import BlockingGatewayPort, BlockingLogPort
from boki.api.read_ahead import NoReadAhead as ReadAhead
from boki.errors import BokiError, Unavailable
from boki.log.checks import check_book
from boki.log.chunk import Group
from boki.log.ids import MAX_SEQNUM
from boki.log.metalog import Positions, merge_positions
from boki.log.operations import Answer, Appended, BookInfo, Books, Compare, Compared, Found, Get, Operation, Read, Sync
from boki.log.record import Page, Record

T = TypeVar("T")


class LogSession:
    """One caller's connection to all LogBooks. Libraries have it as `logbook.session`."""

    __slots__ = ("_shared", "caller", "port")

    def __init__(
        self, port: BlockingLogPort, caller: Caller, shared: dict[Callable[[], Any], Any] | None = None
    ) -> None:
        self.port = port
        self.caller = caller
        self._shared = {} if shared is None else shared

    def logbook(self, name: str, *, detached: bool = False) -> LogBook:
        """The LogBook of that name; it exists from its first append.

        `detached`: for work that outlasts the call. It has no deadline, and has seen what the caller has seen by now.
        """
        if detached:
            return LogBook(name, LogSession(self.port, self.caller.detached(), self._shared))
        return LogBook(name, self)

    def shared(self, make: Callable[[], T]) -> T:
        """What `make` returned when it was first given here: libraries keep there what all calls over one connection
        to the log share. It lives as long as the connection.
        """
        return shared(self._shared, make)

    def saw(self, other: LogSession) -> None:
        """From now on this caller reads what the other one has seen: for one that reads on behalf of many."""
        merge_positions(self.caller.positions, other.caller.positions)

    @property
    def has_gateway(self) -> bool:
        """Whether the way to the log goes through a gateway, which answers `ask_gateway`."""
        return isinstance(self.port, BlockingGatewayPort)

    def ask_gateway(self, target: str, body: bytes) -> bytes:
        """Post JSON to a route of a library, as this caller; the JSON that it answers. Only if `has_gateway`."""
        port = self.port
        if not isinstance(port, BlockingGatewayPort):
            raise Unavailable("no gateway is on the way to the log: ask only if session.has_gateway")
        timeout_s = self.caller.deadline.timeout_s(default_s=DEFAULT_TIMEOUT_S)
        return port.ask_gateway(target, body, self.caller.positions, timeout_s)

    def likely_time_us(self) -> int:
        """About what time the log has: by this machine's clock, while records have that of a sequencer. Nothing is
        asked; only an append tells for certain.
        """
        return round(self.caller.wall_clock() * 1e6)

    def check(self, data: bytes, tags: Tags = ()) -> None:
        """Refuse, as an append would, what can never be appended: for records that are gathered and appended later."""
        log_calls.one_record(data, tags, (), None, self.caller.limits)

    def ask(self, operation: Operation, wait_s: float = 0.0, positions: Positions | None = None) -> Answer:
        """One request, within the caller's deadline; `wait_s` is how long the operation itself may wait. The answer
        raises `positions`, or those of the caller if there are none.
        """
        timeout_s = self.caller.deadline.timeout_s(default_s=DEFAULT_TIMEOUT_S + wait_s)
        return self.port.request(operation, self.caller.positions if positions is None else positions, timeout_s)

    def compare(self, book: str, rows: Rows) -> Compared | None:
        """Which of these tags end with another record than the caller knows. None: it cannot be told, so read."""
        tags, lasts = zip(*rows, strict=True)
        try:
            answer = self.ask(Compare(book, tags, lasts))
        except BokiError:
            return None
        assert isinstance(answer, Compared)
        return answer

    def append(self, book: str, group: Group, timeout_s: float | None) -> Sequence[int]:
        """Append a group by a request of its own."""
        caller = self.caller
        caller.check_writable(book)
        timeout_s = caller.deadline.timeout_s(timeout_s)
        operation = log_calls.append_operation(book, [group], caller.limits)
        answer = self.port.request(operation, caller.positions, timeout_s)
        assert isinstance(answer, Appended)
        rejected = answer.rejected[0] if answer.rejected else None
        return log_calls.seqnums_of(answer.first_seqnum, group, rejected, book)

    def books(self, prefix: str = "", *, after: str = "", limit: int = DEFAULT_PAGE_RECORDS) -> list[BookInfo]:
        """Books that have records, by name: the first `limit` that start with `prefix` and come after `after`."""
        answer = self.ask(log_calls.list_books(prefix, after, limit, self.caller.limits))
        assert isinstance(answer, Books)
        return list(answer.books)


# Below: made from `boki.api.logbook` by `python -m tests.unasync`.


class LogBook:
    """A named, independent, totally ordered log of records.

    An operation takes at most 30 seconds, and never longer than the call that it is part of; after that it raises
    `DeadlineExceeded`. What else may be raised says in its `outcome` whether it has happened (see `boki.errors`).
    A `tag` of None means the whole book.
    """

    __slots__ = ("_access", "_ahead", "name")

    def __init__(self, name: str, access: LogSession) -> None:
        self.name = check_book(name)
        self._access = access
        self._ahead = ReadAhead()

    def __repr__(self) -> str:
        return f"<LogBook {self.name!r}>"

    @property
    def session(self) -> LogSession:
        """The caller's connection to the log: other LogBooks, and what libraries need beside the records."""
        return self._access

    def append(
        self, data: bytes, tags: Tags = (), *, when: When = (), key: str | None = None, timeout_s: float | None = None
    ) -> int:
        """Append a record: durable and ordered when this returns its seqnum.

        `when`: conditions that must hold, else `ConditionFailed` and nothing is appended. `key`: the same key within
        24 hours returns the first seqnum and appends nothing, whatever the data.
        """
        group = log_calls.one_record(data, tags, when, key, self._access.caller.limits)
        return self._access.append(self.name, group, timeout_s)[0]

    def append_many(
        self,
        records: Iterable[Appendable],
        *,
        when: When = (),
        key: str | None = None,
        timeout_s: float | None = None,
    ) -> list[int]:
        """Append all records or none, as neighbours in the order of the list; their seqnums.

        A record is bytes, `(data, tags)` or a `NewRecord`. See `append`.
        """
        group = log_calls.many_records(records, when, key, self._access.caller.limits)
        return list(self._access.append(self.name, group, timeout_s))

    def get(self, seqnum: int) -> Record:
        """Exactly that record; else `Trimmed`, or `NotFound`."""
        (record,) = log_calls.records_of(self._find(log_calls.get(self.name, seqnum)))
        return record

    def read_next(self, tag: str | None = None, *, min_seqnum: int = 0, wait_s: float = 0) -> Record | None:
        """The first record with `seqnum >= min_seqnum`. If there is none, wait up to `wait_s` for it, then None.

        Continue with `min_seqnum=record.next_seqnum`: then more records are read ahead (`boki.api.read_ahead`). A wait
        ends before the call's deadline.
        """
        caller, ahead = self._access.caller, self._ahead
        record = ahead.take(tag, min_seqnum, caller)
        if record is not None:
            return record
        size = ahead.size(tag, min_seqnum, caller)
        read = log_calls.read_next(self.name, tag, min_seqnum, size, caller.limits)
        for poll in log_calls.polls(read, wait_s, caller):
            seen = ahead.before(caller)
            found = self._find(poll, seen)
            record = ahead.keep(tag, size, log_calls.records_of(found), seen, caller)
            if record is not None:
                return record
        return None

    def read_prev(self, tag: str | None = None, *, max_seqnum: int = MAX_SEQNUM) -> Record | None:
        """The last record with `seqnum <= max_seqnum`; None if there is none."""
        read = log_calls.read_prev(self.name, tag, max_seqnum, self._access.caller.limits)
        return log_calls.first_record(self._find(read))

    def check_tail(self, tag: str | None = None, *, fresh: bool = False) -> Record | None:
        """The last record. `fresh`: linearizable, so it is not older than anything acknowledged before this call."""
        read = log_calls.read_prev(self.name, tag, MAX_SEQNUM, self._access.caller.limits, fresh=fresh)
        return log_calls.first_record(self._find(read))

    def read(
        self,
        tag: str | None = None,
        *,
        start: int = 0,
        stop: int | None = None,
        limit: int = DEFAULT_PAGE_RECORDS,
        wait_s: float = 0,
        start_time_s: float = 0,
    ) -> Page:
        """Records with `start <= seqnum < stop`, `limit` of them at most; continue with `start=page.next_start`.

        A page may be shorter than the limit, but is never empty before the end. If there is no record, wait up to
        `wait_s` for one. A wait ends before the call's deadline. `start_time_s`: leave out what the log ordered before
        that time, in seconds since the epoch.
        """
        caller = self._access.caller
        read = log_calls.read_page(self.name, tag, start, stop, limit, caller.limits, start_time_s)
        found = None
        for poll in log_calls.polls(read, wait_s, caller):
            found = self._find(poll)
            if found.slabs:
                break
        assert found is not None, "there is at least one poll"
        return log_calls.page_of(found)

    def subscribe(
        self, tag: str | None = None, *, start: int | Literal["now"] = 0, on_trimmed: OnTrimmed = "raise"
    ) -> Subscription:
        """All records from `start` on, and those to come: `for record in logbook.subscribe("tag")`.

        Endless: it waits for new records until the call's deadline. `start=0` is the earliest record that there is;
        "now" is the moment when iteration begins, or when `subscription.begin()` returned before it. If a trim
        takes records away that were not yet read, iteration raises `Trimmed` (`error.next_seqnum` says where to
        continue), or passes over them if `on_trimmed` is "skip".
        """
        return Subscription(Cursor(self.name, tag, start, on_trimmed, self._access.caller), self._access)

    def trim(self, before: int, *, tag: str | None = None) -> None:
        """Records of the tag (of the whole book) with `seqnum < before` are gone when this returns.

        `before` is clamped to the tail, so trimming at MAX never takes what comes later. A trim of the whole book
        spares system tags (those that start with "!").
        """
        self._access.ask(log_calls.trim(self.name, before, tag, self._access.caller))

    def set_auxdata(self, seqnum: int, data: bytes) -> None:
        """Keep `data` beside a record as a cache: later reads may carry it as `record.auxdata`, or may not."""
        self._ahead.forget()
        self._access.ask(log_calls.set_auxdata(self.name, seqnum, data, self._access.caller.limits))

    def sync(self) -> None:
        """What anybody had acknowledged in this book before this call is seen by later reads of it in this context."""
        self._access.ask(Sync(self.name))

    def delete(self) -> None:
        """Take all records of the book away, with its system tags, keys and retention. Appends begin it again."""
        self._access.ask(log_calls.delete(self.name, self._access.caller))

    def set_retention(self, *, age_s: float | None = None, size_bytes: int | None = None) -> None:
        """Have the book trimmed from now on: records older than `age_s`, and the oldest beyond `size_bytes` of data.

        Age is counted in the log's time. None lifts a bound. Trims come some time after they are due.
        """
        self._access.ask(log_calls.set_retention(self.name, age_s, size_bytes, self._access.caller))

    def _find(self, operation: Read | Get, positions: Positions | None = None) -> Found:
        wait_s = operation.wait_us / 1e6 if isinstance(operation, Read) else 0.0
        answer = self._access.ask(operation, wait_s, positions)
        assert isinstance(answer, Found)
        return answer


class Subscription:
    """The records of a LogBook one after the other, or page by page with `batches()`. One reader at a time."""

    __slots__ = ("_access", "_cursor")

    def __init__(self, cursor: Cursor, access: LogSession) -> None:
        self._cursor = cursor
        self._access = access

    def begin(self) -> None:
        """Find out where `start="now"` is: whatever is appended after this has returned is delivered."""
        if not self._cursor.is_placed:
            self._cursor.take(self._ask())

    def __iter__(self) -> Iterator[Record]:
        for page in self.batches():
            yield from page.records

    def batches(self) -> Iterator[Page]:
        """Pages of what exists, never empty; for bulk."""
        while True:
            page = self._cursor.take(self._ask())
            if page is not None:
                yield page

    def _ask(self) -> Found:
        read = self._cursor.read()
        found = self._access.ask(read, read.wait_us / 1e6)
        assert isinstance(found, Found)
        return found
