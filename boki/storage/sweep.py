"""Giving trimmed space back, a little at a time.

A sweep goes over the batches in order, a megabyte a tick. A batch whose records are all free is deleted; one that is
mostly free is rewritten with those payloads dropped, under the same key and numbers; a batch above the highest floor
ends its shard. A sweep begins when a floor has moved, and begins anew if one moved meanwhile.

A floor is kept while a record is left below it, or it would rise again. So a sweep notes the floors under which it saw
surviving records; those that it saw none for are dropped when it is done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from boki.effects import Delete, Effect, Load, Put, Store, Trace
from boki.errors import BokiError
from boki.log.batch import Batch, BatchHeader, encode_batch
from boki.log.chunk import Chunk
from boki.log.floors import Floors
from boki.storage.shards import BATCHES_STOP, ShardKey, after_shard, batch_key, split_batch_key

_STEP_BYTES: Final = 1 << 20
_PAUSE_US: Final = 2_000_000
_START: Final = batch_key((0, 0, 0), 0)


@dataclass(frozen=True, slots=True)
class SweepStep:
    """The token of a sweep's load."""


class Sweep:
    """Frees what `floors` allow. `seqnum_of(shard, local id)` is None for what is not ordered yet."""

    def __init__(self, floors: Floors, seqnum_of: Callable[[ShardKey, int], int | None]) -> None:
        self._floors = floors
        self._seqnum_of = seqnum_of
        self._requested = bool(floors.rows())
        self._cursor: bytes | None = None
        self._is_loading = False
        self._next_at = 0
        self._goal: list[tuple[str, str | None, int]] = []
        self._standing: set[tuple[str, str | None]] = set()

    def request(self) -> None:
        """A floor has moved."""
        self._requested = True

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to free."""
        return not self._requested and self._cursor is None

    def tick(self, now_us: int) -> Iterable[Effect]:
        """Begin a sweep, or take its next step."""
        if self._cursor is None:
            if not self._requested or now_us < self._next_at:
                return ()
            self._requested = False
            self._next_at = now_us + _PAUSE_US
            self._cursor, self._goal, self._standing = _START, self._floors.rows(), set()
        if self._is_loading:
            return ()
        self._is_loading = True
        return (Load(SweepStep(), self._cursor, self._cursor, BATCHES_STOP, _STEP_BYTES),)

    def advance(self, rows: Sequence[tuple[bytes, bytes]], error: str) -> Iterable[Effect]:
        """Look at the batches that were loaded."""
        self._is_loading = False
        if error:
            self._cursor = None
            return (Trace(logging.ERROR, f"cannot free trimmed space: {error}"),)
        writes: list[Put | Delete] = []
        highest = self._floors.highest
        for key, value in rows:
            shard, first_lid = split_batch_key(key)
            first_seqnum = self._seqnum_of(shard, first_lid)
            if first_seqnum is None or first_seqnum >= highest:
                self._cursor = after_shard(shard)
                break
            self._cursor = key + b"\x00"
            try:
                writes += self._free(key, value, first_seqnum)
            except BokiError as damage:
                return (Trace(logging.ERROR, f"cannot free batch {first_lid} of shard {shard[2]}: {damage}"),)
        if not rows:
            self._cursor = None
            self._floors.drop(row for row in self._goal if row[:2] not in self._standing)
        return (Store(writes),) if writes else ()

    def _free(self, key: bytes, value: bytes, first_seqnum: int) -> Iterable[Put | Delete]:
        batch = Batch(value)
        chunks: list[tuple[bytes, int]] = []
        freed_bytes = kept_count = 0
        standing: set[tuple[str, str | None]] = set()
        seqnum = first_seqnum
        for chunk in batch.chunks:
            free: list[int] = []
            if self._floors.touches(chunk.book):
                sizes = chunk.payload_sizes()
                for i in range(chunk.count):
                    tags = chunk.tags(i)
                    if self._floors.is_free(chunk.book, tags, seqnum + i):
                        free.append(i)
                        freed_bytes += sizes[i]
                    if not chunk.is_freed(i):
                        standing.update(self._floors.covering(chunk.book, tags, seqnum + i))
            kept_count += chunk.count - len(free)
            chunks.append((chunk.drop_payloads(free) if free else chunk.data, chunk.count))
            seqnum += chunk.count
        if kept_count == 0:
            return (Delete(key, key + b"\x00"),)
        if 2 * freed_bytes < len(value):
            self._standing |= standing
            return ()
        self._note_standing(chunks, first_seqnum)
        return (Put(key, self._rewritten(batch.header, chunks)),)

    def _note_standing(self, chunks: Sequence[tuple[bytes, int]], first_seqnum: int) -> None:
        """What is left of a rewritten batch still needs the floors above it."""
        seqnum = first_seqnum
        for data, count in chunks:
            chunk = Chunk(data)
            for i in range(count):
                if not chunk.is_freed(i):
                    self._standing.update(self._floors.covering(chunk.book, chunk.tags(i), seqnum + i))
            seqnum += count

    @staticmethod
    def _rewritten(header: BatchHeader, chunks: Sequence[tuple[bytes, int]]) -> bytes:
        return encode_batch(header.term, header.log, header.shard, header.first_lid, chunks)
