"""What a storage node has learnt from the metalogs, on its disk, so that it need not read them again.

A checkpoint writes what has changed since the last one, together: the small state, and of each shard that was touched
its row and the last pages of its order. How far a shard is stored here is another matter: it changes without the
metalogs, and must be noted whenever the disk alone would not tell (`Progress`)::

    s                    the small state
    h <shard>            a shard's row, without its order
    o <shard> <page>     a page of the order: this many runs, see `ShardOrder.packed`
    p <shard>            how far the shard is stored here
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final

import msgspec

from boki.log.cuts import ShardOrder
from boki.log.floors import FloorRow
from boki.log.ids import LogId, NodeId
from boki.log.metalog import Positions
from boki.protocol.effects import DiskReader, Put
from boki.storage.lifecycle import Event
from boki.storage.shards import Shard, ShardKey

_SMALL_KEY: Final = b"s"
_ROW: Final = b"h"
_PAGE: Final = b"o"
_PROGRESS: Final = b"p"
_SHARD_KEY: Final = Struct(">cIBQ")
_PAGE_KEY: Final = Struct(">cIBQI")
_PAGE_RUNS: Final = 1024


class ShardState(msgspec.Struct, frozen=True, array_like=True):
    """A shard in a checkpoint. On a disk its order stands in pages; a peer gets it `packed`."""

    key: ShardKey
    stored_until: int
    """Only written by earlier versions; `Progress` has it now."""
    ordered_until: int
    runs: list[tuple[int, int]]
    """(first local id, first seqnum) pairs: only written by earlier versions."""
    engine: NodeId | None
    replicas: tuple[NodeId, ...]
    is_closed: bool = False
    packed: bytes = b""


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
        set_order(shard, state, _pages(disk, state.key))
        shard.spans.add(0, state.stored_until)
        if not state.runs:  # whole pages stay as they are
            shard.saved_runs = shard.order.run_count - shard.order.run_count % _PAGE_RUNS
    for key, value in disk.scan(_PROGRESS, after(_PROGRESS)):
        _, *numbers = _SHARD_KEY.unpack(key)
        progress = msgspec.msgpack.decode(value, type=Progress)
        shard = shards.setdefault((numbers[0], numbers[1], numbers[2]), Shard())
        shard.spans.cut(0)
        shard.spans.add(0, progress.stored_until)
        if progress.is_removed:
            shard.move(Event.FIND_REMOVED)
    return small, shards


def set_order(shard: Shard, state: ShardState, pages: Iterable[bytes] = ()) -> None:
    """Let the shard be what the metalogs make it, whatever of it is here."""
    shard.order = ShardOrder(state.ordered_until, state.runs)
    for packed in (state.packed, *pages):
        shard.order.extend(packed)
    shard.engine, shard.replicas = state.engine, state.replicas
    if state.is_closed:
        shard.move(Event.CLOSE)
    shard.saved_runs = 0


def _rows(disk: DiskReader) -> Iterator[ShardState]:
    for _, value in disk.scan(_ROW, after(_ROW)):
        yield msgspec.msgpack.decode(value, type=ShardState)


def _pages(disk: DiskReader, key: ShardKey) -> list[bytes]:
    return [page for _, page in disk.scan(_PAGE_KEY.pack(_PAGE, *key, 0), _PAGE_KEY.pack(_PAGE, *key, (1 << 32) - 1))]


def after(prefix: bytes) -> bytes:
    """The first key after all that begin with a one-letter prefix."""
    return bytes((prefix[0] + 1,))


def small_write(small: Checkpoint) -> Put:
    """The write that keeps the small state."""
    return Put(_SMALL_KEY, msgspec.msgpack.encode(small))


def shard_state(key: ShardKey, shard: Shard, packed: bytes = b"") -> ShardState:
    """What the metalogs have said of a shard. How far it is stored here is not part of it."""
    return ShardState(key, 0, shard.order.until_lid, [], shard.engine, shard.replicas, shard.is_closed, packed)


def shard_writes(key: ShardKey, shard: Shard) -> Iterator[Put]:
    """The writes that keep what has changed of a shard since it was last written."""
    yield Put(_SHARD_KEY.pack(_ROW, *key), msgspec.msgpack.encode(shard_state(key, shard)))
    count = shard.order.run_count
    for first in range(shard.saved_runs, count, _PAGE_RUNS):
        yield Put(
            _PAGE_KEY.pack(_PAGE, *key, first // _PAGE_RUNS), shard.order.packed(first, min(first + _PAGE_RUNS, count))
        )
    shard.saved_runs = count - count % _PAGE_RUNS


def progress_write(key: ShardKey, shard: Shard) -> Put:
    """The write that keeps how far the shard is stored here. It goes with the batches that it speaks of, or after."""
    progress = Progress(shard.stored_until, shard.is_removed)
    return Put(_SHARD_KEY.pack(_PROGRESS, *key), msgspec.msgpack.encode(progress))
