"""How far shards are stored: which of them the next write reports, and to whom.

A report rides on a write. It goes to the primary; the shard's engine hears of it when it is *wide*: repeated because no
cut has covered it, of a disk that is full, or of a new one.
"""

from __future__ import annotations

from collections.abc import Iterable

from boki.log.view import ViewChain
from boki.protocol.effects import Send
from boki.protocol.messages import ShardProgress
from boki.storage.holdings import Holdings
from boki.storage.shards import ShardKey


class Reports:
    """Of one storage node. `incarnation` names the run of its disk."""

    def __init__(self, holdings: Holdings, incarnation: int) -> None:
        self.has_room = True
        """What reports say of the disk. Without room all are wide."""
        self._holdings = holdings
        self._incarnation = incarnation
        self._due: dict[ShardKey, bool] = {}
        """Whether the shard's engine is told, too."""

    def note(self, key: ShardKey) -> None:
        """Something of the shard is written next."""
        self._due.setdefault(key, not self.has_room)

    def widen(self, keys: Iterable[ShardKey]) -> None:
        """The engines of these shards are to hear of it, too."""
        self._due |= dict.fromkeys(keys, True)

    def take(self, chain: ViewChain) -> list[Send]:
        """The reports that are due, as they stand now."""
        due, self._due = self._due, {}
        return [send for key, is_wide in sorted(due.items()) for send in self._report(key, chain, is_wide=is_wide)]

    def _report(self, key: ShardKey, chain: ViewChain, *, is_wide: bool) -> Iterable[Send]:
        term, log, number = key
        shard = self._holdings.shards[key]
        if shard.is_closed or term not in chain:
            return
        progress = ShardProgress(term, log, number, self._incarnation, shard.stored_until, self.has_room)
        yield Send(chain[term].primaries[log], progress)
        if shard.engine is not None and is_wide:
            yield Send(shard.engine, progress)
