"""The engine: appends, the index and reads, held together by the metalog that it follows.

An engine keeps several machines and routes events to them: `Appends` (records of its own that wait for a cut), `Index`
(what is where, and which conditions held), `Reads` (what waits for either), `Requests` (what it wants in the metalogs).
Applying the metalog is the heartbeat: each committed entry, strictly in order, first changes the index, then answers
the appends that it ordered, then wakes the reads that it concerns. A cut is applied only when the batches that it
orders are here; those of other engines, or of this engine's own former incarnations, come from those engines or are
fetched from their shards' storage nodes.

An append is answered when the index has applied the cut that orders it: that cut is durable on a majority of
sequencers, its records on their write quorum, and the verdict on its conditions is known. Nothing of it was visible
before, no cache included.

An engine that finds itself fenced has been presumed lost, and others may have taken over what it did: it ends all
pending operations, says so by `Announce(EngineNews.FENCED)`, and takes part in nothing any more. The stages of its life
cycle are a table (`boki.engine.lifecycle`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, ClassVar, Final, assert_never

import msgspec

from boki.engine.appends import Appends
from boki.engine.cache import AuxCache, RecordCache
from boki.engine.checkpoint.mirror import Mirror
from boki.engine.checkpoint.saving import Checkpoints, IndexStored, read_fenced, read_opened
from boki.engine.figures import figures
from boki.engine.gathering import Gathering
from boki.engine.index.index import Index
from boki.engine.lifecycle import Lifecycle, Stage
from boki.engine.pending_read import PendingRead, ReadOperation
from boki.engine.reads import Reads
from boki.engine.replicas import Replicas
from boki.engine.requests import Requests, trim_entry
from boki.engine.rest import Rest
from boki.engine.stamps import Stamps
from boki.engine.strays import Strays
from boki.engine.tails import Tails
from boki.engine.waiter import Ended, Unstamped, Waiter
from boki.engine.watches import Watches
from boki.errors import BokiError, InvalidArgument, Unavailable
from boki.log.ids import LogId, NodeId, Term, make_shard, shard_incarnation
from boki.log.limits import Limits
from boki.log.metalog import CloseShard, Cut, MetalogEntry, OpenShard, Positions, Trims, make_position, split_position
from boki.log.operations import (
    Append,
    Compare,
    Get,
    ListBooks,
    Operation,
    Read,
    SetAuxdata,
    SetRetention,
    Sync,
    TrimBook,
)
from boki.log.view import View
from boki.protocol.effects import Announce, DiskReader, Effect, EngineNews, Send, Token, Trace, kinds
from boki.protocol.follower import COORDINATOR, MetalogFollower
from boki.protocol.messages import (
    BatchesFetched,
    CheckpointStored,
    EntriesDropped,
    FetchView,
    IndexBatch,
    InstallMembership,
    InstallPlacement,
    InstallView,
    Metalog,
    Ping,
    Pong,
    ShardProgress,
    TellTail,
)

EngineInput = (
    Metalog
    | ShardProgress
    | IndexBatch
    | BatchesFetched
    | TellTail
    | Ping
    | InstallView
    | InstallMembership
    | InstallPlacement
    | IndexStored
    | CheckpointStored
    | EntriesDropped
)
"""What an engine hears: from nodes, from the coordinator, and from itself."""
_BEFORE_VIEWS: Final = (InstallView, InstallMembership, InstallPlacement, IndexStored, Ping)
_LIFE_BITS: Final = 32
_ASK_VIEW_US: Final = 100_000


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Budgets of one engine."""

    index_memory_bytes: int
    cache_bytes: int
    aux_cache_bytes: int
    append_buffer_bytes: int
    batch_bytes: int
    limits: Limits
    pushed_bytes: int = 32 << 20
    """Batches of other engines that wait here for the cuts that order them."""
    checkpoint_us: int = 30_000_000
    """How old a change of the index may become before it is saved."""
    checkpoint_page_bytes: int = 128 << 10
    """So much of a checkpoint storage nodes are sent at a time."""


class EngineCore:
    """One incarnation of one engine. `disk` holds the index's last checkpoint: a cache, the truth is in the logs."""

    HEARS: ClassVar[frozenset[type]] = kinds(EngineInput)

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
        self.stamps = Stamps(self.follower, self.index)
        self.replicas = Replicas(read_opened(disk))
        # No number of this incarnation is one of an earlier incarnation: late answers to that one must find nobody.
        self._numbers = incarnation << _LIFE_BITS
        self.reads = Reads(
            self.index,
            self.cache,
            self.aux,
            limits,
            self.replicas.of,
            self.stamps.is_caught_up,
            self.stamps.tail_of,
            first_number=self._numbers,
        )
        self.watches = Watches(self.index)
        self.tails = Tails(self._numbers)
        self.strays = Strays(config.pushed_bytes)
        self.gathering = Gathering(self.appends, self.strays, self.replicas, self.cache)
        self.requests = Requests(dict(read_fenced(disk)))
        self.checkpoints = Checkpoints(
            node,
            self.index,
            self.follower,
            self.replicas,
            self.requests,
            Mirror(incarnation, disk, config.checkpoint_page_bytes),
            self._is_current,
            interval_us=config.checkpoint_us,
        )
        self._rest = Rest(
            self.follower, self.index, self.appends, self.reads, self.tails, self.requests, self.checkpoints
        )
        self._shard_count = 0
        self._began: Term = 0
        self._view_asked_at = 0
        self._lifecycle = Lifecycle()

    # operations

    def submit(
        self, operation: Operation, positions: Positions, deadline_us: int, token: Token, now_us: int
    ) -> Iterable[Effect]:
        """Take in an operation that was checked at the edge. One `Answer` follows, by the deadline.

        For speed, appends are only queued here: the caller lets the core settle in the same turn.
        """
        waiter = Waiter(None if isinstance(operation, ListBooks) else operation.book, token)
        try:
            return self.stamps.stamp(self._submit(operation, positions, deadline_us, waiter, now_us))
        except BokiError as error:
            return self.stamps.stamp([Ended(waiter, error)])

    def _submit(
        self, operation: Operation, positions: Positions, deadline_us: int, waiter: Waiter, now_us: int
    ) -> Iterable[Unstamped]:
        if not self.follower.chain or self.is_fenced():
            raise Unavailable("this engine does not know who sequences and stores; try again", retry_after_s=0.2)
        match operation:
            case Append(book, chunk):
                self.index.check_room()
                self.appends.add(book, chunk, waiter, deadline_us)
                return ()
            case Read(fresh=True) | Sync():
                return self.tails.ask(self.follower.chain.current, operation, waiter, deadline_us)
            case Read() | Get() | Compare() | SetAuxdata() | ListBooks():
                newest = max((split_position(position)[0] for position in positions.values()), default=0)
                asking = self._ask_view(newest, now_us)
                return [*asking, *self._read(operation, waiter, positions, deadline_us, now_us)]
            case TrimBook():
                self._numbers += 1
                trim = trim_entry(operation, self.node, self._numbers, may_forget=self.replicas.may_forget)
                return self.requests.trim(trim, waiter, deadline_us, self._newest_view)
            case SetRetention():
                raise InvalidArgument("an engine does not carry out SetRetention: its shell does")
            case _:
                assert_never(operation)

    def _read(
        self, operation: ReadOperation, waiter: Waiter, needs: Positions, deadline_us: int, now_us: int
    ) -> Iterable[Unstamped]:
        wait_us = operation.wait_us if isinstance(operation, Read) else 0
        wait_until_us = now_us + wait_us if wait_us else 0
        return self.reads.start(PendingRead(operation, waiter, needs, deadline_us, wait_until_us), now_us)

    def give_up(self, token: Token) -> Iterable[Effect]:
        """The caller behind that token no longer waits for its read, which is not answered if it has not been."""
        if not self.reads.give_up(token):
            self.tails.give_up(token)
        return ()

    def fence(self, incarnation: int, deadline_us: int, token: Token) -> Iterable[Effect]:
        """Ensure that this incarnation of an engine appends nothing more. `Done` is the answer.

        What it had appended before is applied here by then: the engine that takes over has seen all of it.
        """
        waiter = Waiter(None, token)
        if not self.follower.chain or self.is_fenced() or incarnation == self.incarnation:
            return self.stamps.stamp(
                [Ended(waiter, Unavailable("this engine cannot fence that one", retry_after_s=0.2))]
            )
        return self.stamps.stamp(self.requests.fence(incarnation, waiter, deadline_us, self._newest_view))

    def watch(self, book: str, tag: str, min_seqnum: int, token: Token) -> Iterable[Effect]:
        """Wait for a record of the tag at or above `min_seqnum`, for as long as it takes. `Done` is the answer,
        unless `watches.remove` comes first or this engine ends.
        """
        return self.stamps.stamp(self.watches.add(book, tag, min_seqnum, token))

    def close(self) -> None:
        """Take no more appends; `EngineNews.CLOSED` follows when those that were taken are ordered."""
        self._lifecycle.close()
        self.appends.close()

    # events

    def receive(self, sender: NodeId, message: EngineInput, now_us: int) -> Iterable[Effect]:
        """See `boki.protocol.effects.Core`. Until it knows a view, all that nodes say is meant for a former
        incarnation.
        """
        if self.is_fenced() or not (self.follower.chain or isinstance(message, _BEFORE_VIEWS)):
            return ()
        match message:
            case Metalog():
                self.follower.offer(message, now_us, sender)
                return self._ask_view(message.term + message.ended, now_us)
            case ShardProgress():
                self.appends.note_progress(sender, message, now_us)
            case IndexBatch(batch):
                term = self.strays.push(batch, self.follower.term)
                return self._ask_view(term, now_us)
            case BatchesFetched(request) if request > 0:
                return self.stamps.stamp(self.reads.on_fetched(sender, message, now_us))
            case BatchesFetched():
                if self.strays.put(message):
                    return self.checkpoints.give_up(self.strays.damage)
            case TellTail():
                return [*self._ask_view(message.term, now_us), *self._on_tail(sender, message, now_us)]
            case Ping(number):
                known = self.follower.chain.current.term if self.follower.chain else 0
                return (Send(sender, Pong(number, known, self.incarnation, applied=dict(self.index.applied))),)
            case InstallView() | InstallMembership() | InstallPlacement():
                return self.stamps.stamp(self._install(message, now_us))
            case IndexStored():
                return self.checkpoints.stored()
            case CheckpointStored():
                return self.checkpoints.mirrored(sender, message, now_us)
            case EntriesDropped():
                if self.follower.has_lost(message):
                    return self.checkpoints.give_up("the log's older entries have been dropped")
            case _:
                assert_never(message)
        term = message.term if isinstance(message, ShardProgress | BatchesFetched) else 0
        return self._ask_view(term, now_us)

    def _install(self, message: InstallView | InstallMembership | InstallPlacement, now_us: int) -> list[Unstamped]:
        """The coordinator's word."""
        match message:
            case InstallView(views):
                self.follower.install(views)
                newest = views[-1].term if views else 0
                effects: list[Unstamped] = list(self._ask_view(newest, now_us))
                if self._began == 0 and self.follower.chain:
                    effects += self._begin_term(self.follower.view, now_us)
                return effects
            case InstallMembership(membership):
                if self.replicas.install_membership(membership):
                    self.appends.peers = self.replicas.indexes_beside(self.node)
                    self.appends.live = self.replicas.live
                    self.appends.near = frozenset(member.node for member in membership.beside(self.node))
                    return self._open_shards()
            case InstallPlacement(placement):
                self.replicas.install_placement(placement)
            case _:
                assert_never(message)
        return []

    def _ask_view(self, term: Term, now_us: int) -> list[Effect]:
        """Ask for the view of a term that another node has named and this engine does not know."""
        known = self.follower.chain.current.term if self.follower.chain else 0
        if term <= known or now_us - self._view_asked_at < _ASK_VIEW_US:
            return []
        self._view_asked_at = now_us
        return [Send(COORDINATOR, FetchView(known))]

    def settle(self, now_us: int) -> Iterable[Effect]:
        """See `boki.protocol.effects.Core`: apply what has come, then send what has gathered."""
        if not self.follower.chain or self.is_fenced():
            return ()
        followed = self._follow(now_us)
        followed += self.appends.settle(now_us)
        followed += [Send(to, fetch) for to, fetch in self.follower.fetches(now_us)]
        effects = self.stamps.stamp(followed)
        if self.is_fenced():
            return [*effects, Announce(EngineNews.FENCED)]
        if not self._lifecycle.awaits:
            return effects
        news = self._lifecycle.settle(is_current=self.is_ready, is_closed=self.appends.is_closed)
        return effects if news is None else [*effects, news]

    def tick(self, now_us: int) -> Iterable[Effect]:
        """See `boki.protocol.effects.Core`: deadlines, and everything that may have been lost is asked for again."""
        if not self.follower.chain or self.is_fenced():
            return ()
        effects = list(self.settle(now_us))
        if self.is_fenced():
            return effects
        self.index.rest()
        view = self._newest_view
        timed = [*self.appends.tick(now_us), *self.reads.tick(now_us), *self.requests.tick(view, now_us)]
        timed += self.tails.tick(self.follower.chain.current, now_us)
        for log, shard in self.appends.done_shards(now_us):
            timed += self.requests.close(log, shard, view)
        effects += self.stamps.stamp(timed)
        return effects + self.checkpoints.tick(now_us)

    def rests_until(self, now_us: int) -> int:
        """See `boki.protocol.effects.Resting`."""
        return self._rest.until(now_us) if self.is_ready else now_us

    def is_fenced(self) -> bool:
        """Whether this incarnation was presumed lost: it takes part in nothing any more."""
        return self._lifecycle.is_fenced

    @property
    def is_ready(self) -> bool:
        """Whether this engine has caught up with every log and may append to each."""
        return self._is_current() and not self.appends.unopened and self._lifecycle.takes_appends

    def _is_current(self) -> bool:
        return self.follower.is_caught_up() and self._began == self.follower.term

    # applying the metalogs

    def _follow(self, now_us: int) -> list[Unstamped]:
        effects: list[Unstamped] = []
        while True:
            for log in self.follower.logs:
                effects += self._follow_log(log, now_us)
                if self.is_fenced():
                    return effects
            view = self.follower.next_term()
            if view is None:
                return effects
            effects += self._begin_term(view, now_us)
            effects += self.reads.on_applied((), now_us)

    def _follow_log(self, log: LogId, now_us: int) -> list[Unstamped]:
        if self.follower.peek(log) is None:
            return []
        effects: list[Unstamped] = []
        books: set[str] = set()
        rows: set[tuple[str, str]] = set()
        trimmed: set[str] = set()
        has_applied = False
        while not self.is_fenced() and (found := self.follower.peek(log)) is not None:
            entry = found[1]
            pieces = self.index.pieces(log, entry) if isinstance(entry, Cut) else []
            batches = self.gathering.gather(self.follower.term, log, pieces, now_us, effects)
            if batches is None:
                break
            if isinstance(entry, Trims):
                # who waits must have seen what stands before the trim, or it would look as if the trim took it away
                effects += self.reads.on_applied(books, now_us, rows)
                effects += self.reads.on_applied((entry.book,), now_us)
                books, rows = set(), set()
            applied = self.index.apply(log, entry, batches)
            self.follower.advance(log)
            has_applied = True
            if isinstance(entry, Trims):
                trimmed |= applied.books
            else:
                books |= applied.books
            if applied.watched:
                rows |= applied.watched
                effects += self.watches.on_applied(applied.watched)
            if pieces:
                self.gathering.applied(self.follower.term, log, pieces, batches)
                for piece in pieces:
                    effects += self.appends.order(log, piece, applied.refusals)
            else:
                effects += self._note(log, entry, now_us)
        if has_applied:
            effects += self.reads.on_applied(books, now_us, rows)
        if trimmed:
            effects += self.reads.on_applied(trimmed, now_us)
        return effects

    def _note(self, log: LogId, entry: MetalogEntry, now_us: int) -> list[Unstamped]:
        """An entry other than a cut has been applied."""
        effects: list[Unstamped] = []
        match entry:
            case OpenShard(shard, _, replicas):
                self.replicas.open((self.follower.term, log, shard), replicas)
                if log in self.requests.opening and self.requests.opening[log].shard == shard:
                    self.appends.open_shard(log, shard, replicas, now_us)
            case CloseShard(shard, is_lost):
                if is_lost and shard_incarnation(shard) == self.incarnation:
                    return self._stop_fenced(log)
                self.strays.forget((self.follower.term, log, shard))
                effects += self.appends.close_shard(log, shard, now_us)
        effects += self.requests.note(log, entry, self.follower.view)
        if isinstance(entry, OpenShard | CloseShard):
            effects += self._open_shards()
        return effects

    def _stop_fenced(self, log: LogId) -> list[Unstamped]:
        self._lifecycle.move(Stage.FENCED)
        text = "this engine incarnation was fenced, and others may do its work; restarting under a new incarnation"
        return [
            Trace(logging.CRITICAL, text),
            *self.appends.abandon(log),
            *self.reads.abandon(),
            *self.tails.abandon(),
            *self.requests.abandon(),
        ]

    # terms and shards

    @property
    def _newest_view(self) -> View | None:
        """The view of the newest term, if that is followed; until then the term before may hold what is requested."""
        view = self.follower.chain.current
        return view if self.follower.term == view.term else None

    def _begin_term(self, view: View, now_us: int) -> list[Unstamped]:
        self._began = view.term
        self.index.begin_term(view)
        self.strays.begin_term(view.term)
        effects: list[Unstamped] = list(self.requests.begin_term(view.term))
        if view.term == self.follower.chain.current.term:
            effects += self.appends.begin_term(view, now_us)
            effects += self._open_shards()
            effects += self.tails.ask_again(view)
        return effects

    def _open_shards(self) -> list[Unstamped]:
        """Request a shard for each log that needs one: it has none, or its storage nodes are going or gone."""
        view = self._newest_view if self.follower.chain else None
        if view is None or self.appends.term != view.term:
            return []
        worse = [log for log, shard in self.appends.current_shards() if self.replicas.should_move(view, shard.replicas)]
        effects: list[Unstamped] = []
        for log in [*self.appends.unopened, *worse]:
            if log in self.requests.opening or (not self._lifecycle.takes_appends and not self.appends.has_unsent(log)):
                continue
            replicas = self.replicas.choose(view, self.incarnation + self._shard_count)
            shard = make_shard(self.incarnation, self._shard_count)
            self._shard_count += 1
            effects += self.requests.open(log, OpenShard(shard, self.node, replicas), view)
        return effects

    def _on_tail(self, sender: NodeId, message: TellTail, now_us: int) -> Iterable[Effect]:
        effects: list[Unstamped] = []
        for operation, waiter, log, entries, deadline_us in self.tails.tell(
            self.follower.chain.current, sender, message
        ):
            needs = {log: make_position(message.term, entries)}
            effects += self._read(operation, waiter, needs, deadline_us, now_us)
        return self.stamps.stamp(effects)

    def status(self) -> dict[str, Any]:
        """Figures for operators, as JSON values."""
        return figures(self.incarnation, self.appends, self.reads, self.watches, self.index, self.cache)

    def checkpoint(self) -> list[Effect]:
        """Save the index, so that the next start need not read the whole log. Nothing if that is being done."""
        return self.checkpoints.begin()
