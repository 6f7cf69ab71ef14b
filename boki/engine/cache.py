"""The record cache and the auxiliary-data cache of an engine: byte-bounded, least recently used goes first.

The record cache keeps batches as they are, by the seqnum of their first record. A batch is ordered whole, so one entry
covers a range of seqnums. What readers get are **slabs**: a whole chunk without touching it, or a chunk of the records
asked for. Which records may be seen is the index's business; only those are asked for here.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from boki.log.batch import Batch
from boki.log.chunk import Chunk
from boki.log.operations import Slab

_ENTRY_BYTES: Final = 400
_CHUNK_BYTES: Final = 600
"""What a decoded chunk holds beside its bytes: the object, its string table."""


class AuxCache:
    """Auxiliary data by seqnum, within `size_bytes`."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._data: OrderedDict[int, bytes] = OrderedDict()
        self.used_bytes = 0

    def set(self, seqnum: int, data: bytes) -> None:
        """Keep `data` beside the record, instead of what was there."""
        self.drop(seqnum)
        self._data[seqnum] = data
        self.used_bytes += len(data) + _ENTRY_BYTES
        while self.used_bytes > self._size_bytes and self._data:
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
            self.used_bytes -= len(data) + _ENTRY_BYTES

    def of(self, seqnums: array[int]) -> dict[int, bytes]:
        """The entries of these records."""
        if not self._data:
            return {}
        return {seqnum: data for seqnum in seqnums if (data := self.get(seqnum)) is not None}


class RecordCache:
    """Batches by seqnum, within `size_bytes`. A batch larger than all of it is not kept."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._batches: OrderedDict[int, Batch] = OrderedDict()
        self._starts: list[int] = []
        self.used_bytes = 0
        self.hits = 0
        self.misses = 0

    def add(self, first_seqnum: int, batch: Batch) -> None:
        """Keep a batch whose first record has that seqnum."""
        size_bytes = _held_bytes(batch)
        if first_seqnum in self._batches or size_bytes > self._size_bytes:
            return
        self._batches[first_seqnum] = batch
        if not self._starts or first_seqnum > self._starts[-1]:
            self._starts.append(first_seqnum)
        else:
            insort(self._starts, first_seqnum)
        self.used_bytes += size_bytes
        while self.used_bytes > self._size_bytes:
            oldest, dropped = self._batches.popitem(last=False)
            self.used_bytes -= _held_bytes(dropped)
            del self._starts[bisect_right(self._starts, oldest) - 1]

    def find(self, seqnum: int) -> tuple[int, Batch] | None:
        """The batch that covers `seqnum`, with the seqnum of its first record."""
        at = bisect_right(self._starts, seqnum) - 1
        if at >= 0:
            first = self._starts[at]
            batch = self._batches[first]
            if seqnum < first + batch.header.record_count:
                self._batches.move_to_end(first)
                self.hits += 1
                return first, batch
        self.misses += 1
        return None

    def collect(
        self, seqnums: array[int], max_bytes: int, time_of: Callable[[int], int], aux: AuxCache
    ) -> tuple[list[Slab], int]:
        """Slabs of the longest prefix of `seqnums` (ascending) that is here, and how many of them that covers.

        Ends after the record that crosses `max_bytes`, and covers at least one record if the first is here. Records
        whose payload was freed are covered and left out.
        """
        slabs: list[Slab] = []
        at = size_bytes = 0
        count = len(seqnums)
        while at < count and size_bytes < max_bytes:
            found = self.find(seqnums[at])
            if found is None:
                break
            first, batch = found
            number, index = batch.find(seqnums[at] - first)
            chunk = batch.chunks[number]
            base = seqnums[at] - index
            stop = at + 1
            if seqnums[count - 1] - base < chunk.count and count - at > 1:
                stop = count
            else:
                while stop < count and seqnums[stop] - base < chunk.count:
                    stop += 1
            stop = _within(chunk, seqnums, at, stop, base, max_bytes - size_bytes)
            slab = _slab(chunk, seqnums[at:stop], base, time_of(seqnums[at]), aux)
            if slab is not None:
                slabs.append(slab)
                size_bytes += len(slab.chunk)
            at = stop
        return slabs, at


def _within(chunk: Chunk, seqnums: array[int], start: int, stop: int, base: int, max_bytes: int) -> int:
    """Where to end so that the payloads are not much more than `max_bytes`."""
    if chunk.size <= max_bytes or stop - start == 1:
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
    indexes = [seqnum - base for seqnum in seqnums]
    if chunk.has_freed:
        indexes = [index for index in indexes if not chunk.is_freed(index)]
        if not indexes:
            return None
        seqnums = array("q", [base + index for index in indexes])
    return Slab(seqnums.tobytes(), time_us, chunk.select(indexes), aux.of(seqnums))


def _held_bytes(batch: Batch) -> int:
    return len(batch.data) + _ENTRY_BYTES + _CHUNK_BYTES * batch.header.chunk_count
