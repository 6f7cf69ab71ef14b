"""Pages as Arrow columns: what a chunk holds column by column becomes columns again, without an object per record.

A page is a list of slabs, each a chunk and the seqnums of its records. Large chunks are turned by numpy and Arrow,
whose calls cost the same for one record as for thousands; small ones, such as single appends make, are gathered first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from boki.log.chunk import KEYED, Chunk
from boki.log.operations import Slab
from boki.log.record import Record

SINK_TAG_PREFIX: Final = "!spark:"
"""The tags of the records that a sink keeps its place with; no reader of rows wants them."""
LEDGER: Final = "spark:sinks"
"""The book in which sinks note their commits: the last one of each query, by its id as a tag."""
_SMALL: Final = 24
"""Chunks of so many records are gathered before they are turned into columns."""
_TIME: Final = pa.timestamp("us", tz="UTC")
_TAGS: Final = pa.list_(pa.field("element", pa.string(), nullable=True))
FIELDS: Final = ("seqnum", "book", "time", "tags", "data")
TYPES: Final = {"seqnum": pa.int64(), "book": pa.string(), "time": _TIME, "tags": _TAGS, "data": pa.binary()}


class Columns(msgspec.Struct, frozen=True):
    """Records as Arrow arrays of one length. What nobody wants is None."""

    count: int
    seqnum: Any
    time: Any
    tags: Any
    data: Any

    def of(self, name: str, book: str) -> Any:
        """A column by its name."""
        return pa.repeat(pa.scalar(book, pa.string()), self.count) if name == "book" else getattr(self, name)


def columns_of(slabs: Sequence[Slab], *, wants_tags: bool = True) -> Columns | None:
    """The records of a page in order, but for those of sinks; None if there is none."""
    parts: list[Columns] = []
    for is_small, group in groupby(slabs, key=lambda slab: len(slab.seqnums) <= 8 * _SMALL):
        if is_small:
            part = _of_records(list(_records(group)), wants_tags)
            if part.count:
                parts.append(part)
        else:
            parts += [part for slab in group if (part := _of_chunk(slab, wants_tags)).count]
    if len(parts) < 2:
        return parts[0] if parts else None
    return Columns(
        sum(part.count for part in parts),
        *(
            None if getattr(parts[0], name) is None else pa.concat_arrays([getattr(part, name) for part in parts])
            for name in ("seqnum", "time", "tags", "data")
        ),
    )


def _records(slabs: Iterator[Slab]) -> Iterator[Record]:
    for slab in slabs:
        chunk = Chunk(slab.chunk)
        records = chunk.records(np.frombuffer(slab.seqnums, "<i8").tolist(), slab.time_us)
        if any(text.startswith(SINK_TAG_PREFIX) for text in chunk.strings):
            records = [record for record in records if not any(map(_is_of_sink, record.tags))]
        yield from records


def _is_of_sink(tag: str) -> bool:
    return tag.startswith(SINK_TAG_PREFIX)


def _of_records(records: list[Record], wants_tags: bool) -> Columns:
    return Columns(
        len(records),
        pa.array([record.seqnum for record in records], pa.int64()),
        pa.array([record.time for record in records], pa.int64()).cast(_TIME),
        pa.array([record.tags for record in records], _TAGS) if wants_tags else None,
        pa.array([record.data for record in records], pa.binary()),
    )


def _of_chunk(slab: Slab, wants_tags: bool) -> Columns:
    chunk = Chunk(slab.chunk)
    raw = chunk.raw
    count = chunk.count
    entries = np.frombuffer(raw.entries, "<u4").reshape(count, 4)
    tags = _tags(chunk, entries) if wants_tags else None
    columns = Columns(
        count,
        pa.array(np.frombuffer(slab.seqnums, "<i8"), pa.int64()),
        pa.array(np.full(count, slab.time_us, np.int64), pa.int64()).cast(_TIME),
        tags,
        _payloads(entries, raw.payloads),
    )
    if any(map(_is_of_sink, chunk.strings)):
        return _without_sinks(columns, _sink_records(chunk, entries))
    return columns


def _payloads(entries: Any, payloads: memoryview) -> Any:
    count = len(entries)
    offsets = np.zeros(count + 1, np.int32)
    offsets[1:] = entries[:, 0]
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(payloads)])


def _tags(chunk: Chunk, entries: Any) -> Any:
    numbers = np.frombuffer(chunk.raw.tags, "<u4").astype(np.int32)
    ends = entries[:, 1].astype(np.int32)
    is_keyed = (entries[:, 3] & KEYED).astype(bool)
    if is_keyed.any():
        # the first tag of these is their key, which readers never see
        starts = np.concatenate((np.zeros(1, np.int32), ends[:-1]))
        numbers = np.delete(numbers, starts[is_keyed])
        ends = ends - np.cumsum(is_keyed, dtype=np.int32)
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    names = pa.array(chunk.strings, pa.string()).take(pa.array(numbers))
    return pa.ListArray.from_arrays(pa.array(offsets), names, type=_TAGS)


def _sink_records(chunk: Chunk, entries: Any) -> Any:
    """Which records a sink has written for itself: those that carry one of its tags."""
    marked = np.array([_is_of_sink(text) for text in chunk.strings])
    carried = marked[np.frombuffer(chunk.raw.tags, "<u4")]
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(carried)))
    ends = entries[:, 1].astype(np.int64)
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    return before[ends] > before[starts]


def _without_sinks(columns: Columns, of_sink: Any) -> Columns:
    kept = pa.array(~of_sink)
    return Columns(
        int((~of_sink).sum()),
        *(
            None if getattr(columns, name) is None else getattr(columns, name).filter(kept)
            for name in ("seqnum", "time", "tags", "data")
        ),
    )
