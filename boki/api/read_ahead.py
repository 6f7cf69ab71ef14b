"""What `read_next` reads ahead for a caller that goes through a log record by record. Pure.

Each read of one record is a question to another process and its answer: two processes are woken, a tenth of a
millisecond. Who reads a log like this asks next for what stands behind the record that it was given, so the second such
read asks for two records, the next one for twice as many, as a file system does; what was not asked for yet waits here.

Nothing is promised less than without it. Which record of a tag comes behind another one never changes, so a record from
here is what an index would answer that has come as far as the one that was asked: as far as the caller has seen, which
is what a read must have come to (session order: read your writes, monotonic reads). Whatever moves the caller on, such
as an append, a trim or a sync of its own, another read, or the end of a function that it called, ends what was read
ahead. So does time: a trim by somebody else, and data that was kept beside a record, are seen a second later at most.
"""

from __future__ import annotations

from typing import Final

from boki.api.deadline import Caller
from boki.log.metalog import Positions, merge_positions
from boki.log.record import Record

_MOST_RECORDS: Final = 64
_KEPT_S: Final = 1.0
_RESTRAINT: Final = 8
"""Reads of one record each, after something was read ahead and not used: then little is, if that happens again."""


class ReadAhead:
    """Of one LogBook of one caller. What several tasks read in turns is read one by one, as it would be without."""

    __slots__ = ("_next_seqnum", "_positions", "_records", "_size", "_tag", "_until_s")

    def __init__(self) -> None:
        self._tag: str | None = None
        self._next_seqnum = -1
        """Where the caller continues if it reads record by record; -1: it has not begun."""
        self._size = 1
        """How many records the last read asked for; below 1 for some time after something was not used."""
        self._records: list[Record] = []
        """What comes from there on, last first."""
        self._positions: Positions = {}
        self._until_s = 0.0

    def take(self, tag: str | None, min_seqnum: int, caller: Caller) -> Record | None:
        """The first record from there on, if it is here and still counts."""
        if not self._records or min_seqnum != self._next_seqnum or tag != self._tag:
            return None
        if caller.positions != self._positions or caller.deadline.clock() >= self._until_s:
            self.forget()
            return None
        record = self._records.pop()
        self._next_seqnum = record.next_seqnum
        return record

    def size(self, tag: str | None, min_seqnum: int, caller: Caller) -> int:
        """How many records to ask for."""
        if min_seqnum != self._next_seqnum or tag != self._tag or self._size < 1:
            return 1
        return min(2 * self._size, _MOST_RECORDS, caller.limits.page_records)

    def before(self, caller: Caller) -> Positions:
        """What the caller has seen, for the read to raise."""
        return dict(caller.positions)

    def keep(
        self, tag: str | None, size: int, records: list[Record], positions: Positions, caller: Caller
    ) -> Record | None:
        """The answer to a read of `size` records, of an index that had come to these positions: its first one, for
        the caller, whom another task may have moved on meanwhile.
        """
        merge_positions(caller.positions, positions)
        if not records:
            return None
        self._size = self._size + 1 if self._size < 1 else size
        self._tag, self._next_seqnum = tag, records[0].next_seqnum
        self._records = records[:0:-1]
        self._positions = positions
        self._until_s = caller.deadline.clock() + _KEPT_S
        return records[0]

    def forget(self) -> None:
        """What is here does not count any more: some reads of one record each follow."""
        if self._records:
            self._records.clear()
            self._size = -_RESTRAINT


class NoReadAhead(ReadAhead):
    """Of a LogBook that several threads use at once: each read asks for one record, and nothing is kept."""

    __slots__ = ()

    def size(self, tag: str | None, min_seqnum: int, caller: Caller) -> int:  # noqa: ARG002
        """See `ReadAhead`."""
        return 1

    def before(self, caller: Caller) -> Positions:
        """The caller's own, which the port raises under its lock."""
        return caller.positions

    def keep(
        self,
        tag: str | None,  # noqa: ARG002
        size: int,  # noqa: ARG002
        records: list[Record],
        positions: Positions,  # noqa: ARG002
        caller: Caller,  # noqa: ARG002
    ) -> Record | None:
        """See `ReadAhead`."""
        return records[0] if records else None
