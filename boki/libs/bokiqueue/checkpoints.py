"""What is read besides what comes: a queue's settings, the newest checkpoint of a shard, pushes that were passed."""

from __future__ import annotations

import asyncio
from typing import Final

from boki import CorruptData, LogBook, NotFound, Record, Trimmed, Unavailable
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.backlog import Segment
from boki.libs.bokiqueue.records import Part, Push, Saved, Settings, Setup
from boki.libs.bokiqueue.snapshots import Snapshot
from boki.libs.bokiqueue.state import ShardState
from boki.libs.bokiqueue.validity import belongs, sound, sound_snapshot

TRIES: Final = 20
"""So often a newer checkpoint may take the place of the one that is being read."""
PAUSE_S: Final = 0.02
_PAGE_RECORDS: Final = 1_000


async def newest_state(logbook: LogBook, queue: str, shard: int) -> tuple[ShardState, int]:
    """The state of the newest checkpoint, and where to read on; an empty one from the beginning if there is none."""
    for tries in range(TRIES):
        try:
            return await _newest_state(logbook, queue, shard)
        except (Trimmed, NotFound):
            await asyncio.sleep(PAUSE_S * tries)
    raise Unavailable(
        f"checkpoints of queue {queue!r} are written faster than this process reads them: try again", queue=queue
    )


async def _newest_state(logbook: LogBook, queue: str, shard: int) -> tuple[ShardState, int]:
    tag = records.checkpoint_tag(queue, shard)
    tail = await logbook.check_tail(tag)
    found = await _saved_until(logbook, tag, tail)
    snapshot: Snapshot | None = None
    skipped = 0
    while found is not None:
        record, saved = found
        snapshot = await _snapshot(logbook, tag, record.seqnum, saved) if saved.shard == shard else None
        if snapshot is not None:
            break
        skipped = skipped or record.seqnum
        found = await _saved_until(logbook, tag, await logbook.read_prev(tag, max_seqnum=record.seqnum - 1))
    if skipped or found is None:
        await _check_tail(logbook, tag, tail)  # else a newer one was completed meanwhile, and those before it trimmed
    if snapshot is not None:
        return ShardState.restored(shard, snapshot), snapshot.resume
    if skipped and (await logbook.read(records.stream_tag(queue, shard), limit=1)).first_seqnum:
        raise CorruptData(
            f"the checkpoint of queue {queue!r} under tag {tag!r} at {skipped} cannot be read, there is none before "
            "it, and the records that it covers were trimmed"
        )
    return ShardState(shard), 0


async def _snapshot(logbook: LogBook, tag: str, stop: int, saved: Saved) -> Snapshot | None:
    """The state in the parts of a checkpoint; None if they are not all there, or are not valid."""
    parts: list[bytes] = []
    start = saved.first
    while start < stop:
        page = await logbook.read(tag, start=start, stop=stop)
        if page.first_seqnum > saved.first:
            return None
        parts += [part.data for one in page.records if isinstance(part := sound(one), Part)]
        start = page.next_start if page.records else stop
    return sound_snapshot(b"".join(parts), saved)


async def last_saved(logbook: LogBook, tag: str) -> tuple[Record, Saved] | None:
    """The last record of that tag that completes a checkpoint.

    `Trimmed` if a newer one was completed while this looked, and has taken the others' place: try again.
    """
    tail = await logbook.check_tail(tag)
    found = await _saved_until(logbook, tag, tail)
    if found is None:
        await _check_tail(logbook, tag, tail)
    return found


async def _saved_until(logbook: LogBook, tag: str, record: Record | None) -> tuple[Record, Saved] | None:
    """The last record of that tag, up to this one, that says that it completes a checkpoint."""
    while record is not None:
        kind = sound(record)
        if isinstance(kind, Saved):
            return record, kind
        record = await logbook.read_prev(tag, max_seqnum=record.seqnum - 1)
    return None


async def _check_tail(logbook: LogBook, tag: str, tail: Record | None) -> None:
    newest = None if tail is None else await logbook.check_tail(tag)
    if newest is not None and tail is not None and newest.seqnum > tail.seqnum:
        raise Trimmed(f"a newer checkpoint under tag {tag!r} may have taken the place of those before it: try again")


async def newest_settings(logbook: LogBook, queue: str, *, fresh: bool = False) -> tuple[int, Settings | None, int]:
    """The last record of the settings' tag, 0 if there is none; the queue's settings, None if there are none; and the
    version of their record, which all who read the queue know.

    The first settings of a queue say how many shards it has: records that say otherwise later are passed by.
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
        page = await logbook.read(tag, start=start, stop=stop, limit=_PAGE_RECORDS)
        kept_from = max(kept_from, page.first_seqnum)
        for record in page.records:
            kind = sound(record)
            if isinstance(kind, Push) and kind.shard == shard and belongs(kind, record.tags, queue, shards):
                segments.append(Segment.of(record.seqnum, 0, record.time, kind))
        if not page.records:
            break
        start = page.next_start
    return segments, kept_from
