"""What cuts mean, remembered compactly: seqnum → (shard, local id) and time; (shard, local id) → seqnum.

Between two cuts of one shard nothing else happens in a quiet log, and then seqnums and local ids grow together. Such
cuts are merged into one **run**, so a log that one engine writes needs one run a term, and 16 bytes a cut for the time.
Arrays of machine integers, because an index holds millions of these.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from boki.errors import CorruptData
from boki.log.ids import LogId, ShardId, Term, make_seqnum
from boki.log.metalog import Cut


class Piece(NamedTuple):
    """Consecutive records of one shard that a cut put into the order at consecutive seqnums."""

    shard: ShardId
    first_lid: int
    until_lid: int
    first_seqnum: int


_TABLE: Final = Struct("<IHxxqqIII")
_COLUMNS: Final = ("_run_seqnums", "_run_shards", "_run_lids", "_cut_seqnums", "_cut_times")
_SWAP: Final = sys.byteorder == "big"


def pack_column(column: array[int]) -> bytes:
    """An array of integers as little-endian bytes.

    >>> pack_column(array("q", [1])).hex()
    '0100000000000000'
    """
    if _SWAP:
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()


def unpack_column(typecode: str, data: bytes | memoryview) -> array[int]:
    """The array behind `pack_column`'s bytes."""
    column: array[int] = array(typecode)
    column.frombytes(data)
    if _SWAP:
        column.byteswap()
    return column


class OrderTable:
    """Of one (term, log): where each seqnum's record is, and when it was ordered.

    `apply_cut` must be given every cut, in order. Memory: 16 bytes a cut, 24 bytes a run. A long history is kept in
    several tables, each from where its predecessor ended (`successor`), so that old ones can go to a disk as they are.
    """

    def __init__(
        self,
        term: Term,
        log: LogId,
        first_seqnum: int | None = None,
        ordered_until: dict[ShardId, int] | None = None,
    ) -> None:
        self.term = term
        self.log = log
        self.first_seqnum = make_seqnum(term, log, 0) if first_seqnum is None else first_seqnum
        self.next_seqnum = self.first_seqnum
        self.ordered_until: dict[ShardId, int] = {} if ordered_until is None else ordered_until
        self._run_seqnums = array("q")
        self._run_shards = array("Q")
        self._run_lids = array("q")
        self._cut_seqnums = array("q")
        self._cut_times = array("q")

    def pieces(self, cut: Cut) -> list[Piece]:
        """What the next cut orders, piece by piece in order. Changes nothing."""
        pieces: list[Piece] = []
        seqnum = self.next_seqnum
        for shard, until in cut.until:
            first = self.ordered_until.get(shard, 0)
            pieces.append(Piece(shard, first, until, seqnum))
            seqnum += until - first
        return pieces

    def apply_cut(self, cut: Cut) -> list[Piece]:
        """Take in the next cut: the pieces that it orders, in order."""
        pieces = self.pieces(cut)
        assert cut.time_us >= self.last_time_us, "the log's time never goes back"
        self._cut_seqnums.append(self.next_seqnum)
        self._cut_times.append(cut.time_us)
        last_shard = -1
        for shard, first, until, seqnum in pieces:
            assert shard > last_shard, "inside a cut, shards stand in ascending order, each once"
            assert until > first, "a cut moves every shard that it names forward"
            last_shard = shard
            if not (self._run_shards and self._run_shards[-1] == shard and self._continues(first)):
                self._run_seqnums.append(seqnum)
                self._run_shards.append(shard)
                self._run_lids.append(first)
            self.ordered_until[shard] = until
            self.next_seqnum = seqnum + until - first
        return pieces

    def _continues(self, first_lid: int) -> bool:
        return self._run_lids[-1] + self.next_seqnum - self._run_seqnums[-1] == first_lid

    def successor(self) -> OrderTable:
        """An empty table that continues where this one ends; this one takes no more cuts and gives back spare
        memory.
        """
        following = OrderTable(self.term, self.log, self.next_seqnum, self.ordered_until)
        self.ordered_until = dict(self.ordered_until)
        for name in _COLUMNS:
            column = getattr(self, name)
            setattr(self, name, array(column.typecode, column))
        return following

    def locate(self, seqnum: int) -> tuple[ShardId, int, int]:
        """(shard, local id, how many records from here on follow in the same shard without a gap in this table)."""
        if not self.first_seqnum <= seqnum < self.next_seqnum:
            raise KeyError(seqnum)
        run = bisect_right(self._run_seqnums, seqnum) - 1
        stop = self._run_seqnums[run + 1] if run + 1 < len(self._run_seqnums) else self.next_seqnum
        return self._run_shards[run], self._run_lids[run] + seqnum - self._run_seqnums[run], stop - seqnum

    def time_of(self, seqnum: int) -> int:
        """The time of the cut that ordered `seqnum`, in microseconds since the epoch."""
        return self.cut_of(seqnum)[1]

    def cut_of(self, seqnum: int) -> tuple[int, int]:
        """The cut that ordered `seqnum`: (its first seqnum, its time). `KeyError` if none did."""
        if not self.first_seqnum <= seqnum < self.next_seqnum:
            raise KeyError(seqnum)
        at = bisect_right(self._cut_seqnums, seqnum) - 1
        return self._cut_seqnums[at], self._cut_times[at]

    def first_seqnum_at(self, time_us: int) -> int | None:
        """The first seqnum ordered at or after a time; None if all were before it."""
        at = bisect_left(self._cut_times, time_us)
        return self._cut_seqnums[at] if at < len(self._cut_times) else None

    @property
    def last_time_us(self) -> int:
        """The time of the last cut; 0 if there was none."""
        return self._cut_times[-1] if self._cut_times else 0

    @property
    def entry_count(self) -> int:
        """How many cuts and runs it holds."""
        return len(self._cut_times) + len(self._run_seqnums)

    @property
    def size_bytes(self) -> int:
        """Memory held, about."""
        return 24 * len(self._run_seqnums) + 16 * len(self._cut_seqnums) + 100 * len(self.ordered_until)

    def encode(self) -> bytes:
        """The table as bytes, for `decode`."""
        shards = array("Q", self.ordered_until)
        untils = array("q", self.ordered_until.values())
        counts = (len(self._run_seqnums), len(self._cut_seqnums), len(shards))
        header = _TABLE.pack(self.term, self.log, self.first_seqnum, self.next_seqnum, *counts)
        columns = [getattr(self, name) for name in _COLUMNS]
        return b"".join((header, *map(pack_column, (*columns, shards, untils))))

    @staticmethod
    def decode(data: bytes) -> OrderTable:
        """The table behind `encode`'s bytes; `CorruptData` if these are none."""
        if len(data) < _TABLE.size:
            raise CorruptData(f"a table of the order has at least {_TABLE.size} bytes, not {len(data)}")
        term, log, first_seqnum, next_seqnum, run_count, cut_count, shard_count = _TABLE.unpack_from(data)
        if len(data) != _TABLE.size + 8 * (3 * run_count + 2 * cut_count + 2 * shard_count):
            raise CorruptData(f"a table of the order of {run_count} runs cannot have {len(data)} bytes")
        table = OrderTable(term, log, first_seqnum)
        table.next_seqnum = next_seqnum
        at = _TABLE.size
        columns: list[array[int]] = []
        for typecode, count in zip("qQqqqQq", (run_count,) * 3 + (cut_count,) * 2 + (shard_count,) * 2, strict=True):
            columns.append(unpack_column(typecode, data[at : at + 8 * count]))
            at += 8 * count
        for name, column in zip(_COLUMNS, columns, strict=False):
            setattr(table, name, column)
        table.ordered_until = dict(zip(columns[5], columns[6], strict=True))
        return table


class ShardOrder:
    """The other direction, for a storage node: of one shard, local id → seqnum."""

    def __init__(self, until_lid: int = 0, runs: Iterable[tuple[int, int]] = ()) -> None:
        self.until_lid = until_lid
        self._lids = array("q")
        self._seqnums = array("q")
        for lid, seqnum in runs:
            self._lids.append(lid)
            self._seqnums.append(seqnum)

    @property
    def run_count(self) -> int:
        """How many runs there are; a run never changes."""
        return len(self._lids)

    def runs(self, first: int = 0) -> list[tuple[int, int]]:
        """The (first local id, first seqnum) pairs that say it all, from a number on, for a checkpoint."""
        return list(zip(self._lids[first:], self._seqnums[first:], strict=True))

    def packed(self, first: int = 0, until: int | None = None) -> bytes:
        """The runs of these numbers as bytes, for a disk or a wire."""
        return pack_column(self._lids[first:until]) + pack_column(self._seqnums[first:until])

    def extend(self, packed: bytes) -> None:
        """Take in the runs that follow, as `packed` gave them."""
        half = len(packed) // 2
        self._lids += unpack_column("q", packed[:half])
        self._seqnums += unpack_column("q", packed[half:])

    def add(self, piece: Piece) -> None:
        """Take in the shard's next piece."""
        if not self._lids or self._seqnums[-1] + piece.first_lid - self._lids[-1] != piece.first_seqnum:
            self._lids.append(piece.first_lid)
            self._seqnums.append(piece.first_seqnum)
        self.until_lid = piece.until_lid

    def seqnum_of(self, lid: int) -> int | None:
        """The seqnum of a local id; None if it is not ordered yet."""
        if not 0 <= lid < self.until_lid:
            return None
        run = bisect_right(self._lids, lid) - 1
        return self._seqnums[run] + lid - self._lids[run]
