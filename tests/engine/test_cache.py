"""The record cache and the auxiliary-data cache: what they hand out, and that they keep to their budgets."""

from __future__ import annotations

import gc
import tracemalloc
from array import array
from struct import unpack

from hypothesis import given, settings
from hypothesis import strategies as st

from boki.engine.cache import AuxCache, RecordCache
from boki.log.batch import Batch, encode_batch
from boki.log.chunk import Chunk, Group, encode_chunk
from boki.log.ids import make_seqnum
from boki.log.operations import Slab
from boki.log.record import Record

FIRST = make_seqnum(1, 0, 0)
AMPLE = 1 << 30
PAGE_BYTES = 1 << 20


def make_batch(*chunk_counts: int, first_lid: int = 0, tags: tuple[str, ...] = ("t",), size: int = 4) -> Batch:
    """A batch of chunks with this many records each; a record's data tells its number in the batch."""
    chunks = []
    number = 0
    for count in chunk_counts:
        records = [(f"{number + i}".encode().ljust(size, b"."), tags) for i in range(count)]
        chunks.append((encode_chunk("book", [Group([record]) for record in records]), count))
        number += count
    return Batch(encode_batch(1, 0, 5, first_lid, chunks))


def time_of(seqnum: int) -> int:
    return 1_000 + seqnum - FIRST


def records_of(slabs: list[Slab]) -> list[Record]:
    found: list[Record] = []
    for slab in slabs:
        seqnums = unpack(f"<{len(slab.seqnums) // 8}q", slab.seqnums)
        found += Chunk(slab.chunk).records(seqnums, slab.time_us, slab.aux)
    return found


def seqnums(*offsets: int) -> array[int]:
    return array("q", [FIRST + offset for offset in offsets])


@settings(max_examples=100)
@given(
    st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=6),
    st.sets(st.integers(0, 60)),
    st.sets(st.integers(0, 5)),
    st.integers(1, 60),
)
def test_collect_hands_out_the_longest_prefix_that_is_here(
    layout: list[list[int]], wanted: set[int], missing: set[int], max_bytes: int
) -> None:
    """Each record with its own data, tags, time and auxiliary data; up to a missing batch, or to the page's bytes."""
    cache, aux = RecordCache(AMPLE), AuxCache(AMPLE)
    data: dict[int, bytes] = {}
    start = 0
    for number, counts in enumerate(layout):
        batch = make_batch(*counts, first_lid=start)
        if number not in missing:
            cache.add(FIRST + start, batch)
            data |= {FIRST + start + i: f"{i}".encode().ljust(4, b".") for i in range(sum(counts))}
        start += sum(counts)
    asked = array("q", [FIRST + offset for offset in sorted(wanted) if offset < start])
    for seqnum in asked[::3]:
        aux.set(seqnum, b"aux of %d" % seqnum)

    slabs, covered = cache.collect(asked, max_bytes * 1_000, time_of, aux)
    here = 0
    while here < len(asked) and asked[here] in data:
        here += 1
    assert covered == here
    found = records_of(slabs)
    assert [record.seqnum for record in found] == list(asked[:here])
    for record in found:
        assert record.data == data[record.seqnum]
        assert record.tags == ("t",)
        assert record.auxdata == (b"aux of %d" % record.seqnum if record.seqnum in asked[::3] else None)
    for slab in slabs:
        assert slab.time_us == time_of(unpack("<q", slab.seqnums[:8])[0])


def test_collect_ends_after_the_record_that_crosses_the_bytes() -> None:
    """A page is at most one record larger than asked for, and never empty."""
    cache, aux = RecordCache(AMPLE), AuxCache(AMPLE)
    cache.add(FIRST, make_batch(50, size=100))
    asked = seqnums(*range(50))
    assert [cache.collect(asked, limit, time_of, aux)[1] for limit in (1, 100, 101, 1_000)] == [1, 1, 2, 10]
    assert cache.collect(asked, PAGE_BYTES, time_of, aux)[1] == 50


def test_a_whole_chunk_is_handed_on_as_it_is() -> None:
    """The bytes that were appended are the bytes that are read: nothing is encoded again."""
    cache, aux = RecordCache(AMPLE), AuxCache(AMPLE)
    batch = make_batch(3, 2)
    cache.add(FIRST, batch)
    slabs, covered = cache.collect(seqnums(0, 1, 2, 3), PAGE_BYTES, time_of, aux)
    assert covered == 4
    assert slabs[0].chunk == batch.chunks[0].data
    assert slabs[1].chunk != batch.chunks[1].data
    assert [record.data for record in records_of(slabs)] == [b"0...", b"1...", b"2...", b"3..."]


def test_a_bulk_page_ends_where_a_chunk_ends() -> None:
    """If it is at least half full then, by records or by bytes; else the chunk is cut. The next page has whole ones."""
    cache, aux = RecordCache(AMPLE), AuxCache(AMPLE)
    cache.add(FIRST, make_batch(6, 6, 6, size=100))

    def covered(first: int, stop: int, max_bytes: int = PAGE_BYTES, *, whole_chunks: bool = True) -> int:
        return cache.collect(seqnums(*range(first, stop)), max_bytes, time_of, aux, whole_chunks=whole_chunks)[1]

    assert covered(0, 10) == 6
    assert covered(0, 10, whole_chunks=False) == 10
    assert covered(0, 12) == 12
    assert covered(5, 11) == 6, "not half full behind the first chunk's rest"
    assert covered(2, 8) == 4, "half full"
    assert covered(0, 18, 1_000) == 6, "the bytes of the second chunk are too many"
    assert covered(0, 5) == 5, "never empty"


def test_freed_records_are_covered_and_left_out() -> None:
    """A payload that trimming has taken away is never handed out, alone or among others."""
    cache, aux = RecordCache(AMPLE), AuxCache(AMPLE)
    (chunk,) = make_batch(4).chunks
    freed = chunk.drop_payloads([1, 3])
    cache.add(FIRST, Batch(encode_batch(1, 0, 5, 0, [(freed, 4)])))
    slabs, covered = cache.collect(seqnums(0, 1, 2, 3), PAGE_BYTES, time_of, aux)
    assert (covered, [record.seqnum - FIRST for record in records_of(slabs)]) == (4, [0, 2])
    assert cache.collect(seqnums(1, 3), PAGE_BYTES, time_of, aux) == ([], 2)


def test_find_covers_a_batch_and_nothing_beside_it() -> None:
    """Every seqnum of a batch finds it, those before and after do not; hits and misses are counted."""
    cache = RecordCache(AMPLE)
    later, earlier = make_batch(2, first_lid=7), make_batch(3, 2)
    cache.add(FIRST + 7, later)
    cache.add(FIRST, earlier)
    found = [cache.find(FIRST + offset) for offset in range(-1, 10)]
    assert found == [None, *[(FIRST, earlier)] * 5, None, None, *[(FIRST + 7, later)] * 2, None]
    assert (cache.hits, cache.misses) == (7, 4)


def test_the_least_recently_used_goes_first() -> None:
    """A batch that was looked at outlives one that came after it."""
    size = RecordCache(AMPLE)
    size.add(FIRST, make_batch(10))
    cache = RecordCache(3 * size.used_bytes)
    for number in range(3):
        cache.add(FIRST + 10 * number, make_batch(10, first_lid=10 * number))
    cache.find(FIRST)
    cache.add(FIRST + 30, make_batch(10, first_lid=30))
    assert [cache.find(FIRST + 10 * number) is not None for number in range(4)] == [True, False, True, True]


def test_a_batch_comes_back_after_it_was_dropped() -> None:
    """What was dropped may be added again, any number of times, and is found again."""
    one = RecordCache(AMPLE)
    one.add(FIRST, make_batch(1))
    cache = RecordCache(5 * one.used_bytes)
    for round_number in range(3):
        for number in range(3_000):
            cache.add(FIRST + number, make_batch(1, first_lid=number))
            assert cache.find(FIRST + number) is not None
        kept = [number for number in range(3_000) if cache.find(FIRST + number)]
        assert kept == list(range(2_995, 3_000)), round_number


def test_a_batch_larger_than_the_budget_is_not_kept() -> None:
    """It would only drive everything else out."""
    cache = RecordCache(20_000)
    cache.add(FIRST, make_batch(2))
    cache.add(FIRST + 2, make_batch(10, first_lid=2, size=10_000))
    assert cache.find(FIRST) is not None
    assert cache.find(FIRST + 2) is None


def test_the_budget_is_about_real_memory() -> None:
    """What the cache says it uses is what decoded batches take, within a quarter, and below the budget."""
    budget = 1_000_000
    for counts, tags in (((1,), ("a", "b")), ((1,) * 20, ("a",)), ((100,), ("a", "b", "c"))):
        gc.collect()
        tracemalloc.start()
        cache = RecordCache(budget)
        for number in range(5_000 // sum(counts)):
            batch = make_batch(*counts, first_lid=number * sum(counts), tags=tuple(f"{tag}{number}" for tag in tags))
            cache.add(FIRST + number * sum(counts), batch)
            assert cache.used_bytes <= budget
            assert all(chunk.strings for chunk in batch.chunks)
        del batch
        gc.collect()
        held_bytes = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert held_bytes * 0.8 < cache.used_bytes < held_bytes * 1.25


def test_aux_data_is_replaced_and_bounded() -> None:
    """The last value counts, and the least recently used one goes first."""
    aux = AuxCache(2_000)
    aux.set(1, b"old")
    aux.set(1, b"new")
    assert aux.get(1) == b"new"
    for seqnum in range(2, 100):
        aux.set(seqnum, bytes(100))
        aux.get(1)
        assert aux.used_bytes <= 2_000
    assert aux.get(1) == b"new"
    assert aux.get(2) is None
    aux.set(5, bytes(10_000))
    assert aux.get(5) is None
    assert aux.get(1) == b"new"


def test_what_was_not_used_for_long_is_kept_as_bytes() -> None:
    """So a full cache holds more small records than it could decoded; they are decoded again when they are asked for,
    within the budget, and their checksums are not computed again.
    """
    budget = 8 << 20
    cache = RecordCache(budget)
    count = 16_000
    for number in range(count):
        cache.add(FIRST + number, make_batch(1, first_lid=number, tags=(f"id:{number}", f"run:{number}"), size=100))
        assert cache.used_bytes <= budget
    kept = sum(cache.has(FIRST + number) for number in range(count))
    assert kept > 1.5 * budget / (300 + 250 + 700), "as many would be here if all were decoded"
    for _ in range(2):
        for number in range(count - kept, count):
            if not cache.has(FIRST + number):
                continue
            found = cache.find(FIRST + number)
            assert found is not None
            assert found[1].chunks[0].tags(0) == (f"id:{number}", f"run:{number}")
            assert cache.used_bytes <= budget
    assert sum(cache.has(FIRST + number) for number in range(count)) > 0.8 * kept
