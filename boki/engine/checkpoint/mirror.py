"""Checkpoints of the index for engines that start without one, mirrored to the storage nodes.

One engine does it: of those that hold the index, the first by name. It sends a whole index as number 1 of a
**lineage**, then what changes from one of its own checkpoints to the next. Pages go out at a bounded rate, each to
every node that takes part, the next when it is stored. A checkpoint that a write quorum has completely makes old
metalog entries superfluous; they are dropped one checkpoint later, so that an engine which has just begun from the one
before still finds them.

A node that falls behind, or comes later, is left out: it can only be sent a whole index again. That is done when too
few nodes are left, and if any is left out, between two checkpoints: ever more rarely while one is left out each time,
because its disk is full or hangs. A checkpoint is sent the faster, the more has changed since it began.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from boki.log.ids import NodeId
from boki.log.metalog import Positions, split_position
from boki.log.view import View
from boki.protocol.effects import Delete, DiskReader, Effect, Put, Send, Trace
from boki.protocol.messages import CheckpointStored, DropEntries, IndexSaved, StoreCheckpoint

INDEX_KEYS: Final = ((b"f", b"f\x00"), (b"i/", b"i0"), (b"p", b"p\x00"))
"""Where an engine's disk holds its index and what belongs to it, as ranges."""

_WINDOW: Final = 4
"""This many pages of a checkpoint wait to be stored by the slowest node that takes part."""
_BYTES_A_SECOND: Final = 4 << 20
_HURRY: Final = 8
"""A checkpoint is sent at that rate and up to this many times more, as the queue behind it fills."""
_QUEUE_BYTES: Final = 64 << 20
_LINEAGE_BITS: Final = 20
_REPEAT_US: Final = 1_000_000
_LAG_US: Final = 10_000_000
"""A node that has stored nothing for this long, while others have all, is left out."""
_BACKOFF_US: Final = 10_000_000
_RENEW_US: Final = 300_000_000
_MAX_PAUSE_US: Final = 3_600_000_000
"""The longest pause before a whole index is sent again: it is doubled each time that this was of no use."""

_Writes = Sequence[Put | Delete]


@dataclass(frozen=True, slots=True)
class Saved:
    """How far a checkpoint covers: as storage nodes are told, and as metalog positions of that term."""

    told: IndexSaved
    positions: Positions


@dataclass(slots=True)
class _Keeper:
    """A storage node that takes part in the lineage."""

    stored_pages: int = 0
    sent_page: int = -1
    sent_at: int = 0
    advanced_at: int = 0
    is_complete: bool = False


@dataclass(slots=True)
class _Build:
    """One checkpoint on its way. `held` are its pages from `first_page` on, as far as they are read."""

    number: int
    saved: Saved
    writes: Iterator[Put | Delete]
    held: deque[StoreCheckpoint] = field(default_factory=deque)
    first_page: int = 0
    is_read: bool = False


class Mirror:
    """Of one engine. `wants_base`: it waits for a moment at which the disk is exactly at a checkpoint."""

    def __init__(self, incarnation: int, disk: DiskReader, page_bytes: int) -> None:
        self._disk = disk
        self._page_bytes = page_bytes
        self._lineage = incarnation << _LINEAGE_BITS
        self._queue: deque[tuple[_Writes, Saved]] = deque()
        self._queued_bytes = 0
        self._keepers: dict[NodeId, _Keeper] = {}
        self._build: _Build | None = None
        self._number = 0
        """Of the last checkpoint that a quorum has; 0: the lineage has not begun."""
        self._last: Saved | None = None
        self._storage: Sequence[NodeId] = ()
        self._whole_at = 0
        """When its whole index was complete."""
        self._renew_us = _RENEW_US
        self._renewed_for: set[NodeId] = set()
        """The nodes that were left out when it began again for that."""
        self._retry_us = _BACKOFF_US
        """The pause when too much waits the next time."""
        self._next_at = 0
        self._has_emptied = False
        """Whether a node that took part has come back without anything: it can be sent a whole index at once."""
        self._allowance = 0
        self._ticked_at = 0

    @property
    def wants_base(self) -> bool:
        """Whether a whole index should be sent, from the last checkpoint that the disk holds."""
        return bool(self._storage) and not self._keepers and self._ticked_at >= self._next_at

    @property
    def is_at_work(self) -> bool:
        """Whether a checkpoint is on its way, or is to be."""
        return self._build is not None or bool(self._queue) or self.wants_base

    def begin(self, saved: Saved, now_us: int) -> None:
        """The disk is exactly at this checkpoint, now: send all of it."""
        self._lineage += 1
        self._number = 0
        self._keepers = {node: _Keeper(advanced_at=now_us) for node in self._storage}
        self._build = _Build(1, saved, _snapshot(self._disk))

    def add(self, writes: _Writes, saved: Saved) -> None:
        """The engine has saved its index again by these writes."""
        if not self._keepers:
            return
        self._queue.append((writes, saved))
        self._queued_bytes += _size(writes)

    def tick(self, view: View, storage: Sequence[NodeId], now_us: int) -> list[Effect]:
        """Send what is due. `storage`: the nodes that exist; none if it is not for this engine to do it."""
        hurry = 1 + _HURRY * self._queued_bytes / _QUEUE_BYTES
        earned = int((now_us - self._ticked_at) * _BYTES_A_SECOND * hurry) // 1_000_000
        # one page too many at most, or as many as it hurries: appends continue beside
        self._allowance = min(self._allowance + earned, int(self._page_bytes * hurry))
        self._ticked_at = now_us
        self._storage = storage if len(storage) >= view.write_quorum else ()
        if not self._keepers:
            return []
        if self._queued_bytes > _QUEUE_BYTES:
            backoff_us, self._retry_us = self._retry_us, min(2 * self._retry_us, _MAX_PAUSE_US)
            return [self._abandon(f"{self._queued_bytes >> 20} MiB of changes wait for the nodes", now_us, backoff_us)]
        if why := self._judge(now_us):
            return [self._abandon(why, now_us)]
        if self._build is None and self._queue:
            writes, saved = self._queue.popleft()
            self._queued_bytes -= _size(writes)
            self._build = _Build(self._number + 1, saved, iter(writes))
            for keeper in self._keepers.values():
                keeper.stored_pages, keeper.sent_page, keeper.advanced_at = 0, -1, now_us
                keeper.is_complete = False
        return [*self._leave_out(view, now_us), *self._finish(view), *self._send(now_us)]

    def _judge(self, now_us: int) -> str:
        """Why this lineage does not continue, in words; empty if it does. Pauses are shortened and doubled here."""
        if not self._storage:
            return "it is not for this engine to do it, or too few storage nodes are there"
        left_out, age_us = set(self._storage) - self._keepers.keys(), now_us - self._whole_at
        have_come = self._number and self._renewed_for and self._renewed_for <= self._keepers.keys()
        if have_come or not left_out <= self._renewed_for:
            self._renew_us, self._renewed_for = _RENEW_US, set()
        if self._number and not self._queue and age_us > _RENEW_US:
            self._retry_us = _BACKOFF_US
        if left_out and self._build is None and age_us > self._renew_us:
            self._renew_us, self._renewed_for = min(2 * self._renew_us, _MAX_PAUSE_US), left_out
            return f"to take in {', '.join(sorted(left_out))}, too"
        return ""

    def _abandon(self, why: str, now_us: int, backoff_us: int = _BACKOFF_US) -> Trace:
        number = self._number
        self._keepers.clear()
        self._queue.clear()
        self._queued_bytes = 0
        self._build = None
        self._last = None
        self._has_emptied = False
        self._next_at = now_us + backoff_us
        done = f"after checkpoint {number}" if number else "before its first checkpoint was complete"
        return Trace(logging.INFO, f"the mirrored index begins again {done}: {why}")

    def _leave_out(self, view: View, now_us: int) -> Iterable[Effect]:
        """Nobody waits for a node that does not continue, or that has gone; then others may take its place at once."""
        has_gone = not self._keepers.keys() <= set(self._storage)
        for node, keeper in list(self._keepers.items()):
            is_slow = not keeper.is_complete and now_us - keeper.advanced_at > _LAG_US
            if node not in self._storage or (self._build is not None and is_slow):
                del self._keepers[node]
        if len(self._keepers) >= view.write_quorum:
            return ()
        backoff_us = 0 if has_gone else _REPEAT_US if self._has_emptied else _BACKOFF_US
        return (self._abandon("too few storage nodes keep it", now_us, backoff_us),)

    def _send(self, now_us: int) -> list[Effect]:
        build = self._build
        if build is None or not self._keepers:
            return []
        slowest = min(keeper.stored_pages for keeper in self._keepers.values())
        while build.held and build.first_page < slowest:
            build.held.popleft()
            build.first_page += 1
        while not build.is_read and len(build.held) < _WINDOW and self._allowance > 0:
            self._read_page(build)
        effects: list[Effect] = []
        for node, keeper in self._keepers.items():
            page = keeper.stored_pages
            is_sent = keeper.sent_page == page and now_us - keeper.sent_at < _REPEAT_US
            if keeper.is_complete or is_sent or page >= build.first_page + len(build.held):
                continue
            keeper.sent_page, keeper.sent_at = page, now_us
            effects.append(Send(node, build.held[page - build.first_page]))
        return effects

    def _read_page(self, build: _Build) -> None:
        rows: list[tuple[bytes, bytes]] = []
        deleted: list[tuple[bytes, bytes]] = []
        size_bytes = 0
        build.is_read = True
        for write in build.writes:
            if isinstance(write, Put):
                rows.append((write.key, write.value))
                size_bytes += len(write.key) + len(write.value)
            else:
                deleted.append((write.start, write.stop))
                size_bytes += len(write.start) + len(write.stop)
            if size_bytes >= self._page_bytes:
                build.is_read = False
                break
        self._allowance -= size_bytes
        saved = build.saved
        build.held.append(
            StoreCheckpoint(
                self._lineage,
                build.number,
                build.first_page + len(build.held),
                build.is_read,
                tuple(rows),
                tuple(deleted),
                saved.positions,
                saved.told.next_seqnums,
            )
        )

    def note(self, sender: NodeId, message: CheckpointStored, view: View, now_us: int) -> list[Effect]:
        """A storage node has kept pages, or cannot."""
        build, keeper = self._build, self._keepers.get(sender)
        if build is None or keeper is None:
            return []
        if message.lineage != self._lineage:
            if message.lineage >> _LINEAGE_BITS != self._lineage >> _LINEAGE_BITS:
                self._has_emptied |= message.lineage == 0
                del self._keepers[sender]  # it lacks what these pages build on
            return []
        if message.number != build.number:
            if message.number < build.number - 1:
                del self._keepers[sender]
            return []  # else it is a late word about the one before
        if message.pages > keeper.stored_pages or message.is_complete:
            keeper.advanced_at = now_us
        keeper.stored_pages = max(keeper.stored_pages, message.pages)
        keeper.is_complete |= message.is_complete
        return [*self._finish(view), *self._send(now_us)]

    def _finish(self, view: View) -> list[Effect]:
        """A quorum has the checkpoint, and every node that takes part: drop what the one before covers."""
        build = self._build
        is_complete = all(keeper.is_complete for keeper in self._keepers.values())
        if build is None or not is_complete or len(self._keepers) < view.write_quorum:
            return []
        self._build = None
        self._number = build.number
        if build.number == 1:
            self._whole_at = self._ticked_at
        before, self._last = self._last, build.saved
        if before is None:
            return []
        return [
            Send(node, DropEntries(term, log, until))
            for log, position in before.positions.items()
            for term, until in [split_position(position)]
            for node in view.sequencers
        ]


def _snapshot(disk: DiskReader) -> Iterator[Put | Delete]:
    """All rows of the index as the disk has them now, whatever is written to it while they are read."""
    rows: list[tuple[bytes, bytes]] = []
    later: list[Iterator[tuple[bytes, bytes]]] = []
    for start, stop in INDEX_KEYS:
        scan = iter(disk.scan(start, stop))
        first = next(scan, None)  # the first look is what fixes the moment
        if first is not None:
            rows.append(first)
            later.append(scan)
    return _puts(rows, later)


def _puts(rows: Iterable[tuple[bytes, bytes]], later: Iterable[Iterator[tuple[bytes, bytes]]]) -> Iterator[Put]:
    for first, scan in zip(rows, later, strict=True):
        yield Put(*first)
        for key, value in scan:
            yield Put(key, value)


def _size(writes: _Writes) -> int:
    return sum(len(write.key) + len(write.value) if isinstance(write, Put) else len(write.start) for write in writes)
