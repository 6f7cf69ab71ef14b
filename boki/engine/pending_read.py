"""A read that has not been answered, and the moments at which it must be looked at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from boki.engine.waiter import NOBODY, Waiter
from boki.errors import DeadlineExceeded
from boki.log.ids import Term
from boki.log.metalog import Positions, split_position
from boki.log.operations import Compare, Get, ListBooks, Read, SetAuxdata, Sync

ReadOperation = Read | Get | Compare | SetAuxdata | ListBooks | Sync


class Stage(Enum):
    """What a read waits for: in each but the first and the last stage it is in one list of `boki.engine.reads`."""

    NEW = "new"
    BEHIND = "behind"
    """For the index, which has not reached what the caller has seen."""
    WATCHING = "watching"
    """For a record that does not exist yet."""
    FETCHING = "fetching"
    """For bytes that a storage node has been asked for."""
    PAUSED = "paused"
    """For a trim that storage nodes have applied and the index has not: it is tried again soon."""
    DONE = "done"
    """It was answered, or its caller has left."""


_TRIED: Final = frozenset(Stage) - {Stage.NEW}
NEXT: Final[dict[Stage, frozenset[Stage]]] = {
    # each time that it is tried it may wait for something else: also for the index again, where a term has ended
    Stage.NEW: _TRIED,
    Stage.BEHIND: _TRIED,
    Stage.WATCHING: _TRIED,
    Stage.FETCHING: _TRIED,
    Stage.PAUSED: _TRIED,
    Stage.DONE: frozenset(),
}


@dataclass(slots=True, eq=False)
class PendingRead:
    """A read that has not been answered. `needs` is what the index must have reached, per log."""

    operation: ReadOperation
    waiter: Waiter
    needs: Positions
    deadline_us: int
    wait_until_us: int
    stage: Stage = Stage.NEW
    seen_until: int = 0
    """Lower bound verified empty while waiting: trims at or below it have removed no matching record."""
    missed_below: int = 0
    """Trim floor when it last began to wait, or continued: records below were removed unseen."""
    needs_term: Term = 0
    """The newest term in `needs`."""
    most: int = 1 << 62
    """Maximum number of records of a backward page: lowered when they do not fit into the cache together."""
    covered: int = 0
    """Number of records of a backward page that the cache has held at once."""

    def __post_init__(self) -> None:
        self.needs_term = max((split_position(position)[0] for position in self.needs.values()), default=0)

    @property
    def is_done(self) -> bool:
        """Whether nothing is to be done for it any more."""
        return self.stage is Stage.DONE

    def move(self, stage: Stage) -> None:
        """Go to a stage that the table allows."""
        assert stage in NEXT[self.stage], f"a read that is {self.stage.value} cannot become {stage.value}"
        self.stage = stage

    def end(self) -> None:
        """It was answered, or its caller has left. The heap of moments may have it until its deadline, so it drops
        the caller's token, which holds the answer.
        """
        self.move(Stage.DONE)
        self.waiter = NOBODY


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


def too_late(read: PendingRead) -> DeadlineExceeded:
    """What a read is told at its deadline."""
    what = (
        "the index did not reach the position that this caller has seen (is its Boki-Position of this cluster?), or no "
        "replica gave the bytes"
    )
    return DeadlineExceeded(f"the read of book {read.waiter.book!r} was not answered: {what}", outcome="not_applied")
