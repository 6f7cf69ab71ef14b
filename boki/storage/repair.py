"""Repair: fetching what is ordered and is to be on this node, and is not.

One way serves all: a batch that was lost on the wire, a node that was away, a wiped disk, a shard that was moved here.
The gaps of a shard are divided among **lanes**. A lane asks one replica for what follows, page by page, and the next
one if that is silent or does not have it; several lanes continue at once. What a replica has *freed* counts as here;
*unknown* never does.

**What it may cost.** Gaps of open shards are fresh as long as they are small, and are closed at once. All else shares a
budget of bytes a second, and a much smaller one while appends arrive, because those wait for the same disk. What has
not reached the disk yet is bounded, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from boki.log.batch import BatchHeader, read_header
from boki.log.floors import FloorRow
from boki.log.ids import NodeId
from boki.protocol.effects import Effect, Send
from boki.protocol.messages import BatchesFetched, FetchBatches, Holding
from boki.storage.holdings import Holdings
from boki.storage.shards import ShardKey

PAGE_BYTES: Final = 512 << 10
BUSY_PAGE_BYTES: Final = 128 << 10
"""While appends arrive at the node that asks, or at the one that is asked."""
_BUSY_QUESTIONS: Final = 2
"""This many questions are under way at most while appends arrive; else each lane may have one."""
_LANES: Final = 8
_LANES_PER_SHARD: Final = 4
_SPLIT_LIDS: Final = 4096
"""A gap of more records than this is divided among lanes."""
_LOOKS: Final = 32
_TIMEOUT_US: Final = 100_000
"""What an engine has sent to the others is mostly under way to here, too."""
_SILENCE_US: Final = 1_000_000
_REST_US: Final = 500_000
"""How long a shard waits for its next lanes when no replica has what one wanted: others need lanes meanwhile."""
_FRESH_BYTES: Final = 4 << 20
_UNWRITTEN_BYTES: Final = 4 << 20
_BURST_US: Final = 100_000
_BUSY_US: Final = 200_000
_BUSY_SHARE: Final = 8
"""While appends arrive, repair takes this part of what it may: they wait for the same disks."""
_FIRST_GUESS_BYTES: Final = 1024


@dataclass(slots=True)
class _Lane:
    """A range of local ids that one replica after the other is asked for. `request` is 0 while none is under way."""

    key: ShardKey
    next_lid: int
    until_lid: int
    is_mend: bool = False
    request: int = 0
    peer: NodeId | None = None
    asked_at: int = 0
    page_bytes: int = 0
    tried: set[NodeId] = field(default_factory=set)


class Repair:
    """The lanes of one node. The core calls `look_at` for a shard that may lack something, and `ask` at every turn.
    `learn` hears of floors over what has come.
    """

    def __init__(self, holdings: Holdings, bytes_per_s: int, learn: Callable[[Sequence[FloorRow]], None]) -> None:
        self._holdings = holdings
        self._learn = learn
        self._bytes_per_s = bytes_per_s
        self._lacking: dict[ShardKey, tuple[int, int, int]] = {}
        """Shards that lack something, with (since when nothing has come from the front, what was the front, no lanes
        before).
        """
        self._lanes: list[_Lane] = []
        self._numbers = 0
        self._silent_until: dict[NodeId, int] = {}
        self._members: frozenset[NodeId] = frozenset()
        self._tokens = 0.0
        self._refilled_at = 0
        self._append_at = -_BUSY_US
        self._unwritten_bytes = 0
        self._copied_bytes = 0
        self._copied_count = 0
        self._rate = (0, 0, 0)
        """(bytes a second, measured when, bytes copied then)"""

    # what the core tells

    def look_at(self, key: ShardKey) -> None:
        """Something of this shard may be lacking here."""
        self._lacking.setdefault(key, (0, -1, 0))

    def forget(self, key: ShardKey) -> None:
        """The shard is not to be here any more."""
        self._lacking.pop(key, None)
        self._lanes = [lane for lane in self._lanes if lane.key != key]

    def mend(self, key: ShardKey, first_lid: int) -> None:
        """The batch that begins there is damaged: get its bytes from somebody else."""
        if self._holdings.is_wanted(key) and not any(lane.is_mend and lane.key == key for lane in self._lanes):
            self._lanes.append(_Lane(key, first_lid, first_lid + 1, is_mend=True))

    def note_append(self, now_us: int) -> None:
        """An engine has sent a batch: somebody waits for this disk."""
        self._append_at = now_us

    def is_busy(self, now_us: int) -> bool:
        """Whether appends are coming in."""
        return now_us - self._append_at < _BUSY_US

    @property
    def is_at_work(self) -> bool:
        """Whether something may be lacking."""
        return bool(self._lacking or self._lanes)

    def note_members(self, members: frozenset[NodeId]) -> None:
        """Who is registered: they are asked first."""
        self._members = members

    def note_written(self, size_bytes: int) -> None:
        """So much of what was fetched has reached the disk."""
        self._unwritten_bytes -= size_bytes

    # asking

    def ask(self, now_us: int, *, may_store: bool) -> list[Effect]:
        """The questions that are due."""
        if not (self._lacking or self._lanes):
            return []
        self._refill(now_us)
        self._give_up_on_silence(now_us)
        if may_store and self._unwritten_bytes < _UNWRITTEN_BYTES:
            self._open_lanes(now_us)
            return [effect for lane in list(self._lanes) for effect in self._ask(lane, now_us)]
        return []

    def _may_ask(self, lane: _Lane, now_us: int) -> bool:
        if lane.request:
            return False
        if self._is_fresh(lane.key):
            return True
        is_full = self.is_busy(now_us) and sum(lane.request > 0 for lane in self._lanes) >= _BUSY_QUESTIONS
        return self._tokens > 0 and not is_full

    def _refill(self, now_us: int) -> None:
        rate = self._bytes_per_s
        if self.is_busy(now_us):
            rate //= _BUSY_SHARE
        passed_us = min(now_us - self._refilled_at, _BURST_US)
        self._tokens = min(self._tokens + rate * passed_us / 1e6, rate * _BURST_US / 1e6)
        self._refilled_at = now_us

    def _give_up_on_silence(self, now_us: int) -> None:
        for lane in self._lanes:
            if lane.request and now_us - lane.asked_at > _SILENCE_US:
                assert lane.peer is not None, "somebody was asked"
                self._silent_until[lane.peer] = now_us + 2 * _SILENCE_US
                lane.tried.add(lane.peer)
                lane.request = 0

    def _open_lanes(self, now_us: int) -> None:
        """Give free lanes to shards that have lacked something for a while, one after the other."""
        taken = {lane.key for lane in self._lanes}
        for key in list(self._lacking)[:_LOOKS] if len(self._lacking) > _LOOKS else list(self._lacking):
            shard = self._holdings.shards[key]
            since, front, not_before = self._lacking.pop(key)
            if shard.is_whole or not self._holdings.is_wanted(key):
                continue
            if since == 0 or front != shard.stored_until:
                since = now_us
            self._lacking[key] = (since, shard.stored_until, not_before)
            is_due = now_us >= not_before and (shard.is_closed or now_us - since >= _TIMEOUT_US)
            is_free = self._is_fresh(key) or len(self._lanes) < _LANES
            if is_due and is_free and key not in taken:
                self._lanes += [_Lane(key, *gap) for gap in self._gaps(key)]

    def _gaps(self, key: ShardKey) -> list[tuple[int, int]]:
        shard = self._holdings.shards[key]
        gaps = shard.spans.gaps(0, shard.order.until_lid)[:_LANES_PER_SHARD]
        if len(gaps) > 1 or gaps[0][1] - gaps[0][0] <= _SPLIT_LIDS:
            return gaps
        first, end = gaps[0]
        size = -(-(end - first) // _LANES_PER_SHARD)
        return [(lid, min(lid + size, end)) for lid in range(first, end, size)]

    def _is_fresh(self, key: ShardKey) -> bool:
        shard = self._holdings.shards[key]
        lacking = shard.order.until_lid - shard.stored_until
        return not shard.is_closed and lacking * self._record_bytes <= _FRESH_BYTES

    def _ask(self, lane: _Lane, now_us: int) -> Sequence[Effect]:
        if not lane.is_mend:
            lane.next_lid = self._holdings.shards[lane.key].spans.end_at(lane.next_lid)
        if lane.next_lid >= lane.until_lid:
            self._lanes.remove(lane)
            return ()
        if not self._may_ask(lane, now_us):
            return ()
        peer = self._choose(lane, now_us)
        if peer is None:
            self._lanes.remove(lane)
            if lane.key in self._lacking and not lane.is_mend:
                since, front, _ = self._lacking[lane.key]
                self._lacking[lane.key] = (since, front, now_us + _REST_US)
            return ()
        self._numbers += 1
        lane.page_bytes = BUSY_PAGE_BYTES if self.is_busy(now_us) else PAGE_BYTES
        self._tokens -= lane.page_bytes
        lane.request, lane.peer, lane.asked_at = self._numbers, peer, now_us
        wanted = (*lane.key, lane.next_lid, lane.until_lid, lane.page_bytes)
        return (Send(peer, FetchBatches(lane.request, *wanted, spans_gaps=True)),)

    def _choose(self, lane: _Lane, now_us: int) -> NodeId | None:
        """Whom to ask: one who is registered and answers, if there is one; others all the same."""
        peers = [peer for peer in self._holdings.sources(lane.key) if peer not in lane.tried]
        loud = [peer for peer in peers if now_us >= self._silent_until.get(peer, 0)]
        known = [peer for peer in loud if peer in self._members]
        peers = known or loud or peers
        return peers[(self._numbers + 1) % len(peers)] if peers else None

    # answers

    def take(self, sender: NodeId, message: BatchesFetched) -> None:
        """Another replica has answered, perhaps late: what it gives is taken in as far as it is wanted."""
        key = (message.term, message.log, message.shard)
        lane = next((lane for lane in self._lanes if lane.request == message.request and lane.key == key), None)
        self._silent_until.pop(sender, None)
        shard = self._holdings.shards.get(key)
        if shard is None or not self._holdings.is_wanted(key):
            return
        size = sum(len(batch) for batch in message.batches)
        if lane is not None:
            lane.request = 0
            self._tokens += lane.page_bytes - size
        headers = [read_header(batch) for batch in message.batches]
        if lane is not None and lane.is_mend:
            self._mend(lane, headers, message)
        for header, batch in zip(headers, message.batches, strict=True):
            is_of_it = (header.term, header.log, header.shard) == key and header.until_lid <= shard.order.until_lid
            if is_of_it and self._holdings.put(key, header.first_lid, header.until_lid, batch):
                self._unwritten_bytes += len(batch)
                self._holdings.count_fetched(len(batch))
                self._copied_bytes += len(batch)
                self._copied_count += header.record_count
        self._learn(message.floors)
        freed = [(message.first_lid, message.freed_until)] if message.holding is Holding.FREED else []
        for first_lid, until_lid in (*freed, *message.gaps):
            if first_lid < (until_lid := min(until_lid, shard.order.until_lid)):
                self._holdings.add_freed(key, first_lid, until_lid)
        if lane is None:
            return
        if lane.is_mend or shard.spans.end_at(lane.next_lid) == lane.next_lid:
            lane.tried.add(sender)
        else:
            lane.tried.clear()

    def _mend(self, lane: _Lane, headers: Sequence[BatchHeader], message: BatchesFetched) -> None:
        if message.holding is Holding.FREED and message.first_lid == lane.next_lid < message.freed_until:
            self._holdings.drop(lane.key, lane.next_lid)
            lane.next_lid = lane.until_lid
            return
        for header, batch in zip(headers, message.batches, strict=True):
            if (header.term, header.log, header.shard) == lane.key and header.first_lid == lane.next_lid:
                self._holdings.mend(lane.key, header.first_lid, batch)
                lane.next_lid = lane.until_lid
                return

    # telling

    @property
    def _record_bytes(self) -> float:
        return self._copied_bytes / self._copied_count if self._copied_count else _FIRST_GUESS_BYTES

    def measure(self, now_us: int) -> None:
        """Note about once a second how fast it goes."""
        _, at, copied = self._rate
        if now_us - at >= 1_000_000:
            self._rate = ((self._copied_bytes - copied) * 1_000_000 // (now_us - at), now_us, self._copied_bytes)

    def status(self) -> dict[str, Any]:
        """How much is lacking, and how fast it comes. Bytes lacking are a guess from what has come so far."""
        holdings = self._holdings
        counts: list[int] = []
        for key in self._lacking:
            shard = holdings.shards[key]
            if holdings.is_wanted(key) and not shard.is_whole:
                counts.append(sum(until - first for first, until in shard.spans.gaps(0, shard.order.until_lid)))
        lacking = sum(counts)
        return {
            "lacking_shards": len(counts),
            "lacking_records": lacking,
            "lacking_bytes": int(lacking * self._record_bytes),
            "copied_bytes": self._copied_bytes,
            "bytes_per_s": self._rate[0],
        }
