"""The engine: appends, the index and reads, held together by the metalog that it follows.

An engine keeps three machines and routes events to them: `Appends` (records of its own that wait for a cut), `Index`
(what is where, and which conditions held), `Reads` (what waits for either). Applying the metalog is the heartbeat: each
committed entry, strictly in order, first changes the index, then answers the appends that it ordered, then wakes the
reads that it concerns. A cut is applied only when the batches that it orders are here; those of other engines, or of
this engine's own former lives, are fetched from their shards' storage nodes.

An append is answered when the index has applied the cut that orders it: that cut is durable on a majority of
sequencers, its records on their write quorum, and the verdict on its conditions is known. Nothing of it was visible
before, no cache included.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from boki.effects import Answer, DiskReader, Effect, Put, Send, Store, Trace
from boki.engine.appends import Appends
from boki.engine.cache import AuxCache, RecordCache
from boki.engine.index import Index
from boki.engine.reads import PendingRead, Place, Reads
from boki.engine.strays import Strays
from boki.engine.tails import Tails
from boki.engine.waiter import Waiter
from boki.errors import BokiError, DeadlineExceeded, InvalidArgument, Unavailable
from boki.follower import MetalogFollower
from boki.log.batch import Batch
from boki.log.cuts import Piece
from boki.log.ids import LogId, NodeId, ShardId, Term, make_shard
from boki.log.limits import Limits
from boki.log.metalog import CloseShard, Cut, MetalogEntry, OpenShard, Positions, Trim, make_position, split_position
from boki.log.operations import (
    Append,
    Appended,
    Books,
    Done,
    Found,
    Get,
    ListBooks,
    Operation,
    Read,
    SetAuxdata,
    Sync,
    TrimBook,
)
from boki.log.view import View
from boki.messages import (
    BatchesFetched,
    IndexSaved,
    InstallView,
    Metalog,
    RequestEntry,
    ShardProgress,
    TellTail,
)

PLACEMENT_KEY: Final = b"p"
READY: Final = "ready"
"""The token of the one `Answer` that says that the engine has caught up and may append."""
SAVED: Final = "saved"
"""The token of the `Answer` that follows each checkpoint when it is durable."""
_LIFE_BITS: Final = 32
_REPEAT_US: Final = 200_000
_TELL_US: Final = 5_000_000
_CHECKPOINT_BYTES: Final = 4 << 20
_CHECKPOINT_US: Final = 30_000_000


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Budgets of one engine."""

    index_memory_bytes: int
    cache_bytes: int
    aux_cache_bytes: int
    append_buffer_bytes: int
    batch_bytes: int
    limits: Limits


@dataclass(frozen=True, slots=True)
class _CheckpointStored:
    """To itself: the index's checkpoint is on the disk."""


@dataclass(slots=True)
class _PendingTrim:
    """A trim that has not shown up in the metalog yet."""

    trim: Trim
    waiter: Waiter
    deadline_us: int


@dataclass(frozen=True, slots=True)
class Answered:
    """What `Answer` effects of an engine carry: the answer or the error, and what its caller has seen now."""

    answer: Appended | Found | Books | Done | BokiError
    positions: Positions


class EngineCore:
    """One life of one engine. `disk` holds the index's last checkpoint: a cache, the truth is in the logs."""

    def __init__(self, node: NodeId, incarnation: int, disk: DiskReader, config: EngineConfig) -> None:
        limits = config.limits
        self.node = node
        self.incarnation = incarnation
        self.index = Index(
            disk, memory_bytes=config.index_memory_bytes, key_window_us=int(limits.key_window_s * 1_000_000)
        )
        self.cache = RecordCache(config.cache_bytes)
        self.aux = AuxCache(config.aux_cache_bytes)
        self.appends = Appends(buffer_bytes=config.append_buffer_bytes, batch_bytes=config.batch_bytes)
        self.follower = MetalogFollower(self.index.applied)
        self.reads = Reads(
            self.index,
            self.cache,
            self.aux,
            limits,
            self._replicas_of,
            self._is_caught_up,
            self._tail_of,
            first_number=incarnation << _LIFE_BITS,
        )
        self.tails = Tails(incarnation << _LIFE_BITS)
        stored = disk.get(PLACEMENT_KEY)
        rows = msgspec.msgpack.decode(stored, type=list[tuple[Place, tuple[NodeId, ...]]]) if stored else []
        self._placement: dict[Place, tuple[NodeId, ...]] = dict(rows)
        self._shard_count = 0
        self._opening: dict[LogId, OpenShard] = {}
        self._trims: dict[int, _PendingTrim] = {}
        self.strays = Strays()
        # No number of this life is one of an earlier life: late answers to that one must find nobody.
        self._numbers = incarnation << _LIFE_BITS
        self._began: Term = 0
        self._told_at = 0
        self._repeat_at = 0
        self._checkpoint_at = 0
        self._is_checkpointing = False
        self._saving: IndexSaved | None = None
        self._saved: IndexSaved | None = None
        self._was_ready = False

    # operations

    def submit(
        self, operation: Operation, positions: Positions, deadline_us: int, token: Any, now_us: int
    ) -> Iterable[Effect]:
        """Take in an operation that was checked at the edge. One `Answer(token, Answered)` follows, by the deadline.

        For speed, appends are only queued here: the caller lets the core settle in the same turn.
        """
        waiter = Waiter(None if isinstance(operation, ListBooks) else operation.book, token)
        try:
            return self._stamp(self._submit(operation, positions, deadline_us, waiter, now_us))
        except BokiError as error:
            return self._stamp([Answer(waiter, error)])

    def _submit(
        self, operation: Operation, positions: Positions, deadline_us: int, waiter: Waiter, now_us: int
    ) -> Iterable[Effect]:
        match operation:
            case Append(book, chunk):
                self.appends.add(self._log_of(book), chunk, waiter, deadline_us)
                return ()
            case Read(fresh=True) | Sync():
                self._log_of(operation.book)
                return self.tails.ask(self.follower.chain.current, operation, waiter, deadline_us)
            case Read() | Get() | SetAuxdata():
                self._check_positions(positions)
                return self._read(operation, waiter, positions, deadline_us, now_us)
            case TrimBook(book, before, tag, everything):
                self._numbers += 1
                trim = Trim(book, tag, before, everything, self.node, self._numbers)
                self._trims[self._numbers] = _PendingTrim(trim, waiter, deadline_us)
                return self._request(self._log_of(book), trim)
            case ListBooks(prefix, after, limit):
                return (Answer(waiter, Books(tuple(self.index.books(prefix, after, limit)))),)
        raise InvalidArgument(f"an engine does not carry out {type(operation).__name__}")

    def _read(
        self, operation: Read | Get | SetAuxdata | Sync, waiter: Waiter, needs: Positions, deadline_us: int, now_us: int
    ) -> Iterable[Effect]:
        wait_us = operation.wait_us if isinstance(operation, Read) else 0
        wait_until_us = now_us + wait_us if wait_us else 0
        return self.reads.start(PendingRead(operation, waiter, needs, deadline_us, wait_until_us), now_us)

    def _check_positions(self, positions: Positions) -> None:
        newest = max((split_position(position)[0] for position in positions.values()), default=0)
        if newest > self.follower.chain.current.term:
            raise InvalidArgument(
                f"Boki-Position names term {newest}, and the newest is {self.follower.chain.current.term}: "
                "it is not of this cluster",
                field="Boki-Position",
            )

    def _log_of(self, book: str) -> LogId:
        if not self.follower.chain:
            raise Unavailable("the engine has not learnt who sequences and stores yet; try again", retry_after_s=0.2)
        return self.follower.chain.current.log_of(book)

    # events

    def receive(self, sender: NodeId, message: Any, now_us: int) -> Iterable[Effect]:
        """See `boki.effects.Core`."""
        match message:
            case Metalog():
                self.follower.offer(message, now_us)
            case ShardProgress():
                self.appends.note_progress(sender, message, now_us)
            case BatchesFetched(request) if request > 0:
                return self._stamp(self.reads.on_fetched(message, now_us))
            case BatchesFetched():
                self.strays.put(message)
            case TellTail():
                return self._on_tail(sender, message, now_us)
            case InstallView(views):
                self.follower.install(views)
                if self._began == 0 and self.follower.chain:
                    return self._stamp(self._begin_term(self.follower.view, now_us))
            case _CheckpointStored():
                self.index.checkpoint_stored()
                self._is_checkpointing = False
                self._saved = self._saving
                return (Answer(SAVED, None), *self._tell_saved())
        return ()

    def settle(self, now_us: int) -> Iterable[Effect]:
        """See `boki.effects.Core`: apply what has come, then send what has gathered."""
        effects = self._follow(now_us) if self.follower.chain else []
        effects += self.appends.settle(now_us)
        effects += [Send(to, fetch) for to, fetch in self.follower.fetches(now_us)] if self.follower.chain else []
        effects = self._stamp(effects)
        if not self._was_ready and self.is_ready:
            self._was_ready = True
            effects.append(Answer(READY, None))
        return effects

    def tick(self, now_us: int) -> Iterable[Effect]:
        """See `boki.effects.Core`: deadlines, and everything that may have been lost is asked for again."""
        if not self.follower.chain:
            return ()
        effects = list(self.settle(now_us))
        effects += self._stamp([*self.appends.tick(now_us), *self.reads.tick(now_us)])
        effects += self._stamp(self.tails.tick(self.follower.chain.current, now_us))
        for number in [number for number, pending in self._trims.items() if pending.deadline_us < now_us]:
            late = DeadlineExceeded("the trim was not ordered before its deadline; it may be still")
            effects += self._stamp([Answer(self._trims.pop(number).waiter, late)])
        if now_us >= self._repeat_at:
            self._repeat_at = now_us + _REPEAT_US
            effects += self._repeat_requests()
        if now_us >= self._told_at:
            self._told_at = now_us + _TELL_US
            effects += self._tell_saved()
        dirty = self.index.dirty_bytes
        if dirty >= _CHECKPOINT_BYTES or (dirty and now_us >= self._checkpoint_at):
            self._checkpoint_at = now_us + _CHECKPOINT_US
            effects += self.checkpoint()
        return effects

    @property
    def is_ready(self) -> bool:
        """Whether this engine has caught up with every log and may append to each."""
        return self.follower.is_caught_up() and self._began == self.follower.term and not self.appends.unopened

    # applying the metalogs

    def _follow(self, now_us: int) -> list[Effect]:
        effects: list[Effect] = []
        while True:
            for log in self.follower.logs:
                effects += self._follow_log(log, now_us)
            view = self.follower.next_term()
            if view is None:
                return effects
            effects += self._begin_term(view, now_us)
            effects += self.reads.on_applied((), now_us)

    def _follow_log(self, log: LogId, now_us: int) -> list[Effect]:
        effects: list[Effect] = []
        books: set[str] = set()
        has_applied = False
        while (found := self.follower.peek(log)) is not None:
            entry = found[1]
            pieces = self.index.pieces(log, entry) if isinstance(entry, Cut) else []
            batches = self._gather(log, pieces, now_us, effects)
            if batches is None:
                break
            if books and isinstance(entry, Trim):
                # who waits must have seen what stands before the trim, or it would look as if the trim took it away
                effects += self.reads.on_applied(books, now_us)
                books = set()
            applied = self.index.apply(log, entry, batches)
            self.follower.advance(log)
            has_applied = True
            books |= applied.books
            if pieces:
                self._cache_ordered(log, pieces, batches)
                for piece in pieces:
                    effects += self.appends.order(log, piece, applied.refusals)
            else:
                effects += self._note(log, entry)
        if has_applied:
            effects += self.reads.on_applied(books, now_us)
        return effects

    def _gather(self, log: LogId, pieces: Sequence[Piece], now_us: int, effects: list[Effect]) -> list[Batch] | None:
        """The batches that the pieces order; None if some must be fetched first."""
        batches: list[Batch] = []
        complete = True
        for piece in pieces:
            own = self.appends.batches_of(log, piece)
            if own is None:
                place = (self.follower.term, log, piece.shard)
                own = self.strays.take(place, piece, self._placement.get(place, ()), now_us, effects)
            if own is None:
                complete = False
            else:
                batches += own
        return batches if complete else None

    def _cache_ordered(self, log: LogId, pieces: Sequence[Piece], batches: Sequence[Batch]) -> None:
        """Keep what this engine has just appended. Strays came for their columns: nobody has checked their payloads."""
        own = {piece.shard for piece in pieces if self.appends.batches_of(log, piece) is not None}
        seqnum = pieces[0].first_seqnum
        for batch in batches:
            if batch.header.shard in own:
                self.cache.add(seqnum, batch)
            seqnum += batch.header.record_count

    def _note(self, log: LogId, entry: MetalogEntry) -> Iterable[Effect]:
        """An entry other than a cut has been applied."""
        match entry:
            case OpenShard(shard, engine, replicas):
                self._placement[self.follower.term, log, shard] = replicas
                wanted = self._opening.get(log)
                if wanted is not None and wanted.shard == shard and engine == self.node:
                    del self._opening[log]
                    self.appends.open_shard(log, shard, replicas)
            case Trim(_, _, _, _, engine, request) if engine == self.node:
                pending = self._trims.get(request)
                if pending is not None and pending.trim == entry:
                    del self._trims[request]
                    return (Answer(pending.waiter, Done()),)
            case CloseShard():
                pass
        return ()

    # terms

    def _begin_term(self, view: View, now_us: int) -> list[Effect]:
        self._began = view.term
        self.index.begin_term(view)
        self.strays.clear()
        if view.term != self.follower.chain.current.term:
            return []
        effects: list[Effect] = []
        for waiting in self.appends.begin_term(view.term, view.log_count, view.write_quorum):
            assert waiting.waiter is not None
            assert waiting.waiter.book is not None
            if waiting.deadline_us < now_us:
                late = DeadlineExceeded("the term ended without ordering the append", outcome="not_applied")
                effects.append(Answer(waiting.waiter, late))
            else:
                self.appends.take_back(view.log_of(waiting.waiter.book), waiting)
        for log in range(view.log_count):
            shard: ShardId = make_shard(self.incarnation, self._shard_count)
            first = self._shard_count % len(view.storage)
            replicas = (view.storage[first:] + view.storage[:first])[: view.replicas]
            self._opening[log] = OpenShard(shard, self.node, replicas)
            self._shard_count += 1
        effects += self._repeat_requests()
        return effects

    def _request(self, log: LogId, entry: MetalogEntry) -> list[Effect]:
        view = self.follower.chain.current
        if self.follower.term != view.term:
            return []  # the old term may still hold it; it is requested anew once that has been applied
        return [Send(view.primaries[log], RequestEntry(view.term, log, entry))]

    def _repeat_requests(self) -> list[Effect]:
        effects = [effect for log, entry in self._opening.items() for effect in self._request(log, entry)]
        for pending in self._trims.values():
            effects += self._request(self._log_of(pending.trim.book), pending.trim)
        return effects

    # consistency

    def _is_caught_up(self, read: PendingRead) -> bool:
        """Whether the index has seen all that the read's caller has seen (design promise 3).

        Terms are applied one after the other, each log of one to its end before any of the next. So it is enough to
        be in the newest term that the caller has seen, and at its position in the book's own log of that term.
        """
        term = self.follower.term
        if term != self.follower.chain.current.term:
            return False
        log = self.follower.view.log_of(read.operation.book)
        needed = read.needs.get(log, 0)
        return split_position(needed)[0] < term or self.index.applied.get(log, 0) >= needed

    def _on_tail(self, sender: NodeId, message: TellTail, now_us: int) -> Iterable[Effect]:
        effects: list[Effect] = []
        for operation, waiter, log, entries, deadline_us in self.tails.tell(
            self.follower.chain.current, sender, message
        ):
            needs = {log: make_position(message.term, entries)}
            effects += self._read(operation, waiter, needs, deadline_us, now_us)
        return self._stamp(effects)

    def _stamp(self, effects: Iterable[Effect]) -> list[Effect]:
        """The machines answer `Waiter`s; the shell's token gets the answer with the book's position beside it."""
        return [self._answered(effect) if isinstance(effect, Answer) else effect for effect in effects]

    def _answered(self, effect: Answer) -> Answer:
        waiter: Waiter = effect.token
        positions: Positions = {}
        if waiter.book is not None and self.follower.chain:
            log = self.follower.chain.current.log_of(waiter.book)
            position = self.index.applied.get(log)
            if position is not None:
                positions[log] = position
        return Answer(waiter.token, Answered(effect.value, positions))

    def _tail_of(self, book: str) -> int:
        return self.index.next_seqnum(self.follower.view.log_of(book))

    def _replicas_of(self, place: Place) -> tuple[NodeId, ...]:
        return self._placement[place]

    def status(self) -> dict[str, Any]:
        """Figures for operators, as JSON values."""
        return {
            "incarnation": self.incarnation,
            "appended_records": self.appends.record_count,
            "batches": self.appends.batch_count,
            "unordered_bytes": self.appends.pending_bytes,
            "waiting_reads": self.reads.pending_count,
            "index_bytes": self.index.memory_bytes_used,
            "cache_bytes": self.cache.used_bytes,
            "cache_hits": self.cache.hits,
            "cache_misses": self.cache.misses,
        }

    # checkpoints

    def _tell_saved(self) -> list[Effect]:
        """Let the storage nodes know which records no replay will ask for: only those may be deleted outright."""
        if self._saved is None or not self.follower.chain:
            return []
        return [Send(node, self._saved) for node in self.follower.chain.current.storage]

    def checkpoint(self) -> list[Effect]:
        """Save the index, so that the next start need not read the whole log. Nothing if that is being done."""
        if self._is_checkpointing:
            return []
        self._is_checkpointing = True
        self._saving = IndexSaved(self.follower.term, {log: self.index.next_seqnum(log) for log in self.follower.logs})
        writes = self.index.checkpoint()
        placement = Put(PLACEMENT_KEY, msgspec.msgpack.encode(list(self._placement.items())))
        saved = Send(self.node, _CheckpointStored())
        return [
            Trace(logging.DEBUG, f"checkpoint of the index: {len(writes)} writes"),
            Store([*writes, placement], then=(saved,)),
        ]
