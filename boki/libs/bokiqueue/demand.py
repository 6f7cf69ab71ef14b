"""What the consumers of one process want of one shard, and which act asks for it next. Pure.

There is one act on its way at a time: what comes meanwhile gathers for the next one, so the busier the consumers are
the more of them share a record. An act whose outcome is unknown stays outstanding and is appended again under the same
number: the fold counts it once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from boki import BokiError
from boki.libs.bokiqueue.groups import Delivery
from boki.libs.bokiqueue.records import GIVE_BACK, Act, Credit, Grant, Settle, Take
from boki.libs.bokiqueue.refusals import no_such_group
from boki.libs.bokiqueue.snapshots import Given
from boki.libs.bokiqueue.standing import SESSION_US
from boki.libs.bokiqueue.state import ShardState

MAX_FENCES: Final = 500
MAX_SETTLED: Final = 5_000
"""Messages that one act settles at most, about."""
MAX_TAKES: Final = 500
"""Takes of their own in one act: of those who name an op."""
_PROBES: Final = 3
_SOME_DAY_US: Final = 1 << 63


class Waiter:
    """Somebody who waits for the fold, for `patience_s` from `since` on (None: until it is done).

    `wake` is set by whoever sleeps on it.
    """

    __slots__ = ("error", "is_done", "patience_s", "result", "since", "wake")

    def __init__(self, patience_s: float | None = None, since: tuple[float, float] = (0.0, 0.0)) -> None:
        self.patience_s = patience_s
        self.since = since
        self.is_done = False
        self.result: Any = None
        self.error: BokiError | None = None
        self.wake: Callable[[], None] | None = None

    def finish(self, result: Any, error: BokiError | None = None) -> None:
        """It has what it waits for."""
        if not self.is_done:
            self.is_done, self.result, self.error = True, result, error
            if self.wake is not None:
                self.wake()


class Want(Waiter):
    """A pop or a lease. `patience_s` None: it takes what is there and does not wait."""

    __slots__ = ("asked", "count", "group", "lease_us", "lines", "op", "probes")

    def __init__(
        self, group: str, count: int, lease_us: int, op: str, patience_s: float | None, since: tuple[float, float]
    ) -> None:
        super().__init__(patience_s, since)
        self.group = group
        self.count = count
        self.lease_us = lease_us
        self.op = op
        self.asked = False
        """Whether an outstanding act asks for it under its own op."""
        self.probes: dict[int, int] = {}
        """How often each shard was asked on its behalf alone."""
        self.lines: frozenset[int] | None = None
        """The shards that it may be served from; None: all."""

    @property
    def kind(self) -> tuple[str, int]:
        """Wants of one kind are asked for together."""
        return self.group, self.lease_us


class Arrival(Waiter):
    """Until the fold has come to this record, or past it."""

    __slots__ = ("seqnum",)

    def __init__(self, seqnum: int, patience_s: float | None = None, since: tuple[float, float] = (0.0, 0.0)) -> None:
        super().__init__(patience_s, since)
        self.seqnum = seqnum


class Settlement(Waiter):
    """An ack, nack, … of messages of one shard."""

    __slots__ = ("settle",)

    def __init__(self, settle: Settle) -> None:
        super().__init__()
        self.settle = settle


class Demand:
    """What all wants of a process come to, for one round of acts: who waits is counted together, by kind."""

    __slots__ = ("bound", "is_sure", "is_tidying", "missing", "probed", "shards", "spare", "special", "waiting")

    def __init__(
        self,
        wants: Iterable[Waiter],
        lines: Sequence[Line],
        *,
        is_sure: bool = True,
        may_stand: bool = False,
        is_tidying: bool = False,
    ) -> None:
        self.is_tidying = is_tidying
        """Whether unneeded credit is withdrawn, and receipt of messages is reported."""
        self.is_sure = is_sure or any(line.outstanding is not None for line in lines)
        """Whether the log's time is known, or is being asked for. If not, what is due later may be due now."""
        self.shards = len(lines)
        self.missing: dict[tuple[str, int], int] = {}
        """How many messages are wanted that no act asks for yet."""
        self.special: list[Want] = []
        """Those that name an op, or that do not wait."""
        self.probed: set[tuple[str, int]] = set()
        waiting: dict[tuple[str, int], int] = {}
        self.bound: dict[tuple[str, int], frozenset[int]] = {}
        """The shards that are asked for those who wait; of kinds that are not here, all."""
        for want in wants:
            if isinstance(want, Want) and not want.is_done:
                if want.op or want.patience_s is None:
                    self.special.append(want)
                if not want.op:
                    kind = want.group, want.lease_us
                    if want.lines is not None:
                        self.bound[kind] = want.lines
                    self.missing[kind] = self.missing.get(kind, 0) + want.count
                    if may_stand and want.patience_s is not None:
                        waiting[kind] = waiting.get(kind, 0) + want.count
        self.waiting: dict[tuple[str, int], int] = {}
        """How many messages those want who wait, of kinds for which each shard that they use can be given credit."""
        for kind, count in waiting.items():
            if count >= len(self.bound.get(kind, lines)):
                self.waiting[kind] = count
                self.missing[kind] -= count
        self.spare = max(self.missing.values(), default=0) // len(lines) or 1
        """How many each shard is asked for beyond what is known to be there: pushes come until the act is ordered."""
        for line in lines:
            if line.outstanding is not None:
                for take in line.outstanding.act.takes:
                    kind = take.group, take.lease_us
                    if not take.op and kind in self.missing:
                        self.missing[kind] -= take.count

    @property
    def is_anything(self) -> bool:
        """Whether some shard may have to be asked."""
        return bool(self.missing or self.special or self.waiting or self.is_tidying)


class Outstanding:
    """An act that the fold has not seen yet."""

    __slots__ = ("act", "asked", "is_uncertain", "is_under_way", "settlements", "tries", "wants")

    def __init__(self, act: Act, settlements: list[Settlement], wants: list[Want | None]) -> None:
        self.act = act
        self.settlements = settlements
        self.wants = wants
        """For each take, the want whose op it carries; None: it is for whoever comes first."""
        self.is_under_way = False
        self.is_uncertain = False
        """An append of it may have been carried out, though nobody was told."""
        self.tries = 0
        self.asked: tuple[float, float] | None = None
        """When it was first appended, by the clock of those who wait."""


class Line:
    """One shard in this process: its fold, and what is wanted of it."""

    def __init__(self, shard: int, taker: bytes) -> None:
        self.shard = shard
        self.state = ShardState(shard)
        self.resume = 0
        """The fold began with this record."""
        self.settlements: list[Settlement] = []
        self.refused: list[Settlement] = []
        """What is to be given back, and could not be just now."""
        self.held: dict[int, int] = {}
        """By token: how many of the messages that it took nobody has received yet. They may be given back."""
        self.committing: set[tuple[str, int, int]] = set()
        """Leases (group, position, token) whose effects are on their way: one block at a time commits for each."""
        self.commits = 0
        """How many blocks of this process have begun to commit."""
        self.outstanding: Outstanding | None = None
        self.saved_records = 0
        """Records of the stream since the last checkpoint, and their bytes."""
        self.saved_bytes = 0
        self.is_saving = False
        self.handed_token = 0
        """The last record by which a standing take of this process was given messages."""
        self.receipted = 1
        """Pops by records below this are said to have been received, by the last act."""
        self._taker = taker
        self._number = 0
        self._last_token = 0

    def begin(self, state: ShardState, resume: int) -> None:
        """Go on from another state of the same stream. What is wanted, and an act on its way, stay."""
        self.state, self.resume = state, resume
        self.saved_records = self.saved_bytes = 0

    # Composing

    def compose(self, demand: Demand, now_us: int) -> Outstanding | None:
        """The next act, if anything is to be asked for; `demand` becomes less by what it asks for."""
        if self.outstanding is not None:
            return None
        settlements = self._due_settlements() if self.settlements else []
        takes, owners = self._takes(demand, now_us)
        granted, is_due = self._credits(demand, now_us)
        is_owed = demand.is_tidying and self.owes_receipt
        if not settlements and not takes and not granted and not is_due and not is_owed:
            return None
        groups = dict.fromkeys([*(take.group for take in takes), *(name for name, _ in demand.waiting)])
        fences = [
            (name, pos, token)
            for name in groups
            if (group := self.state.groups.get(name)) is not None
            for pos, token in (*group.overdue(now_us, MAX_FENCES), *self.state.standing.unheard(name, now_us))
        ][:MAX_FENCES]
        self._number += 1
        settles = [one.settle for one in settlements]
        kept_from = min(self.held, default=self.state.at + 1)
        parts = (self.shard, self._taker, self._number, takes, settles, fences, kept_from)
        act = Grant(*parts, granted) if granted else Act(*parts)
        self.receipted = kept_from
        self.outstanding = Outstanding(act, settlements, owners)
        demand.is_sure = True  # its record will say
        return self.outstanding

    def _due_settlements(self) -> list[Settlement]:
        count = size = 0
        for one in self.settlements:
            size += len(one.settle.messages) + len(one.settle.reason) // 16
            if count and size > MAX_SETTLED:
                break
            count += 1
        due, self.settlements = self.settlements[:count], self.settlements[count:]
        return due

    def _takes(self, demand: Demand, now_us: int) -> tuple[list[Take], list[Want | None]]:
        takes: list[Take] = []
        owners: list[Want | None] = []
        for want in demand.special:
            if len(takes) == MAX_TAKES:
                break
            if want.lines is not None and self.shard not in want.lines:
                continue
            is_probing = self.may_probe(want)
            if not is_probing and not (want.op and self._has(want.group, now_us)):
                continue
            if want.op and want.asked:
                continue
            want.probes[self.shard] = want.probes.get(self.shard, 0) + 1
            want.asked = bool(want.op)
            if want.op or want.kind not in demand.missing:
                takes.append(Take(want.group, want.count, want.lease_us, want.op))
                owners.append(want if want.op else None)
            else:
                demand.probed.add(want.kind)
        for kind, count in demand.missing.items():
            bound = demand.bound.get(kind)
            if bound is not None and self.shard not in bound and kind not in demand.probed:
                continue
            if count > 0 and (kind in demand.probed or self._has(kind[0], now_us if demand.is_sure else _SOME_DAY_US)):
                asked = count if kind in demand.probed else min(count, self.state.ready_count(kind[0]) + demand.spare)
                demand.missing[kind] = count - asked
                takes.append(Take(kind[0], asked, kind[1]))
                owners.append(None)
        demand.probed.clear()
        return takes, owners

    def _credits(self, demand: Demand, now_us: int) -> tuple[list[Credit], bool]:
        """Credit for those who wait, if there is too little; and whether the fold must be told what time it is, because
        something is due that they may be given.
        """
        granted: list[Credit] = []
        is_due = False
        for kind, count in demand.waiting.items():
            bound = demand.bound.get(kind)
            if bound is None or self.shard in bound:
                target = self._share(count, bound, demand)
                granted += self._credit(kind, target, now_us, is_tidying=demand.is_tidying)
                is_due |= 0 < self.next_due_us(kind[0]) <= (now_us if demand.is_sure else _SOME_DAY_US)
        if demand.is_tidying:
            for one in self.state.standing.of(self._taker):
                kind = one.group, one.lease_us
                if one.available and (kind not in demand.waiting):
                    granted += self._credit(kind, 0, now_us, is_tidying=True)
        return granted, is_due

    def _share(self, count: int, bound: frozenset[int] | None, demand: Demand) -> int:
        """This shard's share of that many messages."""
        places = sorted(bound) if bound is not None else range(demand.shards)
        return count // len(places) + (places.index(self.shard) < count % len(places))

    def _credit(self, kind: tuple[str, int], target: int, now_us: int, *, is_tidying: bool) -> list[Credit]:
        """What makes the credit so much, if that is worth a record: it is half used up, or about to end."""
        one = self.state.standing.find(kind[0], self._taker, kind[1])
        if one is None:
            return [Credit(*kind, target)] if target else []
        is_too_much = is_tidying and one.available > target
        is_old = target > 0 and one.until_us - now_us < SESSION_US // 2
        if one.available > target // 2 and not is_too_much and not is_old:
            return []
        return [Credit(*kind, one.used + target, one.since)]

    @property
    def owes_receipt(self) -> bool:
        """Whether messages of standing takes were received here, and the log does not say so yet."""
        return self.handed_token >= self.receipted and self.handed_token not in self.held

    def has_excess(self, kinds: Iterable[tuple[str, int]]) -> bool:
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

    def _has(self, name: str, now_us: int) -> bool:
        """Whether a take may find something: as things stand, or because something is due."""
        group = self.state.groups.get(name)
        if group is None or not group.is_dry:
            return self.state.ready_count(name) > 0 or (group is not None and 0 < group.next_due_us() <= now_us)
        return 0 < group.next_due_us() <= now_us

    def may_probe(self, want: Want) -> bool:
        """Whether one that does not wait should ask here: only the log knows what time it is."""
        if want.patience_s is not None and not (want.op and not want.probes):
            return False
        if want.lines is not None and self.shard not in want.lines:
            return False
        probes = want.probes.get(self.shard, 0)
        if want.op and not probes:
            return True  # it may have been answered long ago
        if self.state.ready_count(want.group):
            return probes < _PROBES
        group = self.state.groups.get(want.group)
        due_us = group.next_due_us() if group is not None else 0
        return due_us > 0 and (probes == 0 or (due_us <= self.state.time_us and probes < _PROBES))

    # Outcomes

    def settle(self, given: Given, queue: str) -> list[tuple[Outstanding, int, list[Delivery]]]:
        """The outstanding act counts: wake who waits for its settlements. Its messages, by the take that asked."""
        outstanding = self.outstanding
        if outstanding is None or outstanding.act.number != given.number:
            return []  # nobody waits for it any more: see `give_back_unknown`
        self.outstanding = None
        for one, verdicts in zip(outstanding.settlements, given.settles, strict=True):
            one.finish(verdicts)
            if one.settle.verb == GIVE_BACK:
                for _, token in one.settle.messages:
                    self._let_go(token, 1)
        served = []
        for index, deliveries in enumerate(given.takes):
            want = outstanding.wants[index]
            if want is not None:
                want.asked = False
            if deliveries is None:
                error = no_such_group(queue, outstanding.act.takes[index].group)
                if want is not None:
                    want.finish(None, error)
            else:
                if not outstanding.act.takes[index].op:
                    self._hold(deliveries)
                served.append((outstanding, index, deliveries))
        return served

    # What is taken, and not received yet

    def hear(self, deliveries: list[Delivery], *, is_popped: bool) -> None:
        """A standing take of this process was given these."""
        self.handed_token = deliveries[0].token
        if is_popped:
            self._hold(deliveries)

    def _hold(self, deliveries: list[Delivery]) -> None:
        if deliveries:
            token = self._last_token = deliveries[0].token
            self.held[token] = self.held.get(token, 0) + len(deliveries)

    def _let_go(self, token: int, count: int) -> None:
        left = self.held.get(token, 0) - count
        if left > 0:
            self.held[token] = left
        else:
            self.held.pop(token, None)

    def received(self, delivery: Delivery) -> None:
        """Somebody has it."""
        self._let_go(delivery.token, 1)

    @property
    def is_giving_back(self) -> bool:
        """Whether messages that nobody has received are still to be given back."""
        under_way = self.outstanding.settlements if self.outstanding is not None else []
        return any(one.settle.verb == GIVE_BACK for one in (*self.settlements, *under_way))

    def give_back_unknown(self) -> None:
        """Pops of acts that nobody waits for any more: that they were carried out is only known now."""
        for popped in self.state.takers.popped.get(self._taker, []):
            if popped.token > self._last_token:
                self._hold(popped.deliveries)
                self.release(popped.group, popped.deliveries)

    def give_back_again(self) -> None:
        """What was refused a while ago."""
        self.settlements += self.refused
        self.refused = []

    def release(self, group: str, deliveries: Iterable[Delivery]) -> None:
        """Nobody is there any more to have these: others shall."""
        messages = [(one.spot.pos, one.token) for one in deliveries]
        for start in range(0, len(messages), MAX_SETTLED):
            settle = Settle(group, GIVE_BACK, messages[start : start + MAX_SETTLED])
            self.settlements.append(Settlement(settle))

    def withdraw(self, settlement: Settlement) -> bool:
        """Its caller is gone. Whether it may still be done: because an act that holds it is on its way."""
        if settlement in self.settlements:
            self.settlements.remove(settlement)
        return self.outstanding is not None and settlement in self.outstanding.settlements

    def refuse(self, error: BokiError) -> list[Waiter]:
        """The outstanding act will never be: those who wait for it. What it gave back is to be given back again."""
        outstanding, self.outstanding = self.outstanding, None
        if outstanding is None:
            return []
        for want in outstanding.wants:
            if want is not None:
                want.asked = False
        self.refused += [one for one in outstanding.settlements if one.settle.verb == GIVE_BACK]
        for one in outstanding.settlements:
            if one.settle.verb != GIVE_BACK:
                one.finish(None, BokiError.from_body(error.body()))
        return [want for want in outstanding.wants if want is not None]
