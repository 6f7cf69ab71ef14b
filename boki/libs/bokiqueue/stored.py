"""What the log has of a queue: its settings, its past, and its checkpoints."""

from __future__ import annotations

import asyncio

from boki import LogBook, Record, Trimmed
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.groups import Segment
from boki.libs.bokiqueue.records import Push, Saved, Settings, Setup, belongs, sound
from boki.libs.bokiqueue.state import ShardState, sound_snapshot
from boki.libs.fold.checkpoints import Checkpoints, End, Part
from boki.libs.fold.follower import PAGE_RECORDS
from boki.libs.fold.steps import run


async def record_at(logbook: LogBook, tag: str, seqnum: int) -> Record:
    """The record with that seqnum, which stands under a system tag. A trim or a retention of the whole book leaves it
    to that tag alone: a lookup by seqnum says `Trimmed` then, and only the tag knows whether it is gone.
    """
    try:
        return await logbook.get(seqnum)
    except Trimmed:
        page = await logbook.read(tag, start=seqnum, stop=seqnum + 1, limit=1)
        if not page.records:
            raise
        return page.records[0]


async def history(
    logbook: LogBook, queue: str, shard: int, shards: int, start: int, stop: int
) -> tuple[list[Segment], int]:
    """The pushes in a part of the stream that was passed before, and from where on it is still there (0: all of it).

    Without their bodies: all that is retained may be many times what a process has room for.
    """
    tag = records.stream_tag(queue, shard)
    segments: list[Segment] = []
    kept_from = 0
    while start < stop:
        page = await logbook.read(tag, start=start, stop=stop, limit=PAGE_RECORDS)
        kept_from = max(kept_from, page.first_seqnum)
        for record in page.records:
            kind = sound(record)
            if isinstance(kind, Push) and kind.shard == shard and belongs(kind, record.tags, queue, shards):
                segments.append(Segment.of(record.seqnum, 0, record.time, kind))
        if not page.records:
            break
        start = page.next_start
    return segments, kept_from


async def newest_settings(logbook: LogBook, queue: str, *, fresh: bool = False) -> tuple[int, Settings | None, int]:
    """The last record of the settings' tag, 0 if there is none; the queue's settings, None if there are none; and the
    version of their record, which all who read the queue know.

    The first settings of a queue say how many shards it has: records that say otherwise later are skipped.
    `VersionTooNew`
    """
    tag = records.settings_tag(queue)
    record, first = await asyncio.gather(logbook.check_tail(tag, fresh=fresh), logbook.read_next(tag))
    last = 0 if record is None else record.seqnum
    shards = 0
    while first is not None and not shards and first.seqnum < last:
        kind = sound(first)
        shards = kind.settings.shards if isinstance(kind, Setup) else 0
        first = None if shards else await logbook.read_next(tag, min_seqnum=first.next_seqnum)
    while record is not None:
        if records.is_newer(record.data):
            records.decode(record.data)  # refuses the queue by name
        kind = sound(record)
        if isinstance(kind, Setup) and shards in (0, kind.settings.shards):
            return last, kind.settings, record.data[0]
        record = await logbook.read_prev(tag, max_seqnum=record.seqnum - 1)
    return last, None, 0


# Checkpoints, as a queue writes them


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


def checkpoints_of(queue: str, shard: int, grown_bytes: int = 0) -> Checkpoints[tuple[ShardState, int]]:
    """The checkpoints of a shard: of each its state, and where to read on."""

    def restored(data: bytes, end: End) -> tuple[ShardState, int] | None:
        snapshot = sound_snapshot(data, end.covers)
        return None if snapshot is None else (ShardState.restored(shard, snapshot), snapshot.resume)

    stream, tag = records.stream_tag(queue, shard), records.checkpoint_tag(queue, shard)
    return Checkpoints(stream, tag, restored, _Form(shard, grown_bytes))


async def newest_state(logbook: LogBook, queue: str, shard: int) -> tuple[ShardState, int]:
    """The state of the newest checkpoint, an empty one if there is none, and where to read on.

    One that needs what the stream has not any more is skipped, if no newer one has taken its place: it was on its way
    while the book was deleted, and says what was before.
    """
    earlier: End | None = None
    while (loaded := await run(checkpoints_of(queue, shard).newest(), logbook)) is not None:
        stream = await logbook.read(records.stream_tag(queue, shard), stop=1, limit=1)
        if stream.first_seqnum <= loaded.state[1]:
            return loaded.state
        if loaded.end == earlier:
            break
        earlier = loaded.end
    return ShardState(shard), 0
