"""What only the primary of a log knows: open shards, how far each is stored, and what has been asked for.

**A close is final.** Entries that were asked for stand before the cut of the same proposal, and a shard that is closed
among them is not in that cut any more; so nothing of a shard is ordered after its `CloseShard`. A shard that was closed
is not opened again, however late its `OpenShard` comes. A **fence** (`CloseShard.is_lost`) closes all shards of an
engine's incarnation, those that it has not opened yet, too, until the end of the term.

**A trim happens once.** It reaches up to the log's end at its place, so a repetition that came late would free what was
appended since. An engine numbers its trims upwards: those that are remembered no longer are told by their number. Each
engine's are remembered on their own, and many more than it has under way (`boki.engine.requests`).

Rule: what has been asked for is judged when it is appended, because what stands before it may have closed its shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from boki.log.ids import MAX_POSITION, NodeId, ShardId, shard_incarnation
from boki.log.metalog import CloseShard, Cut, ForgetTags, MetalogEntry, OpenShard, Trim
from boki.log.quorum import quorum_reached
from boki.log.view import View

PAGE_ENTRIES: Final = 10_000
_PAGE_REPEAT_US: Final = 250_000
_REMEMBERED_TRIMS: Final = 10_000
_MAX_REQUESTED: Final = 1_000
NEARLY_FULL: Final = MAX_POSITION - (1 << 31)
"""With this many records ordered a log asks for a new term: two thousand million are left until it gets one."""


@dataclass(slots=True)
class _Shard:
    """An open shard as the primary counts it."""

    engine: NodeId
    replicas: tuple[NodeId, ...]
    runs_ahead: bool
    stored: dict[NodeId, tuple[int, int]] = field(default_factory=dict)
    """Per replica, (incarnation, stored until)."""
    cut_until: int = 0


class Primary:
    """One log that this node leads. It is made when the term begins here and dies with the process.

    `reach(shard, local id)`: the end of what the storage node of this process has of it from there on.
    """

    def __init__(self, view: View, reach: Callable[[ShardId, int], int], sync_us: int = 0) -> None:
        self._view = view
        self._reach = reach
        self.sync_us = sync_us
        """How long this node's disk took for the last entries that it was given, or for the vote before them."""
        self.ordered_count = 0
        """Records of this log and term."""
        self.moved = False
        """Whether a report has come since the last cut."""
        self.acknowledged: dict[NodeId, int] = {}
        """Per sequencer, how many entries it holds durably."""
        self._pages: dict[NodeId, tuple[int, int]] = {}
        """Per backup that was behind, the first entry of the last page that it was sent, and when."""
        self.proposed_at = 0
        self.sure_until = 0
        """Records of cuts below this entry are known to be on a write quorum, though they ran ahead."""
        self._ahead: Cut | None = None
        """A cut in flight that has run ahead, as far as is known."""
        self.told_storage_until = 0
        """How many entries storage nodes have been told of,"""
        self.told_storage_at = 0
        """and when."""
        self._shards: dict[ShardId, _Shard] = {}
        self._closed: set[ShardId] = set()
        self._fenced: set[int] = set()
        self._requested: dict[MetalogEntry, None] = {}
        self._trims: dict[NodeId, dict[int, None]] = {}
        self._forgotten_trims: dict[NodeId, int] = {}
        """Per engine, the highest number of a trim that is remembered no longer: only what is above it is new."""
        self._last_time_us = view.start_time_us

    @property
    def has_news(self) -> bool:
        """Whether a proposal may have something to say."""
        return self.moved or bool(self._requested)

    def is_held_by_all(self, length: int) -> bool:
        """Whether every sequencer of the term holds the entries up to this length."""
        return all(self.acknowledged.get(node, 0) >= length for node in self._view.sequencers)

    @property
    def is_nearly_full(self) -> bool:
        """Whether the log nears its last position and needs a new term."""
        return self.ordered_count >= NEARLY_FULL

    def report(self, storage: NodeId, shard_id: ShardId, incarnation: int, stored_until: int) -> None:
        """A storage node holds a shard until there. Strangers and former incarnations are not heard."""
        shard = self._shards.get(shard_id)
        if shard is None or storage not in shard.replicas:
            return
        known, stored = shard.stored.get(storage, (incarnation, 0))
        if incarnation < known:
            return
        if incarnation > known:
            stored = 0  # a wiped disk counts for nothing that it once said
        shard.stored[storage] = (incarnation, max(stored, stored_until))
        self.moved = True

    def acknowledge(self, sequencer: NodeId, stored_until: int) -> bool:
        """A sequencer holds all entries below durably. → whether that is news"""
        before = self.acknowledged.get(sequencer, 0)
        self.acknowledged[sequencer] = max(before, stored_until)
        return stored_until > before

    def lacks_page(self, backup: NodeId, stored_until: int, committed: int, now_us: int, *, moved: bool) -> bool:
        """Whether a backup that answers that it stands there is to be sent the entries from there on: it is behind, and
        they are not on their way. It answers every proposal, so a page that is lost is sent again after a while. What
        it has acknowledged does not count: it may have lost that, where only votes are synced. `moved`: it holds more
        than it said before, so what is within a page of the end is under way.
        """
        page, sent_at = self._pages.get(backup, (-1, 0))
        if stored_until >= committed - (PAGE_ENTRIES if moved else 0):
            return False
        if stored_until <= page and now_us - sent_at < _PAGE_REPEAT_US:
            return False
        self._pages[backup] = stored_until, now_us
        return True

    def becomes_sure(self, until_index: int) -> bool:
        """Whether the cut in flight, which ran ahead, no longer does: reports have come. Once for each."""
        if self._ahead is None or not all(self._reported(shard) >= until for shard, until in self._ahead.until):
            return False
        self._ahead, self.sure_until = None, until_index
        return True

    def _reported(self, number: ShardId) -> int:
        shard = self._shards.get(number)
        return quorum_reached((stored for _, stored in shard.stored.values()), self._view.write_quorum) if shard else 0

    def request(self, entry: MetalogEntry) -> None:
        """Somebody asks for an entry. What is no news is dropped; what is too much is asked for again."""
        if len(self._requested) < _MAX_REQUESTED and self._is_news(entry):
            self._requested[entry] = None

    def waiting_for(self, entries: Iterable[MetalogEntry]) -> list[NodeId]:
        """The engines whose appends the entries order."""
        numbers = [number for entry in entries if isinstance(entry, Cut) for number, _ in entry.until]
        return sorted({self._shards[number].engine for number in numbers if number in self._shards})

    def take_proposal(self, now_us: int) -> Sequence[MetalogEntry]:
        """What to append now: what was asked for, then cuts if any shard has moved. Empty if there is nothing."""
        entries: list[MetalogEntry] = []
        for entry in self._requested:
            if self._is_news(entry):
                self._take(entry)
                entries.append(entry)
        self._requested = {}
        entries += self._cuts(now_us)
        return entries

    def _is_news(self, entry: MetalogEntry) -> bool:
        match entry:
            case OpenShard(shard):
                is_over = shard in self._closed or shard_incarnation(shard) in self._fenced
                return shard not in self._shards and not is_over
            case CloseShard(shard, is_lost):
                if is_lost:
                    return shard_incarnation(shard) not in self._fenced
                return shard in self._shards
            case Trim() | ForgetTags():
                is_late = entry.request <= self._forgotten_trims.get(entry.engine, -1)
                return not is_late and entry.request not in self._trims.get(entry.engine, ())
        return False  # nobody but the primary makes cuts

    def _take(self, entry: MetalogEntry) -> None:
        match entry:
            case OpenShard(shard, engine, replicas):
                self._shards[shard] = _Shard(
                    engine, replicas, bool(self._view.beside) and self._view.runs_ahead(replicas)
                )
            case CloseShard(shard, is_lost):
                incarnation = shard_incarnation(shard)
                if is_lost:
                    self._fenced.add(incarnation)
                for number in [
                    n for n in self._shards if n == shard or (is_lost and shard_incarnation(n) == incarnation)
                ]:
                    del self._shards[number]
                    self._closed.add(number)
            case Trim() | ForgetTags():
                trims = self._trims.setdefault(entry.engine, {})
                trims[entry.request] = None
                if len(trims) > _REMEMBERED_TRIMS:
                    number = next(iter(trims))
                    del trims[number]
                    self._forgotten_trims[entry.engine] = max(self._forgotten_trims.get(entry.engine, -1), number)

    def _cuts(self, now_us: int) -> list[MetalogEntry]:
        """One cut for what a write quorum has reported, and one that runs ahead."""
        self.moved = False
        self._ahead = None
        reported: list[tuple[ShardId, int]] = []
        ahead: list[tuple[ShardId, int]] = []
        for number, shard in sorted(self._shards.items()):
            reached = self._reported(number)
            moves = reported
            if shard.runs_ahead and (taken := self._reach(number, shard.cut_until)) > reached:
                reached, moves = taken, ahead
            # a position that does not fit would be one of another log: the next term takes these records
            reached = min(reached, shard.cut_until + MAX_POSITION - self.ordered_count)
            if reached > shard.cut_until:
                self.ordered_count += reached - shard.cut_until
                shard.cut_until = reached
                moves.append((number, reached))
        if not (reported or ahead):
            return []
        self._last_time_us = max(self._last_time_us, now_us)
        cuts: list[MetalogEntry] = [Cut(self._last_time_us, tuple(reported))] if reported else []
        if ahead:
            self._ahead = Cut(self._last_time_us, tuple(ahead), is_ahead=True)
            cuts.append(self._ahead)
        return cuts
