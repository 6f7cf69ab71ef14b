"""Giving trimmed space back, a little at a time.

A sweep goes over the batches in order, a little a tick. A batch whose records are all free is deleted, once the engines
have saved an index that covers it: until then a start may have to read its tags again, to come to the same verdicts,
and only its payloads are dropped. So are those of a batch that is mostly free, under the same key and numbers. A batch
above the highest floor ends its shard. A sweep begins when a floor has moved, or when more has been saved.

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

_STEP_BYTES: Final = 256 << 10
_PAUSE_US: Final = 2_000_000
_START: Final = batch_key((0, 0, 0), 0)


@dataclass(frozen=True, slots=True)
class SweepStep:
    """The token of a sweep's load."""


class Sweep:
    """Frees what `floors` allow. `seqnum_of(shard, local id)` is None for what is not ordered yet.

    `is_saved(shard, seqnum)`: no index will ask for that record again.
    """

    def __init__(
        self,
        floors: Floors,
        seqnum_of: Callable[[ShardKey, int], int | None],
        is_saved: Callable[[ShardKey, int], bool],
        waits_below: int = 0,
    ) -> None:
        self._floors = floors
        self._seqnum_of = seqnum_of
        self._is_saved = is_saved
        self.waits_below = waits_below
        """Batches below this seqnum are free and wait for an index to be saved; 0: none."""
        self._limit = 0
        self._requested = bool(floors.rows())
        self._cursor: bytes | None = None
        self._is_loading = False
        self._next_at = 0
        self._goal: list[tuple[str, str | None, int]] = []
        self._standing: set[tuple[str, str | None]] = set()
        self._is_damaged = False

    def request(self) -> None:
        """A floor has moved."""
        self._requested = True

    def look_again(self) -> None:
        """More has been saved: what had to wait for that may be deleted."""
        self._requested |= self.waits_below > 0

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
            self._limit, self.waits_below = max(self._floors.highest, self.waits_below), 0
            self._next_at = now_us + _PAUSE_US
            self._cursor, self._goal, self._standing = _START, self._floors.rows(), set()
            self._is_damaged = False
        if self._is_loading:
            return ()
        self._is_loading = True
        return (Load(SweepStep(), self._cursor, self._cursor, BATCHES_STOP, _STEP_BYTES),)

    def advance(self, rows: Sequence[tuple[bytes, bytes]], error: str) -> tuple[list[Effect], bool]:
        """Look at the batches that were loaded. → what to do, and whether that deletes any"""
        self._is_loading = False
        if error:
            self._cursor = None
            return [Trace(logging.ERROR, f"cannot free trimmed space: {error}")], False
        writes: list[Put | Delete] = []
        effects: list[Effect] = []
        for key, value in rows:
            shard, first_lid = split_batch_key(key)
            first_seqnum = self._seqnum_of(shard, first_lid)
            if first_seqnum is None or first_seqnum >= self._limit:
                self._cursor = after_shard(shard)
                break
            self._cursor = key + b"\x00"
            try:
                writes += self._free(key, value, first_seqnum)
            except BokiError as damage:
                self._is_damaged = True
                effects.append(
                    Trace(
                        logging.ERROR, f"cannot free batch {first_lid} of shard {shard[2]}, term {shard[0]}: {damage}"
                    )
                )
        if not rows:
            self._cursor = None
            if not self._is_damaged:  # a floor may stand over records that could not be looked at
                self._floors.drop(row for row in self._goal if row[:2] not in self._standing)
        if writes:
            effects.append(Store(writes))
        return effects, any(isinstance(write, Delete) for write in writes)

    def _free(self, key: bytes, value: bytes, first_seqnum: int) -> Iterable[Put | Delete]:
        batch = Batch(value)
        chunks: list[tuple[bytes, int]] = []
        freed_bytes = kept_count = 0
        standing: set[tuple[str, str | None]] = set()
        seqnum = first_seqnum
        for chunk in batch.chunks:
            free: list[int] = []
            sizes = chunk.payload_sizes()
            for i in range(chunk.count):
                tags = chunk.tags(i)
                if chunk.is_freed(i):
                    free.append(i)
                    continue
                standing.update(self._floors.covering(chunk.book, tags, seqnum + i))
                if self._floors.is_free(chunk.book, tags, seqnum + i):
                    free.append(i)
                    freed_bytes += sizes[i]
            kept_count += chunk.count - len(free)
            chunks.append((chunk.drop_payloads(free) if free else chunk.data, chunk.count))
            seqnum += chunk.count
        if kept_count == 0:
            if self._is_saved(split_batch_key(key)[0], seqnum - 1):
                return (Delete(key, key + b"\x00"),)
            self.waits_below = max(self.waits_below, seqnum)
        if not freed_bytes or (kept_count and 2 * freed_bytes < len(value)):
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
