"""Batches: a header that storage nodes read, chunks that they keep as they came, and damage that is found."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boki.errors import CorruptData, VersionTooNew
from boki.log.batch import HEADER_BYTES, Batch, BatchHeader, encode_batch, read_header
from boki.log.chunk import Chunk, Group, encode_chunk
from boki.log.ids import make_shard
from tests.log.drawn import many_groups, names
from tests.log.test_chunk import GOLDEN as CHUNK_GOLDEN

GOLDEN = Path(__file__).parent / "golden" / "batch-v1.bin"
GOLDEN_SHARD = make_shard(7, 3)
SECOND = encode_chunk("other", [Group([(b"second", ["tag"])])])


def golden_chunks() -> list[tuple[bytes, int]]:
    return [(CHUNK_GOLDEN.read_bytes(), 3), (SECOND, 1)]


@given(
    st.integers(1, (1 << 20) - 1),
    st.integers(0, 255),
    st.integers(0, (1 << 63) - 1),
    st.integers(0, 1 << 40),
    st.lists(st.tuples(names, many_groups), min_size=1, max_size=4),
)
def test_what_goes_in_comes_out(
    term: int, log: int, shard: int, first_lid: int, contents: list[tuple[str, list[Group]]]
) -> None:
    """The header says whose the batch is and what it covers; the chunks are the very bytes that went in."""
    chunks = [(data, Chunk(data).count) for data in (encode_chunk(book, groups) for book, groups in contents)]
    data = encode_batch(term, log, shard, first_lid, chunks)
    batch = Batch(data)
    count = sum(records for _, records in chunks)
    assert batch.header == BatchHeader(term, log, shard, first_lid, count, len(chunks), len(data))
    assert batch.header.until_lid == first_lid + count
    assert read_header(data) == batch.header
    assert [chunk.data for chunk in batch.chunks] == [chunk for chunk, _ in chunks]
    places = [(n, i) for n, (_, records) in enumerate(chunks) for i in range(records)]
    assert [batch.find(index) for index in range(count)] == places
    batch.verify()


def test_the_layout_of_version_1_never_changes() -> None:
    """The golden file is read as what it was made from, and the encoder still writes it, byte for byte."""
    golden = GOLDEN.read_bytes()
    batch = Batch(golden)
    batch.verify()
    assert batch.header == BatchHeader(2, 1, GOLDEN_SHARD, 1 << 33, 4, 2, len(golden))
    assert [chunk.data for chunk in batch.chunks] == [data for data, _ in golden_chunks()]
    assert encode_batch(2, 1, GOLDEN_SHARD, 1 << 33, golden_chunks()) == golden


def test_a_newer_version_is_refused_by_name() -> None:
    """Not read by guess, and not called damaged."""
    data = bytearray(GOLDEN.read_bytes())
    data[4] = 2
    with pytest.raises(VersionTooNew, match="batch version 2"):
        Batch(bytes(data))


@pytest.mark.parametrize("bits", [0x01, 0x80, 0xFF])
def test_every_flipped_byte_is_found(bits: int) -> None:
    """In the header by whoever reads the header; elsewhere by `verify`."""
    golden = GOLDEN.read_bytes()
    for at in range(len(golden)):
        damaged = bytes((*golden[:at], golden[at] ^ bits, *golden[at + 1 :]))
        with pytest.raises((CorruptData, VersionTooNew)):
            read_header(damaged) if at < HEADER_BYTES else Batch(damaged).verify()


def test_a_batch_that_is_too_short_or_too_long_is_found() -> None:
    """A torn write is damage, and so is what follows a batch."""
    golden = GOLDEN.read_bytes()
    for size in range(len(golden)):
        with pytest.raises(CorruptData):
            Batch(golden[:size])
    with pytest.raises(CorruptData, match="came with"):
        Batch(golden + b"\x00")


FIRST = CHUNK_GOLDEN.read_bytes()


@pytest.mark.parametrize(
    "claimed",
    [
        pytest.param([(FIRST, 3), (SECOND, 2)], id="more records than there are"),
        pytest.param([(FIRST, 3), (SECOND, 0)], id="fewer records than there are"),
        pytest.param([(FIRST + SECOND, 4)], id="bytes after the last chunk"),
        pytest.param([(FIRST, 3), (b"", 0)], id="a chunk that is not there"),
    ],
)
def test_a_header_that_does_not_fit_its_chunks_is_found(claimed: list[tuple[bytes, int]]) -> None:
    """A header whose checksum is right may still lie about what follows."""
    batch = Batch(encode_batch(1, 0, GOLDEN_SHARD, 0, claimed))
    with pytest.raises(CorruptData):
        _ = batch.chunks
