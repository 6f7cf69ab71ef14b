"""The storage node keeps batches as they came and says how far each shard is durable. It decides no order.

**Reports.** A batch is written, and the report of how far its shard is stored, contiguously, rides on that write: it
leaves after the sync (`boki.storage.reports`). Reports are absolute numbers under this node's incarnation, so losing or
repeating one does no harm, and a disk that was wiped (a new incarnation) counts for nothing it once said.

**Engines beside it.** An engine of the same process that holds the index is handed each batch as it comes, so that the
engine which appended it need not send it to that process twice.

**Following the metalog.** From the cuts the node learns what is ordered: what it is to hold and lacks it fetches from
other replicas (`boki.storage.repair`). When a shard is closed, by an entry or by the end of its term, what was never
ordered is dropped and more is refused. From the trims it learns what may be freed (`boki.storage.sweep`).

**Placement** may send a closed shard elsewhere: then it is deleted here, a few shards at a time.

Rule: this file never looks into a batch to store it; it knows its header.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, assert_never

import msgspec

from boki.errors import BokiError
from boki.log.batch import read_header
from boki.log.cuts import Piece
from boki.log.floors import Floors
from boki.log.ids import LogId, NodeId, make_seqnum, shard_incarnation
from boki.log.membership import Membership
from boki.log.metalog import CloseShard, Cut, ForgetTags, MetalogEntry, OpenShard, Positions, Trim, term_of
from boki.log.view import View
from boki.protocol.effects import Delete, DiskReader, DiskRoom, Effect, Load, Loaded, Put, Send, Store, Trace, kinds
from boki.protocol.follower import COORDINATOR, MetalogFollower
from boki.protocol.messages import (
    BatchesFetched,
    EntriesDropped,
    FetchBatches,
    FetchCheckpoint,
    FetchShards,
    FetchState,
    FetchView,
    IndexBatch,
    IndexSaved,
    InstallMembership,
    InstallPlacement,
    InstallView,
    Metalog,
    NeedRecords,
    Ping,
    Pong,
    ShardsFetched,
    StateFetched,
    StoreBatch,
    StoreCheckpoint,
)
from boki.storage.answers import Answers, Question
from boki.storage.checkpoints import IndexCheckpoints, Kept, RowsAsked, Staged
from boki.storage.holdings import Holdings, Written
from boki.storage.inputs import LoadedInput, SeldomInput, StorageInput
from boki.storage.intake import UNWRITTEN_BYTES, Intake
from boki.storage.lifecycle import Stage
from boki.storage.needed import Needed
from boki.storage.recovery import recover
from boki.storage.repair import Repair
from boki.storage.reports import Reports
from boki.storage.rest import Rest
from boki.storage.saved import SavedIndexes
from boki.storage.shards import Shard, ShardKey, split_batch_key
from boki.storage.state import Checkpoint, load_state, shard_state, shard_writes, small_write
from boki.storage.sweep import Sweep, SweepStep
from boki.storage.takeover import Snapshots, Takeover, adopt_orders, is_ahead
from boki.storage.witness import Witness

REPAIR_BYTES_PER_S: Final = 64 << 20
_CHECKPOINT_ENTRIES: Final = 20_000
_REPEAT_US: Final = 200_000
_REMOVALS_PER_TICK: Final = 8
_ROWS_PER_PAGE: Final = 1000


class StorageCore:
    """One storage node. `disk` is what is on its disk at the start; `incarnation` names the run of that disk.

    `repair_bytes_per_s`: the most that repair of closed shards may take. `unwritten_bytes`: the most that may be on its
    way to the disk. `mate`: the sequencer of its process. `is_alone`: its cluster is one process, without registration.
    """

    HEARS: ClassVar[frozenset[type]] = kinds(StorageInput)

    def __init__(
        self,
        node: NodeId,
        incarnation: int,
        disk: DiskReader,
        *,
        repair_bytes_per_s: int = REPAIR_BYTES_PER_S,
        unwritten_bytes: int = UNWRITTEN_BYTES,
        mate: NodeId | None = None,
        is_alone: bool = False,
    ) -> None:
        self.node = node
        self.incarnation = incarnation
        state, shards = load_state(disk)
        self.follower = MetalogFollower(state.applied)
        self.holdings = Holdings(node, shards)
        self._intake = Intake(self.holdings, unwritten_bytes)
        self.reports = Reports(self.holdings, incarnation, mate)
        self.needed = Needed(self.holdings, self.reports)
        self.saved = SavedIndexes(is_alone=is_alone)
        self.checkpoints = IndexCheckpoints(incarnation, disk)
        self.floors = Floors(state.floors, state.retired)
        self.answers = Answers(self.holdings, self.floors, self._on_damage)
        self.sweep = Sweep(self.floors, self.holdings, self.saved.covers, self._on_damage, state.waits_below)
        self.repair = Repair(self.holdings, repair_bytes_per_s, self.sweep.learn)
        self._recovered: Positions = state.applied
        self._witness = Witness(disk)
        self._next_seqnums: dict[LogId, int] = dict(state.next_seqnums)
        self._fenced = set(state.fenced)
        self._open = recover(disk, state, self.holdings, self.repair.look_at)
        self._cover()
        self._rest = Rest(self.holdings, self.reports, self.needed, self.repair, self.sweep)
        self._takeover = Takeover()
        self._snapshots = Snapshots(lambda: msgspec.msgpack.encode(self._state(self.holdings.shards)))
        self._membership = Membership(number=-1)
        self._engines: tuple[NodeId, ...] = ()
        """Those of this process that hold the index."""
        self._unsaved_entries = 0
        self._repeat_at = 0

    # events

    def receive(self, sender: NodeId, message: StorageInput, now_us: int) -> Iterable[Effect]:
        """See `boki.protocol.effects.Core`."""
        match message:
            case StoreBatch(batch):
                self.repair.note_append(now_us)
                return self._store(batch, sender)
            case Metalog():
                self.follower.offer(message, now_us, sender)
            case FetchBatches():
                return self.answers.load(sender, message, is_busy=self.repair.is_busy(now_us))
            case Loaded():
                return self._take_loaded(message, now_us)
            case Written():
                self.holdings.written(message)
                self.repair.note_written(message.fetched_bytes)
            case BatchesFetched():
                if not self.needed.take(message):
                    self.repair.take(sender, message)
            case NeedRecords():
                self._open |= self.needed.hear(message, self.follower, now_us)
            case IndexSaved():
                self.saved.note(sender, message, now_us)
                self.sweep.look_again()
            case Ping(number):
                return (Send(sender, Pong(number, self._newest_term, self.incarnation, applied=self.witnessed)),)
            case InstallView(views):
                self.follower.install(views)
            case InstallMembership() | InstallPlacement():
                self._install(message, now_us)
            case DiskRoom():
                return self._change_room(message)
            case _:
                return self._serve(sender, message, now_us)
        return ()

    def _take_loaded(self, loaded: LoadedInput, now_us: int) -> Iterable[Effect]:
        rows, error = loaded.rows, loaded.error
        match loaded.token:
            case Question() as question:
                return self.answers.answer(question, rows, error)
            case SweepStep() as step:
                return self._free(*self.sweep.advance(step, rows, error), is_busy=self.repair.is_busy(now_us))
            case Staged() as staged:
                return self._keep(self.checkpoints.apply(staged, rows, error))
            case RowsAsked() as asked:
                return self.checkpoints.give(asked, rows, error)
            case _:
                assert_never(loaded.token)

    def _serve(self, sender: NodeId, message: SeldomInput, now_us: int) -> Iterable[Effect]:
        """What comes seldom: controllers, checkpoints of the index, nodes that have fallen behind."""
        match message:
            case FetchShards():
                return self._tell_shards(sender, message)
            case StoreCheckpoint():
                return self._keep(self.checkpoints.store(sender, message, self.applied, now_us))
            case FetchCheckpoint():
                # behind the writes of the checkpoint that it names, or a page would be of the one before
                return (Store((), then=(self.checkpoints.fetch(sender, message, now_us),)),)
            case EntriesDropped():
                if self.follower.has_lost(message):
                    self._takeover.need()
            case FetchState():
                return (Send(sender, self._snapshots.give(message, now_us)),) if self.follower.chain else ()
            case StateFetched():
                match self._takeover.take(sender, message, now_us):
                    case Send() | Trace() as effect:
                        return (effect,)
                    case Checkpoint() as state:
                        return self._take_over(state)
            case _:
                assert_never(message)
        return ()

    def settle(self, now_us: int) -> Iterable[Effect]:
        """See `boki.protocol.effects.Core`: one write for all batches that came, one report a shard."""
        self._follow()
        effects = self._flush()
        effects += self.repair.ask(now_us, may_store=self._intake.may_fetch)
        effects += [Send(to, fetch) for to, fetch in self.follower.fetches(now_us)]
        effects += self.needed.ask(self.follower.chain, now_us)
        return effects

    def tick(self, now_us: int) -> Iterable[Effect]:
        """See `boki.protocol.effects.Core`: repeat uncovered reports, delete what was sent away, free space."""
        if not self.follower.chain:
            return ()
        if now_us >= self._repeat_at:
            self._repeat_at = now_us + _REPEAT_US
            self.reports.widen(key for key in self._open if self._is_uncovered(key))
            self.saved.forget(now_us)
            self._snapshots.forget(now_us)
        self.reports.remind(self._open, self.follower.chain.current)
        self._remove_some()
        self.repair.measure(now_us)
        effects = list(self.settle(now_us))
        effects += self._takeover.ask(self.node, self._membership, self.follower, now_us)
        if self._unsaved_entries >= _CHECKPOINT_ENTRIES:
            effects.append(self.checkpoint())
        return effects + self.sweep.tick(now_us, is_busy=self.repair.is_busy(now_us))

    def rests_until(self, now_us: int) -> int:
        """See `boki.protocol.effects.Resting`."""
        is_due = self._takeover.is_needed or self._unsaved_entries >= _CHECKPOINT_ENTRIES
        return now_us if is_due else self._rest.until(self.follower, self._open, now_us)

    def _is_uncovered(self, key: ShardKey) -> bool:
        """Whether a report is to be repeated: no cut has come of what it said, or none can while the disk is full."""
        shard = self.holdings.shards[key]
        is_full = not self.reports.has_room and key[0] == self.follower.term
        return is_full or shard.stored_until > shard.order.until_lid

    def status(self) -> dict[str, Any]:
        """What an operator wants to know, as JSON values."""
        shards = self.holdings.shards
        return {
            "term": self._newest_term,
            "has_room": self.reports.has_room,
            "shards": sum(map(self.holdings.is_wanted, shards)),
            "open_shards": sum(map(self.holdings.is_wanted, self._open)),
            "is_caught_up": self.follower.is_caught_up(),
            "placement_version": self.holdings.placement.version,
            "intake": self._intake.status(),
            "repair": self.repair.status(),
            "checkpoints": self.checkpoints.status(),
        }

    @property
    def _newest_term(self) -> int:
        return self.follower.chain.current.term if self.follower.chain else 0

    # storing

    def _store(self, batch: bytes, engine: NodeId) -> Iterable[Effect]:
        try:
            header = read_header(batch)
        except BokiError as error:
            return (Trace(logging.WARNING, f"refused a batch: {error}"),)
        key = (header.term, header.log, header.shard)
        if header.term not in self.follower.chain:
            known = self._newest_term
            return (Send(COORDINATOR, FetchView(known)),) if header.term > known else ()
        if header.log >= self.follower.chain[header.term].log_count:
            return (Trace(logging.WARNING, f"refused a batch of {engine}: term {header.term} has no log {header.log}"),)
        shard = self.holdings.shards.get(key)
        if shard is None:
            is_over = header.term < self.follower.term
            if is_over or (header.log, shard_incarnation(header.shard)) in self._fenced:
                return ()  # nothing of it will ever be ordered; its engine appends it again
            shard = self.holdings.shard(key)
            self._open.add(key)
        if shard.is_removed or (shard.is_closed and header.until_lid > shard.order.until_lid):
            return ()
        shard.engine = shard.engine or engine
        if self._intake.store(key, header.first_lid, header.until_lid, batch):
            self.reports.note(key)
        return [Send(near, IndexBatch(batch)) for near in self._engines if near != engine]

    def _flush(self, also: Sequence[Put | Delete] = (), then: Sequence[Effect] = ()) -> list[Effect]:
        """Write what has gathered, and `also`; report it when it is durable."""
        flushed = self.holdings.flush(also)
        told: list[Effect] = [*self.reports.take(self.follower.chain), *then]
        if flushed is None:
            return [Store((), then=told)] if told else []
        writes, written = flushed
        done = (*told, Send(self.node, written))
        can_wait = not also and Reports.are_near(told)
        return [Store([*writes, *self._witness.write(self.applied)], then=done, can_wait=can_wait)]

    def _free(self, effects: list[Effect], has_deleted: bool, *, is_busy: bool) -> Iterable[Effect]:
        """Carry out a step of the sweep. Where it deletes, a restart must not take that for gaps: it is noted."""
        for effect in effects:
            if isinstance(effect, Store):
                for write in effect.writes:
                    if has_deleted and isinstance(write, Delete):
                        self.holdings.note(split_batch_key(write.start)[0])
                yield from self._flush(effect.writes)
            else:
                yield effect
        yield from self.sweep.go_on(is_busy=is_busy)

    def _change_room(self, room: DiskRoom) -> Iterable[Effect]:
        self.reports.has_room, self._intake.may_store = room.has_room, room.may_store
        self.reports.widen(key for key in self._open if key[0] == self.follower.term)
        word = "has room again" if room.has_room else "is nearly full: appends are refused, reads and trims go on"
        return (*self.checkpoints.change_room(room), Trace(logging.WARNING, f"the disk {word}"))

    # following the metalogs

    def _follow(self) -> None:
        if not self.follower.chain:
            return
        while True:
            for log in self.follower.logs:
                while (found := self.follower.peek(log)) is not None:
                    self._apply(log, found[1])
                    self.follower.advance(log)
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
                    key = (term, log, number)
                    shard = self.holdings.shard(key)
                    first_lid = shard.order.until_lid
                    shard.order.add(Piece(number, first_lid, until_lid, tail))
                    tail += until_lid - first_lid
                    self.holdings.touched.add(key)
                    if not shard.is_whole:
                        self.repair.look_at(key)
            case Trim() | ForgetTags():
                if self.floors.apply(entry, tail):
                    self.sweep.request((entry.book,))
            case OpenShard(number, engine, replicas):
                key = (term, log, number)
                shard = self.holdings.shard(key)
                shard.engine, shard.replicas = engine, replicas
                self.holdings.touched.add(key)
                self._open.add(key)
                if self.node in replicas and term == self._newest_term:
                    # even if it has nothing: what a disk that is gone once said must not count any longer
                    self.reports.widen((key,))
            case CloseShard(number, is_lost):
                if is_lost:
                    lost = (log, shard_incarnation(number))
                    self._fenced.add(lost)
                    open_here = [key for key in self._open if key[:2] == (term, log)]
                    self._close(key for key in open_here if (log, shard_incarnation(key[2])) == lost)
                else:
                    self._close([(term, log, number)])
        self._next_seqnums[log] = tail

    def _close(self, keys: Iterable[ShardKey]) -> None:
        """These are ordered no further: what never was is refused from now on, and its engine has appended it again."""
        for key in keys:
            shard = self.holdings.shard(key)
            self.holdings.close(key)
            self._open.discard(key)
            if not shard.is_whole:
                self.repair.look_at(key)

    def _finish_term(self, ended: int, view: View) -> None:
        self._next_seqnums = {log: make_seqnum(view.term, log, 0) for log in range(view.log_count)}
        self._unsaved_entries = _CHECKPOINT_ENTRIES
        self._fenced.clear()
        self._close([key for key in self._open if key[0] == ended])

    def checkpoint(self) -> Store:
        """Save what was learnt from the metalogs, with the batches that it speaks of."""
        (store,) = self._flush(self._checkpoint_writes())
        assert isinstance(store, Store), "the small state is always written"
        return store

    def _checkpoint_writes(self) -> list[Put | Delete]:
        self._unsaved_entries = 0
        holdings = self.holdings
        writes: list[Put | Delete] = []
        for key in sorted(holdings.touched):
            writes += shard_writes(key, holdings.shards[key])
        for key in holdings.grown:
            holdings.note(key)
        holdings.touched.clear()
        holdings.grown.clear()
        return [*writes, small_write(self._state({}))]

    def _state(self, shards: Mapping[ShardKey, Shard]) -> Checkpoint:
        rows = [shard_state(key, shard, shard.order.packed()) for key, shard in shards.items()]
        floors = self.floors
        small = (floors.rows(), self.sweep.waits_below, sorted(self._fenced), floors.retired())
        return Checkpoint(self.applied, self._next_seqnums, rows, *small)

    @property
    def applied(self) -> Positions:
        """How far this node has followed the metalogs."""
        if not self.follower.chain:
            return self._recovered
        return {log: self.follower.position(log) for log in self.follower.logs}

    @property
    def witnessed(self) -> Positions:
        """How far this node has surely applied the metalogs, in this incarnation or before."""
        return self._witness.seen(self.applied)

    def _on_damage(self, key: ShardKey, first_lid: int) -> None:
        self.repair.mend(key, first_lid)
        self.sweep.forget(key)  # what comes may have payloads that were freed here

    # placement and repair

    def _install(self, message: InstallMembership | InstallPlacement, now_us: int) -> None:
        if isinstance(message, InstallPlacement):
            for key in self.holdings.install(message.placement):
                if not self.holdings.is_wanted(key):
                    self.repair.forget(key)
                self._look_at(key)
        elif message.membership.number > self._membership.number:
            self._membership = membership = message.membership
            self._engines = tuple(m.node for m in membership.beside(self.node) if m.has_index)
            self.repair.note_members(frozenset(member.node for member in message.membership.members))
            self.saved.note_members(message.membership, now_us)

    def _look_at(self, key: ShardKey) -> None:
        shard = self.holdings.shards[key]
        if shard.stage is not Stage.LEAVING and not shard.is_whole:
            self.repair.look_at(key)

    def _remove_some(self) -> None:
        """Delete a few of the shards that were sent away, unless they have been sent back since."""
        for key in self.holdings.take_leaving(_REMOVALS_PER_TICK):
            self.repair.forget(key)
            self.holdings.remove(key)
            self.sweep.forget(key)

    def _tell_shards(self, sender: NodeId, message: FetchShards) -> Iterable[Effect]:
        rows, is_last = self.holdings.rows(message.after, min(message.limit, _ROWS_PER_PAGE))
        version, covered = self.holdings.placement.version, self.checkpoints.positions
        told = ShardsFetched(message.request, tuple(rows), is_last, self.follower.is_caught_up(), version, covered)
        return (Store((), then=(Send(sender, told),)),)  # a checkpoint may be on its way to the disk

    # checkpoints of the index, and of peers

    def _keep(self, kept: Kept | Load[Staged] | Trace) -> Iterable[Effect]:
        """A page of a checkpoint. A complete one goes with what this node knows itself: others forget it then."""
        match kept:
            case Load():
                return (Store((), then=(kept,)),)  # what is to be loaded may be on its way to the disk
            case Trace():
                return (kept,)
            case Kept(writes, answer, completes) if completes:
                self._cover()
                self.sweep.look_again()
                return self._flush([*writes, *self._checkpoint_writes()], (answer,))
        return (Store(kept.writes, then=(kept.answer,)),)

    def _cover(self) -> None:
        if (covered := self.checkpoints.covered) is not None:
            self.saved.cover(*covered)

    def _take_over(self, state: Checkpoint) -> Iterable[Effect]:
        """A peer has told what it knows from the metalogs: continue from there, if that is farther."""
        if term_of(state.applied) not in self.follower.chain:
            return (Send(COORDINATOR, FetchView(self._newest_term)),)
        if not is_ahead(state, self.applied):
            return ()
        adopt_orders(self.holdings, state)
        views, self.follower = tuple(self.follower.chain), MetalogFollower(state.applied)
        self.follower.install(views)
        self._next_seqnums = dict(state.next_seqnums)
        self._fenced = set(state.fenced)
        self.floors.merge((*state.retired, *state.floors))
        self.sweep.request(book for book, _, _ in self.floors.rows())
        self._open = {key for key, shard in self.holdings.shards.items() if not shard.is_closed}
        for key in self.holdings.shards:
            self._look_at(key)
        self._unsaved_entries = _CHECKPOINT_ENTRIES
        self._takeover.done()
        return (Trace(logging.WARNING, "fell behind what sequencers keep: goes on from what a peer knows"),)
