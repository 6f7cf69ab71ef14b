"""Batches that this incarnation of the engine did not append itself, kept until the cuts that order them are applied.

Other engines push theirs here while the storage nodes write them, so that they are here when the cut comes. What is
not here then is fetched from the storage nodes of its shard, at once and in runs, because the next cuts will want what
follows. Of what is fetched only the columns are of use, and only those are checked: a damaged payload must not stop an
index.

"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from boki.engine.waiter import Unstamped
from boki.errors import BokiError
from boki.log.batch import Batch
from boki.log.cuts import Piece
from boki.log.ids import NodeId, Term
from boki.log.membership import Place
from boki.protocol.effects import Send
from boki.protocol.messages import BatchesFetched, FetchBatches, Holding

_REPEAT_US: Final = 100_000
_FETCH_BYTES: Final = 2 << 20


@dataclass(slots=True)
class _Shard:
    """What is here of one shard, by first local id, and how far it has been used."""

    batches: dict[int, Batch] = field(default_factory=dict)
    used_until: int = 0
    asked_at: int = -_REPEAT_US
    asked_count: int = 0
    refused_count: int = 0
    """How many replicas in a row had nothing to give."""


class Strays:
    """Of the term that is followed, and pushed ones of later terms.

    What was pushed is kept within `pushed_limit_bytes`: beyond that the oldest are dropped, and fetched when needed.
    `damage` is why the index cannot continue: the error of a storage node, or that records it needs are trimmed away.
    """

    def __init__(self, pushed_limit_bytes: int) -> None:
        self.damage = ""
        self._pushed_limit_bytes = pushed_limit_bytes
        self._shards: dict[Place, _Shard] = {}
        self._pushed: OrderedDict[tuple[Place, int], int] = OrderedDict()
        self._pushed_bytes = 0

    # coming in

    def push(self, data: bytes, term: Term) -> Term:
        """Another engine's batch has come; `term` is the one that is followed. → the batch's term"""
        batch = _read(data)
        if batch is None:
            return 0  # the storage nodes have it, too
        header = batch.header
        if header.term < term:
            return header.term
        place = (header.term, header.log, header.shard)
        shard = self._shards.setdefault(place, _Shard())
        if header.first_lid < shard.used_until or header.first_lid in shard.batches:
            return header.term
        shard.batches[header.first_lid] = batch
        self._pushed[place, header.first_lid] = len(data)
        self._pushed_bytes += len(data)
        while self._pushed_bytes > self._pushed_limit_bytes:
            oldest, lid = next(iter(self._pushed))
            self._drop(oldest, self._shards[oldest], lid)
        return header.term

    def put(self, message: BatchesFetched) -> bool:
        """A storage node has answered; True if what the index needs has been freed there."""
        shard = self._shards.get((message.term, message.log, message.shard))
        if shard is None or message.first_lid < shard.used_until:
            return False
        if message.error:
            self.damage = message.error
        elif message.holding is Holding.FREED:
            self.damage = (
                "records that the index needs have been trimmed away: its checkpoint, in the engine's directory, is "
                "older than they are, or lost; put that directory back"
            )
        for data in message.batches:
            batch = _read(data)
            if batch is None:
                return False
            shard.batches.setdefault(batch.header.first_lid, batch)
        shard.refused_count = 0 if message.batches else shard.refused_count + 1
        if shard.refused_count < 2:
            shard.asked_at = -_REPEAT_US  # what follows, or another replica, may be asked at once
        return message.holding is Holding.FREED

    # being used

    def find(
        self, place: Place, piece: Piece, replicas: Sequence[NodeId], now_us: int, effects: list[Unstamped]
    ) -> list[Batch] | None:
        """The batches of a piece, if all are here; else None, and `effects` gets the question when it is due."""
        shard = self._shards.setdefault(place, _Shard())
        found: list[Batch] = []
        lid = piece.first_lid
        while lid < piece.until_lid and lid in shard.batches:
            found.append(shard.batches[lid])
            lid = found[-1].header.until_lid
        if lid >= piece.until_lid:
            return found
        if replicas and now_us - shard.asked_at >= _REPEAT_US:
            shard.asked_at = now_us
            fetch = FetchBatches(0, *place, lid, 1 << 62, _FETCH_BYTES, needs_payloads=False)
            effects.append(Send(replicas[shard.asked_count % len(replicas)], fetch))
            shard.asked_count += 1
        return None

    def is_pushed(self, batch: Batch) -> bool:
        """Whether it came from the engine that appended it."""
        header = batch.header
        return ((header.term, header.log, header.shard), header.first_lid) in self._pushed

    def use(self, place: Place, batch: Batch) -> None:
        """The shard's next batch is ordered and applied."""
        shard = self._shards[place]
        self._drop(place, shard, batch.header.first_lid)
        shard.used_until = batch.header.until_lid
        self.damage = ""

    def _drop(self, place: Place, shard: _Shard, lid: int) -> None:
        del shard.batches[lid]
        self._pushed_bytes -= self._pushed.pop((place, lid), 0)

    # ending

    def forget(self, place: Place) -> None:
        """The shard is closed: nothing more of it is ordered."""
        shard = self._shards.pop(place, None)
        for lid in list(shard.batches) if shard is not None else ():
            self._pushed_bytes -= self._pushed.pop((place, lid), 0)

    def begin_term(self, term: Term) -> None:
        """Nothing of earlier terms is needed any more."""
        for place in [place for place in self._shards if place[0] < term]:
            self.forget(place)


def _read(data: bytes) -> Batch | None:
    """The batch, its columns checked; None if it was damaged on the way."""
    try:
        batch = Batch(data)
        _ = batch.chunks
    except BokiError:
        return None
    return batch
