"""A system in memory, and gateways to it as planners, tasks and lanes use them: unit tests without Spark or a server.

`MemorySystem` is the log: several physical logs, terms, trims and deletions over `MemoryLog`, held to the rules of the
gateway's edge. `MemoryGateway` is one client of it: all that `boki.spark.gateway.Gateway` has, as it is there, but for
`ask`, which answers at once and repeats nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from boki.api.log_calls import records_of
from boki.errors import BokiError
from boki.log.checks import check_request
from boki.log.chunk import Group, encode_chunk
from boki.log.ids import MAX_SEQNUM, SYSTEM_BOOK_PREFIX, make_seqnum
from boki.log.limits import DEFAULT_LIMITS, Limits
from boki.log.memory import MemoryLog
from boki.log.metalog import Positions, make_position, merge_positions
from boki.log.operations import Answer, Append, Appended, Books, Found, ListBooks, Operation, Read, TrimBook
from boki.log.record import Record
from boki.log.view import place_book
from boki.spark.gateway import Gateway

SECOND_US = 1_000_000


class MemorySystem:
    """All books, in `logs` physical logs of a term that `new_term` ends. A record is a second later than the last."""

    def __init__(self, logs: int = 1, limits: Limits = DEFAULT_LIMITS) -> None:
        self.log = MemoryLog(limits)
        self.term = 0
        self.now_us = 1_700_000_000 * SECOND_US
        self.tails: list[int] = []
        """Per physical log of this term, the seqnum that its next record gets."""
        self.applied = 0
        """Operations so far: what positions count here."""
        self.new_term(logs)

    def new_term(self, logs: int) -> None:
        """Seal the term, and begin another with this many physical logs."""
        self.term += 1
        self.tails = [make_seqnum(self.term, log, 0) for log in range(logs)]

    def gateway(self, positions: Positions | None = None) -> MemoryGateway:
        """One more client."""
        return MemoryGateway(self, positions)

    def answer(self, operation: Operation) -> Answer:
        """Carry out an operation, as a gateway would; raises what it refuses."""
        check_request(operation, self.log.limits)
        self.applied += 1
        book = "" if isinstance(operation, ListBooks) else operation.book
        log = place_book(book, len(self.tails))
        self.log.next_seqnum = self.tails[log]
        if isinstance(operation, ListBooks):
            return self._list(operation)
        answer = self.log.answer(operation, self.now_us)
        self.tails[log] = self.log.next_seqnum
        return answer

    def _list(self, operation: ListBooks) -> Books:
        """Books of the runtime are listed for those only who name their prefix."""
        books = self.log.answer(ListBooks(operation.prefix, operation.after, 1 << 30), self.now_us)
        assert isinstance(books, Books)
        shows_system = operation.prefix.startswith(SYSTEM_BOOK_PREFIX)
        shown = [info for info in books.books if shows_system or not info.name.startswith(SYSTEM_BOOK_PREFIX)]
        return Books(tuple(shown[: operation.limit]))

    def positions_of(self, operation: Operation) -> Positions:
        """What an answer says of the logs: of the book's own log, or of all."""
        seen = make_position(self.term, self.applied)
        if isinstance(operation, ListBooks):
            return dict.fromkeys(range(len(self.tails)), seen)
        return {place_book(operation.book, len(self.tails)): seen}

    # what tests do to it

    def append(self, book: str, *datas: bytes, tags: Sequence[str] = (), is_runtime: bool = False) -> list[int]:
        """Append records in one group; their seqnums. `is_runtime`: into a book of the runtime's own."""
        self.now_us += SECOND_US
        operation = Append(book, encode_chunk(book, [Group([(data, tuple(tags)) for data in datas])]))
        if is_runtime:
            log = place_book(book, len(self.tails))
            self.log.next_seqnum = self.tails[log]
            answer = self.log.answer(operation, self.now_us)
            self.tails[log] = self.log.next_seqnum
        else:
            answer = self.answer(operation)
        assert isinstance(answer, Appended)
        return list(range(answer.first_seqnum, answer.first_seqnum + len(datas)))

    def trim(self, book: str, before: int = MAX_SEQNUM, tag: str | None = None) -> None:
        """Trim the book, or one tag of it."""
        self.answer(TrimBook(book, before, tag))

    def delete(self, book: str) -> None:
        """Delete the book as a whole."""
        self.answer(TrimBook(book, MAX_SEQNUM, everything=True))

    def records(self, book: str, tag: str | None = None) -> list[Record]:
        """All that can be read."""
        found: list[Record] = []
        start = 0
        while True:
            page = self.log.answer(Read(book, tag, start, limit=1000), self.now_us)
            assert isinstance(page, Found)
            found += records_of(page)
            if page.is_end:
                return found
            start = page.next_start


class MemoryGateway(Gateway):
    """One client. `before` and `after` are called with each operation, and may raise what the client is to see."""

    def __init__(self, system: MemorySystem, positions: Positions | None = None) -> None:
        self.system = system
        self.positions = dict(positions or {})
        self.before: list[Callable[[Operation], None]] = []
        """Called before an operation is carried out: raise, and it is not; or do something to the system first."""
        self.after: list[Callable[[Operation], None]] = []
        """Called when it is carried out, before the client knows: raise `ConnectionLost`, and the answer is lost."""
        self.asked: list[Operation] = []
        self.is_closed = False

    def close(self) -> None:
        """See `Gateway`."""
        self.is_closed = True

    def ask(self, operation: Operation, *, is_repeatable: bool = True) -> Answer:
        """See `Gateway`; nothing is waited for here, and nothing repeated."""
        self.asked.append(operation)
        for hook in list(self.before):
            hook(operation)
        answer = self.system.answer(operation)
        for hook in list(self.after):
            hook(operation)
        merge_positions(self.positions, self.system.positions_of(operation))
        return answer


def once(action: Callable[[], object], is_meant: Callable[[Operation], bool]) -> Callable[[Operation], None]:
    """A hook that acts at the first operation that is meant, and never again."""
    left = [action]

    def hook(operation: Operation) -> None:
        if left and is_meant(operation):
            left.pop()()

    return hook


def raising(errors: Iterable[BokiError | None], is_meant: Callable[[Operation], bool]) -> Callable[[Operation], None]:
    """A hook that raises one of these after the other, None for none, at the operations that are meant."""
    left = deque(errors)

    def hook(operation: Operation) -> None:
        if left and is_meant(operation) and (error := left.popleft()) is not None:
            raise error

    return hook
