"""How many unfinished calls there may be: bounds of those that are suspended, and of those that run or wait to."""

from __future__ import annotations

from typing import Final, NamedTuple

from boki.books.calls.call_book import CallBook
from boki.errors import Overloaded
from boki.protocol.calls import Call

_RETRY_AFTER_S: Final = 1
_MORE_PART: Final = 8
"""Calls that attend to something may be an eighth more, and at least eight: a kill begins one."""


class Room(NamedTuple):
    """See the module."""

    book: CallBook
    max_waiting: int
    max_suspended: int

    def check(self, accepting: int, call: Call | None = None) -> None:
        """`Overloaded` if no call is accepted now, where `accepting` others are about to be. A start of a `call` that
        is there adds none, and what attends to something has more room: by it workflows are killed, which makes room.
        """
        ledger = self.book.ledger
        if call is not None and call.id in ledger.waiting:
            return
        attends = call is not None and call.chosen is not None and call.chosen.attends != ""
        suspended = ledger.suspended_count
        if suspended >= _most(self.max_suspended, attends):
            raise Overloaded(
                f"{self.max_suspended} logged calls are suspended, as many as are kept: until some have ended, no "
                "call is accepted (`boki calls list --state suspended` shows them)",
                retry_after_s=_RETRY_AFTER_S,
                limit=self.max_suspended,
            )
        if len(ledger.waiting) - suspended + accepting >= _most(self.max_waiting, attends):
            raise Overloaded(
                f"{self.max_waiting} logged calls wait to be run, as many as are accepted",
                retry_after_s=_RETRY_AFTER_S,
                limit=self.max_waiting,
            )


def _most(limit: int, attends: bool) -> int:
    return limit + max(limit // _MORE_PART, _MORE_PART) if attends else limit
