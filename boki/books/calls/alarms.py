"""When suspended calls wake: a list for each second, and in order only those of the seconds that have come.

Of a hundred thousand calls that sleep until tomorrow each takes the place of one reference here, and nothing is sorted
before tomorrow. The exact time stands in the call.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import Final

from boki.books.calls.waiting import PackedCall

_SECOND_US: Final = 1_000_000


class Alarms:
    """The times of calls, some of which have woken since."""

    def __init__(self) -> None:
        self._seconds: list[int] = []
        self._later: dict[int, list[PackedCall]] = {}
        """By second, the calls that wake in it."""
        self._soon: list[tuple[int, int, PackedCall]] = []
        """Those of seconds that have come, by time and then by a number: calls are never compared."""
        self._numbers = itertools.count()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[PackedCall]:
        """The calls, in any order."""
        return itertools.chain(*self._later.values(), (call for _, _, call in self._soon))

    def add(self, call: PackedCall) -> None:
        """Set the alarm of a call."""
        self._count += 1
        second = call.due_us // _SECOND_US
        if second not in self._later:
            self._later[second] = []
            heapq.heappush(self._seconds, second)
        self._later[second].append(call)

    @property
    def next_us(self) -> int | None:
        """When to look again: no later than the first alarm; None: there is none."""
        times = [self._soon[0][0]] if self._soon else []
        if self._seconds:
            times.append(self._seconds[0] * _SECOND_US)
        return min(times, default=None)

    def due(self, now_us: int) -> Iterator[PackedCall]:
        """Take out the calls whose time has come, the earliest first."""
        while self._seconds and self._seconds[0] * _SECOND_US <= now_us:
            for call in self._later.pop(heapq.heappop(self._seconds)):
                heapq.heappush(self._soon, (call.due_us, next(self._numbers), call))
        while self._soon and self._soon[0][0] <= now_us:
            self._count -= 1
            yield heapq.heappop(self._soon)[2]

    def keep(self, is_asleep: Callable[[PackedCall], bool]) -> None:
        """Forget the alarms of all others."""
        calls = list(self)
        self._seconds, self._later, self._soon, self._count = [], {}, [], 0
        for call in calls:
            if is_asleep(call):
                self.add(call)
