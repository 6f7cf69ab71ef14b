"""One consumer group of one shard: where each message is, and which comes next. Pure, and a part of the fold.

Messages have **positions**: 0, 1, 2, … in the order of their pushes. What a group has not touched yet is everything
from its `cursor` on, and costs it nothing. A message that the cursor has passed and that is not done is **aside**:

=========  ====================================================================================
LEASED     a consumer has it until `due_us`
WAITING    it comes back at `due_us`: delayed when it was pushed, or by a nack
BACK       it can be taken, before everything that is untouched, in the order of positions
PARKED     another message of its group key comes first
DEAD       a dead letter, with the reason; it stays until it is redriven or purged
=========  ====================================================================================

Time is the time of records. A lease ends only by a record: an ack, a nack, or a **fence** at or after `due_us`. So a
commit under the condition that there was no fence since holds the lease.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from boki.libs.bokiqueue.backlog import Backlog, Rate, Segment, Spot
from boki.libs.bokiqueue.records import Number

LEASED: Final = 0
WAITING: Final = 1
BACK: Final = 2
PARKED: Final = 3
DEAD: Final = 4

TAKE_BYTES: Final = 16 * 1024 * 1024
"""A take ends with the message that fills this: each counts as the largest of its push."""
MAX_ASIDE: Final = 100_000
"""Messages of one group and shard that may be aside. At the limit the cursor stalls until some are done."""

_Reason = Annotated[str, Meta(max_length=8_000)]


class Delivery(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message that was taken. `token`: the lease's name; `until_us`: when it runs out, 0 if it was taken
    permanently.
    """

    spot: Spot
    token: Number
    deliveries: Number
    until_us: Number

    def moved(self, places: dict[int, tuple[int, int]]) -> Delivery:
        """The delivery, whose body may have been carried: `places` says where to, by position."""
        place = places.get(self.spot.pos)
        return self if place is None else msgspec.structs.replace(self, spot=self.spot.carried(place))


class Aside(msgspec.Struct, array_like=True, gc=False):
    """A message that the cursor has passed and that is not done."""

    spot: Spot
    status: Annotated[int, Meta(ge=0, le=4)]
    due_us: Number = 0
    token: Number = 0
    deliveries: Number = 0
    reason: _Reason = ""

    @property
    def pushed_until_us(self) -> int:
        """Until when it was delayed by its push, if it still is; else 0."""
        return self.due_us if self.status == WAITING and not self.deliveries else 0

    def has_expired(self, now_us: int) -> bool:
        """Whether no take gives it any more: its time is over, and nobody has it."""
        return self.status not in (LEASED, DEAD) and 0 < self.spot.expires_us <= now_us


class Group:
    """One consumer group."""

    def __init__(self, cursor: int) -> None:
        self.cursor = cursor
        self.aside: dict[int, Aside] = {}
        self.is_dry = False
        """A take came back short, and nothing has happened since that could have changed that but time."""
        self.done_count = 0
        self.expired_count = 0
        self.rate = Rate()
        self._back: list[int] = []
        self._leases: list[tuple[int, int]] = []
        self._waits: list[tuple[int, int]] = []
        """(due, position) of what is leased, and of what waits; an entry counts if the message says the same."""
        self._holders: dict[str, int] = {}
        self._parked: dict[str, list[int]] = {}

    @staticmethod
    def begun(cursor: int, lingering: list[tuple[Spot, int]], now_us: int) -> Group:
        """A new group. `lingering`: messages before the backlog that others have not done, and until when delayed."""
        due_us = {spot.pos: due_us for spot, due_us in lingering if due_us > now_us}
        spots = {spot.pos: spot for spot, _ in lingering}
        asides = [
            Aside(spot, WAITING if pos in due_us else BACK, due_us.get(pos, 0)) for pos, spot in sorted(spots.items())
        ]
        return Group.restored(cursor, asides)

    @staticmethod
    def restored(cursor: int, asides: list[Aside]) -> Group:
        """The group as a checkpoint describes it."""
        group = Group(cursor)
        for aside in asides:
            pos = aside.spot.pos
            group.aside[pos] = aside
            key = aside.spot.key
            if aside.status in (LEASED, WAITING):
                group._note_due(aside.status, aside.due_us, pos)
            elif aside.status == BACK:
                heappush(group._back, pos)
            elif aside.status == PARKED:
                heappush(group._parked.setdefault(key, []), pos)
            if key and group._holds(aside):
                group._holders[key] = pos
        return group

    @staticmethod
    def _holds(aside: Aside) -> bool:
        """Whether it keeps the later messages of its key back: it was taken before and is not done."""
        return aside.status == LEASED or (aside.status in (WAITING, BACK) and aside.deliveries > 0)

    # Taking

    def take(self, backlog: Backlog, now_us: int, count: int, lease_us: int, token: int) -> list[Delivery]:
        """The next messages, in order; fewer of large ones, of about `TAKE_BYTES` in all."""
        self._bring_back(now_us)
        taken: list[Delivery] = []
        room_bytes = TAKE_BYTES
        while len(taken) < count and room_bytes > 0:
            before = len(taken)
            if self._back:
                self._offer_back(heappop(self._back), now_us, lease_us, token, taken)
            elif not self._take_untouched(backlog, now_us, count, room_bytes, lease_us, token, taken):
                break
            room_bytes -= sum(one.spot.size_bytes for one in taken[before:])
        self.is_dry = len(taken) < count and room_bytes > 0
        return taken

    def _bring_back(self, now_us: int) -> None:
        """What was delayed and is due."""
        while self._waits and self._waits[0][0] <= now_us:
            due_us, pos = heappop(self._waits)
            aside = self.aside.get(pos)
            if aside is not None and aside.status == WAITING and aside.due_us == due_us:
                aside.status = BACK
                heappush(self._back, pos)

    def _note_due(self, status: int, due_us: int, pos: int) -> None:
        """Have it in the heap of its status, which has no more than twice as many entries as it needs, about."""
        heap = self._leases if status == LEASED else self._waits
        heappush(heap, (due_us, pos))
        if len(heap) > 2 * len(self.aside) + 100:
            heap[:] = [(aside.due_us, at) for at, aside in self.aside.items() if aside.status == status]
            heapify(heap)

    def _offer_back(self, pos: int, now_us: int, lease_us: int, token: int, taken: list[Delivery]) -> None:
        aside = self.aside.get(pos)
        if aside is None or aside.status != BACK:
            return
        spot = aside.spot
        if spot.expires_us and spot.expires_us <= now_us:
            self._finish(pos, is_expired=True)
            return
        if spot.key and self._holders.get(spot.key, pos) != pos:
            aside.status = PARKED
            heappush(self._parked.setdefault(spot.key, []), pos)
            return
        self._hand_out(aside, now_us, lease_us, token, taken)

    def _hand_out(self, aside: Aside, now_us: int, lease_us: int, token: int, taken: list[Delivery]) -> None:
        spot = aside.spot
        deliveries = aside.deliveries + 1
        if not lease_us:
            taken.append(Delivery(spot, token, deliveries, 0))
            self.aside[spot.pos] = aside
            self._finish(spot.pos)
            self.done_count += 1
            self.rate.add(1, now_us)
            return
        aside.status, aside.due_us, aside.token, aside.deliveries = LEASED, now_us + lease_us, token, deliveries
        self.aside[spot.pos] = aside
        self._note_due(LEASED, aside.due_us, spot.pos)
        if spot.key:
            self._holders[spot.key] = spot.pos
        taken.append(Delivery(spot, token, deliveries, aside.due_us))

    def _take_untouched(
        self,
        backlog: Backlog,
        now_us: int,
        count: int,
        room_bytes: int,
        lease_us: int,
        token: int,
        taken: list[Delivery],
    ) -> bool:
        """Continue with the push at the cursor; False if there is none, or no room for what it would put aside."""
        segment = backlog.find(self.cursor)
        if segment is None:
            return False
        start = self.cursor - segment.first
        room = max(0, MAX_ASIDE - len(self.aside))
        if segment.has_expired(now_us):
            self._pass(segment)
            return True
        if segment.due_us > now_us:
            stop = min(segment.count, start + room)
            for index in range(start, stop):
                spot = segment.spot(index)
                self.aside[spot.pos] = Aside(spot, WAITING, segment.due_us)
                self._note_due(WAITING, segment.due_us, spot.pos)
            self.cursor = segment.first + stop
            return stop > start
        stop = min(segment.count, start + count - len(taken), start + 1 + room_bytes // (segment.size_bytes or 1))
        if not segment.keys and not lease_us:
            taken += [Delivery(segment.spot(index), token, 1, 0) for index in range(start, stop)]
            self.done_count += stop - start
            self.rate.add(stop - start, now_us)
            self.cursor = segment.first + stop
            return True
        stop = min(stop, start + room)
        for index in range(start, stop):
            self._offer_untouched(segment.spot(index), now_us, lease_us, token, taken)
        self.cursor = segment.first + stop
        return stop > start

    def pass_expired(self, backlog: Backlog, now_us: int) -> None:
        """Go past the pushes at the cursor whose time is over, though nobody takes anything."""
        while (segment := backlog.find(self.cursor)) is not None and segment.has_expired(now_us):
            self._pass(segment)

    def _pass(self, segment: Segment) -> None:
        stop = segment.first + segment.count
        self.expired_count += stop - self.cursor
        self.cursor = stop

    def _offer_untouched(self, spot: Spot, now_us: int, lease_us: int, token: int, taken: list[Delivery]) -> None:
        if spot.key and (spot.key in self._holders or spot.key in self._parked):
            self.aside[spot.pos] = Aside(spot, PARKED)
            heappush(self._parked.setdefault(spot.key, []), spot.pos)
        else:
            self._hand_out(Aside(spot, BACK), now_us, lease_us, token, taken)

    # The outcome of what was taken

    def leased(self, pos: int, token: int) -> Aside | None:
        """The message, if it is leased under that token."""
        aside = self.aside.get(pos)
        return aside if aside is not None and aside.status == LEASED and aside.token == token else None

    def held(self, one: Delivery, now_us: int = 0) -> Delivery | None:
        """That lease as it is now, if it lasts: it may have been extended since it was given."""
        aside = self.leased(one.spot.pos, one.token)
        if aside is None or aside.due_us <= now_us:
            return None
        return one if one.until_us == aside.due_us else msgspec.structs.replace(one, until_us=aside.due_us)

    def ack(self, pos: int, now_us: int) -> None:
        """It is done."""
        self._finish(pos)
        self.is_dry = False
        self.done_count += 1
        self.rate.add(1, now_us)

    def nack(self, pos: int, due_us: int, now_us: int, *, is_counted: bool = True) -> None:
        """It comes back at `due_us`."""
        aside = self.aside[pos]
        if not is_counted:
            aside.deliveries -= 1
            if aside.deliveries == 0:
                self._free(aside)
        aside.token = 0
        self.is_dry = False
        if due_us <= now_us:
            aside.status, aside.due_us = BACK, 0
            heappush(self._back, pos)
        else:
            aside.status, aside.due_us = WAITING, due_us
            self._note_due(WAITING, due_us, pos)

    def extend(self, pos: int, until_us: int) -> None:
        """The lease runs out then."""
        self.aside[pos].due_us = until_us
        self._note_due(LEASED, until_us, pos)

    def bury(self, pos: int, reason: str, now_us: int) -> None:
        """It becomes a dead letter."""
        aside = self.aside[pos]
        self._free(aside)
        aside.status, aside.due_us, aside.token, aside.reason = DEAD, now_us, 0, reason
        self.is_dry = False

    def redrive(self, pos: int) -> bool:
        """A dead letter can be taken again, as if it never had been."""
        aside = self.aside.get(pos)
        if aside is None or aside.status != DEAD:
            return False
        aside.status, aside.due_us, aside.deliveries, aside.reason = BACK, 0, 0, ""
        heappush(self._back, pos)
        self.is_dry = False
        return True

    def purge(self, pos: int) -> bool:
        """A dead letter is no more."""
        aside = self.aside.get(pos)
        if aside is None or aside.status != DEAD:
            return False
        del self.aside[pos]
        self.is_dry = False
        return True

    def put_back(self, one: Delivery) -> None:
        """A message that was taken permanently, and that nobody got, can be taken again, with the deliveries before."""
        pos, key = one.spot.pos, one.spot.key
        aside = self.aside[pos] = Aside(one.spot, BACK, deliveries=one.deliveries - 1)
        if key and self._holds(aside) and self._holders.setdefault(key, pos) != pos:
            aside.status = PARKED  # a later one of its key was taken since, and comes first now
            heappush(self._parked.setdefault(key, []), pos)
        else:
            heappush(self._back, pos)
        self.done_count -= 1
        self.is_dry = False

    def _finish(self, pos: int, *, is_expired: bool = False) -> None:
        aside = self.aside.pop(pos)
        self._free(aside)
        if is_expired:
            self.expired_count += 1

    def _free(self, aside: Aside) -> None:
        """The next message of its key may be taken."""
        key = aside.spot.key
        if not key or self._holders.get(key, aside.spot.pos) != aside.spot.pos:
            return
        self._holders.pop(key, None)
        parked = self._parked.get(key)
        while parked:
            pos = heappop(parked)
            waiting = self.aside.get(pos)
            if waiting is not None and waiting.status == PARKED:
                waiting.status = BACK
                heappush(self._back, pos)
                if self._holds(waiting):
                    self._holders[key] = pos
                break
        if not parked:
            self._parked.pop(key, None)

    # Looking

    def keeps_back(self, spot: Spot) -> bool:
        """Whether another message of its key comes first: one that somebody has, or that waits longer."""
        if not spot.key or spot.pos < self.cursor:
            return bool(spot.key) and self._holders.get(spot.key, spot.pos) != spot.pos
        return spot.key in self._holders or spot.key in self._parked

    def may_give(self, backlog: Backlog, now_us: int) -> bool:
        """Whether a take may find something: as things stand, or because a delay is over."""
        if not self.is_dry and (self.cursor < backlog.next_pos or self._back):
            return True
        return self._has_live_head(self._waits) and self._waits[0][0] <= now_us

    def lose(self, one: Delivery, now_us: int, reason: str) -> None:
        """A popped message that may never have been received becomes a dead letter."""
        self.aside[one.spot.pos] = Aside(one.spot, DEAD, now_us, deliveries=one.deliveries, reason=reason)
        self.done_count -= 1

    def next_due_us(self) -> int:
        """When the next delayed message is due, or the next lease runs out; 0: neither."""
        due_us = [heap[0][0] for heap in (self._leases, self._waits) if self._has_live_head(heap)]
        return min(due_us, default=0)

    def _has_live_head(self, heap: list[tuple[int, int]]) -> bool:
        status = LEASED if heap is self._leases else WAITING
        while heap:
            due_us, pos = heap[0]
            aside = self.aside.get(pos)
            if aside is not None and aside.due_us == due_us and aside.status == status:
                return True
            heappop(heap)
        return False

    def overdue(self, now_us: int, limit: int) -> list[tuple[int, int]]:
        """(position, token) of leases that have run out, not yet fenced."""
        found: dict[int, tuple[int, int]] = {}
        heap = self._leases
        while len(found) < limit and self._has_live_head(heap) and heap[0][0] <= now_us:
            entry = heappop(heap)
            found[entry[1]] = entry
        for entry in found.values():
            heappush(heap, entry)
        return [(pos, self.aside[pos].token) for pos in found]

    @property
    def back_count(self) -> int:
        """How many can be taken before what is untouched."""
        return len(self._back)

    def oldest_back_us(self) -> int:
        """When the first of those was pushed."""
        aside = self.aside.get(self._back[0])
        return aside.spot.time_us if aside is not None else 1

    @property
    def is_blocked(self) -> bool:
        """Whether the cursor stalls for what is aside."""
        return len(self.aside) >= MAX_ASIDE

    def count(self, status: int) -> int:
        """How many are aside in that status."""
        return sum(aside.status == status for aside in self.aside.values())
