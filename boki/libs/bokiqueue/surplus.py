"""Messages that standing takes of a process were given while no consumer waited for them. Pure.

A consumer that has just been served asks again a moment later: then it is given these at once. What no consumer wants
by then goes back to the queue (see `leavings`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from boki.libs.bokiqueue.demand import Line, Want
from boki.libs.bokiqueue.groups import Delivery

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
        waiting = self._waiting.get(want.kind)
        found: list[Served] = []
        while waiting and len(found) < want.count and not want.op:
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
