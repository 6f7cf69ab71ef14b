"""What a process keeps for the callers of a queue: who waits, the messages that came ahead of them, and bodies.

A caller that waits for messages is a future (`Want`), and so is one that asks one shard for something (`lines.Asked`):

=======  ==============================================================================================
waiting  it stands in `Wants.waiting`, or in its shard's `asked`
asked    the outstanding act of its shard holds it, or credit of its kind stands in the fold
served   the fold came to a record that gives it something: its result is set
late     its time is over and no act is on its way that could serve it: its result is empty
refused  its act was given up: its error is set
gone     its caller was cancelled: what it is given goes back to the queue (`Line.release`)
=======  ==============================================================================================

A process whose callers take many messages asks for more than they wait for. What comes ahead of a caller is surplus.
What none wants a moment later goes back to the queue.

**Bodies** of messages that are still to be taken are kept from the reading of the stream; others are read again. All
queues that a process follows over one connection share one budget (`BodyStore`). A record of messages is kept

* while some group has not come to it, and there is room. When there is none, what is farthest from being taken goes, of
  the queue that has most: a queue is taken from its other end;
* after every group has passed it, while a message of it comes back (delayed, parked behind its key, released). Those go
  before anything else when room is needed.

All else goes with the page in which it was given: callers that wait are given the bodies with their messages.
"""

from __future__ import annotations

import asyncio
import math
from asyncio import Future
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from boki import BokiError, CorruptData, LogBook, NotFound, Trimmed
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.groups import BACK, PARKED, WAITING, Delivery, Group
from boki.libs.bokiqueue.records import LOST, Carry, Push, sound
from boki.libs.bokiqueue.state import ShardState
from boki.libs.bokiqueue.stored import record_at
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
BODY_BUDGET_BYTES: Final = 64 * 1024 * 1024
READ_TOGETHER: Final = 16
"""Messages whose records are read again at once: each may have a megabyte."""
LOOKED_AT: Final = 100
"""Records with messages that come back, looked at with each page: whether they still do."""

Lost = NotFound | Trimmed | CorruptData
"""What is raised for a record that is gone permanently."""

Kind = tuple[str, int]
"""Wants of one kind, of a group and a length of the lease, are asked for together."""
Body = tuple[int, bytes]
"""The form of a body, and its bytes."""
Served = tuple[int, Delivery, Body | None]
"""A message, its shard before it and its body behind it; without one it is read from the log."""


class Want(Future[list[Served] | None]):
    """A pop or a lease. `wait_s` None: it takes what exists and does not wait. `shard` None: any may serve it.

    Its result is None if no credit can be granted for it: then it asks each shard for itself.
    """

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


def finish(waiter: Future[Any] | None, result: Any, error: BokiError | None = None) -> None:
    """It has what it waits for, or an error of its own."""
    if waiter is not None and not waiter.done():
        waiter.set_result(result) if error is None else waiter.set_exception(BokiError.from_body(error.body()))


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
        if wants := self.waiting.get(want.kind):
            wants.pop(want, None)
        if not wants:
            self.waiting.pop(want.kind, None)

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

    def take(self, kind: Kind, count: int, groups: Sequence[Group | None]) -> tuple[list[Served], list[Served]]:
        """What a caller can be given at once, as many as it asks for; and leases found ended, which no caller gets.

        `groups`: its group in each shard.
        """
        found: list[Served] = []
        ended: list[Served] = []
        there = self.surplus.get(kind)
        if there is None:
            return found, ended
        while there and len(found) < count:
            shard, delivery, _ = one = there.popleft()
            group = groups[shard]
            lasts = not delivery.until_us or (group is not None and group.leased(delivery.spot.pos, delivery.token))
            (found if lasts else ended).append(one)
        self._old.discard(kind)
        if not there:
            del self.surplus[kind]
        self._took(kind, len(found))
        return found, ended

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
        since, before, rate = self._taken.pop(kind, (self._clock.here(), 0, 0.0))
        window_s = self._clock.since(since)
        if window_s >= PACE_S:
            rate = before / window_s if window_s < 2 * PACE_S else 0.0
            since, before = self._clock.here(), 0
        self._taken[kind] = since, before + count, rate
        oldest = next(iter(self._taken))
        if self._clock.since(self._taken[oldest][0]) > 2 * PACE_S:
            del self._taken[oldest]  # it says nothing any more, and callers may lease for another time at each call

    def ahead(self, kind: Kind, waiting: int) -> int:
        """The number of messages to ask for beyond those that callers wait for: none ahead of callers that take few,
        for they would lie here while these callers are busy, or be given to a program that has ended.
        """
        since, _, rate = self._taken.get(kind, ((0.0, 0.0), 0, 0.0))
        if rate < LEAST_RATE or self._clock.since(since) > 2 * PACE_S:
            return 0
        return min(math.ceil(2 * rate * self.act_s), MOST_AHEAD * waiting)


class _Kept(NamedTuple):
    """A record of messages."""

    kind: Push | Carry
    positions: Sequence[int]
    size_bytes: int

    def comes_back(self, state: ShardState) -> bool:
        """Whether a group gives out one of its messages later, after the cursor has passed it."""
        return any(
            (aside := group.aside.get(pos)) is not None and aside.status in (WAITING, BACK, PARKED)
            for group in state.groups.values()
            for pos in self.positions
        )


class BodyStore:
    """What the queues of one connection keep together."""

    def __init__(self, budget_bytes: int = BODY_BUDGET_BYTES) -> None:
        self.budget_bytes = budget_bytes
        self.kept_bytes = 0
        self.keepers: dict[Bodies, None] = {}
        """Queues that keep something."""

    def make_room(self, size_bytes: int, newcomer: Bodies) -> bool:
        """Whether there is room now. The newcomer lets nothing go for its own newest record but what is passed."""
        while self.kept_bytes + size_bytes > self.budget_bytes:
            most = max((newcomer, *self.keepers), key=lambda one: one.kept_bytes)
            if not most.drop_one(is_newcomer=most is newcomer):
                return False
        return True


class Bodies:
    """The bodies that are kept of one queue, with that number of shards."""

    def __init__(self, shards: int, store: BodyStore) -> None:
        self.kept_bytes = 0
        self._store = store
        self._kept: dict[int, _Kept] = {}
        self._ahead: list[deque[int]] = [deque() for _ in range(shards)]
        """Of each shard, the records that some group had not passed when the last page came, in order."""
        self._passed: deque[int] = deque()
        """The other ones."""

    def clear(self) -> None:
        """Keep nothing."""
        for seqnum in list(self._kept):
            self._drop(seqnum)
        for some in (*self._ahead, self._passed):
            some.clear()

    def keep(self, seqnum: int, kind: Push | Carry, state: ShardState) -> None:
        """A record of messages was applied to the state."""
        stop = state.backlog.next_pos
        positions = kind.positions if isinstance(kind, Carry) else range(stop - len(kind.bodies), stop)
        kept = _Kept(kind, positions, sum(map(len, kind.bodies)) + 100)
        if seqnum in self._kept or not self._store.make_room(kept.size_bytes, self):
            return
        self._kept[seqnum] = kept
        self.kept_bytes += kept.size_bytes
        self._store.kept_bytes += kept.size_bytes
        self._store.keepers[self] = None
        (self._passed if isinstance(kind, Carry) else self._ahead[state.shard]).append(seqnum)

    def let_go(self, states: Sequence[ShardState]) -> None:
        """Drop what was passed before this page: callers that were given it have looked by now."""
        looked_at = min(LOOKED_AT, len(self._passed))
        for state in states:
            first = state.backlog.find(state.backlog.first_pos)
            stop = state.at + 1 if first is None else first.seqnum
            ahead = self._ahead[state.shard]
            while ahead and ahead[0] < stop:
                self._passed.appendleft(ahead.popleft())
                looked_at += 1
        for _ in range(looked_at):
            seqnum = self._passed.popleft()
            if self._kept[seqnum].comes_back(states[self._kept[seqnum].kind.shard]):
                self._passed.append(seqnum)
            else:
                self._drop(seqnum)

    def drop_one(self, *, is_newcomer: bool) -> bool:
        """Drop a record that every group has passed, else of the one that is taken last. False: there is none, or
        only what is taken before the newcomer's.
        """
        if self._passed:
            self._drop(self._passed.popleft())
            return True
        ahead = max(self._ahead, key=lambda one: one[-1] if one else 0)
        if is_newcomer or not ahead:
            return False
        self._drop(ahead.pop())
        return True

    def _drop(self, seqnum: int) -> None:
        kept = self._kept.pop(seqnum)
        self.kept_bytes -= kept.size_bytes
        self._store.kept_bytes -= kept.size_bytes
        if not self._kept:
            self._store.keepers.pop(self, None)

    # Reading

    def here(self, one: Delivery) -> Body | None:
        """The body of a message, if it is kept."""
        seqnum, index = one.spot.place
        kept = self._kept.get(seqnum)
        body = None if kept is None else _body(kept.kind, seqnum, index)
        return body if isinstance(body, tuple) else None

    async def fetch(
        self, logbook: LogBook, taken: Iterable[tuple[str, Delivery]], most_bytes: int | None = None
    ) -> list[Body | Lost]:
        """(form, body) of each, by the tag of its stream; read from the log where they are not here. What is gone
        permanently comes as the error.

        With `most_bytes` of the first of them only, as many as have this many bytes together; of one at least.
        """
        taken = list(taken)
        places = [one.spot.place for _, one in taken]
        tags = {one.spot.place[0]: tag for tag, one in taken}
        kinds: dict[int, Push | Carry | Lost] = {one: self._kept[one].kind for one, _ in places if one in self._kept}
        found: list[Body | Lost] = []
        size = 0
        for some in records.runs(places, lambda _: 0, 0, READ_TOGETHER):
            missing = list(dict.fromkeys(seqnum for seqnum, _ in some if seqnum not in kinds))
            read = await asyncio.gather(*(_read(logbook, tags[seqnum], seqnum) for seqnum in missing))
            kinds.update(zip(missing, read, strict=True))
            for seqnum, index in some:
                body = _body(kinds[seqnum], seqnum, index)
                size += len(body[1]) if isinstance(body, tuple) else 0
                if most_bytes is not None and found and size > most_bytes:
                    return found
                found.append(body)
        return found


def _body(kind: Push | Carry | Lost, seqnum: int, index: int) -> Body | Lost:
    """A message of that record."""
    if isinstance(kind, Lost):
        return kind
    if index >= len(kind.bodies):  # a forged checkpoint may say so
        return CorruptData(f"record {seqnum} has no message {index}")
    form = records.form_of(kind.forms, index)
    return (form, kind.bodies[index]) if form != LOST else CorruptData("it was lost before it was carried")


async def _read(logbook: LogBook, tag: str, seqnum: int) -> Push | Carry | Lost:
    try:
        kind = sound(await record_at(logbook, tag, seqnum))
    except (NotFound, Trimmed, CorruptData) as error:
        return error
    if not isinstance(kind, Push | Carry):
        return CorruptData(f"record {seqnum} of book {logbook.name!r} should hold messages of a queue, and does not")
    return kind
