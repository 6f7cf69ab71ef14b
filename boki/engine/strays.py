"""Batches that this life of the engine did not append itself, fetched so that the cuts that order them can be applied.

They come from the storage nodes of their shards, in runs, because the next cuts will want what follows. Only their
columns are of use here, and only those are checked: a damaged payload must not keep an index from going on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from boki.effects import Effect, Send
from boki.engine.reads import Place
from boki.log.batch import Batch
from boki.log.cuts import Piece
from boki.log.ids import NodeId
from boki.messages import BatchesFetched, FetchBatches, Holding

_REPEAT_US: Final = 200_000
_FETCH_BYTES: Final = 2 << 20


@dataclass(slots=True)
class _Shard:
    """What has been fetched of one shard, by first local id, and how far it has been used."""

    batches: dict[int, Batch] = field(default_factory=dict)
    used_until: int = 0
    asked_at: int = -_REPEAT_US
    asked_count: int = 0


class Strays:
    """Of the current term. `damage` is what keeps the index from going on, in the words of whoever said it."""

    def __init__(self) -> None:
        self.damage = ""
        self._shards: dict[Place, _Shard] = {}

    def take(
        self, place: Place, piece: Piece, replicas: Sequence[NodeId], now_us: int, effects: list[Effect]
    ) -> list[Batch] | None:
        """The batches of a piece, if all are here; else None, and `effects` gets the question when it is due."""
        shard = self._shards.setdefault(place, _Shard())
        found: list[Batch] = []
        lid = piece.first_lid
        while lid < piece.until_lid and lid in shard.batches:
            found.append(shard.batches[lid])
            lid = found[-1].header.until_lid
        if lid >= piece.until_lid:
            for batch in found:
                del shard.batches[batch.header.first_lid]
            shard.used_until = piece.until_lid
            self.damage = ""
            return found
        if replicas and now_us - shard.asked_at >= _REPEAT_US:
            shard.asked_at = now_us
            fetch = FetchBatches(0, *place, lid, 1 << 62, _FETCH_BYTES, needs_payloads=False)
            effects.append(Send(replicas[shard.asked_count % len(replicas)], fetch))
            shard.asked_count += 1
        return None

    def put(self, message: BatchesFetched) -> None:
        """A storage node has answered."""
        shard = self._shards.get((message.term, message.log, message.shard))
        if shard is None or message.first_lid < shard.used_until:
            return
        if message.error:
            self.damage = message.error
        elif message.holding is Holding.FREED:
            self.damage = (
                "records that the index needs have been trimmed away: its checkpoint, in the engine's directory, is "
                "older than they are, or lost; put that directory back"
            )
        for data in message.batches:
            batch = Batch(data)
            shard.batches[batch.header.first_lid] = batch
            shard.asked_at = -_REPEAT_US  # what follows may be asked for at once

    def clear(self) -> None:
        """Another term begins."""
        self._shards.clear()
