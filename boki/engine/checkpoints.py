"""When the index is saved on the engine's own disk, and who hears of it.

A checkpoint spares a start the reading of the log. Storage nodes hear how far it covers: only what no start will ask
for again may be deleted outright.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from boki.effects import Answer, Delete, Effect, Put, Send, Store, Trace
from boki.engine.index import Index
from boki.log.ids import NodeId
from boki.messages import IndexSaved

SAVED: Final = "saved"
"""The token of the `Answer` that follows each checkpoint when it is durable."""
_TELL_US: Final = 5_000_000
_CHECKPOINT_BYTES: Final = 4 << 20
_CHECKPOINT_US: Final = 30_000_000


@dataclass(frozen=True, slots=True)
class CheckpointStored:
    """To itself: the index's checkpoint is on the disk."""


class Checkpoints:
    """Of one index. `place` tells how far it is now; `extra` is what else a start needs, as writes."""

    def __init__(
        self, node: NodeId, index: Index, place: Callable[[], IndexSaved], extra: Callable[[], Sequence[Put]]
    ) -> None:
        self._node = node
        self._index = index
        self._place = place
        self._extra = extra
        self._saving: IndexSaved | None = None
        self._saved: IndexSaved | None = None
        self._due_at = 0
        self._tell_at = 0

    def begin(self) -> list[Effect]:
        """Save the index. Nothing if that is being done."""
        if self._saving is not None:
            return []
        self._saving = self._place()
        writes: list[Put | Delete] = [*self._index.checkpoint(), *self._extra()]
        return [
            Trace(logging.DEBUG, f"checkpoint of the index: {len(writes)} writes"),
            Store(writes, then=(Send(self._node, CheckpointStored()),)),
        ]

    def stored(self, storage: Iterable[NodeId]) -> list[Effect]:
        """The checkpoint is durable."""
        self._index.checkpoint_stored()
        self._saved, self._saving = self._saving, None
        return [Answer(SAVED, None), *self._tell(storage)]

    def _tell(self, storage: Iterable[NodeId]) -> list[Effect]:
        return [Send(node, self._saved) for node in storage] if self._saved is not None else []

    def tick(self, storage: Iterable[NodeId], now_us: int) -> list[Effect]:
        """Save what has changed, if it is much or old; repeat to the storage nodes what is saved."""
        effects: list[Effect] = []
        if now_us >= self._tell_at:
            self._tell_at = now_us + _TELL_US
            effects += self._tell(storage)
        dirty = self._index.dirty_bytes
        if dirty >= _CHECKPOINT_BYTES or (dirty and now_us >= self._due_at):
            self._due_at = now_us + _CHECKPOINT_US
            effects += self.begin()
        return effects
