"""One shard of a queue as a pure fold over the records of its stream: who gets which message is decided here alone.

Every process that follows the stream comes to the same state, because nothing enters but records in their order, and
their times. A take is a request: the fold gives it what comes next at its place in the order, so takes of any number of
processes never contend for anything, and no condition is needed. Standing takes are asked for in advance, and given
what comes by the record with which it comes (`sessions`).

**Once.** A process numbers its acts, and the fold counts each (taker, number) once: an append whose outcome is unknown
is simply made again. A take with an `op` of its own is remembered for `OP_US`, if there are not too many later ones:
whoever repeats it, also from another process, is given the same messages, and they are not trimmed until then; of a
lease, those still leased under it, and if there are none it is a new one.

**Checkpoints.** A `Snapshot` holds what lies aside, and where the first untouched push is (`resume`), not the untouched
messages themselves: a process that starts from it reads the stream from `resume` on, and takes from the records that it
covers only their pushes. So its size is that of what is aside, however long the queue is.

**The floor.** Records below `floor` are not needed any more: every group has passed them, what lingers was carried, and
the time for which consumed messages are retained is over. It moves by `Saved` records only, in the order of the stream,
so that all folds agree on what a new group may begin with; the trim comes after.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from boki.libs.bokiqueue.groups import (
    BACK,
    LEASED,
    WAITING,
    Aside,
    Backlog,
    Delivery,
    Group,
    Segment,
    Spot,
)
from boki.libs.bokiqueue.records import (
    GIVE_BACK,
    Act,
    Carry,
    Done,
    DropGroup,
    GroupName,
    Kind,
    Number,
    OpenGroup,
    Push,
    Saved,
    Settings,
    Settle,
    Setup,
    Take,
    Taker,
    Time,
    ends_leases,
)
from boki.libs.bokiqueue.sessions import Given, Handed, Popped, Standing, StandingTakes, Takers
from boki.libs.fold.commands import Answers
from boki.libs.fold.dues import Rate

OP_US: Final = 3_600 * 1_000_000
"""This long a take with an op of its own can be repeated."""
MAX_OPS: Final = 10_000
"""Ops of a shard that are remembered at most; the oldest go first."""
MAX_OP_MESSAGES: Final = 100_000
"""Messages that all of them together may have been given."""
MAX_MARKS: Final = 1_000
"""Points in the retained past that are told apart."""
MAX_GROUPS: Final = 1_000
DEFAULT_GROUP: Final = ""
_GONE: Final = "popped by a consumer that is gone, and that has not said whether it has received it"
_SAME: Final = ("at", "time_us", "floor", "settings", "marks", "last_fence", "push_rate", "opened_at", "passed_by")
"""What a snapshot holds as the state has it; and of a group:"""
_SAME_OF_GROUP: Final = ("is_dry", "done_count", "expired_count", "rate")


class OpDone(msgspec.Struct, frozen=True, array_like=True):
    """What a take with an op was given."""

    time_us: Time
    deliveries: list[Delivery]


class GroupSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """A group as a checkpoint keeps it."""

    cursor: Number
    aside: list[Aside]
    is_dry: bool
    done_count: Number
    expired_count: Number
    rate: Rate


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The state after the record `at`. `resume`: where the untouched pushes begin."""

    at: Number
    time_us: Time
    resume: Number
    resume_pos: Number
    floor: Number
    settings: Settings
    groups: dict[GroupName, GroupSnapshot]
    takers: dict[Taker, Given]
    popped: dict[Taker, list[Popped]]
    ops: dict[str, OpDone]
    marks: list[tuple[Number, Number, Number]]
    last_fence: Number
    push_rate: Rate
    members: list[Any]
    """Empty; a Boki that dealt shards to processes has them here."""
    opened_at: Number = 0
    passed_by: Number = 0
    standing: list[Standing] = []
    """Of each group in the order of turns."""


def sound_snapshot(data: bytes, covers: int) -> Snapshot | None:
    """The state in a checkpoint that covers this much, if it is a valid one; None if it is to be skipped."""
    try:
        snapshot = msgspec.msgpack.decode(data, type=Snapshot)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    is_sound = snapshot.at == covers and snapshot.resume <= snapshot.at + 1
    for group in snapshot.groups.values():
        is_sound &= snapshot.resume_pos <= group.cursor
        is_sound &= all(one.spot.pos < group.cursor and (one.deliveries or one.status != LEASED) for one in group.aside)
    return snapshot if is_sound else None


class ShardState:
    """The fold. `apply` records in order; everything else looks."""

    def __init__(self, shard: int = 0) -> None:
        self.shard = shard
        self.at = 0
        """The last record that was applied."""
        self.time_us = 0
        self._begin()

    def _begin(self) -> None:
        """There is nothing: the queue begins, or begins again because its book was deleted."""
        self.floor = 0
        self.settings = Settings()
        self.backlog = Backlog()
        self.groups: dict[str, Group] = {}
        self.takers = Takers({}, {})
        self.standing = StandingTakes()
        self.handed: list[Handed] = []
        """What standing takes were given by the last record."""
        self._remember_ops({})
        self.marks: list[tuple[int, int, int]] = []
        """(time, seqnum, bytes of the stream before it) of checkpoints: for what is retained, and what is carried."""
        self.last_fence = 0
        self.opened_at = 0
        """The last record that made a group: no checkpoint of the state before it moves the floor any more."""
        self.push_rate = Rate()
        self.passed_by = 0
        """Records that were skipped (see `records`). Of a queue with several shards, shard 0 counts for all."""

    def _remember_ops(self, ops: dict[str, OpDone]) -> None:
        self.ops: Answers[str, OpDone] = Answers({}, keep_us=OP_US, most=MAX_OPS, most_weight=MAX_OP_MESSAGES)
        for op, done in ops.items():
            self.ops.note(op, done, len(done.deliveries))

    # The fold

    def pass_by(self, seqnum: int) -> None:
        """Continue past a record that does not count."""
        if seqnum > self.at:
            self.at = seqnum
            self.passed_by += 1

    def apply(self, seqnum: int, time_us: int, record: Kind) -> Given | None:
        """Continue to the next record of the stream. Its outcome, if it is an act that counts; see also `handed`."""
        if self.handed:
            self.handed = []
        if seqnum <= self.at:
            if isinstance(record, Push):
                self.backlog.add(seqnum, time_us, record)  # covered by the checkpoint that this state began with
            return None
        self.at = seqnum
        self.time_us = max(self.time_us, time_us)
        given = self._decide(seqnum, time_us, record)
        if self.standing:
            self.handed = self.standing.hand_out(self.groups, self.backlog, seqnum, time_us)
            for taker, name, lease_us, deliveries in self.handed:
                if not lease_us:
                    self.takers.add_popped(taker, Popped(name, seqnum, deliveries, is_standing=True))
            if self.handed:
                self._forget_passed()
            if isinstance(record, Saved):
                self._forget_gone(time_us)
        return given

    def _decide(self, seqnum: int, time_us: int, record: Kind) -> Given | None:
        match record:
            case Push():
                self._push(seqnum, time_us, record)
            case Act():
                return self._act(seqnum, time_us, record)
            case Done():
                self._done(record, time_us)
            case Setup():
                if record.is_first:
                    self._begin()
                    self.floor = seqnum
                self.settings = record.settings
            case OpenGroup():
                self._open(seqnum, time_us, record)
            case DropGroup():
                self._drop(seqnum, record.group)
            case Saved():
                self._saved(seqnum, time_us, record)
            case Carry():
                self._carry(seqnum, record)
            case _:
                pass  # `Join`, of a Boki that dealt shards to processes by what they said
        return None

    def _push(self, seqnum: int, time_us: int, push: Push) -> None:
        self.backlog.add(seqnum, time_us, push)
        self.push_rate.add(len(push.bodies), time_us)
        for group in self.groups.values():
            group.is_dry = False
        if not push.ttl_us:
            return
        # It also drops what has expired: an idle queue would never reclaim that space. By the record alone: what is
        # only known here other folds may not know.
        self._forget_old(self.time_us)
        for group in self.groups.values():
            group.pass_expired(self.backlog, self.time_us)
        if not self.groups:
            self.backlog.drop_expired(self.time_us)
        self._forget_passed()

    def _act(self, seqnum: int, time_us: int, act: Act) -> Given | None:
        if ends_leases(act):
            self.last_fence = seqnum  # also if it counts no more: it stands under the fence tag, where commits look
        if not self.takers.counts(act.taker, act.number):
            return None
        if act.granted or self.standing:
            granted = [one for one in act.granted if self._group_of(one.group) is not None]
            self.standing.heard(act.taker, act.kept_from or seqnum, granted, seqnum, time_us)
            self._forget_gone(time_us)
        self._fence(time_us, act.fences)
        popped = [one for one in self.takers.popped.get(act.taker, ()) if act.kept_from and one.token >= act.kept_from]
        settles = [self._settle(settle, time_us, popped) for settle in act.settles]
        takes = [self._take(seqnum, time_us, take) for take in act.takes]
        popped += [
            Popped(take.group, seqnum, deliveries)
            for take, deliveries in zip(act.takes, takes, strict=True)
            if deliveries and not take.lease_us and not take.op
        ]
        given = Given(act.number, time_us, takes, settles)
        self.takers.acted(act.taker, given, popped)
        self._forget_passed()
        self._forget_old(time_us)
        return given

    def _group_of(self, name: str) -> Group | None:
        """The group; the default one is made by the first take from it."""
        if name == DEFAULT_GROUP and name not in self.groups:
            self.groups[name] = Group(self.backlog.first_pos)
        return self.groups.get(name)

    def _take(self, seqnum: int, time_us: int, take: Take) -> list[Delivery] | None:
        group = self._group_of(take.group)
        if group is None:
            return None
        op = f"{take.group}\n{'lease' if take.lease_us else 'pop'}\n{take.op}"
        earlier = self.ops.last.get(op) if take.op else None
        if earlier is not None and earlier.time_us > time_us - OP_US:
            still = [group.held(one, time_us) if one.until_us else one for one in earlier.deliveries]
            if held := [one for one in still if one is not None]:
                return held
        deliveries = group.take(self.backlog, time_us, take.count, take.lease_us, seqnum)
        if take.op and deliveries:
            self.ops.note(op, OpDone(time_us, deliveries), len(deliveries))
        return deliveries

    def _settle(self, settle: Settle, time_us: int, popped: list[Popped]) -> list[bool]:
        """Whether each was as the verb asks. `popped`: what the taker may give back, less what it does."""
        group = self.groups.get(settle.group)
        if group is None:
            return [False] * len(settle.messages)
        back: set[tuple[int, int]] = set()
        wanted = set(settle.messages) if settle.verb == GIVE_BACK else back
        for index, one in enumerate(popped) if wanted else ():
            if one.group == settle.group:
                kept = [each for each in one.deliveries if (each.spot.pos, one.token) not in wanted]
                for each in one.deliveries if len(kept) < len(one.deliveries) else ():
                    if (each.spot.pos, one.token) in wanted:
                        group.put_back(each)
                        back.add((each.spot.pos, one.token))
                popped[index] = Popped(one.group, one.token, kept, one.is_standing)
        most = self.settings.max_deliveries
        return [one in back or group.settle(settle, *one, time_us, most) for one in settle.messages]

    def _fence(self, time_us: int, fences: list[tuple[str, int, int]]) -> None:
        for name, pos, token in fences:
            group = self.groups.get(name)
            aside = group.leased(pos, token) if group is not None else None
            is_over = aside is None or aside.due_us <= time_us
            is_gone = self.standing.pop_unheard(name, pos, token, time_us, is_over=is_over)
            if group is not None and aside is not None and is_over:
                group.fail(aside, time_us, "its lease ran out", self.settings.max_deliveries)
            elif group is not None and aside is not None and is_gone:
                group.release(aside)

    def _done(self, done: Done, time_us: int) -> None:
        group = self.groups.get(done.group)
        for pos, token in done.messages if group is not None else ():
            if group is not None and (aside := group.leased(pos, token)) is not None:
                group.ack(aside, time_us)
        self._forget_passed()

    def _forget_gone(self, time_us: int) -> None:
        """Standing takes of processes that are gone end, and what they have popped has an end, too."""
        for one in self.standing.ended(time_us):
            self.standing.drop(one)
            group = self.groups.get(one.group)
            for delivery in self.takers.lose_popped(one.taker, one.group) if not one.lease_us else ():
                if group is not None:
                    group.lose(delivery, time_us, _GONE)

    # Groups

    def _open(self, seqnum: int, time_us: int, record: OpenGroup) -> None:
        if record.is_anew:
            self.last_fence = seqnum
            self.takers.forget_group(record.group)
        elif record.group in self.groups:
            return
        if record.group not in self.groups and len(self.groups) >= MAX_GROUPS:
            return
        self.opened_at = seqnum

        def is_after(one: Segment | Spot) -> bool:
            return one.seqnum >= record.start_seqnum and one.time_us >= record.start_time_us

        cursor = next((one.first for one in self.backlog.segments() if is_after(one)), self.backlog.next_pos)
        lingering: dict[int, Aside] = {}
        """What others have not done, of before the backlog: delayed as long as its push said."""
        for aside in [one for group in self.groups.values() for one in group.aside.values()]:
            spot = aside.spot
            if spot.pos < self.backlog.first_pos and is_after(spot):
                is_delayed = aside.status == WAITING and not aside.deliveries and aside.due_us > time_us
                if is_delayed or spot.pos not in lingering:
                    status, due_us = (WAITING, aside.due_us) if is_delayed else (BACK, 0)
                    lingering[spot.pos] = Aside(spot, status, due_us)
        self.groups[record.group] = Group(cursor, [lingering[pos] for pos in sorted(lingering)])
        self._forget_passed()

    def _drop(self, seqnum: int, name: str) -> None:
        self.groups.pop(name, None)
        self.takers.forget_group(name)
        self.standing.forget_group(name)
        for op in [op for op in self.ops.last if op.startswith(f"{name}\n")]:
            self.ops.drop(op)
        self.last_fence = seqnum
        self._forget_passed()

    def history_for(self, record: Kind) -> tuple[int, int] | None:
        """The part of the stream whose pushes the backlog must have before this record is applied: a group
        begins before what is kept here. If any of it was trimmed this fold cannot continue: there is a checkpoint
        beyond the record, to begin again from.
        """
        if not isinstance(record, OpenGroup) or (record.group in self.groups and not record.is_anew):
            return None
        if not self.backlog.first_pos:
            return None  # every message that was ever pushed is here
        first = self.backlog.find(self.backlog.first_pos)
        stop = first.seqnum if first is not None else self.at + 1
        start = max(self.floor, record.start_seqnum)
        return (start, stop) if start < stop else None

    # What is kept

    def _carry(self, seqnum: int, carry: Carry) -> None:
        places = {pos: (seqnum, index) for index, pos in enumerate(carry.positions)}
        for group in self.groups.values():
            for pos, place in places.items():
                aside = group.aside.get(pos)
                if aside is not None:
                    aside.spot = aside.spot.carried(place)
        for op, done in self.ops.last.items():
            self.ops.last[op] = OpDone(done.time_us, [one.moved(places) for one in done.deliveries])

    def _saved(self, seqnum: int, time_us: int, saved: Saved) -> None:
        before = self.marks[-1][2] if self.marks else 0
        self.marks.append((time_us, seqnum, before + saved.grown_bytes))
        if saved.covers >= self.opened_at:  # else who begins from it comes to that group, and needs its history
            self.floor = max(self.floor, min(saved.floor, self.needed_floor(time_us)))
        while len(self.marks) > 1 and self.marks[1][1] <= self.floor:
            del self.marks[0]
        if len(self.marks) > MAX_MARKS:
            del self.marks[1::2]

    def _forget_passed(self) -> None:
        if self.groups:
            self.backlog.drop_below(min([group.cursor for group in self.groups.values()]))

    def _forget_old(self, time_us: int) -> None:
        self.takers.forget_old(time_us)
        self.ops.forget_old(time_us)

    def _resume(self) -> tuple[int, int]:
        """Where the pushes begin that some group has not passed, and the position of the first message there."""
        backlog = self.backlog
        pos = min((group.cursor for group in self.groups.values()), default=backlog.first_pos)
        segment = backlog.find(pos)
        return (self.at + 1, backlog.next_pos) if segment is None else (segment.seqnum, segment.first)

    def lingering(self) -> dict[int, Spot]:
        """Messages that are aside or remembered, by position: their bodies are still needed."""
        spots = {pos: aside.spot for group in self.groups.values() for pos, aside in group.aside.items()}
        for done in self.ops.last.values():
            spots.update((one.spot.pos, one.spot) for one in done.deliveries)
        return spots

    def needed_floor(self, time_us: int) -> int:
        """The first record that is still needed."""
        spots = [*self.lingering().values(), *(one.spot for one in self.takers.deliveries())]
        return min([self.fixed_floor(time_us), *(spot.place[0] for spot in spots)])

    def fixed_floor(self, time_us: int) -> int:
        """The first record that is needed for what is untouched or retained: carrying moves the floor no further."""
        floor = self._resume()[0]
        if self.settings.retain_us:
            kept = [seqnum for mark_us, seqnum, _ in self.marks if mark_us <= time_us - self.settings.retain_us]
            floor = min(floor, kept[-1] if kept else self.floor)
        return floor

    def snapshot(self) -> Snapshot:
        """The state as a checkpoint. It shares parts with the state: encode it before the next record."""
        resume, resume_pos = self._resume()
        groups = {
            name: GroupSnapshot(
                group.cursor, list(group.aside.values()), **{each: getattr(group, each) for each in _SAME_OF_GROUP}
            )
            for name, group in self.groups.items()
        }
        return Snapshot(
            resume=resume,
            resume_pos=resume_pos,
            groups=groups,
            takers=self.takers.last,
            popped=self.takers.popped,
            ops=self.ops.last,
            members=[],
            standing=list(self.standing),
            **{name: getattr(self, name) for name in _SAME},
        )

    @staticmethod
    def restored(shard: int, snapshot: Snapshot) -> ShardState:
        """The state, to which the stream from `resume` on is applied."""
        state = ShardState(shard)
        for name in _SAME:
            setattr(state, name, getattr(snapshot, name))
        state.backlog = Backlog(snapshot.resume_pos)
        for name, saved in snapshot.groups.items():
            group = state.groups[name] = Group(saved.cursor, saved.aside)
            for each in _SAME_OF_GROUP:
                setattr(group, each, getattr(saved, each))
        state.takers = Takers(snapshot.takers, snapshot.popped)
        state._remember_ops(snapshot.ops)
        state.standing = StandingTakes(snapshot.standing)
        return state

    # Looking

    def ready_count(self, name: str) -> int:
        """About how many messages a take would find, at most; 0 if it would find none as things stand."""
        group = self.groups.get(name)
        return self.backlog.next_pos - self.backlog.first_pos if group is None else group.ready_count(self.backlog)
