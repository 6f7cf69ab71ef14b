"""Where a process begins: the newest checkpoint of a shard."""

from __future__ import annotations

import msgspec

from boki import LogBook, NotFound, Trimmed
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.records import Kind, Part, Saved
from boki.libs.bokiqueue.snapshots import Snapshot
from boki.libs.bokiqueue.state import ShardState


async def newest_state(logbook: LogBook, queue: str, shard: int) -> tuple[ShardState, int]:
    """The state of the newest checkpoint, and where to read on; an empty one from the beginning if there is none."""
    tag = records.checkpoint_tag(queue, shard)
    while True:
        try:
            record = await logbook.check_tail(tag)
            saved: Kind | None = None if record is None else records.decode(record.data)
            while record is not None and not isinstance(saved, Saved):
                record = await logbook.read_prev(tag, max_seqnum=record.seqnum - 1)
                saved = None if record is None else records.decode(record.data)
            if record is None or not isinstance(saved, Saved):
                return ShardState(shard), 0
            parts: list[bytes] = []
            start = saved.first
            while start < record.seqnum:
                page = await logbook.read(tag, start=start, stop=record.seqnum)
                parts += [part.data for one in page.records if isinstance(part := records.decode(one.data), Part)]
                if page.first_seqnum > saved.first:
                    raise Trimmed("a newer checkpoint has taken its place")
                start = page.next_start if page.records else record.seqnum
            snapshot = msgspec.msgpack.decode(b"".join(parts), type=Snapshot)
            return ShardState.restored(shard, snapshot), snapshot.resume
        except (Trimmed, NotFound):
            continue
