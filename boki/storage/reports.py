"""How far shards are stored: which of them the next write reports, and to whom.

A report rides on a write. It goes to the primary; the shard's engine hears of it when it is *wide*: repeated because no
cut has covered it, of a disk that is full, or of a new one.

**Where cuts run ahead** (`boki.log.view.View.runs_ahead`) the sequencer of this process is told at once, before the
sync if both share a log, and the primary hears only what has not been covered by a cut for a while: it then goes by
reports, as everywhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final

from boki.log.ids import NodeId
from boki.log.view import View, ViewChain
from boki.protocol.effects import Effect, Send
from boki.protocol.messages import RecordsTaken, ShardProgress
from boki.storage.holdings import Holdings
from boki.storage.shards import ShardKey


class _To(IntEnum):
    """Who is to hear of a shard. Each also tells those before."""

    NEAREST = 0
    """The sequencer of this process, where cuts run ahead, else the primary."""
    PRIMARY = 1
    ENGINE = 2


_NEAREST: Final = _To.NEAREST


class Reports:
    """Of one storage node. `incarnation` names the run of its disk; `mate` is the sequencer of its process, if any."""

    def __init__(self, holdings: Holdings, incarnation: int, mate: NodeId | None) -> None:
        self.has_room = True
        """What reports say of the disk. Without room all are wide."""
        self._holdings = holdings
        self._incarnation = incarnation
        self._mate = mate
        self._due: dict[ShardKey, _To] = {}
        self._taken: list[RecordsTaken] = []
        self._seen: dict[ShardKey, int] = {}
        """How far shards were stored at the last tick, where no cut had come so far."""

    def note(self, key: ShardKey) -> None:
        """Something of the shard is written next."""
        self._due.setdefault(key, _NEAREST if self.has_room else _To.ENGINE)

    def remind(self, keys: Iterable[ShardKey], view: View) -> None:
        """At every tick, of open shards: what no cut has covered since the last one the primary is to hear of."""
        before, self._seen = self._seen, {}
        for key in keys if view.beside else ():
            shard = self._holdings.shards[key]
            if shard.stored_until > shard.order.until_lid:
                self._seen[key] = shard.stored_until
                if before.get(key, 0) > shard.order.until_lid:
                    self._due[key] = max(self._due.get(key, _NEAREST), _To.PRIMARY)

    @property
    def is_at_work(self) -> bool:
        """Whether something is to be told; without room all is told again and again."""
        return bool(self._due or self._taken or self._seen) or not self.has_room

    @staticmethod
    def are_near(effects: Sequence[Effect]) -> bool:
        """Whether these are reports, and all stay in this process, which hears of them before the sync."""
        return bool(effects) and all(
            isinstance(each, Send) and isinstance(each.message, RecordsTaken) for each in effects
        )

    def widen(self, keys: Iterable[ShardKey]) -> None:
        """The engines of these shards are to hear of it, too."""
        self._due |= dict.fromkeys(keys, _To.ENGINE)

    def answer(self, key: ShardKey, first_lid: int, until_lid: int) -> None:
        """The sequencer of this process waits for these records, and they are here, or are written next."""
        self._taken.append(RecordsTaken(*key, first_lid, until_lid))

    def take(self, chain: ViewChain) -> list[Send]:
        """The reports that are due, as they stand now."""
        due, self._due = self._due, {}
        sends = [send for key, to in sorted(due.items()) for send in self._report(key, chain, to)]
        if self._taken:
            assert self._mate is not None, "only that sequencer asks for it"
            sends += [Send(self._mate, taken) for taken in self._taken]
            self._taken = []
        return sends

    def _report(self, key: ShardKey, chain: ViewChain, to: _To) -> Iterable[Send]:
        term, log, number = key
        shard = self._holdings.shards[key]
        if shard.is_closed or term not in chain:
            return
        view = chain[term]
        if view.beside and self._mate is not None and view.is_beside(self._mate, self._holdings.node):
            yield Send(self._mate, RecordsTaken(term, log, number, *shard.spans.last))
            if to is _NEAREST and view.runs_ahead(shard.replicas):
                return
        progress = ShardProgress(term, log, number, self._incarnation, shard.stored_until, self.has_room)
        yield Send(view.primaries[log], progress)
        if shard.engine is not None and to is _To.ENGINE:
            yield Send(shard.engine, progress)
