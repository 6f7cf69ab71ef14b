"""What a caller has seen, and what it has seen now: positions on the way in and on the way out (design promise 3)."""

from __future__ import annotations

from collections.abc import Iterable

from boki.engine.index.index import Index
from boki.engine.pending_read import PendingRead
from boki.engine.waiter import Ended, Unstamped
from boki.log.ids import LogId, Term
from boki.log.metalog import Positions, split_position
from boki.protocol.effects import Answer, Effect
from boki.protocol.follower import MetalogFollower


class Stamps:
    """Of one engine."""

    def __init__(self, follower: MetalogFollower, index: Index) -> None:
        self._follower = follower
        self._index = index

    def is_caught_up(self, read: PendingRead) -> bool:
        """Whether the index has seen all that the read's caller has seen.

        Terms are applied one after the other, each log of one to its end before any of the next. So it is enough to
        be in the newest term that the caller has seen, and at its position in the book's own log of that term.
        """
        term = self._follower.term
        if term != self._follower.chain.current.term or term < read.needs_term:
            return False
        book = read.waiter.book
        if book is None:
            return all(self._has_applied(log, needed, term) for log, needed in read.needs.items())
        log = self._follower.view.log_of(book)
        return self._has_applied(log, read.needs.get(log, 0), term)

    def _has_applied(self, log: LogId, needed: int, term: Term) -> bool:
        return split_position(needed)[0] < term or self._index.applied.get(log, 0) >= needed

    def tail_of(self, book: str) -> int:
        """No record of the book stands at or above this."""
        return self._index.next_seqnum(self._follower.view.log_of(book))

    def stamp(self, effects: Iterable[Unstamped]) -> list[Effect]:
        """An operation that has ended is answered with the position of its book, or with all."""
        return [self._answer(effect) if isinstance(effect, Ended) else effect for effect in effects]

    def _answer(self, ended: Ended) -> Answer:
        waiter = ended.waiter
        positions: Positions = {}
        if waiter.book is None:
            positions = dict(self._index.applied)
        elif self._follower.chain:
            log = self._follower.view.log_of(waiter.book)  # a newer view may be known and not be followed yet
            position = self._index.applied.get(log)
            if position is not None:
                positions[log] = position
        return Answer(waiter.token, ended.answer, positions)
