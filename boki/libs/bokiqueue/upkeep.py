"""Keeping a queue small: checkpoints, trims, and carrying what lingers.

Upkeep is background work of processes that consume, and of those that push what expires. A checkpoint is due after
this many records of a shard, and written by the process whose act was the last of them. Two that do it at once do no
harm: of two writers one gives up (`boki.libs.fold.checkpoints`).

**Bodies.** Bodies of messages that are still to be taken, kept from the reading of the stream; others are read again.

All queues that a process follows over one connection share one budget (`BodyStore`). A record of messages is kept

* while some group has not come to it, and there is room. When there is none, what is farthest from being taken goes, of
  the queue that has most: a queue is taken from its other end;
* after every group has passed it, while a message of it comes back (delayed, parked behind its key, released). Those go
  before anything else when room is needed.

All else goes with the page in which it was given: callers that wait are given the bodies with their messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from boki import BokiError, CorruptData, LogBook, NotFound, Record, Trimmed
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.groups import BACK, PARKED, WAITING, Delivery, Spot
from boki.libs.bokiqueue.lines import Line
from boki.libs.bokiqueue.records import (
    LOST,
    MAX_MESSAGE_BYTES,
    Act,
    Carry,
    Push,
    Saved,
    sound,
)
from boki.libs.bokiqueue.state import ShardState, sound_snapshot
from boki.libs.bokiqueue.wants import Body
from boki.libs.fold.checkpoints import PART_BYTES, Checkpoints, End, Part
from boki.libs.fold.registry import Tasks
from boki.libs.fold.steps import run

BODY_BUDGET_BYTES: Final = 64 * 1024 * 1024
READ_TOGETHER: Final = 16
"""Records that are read again at once: each may have a megabyte."""
LOOKED_AT: Final = 100
"""Records with messages that come back, looked at with each page: whether they still do."""

Lost = NotFound | Trimmed | CorruptData
"""What is raised for a record that is gone permanently."""


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
        spot = one.spot
        kept = self._kept.get(spot.carried_to or spot.seqnum)
        if kept is None:
            return None
        kind, index = kept.kind, spot.carried_index if spot.carried_to else spot.index
        if index >= len(kind.bodies) or (form := records.form_of(kind.forms, index)) == LOST:
            return None
        return form, kind.bodies[index]

    async def fetch(
        self, logbook: LogBook, deliveries: Iterable[Delivery], most_bytes: int | None = None
    ) -> list[Body | Lost]:
        """(form, body) of each; read from the log where they are not here. What is gone permanently comes as the error.

        With `most_bytes` of the first of them only, as many as have this many bytes together; of one at least.
        """
        places = [one.spot.place for one in deliveries]
        here = {seqnum: self._kept[seqnum].kind for seqnum, _ in places if seqnum in self._kept}
        read: dict[int, Push | Carry | Lost] = {}
        found: list[Body | Lost] = []
        size = 0
        for at, (seqnum, index) in enumerate(places):
            kind = here.get(seqnum) or read.get(seqnum)
            if kind is None:
                read = await _read_some(logbook, (one for one, _ in places[at:] if one not in here))
                kind = read[seqnum]
            if isinstance(kind, Lost):
                found.append(kind)
                continue
            if index >= len(kind.bodies):  # a forged checkpoint may say so
                found.append(CorruptData(f"record {seqnum} has no message {index}"))
                continue
            body, form = kind.bodies[index], records.form_of(kind.forms, index)
            size += len(body)
            if most_bytes is not None and found and size > most_bytes:
                break
            found.append((form, body) if form != LOST else CorruptData("it was lost before it was carried"))
        return found


async def _read_some(logbook: LogBook, seqnums: Iterable[int]) -> dict[int, Push | Carry | Lost]:
    """The first few of those records."""
    some: dict[int, None] = {}
    for seqnum in seqnums:
        some[seqnum] = None
        if len(some) == READ_TOGETHER:
            break
    return dict(zip(some, await asyncio.gather(*(_read(logbook, seqnum) for seqnum in some)), strict=True))


async def _read(logbook: LogBook, seqnum: int) -> Push | Carry | Lost:
    try:
        kind = sound(await logbook.get(seqnum))
    except (NotFound, Trimmed, CorruptData) as error:
        return error
    if not isinstance(kind, Push | Carry):
        return CorruptData(f"record {seqnum} of book {logbook.name!r} should hold messages of a queue, and does not")
    return kind


SAVE_RECORDS: Final = 2_000
SAVE_BYTES: Final = 8 * 1024 * 1024
"""A checkpoint is due after so much of a stream."""
FEED_BYTES: Final = 4 * SAVE_BYTES
CARRY_WORTH: Final = 4
"""Messages that linger are carried when what could be trimmed then has this many times their bytes."""
CARRY_RECORDS: Final = 1_000
CARRY_BYTES: Final = 4_000_000
"""Records, and about how many bytes of them, that are read and carried at once."""
_SPOT_BYTES: Final = 100
"""A carried message has about this many bytes beside its body."""

_NOBODY: Final = b""
"""As the taker of an act that wants nothing."""

_log = logging.getLogger("boki.queue")


class _Form:
    """How a queue writes its checkpoints. See `boki.libs.fold.checkpoints.Format`."""

    def __init__(self, shard: int, grown_bytes: int = 0) -> None:
        self._shard = shard
        self._grown_bytes = grown_bytes

    def part(self, data: bytes) -> bytes:
        return records.encode(records.Part(self._shard, data))

    def end(self, end: End) -> bytes:
        return records.encode(Saved(self._shard, end.covers, end.first, end.floor, self._grown_bytes))

    def read(self, record: Record) -> Part | End | None:
        match sound(record):
            case Saved() as saved if saved.shard == self._shard:
                return End(saved.covers, saved.first, saved.floor)
            case records.Part() as part:
                return Part(part.data)
            case _:
                return None


def _restored(shard: int) -> Callable[[bytes, End], tuple[ShardState, int] | None]:
    def decode(data: bytes, end: End) -> tuple[ShardState, int] | None:
        snapshot = sound_snapshot(data, end.covers)
        return None if snapshot is None else (ShardState.restored(shard, snapshot), snapshot.resume)

    return decode


class Upkeep:
    """The upkeep of one queue by one process. `save_records`: after this many of a shard a checkpoint is due."""

    def __init__(
        self,
        queue: str,
        lines: Sequence[Line],
        bodies: Bodies,
        tasks: Tasks,
        catch_up: Callable[[LogBook], Awaitable[None]],
        save_records: int | None = None,
    ) -> None:
        self._queue = queue
        self._lines = lines
        self._bodies = bodies
        self._tasks = tasks
        self._catch_up = catch_up
        self._save_records = save_records
        self._mine: dict[int, End] = {}
        """By shard, the last checkpoint of this process, if the fold has not come to it."""
        self._feed_bytes = 0
        """How much of the feed came, as far as this process has seen to it."""
        self._brought_up_at = 0
        self._carried_at: dict[int, int] = {}
        """How much it was when shards that are idle were brought up, and when each of them was carried."""
        self._pushed_records = self._pushed_bytes = 0
        """What was pushed by this process, of messages that expire, since it looked after them."""

    def _tags(self, shard: int) -> tuple[str, ...]:
        return records.record_tags(self._queue, shard, len(self._lines))

    def _most(self) -> int:
        return self._save_records or SAVE_RECORDS

    def consider(self, logbook: LogBook, line: Line) -> None:
        """Write a checkpoint if it is due."""
        if not line.is_saving and (line.saved_records >= self._most() or line.saved_bytes >= SAVE_BYTES):
            line.is_saving = True
            self._tasks.spawn(self.save(_detached(logbook), line))

    def pushed(self, logbook: LogBook, pushes: Iterable[Push]) -> None:
        """This process has pushed messages that expire. If no process consumes then no other drops them."""
        for push in pushes:
            self._pushed_records += 1
            self._pushed_bytes += sum(map(len, push.bodies))
        if self._pushed_records >= self._most() or self._pushed_bytes >= SAVE_BYTES:
            self._pushed_records = self._pushed_bytes = 0
            self._tasks.spawn(self._look(_detached(logbook)))

    async def _look(self, logbook: LogBook) -> None:
        """Follow the queue to its end: a push in it that drops others makes a checkpoint, if one is due."""
        try:
            await self._catch_up(logbook)
        except BokiError as error:
            _log.warning("queue %s could not be looked after: %s", self._queue, error)

    async def save(self, logbook: LogBook, line: Line, fed_bytes: int = 0) -> None:
        """Append a checkpoint of the shard as it is now. The trim follows when the fold has come to it.

        `fed_bytes`: so much of the feed lies behind what lingers in it.
        """
        state = line.state
        floor = state.needed_floor(state.time_us)
        data = msgspec.msgpack.encode(state.snapshot())  # now: the state continues at the next await
        covers, checkpoints = state.at, _checkpoints(self._queue, line.shard, line.saved_bytes)
        try:
            if self._is_worth_carrying(line, floor, fed_bytes):
                await self._carry(logbook, line)
            end = await run(checkpoints.save(data, covers, floor, self._tags(line.shard)), logbook)
            if end is not None:
                self._mine[line.shard] = end
                if line.state.marks and line.state.marks[-1][1] > end.first:  # the fold was quicker
                    self._trim_soon(logbook, line, end)
        except BokiError as error:
            _log.warning("a checkpoint of queue %s could not be written: %s", self._queue, error)
        finally:
            line.is_saving = False

    def saved(self, logbook: LogBook, line: Line, saved: Saved) -> None:
        """The fold has come to a checkpoint: trim, if it is one of ours."""
        line.saved_records = line.saved_bytes = 0
        end = self._mine.get(line.shard)
        if end == End(saved.covers, saved.first, saved.floor):
            self._trim_soon(logbook, line, end)

    def _trim_soon(self, logbook: LogBook, line: Line, end: End) -> None:
        if self._mine.pop(line.shard, None) is not None:
            self._tasks.spawn(self._trim(_detached(logbook), line, end))

    async def _trim(self, logbook: LogBook, line: Line, end: End) -> None:
        try:
            await run(_checkpoints(self._queue, line.shard).trim(end, line.state.floor), logbook)
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
                await logbook.append(records.encode(Act(line.shard, _NOBODY, state.at)), self._tags(line.shard))
            except BokiError as error:
                _log.warning("shard %d of queue %s could not be brought up: %s", line.shard, self._queue, error)
        await self.save(logbook, line, self._feed_bytes - self._carried_at.get(line.shard, 0))

    # Messages that linger

    def _is_worth_carrying(self, line: Line, floor: int, fed_bytes: int) -> bool:
        """Whether the stream between what lingers and what is new is long enough to be worth a copy."""
        marks = line.state.marks
        if not marks or floor >= marks[-1][1] or not (old := _old_spots(line)):
            return False
        before = next(bytes_before for _, seqnum, bytes_before in marks if seqnum >= floor)
        between = marks[-1][2] + line.saved_bytes - before
        return max(between, fed_bytes) >= max(SAVE_BYTES, CARRY_WORTH * sum(map(_size_bytes, old)))

    async def _carry(self, logbook: LogBook, line: Line) -> None:
        """Append messages again that stand before the last checkpoint."""
        self._carried_at[line.shard] = self._feed_bytes
        for some in records.runs(_old_spots(line), _size_bytes, CARRY_BYTES, CARRY_RECORDS):
            spots = [spot for of_record in some for spot in of_record]
            bodies = await self._bodies.fetch(logbook, [Delivery(spot, 0, 0, 0) for spot in spots])
            found = [body if isinstance(body, tuple) else (LOST, b"") for body in bodies]
            moved = list(zip(spots, found, strict=True))
            for part in records.runs(moved, lambda one: len(one[1][1]), PART_BYTES):
                forms = records.joined([form for _, (form, _) in part])
                carry = Carry(line.shard, [spot.pos for spot, _ in part], forms, [body for _, (_, body) in part])
                await logbook.append(records.encode(carry), self._tags(line.shard))


def _checkpoints(queue: str, shard: int, grown_bytes: int = 0) -> Checkpoints[tuple[ShardState, int]]:
    stream, tag = records.stream_tag(queue, shard), records.checkpoint_tag(queue, shard)
    return Checkpoints(stream, tag, _restored(shard), _Form(shard, grown_bytes))


async def newest_state(logbook: LogBook, queue: str, shard: int) -> tuple[ShardState, int]:
    """The state of the newest checkpoint, an empty one if there is none, and where to read on."""
    loaded = await run(_checkpoints(queue, shard).newest(), logbook)
    return (ShardState(shard), 0) if loaded is None else loaded.state


def _detached(logbook: LogBook) -> LogBook:
    return logbook.session.logbook(logbook.name, detached=True)


def _old_spots(line: Line) -> list[list[Spot]]:
    """What lingers before the last checkpoint, by the record where it stands."""
    newest = line.state.marks[-1][1]
    found: dict[int, list[Spot]] = {}
    for spot in sorted(line.state.lingering().values(), key=lambda spot: spot.place):
        if spot.place[0] < newest:
            found.setdefault(spot.place[0], []).append(spot)
    return list(found.values())


def _size_bytes(spots: list[Spot]) -> int:
    """About how many bytes of their record these messages are. Each counts as the largest of its push, so there is a
    bound: a record has no more than a message may have.
    """
    return min(sum(spot.size_bytes + _SPOT_BYTES for spot in spots), MAX_MESSAGE_BYTES)
