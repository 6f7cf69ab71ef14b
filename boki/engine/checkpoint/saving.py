"""When the index is saved on the engine's own disk, and who hears of it.

A checkpoint spares a start the reading of the log. Storage nodes hear how far it covers: only what no start will ask
for again may be deleted outright. Where there are several engines, each checkpoint is mirrored
(`boki.engine.checkpoint.mirror`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from boki.engine.checkpoint.mirror import Mirror, Saved
from boki.engine.index.index import Index
from boki.engine.replicas import Opened, Replicas
from boki.engine.requests import Fenced, Requests
from boki.log.ids import NodeId
from boki.log.metalog import Positions
from boki.protocol.effects import Announce, Delete, DiskReader, Effect, EngineNews, Note, Put, Send, Store, Trace
from boki.protocol.follower import MetalogFollower
from boki.protocol.messages import CheckpointStored, IndexSaved

PLACEMENT_KEY: Final = b"p"
FENCES_KEY: Final = b"f"
STALE_KEY: Final = b"s"
"""It is there if the index beside it is stale."""
_TELL_US: Final = 5_000_000
_CHECKPOINT_BYTES: Final = 4 << 20


def read_opened(disk: DiskReader) -> list[Opened]:
    """The shards that a checkpoint knows."""
    stored = disk.get(PLACEMENT_KEY)
    return msgspec.msgpack.decode(stored, type=list[Opened]) if stored else []


def read_fenced(disk: DiskReader) -> list[Fenced]:
    """The fences that a checkpoint knows."""
    stored = disk.get(FENCES_KEY)
    return msgspec.msgpack.decode(stored, type=list[Fenced]) if stored else []


@dataclass(frozen=True, slots=True)
class IndexStored(Note):
    """To itself: the index's checkpoint is on the disk."""


class Checkpoints:
    """Of one index, and of what else a start needs: where shards are, and who is fenced."""

    def __init__(
        self,
        node: NodeId,
        index: Index,
        follower: MetalogFollower,
        replicas: Replicas,
        requests: Requests,
        mirror: Mirror,
        is_settled: Callable[[], bool],
        *,
        interval_us: int,
    ) -> None:
        self._node = node
        self._index = index
        self._follower = follower
        self._replicas = replicas
        self._requests = requests
        self._mirror = mirror
        self._is_settled = is_settled
        self._interval_us = interval_us
        self._writes: Sequence[Put | Delete] = ()
        self._saving: Saved | None = None
        self._saved: Saved | None = None
        self._due_at = 0
        self._tell_at = 0
        self._is_stale = False

    @property
    def positions(self) -> Positions:
        """How far the newest checkpoint on the disk covers the metalogs; empty if there is none of this incarnation."""
        return self._saved.positions if self._saved is not None else {}

    def begin(self) -> list[Effect]:
        """Save the index. Nothing if that is being done."""
        if self._saving is not None:
            return []
        logs = list(self._follower.logs)
        told = IndexSaved(self._follower.term, {log: self._index.next_seqnum(log) for log in logs})
        self._saving = Saved(told, {log: self._index.applied[log] for log in logs})
        self._writes = [
            *self._index.checkpoint(),
            Put(PLACEMENT_KEY, msgspec.msgpack.encode(self._replicas.rows())),
            Put(FENCES_KEY, msgspec.msgpack.encode(list(self._requests.fenced.items()))),
        ]
        return [
            Trace(logging.DEBUG, f"checkpoint of the index: {len(self._writes)} writes"),
            Store(self._writes, then=(Send(self._node, IndexStored()),)),
        ]

    def stored(self) -> list[Effect]:
        """The checkpoint is durable."""
        assert self._saving is not None
        self._index.checkpoint_stored()
        self._saved, self._saving = self._saving, None
        self._mirror.add(self._writes, self._saved)
        self._writes = ()
        return [Announce(EngineNews.SAVED), *self._tell()]

    def _tell(self) -> list[Effect]:
        if self._saved is None or not self._follower.chain:
            return []
        return [Send(node, self._saved.told) for node in self._replicas.storage_nodes(self._follower.chain.current)]

    def tick(self, now_us: int) -> list[Effect]:
        """Save what has changed, if it is much or old; repeat to the storage nodes what is saved; mirror it."""
        effects: list[Effect] = []
        if now_us >= self._tell_at:
            self._tell_at = now_us + _TELL_US
            effects += self._tell()
        dirty = self._index.dirty_bytes
        if dirty >= _CHECKPOINT_BYTES or (dirty and now_us >= self._due_at):
            self._due_at = now_us + self._interval_us
            effects += self.begin()
        view = self._follower.chain.current
        keepers = self._replicas.keepers(view) if self._replicas.is_first_index(self._node) else ()
        effects += self._mirror.tick(view, keepers, now_us)
        if self._mirror.wants_base and self._saving is None and self._is_settled():  # else it is not worth its bytes
            if self._saved is None:
                effects += self.begin()
            else:
                self._mirror.begin(self._saved, now_us)
        return effects

    def rests_until(self, now_us: int) -> int:
        """Until when nothing is to be saved or told; now while a checkpoint is on its way."""
        if self._mirror.is_at_work or self._index.dirty_bytes >= _CHECKPOINT_BYTES:
            return now_us
        return min(self._tell_at, self._due_at) if self._index.dirty_bytes else self._tell_at

    def mirrored(self, sender: NodeId, message: CheckpointStored, now_us: int) -> list[Effect]:
        """A storage node has kept pages of a checkpoint."""
        return self._mirror.note(sender, message, self._follower.chain.current, now_us)

    def give_up(self, why: str) -> list[Effect]:
        """This index cannot continue. Where nobody else has one there is nothing to start from: then it only waits."""
        if self._is_stale or self._replicas.membership is None:
            return []
        self._is_stale = True
        return [
            Trace(logging.ERROR, f"this index cannot go on, and a newer one is taken from the storage nodes: {why}"),
            Store([Put(STALE_KEY, b"stale")], then=(Announce(EngineNews.STALE),)),
        ]
