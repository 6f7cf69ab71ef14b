"""What one Spark task reads: ranges of seqnums of books, cut so that tasks have about the same work.

Seqnums are dense only inside one log of one term, so ranges are cut there: an **extent** is what a book has between its
first and its last record in one (term, log), both known from an index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from boki.log.metalog import Positions

RECORDS_A_TASK = 50_000
"""A task is not worth its start for much less."""
MOST_PARTITIONS = 8
"""Default number of partitions of a read."""


class Segment(msgspec.Struct, frozen=True):
    """Records of a book with `start <= seqnum < stop`.

    `floor` is where trims had come to when this was planned, or where the last step of a stream has ended: a floor
    above that has taken away what was promised. None: nothing is promised before the first page has come.
    """

    book: str
    start: int
    stop: int
    floor: int | None


class Extent(msgspec.Struct, frozen=True):
    """A segment, and how many positions it covers at most. Only a `divisible` one may be cut by numbers."""

    segment: Segment
    weight: int
    is_divisible: bool = True


class Task(msgspec.Struct, frozen=True):
    """What one task reads, from an index that has come as far as `positions`."""

    segments: tuple[Segment, ...]
    positions: Positions


def share_out(extents: Sequence[Extent], positions: Positions, partitions: int | None) -> list[Task]:
    """Tasks of about the same weight, each in the order of the extents; none for nothing."""
    total = sum(extent.weight for extent in extents)
    if not extents:
        return []
    count = partitions or min(MOST_PARTITIONS, -(-total // RECORDS_A_TASK)) or 1
    target = max(1, -(-total // count))
    tasks: list[Task] = []
    gathered: list[Segment] = []
    room = target
    for piece, weight in _pieces(extents, target):
        gathered.append(piece)
        room -= weight
        if room <= 0:
            tasks.append(Task(tuple(gathered), positions))
            gathered, room = [], target
    if gathered:
        tasks.append(Task(tuple(gathered), positions))
    return tasks


def _pieces(extents: Iterable[Extent], target: int) -> Iterable[tuple[Segment, int]]:
    """The extents, cut where a task is full."""
    room = target
    for extent in extents:
        segment, weight = extent.segment, extent.weight
        while extent.is_divisible and weight > room:
            cut = segment.start + room
            yield msgspec.structs.replace(segment, stop=cut), room
            segment = msgspec.structs.replace(segment, start=cut)
            weight -= room
            room = target
        yield segment, weight
        room -= weight
        if room <= 0:
            room = target
