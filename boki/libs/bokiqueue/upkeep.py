"""Keeping a queue small: checkpoints, trims, and carrying what lingers. Done beside the work by those who consume, and
by those who push what expires.

A checkpoint is due after so many records of a shard, and written by the process whose act was the last of them. Two
that do it at once do no harm: both append under a condition on the checkpoint's tag, and one gives up.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from boki import BokiError, ConditionFailed, Expect, LogBook, Trimmed
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.checkpoints import last_saved
from boki.libs.bokiqueue.demand import Line
from boki.libs.bokiqueue.groups import Delivery, Spot
from boki.libs.bokiqueue.records import LOST, Act, Carry, Part, Push, Saved
from boki.libs.bokiqueue.refusals import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from boki.libs.bokiqueue.following import Following

SAVE_RECORDS: Final = 2_000
SAVE_BYTES: Final = 8 * 1024 * 1024
"""A checkpoint is due after so much of a stream."""
FEED_BYTES: Final = 4 * SAVE_BYTES
PART_BYTES: Final = 500_000
CARRY_WORTH: Final = 4
"""Messages that linger are carried when what could be trimmed then has so many times their bytes."""
CARRY_COUNT: Final = 1_000
CARRY_BYTES: Final = 4_000_000
"""So many messages, of records with about so many bytes, are read and carried at once."""
_SPOT_BYTES: Final = 100
"""A carried message has about so many bytes beside its body."""

_NOBODY: Final = b""
"""As the taker of an act that wants nothing."""

_log = logging.getLogger("boki.queue")


class Upkeep:
    """The upkeep of one queue by one process. `save_records`: after so many of a shard a checkpoint is due."""

    def __init__(self, queue: Following, save_records: int | None = None) -> None:
        self._queue = queue
        self._save_records = save_records
        self._mine: dict[int, Saved] = {}
        """By shard, the last checkpoint of this process, if the fold has not come to it."""
        self._feed_bytes = 0
        """How much of the feed came, as far as this process has seen to it."""
        self._brought_up_at = 0
        self._carried_at: dict[int, int] = {}
        """How much it was when shards that lie still were brought up, and when each of them was carried."""
        self._pushed_records = self._pushed_bytes = 0
        """What was pushed by this process, of messages that expire, since it looked after them."""

    def consider(self, logbook: LogBook, line: Line) -> None:
        """Write a checkpoint if it is due."""
        if self._queue.is_over:
            return
        save_records = self._save_records or SAVE_RECORDS
        if not line.is_saving and (line.saved_records >= save_records or line.saved_bytes >= SAVE_BYTES):
            line.is_saving = True
            self._queue.spawn(self.save(logbook, line))

    def pushed(self, logbook: LogBook, pushes: Iterable[Push]) -> None:
        """This process has pushed messages that expire. If nobody consumes then nobody else lets go of them."""
        for push in pushes:
            self._pushed_records += 1
            self._pushed_bytes += sum(map(len, push.bodies))
        if self._pushed_records >= (self._save_records or SAVE_RECORDS) or self._pushed_bytes >= SAVE_BYTES:
            self._pushed_records = self._pushed_bytes = 0
            self._queue.spawn(self._look(logbook))

    async def _look(self, logbook: LogBook) -> None:
        """Follow the queue to its end: a push in it that lets go of others makes a checkpoint, if one is due."""
        try:
            await self._queue.catch_up(logbook)
        except BokiError as error:
            _log.warning("queue %s could not be looked after: %s", self._queue.queue, error)

    async def save(self, logbook: LogBook, line: Line, fed_bytes: int = 0) -> None:
        """Append a checkpoint of the shard as it is now. The trim follows when the fold has come to it.

        `fed_bytes`: so much of the feed lies behind what lingers in it.
        """
        state = line.state
        floor = state.needed_floor(state.time_us)
        data = msgspec.msgpack.encode(state.snapshot())  # now: the state goes on at the next await
        covers, grown_bytes = state.at, line.saved_bytes
        tag = records.checkpoint_tag(self._queue.queue, line.shard)
        tags = records.record_tags(self._queue.queue, line.shard, self._queue.shards)
        try:
            if self._is_worth_carrying(line, floor, fed_bytes):
                await self._carry(logbook, line)
            tail = await logbook.check_tail(tag)
            newest = await last_saved(logbook, tag)
            if newest is not None and newest[0].seqnum > covers:
                return  # what it has let go of this one may need
            last = 0 if tail is None else tail.seqnum
            first = 0
            for start in range(0, len(data), PART_BYTES):
                part = records.encode(Part(line.shard, data[start : start + PART_BYTES]))
                last = await logbook.append(part, [tag], when=Expect(tag, last))
                first = first or last
            saved = self._mine[line.shard] = Saved(line.shard, covers, first, floor, grown_bytes)
            await logbook.append(records.encode(saved), (*tags, tag), when=Expect(tag, last))
        except (ConditionFailed, Trimmed):
            pass  # another process was quicker
        except BokiError as error:
            _log.warning("a checkpoint of queue %s could not be written: %s", self._queue.queue, error)
        finally:
            line.is_saving = False

    def saved(self, logbook: LogBook, line: Line, saved: Saved) -> None:
        """The fold has come to a checkpoint: trim, if it is one of ours."""
        line.saved_records = line.saved_bytes = 0
        if self._mine.get(line.shard) == saved:
            del self._mine[line.shard]
            self._queue.spawn(self._trim(logbook, line, saved))

    async def _trim(self, logbook: LogBook, line: Line, saved: Saved) -> None:
        queue = self._queue.queue
        try:
            floor = min(line.state.floor, saved.floor)  # whoever begins from this checkpoint needs what lies above
            await logbook.trim(floor, tag=records.stream_tag(queue, line.shard))
            await logbook.trim(saved.first, tag=records.checkpoint_tag(queue, line.shard))
            if line.state.last_fence:  # the last one stays: an empty tag would say that there never was one
                await logbook.trim(line.state.last_fence, tag=records.fence_tag(queue, line.shard))
            if self._queue.shards > 1:
                await self._trim_feed(logbook, line)
        except BokiError as error:
            _log.warning("queue %s could not be trimmed, and will be after the next checkpoint: %s", queue, error)

    async def _trim_feed(self, logbook: LogBook, line: Line) -> None:
        """The feed can go below what every shard has done without; shards that lie still are brought up first."""
        self._feed_bytes += SAVE_BYTES
        lines = [other for other in self._queue.lines if other.state.at]
        if self._feed_bytes - self._brought_up_at > FEED_BYTES:
            self._brought_up_at = self._feed_bytes
            for other in lines:
                if other.state.floor < line.state.floor and not other.is_saving:
                    other.is_saving = True
                    await self._bring_up(logbook, other)
        await logbook.trim(min(other.state.floor for other in lines), tag=records.feed_tag(self._queue.queue))

    async def _bring_up(self, logbook: LogBook, line: Line) -> None:
        """Nobody acts in that shard: what is too old to be remembered goes by an act that wants nothing."""
        state = line.state
        if state.ops or next(state.takers.deliveries(), None) is not None:
            tick = Act(line.shard, _NOBODY, state.at)
            try:
                tags = records.record_tags(self._queue.queue, line.shard, self._queue.shards)
                await logbook.append(records.encode(tick), tags)
            except BokiError as error:
                _log.warning("shard %d of queue %s could not be brought up: %s", line.shard, self._queue.queue, error)
        await self.save(logbook, line, self._feed_bytes - self._carried_at.get(line.shard, 0))

    # Messages that linger

    def _is_worth_carrying(self, line: Line, floor: int, fed_bytes: int) -> bool:
        """Whether the stream between what lingers and what is new is long enough to be worth a copy."""
        marks = line.state.marks
        if not marks or floor >= marks[-1][1]:
            return False
        spots = _old_spots(line)
        if not spots:
            return False
        before = next(bytes_before for _, seqnum, bytes_before in marks if seqnum >= floor)
        between = marks[-1][2] + line.saved_bytes - before
        return max(between, fed_bytes) >= max(SAVE_BYTES, CARRY_WORTH * sum(_bytes_by_record(spots).values()))

    async def _carry(self, logbook: LogBook, line: Line) -> None:
        """Append messages anew that stand before the last checkpoint."""
        self._carried_at[line.shard] = self._feed_bytes
        tags = records.record_tags(self._queue.queue, line.shard, self._queue.shards)
        for some in _batches(_old_spots(line)):
            bodies = await self._queue.bodies.fetch(logbook, [Delivery(spot, 0, 0, 0) for spot in some])
            found = [body if isinstance(body, tuple) else (LOST, b"") for body in bodies]
            for carry in _carries(line.shard, some, found):
                await logbook.append(records.encode(carry), tags)


def _old_spots(line: Line) -> list[Spot]:
    """What lingers before the last checkpoint, as it stands in the log."""
    newest = line.state.marks[-1][1]
    return sorted((spot for spot in line.state.lingering().values() if spot.place[0] < newest), key=_place)


def _place(spot: Spot) -> tuple[int, int]:
    return spot.place


def _bytes_by_record(spots: Iterable[Spot]) -> dict[int, int]:
    """About how many bytes of each record these messages are. Each counts as the largest of its push, so there is a
    bound: a record has no more than a message may have.
    """
    found: dict[int, int] = {}
    for spot in spots:
        seqnum = spot.place[0]
        found[seqnum] = min(found.get(seqnum, 0) + spot.size_bytes + _SPOT_BYTES, MAX_MESSAGE_BYTES)
    return found


def _batches(spots: list[Spot]) -> Iterator[list[Spot]]:
    """Runs of them that are read at once: of one at least."""
    start = size = 0
    sizes: dict[int, int] = {}
    for index, spot in enumerate(spots):
        seqnum = spot.place[0]
        own = _bytes_by_record([spot])[seqnum]
        grown = min(own, MAX_MESSAGE_BYTES - sizes.get(seqnum, 0))
        if index > start and (size + grown > CARRY_BYTES or index - start == CARRY_COUNT):
            yield spots[start:index]
            start, size, sizes, grown = index, 0, {}, own
        size += grown
        sizes[seqnum] = sizes.get(seqnum, 0) + grown
    if spots:
        yield spots[start:]


def _carries(shard: int, spots: list[Spot], found: list[tuple[int, bytes]]) -> Iterator[Carry]:
    """Records for these messages, none too large."""
    start = size = 0
    for index, (_, body) in enumerate(found):
        if index > start and size + len(body) > PART_BYTES:
            yield _carry_of(shard, spots[start:index], found[start:index])
            start, size = index, 0
        size += len(body)
    yield _carry_of(shard, spots[start:], found[start:])


def _carry_of(shard: int, spots: list[Spot], found: list[tuple[int, bytes]]) -> Carry:
    forms = records.joined([form for form, _ in found])
    return Carry(shard, [spot.pos for spot in spots], forms, [body for _, body in found])
