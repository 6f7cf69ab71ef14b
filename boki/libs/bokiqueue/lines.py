"""The shards of a queue in one process, and which act asks each for what callers want next. Pure.

There is one act of a shard on its way at a time: what comes meanwhile gathers for the next one, so the busier the
consumers are the more of them share a record. An act whose outcome is unknown stays outstanding and is appended again
under the same number: the fold counts it once.

Callers that wait are asked for together, by **credit** (see `sessions`), which is spread over all shards. If they are
fewer than shards, this process stands in as many shards as it has callers, those where the fewest other processes do,
and takes from the others by an act as soon as it reads of a message there that was given to none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final
from zlib import crc32

from boki import BokiError
from boki.libs.bokiqueue.demand import Kind, Settlement, Want, Wants
from boki.libs.bokiqueue.groups import Delivery
from boki.libs.bokiqueue.messages import no_such_group
from boki.libs.bokiqueue.records import GIVE_BACK, Act, Credit, Grant, Settle, Take
from boki.libs.bokiqueue.sessions import SESSION_US, Given
from boki.libs.bokiqueue.state import ShardState
from boki.libs.fold.clock import LogClock, Moment
from boki.libs.fold.follower import LONG_WAIT_S

MAX_FENCES: Final = 500
MAX_SETTLED: Final = 5_000
"""Maximum number of messages that one act settles, about."""
MAX_TAKES: Final = 500
"""Maximum number of takes of their own in one act: of callers that name an op."""
REFUSED_S: Final = 0.1
"""After an act was refused the next one of its shard waits this long."""
EARLY_US: Final = 1_000
"""The log's time may lag behind our guess by this much: who asks early gets nothing, and would ask again at once."""
ANSWER_S: Final = 60.0
"""Longer than an append may take."""
MARGIN_S: Final = 0.0005
PROBES: Final = 3
"""How often a shard is asked for one caller: its first answer may say what time it is."""
SOME_DAY_US: Final = 1 << 63


class Demand:
    """What all callers want at one moment, for one round of acts. `may_stand`: takes may be standing ones."""

    __slots__ = ("is_riding", "is_sure", "is_tidying", "missing", "spare", "standing")

    def __init__(
        self,
        wants: Wants,
        lines: Sequence[Line],
        clock: LogClock,
        *,
        may_stand: bool,
        is_tidying: bool = False,
        is_riding: bool = False,
    ) -> None:
        self.is_riding = is_riding
        """Whether the act shares a request with a push, so that it need not be put off."""
        self.is_tidying = is_tidying
        """Whether unneeded credit is withdrawn, and receipt of messages is reported."""
        self.is_sure = clock.is_sure or any(line.outstanding is not None for line in lines)
        """Whether the log's time is known, or is being asked for. If not, what is due later may be due now."""
        self.missing: dict[Kind, int] = {}
        """How many messages are wanted that no act asks for yet."""
        self.standing: dict[Kind, dict[int, int]] = {}
        """By shard, the number of messages that standing takes ask for, of kinds for which callers wait."""
        may_stand = may_stand and all(line.may_stand for line in lines)
        for kind, callers in wants.waiting.items():
            if not callers:
                continue
            count = sum([want.count for want in callers])
            shards = _shards_to_stand_in(kind, count, lines) if may_stand else []
            if shards:
                total = count + wants.ahead(kind, count)
                self.standing[kind] = {
                    shard: total // len(shards) + (turn < total % len(shards)) for turn, shard in enumerate(shards)
                }
            if len(shards) < len(lines):
                self.missing[kind] = count
        self.spare = max(self.missing.values(), default=0) // len(lines) or 1
        """How many each shard is asked for beyond what is known to be there: pushes come until the act is ordered."""
        for line in lines:
            for take in line.outstanding.shared if line.outstanding is not None else ():
                kind = take.group, take.lease_us
                if kind in self.missing:
                    self.missing[kind] -= take.count


def _shards_to_stand_in(kind: Kind, count: int, lines: Sequence[Line]) -> list[int]:
    """All, or as many as messages are wanted: where the fewest others stand, and then where this process does."""
    if count >= len(lines):
        return [line.shard for line in lines]
    ranked = sorted(lines, key=lambda line: (line.others_standing(kind[0]), not line.stands(kind), line.turn))
    return sorted(line.shard for line in ranked[:count])


class Outstanding:
    """An act that the fold has not seen yet. `own`: whom its first takes are for; the others are for any caller."""

    __slots__ = ("act", "asked", "is_uncertain", "is_under_way", "own", "settlements", "tries")

    def __init__(self, act: Act, settlements: list[Settlement], own: list[Want]) -> None:
        self.act = act
        self.settlements = settlements
        self.own = own
        self.is_under_way = False
        self.is_uncertain = False
        """An append of it may have been carried out, though its answer was lost."""
        self.tries = 0
        self.asked: Moment | None = None
        """When it was first appended."""

    @property
    def asks(self) -> bool:
        """Whether it comes to anything that a caller must be told."""
        return bool(self.act.takes or self.act.settles)

    @property
    def shared(self) -> list[Take]:
        """Takes for any caller of their kind."""
        return self.act.takes[len(self.own) :]

    @property
    def kinds(self) -> set[Kind]:
        """Of what it asks for on behalf of any caller."""
        granted = {(one.group, one.lease_us) for one in self.act.granted}
        return granted | {(one.group, one.lease_us) for one in self.shared}


class Line:
    """One shard in this process: its fold, and what is wanted of it."""

    def __init__(self, shard: int, taker: bytes) -> None:
        self.shard = shard
        self.state = ShardState(shard)
        self.resume = 0
        """The fold began with this record."""
        self.turn = crc32(taker + bytes((shard,)))
        """Where this process stands first, if all shards are alike: each process in another order."""
        self.settlements: list[Settlement] = []
        self.own: list[Want] = []
        """Takes and settlements that no act asks for yet."""
        self.refused: list[Settlement] = []
        """What is to be given back, and could not be just now."""
        self.held: dict[int, set[tuple[str, int]]] = {}
        """By token, group and position of popped messages that no caller has received yet. They may be given back."""
        self.committing: set[tuple[str, int, int]] = set()
        """Leases (group, position, token) whose effects are on their way: one block at a time commits for each."""
        self.commits = 0
        """How many blocks of this process have begun to commit."""
        self.outstanding: Outstanding | None = None
        self.saved_records = 0
        """Records of the stream since the last checkpoint, and their bytes."""
        self.saved_bytes = 0
        self.is_saving = False
        self.refused_at: Moment | None = None
        """When an act of this shard was refused last."""
        self._taker = taker
        self._number = 0
        self._last_token = 0

    def begin(self, state: ShardState, resume: int) -> None:
        """Continue from another state of the same stream. What is wanted, and an act on its way, stay."""
        self.state, self.resume = state, resume
        self.saved_records = self.saved_bytes = 0

    @property
    def is_busy(self) -> bool:
        """Whether an act is on its way, or something is to be said."""
        return self.outstanding is not None or bool(self.settlements or self.own or self.refused)

    def is_pausing(self, clock: LogClock) -> bool:
        """Whether an act of this shard was refused a moment ago: the log is busy, or gone."""
        return self.refused_at is not None and clock.since(self.refused_at) < REFUSED_S

    # Composing

    def compose(self, demand: Demand, now_us: int) -> None:
        """The next act, if anything is to be asked for; `demand` becomes less by what it asks for."""
        settlements = self._due_settlements() if self.settlements else []
        own = [one for one in self.own[:MAX_TAKES] if not one.is_done]
        takes = [*(one.take for one in own), *self._takes(demand, now_us)]
        granted, is_due = self._credits(demand, now_us)
        is_owed = demand.is_tidying and self.owes_receipt
        if not settlements and not takes and not granted and not is_due and not is_owed:
            return
        groups = dict.fromkeys([*(take.group for take in takes), *(name for name, _ in demand.standing)])
        fences = [
            (name, pos, token)
            for name in groups
            if (group := self.state.groups.get(name)) is not None
            for pos, token in (
                *group.overdue(now_us, MAX_FENCES),
                *self.state.standing.unheard(name, now_us, MAX_FENCES),
            )
        ][:MAX_FENCES]
        self._number += 1
        self.own = self.own[MAX_TAKES:]
        settles = [one.settle for one in settlements]
        parts = (self.shard, self._taker, self._number, takes, settles, fences, self._kept_from)
        act = Grant(*parts, granted) if granted else Act(*parts)
        self.outstanding = Outstanding(act, settlements, own)
        demand.is_sure = True  # its record will say

    def _due_settlements(self) -> list[Settlement]:
        count = size = 0
        for one in self.settlements:
            size += len(one.settle.messages) + len(one.settle.reason) // 16
            if count and size > MAX_SETTLED:
                break
            count += 1
        due, self.settlements = self.settlements[:count], self.settlements[count:]
        return due

    def _takes(self, demand: Demand, now_us: int) -> list[Take]:
        takes: list[Take] = []
        for kind, count in demand.missing.items():
            if count <= 0 or self.shard in demand.standing.get(kind, ()):
                continue
            if self.has(kind[0], now_us if demand.is_sure else SOME_DAY_US):
                asked = min(count, self.state.ready_count(kind[0]) + demand.spare)
                demand.missing[kind] = count - asked
                takes.append(Take(kind[0], asked, kind[1]))
        return takes

    def _credits(self, demand: Demand, now_us: int) -> tuple[list[Credit], bool]:
        """Credit for callers that wait, if there is too little; and whether the fold must be told what time it is,
        because something is due that they may be given.
        """
        granted: list[Credit] = []
        is_due = False
        for kind, shards in demand.standing.items():
            if target := shards.get(self.shard):
                granted += self._credit(kind, target, now_us, demand)
                is_due |= 0 < self.next_due_us(kind[0]) <= (now_us if demand.is_sure else SOME_DAY_US)
        for one in self.state.standing.of(self._taker) if demand.is_tidying else ():
            kind = one.group, one.lease_us
            if one.available and self.shard not in demand.standing.get(kind, ()):
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
        enough = target // (2 if demand.is_riding else 4)
        if one.available > enough and not is_too_much and not is_old:
            return []
        return [Credit(*kind, one.used + target, one.since)]

    @property
    def may_stand(self) -> bool:
        """Whether this process can be given credit here."""
        return self.state.standing.has_room_for(self._taker)

    def stands(self, kind: Kind) -> bool:
        """Whether this process has credit here."""
        one = self.state.standing.find(kind[0], self._taker, kind[1])
        return one is not None and one.available > 0

    def others_standing(self, group: str) -> int:
        """Number of takes of other processes that stand here."""
        return self.state.standing.count(group) - sum(one.group == group for one in self.state.standing.of(self._taker))

    @property
    def _kept_from(self) -> int:
        """What this process was given by records before this one it has received, or never will."""
        return min(self.held, default=self.state.at + 1)

    @property
    def owes_receipt(self) -> bool:
        """Whether messages of standing takes were received here, and the log does not say so yet."""
        standing = self.state.standing.of(self._taker)
        if not any(one.unheard for one in standing):
            return False
        known = self._kept_from
        return any(token < known for one in standing for _, token in one.unheard)

    def wakes_us(self, kinds: Collection[Kind]) -> int:
        """When credit of these kinds is to be renewed; 0: there is none."""
        due_us = 0
        for one in self.state.standing.of(self._taker):
            if (one.group, one.lease_us) in kinds:
                own_us = min(one.until_us - SESSION_US // 2, one.ends_us)
                due_us = min(due_us or own_us, own_us)
        return due_us

    def has_excess(self, kinds: Collection[Kind]) -> bool:
        """Whether there is credit of other kinds than these."""
        return any(
            one.available and (one.group, one.lease_us) not in kinds for one in self.state.standing.of(self._taker)
        )

    def next_due_us(self, name: str) -> int:
        """When a delay of the group is over, a lease runs out, or a consumer may be gone; 0: nothing is to come."""
        group = self.state.groups.get(name)
        due_us = group.next_due_us() if group is not None else 0
        end_us = self.state.standing.next_end_us(name)
        return min(due_us or end_us, end_us or due_us)

    def has(self, name: str, now_us: int) -> bool:
        """Whether a take may find something: as things stand, or because something is due."""
        group = self.state.groups.get(name)
        return self.state.ready_count(name) > 0 or (group is not None and 0 < group.next_due_us() <= now_us)

    # Outcomes

    def settle(self, given: Given, queue: str) -> list[tuple[Kind, list[Delivery]]]:
        """The outstanding act counts: wake who waits for what it came to. What was given to any caller, by kind."""
        outstanding = self.outstanding
        if outstanding is None or outstanding.act.number != given.number:
            return []  # nobody waits for it any more: see `give_back_unknown`
        self.outstanding = None
        for settlement, verdicts in zip(outstanding.settlements, given.settles, strict=True):
            settlement.finish(verdicts)
            if settlement.settle.verb == GIVE_BACK:
                for pos, token in settlement.settle.messages:
                    self._let_go(settlement.settle.group, pos, token)
        for take, deliveries in zip(outstanding.act.takes, given.takes, strict=True):
            if deliveries and not take.op:
                self.hear(take.group, deliveries)
        for own, deliveries in zip(outstanding.own, given.takes, strict=False):
            if deliveries and own.is_done and not own.op:
                self.release(own.group, deliveries)  # its caller is gone
            error = None if deliveries is not None else no_such_group(queue, own.group)
            own.finish([(self.shard, one) for one in deliveries or ()], error)
        rest = zip(outstanding.shared, given.takes[len(outstanding.own) :], strict=True)
        return [((take.group, take.lease_us), deliveries) for take, deliveries in rest if deliveries]

    # What is taken, and not received yet

    def hear(self, group: str, deliveries: list[Delivery]) -> None:
        """This process was given these: pops may be given back until a caller has received them."""
        for one in deliveries:
            if not one.until_us:
                self._last_token = one.token
                self.held.setdefault(one.token, set()).add((group, one.spot.pos))

    def received(self, group: str, delivery: Delivery) -> None:
        """A caller has it."""
        if not delivery.until_us:
            self._let_go(group, delivery.spot.pos, delivery.token)

    def _let_go(self, group: str, pos: int, token: int) -> None:
        held = self.held.get(token)
        if held is not None:
            held.discard((group, pos))
            if not held:
                del self.held[token]

    @property
    def is_giving_back(self) -> bool:
        """Whether messages that nobody has received are still to be given back."""
        under_way = self.outstanding.settlements if self.outstanding is not None else []
        return any(one.settle.verb == GIVE_BACK for one in (*self.settlements, *under_way))

    def give_back_unknown(self) -> None:
        """Pops of acts that nobody waits for any more: that they were carried out is only known now."""
        known = self._last_token  # one record may have given messages of several groups
        for popped in self.state.takers.popped.get(self._taker, []):
            if popped.token > known:
                self.hear(popped.group, popped.deliveries)
                self.release(popped.group, popped.deliveries)

    def give_back_again(self) -> None:
        """What was refused a while ago."""
        self.settlements += self.refused
        self.refused = []

    def release(self, group: str, deliveries: Iterable[Delivery]) -> None:
        """Nobody is there any more to have these: others should."""
        messages = [(one.spot.pos, one.token) for one in deliveries]
        for start in range(0, len(messages), MAX_SETTLED):
            settle = Settle(group, GIVE_BACK, messages[start : start + MAX_SETTLED])
            self.settlements.append(Settlement(settle))

    def withdraw(self, waiter: Settlement | Want) -> bool:
        """Its caller is gone. Whether it may still be done: because an act that holds it is on its way."""
        self.settlements = [one for one in self.settlements if one is not waiter]
        self.own = [one for one in self.own if one is not waiter]
        outstanding = self.outstanding
        return outstanding is not None and (waiter in outstanding.settlements or waiter in outstanding.own)

    def refuse(self, error: BokiError) -> None:
        """The outstanding act will never be: those who wait for it hear so. What it gave back is given back again."""
        outstanding, self.outstanding = self.outstanding, None
        if outstanding is not None:
            self.refused += [one for one in outstanding.settlements if one.settle.verb == GIVE_BACK]
            for waiter in (*outstanding.settlements, *outstanding.own):
                if not (isinstance(waiter, Settlement) and waiter.settle.verb == GIVE_BACK):
                    waiter.finish(None, BokiError.from_body(error.body()))


# Callers whose time is over


def finish_late(wants: Wants, lines: Sequence[Line], clock: LogClock, queue: str) -> None:
    """Callers that have waited long enough get nothing. While an act asks for what one may be given, it waits for the
    answer: no other may be there to take what comes.
    """
    for want in [one for one in wants if not one.is_done]:
        left_s = want.left_s(clock)
        if want.group and not any(want.group in line.state.groups for line in lines):
            want.finish(None, no_such_group(queue, want.group))  # dropped meanwhile
        elif left_s <= MARGIN_S and (left_s < -ANSWER_S or not _is_under_way(want, lines)):
            want.finish([])


def _is_under_way(want: Want, lines: Sequence[Line]) -> bool:
    return any(line.outstanding is not None and want.kind in line.outstanding.kinds for line in lines)


def patience_s(wants: Wants, lines: Sequence[Line], clock: LogClock) -> float:
    """How long until something is due for callers that wait, or for a shard."""
    wait_s = LONG_WAIT_S
    groups: set[str] = set()
    kinds: set[Kind] = set()
    for want in wants:
        if not want.is_done:
            left_s = want.left_s(clock)
            wait_s = min(wait_s, left_s if left_s > 0 else ANSWER_S)
            groups.add(want.group)
            kinds.add(want.kind)
    for line in lines:
        if line.is_pausing(clock):
            wait_s = min(wait_s, REFUSED_S)
        elif line.outstanding is None and kinds:
            due_us = [line.wakes_us(kinds), *(line.next_due_us(name) for name in groups)]
            if soonest_us := min((one for one in due_us if one), default=0):
                wait_s = min(wait_s, _until_s(soonest_us, clock))
    return wait_s


def due_s(want: Want, lines: Sequence[Line], clock: LogClock) -> float:
    """How soon the reader must look for this one: its time is over, or something is due that it may be given."""
    due_us = [own_us for line in lines if (own_us := line.next_due_us(want.group))]
    return min(want.left_s(clock), _until_s(min(due_us), clock) if due_us else LONG_WAIT_S)


def _until_s(due_us: int, clock: LogClock) -> float:
    return (due_us + EARLY_US - clock.now_us()) / 1e6 + MARGIN_S
