"""What a storage node knows of one shard, and under which keys its batches are kept."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

from boki.errors import BokiError
from boki.log.batch import read_header
from boki.log.cuts import ShardOrder
from boki.log.ids import LogId, NodeId, ShardId, Term
from boki.protocol.effects import DiskReader
from boki.storage.lifecycle import NEXT, Event, Stage
from boki.storage.spans import Spans

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

    `spans`: the local ids that it has given to its disk, or knows to be freed. `written_until`: every record below has
    reached the disk, so one that is missing there has been freed. `replicas` is empty until the shard's `OpenShard`
    has been applied. `generation` counts how often the shard was deleted here.
    """

    __slots__ = (
        "engine",
        "generation",
        "order",
        "replicas",
        "saved_runs",
        "spans",
        "stage",
        "written_until",
    )

    def __init__(self) -> None:
        self.spans = Spans()
        self.written_until = 0
        self.order = ShardOrder()
        self.engine: NodeId | None = None
        self.replicas: tuple[NodeId, ...] = ()
        self.stage = Stage.OPEN
        self.generation = 0
        self.saved_runs = 0
        """How many runs of its order are in pages on the disk that need not be written again."""

    @property
    def is_closed(self) -> bool:
        """Whether it is ordered no further than `order` says."""
        return self.stage is not Stage.OPEN and self.stage is not Stage.REPLAYED

    @property
    def is_removed(self) -> bool:
        """Whether its placement has sent it away from here, and what was here is deleted."""
        return self.stage is Stage.REMOVED or self.stage is Stage.REPLAYED

    def move(self, event: Event) -> None:
        """Go where the table says."""
        assert (self.stage, event) in NEXT, f"a shard that is {self.stage.value} has no {event.value}"
        self.stage = NEXT[self.stage, event]

    @property
    def stored_until(self) -> int:
        """Every record below has been given to the disk, so what is told afterwards is told once they are durable."""
        return self.spans.reach

    @property
    def is_whole(self) -> bool:
        """Whether all that is ordered has been given to the disk."""
        return self.spans.reach >= self.order.until_lid


def find_shards(disk: DiskReader, from_term: Term) -> Iterator[ShardKey]:
    """The shards with batches on the disk, from a term on, without reading every batch."""
    start = batch_key((from_term, 0, 0), 0)
    while True:
        row = next(iter(disk.scan(start, BATCHES_STOP)), None)
        if row is None:
            return
        shard, _ = split_batch_key(row[0])
        yield shard
        start = after_shard(shard) + b"\x00"  # a key that is strictly larger than every one of the shard


def recover_shard(disk: DiskReader, key: ShardKey, shard: Shard) -> None:
    """Take in the batches that reached the disk after it was last noted how far the shard is stored."""
    for _, value in disk.scan(batch_key(key, shard.stored_until), after_shard(key)):
        try:
            header = read_header(value)
        except BokiError:  # of any kind: a flipped bit may look like a newer version, too
            continue  # it is not here, then, and is fetched again
        shard.spans.add(header.first_lid, header.until_lid)
    shard.written_until = shard.stored_until
