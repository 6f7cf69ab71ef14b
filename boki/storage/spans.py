"""Which local ids of a shard are here, as few numbers as possible: neighbours are one span."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Spans:
    """Disjoint half-open ranges that do not touch, ascending."""

    __slots__ = ("_starts", "_untils")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._untils: list[int] = []

    @property
    def reach(self) -> int:
        """Everything below is here."""
        return self._untils[0] if self._starts and self._starts[0] == 0 else 0

    @property
    def last(self) -> tuple[int, int]:
        """The range that ends at `highest`."""
        return (self._starts[-1], self._untils[-1]) if self._starts else (0, 0)

    @property
    def count(self) -> int:
        """How many numbers are here."""
        return sum(self._untils) - sum(self._starts)

    @property
    def highest(self) -> int:
        """Nothing at or above is here."""
        return self._untils[-1] if self._untils else 0

    def add(self, first: int, until: int) -> None:
        """Take in a range; it may overlap what is here."""
        if first >= until:
            return
        i = bisect_left(self._untils, first)
        j = bisect_right(self._starts, until)
        if i < j:
            first, until = min(first, self._starts[i]), max(until, self._untils[j - 1])
        self._starts[i:j] = [first]
        self._untils[i:j] = [until]

    def covers(self, first: int, until: int) -> bool:
        """Whether all of the range is here."""
        return self.end_at(first) >= until

    def end_at(self, number: int) -> int:
        """The end of the span that holds `number`; `number` itself if it is not here."""
        i = bisect_right(self._starts, number) - 1
        return self._untils[i] if i >= 0 and self._untils[i] > number else number

    def cut(self, end: int) -> None:
        """Forget everything at or above `end`."""
        i = bisect_left(self._starts, end)
        del self._starts[i:], self._untils[i:]
        if self._untils:
            self._untils[-1] = min(self._untils[-1], end)

    def gaps(self, first: int, end: int) -> list[tuple[int, int]]:
        """What is not here between `first` and `end`, ascending."""
        found: list[tuple[int, int]] = []
        at = self.end_at(first)
        while at < end:
            i = bisect_right(self._starts, at)
            until = min(self._starts[i], end) if i < len(self._starts) else end
            found.append((at, until))
            at = self.end_at(until) if until < end else end
        return found
