"""The folds of a queue in one process: begun from checkpoints, brought on by what is read, and kept small.

**Checkpoints.** One is due after this many records of a shard, and written by a process that consumes: the one whose
act was the last of them. Processes that push what expires write one, too. Two that do it at once do no harm: of two
writers one gives up (`boki.libs.fold.checkpoints`). The trim follows when the fold has come to the checkpoint, and
messages that linger are carried: appended again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import msgspec

from boki import BokiError, ConditionFailed, Expect, LogBook, Page, Record
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.callers import Bodies, Body, Lost, Served, Wants
from boki.libs.bokiqueue.groups import Delivery, Spot
from boki.libs.bokiqueue.lines import Line, release
from boki.libs.bokiqueue.messages import no_such_queue, reshaped
from boki.libs.bokiqueue.records import (
    LOST,
    MAX_MESSAGE_BYTES,
    Act,
    Carry,
    Kind,
    Push,
    Saved,
    Setup,
    belongs,
    sound,
)
from boki.libs.bokiqueue.sessions import Given
from boki.libs.bokiqueue.state import ShardState
from boki.libs.bokiqueue.stored import checkpoints_of, history, newest_settings, newest_state
from boki.libs.fold.checkpoints import PART_BYTES, End
from boki.libs.fold.follower import Follower
from boki.libs.fold.registry import Tasks
from boki.libs.fold.steps import run

SAVE_RECORDS: Final = 2_000
SAVE_BYTES: Final = 8 * 1024 * 1024
"""A checkpoint is due after so much of a stream."""
FEED_BYTES: Final = 4 * SAVE_BYTES
"""Shards that are idle are brought up after so much of the feed."""
CARRY_WORTH: Final = 4
"""Messages that linger are carried when what could be trimmed then has this many times their bytes."""
_LOST_TRIES: Final = 10
"""Times that a checkpoint tries to carry messages whose bodies are lost; the next one tries again."""
CARRY_RECORDS: Final = 1_000
CARRY_BYTES: Final = 4_000_000
"""Records, and about how many bytes of them, that are read and carried at once."""
_SPOT_BYTES: Final = 100
"""A carried message has about this many bytes beside its body."""
_NOBODY: Final = b""
"""As the taker of an act that wants nothing."""

R = TypeVar("R")
_log = logging.getLogger("boki.queue")


class Folds:
    """The folds of all shards, and who is served by what comes to them. `taker` names this process, and after
    `save_records` of a shard a checkpoint is due.
    """

    def __init__(
        self,
        queue: str,
        taker: bytes,
        lines: Sequence[Line],
        wants: Wants,
        follower: Follower,
        bodies: Bodies,
        tasks: Tasks,
        save_records: int | None = None,
    ) -> None:
        self._queue, self._taker = queue, taker
        self._lines, self._wants = lines, wants
        self._follower, self._bodies = follower, bodies
        self._tasks, self._save_records = tasks, save_records
        self.forgotten: list[Line] = []
        """Shards of which nothing that is read says any more what the act came to that is on its way."""
        self.settings_at = 0
        """Seqnum of the newest settings record that this process knows."""
        self._steps = 0
        """Number of records and checkpoints that were read."""
        self._gone_at = -1
        """The number of steps when the queue was found deleted."""
        self._checked_stop = 0
        """Where the last page ends in which the queue's settings were looked at."""
        self._missed: set[tuple[int, int]] = set()
        """(record, from where on the stream was there) for which this fold has begun again."""
        self._mine: dict[int, End] = {}
        """By shard, the last checkpoint of this process, if the fold has not come to it."""
        self._feed_bytes = self._brought_up_at = 0
        """How much of the feed came, as far as this process has seen to it, and how much when it brought up shards."""
        self._carried_at: dict[int, int] = {}
        """How much it was when each shard was carried."""
        self._pushed_records = self._pushed_bytes = 0
        """What was pushed by this process, of messages that expire, since it looked after them."""

    # Reading

    async def load(self, logbook: LogBook) -> int:
        """Begin from the newest checkpoints; where to read on."""
        self._bodies.clear()
        loaded = await asyncio.gather(*(newest_state(logbook, self._queue, line.shard) for line in self._lines))
        for line, (state, resume) in zip(self._lines, loaded, strict=True):
            line.begin(state, resume)
        self._steps += 1
        self.forgotten = []
        for line in self._lines:  # before anything can fail: what is covered by now is not read again
            given, own, known = line.state.takers.last.get(self._taker), line.outstanding, line.last_token
            is_counted = given is not None and own is not None and own.act.number == given.number
            if given is not None and not (is_counted and given.is_forgotten and own is not None and own.has_outcome):
                self._served(line, given)
            if line.outstanding is not None and (is_counted or line.is_act_forgotten):
                self.forgotten.append(line)
            line.give_back_unknown(known)
        return min(resume for _, resume in loaded)

    async def take(self, logbook: LogBook, page: Page) -> bool:
        """Fold a page. False if that cannot be from here: begin again. `NoSuchQueue` if it is another one by now."""
        for record in page.records:
            kind = sound(record)
            is_of_others = isinstance(kind, Setup) and kind.settings.shards != len(self._lines)
            if is_of_others or (kind is None and records.is_newer(record.data)):
                await self._check_settings(logbook, record.seqnum, page.next_start)
                kind = None  # the queue's settings do not say so
            if kind is None or not belongs(kind, record.tags, self._queue, len(self._lines)):
                self._pass_by(record)
            elif record.seqnum < self._lines[kind.shard].resume:
                self._passed(record)
            elif not await self._complete(logbook, self._lines[kind.shard], record.seqnum, kind):
                return False
            else:
                self._passed(record)
                self._apply(logbook, self._lines[kind.shard], record, kind)
        for line in self._lines:
            line.gone_below = max(line.gone_below, page.first_seqnum)
        self.forgotten = [line for line in self._lines if line.is_act_forgotten]
        return True

    async def _check_settings(self, logbook: LogBook, seqnum: int, page_stop: int) -> None:
        """Refuse a queue of a later format, or one that is another by now. Once a page: strangers may append many."""
        if seqnum >= self._checked_stop:
            _, settings, _ = await newest_settings(logbook, self._queue)
            if settings is None or settings.shards != len(self._lines):
                raise reshaped(self._queue)
            self._checked_stop = page_stop

    @property
    def is_gone(self) -> bool:
        """Whether the queue was found deleted, and nothing was read since that may have created it again."""
        return self._gone_at == self._steps

    async def append_if_exists(self, logbook: LogBook, append: Callable[[Expect], Awaitable[R]]) -> R:
        """Append on condition that the queue exists: a consumer must not bring a deleted book back. `NoSuchQueue`"""
        while True:
            if self.settings_at:
                with suppress(ConditionFailed):  # the settings were changed, or the book was deleted
                    return await append(Expect(records.settings_tag(self._queue), self.settings_at))
            steps = self._steps
            last, settings, _ = await newest_settings(logbook, self._queue, fresh=True)
            if settings is None:
                self._gone_at = steps
                for line in self._lines if self.is_gone else ():  # else the reader would wake for what was due
                    line.begin(ShardState(line.shard), 0)
                raise no_such_queue(self._queue, logbook.name)
            if settings.shards != len(self._lines):
                self._follower.end(error := reshaped(self._queue))
                raise error
            self.settings_at = last

    async def _complete(self, logbook: LogBook, line: Line, seqnum: int, kind: Kind) -> bool:
        """Have what the record needs of the past. False: that was trimmed since, and others go by it, for they had read
        it or began from a later checkpoint. If this fails the record is read again: it has not been passed yet.
        """
        part = line.state.history_for(kind) if seqnum > line.state.at else None
        if part is not None:
            segments, kept_from = await history(logbook, self._queue, line.shard, len(self._lines), *part)
            if kept_from > part[0] and (seqnum, kept_from) not in self._missed:
                self._missed.add((seqnum, kept_from))
                return False
            line.state.backlog.put_before(segments)
        return True

    def _apply(self, logbook: LogBook, line: Line, record: Record, kind: Kind) -> None:
        state = line.state
        first_pos = state.backlog.first_pos
        given = state.apply(record.seqnum, record.time, kind)
        line.saved_records += 1
        line.saved_bytes += len(record.data)
        is_due = False
        if isinstance(kind, Push | Carry):
            self._bodies.keep(record.seqnum, kind, state)
            is_due = state.backlog.first_pos > first_pos  # it drops what has expired: maybe no other process consumes
        for taker, group, lease_us, deliveries in state.handed:
            if taker == self._taker:  # a standing take of this process
                line.hear(deliveries)
                if left := self._wants.serve((group, lease_us), self._with_bodies(line, deliveries)):
                    self._wants.keep((group, lease_us), left)
                is_due = True
        if given is not None and isinstance(kind, Act) and kind.taker == self._taker:
            self._served(line, given)
            is_due = True
        if isinstance(kind, Saved):
            line.saved_records = line.saved_bytes = 0
            if self._mine.get(line.shard) == End(kind.covers, kind.first, kind.floor):
                self._trim_soon(logbook, line)
        elif is_due and not line.is_saving and self._is_due(line.saved_records, line.saved_bytes):
            line.is_saving = True
            self._tasks.spawn(self.save(_detached(logbook), line))

    def _served(self, line: Line, given: Given) -> None:
        """An act of this process counts: those that wait for it are given what it came to."""
        own, clock = line.outstanding, self._follower.clock
        if own is not None and own.act.number == given.number and own.asked is not None:
            clock.hear_answer(given.time_us, own.asked)
            self._wants.act_s = clock.since(own.asked)
        for kind, deliveries in line.settle(given, self._queue):
            release(self._lines, kind[0], self._wants.serve(kind, self._with_bodies(line, deliveries)))

    def _with_bodies(self, line: Line, deliveries: Sequence[Delivery]) -> list[Served]:
        here = self._bodies.here
        return [(line.shard, one, here(one)) for one in deliveries]

    def _passed(self, record: Record) -> None:
        """The reading continues behind it."""
        self._follower.next_start = record.next_seqnum
        self._steps += 1
        self._follower.clock.hear(record.time)

    def _pass_by(self, record: Record) -> None:
        """A record that does not count. It is logged when they are 1, 10, 100, …: strangers may append many."""
        line = self._lines[0]
        state = line.state
        before = state.passed_by
        if record.seqnum >= line.resume:
            state.pass_by(record.seqnum)
            line.saved_records += 1  # so that a checkpoint drops it
            line.saved_bytes += len(record.data)
        self._passed(record)
        if state.passed_by > before and str(state.passed_by).rstrip("0") == "1":
            _log.warning(
                "queue %s: record %d is not a valid queue record and is passed by; %d so far",
                *(self._queue, record.seqnum, state.passed_by),
            )

    # Checkpoints and trims

    def _is_due(self, count: int, size_bytes: int) -> bool:
        return count >= (self._save_records or SAVE_RECORDS) or size_bytes >= SAVE_BYTES

    def pushed(self, logbook: LogBook, pushes: Iterable[Push]) -> None:
        """This process has pushed messages that expire. If no process consumes then no other drops them."""
        for push in pushes:
            self._pushed_records += 1
            self._pushed_bytes += sum(map(len, push.bodies))
        if self._is_due(self._pushed_records, self._pushed_bytes):
            self._pushed_records = self._pushed_bytes = 0
            self._tasks.spawn(self._look(_detached(logbook)))

    async def _look(self, logbook: LogBook) -> None:
        """Follow the queue to its end: a push in it that drops others makes a checkpoint, if one is due."""
        try:
            await self._follower.catch_up(logbook)
        except BokiError as error:
            _log.warning("queue %s could not be looked after: %s", self._queue, error)

    async def save(self, logbook: LogBook, line: Line, fed_bytes: int = 0) -> None:
        """Append a checkpoint of the shard as it is now. The trim follows when the fold has come to it.

        `fed_bytes`: so much of the feed lies behind what lingers in it.
        """
        try:
            with suppress(ConditionFailed):
                if await self._saved(logbook, line, fed_bytes):
                    return
            await self._look_at_settings(logbook)
        except BokiError as error:
            _log.warning("a checkpoint of queue %s could not be written: %s", self._queue, error)
        finally:
            line.is_saving = False

    async def _saved(self, logbook: LogBook, line: Line, fed_bytes: int) -> bool:
        """See `save`. False, or `ConditionFailed`: another process was quicker, or the settings are others by now.

        All of it depends on the settings: once the book is deleted the state is one of a queue that is no more.
        """
        state = line.state
        floor = state.needed_floor(state.time_us)
        data = msgspec.msgpack.encode(state.snapshot())  # now: the state continues at the next await
        covers, checkpoints = state.at, checkpoints_of(self._queue, line.shard, line.saved_bytes)
        stands = Expect(records.settings_tag(self._queue), self.settings_at)
        if self._is_worth_carrying(line, old := _old_spots(line), fed_bytes):
            await self._carry(logbook, line, old, stands)
        end = await run(checkpoints.save(data, covers, floor, self._tags(line.shard), [stands]), logbook)
        if end is None:
            return False
        self._mine[line.shard] = end
        if line.state.marks and line.state.marks[-1][1] > end.first:  # the fold was quicker
            self._trim_soon(logbook, line)
        return True

    async def _look_at_settings(self, logbook: LogBook) -> None:
        """Know the newest settings record: the next checkpoint depends on it."""
        last, settings, _ = await newest_settings(logbook, self._queue, fresh=True)
        if settings is not None and settings.shards == len(self._lines):
            self.settings_at = last

    def _trim_soon(self, logbook: LogBook, line: Line) -> None:
        if (end := self._mine.pop(line.shard, None)) is not None:
            self._tasks.spawn(self._trim(_detached(logbook), line, end))

    async def _trim(self, logbook: LogBook, line: Line, end: End) -> None:
        try:
            await run(checkpoints_of(self._queue, line.shard).trim(end, line.state.floor), logbook)
            if line.state.last_fence:  # the last one stays: an empty tag would say that there never was one
                await logbook.trim(line.state.last_fence, tag=records.fence_tag(self._queue, line.shard))
            if len(self._lines) > 1:
                await self._trim_feed(logbook, line)
        except BokiError as error:
            _log.warning("queue %s could not be trimmed, and will be after its next checkpoint: %s", self._queue, error)

    async def _trim_feed(self, logbook: LogBook, line: Line) -> None:
        """The feed can go below what every shard has done without; shards that are idle are brought up first."""
        self._feed_bytes += SAVE_BYTES
        lines = [other for other in self._lines if other.state.at]
        if self._feed_bytes - self._brought_up_at > FEED_BYTES:
            self._brought_up_at = self._feed_bytes
            for other in lines:
                if other.state.floor < line.state.floor and not other.is_saving:
                    other.is_saving = True
                    await self._bring_up(logbook, other)
        await logbook.trim(min(other.state.floor for other in lines), tag=records.feed_tag(self._queue))

    async def _bring_up(self, logbook: LogBook, line: Line) -> None:
        """No process acts in that shard: what is too old to be remembered goes by an act that wants nothing."""
        state = line.state
        if len(state.ops) or next(state.takers.deliveries(), None) is not None:
            try:
                act, tags = records.encode(Act(line.shard, _NOBODY, state.at)), self._tags(line.shard)
                await self.append_if_exists(logbook, lambda exists: logbook.append(act, tags, when=exists))
            except BokiError as error:
                _log.warning("shard %d of queue %s could not be brought up: %s", line.shard, self._queue, error)
        await self.save(logbook, line, self._feed_bytes - self._carried_at.get(line.shard, 0))

    # Messages that linger

    def _is_worth_carrying(self, line: Line, old: list[list[Spot]], fed_bytes: int) -> bool:
        """Whether the stream that lies between these and what cannot be trimmed is long enough to be worth a copy."""
        if not old:
            return False
        first, stop = old[0][0].place[0], line.state.fixed_floor(line.state.time_us)
        between = max(
            0, _bytes_below(line, stop) - next(below for _, seqnum, below in line.state.marks if seqnum > first)
        )
        return max(between, fed_bytes) >= max(SAVE_BYTES, CARRY_WORTH * sum(map(_size_bytes, old)))

    async def _carry(self, logbook: LogBook, line: Line, old: list[list[Spot]], stands: Expect) -> None:
        """Append these messages again, while the queue `stands`."""
        self._carried_at[line.shard] = self._feed_bytes
        for some in records.runs(old, _size_bytes, CARRY_BYTES, CARRY_RECORDS):
            spots = [spot for of_record in some for spot in of_record]
            bodies = await self.fetch(logbook, [(line.shard, Delivery(spot, 0, 0, 0)) for spot in spots])
            read = [(spot, body) for spot, body in zip(spots, bodies, strict=True) if isinstance(body, tuple)]
            for part in records.runs(read, lambda one: len(one[1][1]), PART_BYTES):
                forms = records.joined([form for _, (form, _) in part])
                carry = Carry(line.shard, [spot.pos for spot, _ in part], forms, [body for _, (_, body) in part])
                await logbook.append(records.encode(carry), self._tags(line.shard), when=stands)
            if len(read) < len(spots):
                lost = [spot for spot, body in zip(spots, bodies, strict=True) if isinstance(body, Lost)]
                await self._give_up(logbook, line, lost, stands)

    async def _give_up(self, logbook: LogBook, line: Line, lost: list[Spot], stands: Expect) -> None:
        """Carry these without their bodies, under the condition that the log has nothing newer than this fold. Else
        another process may have carried them with their bodies, which would be lost for this.
        """
        for _ in range(_LOST_TRIES):
            await logbook.sync()
            await self._follower.catch_up(logbook)
            there = line.state.lingering()
            lost = [spot for spot in lost if there.get(spot.pos) == spot]
            if not lost:
                return
            carry = Carry(line.shard, [spot.pos for spot in lost], bytes([LOST]), [b""] * len(lost))
            newest = Expect(records.stream_tag(self._queue, line.shard), line.state.at)
            try:
                await logbook.append(records.encode(carry), self._tags(line.shard), when=[stands, newest])
            except ConditionFailed as error:
                if error.tag == stands.tag:
                    raise
            else:
                return

    async def fetch(
        self, logbook: LogBook, taken: Iterable[tuple[int, Delivery]], most_bytes: int | None = None
    ) -> list[Body | Lost]:
        """As `Bodies.fetch`, of messages of these shards. One that is gone from its place is looked for where the
        newest records say that it stands: another process may have carried it, and trimmed.
        """
        taken = list(taken)
        tag = partial(records.stream_tag, self._queue)
        bodies = await self._bodies.fetch(logbook, [(tag(shard), one) for shard, one in taken], most_bytes)
        while lost := [at for at, body in enumerate(bodies) if isinstance(body, Lost)]:
            await logbook.sync()
            await self._follower.catch_up(logbook)
            there = {shard: self._lines[shard].state.lingering() for shard in {taken[at][0] for at in lost}}
            moved: dict[int, tuple[str, Delivery]] = {}
            for at in lost:
                shard, one = taken[at]
                spot = there[shard].get(one.spot.pos)
                if spot is not None and spot.seqnum == one.spot.seqnum and spot.place != one.spot.place:
                    taken[at] = shard, msgspec.structs.replace(one, spot=spot)
                    moved[at] = tag(shard), taken[at][1]
            if not moved:
                break
            for at, body in zip(moved, await self._bodies.fetch(logbook, moved.values()), strict=True):
                bodies[at] = body
        return bodies

    def _tags(self, shard: int) -> tuple[str, ...]:
        return records.record_tags(self._queue, shard, len(self._lines))


def _detached(logbook: LogBook) -> LogBook:
    return logbook.session.logbook(logbook.name, detached=True)


def _old_spots(line: Line) -> list[list[Spot]]:
    """What lingers before the last checkpoint, by the record where it stands, and alone keeps a trim from passing it.
    Else copies would be copied again with every checkpoint while a backlog or the retention holds the floor.
    """
    state = line.state
    newest = min(state.marks[-1][1], state.fixed_floor(state.time_us)) if state.marks else 0
    found: dict[int, list[Spot]] = {}
    old = [spot for spot in state.lingering().values() if spot.place[0] < newest]
    for spot in sorted(old, key=lambda spot: spot.place):
        found.setdefault(spot.place[0], []).append(spot)
    return list(found.values())


def _bytes_below(line: Line, seqnum: int) -> int:
    """How much of the stream lies below that record, at least, as far as marks tell."""
    marks = line.state.marks
    if seqnum > line.state.at:
        return marks[-1][2] + line.saved_bytes
    return max((below for _, at, below in marks if at <= seqnum), default=0)


def _size_bytes(spots: list[Spot]) -> int:
    """About how many bytes of their record these messages are. Each counts as the largest of its push, so there is a
    bound: a record has no more than a message may have.
    """
    return min(sum(spot.size_bytes + _SPOT_BYTES for spot in spots), MAX_MESSAGE_BYTES)
