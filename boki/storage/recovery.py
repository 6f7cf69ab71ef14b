"""What a start finds of each shard on the disk, behind what the last checkpoint has of it."""

from __future__ import annotations

from collections.abc import Callable

from boki.log.metalog import split_position
from boki.protocol.effects import DiskReader
from boki.storage.holdings import Holdings
from boki.storage.lifecycle import Event
from boki.storage.shards import ShardKey, find_shards, recover_shard
from boki.storage.state import Checkpoint


def recover(
    disk: DiskReader, state: Checkpoint, holdings: Holdings, on_lacking: Callable[[ShardKey], None]
) -> set[ShardKey]:
    """Find what reached the disk after the checkpoint; earlier terms have no shards that it does not name.

    → the shards that are open. `on_lacking` is told of those that lack records here.
    """
    first_term = max((split_position(position)[0] for position in state.applied.values()), default=0)
    found = {key for key in find_shards(disk, 0) if key in holdings.shards or key[0] >= first_term}
    for key in sorted(found | set(holdings.shards)):
        shard = holdings.shard(key)
        if key[0] < first_term:  # earlier versions did not write that it is closed
            shard.move(Event.CLOSE)
        if key in found:
            recover_shard(disk, key, shard)
        shard.written_until = shard.stored_until
        if not shard.is_whole:
            on_lacking(key)
    holdings.touched |= {row.key for row in state.shards}
    holdings.grown |= holdings.touched
    return {key for key in holdings.shards if not holdings.shards[key].is_closed}
