"""Keys with the time when each is due, and how many things happen in a second: by the log's time, for folds. Pure."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

import msgspec

K = TypeVar("K")

RATE_US: Final = 10_000_000
_SPARE: Final = 100
"""A heap has at most twice as many entries as it needs, and these."""


class Dues(Generic[K]):
    """Keys by the time when they are due. Keys of one time come in their own order."""

    def __init__(self) -> None:
        self._due_us: dict[K, int] = {}
        self._heap: list[tuple[int, K]] = []
        """An entry counts if the dict says the same."""

    def put(self, key: K, due_us: int) -> None:
        """It is due then, and no more when it was due before."""
        self._due_us[key] = due_us
        heappush(self._heap, (due_us, key))
        if len(self._heap) > 2 * len(self._due_us) + _SPARE:
            self._heap = [(due_us, key) for key, due_us in self._due_us.items()]
            heapify(self._heap)

    def drop(self, key: K) -> None:
        """It is not due any more."""
        self._due_us.pop(key, None)

    def is_due(self, now_us: int) -> bool:
        """Whether one is."""
        heap = self._heap
        while heap and self._due_us.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return bool(heap) and heap[0][0] <= now_us

    def next_us(self) -> int:
        """When the first one is due; 0: there is none."""
        self.is_due(0)
        return self._heap[0][0] if self._heap else 0

    def due(self, now_us: int, limit: int) -> list[K]:
        """Keys that are due, the first ones first. They stay."""
        found: dict[K, int] = {}
        while len(found) < limit and self.is_due(now_us):
            due_us, key = heappop(self._heap)
            found[key] = due_us
        for key, due_us in found.items():
            heappush(self._heap, (due_us, key))
        return list(found)


class Rate(msgspec.Struct, array_like=True):
    """How many a second: counted in windows of ten seconds."""

    window: int = 0
    count: int = 0
    previous: int = 0

    def add(self, count: int, now_us: int) -> None:
        """Count these."""
        window = now_us // RATE_US
        if window != self.window:
            self.previous = self.count if window == self.window + 1 else 0
            self.window, self.count = window, 0
        self.count += count

    def per_s(self, now_us: int) -> float:
        """About how many a second."""
        passed = now_us // RATE_US - self.window
        if passed > 0:
            return self.count * 1e6 / RATE_US if passed == 1 else 0.0
        return (self.previous * (1 - now_us % RATE_US / RATE_US) + self.count) * 1e6 / RATE_US
