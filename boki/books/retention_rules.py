"""The rules of retention as records of the system book `boki:retention`, and the fold of them."""

from __future__ import annotations

from typing import Final

import msgspec

from boki.libs.fold.fold import Fold

BOOK: Final = "boki:retention"


class Rule(msgspec.Struct, frozen=True):
    """What a book keeps; None: without bound."""

    book: str
    age_s: float | None = None
    size_bytes: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the book keeps everything."""
        return self.age_s is None and self.size_bytes is None


class Rules(Fold[Rule]):
    """The rule of each book, by folding the records of the system book in order: the last one counts."""

    def __init__(self) -> None:
        self.by_book: dict[str, Rule] = {}

    def apply(self, seqnum: int, time_us: int, rule: Rule) -> None:  # noqa: ARG002 - when it was set does not matter
        """Take in the next rule."""
        self.by_book.pop(rule.book, None)
        if not rule.is_empty:
            self.by_book[rule.book] = rule
