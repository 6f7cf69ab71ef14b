"""As of which seqnum the body of a workflow reads the log: its position. Pure.

A read needs no record if a replay can make it again. So the body reads as of the record of its last **event**: the end
of a step that is not pure, of a call or a write, or a timer that is over. That record is in the journal before anything
with an effect follows, and a replay finds it there. A message that was delivered since moves the position to itself, so
that a workflow sees what its sender had written.

Before the first event there is no such record. The first read then takes the end of the log as it is seen, and the
next record of the journal says which seqnum that was (`Entry.read_at`); whatever has an effect waits for that record.
"""

from __future__ import annotations

from boki.libs.bokiflow.history import History


class Position:
    """The position of one execution, but for messages."""

    def __init__(self, history: History) -> None:
        self.seqnum = history.trimmed_to if history.continued is not None else 0
        """As of where the body reads; 0: nothing says so yet."""
        self.is_moving = False
        """Whether the record of the last event is under way, so that its seqnum is not known."""
        self.recorded = 0
        """As of where the body had read here, by the next record of the journal; 0: that does not say so."""
        self.is_chosen = False
        """Whether the end of the log was taken."""

    def moved(self, seqnum: int) -> None:
        """The record of an event stands there."""
        self.seqnum, self.is_moving, self.is_chosen = seqnum, False, False

    def moves(self) -> None:
        """The record of an event is under way."""
        self.is_moving, self.is_chosen = True, False

    def choose(self, end: int) -> int:
        """Read as of the end of the log, since nothing else was said."""
        self.seqnum, self.is_chosen = max(end, 1), True
        return self.seqnum
