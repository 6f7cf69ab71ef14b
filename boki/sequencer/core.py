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

**Ended terms** are made whole (`boki.sequencer.history`) and kept until a checkpoint of the index covers them; then
their entries are dropped, and nodes that ask for them are told to take a checkpoint. A sequencer that no view names
waits.

Rule: this file knows shards and nodes as names. It never knows books, tags or bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Final, assert_never

from boki.log.ids import LogId, NodeId, Term
from boki.log.metalog import Cut, MetalogEntry, decode_entry
from boki.log.quorum import quorum_reached
from boki.log.view import View, ViewChain
from boki.protocol.beats import EARLY_US
from boki.protocol.effects import Delete, DiskReader, DiskUnreadable, Effect, Load, Loaded, Put, Send, Store, kinds
from boki.protocol.follower import COORDINATOR
from boki.protocol.messages import (
    AppendEntry,
    AskTail,
    Complete,
    Completed,
    DropEntries,
    EntriesDropped,
    EntriesStored,
    FetchMetalog,
    FetchSealed,
    FetchView,
    InstallView,
    Metalog,
    Ping,
    Pong,
    RecordsTaken,
    RequestEntry,
    Seal,
    Sealed,
    SealedEntries,
    ShardProgress,
    TellTail,
)
from boki.sequencer.behind import Behind
from boki.sequencer.history import History
from boki.sequencer.inputs import For, Kept, Lead, Question, SeldomInput, SequencerInput
from boki.sequencer.metalog_store import (
    MetalogStore,
    Phase,
    drop_terms,
    dropped_key,
    entry_key,
    index_of,
    led_key,
    seal_key,
)
from boki.sequencer.primary import PAGE_ENTRIES, Primary
from boki.sequencer.vitals import figures, pong

_REPEAT_US: Final = 250_000
_IDLE_REPEAT_US: Final = 500_000
"""An idle primary may repeat itself later by this, at a beat. Followers ask after a second of silence."""
_STORAGE_US: Final = 10_000
"""So far apart storage nodes are told of cuts."""


class SequencerCore:
    """One sequencer, of all logs and all terms it has on its disk. `incarnation` names the run of that disk; `mate` is
    the storage node of its process, if there is one.
    """

    HEARS: ClassVar[frozenset[type]] = kinds(SequencerInput)

    def __init__(self, node: NodeId, incarnation: int, disk: DiskReader, mate: NodeId | None = None) -> None:
        self.node = node
        self.behind = Behind(mate)
        self.incarnation = incarnation
        self.chain = ViewChain()
        self._disk = disk
        self._stores: dict[tuple[Term, LogId], MetalogStore] = {}
        """Those of the current term, and those of ended ones that somebody has asked for."""
        self._primaries: dict[LogId, Primary] = {}
        self._subscribers: dict[LogId, dict[NodeId, None]] = {}
        self._kept_from_term = int(disk.get(dropped_key()) or 0)
        self.history = History(node, disk, self.chain, self._store)
        self._repeat_at = 0

    # events

    def receive(self, sender: NodeId, message: SequencerInput, now_us: int) -> Iterable[Effect]:
        """See `boki.protocol.effects.Core`."""
        match message:
            case ShardProgress(term, log, shard, incarnation, stored_until):
                primary = self._primary(term, log)
                if primary is not None:
                    primary.report(sender, shard, incarnation, stored_until)
                    return self._tell_if_sure(primary, term, log)
            case RecordsTaken():
                return self._hear_of_records(sender, message)
            case EntriesStored():
                return self._acknowledge(sender, message, now_us)
            case Kept(store, until):
                store.durable_until = max(store.durable_until, until)
            case RequestEntry(term, log, entry):
                primary = self._primary(term, log)
                if primary is not None:
                    primary.request(entry)
            case AppendEntry():
                return self._append(sender, message)
            case FetchMetalog(term, log, first_index):
                return self._fetch(sender, term, log, first_index)
            case AskTail(request, log):
                return self._tell_tail(sender, request, log)
            case Ping(number):
                return (Send(sender, self._pong(number, now_us)),)
            case Loaded(question, rows, error):
                return self._cannot_answer(question, error) if error else self._answer_from_disk(question, rows)
            case _:
                return self._change(sender, message, now_us)
        return ()

    def _change(self, sender: NodeId, message: SeldomInput, now_us: int) -> Iterable[Effect]:
        """What comes seldom: terms that begin and end, entries that may go."""
        match message:
            case InstallView(views):
                return self._install(views, now_us)
            case Lead(view, asked_at):
                self._lead(view, now_us - asked_at)
            case Seal(term):
                return self._seal(sender, term)
            case FetchSealed(term, log, first_index):
                return self._fetch_sealed(sender, term, log, first_index)
            case Complete():
                return self._complete(sender, message)
            case Metalog():
                return self.history.take(message)
            case DropEntries(term, log, until):
                return self._drop(term, log, until, drops_earlier_terms=True)
            case EntriesDropped(term, log, kept_from):
                return self._drop(term, log, kept_from, drops_earlier_terms=False)
            case _:
                assert_never(message)
        return ()

    def settle(self, now_us: int) -> Iterable[Effect]:
        """See `boki.protocol.effects.Core`: each log that this node leads appends what has gathered, if nothing is in
        flight.
        """
        effects: list[Effect] = []
        for log, primary in self._primaries.items():
            store = self._stores[self.chain.current.term, log]
            if not store.may("append"):
                continue
            if store.committed > primary.told_storage_until and now_us - primary.told_storage_at >= _STORAGE_US:
                effects += self._tell_storage(store, primary, now_us)
            if not primary.has_news or store.committed < store.length:
                continue
            entries = primary.take_proposal(now_us)
            if entries:
                effects += self._propose(store, primary, entries, now_us)
        return effects

    def tick(self, now_us: int) -> Iterable[Effect]:
        """See `boki.protocol.effects.Core`: the primary repeats to its backups what they lack, and to all how far it
        is.
        """
        effects = [*self.settle(now_us), *self.history.tick(now_us), *self.behind.tick()]
        if now_us < self._repeat_at - EARLY_US:
            return effects
        self._repeat_at = now_us + _REPEAT_US
        for log, primary in self._primaries.items():
            store = self._stores[self.chain.current.term, log]
            if store.phase is not Phase.OPEN:
                continue
            is_quiet = now_us - primary.proposed_at > _REPEAT_US
            for backup in self.chain.current.sequencers:
                first = primary.acknowledged.get(backup, 0)
                if backup == self.node or not is_quiet:
                    continue
                if first < store.length:
                    effects += self._send_entries(store, backup, first)
                else:  # an idle primary's last commit, for those who ask a backup
                    effects.append(Send(backup, AppendEntry(store.term, log, store.length, (), store.committed)))
            idle = Metalog(store.term, log, store.committed, (), store.committed)
            effects += [Send(reader, idle) for reader in self._subscribers.get(log, ())]
        return effects

    def _store(self, term: Term, log: LogId) -> MetalogStore | None:
        """This node's metalog of a term; None if it took no part, or if all of that term has been dropped."""
        if term not in self.chain or term < self._kept_from_term or log >= self.chain[term].log_count:
            return None
        store = self._stores.get((term, log))
        if store is None and self.node in self.chain[term].sequencers:
            store = MetalogStore(term, log, self._disk, keep_recent=term == self.chain.current.term)
            self._stores[term, log] = store
        return store

    def _current_stores(self) -> list[MetalogStore]:
        """Of each log of the current term; none if this node takes no part in it."""
        view = self.chain.current
        return [store for log in range(view.log_count) if (store := self._store(view.term, log)) is not None]

    def _current(self) -> tuple[Term, list[MetalogStore]]:
        """The current term and its stores; 0 and none before the first."""
        return (self.chain.current.term, self._current_stores()) if self.chain else (0, [])

    def status(self) -> dict[str, Any]:
        """What an operator wants to know, as JSON values."""
        return figures(*self._current(), self._primaries)

    def _pong(self, number: int, now_us: int) -> Pong:
        term, stores = self._current()
        return pong(number, term, self.incarnation, self._kept_from_term, stores, self._primaries, now_us)

    def rests_until(self, now_us: int) -> int:
        """See `boki.protocol.effects.Resting`."""
        leading = [(self._stores[self.chain.current.term, log], primary) for log, primary in self._primaries.items()]
        is_at_work = any(
            primary.has_news or not store.length == store.committed == primary.told_storage_until
            for store, primary in leading
        )
        if is_at_work or self.behind.is_at_work or self.history.is_at_work:
            return now_us
        is_held = all(primary.is_held_by_all(store.length) for store, primary in leading)
        return self._repeat_at + (_IDLE_REPEAT_US if is_held else 0)

    def _fetch_views(self, term: Term) -> Iterable[Effect]:
        """Somebody speaks of a term that is not known here."""
        known = self.chain.current.term if self.chain else 0
        return (Send(COORDINATOR, FetchView(known)),) if term > known else ()

    # being primary

    def _primary(self, term: Term, log: LogId) -> Primary | None:
        if not self.chain or term != self.chain.current.term:
            return None
        return self._primaries.get(log)

    def _hear_of_records(self, sender: NodeId, message: RecordsTaken) -> Iterable[Effect]:
        """The storage node of this process has put records into the log: cuts that name them may follow."""
        if sender != self.behind.mate:
            return ()
        self.behind.note(message)
        primary = self._primary(message.term, message.log)
        if primary is not None:
            primary.moved = True
        match self.behind.pop(message.term, message.log):
            case (waiting, AppendEntry() as entries):
                return self._append(waiting, entries)
            case (waiting, Complete() as entries):
                return self._complete(waiting, entries)
        return ()

    def _tell_if_sure(self, primary: Primary, term: Term, log: LogId) -> Iterable[Effect]:
        """The cut in flight ran ahead, and reports have overtaken it: backups may store it without the records."""
        store = self._stores[term, log]
        if store.phase is Phase.OPEN and primary.becomes_sure(store.length) and store.committed < store.length:
            for backup in self.chain.current.sequencers:
                if backup != self.node and primary.acknowledged.get(backup, 0) < store.length:
                    yield from self._send_entries(store, backup, primary.acknowledged.get(backup, store.committed))

    def _propose(
        self, store: MetalogStore, primary: Primary, entries: Sequence[MetalogEntry], now_us: int
    ) -> Iterable[Effect]:
        primary.proposed_at = now_us
        message = AppendEntry(store.term, store.log, store.length, tuple(entries), store.committed)
        for backup in self.chain.current.sequencers:
            if backup != self.node:
                yield Send(backup, message)
        puts = store.add("append", message.index, entries)
        yield Store(puts, then=(Send(self.node, self._stored(store)),))

    def _stored(self, store: MetalogStore) -> EntriesStored:
        return EntriesStored(store.term, store.log, self.incarnation, store.length)

    def _acknowledge(self, sender: NodeId, message: EntriesStored, now_us: int) -> Iterable[Effect]:
        store = self._stores.get((message.term, message.log))
        if store is None:
            return
        if sender == self.node:
            store.durable_until = max(store.durable_until, message.stored_until)
        primary = self._primary(message.term, message.log)
        view = self.chain.current
        if primary is None or store.phase is not Phase.OPEN or view.incarnations.get(sender) != message.incarnation:
            return
        before, has_moved = store.committed, primary.acknowledge(sender, message.stored_until)
        if sender == self.node and has_moved and message.stored_until == store.length:
            primary.sync_us = now_us - primary.proposed_at
        committed = quorum_reached(primary.acknowledged.values(), view.sequencer_majority)
        if committed > before:
            store.committed = committed
            entries = store.recent(before, committed)
            assert entries is not None, "one proposal is in flight, and it is far smaller than what memory holds"
            yield from self._publish(store, primary, Metalog(store.term, store.log, before, tuple(entries), committed))
        elif sender != self.node and primary.lacks_page(sender, message.stored_until, before, now_us, moved=has_moved):
            yield from self._send_entries(store, sender, message.stored_until)

    def _publish(self, store: MetalogStore, primary: Primary, news: Metalog) -> Iterable[Effect]:
        """Engines hear of what is committed at once, first those where somebody waits for it. Storage nodes do when it
        is more than cuts: what they learn from these alone is in no hurry.
        """
        readers = self._subscribers.get(store.log, ())
        storage = self.chain.current.storage
        waiting = primary.waiting_for(news.entries)
        others = [reader for reader in readers if reader not in storage and reader not in waiting]
        for reader in (*(reader for reader in waiting if reader in readers), *others):
            yield Send(reader, news, can_wait=reader not in waiting)
        if not all(isinstance(entry, Cut) for entry in news.entries):
            yield from self._tell_storage(store, primary, primary.proposed_at)

    def _tell_storage(self, store: MetalogStore, primary: Primary, now_us: int) -> Iterable[Effect]:
        """Tell storage nodes what has been committed since they were last told."""
        first, until = primary.told_storage_until, store.committed
        entries = store.recent(first, until)
        primary.told_storage_until, primary.told_storage_at = until, now_us
        news = Metalog(store.term, store.log, until if entries is None else first, tuple(entries or ()), until)
        storage = self.chain.current.storage
        return [Send(to, news, can_wait=True) for to in self._subscribers.get(store.log, ()) if to in storage]

    def _send_entries(self, store: MetalogStore, backup: NodeId, first: int) -> Iterable[Effect]:
        """Entries that a backup lacks, from memory or, if it was away for long, from the disk."""
        return self._read(Question(backup, store.term, store.log, first, For.BACKUP, store.committed), store)

    # being backup, being read

    def _append(self, sender: NodeId, message: AppendEntry) -> Iterable[Effect]:
        store = self._store(message.term, message.log)
        if store is None or not store.may("append") or message.term != self.chain.current.term:
            return self._fetch_views(message.term)
        if self.chain.current.primaries[message.log] != sender:
            return ()
        entries, sure = message.entries, max(message.committed, message.sure)
        if not self.behind.is_in_front(store, sender, message, sure):
            entries = entries[: max(0, sure - message.index)]
            if not entries:
                return ()
        puts = store.add("append", message.index, entries)
        store.committed = max(store.committed, min(message.committed, store.length))
        stored = self._stored(store)
        if not puts and store.durable_until == store.length:
            return (Send(sender, stored),)
        return (Store(puts, then=(Send(self.node, Kept(store, store.length)), Send(sender, stored))),)

    def _fetch(self, sender: NodeId, term: Term, log: LogId, first_index: int) -> Iterable[Effect]:
        if term not in self.chain:
            return self._fetch_views(term)
        end = self.chain.end_of(term, log) if log < self.chain[term].log_count else 0
        if term < self._kept_from_term and end is not None:
            return (Send(sender, EntriesDropped(term, log, end)),)
        store = self._store(term, log)
        if store is None:
            return ()
        if end is None:
            self._subscribers.setdefault(log, {})[sender] = None
        until = store.committed if end is None else end
        return self._read(Question(sender, term, log, first_index, For.READER, until), store)

    def _fetch_sealed(self, sender: NodeId, term: Term, log: LogId, first_index: int) -> Iterable[Effect]:
        store = self._store(term, log)
        if store is None or store.phase is Phase.OPEN:
            return ()
        return self._read(Question(sender, term, log, first_index, For.CONTROLLER, store.length), store)

    def _read(self, question: Question, store: MetalogStore) -> Iterable[Effect]:
        last = store.length if question.purpose is For.BACKUP else min(question.until_index, store.length)
        until = min(last, question.first_index + PAGE_ENTRIES)
        entries = store.recent(question.first_index, until)
        if entries is not None:
            return self._answer(question, entries)
        if question.first_index < store.base:
            return self._tell_dropped(question, store)
        start = entry_key(store.term, store.log, question.first_index)
        return (Load(question, start, start, entry_key(store.term, store.log, until), 1 << 24),)

    def _answer_from_disk(self, question: Question, rows: Sequence[tuple[bytes, bytes]]) -> Iterable[Effect]:
        store = self._store(question.term, question.log)
        if store is None or (rows and index_of(rows[0][0]) != question.first_index):
            return ()  # dropped while it was being read: the next question is told so
        return self._answer(question, [decode_entry(value) for _, value in rows])

    def _cannot_answer(self, question: Question, error: str) -> Iterable[Effect]:
        """A node that only follows the log asks another sequencer. A controller that completes a term asks the one that
        holds most of it, and a backup its primary: they would wait forever for a node that lives.
        """
        if question.purpose is not For.READER:
            raise DiskUnreadable(error)
        return ()

    def _tell_dropped(self, question: Question, store: MetalogStore) -> Iterable[Effect]:
        """Nobody needs what was asked for any more. A backup, or a controller that completes, continues from there."""
        yield Send(question.sender, EntriesDropped(store.term, store.log, store.base))
        if question.purpose is For.BACKUP:
            yield from self._send_entries(store, question.sender, store.base)

    def _answer(self, question: Question, entries: Sequence[MetalogEntry]) -> Iterable[Effect]:
        term, log, first = question.term, question.log, question.first_index
        if question.purpose is For.CONTROLLER:
            return (Send(question.sender, SealedEntries(term, log, first, tuple(entries))),)
        if question.purpose is For.BACKUP:
            if not entries or self._stores[term, log].phase is not Phase.OPEN:
                return ()
            primary = self._primary(term, log)
            sure = primary.sure_until if primary is not None else 0
            return (Send(question.sender, AppendEntry(term, log, first, tuple(entries), question.until_index, sure)),)
        ended = self.chain.end_of(term, log) is not None
        return (Send(question.sender, Metalog(term, log, first, tuple(entries), question.until_index, ended)),)

    def _tell_tail(self, sender: NodeId, request: int, log: LogId) -> Iterable[Effect]:
        store = self._store(self.chain.current.term, log) if self.chain else None
        if store is None:
            return ()
        sealed = store.phase is not Phase.OPEN
        return (Send(sender, TellTail(request, store.term, log, self.incarnation, store.durable_until, sealed)),)

    def _drop(self, term: Term, log: LogId, until: int, *, drops_earlier_terms: bool) -> Iterable[Effect]:
        """A checkpoint covers entries below `until`, which are committed. What this node lacks of them it skips."""
        if term not in self.chain:
            return self._fetch_views(term)
        writes: list[Put | Delete] = []
        then: list[Effect] = []
        if drops_earlier_terms and term > self._kept_from_term:
            self._kept_from_term = term
            self._stores = {key: store for key, store in self._stores.items() if key[0] >= term}
            writes += drop_terms(term)
        store = self._store(term, log)
        if store is not None:
            # an engine knows only what is committed, so beyond what is here it says nothing of this node
            writes += store.drop(min(until, store.length) if drops_earlier_terms else until)
            then.append(Send(self.node, self._stored(store)))
        return (Store(writes, then=then),) if writes else ()

    # changing terms

    def _install(self, views: Sequence[View], now_us: int) -> Iterable[Effect]:
        news = [v for v in views if (not self.chain or v.term >= self.chain.first_term) and self.chain.add(v)]
        if not news:
            return ()
        self._primaries.clear()
        self._subscribers.clear()
        self.behind.begin(self.chain.current.term)
        for store in self._stores.values():
            if store.term < self.chain.current.term - 1:
                store.forget_recent()
        view = news[-1]
        is_named = self.node in view.primaries and view.incarnations[self.node] == self.incarnation
        has_led = self._disk.get(led_key(view.term)) is not None
        # of a term that has been dropped nothing is left that a primary could continue from
        if not self._current_stores() or not is_named or has_led:
            return ()
        # Before the first entry may leave, the disk must know that this node has led the term: a restart loses what
        # was sent, and a second value for an index is the one thing that must never be.
        return (Store([Put(led_key(view.term), b"led")], then=(Send(self.node, Lead(view, now_us)),), is_vote=True),)

    def _lead(self, view: View, sync_us: int) -> None:
        if view.term != self.chain.current.term:
            return
        for store in self._current_stores():
            if view.primaries[store.log] == self.node and store.may("append"):
                reach = partial(self.behind.reach, view.term, store.log)
                self._primaries[store.log] = Primary(view, reach, sync_us)

    def _seal(self, sender: NodeId, term: Term) -> Iterable[Effect]:
        if term not in self.chain:
            return self._fetch_views(term)
        stores = [store for log in range(self.chain[term].log_count) if (store := self._store(term, log)) is not None]
        if not stores:
            return ()
        for store in stores:
            store.seal()
        last_time_us = max(store.last_time_us for store in stores)
        ends = tuple(store.length for store in stores)
        sealed = Sealed(term, self.incarnation, ends, last_time_us, tuple(store.committed for store in stores))
        return (Store([Put(seal_key(term), b"sealed")], then=(Send(sender, sealed),), is_vote=True),)

    def _complete(self, sender: NodeId, message: Complete) -> Iterable[Effect]:
        store = self._store(message.term, message.log)
        if store is None or not store.may("complete"):
            return ()
        if not self.behind.is_in_front(store, sender, message, message.committed):
            return self.behind.need(message.term, message.log)
        puts = store.add("complete", message.first_index, message.entries)
        done = Completed(message.term, message.log, self.incarnation, store.length)
        return (Store(puts, then=(Send(sender, done),)),)
