"""What a caller has seen, and what it has seen now: positions on the way in and on the way out (design promise 3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from boki.engine.index.index import Index
from boki.engine.reads import PendingRead
from boki.engine.waiter import Waiter
from boki.errors import BokiError
from boki.log.ids import LogId, Term
from boki.log.metalog import Positions, split_position
from boki.log.operations import Appended, Books, Done, Found
from boki.protocol.effects import Answer, Effect
from boki.protocol.follower import MetalogFollower


@dataclass(frozen=True, slots=True)
class Answered:
    """What `Answer` effects of an engine carry: the answer or the error, and what its caller has seen now."""

    answer: Appended | Found | Books | Done | BokiError
    positions: Positions


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

    def stamp(self, effects: Iterable[Effect]) -> list[Effect]:
        """The machines answer `Waiter`s; the shell's token gets the answer, with the position of the book, or all."""
        return [self._answered(effect) if isinstance(effect, Answer) else effect for effect in effects]

    def _answered(self, effect: Answer) -> Answer:
        waiter: Waiter = effect.token
        positions: Positions = {}
        if waiter.book is None:
            positions = dict(self._index.applied)
        elif self._follower.chain:
            log = self._follower.chain.current.log_of(waiter.book)
            position = self._index.applied.get(log)
            if position is not None:
                positions[log] = position
        return Answer(waiter.token, Answered(effect.value, positions))
