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

from boki.log.chunk import Chunk
from boki.log.ids import KEY_TAG_PREFIX
from boki.log.operations import Slab
from boki.log.record import Record

SINK_TAG_PREFIX: Final = "!spark:"
"""The tags by which sinks find their place again; they stand on some records, and no reader of rows wants them."""
UNTAGGED: Final = "spark:untagged"
"""An extra tag on a row without tags: a record goes with the last of its tags, and sinks trim theirs."""
LEDGER: Final = "spark:sinks"
"""The book in which sinks note their commits: the last one of each query, by its id as a tag."""
_SMALL: Final = 24
"""Chunks of this many records are gathered before they are turned into columns."""
_TIME: Final = pa.timestamp("us", tz="UTC")
_TAGS: Final = pa.list_(pa.field("element", pa.string(), nullable=True))
FIELDS: Final = ("seqnum", "book", "time", "tags", "data")
TYPES: Final = {"seqnum": pa.int64(), "book": pa.string(), "time": _TIME, "tags": _TAGS, "data": pa.binary()}


class Columns(msgspec.Struct, frozen=True):
    """Records as Arrow arrays of one length. A column that is not read is None."""

    count: int
    seqnum: Any
    time: Any
    tags: Any
    data: Any

    def of(self, name: str, book: str) -> Any:
        """A column by its name."""
        return pa.repeat(pa.scalar(book, pa.string()), self.count) if name == "book" else getattr(self, name)


def columns_of(slabs: Sequence[Slab], *, wants_tags: bool = True) -> Columns | None:
    """The records of a page in order, without the tags of sinks; None if there is none."""
    parts: list[Columns] = []
    for is_small, group in groupby(slabs, key=lambda slab: len(slab.seqnums) <= 8 * _SMALL):
        if is_small:
            parts.append(_of_records(list(_records(group)), wants_tags))
        else:
            parts += [_of_chunk(slab, wants_tags) for slab in group]
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
        yield from chunk.records(np.frombuffer(slab.seqnums, "<i8").tolist(), slab.time_us)


def is_of_sink(tag: str) -> bool:
    """Whether a tag is none of the row's own."""
    return tag.startswith(SINK_TAG_PREFIX) or tag == UNTAGGED


def _tag_lists(records: list[Record]) -> Any:
    return pa.array([[tag for tag in record.tags if not is_of_sink(tag)] for record in records], _TAGS)


def _of_records(records: list[Record], wants_tags: bool) -> Columns:
    return Columns(
        len(records),
        pa.array([record.seqnum for record in records], pa.int64()),
        pa.array([record.time for record in records], pa.int64()).cast(_TIME),
        _tag_lists(records) if wants_tags else None,
        pa.array([record.data for record in records], pa.binary()),
    )


def _of_chunk(slab: Slab, wants_tags: bool) -> Columns:
    chunk = Chunk(slab.chunk)
    raw = chunk.raw
    count = chunk.count
    entries = np.frombuffer(raw.entries, "<u4").reshape(count, 4)
    return Columns(
        count,
        pa.array(np.frombuffer(slab.seqnums, "<i8"), pa.int64()),
        pa.array(np.full(count, slab.time_us, np.int64), pa.int64()).cast(_TIME),
        _tags(chunk, entries) if wants_tags else None,
        _payloads(entries, raw.payloads),
    )


def _payloads(entries: Any, payloads: memoryview) -> Any:
    count = len(entries)
    offsets = np.zeros(count + 1, np.int32)
    offsets[1:] = entries[:, 0]
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(payloads)])


def _tags(chunk: Chunk, entries: Any) -> Any:
    """Lists of tags, but for keys and the tags of sinks."""
    numbers = np.frombuffer(chunk.raw.tags, "<u4").astype(np.int32)
    offsets = np.zeros(len(entries) + 1, np.int32)
    offsets[1:] = entries[:, 1]
    hidden = np.array([text.startswith(KEY_TAG_PREFIX) or is_of_sink(text) for text in chunk.strings])
    if hidden.any():
        kept = ~hidden[numbers]
        kept_before = np.zeros(len(numbers) + 1, np.int32)
        np.cumsum(kept, out=kept_before[1:])
        offsets = kept_before[offsets]
        numbers = numbers[kept]
    names = pa.array(chunk.strings, pa.string()).take(pa.array(numbers))
    return pa.ListArray.from_arrays(pa.array(offsets), names, type=_TAGS)
