"""Parts of a transaction that can be undone alone: blocks inside of its block, also where several tasks use it at once.

A part that raises is undone as if it had not been. What another task has read or written since the part began may
stand on what the part has written, or would be undone with it. So then the whole transaction must not commit. Nor must
it while a part is open, in a task that was not awaited.
"""

from __future__ import annotations

from contextvars import ContextVar
from itertools import count
from typing import Final

from boki import WrongState

_numbers: Final = count(1)
OWN_PARTS: Final[ContextVar[frozenset[int]]] = ContextVar("boki.store.parts", default=frozenset())
"""The parts in which this task is."""


class Parts:
    """The parts of one transaction that are open."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._shared: set[int] = set()
        self._is_broken = False

    def begin(self) -> int:
        """A part begins in this task."""
        number = next(_numbers)
        self._open.add(number)
        OWN_PARTS.set(OWN_PARTS.get() | {number})
        return number

    def used(self) -> None:
        """This task reads or writes: what others have open can no longer be undone alone."""
        if self._open:
            self._shared |= self._open - OWN_PARTS.get()

    def end(self, number: int, *, is_undone: bool) -> None:
        """The part is over."""
        self._open.discard(number)
        OWN_PARTS.set(OWN_PARTS.get() - {number})
        self._is_broken = self._is_broken or (is_undone and number in self._shared)

    def check(self) -> None:
        """`WrongState`: the transaction must not commit."""
        if self._open:
            raise WrongState(
                "a block inside of this transaction has not ended, and what it writes cannot be committed by halves: "
                "nothing was changed; await its task before the outer block ends"
            )
        if self._is_broken:
            raise WrongState(
                "a block inside of this transaction raised while another task used the transaction, and neither can be "
                "undone alone: nothing was changed; let the error out of the outer block, too, or do one after another"
            )
