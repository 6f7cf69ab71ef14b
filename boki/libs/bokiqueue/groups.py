"""One consumer group of one shard: where each message is, and which comes next. Pure, and a part of the fold.

Messages have **positions**: 0, 1, 2, … in the order of their pushes. What a group has not touched yet is everything
from its `cursor` on, and costs it nothing. A message that the cursor has passed and that is not done is **aside**, in
one of five conditions. `Group._move` is the one place where a message changes its condition, and keeps what is known by
condition: heaps of what is ready and of what is due, and which message of a group key has its turn.

=========  ===========================================================================  =====================
condition  meaning                                                                      next
=========  ===========================================================================  =====================
UNTOUCHED  the cursor has not passed it                                                 any but DEAD and BACK
LEASED     a consumer has it until `due_us`                                             any
WAITING    it comes back at `due_us`: delayed when it was pushed, or by a nack          BACK
BACK       it can be taken, before everything that is untouched, in order of positions  LEASED, PARKED, DONE
PARKED     another message of its group key comes first                                 BACK
DEAD       a dead letter, with the reason, until it is redriven or purged               BACK, DONE
DONE       acked, popped, expired or purged; a pop may be given back, or prove lost     BACK, PARKED, DEAD
=========  ===========================================================================  =====================

Time is the time of records. A lease ends only by a record: an ack, a nack, or a **fence** at or after `due_us`. So a
commit under the condition that there was no fence since holds the lease.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from heapq import heappop, heappush
from operator import attrgetter
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from boki.libs.bokiqueue.records import (
    ACK,
    BURY,
    EXTEND,
    MAX_BATCH,
    NACK,
    PURGE,
    REDRIVE,
    Key,
    Later,
    Number,
    Push,
    Settle,
    Size,
    Time,
)
from boki.libs.fold.dues import Dues, Rate

UNTOUCHED, DONE, LEASED, WAITING, BACK, PARKED, DEAD = range(-2, 5)
MOVES: Final = {
    UNTOUCHED: (LEASED, WAITING, PARKED, DONE),
    LEASED: (LEASED, WAITING, BACK, DEAD, DONE),
    WAITING: (BACK,),
    BACK: (LEASED, PARKED, DONE),
    PARKED: (BACK,),
    DEAD: (BACK, DONE),
    DONE: (BACK, PARKED, DEAD),
}
"""The conditions that may follow each."""

TAKE_BYTES: Final = 16 * 1024 * 1024
"""A take ends with the message that fills this: each counts as the largest of its push."""
MAX_ASIDE: Final = 100_000
"""Messages of one group and shard that may be aside. At the limit the cursor stalls until some are done."""

_Index = Annotated[int, Meta(ge=0, lt=MAX_BATCH)]
_Reason = Annotated[str, Meta(max_length=8_000)]


class Spot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message: its position, the record and place in it where it was pushed, and where it stands now if not there."""

    pos: Number
    seqnum: Number
    index: _Index
    time_us: Time
    expires_us: Later = 0
    key: Key = ""
    carried_to: Number = 0
    carried_index: _Index = 0
    size_bytes: Size = 0
    """No body of its push has more."""

    @property
    def place(self) -> tuple[int, int]:
        """The record that holds its body, and where in it."""
        return (self.carried_to, self.carried_index) if self.carried_to else (self.seqnum, self.index)

    def carried(self, place: tuple[int, int]) -> Spot:
        """The message, whose body stands there now."""
        return msgspec.structs.replace(self, carried_to=place[0], carried_index=place[1])


class Delivery(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message that was taken. `token` names the lease; `until_us`: when it runs out, 0 of a pop."""

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
    status: Annotated[int, Meta(ge=LEASED, le=DEAD)]
    due_us: Number = 0
    token: Number = 0
    deliveries: Number = 0
    reason: _Reason = ""


class Segment(msgspec.Struct, frozen=True, gc=False):
    """The messages of one push."""

    seqnum: int
    first: int
    count: int
    time_us: int
    due_us: int
    expires_us: int
    keys: list[str]
    size_bytes: int
    """The largest body."""

    @staticmethod
    def of(seqnum: int, first: int, time_us: int, push: Push) -> Segment:
        """That of a push at this time, with positions from `first` on."""
        bodies = push.bodies
        due_us = time_us + push.delay_us if push.delay_us else 0
        expires_us = time_us + push.ttl_us if push.ttl_us else 0
        size_bytes = len(bodies[0]) if len(bodies) == 1 else max(map(len, bodies), default=0)
        return Segment(seqnum, first, len(bodies), time_us, due_us, expires_us, push.keys, size_bytes)

    def has_expired(self, now_us: int) -> bool:
        """Whether no take gives any of it any more, of what was not taken before."""
        return 0 < self.expires_us <= now_us

    def spot(self, index: int) -> Spot:
        """One of its messages."""
        key = self.keys[index] if self.keys else ""
        return Spot(self.first + index, self.seqnum, index, self.time_us, self.expires_us, key, 0, 0, self.size_bytes)


class Backlog:
    """Pushes that some group has not passed, in order."""

    def __init__(self, next_pos: int = 0) -> None:
        self._segments: list[Segment] = []
        self._head = 0
        """What lies before it in the list is forgotten, and deleted from time to time."""
        self.next_pos = next_pos
        self.may_expire = False
        """Whether anything that came here is dropped after a time."""

    def add(self, seqnum: int, time_us: int, push: Push) -> None:
        """A push."""
        segment = Segment.of(seqnum, self.next_pos, time_us, push)
        self._segments.append(segment)
        self.next_pos += segment.count
        if segment.expires_us:
            self.may_expire = True

    def put_before(self, older: list[Segment]) -> None:
        """Pushes that lie right before the first one here."""
        first = self.first_pos - sum(segment.count for segment in older)
        placed = []
        for segment in older:
            placed.append(msgspec.structs.replace(segment, first=first))
            first += segment.count
        self._segments[: self._head] = placed
        self._head = 0
        self.may_expire |= any(segment.expires_us for segment in older)

    @property
    def first_pos(self) -> int:
        """The position of the first message here."""
        return self._segments[self._head].first if self._head < len(self._segments) else self.next_pos

    def segments(self) -> list[Segment]:
        """All of them; a copy."""
        return self._segments[self._head :]

    def find(self, pos: int) -> Segment | None:
        """The push that holds the position."""
        if not self.first_pos <= pos < self.next_pos:
            return None
        last = self._segments[-1]
        if pos >= last.first:
            return last
        return self._segments[bisect_right(self._segments, pos, self._head, key=attrgetter("first")) - 1]

    def drop_below(self, pos: int) -> None:
        """Forget pushes of which every message lies below the position."""
        segments, head = self._segments, self._head
        while head < len(segments) and pos >= segments[head].first + segments[head].count:
            head += 1
        self._forget(head)

    def drop_expired(self, now_us: int) -> None:
        """Forget the first pushes, as far as their time is over."""
        head = self._head
        while head < len(self._segments) and self._segments[head].has_expired(now_us):
            head += 1
        self._forget(head)

    def _forget(self, head: int) -> None:
        self._head = head
        if head > 64 and head * 2 > len(self._segments):
            del self._segments[:head]
            self._head = 0


class Group:
    """One consumer group, as a checkpoint describes it: these messages are aside."""

    def __init__(self, cursor: int, asides: Iterable[Aside] = ()) -> None:
        self.cursor = cursor
        self.aside: dict[int, Aside] = {}
        self.is_dry = False
        """A take came back short, and nothing has happened since that could have changed that but time."""
        self.done_count = 0
        self.expired_count = 0
        self.rate = Rate()
        self._back: list[int] = []
        self._leases, self._waits = Dues[int](), Dues[int]()
        self._turns: dict[str, int] = {}
        """By group key, the message that keeps the later ones back: it was taken before and is not done."""
        self._parked: dict[str, list[int]] = {}
        for aside in asides:
            status, token, aside.status = aside.status, aside.token, UNTOUCHED
            self._move(aside, status, aside.due_us)
            aside.token = token

    def _move(self, aside: Aside, to: int, due_us: int = 0) -> None:
        """The message comes into another condition (see `MOVES`)."""
        was, pos, key = aside.status, aside.spot.pos, aside.spot.key
        aside.status, aside.due_us = to, due_us
        if to != LEASED:
            aside.token = 0
            self._leases.drop(pos)
        if to != WAITING:
            self._waits.drop(pos)
        if to == DONE:
            self.aside.pop(pos, None)
        else:
            self.aside[pos] = aside
            if to == BACK:
                heappush(self._back, pos)
            elif to == PARKED:
                heappush(self._parked.setdefault(key, []), pos)
            elif to != DEAD:
                (self._leases if to == LEASED else self._waits).put(pos, due_us)
        if not key:
            return
        if to == LEASED or (to in (WAITING, BACK) and aside.deliveries):
            self._turns[key] = pos
        elif was in (LEASED, BACK) and self._turns.get(key, pos) == pos:
            self._end_turn(key)

    def _end_turn(self, key: str) -> None:
        """The next message of the key may be taken."""
        self._turns.pop(key, None)
        parked = self._parked.get(key)
        while parked:
            waiting = self.aside.get(heappop(parked))
            if waiting is not None and waiting.status == PARKED:
                self._move(waiting, BACK)
                break
        if not parked:
            self._parked.pop(key, None)

    # Taking

    def take(self, backlog: Backlog, now_us: int, count: int, lease_us: int, token: int) -> list[Delivery]:
        """The next messages, in order; fewer of large ones, of about `TAKE_BYTES` in all."""
        while self._waits.is_due(now_us):
            for pos in self._waits.due(now_us, MAX_ASIDE):
                self._move(self.aside[pos], BACK)
        taken: list[Delivery] = []
        room_bytes = TAKE_BYTES
        while len(taken) < count and room_bytes > 0:
            before = len(taken)
            if self._back:
                aside = self.aside.get(heappop(self._back))
                if aside is not None and aside.status == BACK:
                    self._offer(aside, now_us, lease_us, token, taken)
            elif not self._take_untouched(backlog, now_us, count, room_bytes, lease_us, token, taken):
                break
            if len(taken) < count:
                room_bytes -= sum([one.spot.size_bytes for one in taken[before:]])
        self.is_dry = len(taken) < count and room_bytes > 0
        return taken

    def _offer(self, aside: Aside, now_us: int, lease_us: int, token: int, taken: list[Delivery]) -> None:
        """A message that is ready goes to the take, unless its time is over or one of its key comes first."""
        spot = aside.spot
        if 0 < spot.expires_us <= now_us:
            self._move(aside, DONE)
            self.expired_count += 1
        elif spot.key and self.keeps_back(spot):
            self._move(aside, PARKED)
        else:
            aside.deliveries += 1
            if lease_us:
                aside.token = token
                self._move(aside, LEASED, now_us + lease_us)
            else:
                self.ack(aside, now_us)
            taken.append(Delivery(spot, token, aside.deliveries, aside.due_us))

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
        if segment.has_expired(now_us):
            self.pass_expired(backlog, now_us)
            return True
        start, is_due = self.cursor - segment.first, segment.due_us <= now_us
        stop = min(segment.count, start + count - len(taken), start + 1 + room_bytes // (segment.size_bytes or 1))
        if is_due and not lease_us and not segment.keys:
            taken += [Delivery(segment.spot(index), token, 1, 0) for index in range(start, stop)]
            self.done_count += stop - start
            self.rate.add(stop - start, now_us)
        else:
            room = max(0, MAX_ASIDE - len(self.aside))
            stop = min(stop if is_due else segment.count, start + room)
            for index in range(start, stop):
                aside = Aside(segment.spot(index), UNTOUCHED)
                if is_due:
                    self._offer(aside, now_us, lease_us, token, taken)
                else:
                    self._move(aside, WAITING, segment.due_us)
        self.cursor = segment.first + stop
        return stop > start

    def pass_expired(self, backlog: Backlog, now_us: int) -> None:
        """Go past the pushes at the cursor whose time is over."""
        while (segment := backlog.find(self.cursor)) is not None and segment.has_expired(now_us):
            stop = segment.first + segment.count
            self.expired_count += stop - self.cursor
            self.cursor = stop

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

    def settle(self, settle: Settle, pos: int, token: int, now_us: int, most: int) -> bool:
        """What has become of a lease that lasts, or of a dead letter; False if it is none. `most`: see `fail`."""
        verb = settle.verb
        is_of_dead = verb in (REDRIVE, PURGE)
        aside = self.aside.get(pos) if is_of_dead else self.leased(pos, token)
        if aside is None or (aside.status != DEAD if is_of_dead else aside.due_us <= now_us):
            return False
        if verb == EXTEND:
            self._move(aside, LEASED, now_us + settle.span_us)
            return True
        if verb == ACK:
            self.ack(aside, now_us)
        elif verb == NACK:
            self.fail(aside, now_us, settle.reason, most, now_us + settle.span_us)
        elif verb == BURY:
            self._bury(aside, now_us, settle.reason)
        elif verb == PURGE:
            self._move(aside, DONE)
        elif verb == REDRIVE:
            aside.deliveries, aside.reason = 0, ""
            self._move(aside, BACK)
        else:
            self.release(aside)
        self.is_dry = False
        return True

    def ack(self, aside: Aside, now_us: int) -> None:
        """It is done."""
        self._move(aside, DONE)
        self.is_dry = False
        self.done_count += 1
        self.rate.add(1, now_us)

    def fail(self, aside: Aside, now_us: int, reason: str, most: int, due_us: int = 0) -> None:
        """It comes back at `due_us`, or is dead after `most` deliveries."""
        self.is_dry = False
        if most and aside.deliveries >= most:
            told = f"delivered {aside.deliveries} times; the last time: {reason or 'no reason'}"
            self._bury(aside, now_us, told)
            return
        aside.reason = reason
        self._move(aside, WAITING if due_us > now_us else BACK, due_us if due_us > now_us else 0)

    def _bury(self, aside: Aside, now_us: int, reason: str) -> None:
        aside.reason = reason
        self._move(aside, DEAD, now_us)

    def release(self, aside: Aside) -> None:
        """It can be taken again, as if this lease had not been."""
        aside.deliveries -= 1
        self.is_dry = False
        self._move(aside, BACK)

    def put_back(self, one: Delivery) -> None:
        """A message that was taken permanently, and never received, can be taken again, unless a later one of its key
        was taken since: then that comes first.
        """
        key, pos = one.spot.key, one.spot.pos
        aside = Aside(one.spot, DONE, deliveries=one.deliveries - 1)
        is_late = key and aside.deliveries and self._turns.get(key, pos) != pos
        self._move(aside, PARKED if is_late else BACK)
        self.done_count -= 1
        self.is_dry = False

    def lose(self, one: Delivery, now_us: int, reason: str) -> None:
        """A popped message that may never have been received becomes a dead letter."""
        self._bury(Aside(one.spot, DONE, deliveries=one.deliveries), now_us, reason)
        self.done_count -= 1

    # Looking

    def keeps_back(self, spot: Spot) -> bool:
        """Whether another message of its key comes first: one that is taken and not done, or that waits longer."""
        key, pos = spot.key, spot.pos
        if not key or pos < self.cursor:
            return bool(key) and self._turns.get(key, pos) != pos
        return key in self._turns or key in self._parked

    def may_give(self, backlog: Backlog, now_us: int) -> bool:
        """Whether a take may find something: as things stand, or because a delay is over."""
        return self.ready_count(backlog) > 0 or self._waits.is_due(now_us)

    def next_due_us(self) -> int:
        """When the next delayed message is due, or the next lease runs out; 0: neither."""
        return min((due_us for dues in (self._leases, self._waits) if (due_us := dues.next_us())), default=0)

    def overdue(self, now_us: int, limit: int) -> list[tuple[int, int]]:
        """(position, token) of leases that have run out, not yet fenced."""
        return [(pos, self.aside[pos].token) for pos in self._leases.due(now_us, limit)]

    def ready_count(self, backlog: Backlog) -> int:
        """About how many messages a take would find, at most; 0 if it would find none as things stand."""
        return 0 if self.is_dry else backlog.next_pos - self.cursor + len(self._back)

    def count(self, status: int) -> int:
        """How many are aside in that status."""
        return sum(aside.status == status for aside in self.aside.values())
