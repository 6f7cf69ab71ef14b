"""One shard of a queue as a pure fold over the records of its stream: who gets which message is decided here alone.

Every process that follows the stream comes to the same state, because nothing enters but records in their order, and
their times. A take is a request: the fold gives it what comes next at its place in the order, so takes of any number of
processes never contend for anything, and no condition is needed.

**Standing takes** are asked for in advance, and given what comes by the record with which it comes (`sessions`).

**Once.** A process numbers its acts, and the fold counts each (taker, number) once: an append whose outcome is unknown
is simply made again. What the last act of a taker was given is remembered until its next act, and what it has taken
permanently
 and nobody has received yet for as long as it says so: that can be given back. `sessions` has the bounds. A take
with an `op` of its own is remembered for `OP_US`, if there are not too many later ones: whoever repeats it, also from
another process, is given the same messages, and they are not trimmed until then; of a lease, those still leased under
it, and if there are none it is a new one.

**Checkpoints.** A `Snapshot` holds what lies aside, and where the first untouched push is (`resume`), not the untouched
messages themselves: who starts from it reads the stream from `resume` on, and takes from the records that it covers
only their pushes. So its size is that of what is aside, however long the queue is.

**The floor.** Records below `floor` are needed by nobody: every group has passed them, what lingers was carried, and
the time for which consumed messages are retained is over. It moves by `Saved` records only, in the order of the stream,
so that all folds agree on what a new group may begin with; the trim comes after.
"""

from __future__ import annotations

from typing import Final

from boki.libs.bokiqueue.backlog import Backlog, Rate, Segment, Spot
from boki.libs.bokiqueue.groups import Aside, Delivery, Group
from boki.libs.bokiqueue.records import (
    ACK,
    BURY,
    EXTEND,
    GIVE_BACK,
    NACK,
    PURGE,
    REDRIVE,
    RELEASE,
    Act,
    Carry,
    Done,
    DropGroup,
    Join,
    Kind,
    OpenGroup,
    Part,
    Push,
    Saved,
    Settings,
    Settle,
    Setup,
    Take,
    ends_leases,
)
from boki.libs.bokiqueue.sessions import Given, GroupSnapshot, Handed, OpDone, Popped, Snapshot, StandingTakes, Takers

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
        self.ops: dict[str, OpDone] = {}
        self._op_messages = 0
        self.marks: list[tuple[int, int, int]] = []
        """(time, seqnum, bytes of the stream before it) of checkpoints: for what is retained, and what is carried."""
        self.last_fence = 0
        self.opened_at = 0
        """The last record that made a group: no checkpoint of the state before it moves the floor any more."""
        self.push_rate = Rate()
        self.passed_by = 0
        """Records that were skipped (see `records`). Of a queue with several shards, shard 0 counts for all."""

    # The fold

    def pass_by(self, seqnum: int) -> None:
        """Continue past a record that does not count."""
        if seqnum > self.at:
            self.at = seqnum
            self.passed_by += 1

    def apply(self, seqnum: int, time_us: int, record: Kind) -> Given | None:
        """Continue to the next record of the stream. Its outcome, if it is an act that counts; see also `handed`."""
        self.handed = []
        if seqnum <= self.at:
            if isinstance(record, Push):
                self.backlog.add(seqnum, time_us, record)  # covered by the checkpoint that this state began with
            return None
        self.at = seqnum
        self.time_us = max(self.time_us, time_us)
        given = self._decide(seqnum, time_us, record)
        if self.standing:
            self._hand_out(seqnum, time_us)
            if isinstance(record, Saved):
                self._forget_gone(time_us)
        return given

    def _hand_out(self, seqnum: int, time_us: int) -> None:
        """What can be taken now goes to the standing takes."""
        self.handed = self.standing.hand_out(self.groups, self.backlog, seqnum, time_us)
        for taker, name, lease_us, deliveries in self.handed:
            if not lease_us:
                self.takers.add_popped(taker, Popped(name, seqnum, deliveries, is_standing=True))
        if self.handed:
            self._forget_passed()

    def _forget_gone(self, time_us: int) -> None:
        """Standing takes of processes that are gone end, and what they have popped has an end, too."""
        for one in self.standing.ended(time_us):
            self.standing.drop(one)
            group = self.groups.get(one.group)
            for delivery in self.takers.lose_popped(one.taker, one.group) if not one.lease_us else ():
                if group is not None:
                    group.lose(delivery, time_us, _GONE)

    def _decide(self, seqnum: int, time_us: int, record: Kind) -> Given | None:
        match record:
            case Push():
                self.backlog.add(seqnum, time_us, record)
                self.push_rate.add(len(record.bodies), time_us)
                for group in self.groups.values():
                    group.is_dry = False
                if record.ttl_us:  # by the record alone: what is only known here other folds may not know
                    self._pass_expired()
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
                self.groups.pop(record.group, None)
                self.takers.forget_group(record.group)
                self.standing.forget_group(record.group)
                for op in [op for op in self.ops if op.startswith(f"{record.group}\n")]:
                    self._forget_op(op)
                self.last_fence = seqnum
                self._forget_passed()
            case Saved():
                self._saved(seqnum, time_us, record)
            case Carry():
                self._carry(seqnum, record)
            case Join() | Part():
                pass  # of a Boki that dealt shards to processes by what they said
        return None

    def _pass_expired(self) -> None:
        """A push with a TTL also drops expired messages; otherwise an idle queue would never reclaim their space."""
        self._forget_old(self.time_us)
        for group in self.groups.values():
            group.pass_expired(self.backlog, self.time_us)
        if self.groups:
            self._forget_passed()
        else:
            self.backlog.drop_expired(self.time_us)

    def _act(self, seqnum: int, time_us: int, act: Act) -> Given | None:
        if ends_leases(act):
            self.last_fence = seqnum  # also if it counts no more: it stands under the fence tag, where commits look
        if not self.takers.counts(act.taker, act.number):
            return None
        if act.granted or self.standing:
            self._hear(seqnum, act, time_us)
        self._fence(time_us, act.fences)
        popped = self.takers.unreceived(act.taker, act.kept_from) if act.kept_from else []
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

    def _hear(self, seqnum: int, act: Act, time_us: int) -> None:
        """The taker is there, and grants credit for groups that exist."""
        for credit in act.granted:
            self._group_of(credit.group)
        granted = [one for one in act.granted if one.group in self.groups]
        self.standing.heard(act.taker, act.kept_from or seqnum, granted, seqnum, time_us)
        self._forget_gone(time_us)

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
        if take.op:
            earlier = self.ops.get(op)
            if earlier is not None and earlier.time_us > time_us - OP_US:
                still = [group.held(one, time_us) if one.until_us else one for one in earlier.deliveries]
                if held := [one for one in still if one is not None]:
                    return held
        deliveries = group.take(self.backlog, time_us, take.count, take.lease_us, seqnum)
        if take.op and deliveries:
            self._forget_op(op)
            self.ops[op] = OpDone(time_us, deliveries)
            self._op_messages += len(deliveries)
        return deliveries

    def _settle(self, settle: Settle, time_us: int, popped: list[Popped]) -> list[bool]:
        group = self.groups.get(settle.group)
        if group is None:
            return [False] * len(settle.messages)
        if settle.verb in (REDRIVE, PURGE):
            change = group.redrive if settle.verb == REDRIVE else group.purge
            return [change(pos) for pos, _ in settle.messages]
        back = _put_back(group, settle, popped) if settle.verb == GIVE_BACK else set()
        return [one in back or self._settle_one(group, settle, *one, time_us) for one in settle.messages]

    def _settle_one(self, group: Group, settle: Settle, pos: int, token: int, time_us: int) -> bool:
        aside = group.leased(pos, token)
        if aside is None or aside.due_us <= time_us:
            return False
        verb = settle.verb
        if verb == ACK:
            group.ack(pos, time_us)
        elif verb == NACK:
            self._nack(group, pos, aside, time_us + settle.span_us, time_us, settle.reason)
        elif verb == EXTEND:
            group.extend(pos, time_us + settle.span_us)
        elif verb in (RELEASE, GIVE_BACK):
            group.nack(pos, 0, time_us, is_counted=False)
        elif verb == BURY:
            group.bury(pos, settle.reason, time_us)
        return True

    def _nack(self, group: Group, pos: int, aside: Aside, due_us: int, time_us: int, reason: str) -> None:
        most = self.settings.max_deliveries
        if most and aside.deliveries >= most:
            group.bury(pos, f"delivered {aside.deliveries} times; the last time: {reason or 'no reason'}", time_us)
        else:
            aside.reason = reason
            group.nack(pos, due_us, time_us)

    def _fence(self, time_us: int, fences: list[tuple[str, int, int]]) -> None:
        for name, pos, token in fences:
            group = self.groups.get(name)
            aside = group.leased(pos, token) if group is not None else None
            is_over = aside is None or aside.due_us <= time_us
            is_gone = self.standing.pop_unheard(name, pos, token, time_us, is_over=is_over)
            if group is None or aside is None:
                continue
            if is_over:
                self._nack(group, pos, aside, 0, time_us, "its lease ran out")
            elif is_gone:
                group.nack(pos, 0, time_us, is_counted=False)

    def _done(self, done: Done, time_us: int) -> None:
        group = self.groups.get(done.group)
        if group is not None:
            for pos, token in done.messages:
                if group.leased(pos, token) is not None:
                    group.ack(pos, time_us)
            self._forget_passed()

    def _open(self, seqnum: int, time_us: int, record: OpenGroup) -> None:
        if record.is_anew:
            self.last_fence = seqnum
            self.takers.forget_group(record.group)
        elif record.group in self.groups:
            return
        if record.group not in self.groups and len(self.groups) >= MAX_GROUPS:
            return
        self.opened_at = seqnum
        cursor = self.backlog.next_pos
        for segment in self.backlog.segments():
            if segment.seqnum >= record.start_seqnum and segment.time_us >= record.start_time_us:
                cursor = segment.first
                break
        lingering = [
            (aside.spot, aside.pushed_until_us)
            for group in self.groups.values()
            for pos, aside in group.aside.items()
            if pos < self.backlog.first_pos
            and aside.spot.seqnum >= record.start_seqnum
            and aside.spot.time_us >= record.start_time_us
        ]
        self.groups[record.group] = Group.begun(cursor, lingering, time_us)
        self._forget_passed()

    def _carry(self, seqnum: int, carry: Carry) -> None:
        moved = {pos: (seqnum, index) for index, pos in enumerate(carry.positions)}
        for group in self.groups.values():
            for pos, place in moved.items():
                aside = group.aside.get(pos)
                if aside is not None:
                    aside.spot = aside.spot.carried(place)
        for op, done in list(self.ops.items()):
            self.ops[op] = OpDone(done.time_us, [one.moved(moved) for one in done.deliveries])

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
            self.backlog.drop_below(min(group.cursor for group in self.groups.values()))

    def _forget_old(self, time_us: int) -> None:
        self.takers.forget_old(time_us)
        while self.ops:
            op, done = next(iter(self.ops.items()))
            are_few = len(self.ops) <= MAX_OPS and (self._op_messages <= MAX_OP_MESSAGES or len(self.ops) == 1)
            if done.time_us > time_us - OP_US and are_few:
                break
            self._forget_op(op)

    def _forget_op(self, op: str) -> None:
        done = self.ops.pop(op, None)
        self._op_messages -= 0 if done is None else len(done.deliveries)

    # History: a group that begins before what is kept here

    def history_for(self, record: Kind) -> tuple[int, int] | None:
        """The part of the stream whose pushes must be given to `put_before` before this record is applied.

        If any of it was trimmed this fold cannot continue: there is a checkpoint beyond the record, to begin again
        from.
        """
        if not isinstance(record, OpenGroup) or (record.group in self.groups and not record.is_anew):
            return None
        if not self.backlog.first_pos:
            return None  # every message that was ever pushed is here
        first = self.backlog.find(self.backlog.first_pos)
        stop = first.seqnum if first is not None else self.at + 1
        start = max(self.floor, record.start_seqnum)
        return (start, stop) if start < stop else None

    def put_before(self, segments: list[Segment]) -> None:
        """All pushes of that part."""
        self.backlog.put_before(segments)

    # Checkpoints

    def _resume(self) -> tuple[int, int]:
        """Where the pushes begin that some group has not passed, and the position of the first message there."""
        backlog = self.backlog
        pos = min((group.cursor for group in self.groups.values()), default=backlog.first_pos)
        segment = backlog.find(pos)
        return (self.at + 1, backlog.next_pos) if segment is None else (segment.seqnum, segment.first)

    def lingering(self) -> dict[int, Spot]:
        """Messages that are aside or remembered, by position: their bodies are still needed."""
        spots = {pos: aside.spot for group in self.groups.values() for pos, aside in group.aside.items()}
        for done in self.ops.values():
            spots.update((one.spot.pos, one.spot) for one in done.deliveries)
        return spots

    def needed_floor(self, time_us: int) -> int:
        """The first record that is still needed."""
        floor = self._resume()[0]
        for spot in self.lingering().values():
            floor = min(floor, spot.place[0])
        for one in self.takers.deliveries():
            floor = min(floor, one.spot.place[0])
        if self.settings.retain_us:
            kept = [seqnum for mark_us, seqnum, _ in self.marks if mark_us <= time_us - self.settings.retain_us]
            floor = min(floor, kept[-1] if kept else self.floor)
        return floor

    def snapshot(self) -> Snapshot:
        """The state as a checkpoint. It shares parts with the state: encode it before the next record."""
        resume, resume_pos = self._resume()
        groups = {
            name: GroupSnapshot(
                group.cursor,
                list(group.aside.values()),
                group.is_dry,
                group.done_count,
                group.expired_count,
                group.rate,
            )
            for name, group in self.groups.items()
        }
        return Snapshot(
            self.at,
            self.time_us,
            resume,
            resume_pos,
            self.floor,
            self.settings,
            groups,
            self.takers.last,
            self.takers.popped,
            self.ops,
            self.marks,
            self.last_fence,
            self.push_rate,
            [],
            self.opened_at,
            self.passed_by,
            list(self.standing),
        )

    @staticmethod
    def restored(shard: int, snapshot: Snapshot) -> ShardState:
        """The state, to which the stream from `resume` on is applied."""
        state = ShardState(shard)
        state.at, state.time_us, state.floor = snapshot.at, snapshot.time_us, snapshot.floor
        state.settings = snapshot.settings
        state.backlog = Backlog(snapshot.resume_pos)
        for name, saved in snapshot.groups.items():
            group = state.groups[name] = Group.restored(saved.cursor, saved.aside)
            group.is_dry, group.rate = saved.is_dry, saved.rate
            group.done_count, group.expired_count = saved.done_count, saved.expired_count
        state.takers = Takers(snapshot.takers, snapshot.popped)
        state.ops, state.marks = snapshot.ops, snapshot.marks
        state._op_messages = sum(len(done.deliveries) for done in snapshot.ops.values())
        state.last_fence, state.push_rate = snapshot.last_fence, snapshot.push_rate
        state.opened_at, state.passed_by = snapshot.opened_at, snapshot.passed_by
        state.standing = StandingTakes(snapshot.standing)
        return state

    # Looking

    def ready_count(self, name: str) -> int:
        """About how many messages a take would find, at most; 0 if it would find none as things stand."""
        group = self.groups.get(name)
        if group is None:
            return self.backlog.next_pos - self.backlog.first_pos
        return 0 if group.is_dry else self.backlog.next_pos - group.cursor + group.back_count


def _put_back(group: Group, settle: Settle, popped: list[Popped]) -> set[tuple[int, int]]:
    """What the taker took permanently, and nobody has received, can be taken again; it can give it back only once."""
    wanted = set(settle.messages)
    back = set()
    for index, one in enumerate(popped):
        if one.group == settle.group:
            kept = [delivery for delivery in one.deliveries if (delivery.spot.pos, one.token) not in wanted]
            if len(kept) < len(one.deliveries):
                for delivery in one.deliveries:
                    if (delivery.spot.pos, one.token) in wanted:
                        group.put_back(delivery)
                        back.add((delivery.spot.pos, one.token))
                popped[index] = Popped(one.group, one.token, kept)
    return back
