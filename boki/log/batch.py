"""Batches: what an engine numbers, sends to the replicas of a shard, and what they keep, byte for byte.

A batch is a header and chunks one after the other. The header names the shard (term, log, shard) and the **local id**
of the first record; local ids of a shard are dense, so a batch covers ``first_lid`` until ``first_lid + count``. Once
sent, its boundaries and content never change, and a cut orders it as a whole or not at all. Disk bytes are wire bytes:
a storage node reads the header and nothing else.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple
from zlib import crc32

from boki.errors import CorruptData, VersionTooNew
from boki.log.chunk import Chunk
from boki.log.ids import MAX_SEQNUM, MAX_TERM, LogId, ShardId, Term

VERSION: Final = 1
MAGIC: Final = b"BOKI"

_HEADER: Final = Struct("<4sHHIIIIQQII")
_CRC: Final = Struct("<I")
HEADER_BYTES: Final = _HEADER.size


class BatchHeader(NamedTuple):
    """What a storage node knows of a batch: whose it is, and which local ids it covers."""

    term: Term
    log: LogId
    shard: ShardId
    first_lid: int
    record_count: int
    chunk_count: int
    size_bytes: int

    @property
    def until_lid(self) -> int:
        """The local id after the last record."""
        return self.first_lid + self.record_count


def encode_batch(term: Term, log: LogId, shard: ShardId, first_lid: int, chunks: Sequence[tuple[bytes, int]]) -> bytes:
    """Splice chunks, given as (bytes, record count), into a batch."""
    size = HEADER_BYTES + sum(len(data) for data, _ in chunks)
    count = sum(records for _, records in chunks)
    fields = (size, term, log, shard, first_lid, count, len(chunks))
    checksum = crc32(_HEADER.pack(MAGIC, VERSION, 0, 0, *fields))
    return b"".join((_HEADER.pack(MAGIC, VERSION, 0, checksum, *fields), *(data for data, _ in chunks)))


def read_header(data: bytes) -> BatchHeader:
    """The header of a batch, checked; `CorruptData` or `VersionTooNew` if it is not one that this version can read."""
    try:
        magic, version, flags, checksum, size, term, log, shard, first_lid, count, chunk_count = _HEADER.unpack_from(
            data
        )
    except StructError:
        raise CorruptData(f"a batch of {len(data)} bytes is shorter than its header") from None
    if magic != MAGIC:
        raise CorruptData(f"a batch starts with {magic!r} instead of {MAGIC!r}")
    if version > VERSION:
        raise VersionTooNew(f"batch version {version} is newer than this Boki's {VERSION}: upgrade this node")
    if crc32(_HEADER.pack(magic, version, flags, 0, size, term, log, shard, first_lid, count, chunk_count)) != checksum:
        raise CorruptData("a batch header fails its checksum")
    if size != len(data):
        raise CorruptData(f"a batch of {size} bytes came with {len(data)} bytes")
    if max(shard, first_lid + count) > MAX_SEQNUM or term > MAX_TERM:
        raise CorruptData(f"a batch of term {term}, shard {shard} and local id {first_lid}: there are no such numbers")
    return BatchHeader(term, log, shard, first_lid, count, chunk_count, size)


class Batch:
    """A batch with its chunks, decoded when asked. Raises like `read_header` and `Chunk`.

    `is_checked`: it was made in this process, of chunks that have been checked.
    """

    __slots__ = ("_chunks", "_is_checked", "_starts", "data", "header")

    def __init__(self, data: bytes, *, is_checked: bool = False) -> None:
        self.data = data
        self._is_checked = is_checked
        self.header = read_header(data)
        self._chunks: list[Chunk] | None = None
        self._starts: list[int] | None = None

    @property
    def chunks(self) -> list[Chunk]:
        """The chunks in order."""
        if self._chunks is None:
            self._chunks = self._read_chunks()
        return self._chunks

    def _read_chunks(self) -> list[Chunk]:
        found: list[Chunk] = []
        offset = HEADER_BYTES
        for _ in range(self.header.chunk_count):
            chunk = Chunk(self.data, offset, is_checked=self._is_checked)
            found.append(chunk)
            offset += chunk.size
        if offset != len(self.data) or sum(chunk.count for chunk in found) != self.header.record_count:
            raise CorruptData(
                f"the chunks of batch {self.header.first_lid} of shard {self.header.shard} do not add up to its header"
            )
        self._is_checked = True
        return found

    def forget_chunks(self) -> None:
        """Keep the bytes alone, until somebody asks for the chunks again."""
        self._chunks = self._starts = None

    def find(self, index: int) -> tuple[int, int]:
        """Where the batch's `index`-th record stands: (number of the chunk, index in it)."""
        starts = self._starts
        if starts is None:
            starts = self._starts = list(accumulate((chunk.count for chunk in self.chunks[:-1]), initial=0))
        n = bisect_right(starts, index) - 1
        return n, index - starts[n]

    def verify(self) -> None:
        """Check every checksum in the batch; `CorruptData` says what failed."""
        for chunk in self.chunks:
            chunk.verify_payloads()
