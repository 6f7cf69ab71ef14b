"""What a storage node has learnt from the metalogs, on its disk, so that it need not read them again.

A checkpoint writes what has changed since the last one, together: the small state, and of each shard that was touched
its row and the last pages of its order. How far a shard is stored here is another matter: it changes without the
metalogs, and must be noted whenever the disk alone would not tell (`Progress`)::

    s                    the small state
    h <shard>            a shard's row, without its order
    o <shard> <page>     a page of the order: (first local id, first seqnum) pairs
    p <shard>            how far the shard is stored here
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final

import msgspec

from boki.effects import DiskReader, Put
from boki.log.cuts import ShardOrder
from boki.log.floors import FloorRow
from boki.log.ids import LogId, NodeId
from boki.log.metalog import Positions
from boki.storage.shards import Shard, ShardKey

_SMALL_KEY: Final = b"s"
_ROW: Final = b"h"
_PAGE: Final = b"o"
_PROGRESS: Final = b"p"
_SHARD_KEY: Final = Struct(">cIBQ")
_PAGE_KEY: Final = Struct(">cIBQI")
_PAGE_RUNS: Final = 1024

Run = tuple[int, int]


class ShardState(msgspec.Struct, frozen=True, array_like=True):
    """A shard in a checkpoint; `runs` are (first local id, first seqnum) pairs, and on a disk they stand in pages."""

    key: ShardKey
    stored_until: int
    ordered_until: int
    runs: list[Run]
    engine: NodeId | None
    replicas: tuple[NodeId, ...]
    is_closed: bool = False


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """What a storage node knows from the metalogs up to `applied`."""

    applied: Positions = {}
    next_seqnums: dict[LogId, int] = {}
    shards: list[ShardState] = []
    floors: list[FloorRow] = []
    waits_below: int = 0
    """See `boki.storage.sweep.Sweep.waits_below`."""
    fenced: list[tuple[LogId, int]] = []
    """Engine incarnations that are fenced in a log of the term of `applied`."""
    retired: list[FloorRow] = []
    """See `boki.log.floors.Floors.retired`."""


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """How far a shard is stored here, where the disk's batches alone would not tell: some of them were freed."""

    stored_until: int
    is_removed: bool = False


def load_state(disk: DiskReader) -> tuple[Checkpoint, dict[ShardKey, Shard]]:
    """What the disk has: the small state, and the shards as the last checkpoint and the last notes have them."""
    stored = disk.get(_SMALL_KEY)
    small = msgspec.msgpack.decode(stored, type=Checkpoint) if stored is not None else Checkpoint()
    shards: dict[ShardKey, Shard] = {}
    for state in (*small.shards, *_rows(disk)):
        shard = shards[state.key] = Shard()
        set_order(shard, state, list(state.runs) or list(_runs(disk, state.key)))
        shard.spans.add(0, state.stored_until)
        # whole pages stay as they are
        shard.saved_runs = 0 if state.runs else shard.order.run_count - shard.order.run_count % _PAGE_RUNS
    for key, value in disk.scan(_PROGRESS, after(_PROGRESS)):
        _, *numbers = _SHARD_KEY.unpack(key)
        progress = msgspec.msgpack.decode(value, type=Progress)
        shard = shards.setdefault((numbers[0], numbers[1], numbers[2]), Shard())
        shard.spans.cut(0)
        shard.spans.add(0, progress.stored_until)
        shard.is_removed = progress.is_removed
    return small, shards


def set_order(shard: Shard, state: ShardState, runs: Iterable[Run]) -> None:
    """Let the shard be what the metalogs make it, whatever of it is here."""
    shard.order = ShardOrder(state.ordered_until, runs)
    shard.engine, shard.replicas, shard.is_closed = state.engine, state.replicas, state.is_closed
    shard.saved_runs = 0


def _rows(disk: DiskReader) -> Iterator[ShardState]:
    for _, value in disk.scan(_ROW, after(_ROW)):
        yield msgspec.msgpack.decode(value, type=ShardState)


def _runs(disk: DiskReader, key: ShardKey) -> Iterator[Run]:
    for _, value in disk.scan(_PAGE_KEY.pack(_PAGE, *key, 0), _PAGE_KEY.pack(_PAGE, *key, (1 << 32) - 1)):
        yield from msgspec.msgpack.decode(value, type=list[Run])


def after(prefix: bytes) -> bytes:
    """The first key after all that begin with a one-letter prefix."""
    return bytes((prefix[0] + 1,))


def small_write(small: Checkpoint) -> Put:
    """The write that keeps the small state."""
    return Put(_SMALL_KEY, msgspec.msgpack.encode(small))


def shard_state(key: ShardKey, shard: Shard, runs: list[Run]) -> ShardState:
    """What the metalogs have said of a shard. How far it is stored here is not part of it."""
    return ShardState(key, 0, shard.order.until_lid, runs, shard.engine, shard.replicas, shard.is_closed)


def shard_writes(key: ShardKey, shard: Shard) -> Iterator[Put]:
    """The writes that keep what has changed of a shard since it was last written."""
    yield Put(_SHARD_KEY.pack(_ROW, *key), msgspec.msgpack.encode(shard_state(key, shard, [])))
    runs = shard.order.runs(shard.saved_runs)
    for at in range(0, len(runs), _PAGE_RUNS):
        page = runs[at : at + _PAGE_RUNS]
        yield Put(
            _PAGE_KEY.pack(_PAGE, *key, (shard.saved_runs + at) // _PAGE_RUNS),
            msgspec.msgpack.encode(page),
        )
    shard.saved_runs += len(runs) - len(runs) % _PAGE_RUNS


def progress_write(key: ShardKey, shard: Shard) -> Put:
    """The write that keeps how far the shard is stored here. It goes with the batches that it speaks of, or after."""
    progress = Progress(shard.stored_until, shard.is_removed)
    return Put(_SHARD_KEY.pack(_PROGRESS, *key), msgspec.msgpack.encode(progress))
