"""What the waiting callers of one process want of a queue, and the messages that came ahead of them. Pure.

A process whose callers take many messages asks for more than they wait for: while an act is on its way they can take
only what was asked for before. Such a message waits here (`Wants.surplus`) for a caller that asks again a moment later.
What none wants by then goes back to the queue.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from boki.libs.bokiqueue.groups import Delivery
from boki.libs.bokiqueue.records import Settle, Take
from boki.libs.bokiqueue.state import ShardState
from boki.libs.fold.clock import LogClock, Moment
from boki.libs.fold.follower import Waiter

PACE_S: Final = 0.1
"""How long is counted to know a rate."""
LEAST_RATE: Final = 100.0
"""Messages a second that callers must take for any to be asked for ahead."""
MOST_AHEAD: Final = 7
"""For each caller that waits, the maximum number of messages asked for ahead."""

Kind = tuple[str, int]
"""Wants of one kind, of a group and a length of the lease, are asked for together."""
Served = tuple[int, Delivery]
"""A message and its shard."""


class Want(Waiter):
    """A pop or a lease. `wait_s` None: it takes what exists and does not wait. `shard` None: any may serve it."""

    __slots__ = ("count", "group", "kind", "lease_us", "op", "shard", "wait_s")

    def __init__(
        self, group: str, count: int, lease_us: int, op: str, wait_s: float | None, since: Moment, shard: int | None
    ) -> None:
        super().__init__(None, since)  # the queue decides when it has waited long enough
        self.kind: Kind = (group, lease_us)
        self.group = group
        self.count = count
        self.lease_us = lease_us
        self.op = op
        self.wait_s = wait_s
        self.shard = shard

    @property
    def take(self) -> Take:
        """For this caller alone: of one that does not wait, or names an op."""
        return Take(self.group, self.count, self.lease_us, self.op)

    def left_s(self, clock: LogClock) -> float:
        """How long it still waits."""
        return 0.0 if self.wait_s is None else self.wait_s - clock.since(self.since)


class Settlement(Waiter):
    """An ack, nack, … of messages of one shard."""

    __slots__ = ("settle",)

    def __init__(self, settle: Settle) -> None:
        super().__init__()
        self.settle = settle


class Wants:
    """What all callers of a process wait for at one queue, and the messages that came ahead of them."""

    def __init__(self, clock: LogClock) -> None:
        self.waiting: dict[Kind, dict[Want, None]] = {}
        """By kind, in the order of their coming."""
        self.surplus: dict[Kind, deque[Served]] = {}
        """Messages that none waits for just now, in the order in which they came."""
        self.act_s = 0.0
        """How long the last act took."""
        self._clock = clock
        self._old: set[Kind] = set()
        """Kinds of which no surplus was taken since `pop_old` looked last."""
        self._taken: dict[Kind, tuple[Moment, int, float]] = {}
        """By kind: when the present window began, the number of messages taken in it, and the rate in the last one."""

    def __iter__(self) -> Iterator[Want]:
        for wants in self.waiting.values():
            yield from wants

    @property
    def kinds(self) -> set[Kind]:
        """The kinds for which callers are here."""
        return {kind for kind, wants in self.waiting.items() if wants}

    def add(self, want: Want) -> None:
        """A caller has come."""
        self.waiting.setdefault(want.kind, {})[want] = None

    def remove(self, want: Want) -> None:
        """It has what it wanted, or is gone."""
        self.waiting.get(want.kind, {}).pop(want, None)

    # Serving

    def serve(self, shard: int, kind: Kind, deliveries: list[Delivery]) -> list[Delivery]:
        """Give messages to those that wait; what is left."""
        wants = self.waiting.get(kind)
        at = 0
        while wants and at < len(deliveries):
            want = next(iter(wants))
            self.remove(want)
            if not want.is_done:
                share = deliveries[at : at + want.count]
                at += len(share)
                want.finish([(shard, one) for one in share])
        if at:
            self._took(kind, at)
        return deliveries[at:] if at else deliveries

    def keep(self, shard: int, kind: Kind, deliveries: list[Delivery]) -> None:
        """These came ahead of those that will want them."""
        if deliveries:
            self.surplus.setdefault(kind, deque()).extend((shard, one) for one in deliveries)

    def take(self, want: Want, states: Sequence[ShardState]) -> list[Served]:
        """What the want can be given at once, as many as it asks for. Leases that have ended are not among them."""
        there = self.surplus.get(want.kind)
        found: list[Served] = []
        while there and len(found) < want.count:
            shard, delivery = there.popleft()
            group = states[shard].groups.get(want.group)
            if not delivery.until_us or (group is not None and group.leased(delivery.spot.pos, delivery.token)):
                found.append((shard, delivery))
        if there is not None:
            self._old.discard(want.kind)
            if not there:
                del self.surplus[want.kind]
            self._took(want.kind, len(found))
        return found

    def pop_others(self, want: Want) -> list[Served]:
        """What its group was given for other kinds: its callers are here, if only for another lease."""
        kinds = [kind for kind in self.surplus if kind[0] == want.group and kind != want.kind]
        return [served for kind in kinds for served in self.surplus.pop(kind)]

    def pop_old(self, *, is_all: bool = False) -> list[tuple[str, Served]]:
        """What has waited here since the last call, with its group: no caller seems to want it."""
        kinds = list(self.surplus) if is_all else list(self._old & self.surplus.keys())
        found = [(kind[0], served) for kind in kinds for served in self.surplus.pop(kind)]
        self._old = set(self.surplus)
        return found

    # How many to ask for

    def _took(self, kind: Kind, count: int) -> None:
        since, before, rate = self._taken.get(kind, (self._clock.here(), 0, 0.0))
        window_s = self._clock.since(since)
        if window_s >= PACE_S:
            rate = before / window_s if window_s < 2 * PACE_S else 0.0
            since, before = self._clock.here(), 0
        self._taken[kind] = since, before + count, rate

    def ahead(self, kind: Kind, waiting: int) -> int:
        """The number of messages to ask for beyond those that callers wait for: none ahead of callers that take few,
        for they would lie here while these callers are busy, or be given to a program that has ended.
        """
        since, _, rate = self._taken.get(kind, ((0.0, 0.0), 0, 0.0))
        if rate < LEAST_RATE or self._clock.since(since) > 2 * PACE_S:
            return 0
        return min(math.ceil(2 * rate * self.act_s), MOST_AHEAD * waiting)
