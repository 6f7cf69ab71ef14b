"""What a storage node holds of each shard, and how that is found again on its disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final

import msgspec

from boki.effects import DiskReader
from boki.log.batch import read_header
from boki.log.cuts import ShardOrder
from boki.log.ids import LogId, NodeId, ShardId, Term
from boki.log.metalog import Positions

_KEY: Final = Struct(">cIBQQ")
_PREFIX: Final = b"b"
BATCHES_STOP: Final = b"c"

ShardKey = tuple[Term, LogId, ShardId]


def batch_key(shard: ShardKey, first_lid: int) -> bytes:
    """Where a batch is kept. Keys sort by term, log, shard and local id."""
    return _KEY.pack(_PREFIX, *shard, first_lid)


def split_batch_key(key: bytes) -> tuple[ShardKey, int]:
    """The shard and the first local id of a batch's key."""
    _, term, log, shard, first_lid = _KEY.unpack(key)
    return (term, log, shard), first_lid


def after_shard(shard: ShardKey) -> bytes:
    """A key after all batches of the shard."""
    return _KEY.pack(_PREFIX, *shard, (1 << 64) - 1)


class Shard:
    """One shard as this node has it.

    `stored_until`: it has given every record below to its disk (so that what it tells afterwards, it tells once they
    are durable). `written_until`: every record below has reached it, so one that is missing there has been freed.
    `islands`: batches beyond a gap. `replicas` is empty until the shard's `OpenShard` has been applied.
    """

    __slots__ = ("engine", "gap_since", "islands", "order", "replicas", "stored_until", "written_until")

    def __init__(self, stored_until: int = 0) -> None:
        self.stored_until = stored_until
        self.written_until = stored_until
        self.islands: dict[int, int] = {}
        self.order = ShardOrder()
        self.engine: NodeId | None = None
        self.replicas: tuple[NodeId, ...] = ()
        self.gap_since = 0

    def has(self, first_lid: int, until_lid: int) -> bool:
        """Whether that batch was taken in before."""
        return until_lid <= self.stored_until or self.islands.get(first_lid) == until_lid

    def add(self, first_lid: int, until_lid: int) -> None:
        """Take in a batch."""
        if first_lid > self.stored_until:
            self.islands[first_lid] = until_lid
            return
        self.stored_until = max(self.stored_until, until_lid)
        while self.stored_until in self.islands:
            self.stored_until = self.islands.pop(self.stored_until)


class ShardState(msgspec.Struct, frozen=True, array_like=True):
    """A shard in a checkpoint; `runs` are (first local id, first seqnum) pairs."""

    key: ShardKey
    stored_until: int
    ordered_until: int
    runs: list[tuple[int, int]]
    engine: NodeId | None
    replicas: tuple[NodeId, ...]


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """What a storage node knows from the metalogs up to `applied`, so that it need not read them again."""

    applied: Positions = {}
    next_seqnums: dict[LogId, int] = {}
    shards: list[ShardState] = []
    floors: list[tuple[str, str | None, int]] = []
    waits_below: int = 0
    """See `boki.storage.sweep.Sweep.waits_below`."""


def find_shards(disk: DiskReader, from_term: Term, known: Iterable[ShardKey]) -> Iterator[ShardKey]:
    """The shards with batches on the disk, from a term on, without reading every batch; and those known already."""
    seen = set(known)
    yield from seen
    start = batch_key((from_term, 0, 0), 0)
    while True:
        row = next(iter(disk.scan(start, BATCHES_STOP)), None)
        if row is None:
            return
        shard, _ = split_batch_key(row[0])
        if shard not in seen:
            yield shard
        start = after_shard(shard)


def recover_shard(disk: DiskReader, key: ShardKey, shard: Shard) -> None:
    """Take in the batches that reached the disk after the last checkpoint."""
    for _, value in disk.scan(batch_key(key, shard.stored_until), after_shard(key)):
        header = read_header(value)
        if not shard.has(header.first_lid, header.until_lid):
            shard.add(header.first_lid, header.until_lid)
    shard.written_until = shard.stored_until
