"""What this node holds of every shard, and the writes that keep it.

A shard is to be on the nodes that its `OpenShard` named, until the placement map says otherwise. All changes gather
here until the core flushes them into one `Store`, so that whatever is told of a shard rides behind the writes that make
it true. How far a shard is stored is noted on the disk whenever the batches there would not tell it by themselves:
where something was freed, and where a shard was sent away.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from boki.log.ids import NodeId
from boki.log.membership import Placement
from boki.protocol.effects import Delete, Note, Put
from boki.protocol.messages import ShardRow
from boki.storage.lifecycle import Event, Stage
from boki.storage.shards import Shard, ShardKey, after_shard, batch_key
from boki.storage.state import progress_write


@dataclass(frozen=True, slots=True)
class Written(Note):
    """To itself: the disk has these shards until there, and this many bytes of batches."""

    shards: tuple[tuple[ShardKey, int, int], ...]
    """(shard, its generation, every record below)"""
    fetched_bytes: int
    """Of those that were fetched from other replicas."""
    size_bytes: int = 0
    """Of all batches."""

    @property
    def may_wait(self) -> bool:
        """See `Note`: repair waits until what it has fetched is written; only controllers ask about appends."""
        return not self.fetched_bytes


class Holdings:
    """The shards by key, and what has to be written for them."""

    def __init__(self, node: NodeId, shards: dict[ShardKey, Shard]) -> None:
        self.node = node
        self.shards = shards
        self.placement = Placement()
        self.has_placement = False
        self._moved: dict[ShardKey, tuple[NodeId, ...]] = {}
        self._leaving: dict[ShardKey, None] = {}
        """Shards that are to be removed, in the order in which they were sent away."""
        self._keys = sorted(shards)
        self._writes: list[Put | Delete] = []
        self._changed: set[ShardKey] = set()
        self._noted: set[ShardKey] = set()
        self._fetched_bytes = 0
        self._put_bytes = 0
        self.unwritten_bytes = 0
        """Of batches that were taken in, and are not known to be durable."""
        self.touched: set[ShardKey] = set()
        """Shards of which a checkpoint has to write what the metalogs said."""
        self.grown: set[ShardKey] = set()
        """Shards of which a start would have to read again what came since the last checkpoint."""

    def shard(self, key: ShardKey) -> Shard:
        """The shard, made when it is heard of for the first time."""
        shard = self.shards.get(key)
        if shard is None:
            shard = self.shards[key] = Shard()
            insort(self._keys, key)
        return shard

    def after(self, key: ShardKey) -> ShardKey | None:
        """The next shard in order of (term, log, shard); None if there is none."""
        at = bisect_right(self._keys, key)
        return self._keys[at] if at < len(self._keys) else None

    # where a shard is to be

    def replicas(self, key: ShardKey) -> tuple[NodeId, ...]:
        """The nodes that are to hold the shard now."""
        moved = self._moved.get(key)
        if moved is not None:
            return moved
        shard = self.shards.get(key)
        return shard.replicas if shard is not None else ()

    def sources(self, key: ShardKey) -> list[NodeId]:
        """Other nodes that may have it: those that are to hold it, then those that once were."""
        names = dict.fromkeys((*self.replicas(key), *self.shards[key].replicas))
        names.pop(self.node, None)
        return list(names)

    def is_wanted(self, key: ShardKey) -> bool:
        """Whether this node is to hold the shard."""
        return self.node in self.replicas(key) and not self.shards[key].is_removed

    def install(self, placement: Placement) -> Iterable[ShardKey]:
        """Take in a newer placement map. → the shards that it concerns"""
        if self.has_placement and placement.version <= self.placement.version:
            return ()
        before, self._moved = self._moved, placement.as_map()
        self.placement, self.has_placement = placement, True
        changed = [key for key, nodes in self._moved.items() if before.get(key) != nodes]
        changed += [key for key in before if key not in self._moved]
        # what was known to be sent away when the node stopped may have come back since
        changed += [key for key, shard in self.shards.items() if shard.is_removed and key not in self._moved]
        changed = [key for key in changed if key in self.shards]
        for key in changed:
            shard = self.shards[key]
            if self._is_elsewhere(key):
                self._send_away(key)
            elif shard.stage is Stage.LEAVING or (shard.is_removed and self.node in self.replicas(key)):
                shard.move(Event.SEND_BACK)
        return changed

    def _is_elsewhere(self, key: ShardKey) -> bool:
        moved = self._moved.get(key)
        return moved is not None and self.node not in moved

    def _send_away(self, key: ShardKey) -> None:
        shard = self.shards[key]
        if shard.is_closed and shard.spans.highest > 0:
            shard.move(Event.SEND_AWAY)
            self._leaving[key] = None

    def take_leaving(self, count: int) -> list[ShardKey]:
        """The first shards that are to be removed, but for those that have been sent back since."""
        keys = list(self._leaving)[:count]
        for key in keys:
            del self._leaving[key]
        return [key for key in keys if self.shards[key].stage is Stage.LEAVING]

    def shard_end(self, key: ShardKey) -> int:
        """How far the shard is ordered, as far as this node knows."""
        shard = self.shards.get(key)
        return shard.order.until_lid if shard is not None else 0

    def held_until(self, key: ShardKey, lid: int) -> int:
        """The end of what is held from that local id on; the id itself if it is not here."""
        shard = self.shards.get(key)
        return shard.spans.end_at(lid) if shard is not None else lid

    # changing what is here

    def put(self, key: ShardKey, first_lid: int, until_lid: int, batch: bytes) -> bool:
        """Take in a batch; False if it was here."""
        shard = self.shards[key]
        if shard.spans.covers(first_lid, until_lid):
            return False
        shard.spans.add(first_lid, until_lid)
        self._writes.append(Put(batch_key(key, first_lid), batch))
        self._put_bytes += len(batch)
        self.unwritten_bytes += len(batch)
        self._changed.add(key)
        self.grown.add(key)
        return True

    def mend(self, key: ShardKey, first_lid: int, batch: bytes) -> None:
        """Write a batch again whose bytes here are damaged."""
        self._writes.append(Put(batch_key(key, first_lid), batch))

    def drop(self, key: ShardKey, first_lid: int) -> None:
        """Delete a batch whose bytes here are damaged: another replica has freed it."""
        row = batch_key(key, first_lid)
        self._writes.append(Delete(row, row + b"\x00"))
        self.note(key)

    def add_freed(self, key: ShardKey, first_lid: int, until_lid: int) -> None:
        """Another replica had these and has freed them: they will come from nobody, and count as here."""
        self.shards[key].spans.add(first_lid, until_lid)
        self.note(key)

    def note(self, key: ShardKey) -> None:
        """The disk's batches alone would not tell how far this shard is stored."""
        self._changed.add(key)
        self._noted.add(key)

    def count_fetched(self, size_bytes: int) -> None:
        """So much of what is to be written came from other replicas."""
        self._fetched_bytes += size_bytes

    def close(self, key: ShardKey) -> None:
        """The shard is ordered no further: drop what never was. It is refused from now on."""
        shard = self.shards[key]
        self.touched.add(key)
        shard.move(Event.CLOSE)
        end = shard.order.until_lid
        if shard.spans.highest > end:
            shard.spans.cut(end)
            shard.written_until = min(shard.written_until, end)
            self._writes.append(Delete(batch_key(key, end), after_shard(key)))
            self.note(key)
        if self._is_elsewhere(key):
            self._send_away(key)

    def remove(self, key: ShardKey) -> None:
        """Delete the shard's batches; from now on this node knows nothing of them."""
        shard = self.shards[key]
        shard.spans.cut(0)
        shard.written_until = 0
        shard.move(Event.REMOVE)
        shard.generation += 1
        self._writes.append(Delete(batch_key(key, 0), after_shard(key)))
        self.note(key)

    # writing

    def flush(self, also: Sequence[Put | Delete] = ()) -> tuple[list[Put | Delete], Written] | None:
        """Everything that is to be written now, `also` behind it; None if nothing has changed."""
        if not (self._writes or self._changed or also):
            return None
        writes: list[Put | Delete] = [*self._writes, *also]
        writes += [progress_write(key, self.shards[key]) for key in sorted(self._noted)]
        reached = tuple(
            (key, self.shards[key].generation, self.shards[key].stored_until) for key in sorted(self._changed)
        )
        written = Written(reached, self._fetched_bytes, self._put_bytes)
        self._writes, self._fetched_bytes, self._put_bytes = [], 0, 0
        self._changed.clear()
        self._noted.clear()
        return writes, written

    def written(self, message: Written) -> None:
        """The disk has what was flushed."""
        self.unwritten_bytes -= message.size_bytes
        for key, generation, until in message.shards:
            shard = self.shards[key]
            if shard.generation == generation:
                shard.written_until = max(shard.written_until, min(until, shard.stored_until))

    @property
    def is_at_work(self) -> bool:
        """Whether something is to be written or removed."""
        return bool(self._writes or self._changed or self._leaving)

    # telling

    def rows(self, after: ShardKey, limit: int) -> tuple[list[ShardRow], bool]:
        """A page for the controller, and whether it is the last: what is to be here, or still is."""
        found: list[ShardRow] = []
        at = bisect_right(self._keys, after)
        while at < len(self._keys) and len(found) < limit:
            key = self._keys[at]
            shard = self.shards[key]
            at += 1
            may_hold = shard.order.until_lid > 0 or not shard.is_closed
            if may_hold and (self.node in self.replicas(key) or shard.spans.highest > 0):
                ends = (shard.order.until_lid, min(shard.written_until, shard.order.until_lid))
                found.append(ShardRow(*key, shard.engine, shard.replicas, *ends, shard.is_closed))
        return found, at >= len(self._keys)
