"""The batches that a cut orders: this engine's own, those that others pushed here, those fetched from storage nodes."""

from __future__ import annotations

from collections.abc import Sequence

from boki.engine.appends import Appends
from boki.engine.cache import RecordCache
from boki.engine.replicas import Replicas
from boki.engine.strays import Strays
from boki.engine.waiter import Unstamped
from boki.log.batch import Batch
from boki.log.cuts import Piece
from boki.log.ids import LogId, Term


class Gathering:
    """Looks a cut's batches up, and lets them go when it is applied."""

    def __init__(self, appends: Appends, strays: Strays, replicas: Replicas, cache: RecordCache) -> None:
        self._appends = appends
        self._strays = strays
        self._replicas = replicas
        self._cache = cache

    def gather(
        self, term: Term, log: LogId, pieces: Sequence[Piece], now_us: int, effects: list[Unstamped]
    ) -> list[Batch] | None:
        """The batches of the pieces, in their order; None if some must be fetched first, which `effects` then do."""
        batches: list[Batch] = []
        is_complete = True
        for piece in pieces:
            found = self._appends.batches_of(log, piece)
            if found is None:
                place = (term, log, piece.shard)
                found = self._strays.find(place, piece, self._replicas.of(place), now_us, effects)
            if found is None:
                is_complete = False
            else:
                batches += found
        return batches if is_complete else None

    def applied(self, term: Term, log: LogId, pieces: Sequence[Piece], batches: Sequence[Batch]) -> None:
        """The cut is applied: keep what will be read, and drop the rest.

        Kept is what came straight from the engine that appended it; the payloads of another's nobody has checked yet.
        What was fetched came for its columns alone: its payloads may be damaged, or freed.
        """
        is_own = {piece.shard: self._appends.batches_of(log, piece) is not None for piece in pieces}
        seqnum = pieces[0].first_seqnum
        for batch in batches:
            header = batch.header
            if is_own[header.shard]:
                self._cache.add(seqnum, batch)
            else:
                if self._strays.is_pushed(batch):
                    self._cache.add(seqnum, batch, is_checked=False)
                self._strays.use((term, log, header.shard), batch)
            seqnum += header.record_count
