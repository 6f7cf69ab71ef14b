"""What a process has ahead of its callers: messages that none waits for just now, and how many more to ask for. Pure.

A consumer that has just been served asks again a moment later: then it is given these at once. What no consumer wants
by then goes back to the queue (see `cleanup`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from boki.libs.bokiqueue.demand import Line, Want
from boki.libs.bokiqueue.groups import Delivery
from boki.libs.fold.clock import LogClock, Moment

PACE_S: Final = 0.1
"""How long is counted to know a rate."""
LEAST_RATE: Final = 100.0
"""Messages a second that callers must take for any to be asked for ahead."""
MOST_AHEAD: Final = 7
"""For each caller that waits, the maximum number of messages asked for ahead."""

Served = tuple[Line, Delivery]


class Surplus:
    """The messages of all shards of one queue, by (group, length of the lease), in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, int], deque[Served]] = {}
        self._old: set[tuple[str, int]] = set()
        """Kinds of which nothing was taken since `pop_old` looked last."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, kind: tuple[str, int], served: Iterable[Served]) -> None:
        """Keep these: no consumer waits for them now."""
        more = list(served)
        if more:
            self._waiting.setdefault(kind, deque()).extend(more)

    def take(self, want: Want) -> list[Served]:
        """What the want can be given, as many as it asks for. Leases that have ended are not among them."""
        waiting = None if want.op else self._waiting.get(want.kind)
        found: list[Served] = []
        while waiting and len(found) < want.count:
            line, delivery = waiting.popleft()
            group = line.state.groups.get(want.group)
            if not delivery.until_us or (group is not None and group.leased(delivery.spot.pos, delivery.token)):
                found.append((line, delivery))
        if waiting is not None:
            self._old.discard(want.kind)
            if not waiting:
                del self._waiting[want.kind]
        return found

    def pop_group(self, group: str) -> Iterator[Served]:
        """All that the group was given, of every kind."""
        for kind in [kind for kind in self._waiting if kind[0] == group]:
            yield from self._waiting.pop(kind)

    def pop_old(self, *, is_all: bool = False) -> Iterator[tuple[str, Served]]:
        """What has waited here since the last call, with its group: no consumer seems to want it."""
        for kind in list(self._waiting) if is_all else self._old & self._waiting.keys():
            for served in self._waiting.pop(kind):
                yield kind[0], served
        self._old = set(self._waiting)


class Pace:
    """How quickly callers take messages, and how long an act takes: what they take meanwhile is asked for ahead.

    While an act is on its way callers can take only what was asked for before. Nothing is asked for ahead of callers
    that take few: messages would lie here while these callers are busy, or be given to a program that has ended.
    """

    def __init__(self, clock: LogClock) -> None:
        self._clock = clock
        self._taken: dict[tuple[str, int], tuple[Moment, int, float]] = {}
        """By kind: when the present window began, the number of messages taken in it, and the rate in the last one."""
        self.act_s = 0.0
        """How long the last act took."""

    def took(self, kind: tuple[str, int], count: int) -> None:
        """Callers were given that many messages."""
        since, before, rate = self._taken.get(kind, (self._clock.here(), 0, 0.0))
        window_s = self._clock.since(since)
        if window_s >= PACE_S:
            rate = before / window_s if window_s < 2 * PACE_S else 0.0
            since, before = self._clock.here(), 0
        self._taken[kind] = since, before + count, rate

    def ahead(self, kind: tuple[str, int], waiting: int) -> int:
        """The number of messages to ask for beyond those that callers wait for."""
        since, _, rate = self._taken.get(kind, ((0.0, 0.0), 0, 0.0))
        if rate < LEAST_RATE or self._clock.since(since) > 2 * PACE_S:
            return 0
        return min(math.ceil(2 * rate * self.act_s), MOST_AHEAD * waiting)
