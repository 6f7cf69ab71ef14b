"""The shards of a queue in one process, and which act asks each for what callers want next. Nothing here appends.

A shard has one act on its way at a time. What comes meanwhile gathers for the next one. An act whose outcome is unknown
is appended again under its number: the fold counts it once.

Callers that wait are asked for together, by **credit** (see the fold), which is spread over all shards. If they are
fewer than shards, this process stands in as many shards as it has callers, those where the fewest other processes do,
and in the others when it reads of a message there that was given to none.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from boki import BokiError
from boki.libs.bokiqueue.callers import Kind, Served, Wants, finish
from boki.libs.bokiqueue.groups import Delivery
from boki.libs.bokiqueue.messages import no_such_group
from boki.libs.bokiqueue.records import GIVE_BACK, Act, Credit, Grant, Settle, Take
from boki.libs.bokiqueue.sessions import SESSION_US, Given
from boki.libs.bokiqueue.state import ShardState
from boki.libs.fold.clock import LogClock, Moment

MAX_FENCES: Final = 500
MAX_SETTLED: Final = 5_000
"""Messages that one act settles, about; a take counts as `TAKE_WEIGHT` of them."""
TAKE_WEIGHT: Final = 10
MAX_UNUSED: Final = 100
"""A process with this many standing takes without credit in a shard adds none there. They last as long as it acts: a
caller that leases for another time at each call would fill the shard (`MAX_STANDING`).
"""
REFUSED_S: Final = 0.1
"""After an act was refused the next one of its shard waits this long."""
EARLY_US: Final = 1_000
"""The log's time may lag behind our guess by this much: who asks early gets nothing, and would ask again at once."""
SOME_DAY_US: Final = 1 << 63


@dataclass(eq=False, slots=True)
class Asked:
    """A part of an act: a take, or a settle."""

    part: Take | Settle
    caller: Future[Any] | None = None
    """Waits for what it takes, or for the verdicts. None: it gives back what no caller has received."""

    @property
    def is_gone(self) -> bool:
        """Whether its caller waits no more."""
        return self.caller is not None and self.caller.done()

    @property
    def weight(self) -> int:
        """How much of an act it is."""
        return TAKE_WEIGHT if isinstance(self.part, Take) else len(self.part.messages) + len(self.part.reason) // 16


class Demand:
    """What all callers want at one moment, for one round of acts.

    `is_riding`: the act shares a request with a push, so it need not be put off. `is_tidying`: unneeded credit is
    withdrawn, and receipt of messages is reported.
    """

    def __init__(
        self, wants: Wants, lines: Sequence[Line], clock: LogClock, *, is_tidying: bool = False, is_riding: bool = False
    ) -> None:
        self.is_riding, self.is_tidying = is_riding, is_tidying
        self.is_sure = clock.is_sure or any(line.outstanding is not None for line in lines)
        """Whether the log's time is known, or is being asked for. If not, what is due later may be due now."""
        self.missing: dict[Kind, int] = {}
        """How many messages callers wait for; those taken from shards where this process does not stand are off."""
        self.standing: dict[Kind, dict[int, int]] = {}
        """By shard, the number of messages that standing takes ask for."""
        for kind, callers in wants.waiting.items():
            if callers:
                count = self.missing[kind] = sum([want.count for want in callers])
                shards = _shards_to_stand_in(kind, count, lines)
                each, more = divmod(count + wants.ahead(kind, count), len(shards))
                self.standing[kind] = {shard: each + (turn < more) for turn, shard in enumerate(shards)}


def _shards_to_stand_in(kind: Kind, count: int, lines: Sequence[Line]) -> list[int]:
    """All, or as many as messages are wanted: where the fewest others stand, and then where this process does."""
    if count >= len(lines):
        return [line.shard for line in lines]
    return sorted(line.shard for line in sorted(lines, key=lambda line: line.preference(kind))[:count])


@dataclass(slots=True)
class Outstanding:
    """An act that the fold has not seen yet."""

    act: Act
    takes: Sequence[Asked] = ()
    settles: Sequence[Asked] = ()
    asked: Moment | None = None
    """When it was first appended."""
    seqnum: int = 0
    """Its record, once the log has acknowledged it."""

    @property
    def has_outcome(self) -> bool:
        """Whether it asks for anything but credit, which is asked for again."""
        return bool(self.act.takes or self.act.settles)

    @property
    def kinds(self) -> set[Kind]:
        """Of what it asks for on behalf of any caller."""
        return {(one.group, one.lease_us) for one in self.act.granted}


class Line:
    """One shard in this process: its fold, and what is wanted of it."""

    def __init__(self, shard: int, taker: bytes) -> None:
        self.shard = shard
        self.state = ShardState(shard)
        self.resume = 0
        """The fold began with this record."""
        self.gone_below = 0
        """No record of the stream below this is read any more."""
        self.turn = crc32(taker + bytes((shard,)))
        """Where this process stands first, if all shards are alike: each process in another order."""
        self.asked: list[Asked] = []
        """What no act asks for yet."""
        self.held: dict[int, int] = {}
        """By token, the number of popped messages that no caller has received yet. They may be given back."""
        self.committing: set[tuple[str, int, int]] = set()
        """Leases (group, position, token) whose effects are on their way: one block at a time commits for each."""
        self.commits = 0
        """How many blocks of this process have begun to commit."""
        self.outstanding: Outstanding | None = None
        self.saved_records = self.saved_bytes = 0
        """Records of the stream since the last checkpoint, and their bytes."""
        self.is_saving = False
        self.refused_at: Moment | None = None
        """When an act of this shard was refused last."""
        self._doubtful: dict[int, Act] = {}
        """Acts that were given up, and may have been carried out."""
        self._stands: set[Kind] = set()
        """Kinds for which this process stands here, and does not only take what is ready."""
        self._taker = taker
        self._number = 0
        self.last_token = 0
        """The last record by which this process knows that it was given messages."""

    def begin(self, state: ShardState, resume: int) -> None:
        """Continue from another state of the same stream. What is wanted, and an act on its way, stay."""
        self.state, self.resume = state, resume
        self.saved_records = self.saved_bytes = 0

    @property
    def is_busy(self) -> bool:
        """Whether an act is on its way, or something is to be said."""
        return self.outstanding is not None or bool(self.asked)

    @property
    def all_asked(self) -> Iterator[Asked]:
        """What it is asked for, by an act or by none yet."""
        yield from self.asked
        if self.outstanding is not None:
            yield from self.outstanding.takes
            yield from self.outstanding.settles

    @property
    def is_act_forgotten(self) -> bool:
        """Whether the fold has passed the act that is on its way, or the book was deleted behind it: its outcome, still
        unknown here, does not come.
        """
        passed = max(self.state.at, self.gone_below - 1)
        return self.outstanding is not None and 0 < self.outstanding.seqnum <= passed

    def is_pausing(self, clock: LogClock) -> bool:
        """Whether an act of this shard was refused a moment ago: the log is busy, or gone."""
        return self.refused_at is not None and clock.since(self.refused_at) < REFUSED_S

    # Composing

    def compose(self, demand: Demand, now_us: int) -> Outstanding | None:
        """The next act, if anything is to be asked for; `demand` becomes less by what it asks for."""
        takes, settles = self._due() if self.asked else ([], [])
        granted, is_due = self._credits(demand, now_us)
        is_owed = demand.is_tidying and self.owes_receipt
        if not (takes or settles or granted or is_due or is_owed):
            return None
        groups = dict.fromkeys([*(one.part.group for one in takes), *(name for name, _ in demand.standing)])
        fences = [
            (name, pos, token)
            for name in groups
            if (group := self.state.groups.get(name)) is not None
            for found in (group.overdue(now_us, MAX_FENCES), self.state.standing.unheard(name, now_us, MAX_FENCES))
            for pos, token in found
        ][:MAX_FENCES]
        self._number += 1
        kept_from = min(self.held, default=self.state.at + 1)
        wanted: list[Any] = [[one.part for one in some] for some in (takes, settles)]
        parts = (self.shard, self._taker, self._number, wanted[0], wanted[1], fences, kept_from)
        self.outstanding = Outstanding(Grant(*parts, granted) if granted else Act(*parts), takes, settles)
        demand.is_sure = True  # its record will say
        return self.outstanding

    def _due(self) -> tuple[list[Asked], list[Asked]]:
        """What the next act takes and settles: what was asked for first, as much as fits."""
        count = weight = 0
        for one in self.asked:
            weight += one.weight
            if count and weight > MAX_SETTLED:
                break
            count += 1
        due, self.asked = self.asked[:count], self.asked[count:]
        takes = [one for one in due if isinstance(one.part, Take) and not one.is_gone]
        return takes, [one for one in due if isinstance(one.part, Settle)]

    def _credits(self, demand: Demand, now_us: int) -> tuple[list[Credit], bool]:
        """Credit for callers that wait, if there is too little; and whether the fold must be told what time it is,
        because something is due that they may be given.
        """
        granted: list[Credit] = []
        is_due = False
        until_us = now_us if demand.is_sure else SOME_DAY_US
        self._stands = {kind for kind, shards in demand.standing.items() if self.shard in shards}
        for kind, shards in demand.standing.items():
            target = shards.get(self.shard, 0)
            if not target and demand.missing[kind] > 0 and self.has(kind[0], until_us):
                target = min(demand.missing[kind], self.state.ready_count(kind[0]) or 1)
                demand.missing[kind] -= target
            if target and not self.has_no_room(kind):
                granted += self._credit(kind, target, now_us, demand)
                is_due |= 0 < self.next_due_us(kind[0]) <= until_us
        for one in self.state.standing.of(self._taker) if demand.is_tidying else ():
            kind = one.group, one.lease_us
            if one.available and kind not in self._stands:
                granted += self._credit(kind, 0, now_us, demand)
        return granted, is_due

    def _credit(self, kind: Kind, target: int, now_us: int, demand: Demand) -> list[Credit]:
        """What makes the credit so much, if that is worth a record: it is about to end, or half used up. If the record
        would be alone in its request, most of it must be: pushes of this process would wait behind it.
        """
        one = self.state.standing.find(kind[0], self._taker, kind[1])
        if one is None:
            return [Credit(*kind, target)] if target else []
        is_too_much = demand.is_tidying and one.available > target
        # It is renewed in time; also if others take this process to be gone, because its acts were too slow or refused.
        is_old = target > 0 and (one.until_us - now_us < SESSION_US // 2 or one.ends_us <= now_us)
        if one.available > target // (2 if demand.is_riding else 4) and not is_too_much and not is_old:
            return []
        return [Credit(*kind, one.used + target, one.since)]

    def has_no_room(self, kind: Kind) -> bool:
        """Whether this process can be given no credit of the kind here: then it takes by acts alone."""
        standing = self.state.standing
        if standing.find(kind[0], self._taker, kind[1]) is not None:
            return False
        return standing.is_full or sum(not one.available for one in standing.of(self._taker)) >= MAX_UNUSED

    def preference(self, kind: Kind) -> tuple[int, bool, int]:
        """The lower, the rather this process stands here: few others do, or it does already."""
        standing, own = self.state.standing, self.state.standing.of(self._taker)
        others = standing.count(kind[0]) - sum(one.group == kind[0] for one in own)
        return others, not any((one.group, one.lease_us) == kind and one.available > 0 for one in own), self.turn

    @property
    def owes_receipt(self) -> bool:
        """Whether messages of standing takes were received here, and the log does not say so yet."""
        unheard = [one.unheard for one in self.state.standing.of(self._taker) if one.unheard]
        known = min(self.held, default=self.state.at + 1)
        return any(token < known for some in unheard for _, token in some)

    def has_excess(self, kinds: Collection[Kind]) -> bool:
        """Whether there is credit of other kinds than these, or of one of them that does not stand here."""
        kinds = self._stands.intersection(kinds)
        return any(
            one.available and (one.group, one.lease_us) not in kinds for one in self.state.standing.of(self._taker)
        )

    # What is due

    def next_due_us(self, name: str) -> int:
        """When a delay of the group is over, a lease runs out, or a consumer may be gone; 0: nothing is to come."""
        group = self.state.groups.get(name)
        due_us = group.next_due_us() if group is not None else 0
        end_us = self.state.standing.next_end_us(name)
        return min(due_us or end_us, end_us or due_us)

    def wakes_us(self, kinds: Collection[Kind]) -> int:
        """When credit of these kinds is to be renewed, or something is due for their groups; 0: nothing is."""
        due_us = [self.next_due_us(name) for name in {group for group, _ in kinds}]
        kinds = self._stands.intersection(kinds)  # other credit is not renewed: waking for it would spin
        for one in self.state.standing.of(self._taker):
            if (one.group, one.lease_us) in kinds:
                due_us.append(min(one.until_us - SESSION_US // 2, one.ends_us))
        return min((one_us for one_us in due_us if one_us), default=0)

    def has(self, name: str, now_us: int) -> bool:
        """Whether a take may find something: as things stand, or because something is due. What callers are woken for
        must count here: else they would ask for nothing, and read again at once.
        """
        return self.state.ready_count(name) > 0 or 0 < self.next_due_us(name) <= now_us

    # Outcomes

    def settle(self, given: Given, queue: str) -> list[tuple[Kind, list[Delivery]]]:
        """An act of this process counts: tell its callers what it came to. What it was given that none of them has, by
        kind: of an act that was given up in doubt that is all of it.
        """
        act = self.outstanding
        left: list[tuple[Kind, list[Delivery]]] = []
        if act is None or act.act.number != given.number:
            doubtful = self._doubtful.pop(given.number, None)
            for take, some in zip(doubtful.takes, given.takes, strict=False) if doubtful is not None else ():
                left += [((take.group, take.lease_us), some)] if some and not take.op else []
        else:
            self.outstanding = None
            self._doubtful.clear()
            for asked, settle, verdicts in zip(act.settles, act.act.settles, given.settles, strict=True):
                finish(asked.caller, verdicts)
                for _, token in settle.messages if settle.verb == GIVE_BACK else ():
                    self.received(token)
            for asked, take, deliveries in zip(act.takes, act.act.takes, given.takes, strict=True):
                if deliveries is None:
                    finish(asked.caller, None, no_such_group(queue, take.group))
                elif take.op or not asked.is_gone:
                    if deliveries and not take.op:
                        self.hear(deliveries)
                    finish(asked.caller, [(self.shard, one, None) for one in deliveries])
                elif deliveries:  # its caller is gone
                    left.append(((take.group, take.lease_us), deliveries))
        for _, deliveries in left:
            self.hear(deliveries)
        return left

    def refuse(self, error: BokiError) -> None:
        """The outstanding act is given up: those who wait for it hear so. What it gave back is given back again."""
        outstanding, self.outstanding = self.outstanding, None
        if outstanding is not None:
            if error.outcome == "unknown":
                self._doubtful[outstanding.act.number] = outstanding.act
            self.asked = [*(one for one in outstanding.settles if one.caller is None), *self.asked]
            for one in (*outstanding.takes, *outstanding.settles):
                finish(one.caller, None, error)

    def forget_own(self) -> None:
        """Drop what is to be given back or received: the queue was deleted."""
        self.asked = [one for one in self.asked if one.caller is not None]
        self.held.clear()

    # What is taken, and not received yet

    def hear(self, deliveries: Sequence[Delivery]) -> None:
        """This process was given these by one record: pops may be given back until a caller has received them."""
        token = deliveries[0].token
        self.last_token = max(self.last_token, token)
        self.held[token] = self.held.get(token, 0) + len(deliveries)

    def received(self, token: int) -> None:
        """A caller has one of them, or the queue has it back."""
        left = self.held.get(token, 0) - 1
        if left > 0:
            self.held[token] = left
        else:
            self.held.pop(token, None)

    @property
    def is_giving_back(self) -> bool:
        """Whether messages that no caller has received are still to be given back."""
        return any(one.caller is None for one in self.all_asked)

    def give_back_unknown(self, known: int) -> None:
        """Give back what records after `known` gave this process, none of which it has read: no caller waits for it.
        Else the next act would confirm it, and what was leased would stay so to its end.
        """
        for popped in self.state.takers.popped.get(self._taker, []):
            is_served = not popped.is_standing and popped.token in self.held  # by the act that was on its way
            if popped.token > known and popped.deliveries and not is_served:
                self.hear(popped.deliveries)
                self.release(popped.group, popped.deliveries)
        for one in self.state.standing.of(self._taker):
            group = self.state.groups.get(one.group)
            leased: list[Delivery] = []
            for pos, token in sorted(one.unheard) if group is not None and one.lease_us else ():
                if token > known and group is not None and (aside := group.leased(pos, token)) is not None:
                    leased.append(Delivery(aside.spot, token, aside.deliveries, aside.due_us))
                    self.hear(leased[-1:])
            self.release(one.group, leased)

    def release(self, group: str, deliveries: Iterable[Delivery]) -> None:
        """Give back messages whose caller has gone, so that others get them."""
        messages = [(one.spot.pos, one.token) for one in deliveries]
        for start in range(0, len(messages), MAX_SETTLED):
            self.asked.append(Asked(Settle(group, GIVE_BACK, messages[start : start + MAX_SETTLED])))

    def withdraw(self, asked: Asked) -> bool:
        """Its caller is gone. Whether it may still be done: because an act that holds it is on its way."""
        self.asked = [one for one in self.asked if one is not asked]
        return asked in self.all_asked


def release(lines: Sequence[Line], group: str, served: Iterable[Served]) -> None:
    """Messages that no caller has go back to the queue."""
    by_shard: dict[int, list[Delivery]] = {}
    for shard, delivery, _ in served:
        by_shard.setdefault(shard, []).append(delivery)
    for shard, deliveries in by_shard.items():
        lines[shard].release(group, deliveries)
