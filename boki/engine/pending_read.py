"""A read that has not been answered, and the moments at which it must be looked at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from boki.engine.waiter import Waiter
from boki.log.ids import Term
from boki.log.metalog import Positions, split_position
from boki.log.operations import Compare, Get, ListBooks, Read, SetAuxdata, Sync

ReadOperation = Read | Get | Compare | SetAuxdata | ListBooks | Sync


@dataclass(slots=True, eq=False)
class PendingRead:
    """A read that has not been answered. `needs` is what the index must have reached, per log."""

    operation: ReadOperation
    waiter: Waiter
    needs: Positions
    deadline_us: int
    wait_until_us: int
    is_done: bool = False
    seen_until: int = 0
    """While it waited, there was nothing for it below this: a trim up to here has taken nothing that it wants."""
    missed_below: int = 0
    """Each time that it began to wait, or continued, trims had taken what was below this and it had not seen."""
    needs_term: Term = 0
    """The newest term in `needs`."""
    most: int = 1 << 62
    """This many records a backward page may have: fewer when they do not fit into the cache together."""
    covered: int = 0
    """How many of a backward page the cache has held at once."""

    def __post_init__(self) -> None:
        self.needs_term = max((split_position(position)[0] for position in self.needs.values()), default=0)


class Due(IntEnum):
    """Why a read is looked at. At one moment the first comes first."""

    WAIT_END = 1
    """It is answered with the records present."""
    DEADLINE = 2
    """It is answered with an error."""


class Timed(NamedTuple):
    """An entry of the heap of moments. Numbers are unique, so reads are never compared."""

    at_us: int
    due: Due
    number: int
    read: PendingRead
