"""The sequencer decides the order of records without ever seeing one.

**The primary.** Storage nodes report how far each shard is durable. Per shard the primary takes the position that
`write_quorum` of its replicas have reached; if any shard has moved and no entry is in flight, it appends a cut. The
entry goes to its own disk and to the backups; once a majority of the sequencers holds it durably it is committed and
published with the committed index. There is no timer: an idle log cuts at once, a busy one as fast as the quorum
answers, and the batch finds its size. A cut that a new term could forget would reorder records that somebody has read,
so nobody hears of an entry before a majority holds it.

**One value for one index.** A primary that restarts has forgotten what it sent, so it never appends in that term again.
Backups accept only the next index of an unsealed term and answer after it is durable. What a new term keeps is decided
by the controller's completion, which is a message of its own: no primary can take the answer for an acknowledgement.

**Sealing** is durable before it is answered; after that this node accepts no append of the term and publishes nothing.

Rule: this file knows shards and nodes as names. It never knows books, tags or bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from boki.effects import DiskReader, Effect, Load, Loaded, Put, Send, Store
from boki.follower import COORDINATOR
from boki.log.ids import LogId, NodeId, ShardId, Term
from boki.log.metalog import CloseShard, Cut, MetalogEntry, OpenShard, Trim, decode_entry
from boki.log.quorum import quorum_reached
from boki.log.view import View, ViewChain
from boki.messages import (
    AppendEntry,
    AskTail,
    Complete,
    Completed,
    EntriesStored,
    FetchMetalog,
    FetchSealed,
    FetchView,
    InstallView,
    Metalog,
    RequestEntry,
    Seal,
    Sealed,
    SealedEntries,
    ShardProgress,
    TellTail,
)
from boki.sequencer.metalog_store import MetalogStore, Phase, entry_key, led_key, seal_key

_PAGE_ENTRIES: Final = 10_000
_REPEAT_US: Final = 250_000
_REMEMBERED_TRIMS: Final = 10_000
_MAX_REQUESTED: Final = 1_000


@dataclass(slots=True)
class _Shard:
    """An open shard as the primary counts it."""

    replicas: tuple[NodeId, ...]
    stored: dict[NodeId, tuple[int, int]] = field(default_factory=dict)
    """Per replica, (incarnation, stored until)."""
    cut_until: int = 0


class _Primary:
    """What only the primary of a log knows. It is made when the term begins here and dies with the process."""

    def __init__(self, start_time_us: int) -> None:
        self.shards: dict[ShardId, _Shard] = {}
        self.moved = False
        self.requested: list[MetalogEntry] = []
        self.trims: dict[tuple[NodeId, int], None] = {}
        self.stored: dict[NodeId, int] = {}
        self.last_time_us = start_time_us
        self.sent_at = 0

    def wants(self, entry: MetalogEntry) -> bool:
        """Whether a requested entry is news."""
        if len(self.requested) >= _MAX_REQUESTED or entry in self.requested:
            return False  # whoever wants it asks again
        match entry:
            case OpenShard(shard):
                return shard not in self.shards
            case CloseShard(shard):
                return shard in self.shards
            case Trim():
                return (entry.engine, entry.request) not in self.trims
        return False  # nobody but the primary makes cuts

    def cut(self, quorum: int, now_us: int) -> Cut | None:
        """The next cut, if any shard has moved."""
        self.moved = False
        until: list[tuple[ShardId, int]] = []
        for number, shard in sorted(self.shards.items()):
            reached = quorum_reached((stored for _, stored in shard.stored.values()), quorum)
            if reached > shard.cut_until:
                shard.cut_until = reached
                until.append((number, reached))
        if not until:
            return None
        self.last_time_us = max(self.last_time_us, now_us)
        return Cut(self.last_time_us, tuple(until))

    def take_requested(self) -> list[MetalogEntry]:
        """The requested entries, to be appended now."""
        entries, self.requested = self.requested, []
        for entry in entries:
            if isinstance(entry, OpenShard):
                self.shards[entry.shard] = _Shard(entry.replicas)
            elif isinstance(entry, CloseShard):
                self.shards.pop(entry.shard, None)
            elif isinstance(entry, Trim):
                self.trims[entry.engine, entry.request] = None
                if len(self.trims) > _REMEMBERED_TRIMS:
                    del self.trims[next(iter(self.trims))]
        return entries


@dataclass(frozen=True, slots=True)
class _Lead:
    """To itself: the disk knows that this node leads the logs of that view, so now it may."""

    view: View


class For(Enum):
    """Who wants to read entries."""

    READER = "reader"
    CONTROLLER = "controller"
    BACKUP = "backup"


@dataclass(frozen=True, slots=True)
class _Question:
    """A fetch of old entries being loaded from the disk."""

    sender: NodeId
    term: Term
    log: LogId
    first_index: int
    purpose: For
    until_index: int
    """The committed index, the term's end, or, of a sealed term, how many entries there are."""


class SequencerCore:
    """One sequencer, of all logs and all terms it has on its disk. `incarnation` names the life of that disk."""

    def __init__(self, node: NodeId, incarnation: int, disk: DiskReader) -> None:
        self.node = node
        self.incarnation = incarnation
        self.chain = ViewChain()
        self._disk = disk
        self._stores: dict[tuple[Term, LogId], MetalogStore] = {}
        self._primaries: dict[LogId, _Primary] = {}
        self._committed: dict[tuple[Term, LogId], int] = {}
        self._subscribers: dict[LogId, dict[NodeId, None]] = {}
        self._repeat_at = 0

    # events

    def receive(self, sender: NodeId, message: Any, now_us: int) -> Iterable[Effect]:  # noqa: ARG002
        """See `boki.effects.Core`."""
        match message:
            case ShardProgress():
                self._report(sender, message)
            case EntriesStored():
                return self._acknowledge(sender, message)
            case RequestEntry(term, log, entry):
                primary = self._primary(term, log)
                if primary is not None and primary.wants(entry):
                    primary.requested.append(entry)
            case AppendEntry():
                return self._append(sender, message)
            case FetchMetalog(term, log, first_index):
                return self._fetch(sender, term, log, first_index)
            case AskTail(request, log):
                return self._tell_tail(sender, request, log)
            case InstallView(views):
                return self._install(views)
            case _Lead(view):
                self._lead(view)
            case Seal(term):
                return self._seal(sender, term)
            case FetchSealed(term, log, first_index):
                return self._fetch_sealed(sender, term, log, first_index)
            case Complete():
                return self._complete(sender, message)
            case Loaded(_Question() as question, rows, error):
                return () if error else self._answer(question, [decode_entry(value) for _, value in rows])
        return ()

    def settle(self, now_us: int) -> Iterable[Effect]:
        """See `boki.effects.Core`: each log that this node leads appends what has gathered, if nothing is in flight."""
        effects: list[Effect] = []
        for log, primary in self._primaries.items():
            store = self._stores[self.chain.current.term, log]
            if not store.may("append") or self._committed[store.term, log] < store.length:
                continue
            if not primary.moved and not primary.requested:
                continue
            entries = primary.take_requested()
            cut = primary.cut(self.chain.current.write_quorum, now_us)
            if cut is not None:
                entries.append(cut)
            if entries:
                effects += self._propose(store, primary, entries, now_us)
        return effects

    def tick(self, now_us: int) -> Iterable[Effect]:
        """See `boki.effects.Core`: the primary repeats to its backups what they lack, and to readers how far it is."""
        effects = list(self.settle(now_us))
        if now_us < self._repeat_at:
            return effects
        self._repeat_at = now_us + _REPEAT_US
        for log, primary in self._primaries.items():
            store = self._stores[self.chain.current.term, log]
            if store.phase is not Phase.OPEN:
                continue
            committed = self._committed[store.term, log]
            for backup in self.chain.current.sequencers:
                first = primary.stored.get(backup, 0)
                if backup != self.node and first < store.length and now_us - primary.sent_at > _REPEAT_US:
                    effects += self._send_entries(store, backup, first, committed)
            idle = Metalog(store.term, log, committed, (), committed)
            effects += [Send(reader, idle) for reader in self._subscribers.get(log, ())]
        return effects

    # being primary

    def _primary(self, term: Term, log: LogId) -> _Primary | None:
        if not self.chain or term != self.chain.current.term:
            return None
        return self._primaries.get(log)

    def _report(self, sender: NodeId, message: ShardProgress) -> None:
        primary = self._primary(message.term, message.log)
        shard = primary.shards.get(message.shard) if primary is not None else None
        if primary is None or shard is None or sender not in shard.replicas:
            return
        incarnation, stored = shard.stored.get(sender, (message.incarnation, 0))
        if message.incarnation < incarnation:
            return
        if message.incarnation > incarnation:
            stored = 0  # a wiped disk counts for nothing that it once said
        shard.stored[sender] = (message.incarnation, max(stored, message.stored_until))
        primary.moved = True

    def _propose(
        self, store: MetalogStore, primary: _Primary, entries: Sequence[MetalogEntry], now_us: int
    ) -> Iterable[Effect]:
        first = store.length
        committed = self._committed[store.term, store.log]
        primary.sent_at = now_us
        for backup in self.chain.current.sequencers:
            if backup != self.node:
                yield Send(backup, AppendEntry(store.term, store.log, first, tuple(entries), committed))
        puts = store.add("append", first, entries)
        stored = EntriesStored(store.term, store.log, self.incarnation, store.length)
        yield Store(puts, then=(Send(self.node, stored),))

    def _acknowledge(self, sender: NodeId, message: EntriesStored) -> Iterable[Effect]:
        store = self._stores.get((message.term, message.log))
        if store is None:
            return
        if sender == self.node:
            store.durable_until = max(store.durable_until, message.stored_until)
        primary = self._primary(message.term, message.log)
        view = self.chain.current
        if primary is None or store.phase is not Phase.OPEN or view.incarnations.get(sender) != message.incarnation:
            return
        primary.stored[sender] = max(primary.stored.get(sender, 0), message.stored_until)
        before = self._committed[store.term, store.log]
        committed = quorum_reached(primary.stored.values(), view.sequencer_majority)
        if committed > before:
            self._committed[store.term, store.log] = committed
            entries = store.recent(before, committed)
            assert entries is not None, "one proposal is in flight, and it is far smaller than what memory holds"
            news = Metalog(store.term, store.log, before, tuple(entries), committed)
            # engines first: somebody waits there
            for reader in sorted(self._subscribers.get(store.log, ()), key=view.storage.__contains__):
                yield Send(reader, news)
        elif message.stored_until < before and sender != self.node:
            yield from self._send_entries(store, sender, message.stored_until, before)

    def _send_entries(self, store: MetalogStore, backup: NodeId, first: int, committed: int) -> Iterable[Effect]:
        """Entries that a backup lacks, from memory or, if it was away for long, from the disk."""
        return self._read(_Question(backup, store.term, store.log, first, For.BACKUP, committed), store)

    # being backup, being read

    def _append(self, sender: NodeId, message: AppendEntry) -> Iterable[Effect]:
        if not self.chain or message.term > self.chain.current.term:
            return (Send(COORDINATOR, FetchView(self.chain.current.term if self.chain else 0)),)
        store = self._stores.get((message.term, message.log))
        if store is None or not store.may("append") or message.term != self.chain.current.term:
            return ()
        if self.chain.current.primaries[message.log] != sender:
            return ()
        puts = store.add("append", message.index, message.entries)
        key = (message.term, message.log)
        self._committed[key] = max(self._committed[key], min(message.committed, store.length))
        stored = EntriesStored(message.term, message.log, self.incarnation, store.length)
        return (Store(puts, then=(Send(self.node, stored), Send(sender, stored))),)

    def _fetch(self, sender: NodeId, term: Term, log: LogId, first_index: int) -> Iterable[Effect]:
        store = self._stores.get((term, log))
        if store is None:
            return ()
        end = self.chain.end_of(term, log)
        if end is None:
            self._subscribers.setdefault(log, {})[sender] = None
        until = self._committed[term, log] if end is None else end
        return self._read(_Question(sender, term, log, first_index, For.READER, until), store)

    def _fetch_sealed(self, sender: NodeId, term: Term, log: LogId, first_index: int) -> Iterable[Effect]:
        store = self._stores.get((term, log))
        if store is None or store.phase is Phase.OPEN:
            return ()
        return self._read(_Question(sender, term, log, first_index, For.CONTROLLER, store.length), store)

    def _read(self, question: _Question, store: MetalogStore) -> Iterable[Effect]:
        last = store.length if question.purpose is For.BACKUP else question.until_index
        until = min(last, question.first_index + _PAGE_ENTRIES)
        entries = store.recent(question.first_index, until)
        if entries is not None:
            return self._answer(question, entries)
        start = entry_key(store.term, store.log, question.first_index)
        return (Load(question, start, start, entry_key(store.term, store.log, until), 1 << 24),)

    def _answer(self, question: _Question, entries: Sequence[MetalogEntry]) -> Iterable[Effect]:
        term, log, first = question.term, question.log, question.first_index
        if question.purpose is For.CONTROLLER:
            return (Send(question.sender, SealedEntries(term, log, first, tuple(entries))),)
        if question.purpose is For.BACKUP:
            if not entries or self._stores[term, log].phase is not Phase.OPEN:
                return ()
            return (Send(question.sender, AppendEntry(term, log, first, tuple(entries), question.until_index)),)
        ended = self.chain.end_of(term, log) is not None
        return (Send(question.sender, Metalog(term, log, first, tuple(entries), question.until_index, ended)),)

    def _tell_tail(self, sender: NodeId, request: int, log: LogId) -> Iterable[Effect]:
        if not self.chain or log >= self.chain.current.log_count:
            return ()
        store = self._stores[self.chain.current.term, log]
        sealed = store.phase is not Phase.OPEN
        return (Send(sender, TellTail(request, store.term, log, self.incarnation, store.durable_until, sealed)),)

    # changing terms

    def _install(self, views: Sequence[View]) -> Iterable[Effect]:
        news = [
            view for view in views if (not self.chain or view.term >= self.chain.first_term) and self.chain.add(view)
        ]
        for view in news:
            for log in range(view.log_count):
                self._stores[view.term, log] = MetalogStore(view.term, log, self._disk, keep_recent=view is news[-1])
                self._committed[view.term, log] = 0
        if not news:
            return ()
        self._primaries.clear()
        self._subscribers.clear()
        view = news[-1]
        if self.node not in view.primaries or self._disk.get(led_key(view.term)) is not None:
            return ()
        # Before the first entry may leave, the disk must know that this node has led the term: a restart loses what
        # was sent, and a second value for an index is the one thing that must never be.
        return (Store([Put(led_key(view.term), b"led")], then=(Send(self.node, _Lead(view)),), is_vote=True),)

    def _lead(self, view: View) -> None:
        if view.term != self.chain.current.term:
            return
        for log in range(view.log_count):
            if view.primaries[log] == self.node and self._stores[view.term, log].may("append"):
                self._primaries[log] = _Primary(view.start_time_us)

    def _seal(self, sender: NodeId, term: Term) -> Iterable[Effect]:
        if term not in self.chain:
            return ()
        stores = [self._stores[term, log] for log in range(self.chain[term].log_count)]
        for store in stores:
            store.seal()
        last_time_us = max(store.last_time_us for store in stores)
        sealed = Sealed(term, self.incarnation, tuple(store.length for store in stores), last_time_us)
        return (Store([Put(seal_key(term), b"sealed")], then=(Send(sender, sealed),), is_vote=True),)

    def _complete(self, sender: NodeId, message: Complete) -> Iterable[Effect]:
        store = self._stores.get((message.term, message.log))
        if store is None or not store.may("complete"):
            return ()
        puts = store.add("complete", message.first_index, message.entries)
        done = Completed(message.term, message.log, self.incarnation, store.length)
        return (Store(puts, then=(Send(sender, done),)),)
