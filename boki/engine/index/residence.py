"""What of the index is in memory, what of that is not on the disk yet, and what goes first when memory is short.

Everything of the index lives in residents: rows of tags, books, the order history of a log. A resident that changes
says so once (`changed`), writes itself into the next checkpoint (`writes`), and may give up memory again only after it
has heard that the checkpoint can be read back (`stored`).

Eviction is second chance: a hand goes round all residents, drops what is clean and was not used since it last came by,
and stops as soon as the budget is kept. It moves only between operations (`evict`), never under one that holds a row:
twice as far as the operation has added residents, so that it keeps up with the largest, and on at every tick (`rest`).

Rows that nobody can ask for any more, because all their records were trimmed, would still fill the budget. So within
the budget the hand goes round, too, two steps for each resident that has come, and drops those that are over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from boki.protocol.effects import Delete, DiskReader, Put

_STEPS: Final = 1000
_REST_STEPS: Final = 10_000
"""How far the hand goes at a tick: a few milliseconds in every fifty."""
_TIDY_STEPS: Final = 2_000
"""How far it goes at a tick within the budget: about a millisecond."""
_BEARABLE_BYTES: Final = 64 << 20
"""What is changed and not stored yet cannot be evicted: up to this much beyond a small budget, nothing is refused."""


IsOver = Callable[[str, str, int], bool]
"""Whether no answer depends any more on a row of that book and tag whose last record has that seqnum."""


class Resident(Protocol):
    """Something of the index that is in memory and may be on the disk."""

    def writes(self) -> Iterable[Put | Delete]:
        """What brings the disk to the state now. What is written stays in memory until `stored`."""

    def stored(self) -> None:
        """The last `writes` can be read back from the disk."""

    def shrink(self) -> bool:
        """Drop what is on the disk and was not used since the last time; False if nothing is left in memory."""

    def leave_if_over(self, is_over: IsOver) -> bool:
        """Leave memory if the disk has it as it is and no answer depends on it any more. → whether it is gone"""


class Residence:
    """The memory of one index. Whoever adds or drops something counts it in `used_bytes`."""

    def __init__(self, disk: DiskReader, limit_bytes: int) -> None:
        self.disk = disk
        self.used_bytes = 0
        self.dirty_bytes = 0
        self.limit_bytes = limit_bytes
        self._evict_above = limit_bytes
        self._residents: deque[Resident] = deque()
        self._dirty: list[Resident] = []
        self._writing: list[Resident] = []
        self._deletes: list[Delete] = []
        self._admitted = 0
        """How many residents have come since the hand last moved."""
        self._owed = 0
        """How many steps the hand is to go within the budget."""
        self._fruitless = 0
        """How many residents in a row had nothing to give."""

    def admit(self, resident: Resident) -> None:
        """A resident has been made."""
        self._residents.append(resident)
        self._admitted += 1
        self._owed += 2

    def owe(self) -> None:
        """A resident takes more memory than it need: the hand comes by."""
        self._owed += 2

    def changed(self, resident: Resident) -> None:
        """It must be in the next checkpoint. It says so once, until its `writes` have been asked for."""
        self._dirty.append(resident)

    def delete(self, start: bytes, stop: bytes) -> None:
        """Let the next checkpoint remove these keys, before it writes anything."""
        self._deletes.append(Delete(start, stop))

    def writes(self) -> list[Put | Delete]:
        """Everything that changed since the last time. One checkpoint at a time."""
        assert not self._writing, "the checkpoint before has not been stored yet"
        self._writing, self._dirty = self._dirty, []
        writes: list[Put | Delete] = list(self._deletes)
        self._deletes.clear()
        self.dirty_bytes = 0
        for resident in self._writing:
            writes += resident.writes()
        return writes

    def stored(self) -> None:
        """The last writes can be read back."""
        for resident in self._writing:
            resident.stored()
        self._writing = []
        self._evict_above = self.limit_bytes

    @property
    def is_far_over_budget(self) -> bool:
        """Whether appends should wait until memory is given back: twice the budget, or what is always bearable."""
        return self.used_bytes > self.limit_bytes + max(self.limit_bytes, _BEARABLE_BYTES)

    @property
    def is_over_budget(self) -> bool:
        """Whether `evict` should be called. False also while it would find nothing, because all is dirty."""
        return self.used_bytes > self._evict_above

    def evict(self) -> None:
        """Let the hand continue until the budget is kept; no farther than in proportion to what has come since."""
        self._evict(max(_STEPS, 2 * self._admitted))

    @property
    def is_at_work(self) -> bool:
        """Whether the hand is to continue."""
        return bool(self._owed) or self.is_over_budget

    def rest(self, is_over: IsOver) -> None:
        """Time has passed: let the hand continue even if no operation comes."""
        if self.is_over_budget:
            self._evict(_REST_STEPS)
        elif self._owed:
            self._tidy(is_over)

    def _tidy(self, is_over: IsOver) -> None:
        residents = self._residents
        steps = min(self._owed, _TIDY_STEPS, len(residents))
        self._owed = min(self._owed - steps, 2 * len(residents))
        for _ in range(steps):
            resident = residents.popleft()
            if not resident.leave_if_over(is_over):
                residents.append(resident)

    def _evict(self, steps: int) -> None:
        self._admitted = 0
        for _ in range(min(steps, len(self._residents))):
            before = self.used_bytes
            if before <= self.limit_bytes:
                break
            resident = self._residents.popleft()
            if resident.shrink():
                self._residents.append(resident)
            self._fruitless = self._fruitless + 1 if self.used_bytes == before else 0
        if self._fruitless > 2 * len(self._residents):
            # what is left is in use or not stored yet: stall until it has grown, or been stored
            self._fruitless = 0
            self._evict_above = self.used_bytes + self.limit_bytes // 16
