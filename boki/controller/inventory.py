"""Which shards there are, and how much of each every storage node holds: asked page by page, again and again.

What a node said last stays until it says otherwise, also while it is away: others may not know its shards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from boki.log.ids import NodeId, Term
from boki.log.membership import Place
from boki.log.metalog import Positions
from boki.protocol.effects import Effect, Send
from boki.protocol.messages import FetchShards, ShardRow, ShardsFetched

_PAGE_ROWS: Final = 2_000
_INTERVAL_US: Final = 1_000_000
_ALL_EVERY_US: Final = 30_000_000
_REPEAT_US: Final = 1_000_000
_LATE_US: Final = 5_000_000
"""A node that takes longer for a page is not waited for: its disk may hang, and others are to be repaired."""


@dataclass(slots=True)
class Listing:
    """What one storage node has said."""

    rows: dict[Place, ShardRow] = field(default_factory=dict)
    is_whole: bool = False
    """Whether it has ever told of all its shards, in this incarnation of this controller."""
    placement_version: int = 0
    """The placement under which it told of all of them."""
    is_caught_up: bool = False
    checkpoint: Positions = field(default_factory=dict)
    """How far the newest checkpoint of the index that it keeps covers."""
    asked_at: int = 0
    """When the question was first asked to which it is the answer: what was opened since may not be in it."""


@dataclass(slots=True)
class _Scan:
    """A listing that is being fetched: the shards of `term` and later."""

    term: Term
    request: int
    after: Place
    begun_at: int
    moved_at: int
    asked_at: int = 0
    is_late: bool = False
    rows: dict[Place, ShardRow] = field(default_factory=dict)
    placement_version: int | None = None
    is_caught_up: bool = True


class Inventory:
    """The listings of all storage nodes. `tick` says whom to ask; `take` takes the answers in."""

    def __init__(self) -> None:
        self.listings: dict[NodeId, Listing] = {}
        self.has_news = False
        """Set when a listing has come, and cleared by its reader."""
        self.wants_all = True
        """Set when more than the current term's shards may have changed: the next question is for all."""
        self._scans: dict[NodeId, _Scan] = {}
        self._lives: dict[NodeId, int] = {}
        self._number = 0
        self._scan_at = 0
        self._all_at = 0

    def tick(self, nodes: Iterable[NodeId], term: Term, now_us: int) -> list[Effect]:
        """Ask these nodes, every second, for the shards of `term`; for all of them if wanted, and seldom anyway."""
        effects: list[Effect] = []
        for node, scan in self._scans.items():
            if now_us - scan.asked_at > _REPEAT_US:
                effects.append(self._ask(node, scan, now_us))
            if now_us - scan.moved_at > _LATE_US and not scan.is_late:
                scan.is_late = self.has_news = True
                self.listings[node].is_whole = False
        if now_us < self._scan_at:
            return effects
        self._scan_at = now_us + _INTERVAL_US
        asks_all = self.wants_all or now_us >= self._all_at
        if asks_all:
            self.wants_all, self._all_at = False, now_us + _ALL_EVERY_US
        wanted = dict.fromkeys(sorted(nodes))  # any order, but one that two runs share
        self._scans = {node: scan for node, scan in self._scans.items() if node in wanted}
        for node in wanted:
            is_whole = self.listings.setdefault(node, Listing()).is_whole
            first = term if is_whole and not asks_all else 0
            running = self._scans.get(node)
            if running is None or running.term > first:
                is_late = running is not None and running.is_late
                self._scans[node] = _Scan(first, 0, (first, 0, -1), now_us, now_us, is_late=is_late)
                effects.append(self._ask_next(node, self._scans[node], now_us))
        return effects

    def _ask_next(self, node: NodeId, scan: _Scan, now_us: int) -> Effect:
        self._number += 1
        scan.request, scan.moved_at = self._number, now_us
        return self._ask(node, scan, now_us)

    def _ask(self, node: NodeId, scan: _Scan, now_us: int) -> Effect:
        """Ask for a page, under the same number as before: a late answer to it is as good."""
        scan.asked_at = now_us
        return Send(node, FetchShards(scan.request, scan.after, _PAGE_ROWS))

    def take(self, node: NodeId, message: ShardsFetched, now_us: int) -> list[Effect]:
        """A page has come: the question for the next one, if there is one."""
        scan = self._scans.get(node)
        if scan is None or message.request != scan.request:
            return []
        scan.rows |= {(row.term, row.log, row.shard): row for row in message.rows}
        version = message.placement_version
        scan.placement_version = version if scan.placement_version is None else min(scan.placement_version, version)
        scan.is_caught_up = scan.is_caught_up and message.is_caught_up
        if not message.is_last and message.rows:
            last = message.rows[-1]
            scan.after = (last.term, last.log, last.shard)
            return [self._ask_next(node, scan, now_us)]
        del self._scans[node]
        listing = self.listings.setdefault(node, Listing())
        kept = {place: row for place, row in listing.rows.items() if place[0] < scan.term}
        listing.rows = kept | scan.rows
        listing.is_caught_up = scan.is_caught_up
        listing.checkpoint = message.checkpoint
        listing.asked_at = scan.begun_at
        self.has_news = True
        if scan.term == 0:
            listing.is_whole, listing.placement_version = True, scan.placement_version
        return []

    @property
    def is_scanning(self) -> bool:
        """Whether answers are still awaited, and are not late."""
        return not all(scan.is_late for scan in self._scans.values())

    def note_life(self, node: NodeId, incarnation: int) -> None:
        """The node answers under that incarnation. If that was another one when it was last heard, however long ago,
        what it said of its disk holds no more; what it said of the metalog does.
        """
        if self._lives.setdefault(node, incarnation) == incarnation:
            return
        self._lives[node] = incarnation
        self._scans.pop(node, None)
        if node in self.listings:
            self.listings[node].is_whole = False
            self.listings[node].checkpoint = {}

    def shards(self, first_term: Term = 0) -> dict[Place, ShardRow]:
        """Every shard of `first_term` and later as the node that knows most of it tells: closed if any calls it so."""
        found: dict[Place, ShardRow] = {}
        for listing in self.listings.values():
            for place, row in listing.rows.items():
                if place[0] >= first_term:
                    known = found.get(place)
                    found[place] = row if known is None else _merge(known, row)
        return found


def _merge(one: ShardRow, other: ShardRow) -> ShardRow:
    """One shard in the words of two nodes. A node that is behind does not know yet what the metalog says."""
    return ShardRow(
        one.term,
        one.log,
        one.shard,
        one.engine or other.engine,
        one.replicas or other.replicas,
        max(one.ordered_until, other.ordered_until),
        max(one.stored_until, other.stored_until),
        one.is_closed or other.is_closed,
    )
