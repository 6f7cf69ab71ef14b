"""What is read besides what comes: a queue's settings, the newest checkpoint of a shard, pushes that were passed."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from boki import CorruptData, LogBook, NotFound, Record, Trimmed, Unavailable
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.backlog import Segment
from boki.libs.bokiqueue.records import Part, Push, Saved, Settings, Setup
from boki.libs.bokiqueue.snapshots import Snapshot
from boki.libs.bokiqueue.state import ShardState

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
    found = await last_saved(logbook, tag)
    if found is None:
        return ShardState(shard), 0
    record, saved = found
    parts: list[bytes] = []
    start = saved.first
    while start < record.seqnum:
        page = await logbook.read(tag, start=start, stop=record.seqnum)
        if page.first_seqnum > saved.first:
            raise Trimmed("a newer checkpoint has taken its place")
        parts += [part.data for one in page.records if isinstance(part := records.decode_own(one.data), Part)]
        start = page.next_start if page.records else record.seqnum
    try:
        snapshot = msgspec.msgpack.decode(b"".join(parts), type=Snapshot)
    except msgspec.DecodeError as error:
        raise CorruptData(
            f"the checkpoint of queue {queue!r} in the {len(parts)} records under tag {tag!r} from {saved.first} to "
            f"{record.seqnum} cannot be read: {error}"
        ) from None
    return ShardState.restored(shard, snapshot), snapshot.resume


async def last_saved(logbook: LogBook, tag: str) -> tuple[Record, Saved] | None:
    """The last record of that tag that completes a checkpoint.

    `Trimmed` if a newer one was completed while this looked, and has taken the others' place: try again.
    """
    tail = record = await logbook.check_tail(tag)
    while record is not None:
        kind = records.decode_own(record.data)
        if isinstance(kind, Saved):
            return record, kind
        record = await logbook.read_prev(tag, max_seqnum=record.seqnum - 1)
    newest = None if tail is None else await logbook.check_tail(tag)
    if tail is not None and newest is not None and newest.seqnum > tail.seqnum:
        raise Trimmed(f"a newer checkpoint under tag {tag!r} may have taken the place of those before it: try again")
    return None


async def newest_settings(logbook: LogBook, queue: str, *, fresh: bool = False) -> tuple[int, Settings | None]:
    """The last record of the settings' tag, 0 if there is none, and the queue's settings, None if there are none."""
    tag = records.settings_tag(queue)
    record = await logbook.check_tail(tag, fresh=fresh)
    last = 0 if record is None else record.seqnum
    while record is not None:
        kind = records.decode_own(record.data)
        if isinstance(kind, Setup):
            return last, kind.settings
        record = await logbook.read_prev(tag, max_seqnum=record.seqnum - 1)
    return last, None


async def history(logbook: LogBook, queue: str, shard: int, start: int, stop: int) -> tuple[list[Segment], int]:
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
            kind = records.decode_own(record.data)
            if isinstance(kind, Push):
                segments.append(Segment.of(record.seqnum, 0, record.time, kind))
        if not page.records:
            break
        start = page.next_start
    return segments, kept_from
