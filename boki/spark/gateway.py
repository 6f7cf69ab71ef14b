"""The gateway as Spark's planner and tasks use it: whole pages as they are stored; transient errors are retried.

A task that fails is started again from its beginning, which costs more than to wait: while a gateway restarts or the
log is reconfigured, requests are repeated for a minute. The first request of a plan is not, nor the first one of a
process that no gateway has answered yet: an address at which nothing answers is told within ten seconds.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from time import monotonic, sleep
from typing import Final

from boki.api.http.blocking_port import BlockingHttpPort
from boki.errors import BokiError, ConnectionLost, CorruptData, DeadlineExceeded, Unauthorized, Unavailable
from boki.log.ids import MAX_SEQNUM
from boki.log.metalog import Positions
from boki.log.operations import (
    Answer,
    Append,
    Appended,
    BookInfo,
    Books,
    Found,
    ListBooks,
    Operation,
    Read,
    TrimBook,
)
from boki.retry import Backoff

_FIRST_S: Final = 5.0
"""How long the gateway may take over the first request of a plan."""
_TOLD_S: Final = 8.0
"""Names, connections and answers together: who asked first is told within ten seconds that nothing answers."""
_REQUEST_S: Final = 30.0
_RETRY_S: Final = 60.0
_BACKOFF: Final = Backoff(first_s=0.1, longest_s=2.0, jitter=0.0)
_LISTED: Final = 1000
_COUNTED: Final = 1000
NEVER_US: Final = 1 << 62
"""A time that no log comes to."""


def first_seqnum(found: Found) -> int:
    """The first record of a page that has one: where the page continues may be further behind it."""
    return int.from_bytes(found.slabs[0].seqnums[:8], "little", signed=True)


class Pauses:
    """How long something that passes on its own is waited for."""

    def __init__(self) -> None:
        self._until = monotonic() + _RETRY_S
        self._tries = 0

    def pause(self) -> bool:
        """Wait a little, each time a little longer; False, at once, if the time is over."""
        self._tries += 1
        pause_s = _BACKOFF.pause_s(self._tries)
        if monotonic() + pause_s > self._until:
            return False
        sleep(pause_s)
        return True


_answered: set[str] = set()
"""The gateways that have answered this process."""


def has_answered(url: str) -> bool:
    """Whether that gateway has answered this process before, so that it is worth waiting for."""
    return url in _answered


class Gateway:
    """Requests of one planner or task, which is one reader in the sense of the log's promises."""

    def __init__(self, url: str, token: str, positions: Positions | None = None, *, is_known: bool = False) -> None:
        """`positions`: what a plan has seen. `is_known`: it has answered this query before, so it is waited for."""
        self._url = url
        self._port = BlockingHttpPort(url, token)
        self._has_token = bool(token)
        self.positions: Positions = dict(positions or {})
        """What has been seen of the logs."""
        self._has_answered = is_known

    def close(self) -> None:
        """Close its connections."""
        self._port.close()

    def ask(self, operation: Operation, *, is_repeatable: bool = True) -> Answer:
        """The answer. What passes on its own is waited for, if repeating the request does no harm."""
        pauses = Pauses()
        while True:
            try:
                answer = self._request(operation)
            except BokiError as error:
                passes = error.retryable or isinstance(error, ConnectionLost | DeadlineExceeded)
                may_repeat = is_repeatable or error.outcome == "not_applied"
                is_first = not self._has_answered and isinstance(error, Unavailable | ConnectionLost | DeadlineExceeded)
                if is_first or not (passes and may_repeat and pauses.pause()):
                    raise self._explained(error, is_first=is_first) from None
            else:
                self._has_answered = True
                _answered.add(self._url)
                return answer

    def _request(self, operation: Operation) -> Answer:
        """Ask once. The first time in a thread of its own: what looks up names, or trickles, keeps to no deadline."""
        if self._has_answered:
            return self._port.request(operation, self.positions, _REQUEST_S)
        future: Future[Answer] = Future()

        def ask() -> None:
            try:
                future.set_result(self._port.request(operation, self.positions, _FIRST_S))
            except BaseException as error:  # noqa: BLE001 - it is raised where the answer is waited for
                future.set_exception(error)

        threading.Thread(target=ask, daemon=True, name="boki-first-request").start()
        try:
            return future.result(_TOLD_S)
        except TimeoutError:
            raise DeadlineExceeded(f"{self._port.url} did not answer within {_TOLD_S:g} s") from None

    def _explained(self, error: BokiError, *, is_first: bool) -> BokiError:
        """What somebody who has only Spark's options can do about it."""
        if isinstance(error, Unauthorized):
            given = "does not take the token that it was given" if self._has_token else "needs a token"
            return Unauthorized(f"the gateway at {self._port.url} {given}: pass it in the option 'token'")
        if is_first and isinstance(error, ConnectionLost):
            return Unavailable(f"{error.message}: is it a gateway?", retryable=False, outcome=error.outcome)
        if is_first and isinstance(error, DeadlineExceeded):
            return Unavailable(
                f"{self._port.url} takes connections and answers nothing: is it a gateway, and has its log a primary "
                "and a write quorum? `boki status` tells",
                retryable=False,
                outcome=error.outcome,
            )
        return error

    def greet(self) -> None:
        """Find out, and soon, whether anything answers there."""
        self.some_books("", 1)

    def find(self, read: Read) -> Found:
        """A page, behind which there is another one or nothing: whoever reads on comes to an end."""
        found = self.ask(read)
        assert isinstance(found, Found)
        if not (found.is_end or read.backward or read.start < found.next_start):
            raise CorruptData(f"a page of book {read.book!r} from {read.start} goes on at {found.next_start}")
        return found

    def first(self, book: str, tag: str | None, start: int, stop: int = MAX_SEQNUM, start_time_us: int = 0) -> Found:
        """A page of at most one record: the first one there is. Its `first_seqnum` is the floor of trims."""
        return self.find(Read(book, tag, start, stop, start_time_us=start_time_us))

    def tail(self, book: str) -> int:
        """Everything that was acknowledged in the log of that book before this call lies below this seqnum."""
        return self.find(Read(book, fresh=True, start_time_us=NEVER_US)).next_start

    def books(self, prefix: str) -> list[BookInfo]:
        """All books that have records and whose name starts so, by name."""
        found: list[BookInfo] = []
        while True:
            after = found[-1].name if found else ""
            page = self.ask(ListBooks(prefix, after, _LISTED))
            assert isinstance(page, Books)
            if any(info.name <= after for info in page.books):
                raise CorruptData(f"the books after {after!r} begin with {page.books[0].name!r}")
            found += page.books
            if len(page.books) < _LISTED:
                return found

    def some_books(self, prefix: str, limit: int) -> list[BookInfo]:
        """The first of them."""
        page = self.ask(ListBooks(prefix, "", limit))
        assert isinstance(page, Books)
        return list(page.books)

    def book(self, name: str) -> BookInfo | None:
        """What the list of books says of that one; None if it has no records."""
        return next((info for info in self.some_books(name, 1) if info.name == name), None)

    def count(self, book: str, tag: str | None, start: int, stop: int, most: int) -> tuple[int, int]:
        """How many records there are (at least, if there are more than `most`), and the time of the last one."""
        count = last_us = 0
        while start < stop and count < most:
            found = self.find(Read(book, tag, start, stop, _COUNTED))
            count += sum(len(slab.seqnums) // 8 for slab in found.slabs)
            last_us = found.slabs[-1].time_us if found.slabs else last_us
            if found.is_end:
                break
            start = found.next_start
        return count, last_us

    def append(self, operation: Append) -> Appended:
        """Append once: an answer that was lost is raised, not asked for again."""
        answer = self.ask(operation, is_repeatable=False)
        assert isinstance(answer, Appended)
        return answer

    def trim_tag(self, book: str, tag: str, before: int) -> None:
        """Take the tag's records below `before` away; to do it twice changes nothing."""
        self.ask(TrimBook(book, before, tag))
