"""Cuts that run ahead are kept behind their records, in the log that this sequencer shares with a storage node.

The storage node of the same process (the *mate*) says what it has put into that log. A message with a cut whose records
are not among it waits here, one for each log; the next one takes its place. If the records do not come by themselves
the mate is asked to bring them. Why that is enough: `docs/design/speculative-cuts.md`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from boki.log.ids import LogId, NodeId, ShardId, Term
from boki.log.metalog import Cut, MetalogEntry
from boki.protocol.effects import Send
from boki.protocol.messages import AppendEntry, Complete, NeedRecords, RecordsTaken
from boki.sequencer.metalog_store import MetalogStore

_NOTHING: Final = (0, 0)
Parked = tuple[NodeId, AppendEntry | Complete]
"""Who sent it, and the message."""


class Behind:
    """Of one sequencer. `mate`: the storage node of its process, None if there is none: then what runs ahead waits."""

    def __init__(self, mate: NodeId | None) -> None:
        self.mate = mate
        self._taken: dict[tuple[Term, LogId, ShardId], tuple[int, int]] = {}
        """Of each shard, one range of local ids that are in front of whatever is written from now on."""
        self._parked: dict[tuple[Term, LogId], tuple[Parked, NeedRecords]] = {}
        self._overdue: dict[tuple[Term, LogId], NeedRecords] = {}
        """What was lacking at the last tick."""

    def note(self, message: RecordsTaken) -> None:
        """The mate has put records into the log."""
        key = (message.term, message.log, message.shard)
        first, until = self._taken.get(key, _NOTHING)
        if message.first_lid <= until and message.until_lid >= first:
            self._taken[key] = min(first, message.first_lid), max(until, message.until_lid)
        else:  # also below: it is the answer to a question, which is asked again of what is forgotten here
            self._taken[key] = message.first_lid, message.until_lid

    def reach(self, term: Term, log: LogId, shard: ShardId, from_lid: int) -> int:
        """The end of what is in the log of that shard from a local id on; the id itself if it is not."""
        first, until = self._taken.get((term, log, shard), _NOTHING)
        return until if first <= from_lid < until else from_lid

    def is_in_front(self, store: MetalogStore, sender: NodeId, message: AppendEntry | Complete, sure: int) -> bool:
        """Whether entries may be taken in: all records that they need are in the log, or they need none.

        Cuts below `sure` need none here: a write quorum has their records. If not, the message waits.
        """
        first = message.first_index if isinstance(message, Complete) else message.index
        ranges = self._lacking(store, first, message.entries, max(sure, store.committed))
        if not ranges:
            self._parked.pop((store.term, store.log), None)
            return True
        self._parked[store.term, store.log] = (sender, message), NeedRecords(store.term, store.log, ranges)
        return False

    def _lacking(
        self, store: MetalogStore, first: int, entries: Iterable[MetalogEntry], sure: int
    ) -> tuple[tuple[ShardId, int, int], ...]:
        if first > store.length:
            return ()
        ends: dict[ShardId, int] = {}
        needs: dict[ShardId, tuple[int, int]] = {}
        for index, entry in enumerate(entries, first):
            if index < store.length or not isinstance(entry, Cut):
                continue
            for shard, until in entry.until:
                end = ends.get(shard, store.ends.get(shard, 0))
                if entry.is_ahead and index >= sure:
                    needs[shard] = needs.get(shard, (end, 0))[0], until
                ends[shard] = until
        return tuple(
            (shard, end, until)
            for shard, (end, until) in needs.items()
            if self.reach(store.term, store.log, shard, end) < until
        )

    def pop(self, term: Term, log: LogId) -> Parked | None:
        """What waits in that log: it is to be tried again."""
        found = self._parked.pop((term, log), None)
        return found[0] if found is not None else None

    def need(self, term: Term, log: LogId) -> Iterable[Send]:
        """The question to the mate for what the message that waits in that log needs."""
        found = self._parked.get((term, log))
        return (Send(self.mate, found[1]),) if found is not None and self.mate is not None else ()

    def waits(self, message: AppendEntry | Complete) -> bool:
        """Whether that very message waits."""
        return any(waiting is message for (_, waiting), _ in self._parked.values())

    def is_waited_for(self, term: Term, log: LogId) -> bool:
        """Whether anything waits in that log."""
        return (term, log) in self._parked

    @property
    def is_at_work(self) -> bool:
        """Whether anything waits."""
        return bool(self._parked or self._overdue)

    def tick(self) -> list[Send]:
        """The questions that are due: what has been lacking since the last tick does not come by itself."""
        before, self._overdue = self._overdue, {key: need for key, (_, need) in self._parked.items()}
        return [send for key, need in self._overdue.items() if before.get(key) == need for send in self.need(*key)]

    def begin(self, term: Term) -> None:
        """A new term: nothing of earlier ones waits any more."""
        self._parked = {key: parked for key, parked in self._parked.items() if key[0] >= term}
        self._taken = {key: taken for key, taken in self._taken.items() if key[0] >= term}
