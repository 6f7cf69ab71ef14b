"""Offsets, ranges and columns without Spark: what is read is read once, whatever the logs and terms."""

from __future__ import annotations

import random
from struct import pack

import pytest

from boki.errors import InvalidArgument
from boki.log.chunk import Group, encode_chunk
from boki.log.ids import make_seqnum, split_seqnum
from boki.log.operations import Slab
from boki.log.view import place_book
from boki.spark.columns import columns_of
from boki.spark.offsets import Offset, advance
from boki.spark.ranges import Extent, Segment, share_out

BOOKS = [f"book-{number}" for number in range(6)]


def world(seed: int) -> tuple[dict[str, list[int]], Offset]:
    """Records of books in logs of several terms, and the tail of the last term."""
    draw = random.Random(seed)
    found: dict[str, list[int]] = {book: [] for book in BOOKS}
    counts: list[int] = []
    log_count = 1
    for term in range(2, draw.randint(3, 6)):
        log_count = draw.randint(1, 4)
        counts = [0] * log_count
        for _ in range(draw.randint(0, 60)):
            book = draw.choice(BOOKS)
            log = place_book(book, log_count)
            if draw.random() < 0.7:  # the others are somebody else's
                found[book].append(make_seqnum(term, log, counts[log]))
            counts[log] += 1
        last = term
    return found, Offset(tuple(make_seqnum(last, log, count) for log, count in enumerate(counts)))


@pytest.mark.parametrize("seed", range(60))
def test_steps_cover_every_record_once_and_keep_to_the_limit(seed: int) -> None:
    """From the beginning to the tail in steps: each record lies in exactly one, and no step has more than the limit."""
    records, tail = world(seed)
    limit = random.Random(seed).choice([1, 2, 7, 50])
    at, seen = Offset(), []
    for _ in range(2000):
        first = {
            book: next(seqnum for seqnum in seqnums if seqnum >= at.bound(book))
            for book, seqnums in records.items()
            if any(at.bound(book) <= seqnum < tail.bound(book) for seqnum in seqnums)
        }
        end = advance(at, tail, first, limit)
        if end == at:
            break
        step = [s for book in BOOKS for s in records[book] if at.bound(book) <= s < end.bound(book)]
        assert len(step) <= limit
        assert Offset.from_json(end.to_json()) == end
        seen += step
        at = end
    assert sorted(seen) == sorted(seqnum for seqnums in records.values() for seqnum in seqnums)


@pytest.mark.parametrize(
    "value",
    [{}, {"logs": {}}, {"logs": {"1": "2"}}, {"below": 3}, {"below": "x"}, {"below": "3", "reads": 1}, 7, {"a": 1}],
)
def test_an_offset_of_something_else_is_refused(value: object) -> None:
    """A checkpoint of another source says so, instead of reading from anywhere."""
    with pytest.raises(InvalidArgument, match="the checkpoint holds no offset of a LogBook source"):
        Offset.from_json(value)


def test_tasks_have_about_the_same_weight_and_leave_nothing_out() -> None:
    """Ranges are cut where a task is full; what cannot be cut stays whole."""
    extents = [
        Extent(Segment("a", 100, 1100, 0), 1000),
        Extent(Segment("b", 0, 1 << 62, None), 300, is_divisible=False),
        Extent(Segment("c", 5, 705, 0), 700),
    ]
    tasks = share_out(extents, {}, 4)
    assert len(tasks) == 4
    pieces = [segment for task in tasks for segment in task.segments]
    assert sum(piece.stop - piece.start for piece in pieces if piece.book == "a") == 1000
    assert sum(piece.stop - piece.start for piece in pieces if piece.book == "c") == 700
    assert [piece for piece in pieces if piece.book == "b"] == [extents[1].segment]
    assert share_out([], {}, 4) == []


def test_columns_are_the_records_of_the_chunks() -> None:
    """Large and small chunks, keys, no tags, and the records that a sink writes for itself."""
    own = ["!spark:q:0:first", "spark:untagged", "!spark:q:0"]
    groups = {
        "large": [Group([(b"%d" % n, ["t", f"n:{n % 5}"][: n % 3]) for n in range(100)])],
        "keyed": [Group([(b"k", ["t"])] * 60, key="k"), Group([(b"", ())] * 5)],
        "small": [Group([(b"s", ("t", "u"))])],
        "sink": [Group([(b"first", [*own[:1], "t"]), *[(b"row", ["t"])] * 50, (b"last", own[1:])])],
        "small sink": [Group([(b"row", own)])],
    }
    slabs, expected, seqnum = [], [], make_seqnum(2, 0, 0)
    for turn, one in enumerate(groups.values()):
        records = [record for group in one for record in group.records]
        seqnums = range(seqnum, seqnum + len(records))
        seqnum += len(records)
        slabs.append(Slab(pack(f"<{len(records)}q", *seqnums), turn + 1, encode_chunk("b", one)))
        expected += [
            (number, turn + 1, [tag for tag in tags if tag not in own], data)
            for number, (data, tags) in zip(seqnums, records, strict=True)
        ]
    found = columns_of(slabs)
    assert found is not None
    times = found.time.cast("int64").to_pylist()
    rows = zip(found.seqnum.to_pylist(), times, found.tags.to_pylist(), found.data.to_pylist(), strict=True)
    assert list(rows) == expected
    assert split_seqnum(seqnum)[2] == len(expected)
