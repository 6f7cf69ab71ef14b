"""Bodies that are still coming, and which of them make room when others want it. A decision: it knows no sockets.

A body holds its part of the budget from the first byte on, so clients that send most of a body and stop could hold all
of it until their time is over. A body that comes more slowly than a minimum rate has **stalled**; bytes beyond the rate
count for a few seconds ahead, however many they are. As long as there is room for all, a stalled body may still
continue.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from boki.gateway.core import Share


class Arrival:
    """A body that is coming. `end` is called if it must make room; its bytes are given back by then."""

    __slots__ = ("end", "share", "size_bytes", "stalls_s")

    def __init__(self, share: Share, end: Callable[[], None], stalls_s: float) -> None:
        self.share: Final = share
        self.end: Final = end
        self.size_bytes = 0
        self.stalls_s = stalls_s
        """When it has stalled, unless more comes until then."""


class Arrivals:
    """The bodies of one gateway that are coming. Times are seconds of `clock`."""

    def __init__(self, stall_s: float, bytes_per_s: int, clock: Callable[[], float]) -> None:
        self._stall_s = stall_s
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._all: dict[Arrival, None] = {}
        self._look_s = -math.inf
        """None has stalled before: a gateway that is full does not look at all of them for each request."""

    def begin(self, share: Share, end: Callable[[], None]) -> Arrival:
        """A body begins to come; `finish` follows."""
        arrival = Arrival(share, end, self._clock() + self._stall_s)
        self._all[arrival] = None
        return arrival

    def note(self, arrival: Arrival, size_bytes: int) -> None:
        """This many bytes more have come, which its share is to take."""
        latest_s = self._clock() + self._stall_s
        if arrival.size_bytes:
            arrival.stalls_s = min(arrival.stalls_s + size_bytes / self._bytes_per_s, latest_s)
        else:
            arrival.stalls_s = latest_s
        arrival.size_bytes += size_bytes

    def has_ended(self, arrival: Arrival) -> bool:
        """Whether it has made room: what has come of it is gone."""
        return arrival not in self._all

    def finish(self, arrival: Arrival) -> None:
        """It is complete, or given up. Repeatable."""
        self._all.pop(arrival, None)

    def make_room(self, size_bytes: int) -> None:
        """End bodies that have stalled, the one that stalled first first, until this many bytes are given back."""
        now_s = self._clock()
        if now_s < self._look_s:
            return
        for arrival in sorted(self._all, key=_stalls_s):
            if size_bytes <= 0 or arrival.stalls_s > now_s:
                self._look_s = arrival.stalls_s
                return
            if arrival.size_bytes:
                size_bytes -= arrival.size_bytes
                self.finish(arrival)
                arrival.share.release()
                arrival.end()
        self._look_s = now_s + self._stall_s


def _stalls_s(arrival: Arrival) -> float:
    return arrival.stalls_s
