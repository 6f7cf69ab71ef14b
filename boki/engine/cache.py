"""The record cache and the auxiliary-data cache of an engine: byte-bounded, least recently used goes first.

The record cache keeps batches as they are, by the seqnum of their first record. A batch is ordered whole, so one entry
covers a range of seqnums. What readers get are **slabs**: a whole chunk without touching it, or a chunk of the records
asked for. Which records may be seen is the index's business; only those are asked for here.

A batch of one small record takes more memory decoded than as bytes. So what was used least recently is kept as bytes
alone, and decoded again when somebody asks for it: so a full cache holds about twice as many small records.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from boki.errors import CorruptData
from boki.log.batch import Batch
from boki.log.chunk import Chunk
from boki.log.cuts import pack_column
from boki.log.operations import Slab

_BATCH_BYTES: Final = 250
_DECODED_BYTES: Final = 100
_AUX_BYTES: Final = 180
"""What an entry holds beside its data: numbers, places in tables, objects."""

_SPARE_STARTS: Final = 1000
_LEAST_DECODED_BYTES: Final = 1 << 20
_DECODED_SHARE: Final = 8
"""One part in this many of the budget may be decoded forms."""


class AuxCache:
    """Auxiliary data by seqnum, within `size_bytes`."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._data: OrderedDict[int, bytes] = OrderedDict()
        self.used_bytes = 0

    def set(self, seqnum: int, data: bytes) -> None:
        """Keep `data` beside the record, instead of what was there. What is larger than the budget is not kept."""
        self.drop(seqnum)
        if len(data) + _AUX_BYTES > self._size_bytes:
            return
        self._data[seqnum] = data
        self.used_bytes += len(data) + _AUX_BYTES
        while self.used_bytes > self._size_bytes:
            self.drop(next(iter(self._data)))

    def get(self, seqnum: int) -> bytes | None:
        """What was kept, if it is still here."""
        data = self._data.get(seqnum)
        if data is not None:
            self._data.move_to_end(seqnum)
        return data

    def drop(self, seqnum: int) -> None:
        """Forget one entry."""
        data = self._data.pop(seqnum, None)
        if data is not None:
            self.used_bytes -= len(data) + _AUX_BYTES

    def of(self, seqnums: array[int]) -> dict[int, bytes]:
        """The entries of these records."""
        if not self._data:
            return {}
        kept = self._data
        found = [seqnum for seqnum in seqnums if seqnum in kept]
        for seqnum in found:
            kept.move_to_end(seqnum)
        return {seqnum: kept[seqnum] for seqnum in found}


class RecordCache:
    """Batches by seqnum, within `size_bytes`. A batch larger than all of it is not kept."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._batches: OrderedDict[int, Batch] = OrderedDict()
        self._decoded: OrderedDict[int, int] = OrderedDict()
        """What the decoded forms of batches take, which were used most recently."""
        self._decoded_bytes = 0
        self._most_decoded_bytes = max(_LEAST_DECODED_BYTES, size_bytes // _DECODED_SHARE)
        self._unchecked: set[int] = set()
        self._starts: list[int] = []
        """Ascending, so that a seqnum finds its batch. Those of dropped batches go later, many at once."""
        self.used_bytes = 0
        self.hits = 0
        self.misses = 0

    def add(self, first_seqnum: int, batch: Batch, *, is_checked: bool = True) -> None:
        """Keep a batch whose first record has that seqnum. Payloads that nobody has checked are when they are read."""
        decoded_bytes = _decoded_bytes(batch)
        if first_seqnum in self._batches or _held_bytes(batch) + decoded_bytes > self._size_bytes:
            return
        self._batches[first_seqnum] = batch
        if not is_checked:
            self._unchecked.add(first_seqnum)
        self._add_start(first_seqnum)
        self.used_bytes += _held_bytes(batch)
        self._count_decoded(first_seqnum, decoded_bytes)
        if len(self._starts) > 2 * len(self._batches) + _SPARE_STARTS:
            self._starts = sorted(self._batches)

    def _count_decoded(self, first_seqnum: int, decoded_bytes: int) -> None:
        """This batch, the last one used, is decoded now: others make room for that."""
        self._decoded[first_seqnum] = decoded_bytes
        self._decoded_bytes += decoded_bytes
        self.used_bytes += decoded_bytes
        while self._decoded_bytes > self._most_decoded_bytes and len(self._decoded) > 1:
            oldest = next(iter(self._decoded))
            self._forget_decoded(oldest)
            self._batches[oldest].forget_chunks()
        while self.used_bytes > self._size_bytes and len(self._batches) > 1:
            self._drop(next(iter(self._batches)))

    def _forget_decoded(self, first_seqnum: int) -> None:
        decoded_bytes = self._decoded.pop(first_seqnum, 0)
        self._decoded_bytes -= decoded_bytes
        self.used_bytes -= decoded_bytes

    def _drop(self, first_seqnum: int) -> None:
        self.used_bytes -= _held_bytes(self._batches.pop(first_seqnum))
        self._forget_decoded(first_seqnum)
        self._unchecked.discard(first_seqnum)

    def _add_start(self, first_seqnum: int) -> None:
        starts = self._starts
        if not starts or first_seqnum > starts[-1]:
            starts.append(first_seqnum)
            return
        at = bisect_left(starts, first_seqnum)
        if starts[at] != first_seqnum:
            starts.insert(at, first_seqnum)

    @property
    def size_bytes(self) -> int:
        """The budget."""
        return self._size_bytes

    def has(self, seqnum: int) -> bool:
        """Whether a batch that covers `seqnum` is here, checked or not."""
        at = bisect_right(self._starts, seqnum) - 1
        batch = self._batches.get(self._starts[at]) if at >= 0 else None
        return batch is not None and seqnum < self._starts[at] + batch.header.record_count

    def find(self, seqnum: int) -> tuple[int, Batch] | None:
        """The batch that covers `seqnum`, with the seqnum of its first record."""
        at = bisect_right(self._starts, seqnum) - 1
        if at >= 0:
            first = self._starts[at]
            batch = self._batches.get(first)
            if batch is not None and seqnum < first + batch.header.record_count and self._is_sound(first, batch):
                self._batches.move_to_end(first)
                if first in self._decoded:
                    self._decoded.move_to_end(first)
                else:
                    self._count_decoded(first, _decoded_bytes(batch))
                self.hits += 1
                return first, batch
        self.misses += 1
        return None

    def _is_sound(self, first_seqnum: int, batch: Batch) -> bool:
        """Whether its payloads pass their checksums; one that does not is dropped, to be fetched from a replica."""
        if first_seqnum in self._unchecked:
            try:
                batch.verify()
            except CorruptData:
                self._drop(first_seqnum)
                return False
            self._unchecked.remove(first_seqnum)
        return True

    def collect(
        self,
        seqnums: array[int],
        max_bytes: int,
        time_of: Callable[[int], int],
        aux: AuxCache,
        *,
        whole_chunks: bool = False,
    ) -> tuple[list[Slab], int]:
        """Slabs of the longest prefix of `seqnums` (ascending) that is here, and how many of them that covers.

        Ends after the record that crosses `max_bytes`, and covers at least one record if the first is here. Records
        whose payload was freed are covered and left out. With `whole_chunks`, what is half full ends before a chunk
        that would have to be cut, twice: here, and where the next page begins.
        """
        slabs: list[Slab] = []
        at = size_bytes = 0
        count = len(seqnums)
        while at < count and size_bytes < max_bytes:
            seqnum = seqnums[at]
            found = self.find(seqnum)
            if found is None:
                break
            first, batch = found
            number, index = batch.find(seqnum - first)
            chunk = batch.chunks[number]
            base = seqnum - index
            stop = at + 1
            if stop < count:
                end = bisect_left(seqnums, base + chunk.count, stop)
                stop = _within(chunk, seqnums, at, end, base, max_bytes - size_bytes)
                is_cut = stop < end or base + chunk.count > seqnums[-1] + 1
                if whole_chunks and is_cut and (2 * at >= count or 2 * size_bytes >= max_bytes):
                    break
            slab = _slab(chunk, seqnums[at:stop], base, time_of(seqnum), aux)
            if slab is not None:
                slabs.append(slab)
                size_bytes += len(slab.chunk)
            at = stop
        return slabs, at


def _within(chunk: Chunk, seqnums: array[int], start: int, stop: int, base: int, max_bytes: int) -> int:
    """Where to end so that the payloads are not much more than `max_bytes`."""
    if chunk.size <= max_bytes:
        return stop
    sizes = chunk.payload_sizes()
    size_bytes = 0
    for at in range(start, stop):
        size_bytes += sizes[seqnums[at] - base]
        if size_bytes >= max_bytes:
            return at + 1
    return stop


def _slab(chunk: Chunk, seqnums: array[int], base: int, time_us: int, aux: AuxCache) -> Slab | None:
    """The records of a chunk at these seqnums; None if all of them were freed."""
    if chunk.has_freed:
        seqnums = array("q", [seqnum for seqnum in seqnums if not chunk.is_freed(seqnum - base)])
        if not seqnums:
            return None
    first, last = seqnums[0] - base, seqnums[-1] - base
    is_run = last - first + 1 == len(seqnums)
    data = chunk.select(range(first, last + 1) if is_run else [seqnum - base for seqnum in seqnums])
    return Slab(pack_column(seqnums), time_us, data, aux.of(seqnums))


def _held_bytes(batch: Batch) -> int:
    return len(batch.data) + _BATCH_BYTES


def _decoded_bytes(batch: Batch) -> int:
    return _DECODED_BYTES + sum(chunk.decoded_bytes for chunk in batch.chunks)
