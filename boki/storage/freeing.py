"""What floors allow of a chunk, tag by tag: a chunk that a trim has not reached costs a look at its table of tags.

A record is free once the floors of all its tags have passed it, or its book's floor stands in for those of tags that
are not the system's own, or the book is deleted (`boki.log.floors`). So each tag keeps the records from some place of
its row on, and what no tag keeps is free.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from boki.log.batch import Batch, BatchHeader, encode_batch
from boki.log.chunk import Chunk
from boki.log.floors import DELETED, FloorRow, Floors
from boki.log.ids import KEY_TAG_PREFIX, is_system_tag

_FEW_FLOORS: Final = 64
"""More cost more to go through than the chunk's own tags to decode."""


class Freeing(NamedTuple):
    """Of a chunk: which records nobody can read (ascending), and what that gives back."""

    free: list[int]
    payload_bytes: int
    """What the payloads take of those that were not freed before."""
    standing: set[str | None]
    """Tags (as they stand in `FloorRow`) whose floors are above a record that was not freed before."""


def freeing(chunk: Chunk, first_seqnum: int, floors: Mapping[str | None, int]) -> Freeing:
    """See `Freeing`. `floors` are those of the chunk's book."""
    gone = {i for i in range(chunk.count) if chunk.is_freed(i)} if chunk.has_freed else set()
    if len(floors) <= _FEW_FLOORS and not any(floor > first_seqnum for floor in floors.values()):
        return Freeing(sorted(gone), 0, set())  # no trim has come so far: its tags need not be decoded
    passed = {
        tag: min(chunk.count, floor - first_seqnum)
        for tag in (None, DELETED, *chunk.strings)
        if (floor := floors.get(tag, 0)) > first_seqnum
    }
    if not passed:
        return Freeing(sorted(gone), 0, set())
    rows = {tag: row for tag, row in chunk.tag_rows().items() if not tag.startswith(KEY_TAG_PREFIX)}
    kept = _kept(chunk.count, rows, passed)
    deleted = passed.get(DELETED, 0)
    free = [i for i in range(chunk.count) if i < deleted or i not in kept or i in gone]
    fresh = [i for i in free if i not in gone]
    sizes = chunk.payload_sizes() if fresh else []
    standing = {
        tag
        for tag, until in passed.items()
        if any(i not in gone for i in _below(rows.get(tag, ()) if tag else range(chunk.count), until))
    }
    return Freeing(free, sum(sizes[i] for i in fresh), standing)


def without_free(batch: Batch, first_seqnum: int, floors: Floors) -> tuple[bytes, list[FloorRow]]:
    """The batch without the payloads of its free records, for a node that may have retired their floors. → with it the
    floors that stand over some of its records: by them others become free when their last one comes.
    """
    found: list[tuple[Chunk, list[int]]] = []
    standing: list[FloorRow] = []
    seqnum = first_seqnum
    for chunk in batch.chunks:
        known = [i for i in range(chunk.count) if chunk.is_freed(i)] if chunk.has_freed else []
        free = known
        if len(known) < chunk.count:
            of_book = floors.of(chunk.book)
            free, _, tags = freeing(chunk, seqnum, of_book)
            standing += [(chunk.book, tag, of_book[tag]) for tag in tags]
        found.append((chunk, free if len(free) > len(known) else []))
        seqnum += chunk.count
    if not any(free for _, free in found):
        return batch.data, standing
    chunks = [(chunk.drop_payloads(free) if free else chunk.data, chunk.count) for chunk, free in found]
    return rewritten(batch.header, chunks), standing


def rewritten(header: BatchHeader, chunks: Sequence[tuple[bytes, int]]) -> bytes:
    """The same batch with other bytes of its chunks."""
    return encode_batch(header.term, header.log, header.shard, header.first_lid, chunks)


def _kept(count: int, rows: Mapping[str, Sequence[int]], passed: Mapping[str | None, int]) -> set[int]:
    """The records that a tag keeps, or the whole book where they have none."""
    of_book = passed.get(None, 0)
    kept: set[int] = set()
    for tag, row in rows.items():
        until = passed.get(tag, 0)
        if not is_system_tag(tag):
            until = max(until, of_book)
        kept.update(row[bisect_left(row, until) :])
    if of_book < count:
        tagged = set().union(*rows.values())
        if len(tagged) < count:
            kept.update(i for i in range(of_book, count) if i not in tagged)
    return kept


def _below(row: Sequence[int], until: int) -> Sequence[int]:
    return row[: bisect_left(row, until)]
