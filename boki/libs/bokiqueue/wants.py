"""The callers of one process that wait at a queue, and the messages that came ahead of them.

A caller that waits for messages is a future (`Want`), and so is one that settles some (`Settlement`):

=======  ==============================================================================================
waiting  it stands in `Wants.waiting`, or in its shard's `own` or `settlements` (`lines`)
asked    the outstanding act of its shard holds it, or credit of its kind stands in the fold
served   the fold came to a record that gives it something: its result is set
late     its time is over and no act is on its way that could serve it: its result is empty
refused  its act was given up: its error is set
gone     its caller was cancelled: what it is given goes back to the queue (`Line.backs`)
=======  ==============================================================================================

A process whose callers take many messages asks for more than they wait for. What comes ahead of a caller is surplus.
What none wants a moment later goes back to the queue.
"""

from __future__ import annotations

import math
from asyncio import Future
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from boki import BokiError
from boki.libs.bokiqueue.groups import Delivery, Group
from boki.libs.bokiqueue.records import Settle
from boki.libs.fold.clock import LogClock, Moment
from boki.libs.fold.follower import LONG_WAIT_S

PACE_S: Final = 0.1
"""How long is counted to know a rate."""
LEAST_RATE: Final = 100.0
"""Messages a second that callers must take for any to be asked for ahead."""
MOST_AHEAD: Final = 7
"""For each caller that waits, the maximum number of messages asked for ahead."""
SURPLUS_BODY_BYTES: Final = 16 * 1024  # larger bodies do not stay with messages that came ahead of their callers
ANSWER_S: Final = 60.0
"""Longer than an append may take."""
MARGIN_S: Final = 0.0005

Kind = tuple[str, int]
"""Wants of one kind, of a group and a length of the lease, are asked for together."""
Body = tuple[int, bytes]
"""The form of a body, and its bytes."""
Served = tuple[int, Delivery, Body | None]
"""A message, its shard before it and its body behind it; without one it is read from the log."""


class Want(Future[list[Served]]):
    """A pop or a lease. `wait_s` None: it takes what exists and does not wait. `shard` None: any may serve it."""

    def __init__(
        self, group: str, count: int, lease_us: int, op: str, wait_s: float | None, since: Moment, shard: int | None
    ) -> None:
        super().__init__()
        self.kind: Kind = (group, lease_us)
        self.count = count
        self.op = op
        self.wait_s = wait_s
        self.since = since
        self.shard = shard

    def left_s(self, clock: LogClock) -> float:
        """How long it still waits."""
        return 0.0 if self.wait_s is None else self.wait_s - clock.since(self.since)


class Settlement(Future[list[bool]]):
    """An ack, nack, … of messages of one shard."""

    def __init__(self, settle: Settle) -> None:
        super().__init__()
        self.settle = settle


def finish(waiter: Future[Any], result: Any, error: BokiError | None = None) -> None:
    """It has what it waits for, or an error of its own."""
    if not waiter.done():
        waiter.set_result(result) if error is None else waiter.set_exception(error)


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
        self._looked: tuple[Moment, float] = ((0.0, 0.0), LONG_WAIT_S)
        """No caller's time is over this many seconds after that moment."""
        self._old: set[Kind] = set()
        """Kinds of which no surplus was taken since `pop_old` looked last."""
        self._taken: dict[Kind, tuple[Moment, int, float]] = {}
        """By kind: when the present window began, the number of messages taken in it, and the rate in the last one."""

    @property
    def kinds(self) -> set[Kind]:
        """The kinds for which callers are here."""
        return {kind for kind, wants in self.waiting.items() if wants}

    def add(self, want: Want) -> None:
        """A caller has come."""
        self.waiting.setdefault(want.kind, {})[want] = None
        self._looked = self._clock.here(), min(self.patience_s(), want.wait_s or 0.0)

    def remove(self, want: Want) -> None:
        """It has what it wanted, or is gone."""
        self.waiting.get(want.kind, {}).pop(want, None)

    def patience_s(self) -> float:
        """For how long no caller's time is over, at least."""
        return self._looked[1] - self._clock.since(self._looked[0])

    def finish_late(self, under_way: set[Kind]) -> None:
        """Callers that have waited long enough get nothing. While an act asks for what one may be given (`under_way`),
        it waits for the answer: no other may be there to take what comes.
        """
        if self.patience_s() > MARGIN_S:
            return
        least_s = LONG_WAIT_S
        for kind, wants in self.waiting.items():
            for want in wants:
                left_s = want.left_s(self._clock)
                if left_s <= MARGIN_S and (left_s < -ANSWER_S or kind not in under_way):
                    finish(want, [])
                elif not want.done():
                    least_s = min(least_s, left_s if left_s > 0 else ANSWER_S if kind not in under_way else PACE_S)
        self._looked = self._clock.here(), least_s

    # Serving

    def serve(self, kind: Kind, served: list[Served]) -> list[Served]:
        """Give messages to those that wait; what is left."""
        wants = self.waiting.get(kind)
        at = 0
        while wants and at < len(served):
            want = next(iter(wants))
            del wants[want]
            if not want.done():
                want.set_result(served[at : at + want.count])
                at = min(at + want.count, len(served))
        if at:
            self._took(kind, at)
        return served[at:]

    def keep(self, kind: Kind, served: Iterable[Served]) -> None:
        """These came ahead of those that will want them."""
        self.surplus.setdefault(kind, deque()).extend(
            one if one[2] is None or len(one[2][1]) <= SURPLUS_BODY_BYTES else (one[0], one[1], None) for one in served
        )

    def take(self, kind: Kind, count: int, groups: Sequence[Group | None]) -> list[Served]:
        """What a caller can be given at once, as many as it asks for. Leases that have ended are not among them.

        `groups`: its group in each shard.
        """
        there = self.surplus.get(kind)
        if there is None:
            return []
        found: list[Served] = []
        while there and len(found) < count:
            shard, delivery, _ = one = there.popleft()
            group = groups[shard]
            if not delivery.until_us or (group is not None and group.leased(delivery.spot.pos, delivery.token)):
                found.append(one)
        self._old.discard(kind)
        if not there:
            del self.surplus[kind]
        self._took(kind, len(found))
        return found

    def pop_others(self, kind: Kind) -> list[Served]:
        """What its group was given for other kinds: its callers are here, if only for another lease."""
        kinds = [other for other in self.surplus if other[0] == kind[0] and other != kind]
        return [served for other in kinds for served in self.surplus.pop(other)]

    def pop_old(self, *, is_all: bool = False) -> list[tuple[str, list[Served]]]:
        """What has waited here since the last call, by group: no caller seems to want it."""
        kinds = list(self.surplus) if is_all else list(self._old & self.surplus.keys())
        found = [(kind[0], list(self.surplus.pop(kind))) for kind in kinds]
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
