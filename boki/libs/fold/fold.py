"""The protocol of a fold: a state machine whose inputs are the records of a tag, in the order of the log.

Every process that folds the same records comes to the same state, so the log is the only thing that they need to agree
on. That holds as long as a fold is **pure**: it looks at nothing but the record, its seqnum and its time. No clock, no
randomness, no environment, no iteration over a set whose order depends on hashes. `boki.testing.folds` checks it.

A process may **learn** what it has appended itself before it reads it: the record is known, its seqnum is the answer of
the append. The fold comes to the same record later, and applying it a second time changes nothing.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

R_contra = TypeVar("R_contra", contravariant=True)


class Fold(Protocol[R_contra]):
    """State from the records of a tag."""

    def apply(self, seqnum: int, time_us: int, record: R_contra, /) -> object:
        """Take in the next record. `time_us` is the log's time of it. Records come in ascending order of seqnums; one
        that was applied before changes nothing. What it returns is for those who act, and no part of the state.
        """


class Checkpointed(Fold[R_contra], Protocol[R_contra]):
    """A fold that is kept in checkpoints (`boki.libs.fold.checkpoints`)."""

    def snapshot(self) -> object:
        """The whole state as a value for MessagePack. A fold that begins from it and applies the records behind it
        comes to the same state as one that applied all of them.
        """

    def needed_floor(self) -> int:
        """The lowest seqnum whose record may still be asked for: whatever lies below may be trimmed."""


class Learner(Fold[R_contra], Protocol[R_contra]):
    """A fold that is told of records ahead of their turn."""

    def learn(self, seqnum: int, time_us: int, record: R_contra, /) -> None:
        """Take in a record that this process has appended and the fold has not come to. If the fold is past it, there
        is nothing to learn.
        """
