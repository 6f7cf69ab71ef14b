"""The storage node keeps batches as they came and says how far each shard is durable. It decides no order.

**Reports.** A batch is written, and the report of how far its shard is stored, contiguously, rides on that write: it
leaves after the sync. Reports are absolute numbers under this node's incarnation, so losing or repeating one does no
harm, and a disk that was wiped (a new incarnation) counts for nothing it once said.

**Following the metalog.** From the cuts the node learns what is ordered: what it lacks it fetches from the shard's
other replicas; and when a term is over and applied to its end, what was never ordered is dropped and more is refused.
From the trims it learns what may be freed (`boki.storage.sweep`).

**Answers** to a fetch tell *have*, *freed*, *never had* and *unknown* apart, because taking "not here" for "never
existed" is how logs lose data (BookKeeper BP-46). Bytes that fail a checksum are never given out.

Rule: this file never looks into a batch to store it; it knows its header.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from boki.effects import Delete, DiskReader, DiskRoom, Effect, Load, Loaded, Put, Send, Store, Trace
from boki.errors import BokiError
from boki.follower import COORDINATOR, MetalogFollower
from boki.log.batch import Batch, read_header
from boki.log.cuts import Piece, ShardOrder
from boki.log.floors import Floors
from boki.log.ids import LogId, NodeId, make_seqnum
from boki.log.metalog import CloseShard, Cut, MetalogEntry, OpenShard, Positions, Trim, split_position
from boki.log.view import View
from boki.messages import (
    BatchesFetched,
    FetchBatches,
    FetchView,
    Holding,
    IndexSaved,
    InstallView,
    Metalog,
    ShardProgress,
    StoreBatch,
)
from boki.storage.shards import (
    Checkpoint,
    Shard,
    ShardKey,
    ShardState,
    after_shard,
    batch_key,
    find_shards,
    recover_shard,
    split_batch_key,
)
from boki.storage.sweep import Sweep, SweepStep

CHECKPOINT_KEY: Final = b"s"
_CHECKPOINT_ENTRIES: Final = 20_000
_REPEAT_US: Final = 200_000
_GAP_PATIENCE_US: Final = 100_000
_FETCH_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class _Question:
    """A fetch being loaded from the disk."""

    sender: NodeId
    message: FetchBatches


@dataclass(frozen=True, slots=True)
class _Written:
    """To itself: the disk has these shards until there."""

    shards: tuple[tuple[ShardKey, int], ...]


class StorageCore:
    """One storage node. `disk` is what is on its disk at the start; `incarnation` names that disk's life."""

    def __init__(self, node: NodeId, incarnation: int, disk: DiskReader) -> None:
        self.node = node
        self.incarnation = incarnation
        self.has_room = True
        self._may_store = True
        stored = disk.get(CHECKPOINT_KEY)
        state = msgspec.msgpack.decode(stored, type=Checkpoint) if stored is not None else Checkpoint()
        self.follower = MetalogFollower(state.applied)
        self.floors = Floors(state.floors)
        self.sweep = Sweep(self.floors, self._seqnum_of, self._is_saved, state.waits_below)
        self._saved: dict[NodeId, IndexSaved] = {}
        self._applied: Positions = dict(state.applied)
        self._next_seqnums: dict[LogId, int] = dict(state.next_seqnums)
        self._shards: dict[ShardKey, Shard] = {}
        for row in state.shards:
            shard = self._shards[row.key] = Shard(row.stored_until)
            shard.order = ShardOrder(row.ordered_until, row.runs)
            shard.engine, shard.replicas = row.engine, row.replicas
        first_term = max((split_position(position)[0] for position in state.applied.values()), default=0)
        for key in list(find_shards(disk, first_term, self._shards)):
            if key[0] >= first_term:
                recover_shard(disk, key, self._shards.setdefault(key, Shard()))
        self._puts: list[Put | Delete] = []
        self._reports: set[ShardKey] = set()
        self._unsaved_entries = 0
        self._repeat_at = 0
        self._fetch_number = 0

    # events

    def receive(self, sender: NodeId, message: Any, now_us: int) -> Iterable[Effect]:
        """See `boki.effects.Core`."""
        match message:
            case StoreBatch(batch):
                return self._store(batch, sender)
            case Metalog():
                self.follower.offer(message, now_us)
            case FetchBatches():
                return self._load(sender, message)
            case Loaded(_Question() as question, rows, error):
                return self._answer(question, rows, error)
            case Loaded(SweepStep(), rows, error):
                return self._free(*self.sweep.advance(rows, error))
            case _Written(written):
                for key, until in written:
                    self._shards[key].written_until = max(self._shards[key].written_until, until)
            case IndexSaved():
                self._saved[sender] = message
                self.sweep.look_again()
            case BatchesFetched():
                return self._take_fetched(message)
            case InstallView(views):
                self.follower.install(views)
            case DiskRoom():
                return self._change_room(message)
        return ()

    def settle(self, now_us: int) -> Iterable[Effect]:
        """See `boki.effects.Core`: one write for all batches that came, one report a shard."""
        effects: list[Effect] = []
        self._follow()
        if self._puts or self._reports:
            written = _Written(tuple((key, self._shards[key].stored_until) for key in self._reports))
            reports = [effect for key in sorted(self._reports) for effect in self._report(key)]
            effects.append(Store(self._puts, then=(*reports, Send(self.node, written))))
            self._puts, self._reports = [], set()
        effects += [Send(to, fetch) for to, fetch in self.follower.fetches(now_us)]
        return effects

    def tick(self, now_us: int) -> Iterable[Effect]:
        """See `boki.effects.Core`: repeat uncovered reports, fetch what is ordered and not here, free space."""
        if not self.follower.chain:
            return ()
        if now_us >= self._repeat_at:
            self._repeat_at = now_us + _REPEAT_US
            for key, shard in self._shards.items():
                is_full = not self.has_room and key[0] == self.follower.term
                if is_full or shard.stored_until > shard.order.until_lid:
                    self._reports.add(key)
        effects = list(self.settle(now_us))
        for key, shard in self._shards.items():
            effects += self._fetch_gap(key, shard, now_us)
        if self._unsaved_entries >= _CHECKPOINT_ENTRIES:
            effects.append(self.checkpoint())
        return effects + list(self.sweep.tick(now_us))

    # storing

    def _store(self, batch: bytes, engine: NodeId | None) -> Iterable[Effect]:
        try:
            header = read_header(batch)
        except BokiError as error:
            return (Trace(logging.WARNING, f"refused a batch: {error}"),)
        key = (header.term, header.log, header.shard)
        if header.term not in self.follower.chain:
            known = self.follower.chain.current.term if self.follower.chain else 0
            return (Send(COORDINATOR, FetchView(known)),) if header.term > known else ()
        shard = self._shards.get(key)
        if header.term < self.follower.term and (shard is None or header.until_lid > shard.order.until_lid):
            return ()  # its term is over without it; its engine appends it anew
        if shard is None:
            shard = self._shards[key] = Shard()
        shard.engine = shard.engine or engine
        self._reports.add(key)
        if shard.has(header.first_lid, header.until_lid) or not self._may_store:
            return ()
        shard.add(header.first_lid, header.until_lid)
        self._puts.append(Put(batch_key(key, header.first_lid), batch))
        return ()

    def _take_fetched(self, message: BatchesFetched) -> Iterable[Effect]:
        """What a fellow replica gave for a gap. What it has freed will come from nobody: the gap ends there."""
        key = (message.term, message.log, message.shard)
        shard = self._shards.get(key)
        if (
            shard is not None
            and message.holding is Holding.FREED
            and message.first_lid <= shard.stored_until < message.freed_until
        ):
            shard.add(shard.stored_until, message.freed_until)
            self._reports.add(key)
        return [effect for batch in message.batches for effect in self._store(batch, None)]

    def _free(self, effects: list[Effect], has_deleted: bool) -> Iterable[Effect]:
        """Carry out a step of the sweep. A checkpoint goes with deletions: a restart must not take them for gaps."""
        for effect in effects:
            if isinstance(effect, Store) and has_deleted:
                yield Store([*effect.writes, *self.checkpoint().writes])
            else:
                yield effect

    def _is_saved(self, key: ShardKey, seqnum: int) -> bool:
        """Whether no index will ever ask for that record again to apply the cut that ordered it."""
        term, log, _ = key
        return bool(self._saved) and all(
            term < saved.term or (term == saved.term and seqnum < saved.next_seqnums.get(log, 0))
            for saved in self._saved.values()
        )

    def _report(self, key: ShardKey) -> Iterable[Effect]:
        term, log, number = key
        shard = self._shards[key]
        progress = ShardProgress(term, log, number, self.incarnation, shard.stored_until, self.has_room)
        yield Send(self.follower.chain[term].primaries[log], progress)
        if shard.engine is not None:
            yield Send(shard.engine, progress)

    def _change_room(self, room: DiskRoom) -> Iterable[Effect]:
        self.has_room, self._may_store = room.has_room, room.may_store
        self._reports |= {key for key, shard in self._shards.items() if key[0] == self.follower.term}
        word = "has room again" if room.has_room else "is nearly full: appends are refused, reads and trims go on"
        return (Trace(logging.WARNING, f"the disk {word}"),)

    # following the metalogs

    def _follow(self) -> None:
        if not self.follower.chain:
            return
        while True:
            for log in self.follower.logs:
                while (found := self.follower.peek(log)) is not None:
                    self._apply(log, found[1])
                    self.follower.advance(log)
                    self._applied[log] = self.follower.position(log)
                    self._unsaved_entries += 1
            ended = self.follower.term
            view = self.follower.next_term()
            if view is None:
                return
            self._finish_term(ended, view)

    def _apply(self, log: LogId, entry: MetalogEntry) -> None:
        term = self.follower.term
        tail = self._next_seqnums.get(log) or make_seqnum(term, log, 0)
        match entry:
            case Cut(_, until):
                for number, until_lid in until:
                    shard = self._shards.setdefault((term, log, number), Shard())
                    first_lid = shard.order.until_lid
                    shard.order.add(Piece(number, first_lid, until_lid, tail))
                    tail += until_lid - first_lid
            case Trim():
                if self.floors.apply(entry, tail):
                    self.sweep.request()
            case OpenShard(number, engine, replicas):
                shard = self._shards.setdefault((term, log, number), Shard())
                shard.engine, shard.replicas = engine, replicas
            case CloseShard():
                pass  # what it orders no further, nobody sends any more
        self._next_seqnums[log] = tail

    def _finish_term(self, ended: int, view: View) -> None:
        """Drop what the ended term never ordered: it is refused from now on, and its engine has appended it anew."""
        self._next_seqnums = {log: make_seqnum(view.term, log, 0) for log in range(view.log_count)}
        self._applied = {log: self.follower.position(log) for log in self.follower.logs}
        self._unsaved_entries = _CHECKPOINT_ENTRIES
        for key, shard in self._shards.items():
            if key[0] == ended:
                shard.islands.clear()
                if shard.stored_until > shard.order.until_lid:
                    shard.stored_until = shard.order.until_lid
                self._puts.append(Delete(batch_key(key, shard.order.until_lid), after_shard(key)))

    def _fetch_gap(self, key: ShardKey, shard: Shard, now_us: int) -> Iterable[Effect]:
        """Ask a fellow replica for what is ordered and not here, if nobody has sent it for a while."""
        if self.node not in shard.replicas or shard.stored_until >= shard.order.until_lid:
            shard.gap_since = 0
            return
        if shard.gap_since == 0:
            shard.gap_since = now_us
        peers = [peer for peer in shard.replicas if peer != self.node]
        if now_us - shard.gap_since < _GAP_PATIENCE_US or not peers or not self._may_store:
            return
        shard.gap_since = now_us
        self._fetch_number += 1
        until = min([shard.order.until_lid, *(first for first in shard.islands if first > shard.stored_until)])
        fetch = FetchBatches(self._fetch_number, *key, shard.stored_until, until, _FETCH_BYTES)
        yield Send(peers[self._fetch_number % len(peers)], fetch)

    def checkpoint(self) -> Store:
        """Save what was learnt from the metalogs. It rides behind the batches that it speaks of."""
        self._unsaved_entries = 0
        shards = [
            ShardState(key, s.stored_until, s.order.until_lid, s.order.runs(), s.engine, s.replicas)
            for key, s in self._shards.items()
        ]
        state = Checkpoint(self._applied, self._next_seqnums, shards, self.floors.rows(), self.sweep.waits_below)
        return Store([Put(CHECKPOINT_KEY, msgspec.msgpack.encode(state))])

    # reading

    def _load(self, sender: NodeId, message: FetchBatches) -> Iterable[Effect]:
        key = (message.term, message.log, message.shard)
        if message.until_lid <= message.first_lid:
            return ()
        start, floor = batch_key(key, message.first_lid), batch_key(key, 0)
        stop = batch_key(key, message.until_lid)
        return (Load(_Question(sender, message), start, floor, stop, min(message.max_bytes, 16 << 20)),)

    def _answer(self, question: _Question, rows: Iterable[tuple[bytes, bytes]], error: str) -> Iterable[Effect]:
        message = question.message
        batches: list[bytes] = []
        lid = message.first_lid
        freed_until = 0
        for key, value in rows:
            try:
                batch = Batch(value)
                if message.needs_payloads:
                    batch.verify()
            except BokiError as failure:
                number = split_batch_key(key)
                place = f"batch {number[1]} of shard {number[0][2]}, term {message.term}, log {message.log}"
                error = f"{self.node}: {place}: {failure}"
                break
            if not batch.header.first_lid <= lid < batch.header.until_lid:
                if not batches and batch.header.first_lid > lid:
                    freed_until = batch.header.first_lid
                break
            batches.append(value)
            lid = batch.header.until_lid
        holding = Holding.HAVE if batches else self._holding(message, error)
        if holding is Holding.FREED and not freed_until:
            freed_until = min(message.until_lid, self._shards[message.term, message.log, message.shard].written_until)
        asked = (message.request, message.term, message.log, message.shard, message.first_lid)
        fetched = BatchesFetched(*asked, holding, tuple(batches), error, freed_until)
        effects: list[Effect] = [Send(question.sender, fetched)]
        if error:
            effects.append(Trace(logging.ERROR, error))
        return effects

    def _holding(self, message: FetchBatches, error: str) -> Holding:
        shard = self._shards.get((message.term, message.log, message.shard))
        if error or shard is None:
            return Holding.UNKNOWN
        if message.first_lid < min(shard.written_until, shard.order.until_lid):
            return Holding.FREED
        if message.term < self.follower.term and message.first_lid >= shard.order.until_lid:
            return Holding.NEVER
        return Holding.UNKNOWN

    def _seqnum_of(self, key: ShardKey, lid: int) -> int | None:
        shard = self._shards.get(key)
        return None if shard is None else shard.order.seqnum_of(lid)
