"""The caller of an operation that is under way, and how the machines of an engine say that the operation has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from boki.errors import BokiError
from boki.log.operations import Appended, Books, Compared, Done, Found
from boki.protocol.effects import Effect, Token


@dataclass(frozen=True, slots=True)
class Waiter:
    """`token` is the shell's. `book` tells whose log's position the answer is stamped with; None: no book's."""

    book: str | None
    token: Token


NOBODY: Final = Waiter(None, None)
"""In place of a caller that has been answered."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The operation has ended. `boki.engine.stamps` makes an `Answer` of it."""

    waiter: Waiter
    answer: Appended | Found | Compared | Books | Done | BokiError


Unstamped = Effect | Ended
"""What the machines of an engine decide: operations that have ended still lack what their callers have seen."""
