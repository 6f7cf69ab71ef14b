"""The first moments of an engine: which index it begins from, its own or one that the storage nodes keep.

Its own copy is a cache: it may be missing, or so old that what followed is kept by nobody any more. Then the newest
checkpoint of the storage nodes is loaded into its disk, page by page, and the engine begins from there. A copy that is
only somewhat behind catches up by reading the log, which is quicker.

It is a core that becomes the engine's: when `engine` is there it passes everything on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Final, assert_never

from boki.engine.checkpoint.mirror import INDEX_KEYS
from boki.engine.checkpoint.saving import STALE_KEY, IndexStored
from boki.engine.core import EngineConfig, EngineCore, EngineInput
from boki.engine.index.small_state import read_applied
from boki.engine.replicas import Replicas
from boki.log.ids import NodeId, Term
from boki.log.membership import Role
from boki.log.metalog import Positions, split_position
from boki.log.view import ViewChain
from boki.protocol.effects import Announce, Delete, DiskReader, Effect, EngineNews, Note, Put, Send, Store, Trace, kinds
from boki.protocol.follower import COORDINATOR, MetalogFollower
from boki.protocol.messages import (
    BatchesFetched,
    CheckpointFetched,
    CheckpointStored,
    EntriesDropped,
    FetchCheckpoint,
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

LOADING_KEY: Final = b"l"
"""It is there while a checkpoint is being loaded: what stands beside it is no index."""
_LIFE_BITS: Final = 32
_REPEAT_US: Final = 500_000
_TIMEOUT_US: Final = 1_500_000
"""An own copy that is of use does not wait longer for storage nodes that do not answer."""
_SILENCE_US: Final = 5_000_000
_TELL_US: Final = 10_000_000
_PAGE_BYTES: Final = 1 << 20
_NEAR_ENTRIES: Final = 5_000
"""A copy that lacks no more metalog entries than these catches up by itself."""


class _Own(Enum):
    """What the engine's own disk has."""

    NOTHING = "nothing"
    STALE = "stale"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class _PageStored(Note):
    """To itself: a page is on the disk; `after_key` is where the next one begins, None if it was the last."""

    request: int
    after_key: bytes | None


@dataclass(frozen=True, slots=True)
class _Cleared(Note):
    """To itself: nothing of an index is on the disk."""


BootstrapInput = EngineInput | CheckpointFetched | _PageStored | _Cleared


@dataclass(frozen=True, slots=True)
class _Found:
    """A checkpoint that a storage node keeps."""

    node: NodeId
    lineage: int
    number: int
    positions: Positions

    @property
    def copy(self) -> tuple[NodeId, int, int]:
        """Which copy of which checkpoint."""
        return self.node, self.lineage, self.number


@dataclass(slots=True)
class _Load:
    """A checkpoint on its way here. `asked_key` is where the page that is asked for begins."""

    source: _Found
    asked_key: bytes = b""
    asked_at: int = 0
    heard_at: int = 0
    has_begun: bool = False
    is_storing: bool = False


@dataclass(slots=True)
class _Heard:
    """What the coordinator has told, for the engine to be."""

    chain: ViewChain = field(default_factory=ViewChain)
    membership: InstallMembership | None = None
    placement: InstallPlacement | None = None


class Bootstrap:
    """One incarnation of one engine, from its disk on. `EngineNews.BOOTED` says that `engine` is there."""

    HEARS: ClassVar[frozenset[type]] = kinds(BootstrapInput)

    def __init__(self, node: NodeId, incarnation: int, disk: DiskReader, config: EngineConfig) -> None:
        self.engine: EngineCore | None = None
        self._node = node
        self._incarnation = incarnation
        self._disk = disk
        self._config = config
        self._heard = _Heard()
        self._replicas = Replicas()
        self._applied: Positions = {} if disk.get(LOADING_KEY) else read_applied(disk)
        self._own = _Own.INDEX if self._applied else _Own.NOTHING
        if self._applied and disk.get(STALE_KEY):
            self._own = _Own.STALE
        self._numbers = incarnation << _LIFE_BITS
        self._asks_from = self._numbers
        """Late answers to what was asked for before describe pages that are gone, and not what exists."""
        self._answers: dict[NodeId, _Found | None] = {}
        self._began_at = 0
        self._asked_at = 0
        self._told_at = 0
        self._view_asked_at = 0
        self._load: _Load | None = None
        self._withdrawn: set[tuple[NodeId, int, int]] = set()
        """Copies that their nodes told of and then did not give: a damaged one would be offered again and again."""

    # events

    def receive(self, sender: NodeId, message: BootstrapInput, now_us: int) -> Iterable[Effect]:
        """See `boki.protocol.effects.Core`."""
        if self.engine is not None:
            if isinstance(message, CheckpointFetched | _PageStored | _Cleared):
                return ()  # what this core had asked for, late
            return self.engine.receive(sender, message, now_us)
        match message:
            case InstallView(views):
                for view in views:
                    if not self._heard.chain or view.term == self._heard.chain.current.term + 1:
                        self._heard.chain.add(view)
            case InstallMembership(membership):
                self._heard.membership = message
                self._replicas.install_membership(membership)
            case InstallPlacement():
                self._heard.placement = message
            case Ping(number):
                known = self._heard.chain.current.term if self._heard.chain else 0
                return (Send(sender, Pong(number, known, self._incarnation)),)
            case CheckpointFetched():
                return self._on_fetched(sender, message, now_us)
            case _PageStored():
                return self._on_stored(message, now_us)
            case _Cleared():
                return self._begin(now_us)
            case Metalog() | ShardProgress() | IndexBatch() | BatchesFetched() | TellTail():
                pass  # meant for an earlier incarnation
            case IndexStored() | CheckpointStored() | EntriesDropped():
                pass
            case _:
                assert_never(message)
        return ()

    def settle(self, now_us: int) -> Iterable[Effect]:
        """See `boki.protocol.effects.Core`."""
        return self.engine.settle(now_us) if self.engine is not None else ()

    def rests_until(self, now_us: int) -> int:
        """See `boki.protocol.effects.Resting`."""
        return self.engine.rests_until(now_us) if self.engine is not None else now_us

    def tick(self, now_us: int) -> Iterable[Effect]:
        """See `boki.protocol.effects.Core`: ask again, and decide when enough has been heard."""
        if self.engine is not None:
            return self.engine.tick(now_us)
        if not self._heard.chain or self._heard.membership is None:
            return ()
        self._began_at = self._began_at or now_us
        if self._load is not None:
            return self._go_on(self._load, now_us)
        decided = self._decide(now_us)
        if decided or now_us - self._asked_at < _REPEAT_US:
            return decided
        self._asked_at = now_us
        self._numbers += 1
        question = FetchCheckpoint(self._numbers, 0, 0, b"", 1)
        return [Send(node, question) for node in self._storage if node not in self._answers]

    @property
    def follower(self) -> MetalogFollower | None:
        """The engine's, once it is there: what a watchdog looks at."""
        return self.engine.follower if self.engine is not None else None

    @property
    def _storage(self) -> list[NodeId]:
        return self._replicas.storage_nodes(self._heard.chain.current)

    # deciding

    def _decide(self, now_us: int) -> list[Effect]:
        """What to begin from, if that is known by now."""
        offers = [answer for answer in self._answers.values() if answer is not None]
        found = [offer for offer in offers if offer.copy not in self._withdrawn]
        if self._is_ahead(found):
            return self._ask_view(now_us)
        best = max(found, key=lambda each: _rank(each.positions), default=None)
        has_heard_all = all(node in self._answers for node in self._replicas.live)
        lacking = len(self._storage) - self._heard.chain.current.write_quorum + 1
        is_patient = now_us - self._began_at < _TIMEOUT_US
        if self._own is _Own.INDEX:
            if not has_heard_all and is_patient:
                return []
            return self._begin(now_us) if best is None or self._is_near(best.positions) else self._fetch(best, now_us)
        if len(self._answers) - len(offers) + len(found) < lacking or (not has_heard_all and is_patient):
            return []  # a complete checkpoint is on a write quorum: this many answers include one that knows of it
        if best is not None and _rank(best.positions) > _rank(self._applied):
            return self._fetch(best, now_us)
        if self._own is _Own.NOTHING:
            return self._begin(now_us)
        self._answers.clear()  # somebody has, or will have, a newer one
        if now_us - self._told_at < _TELL_US:
            return []
        self._told_at = now_us
        why = "its own index is too old, and no storage node has a newer one; it waits for one"
        return [Trace(logging.ERROR, f"this engine cannot begin: {why}")]

    def _is_ahead(self, found: Iterable[_Found]) -> bool:
        """Whether an index is of a term that the coordinator's word has not come of yet: one begins from it later."""
        newest = max(_rank(positions)[0] for positions in (self._applied, *(each.positions for each in found)))
        return newest > self._heard.chain.current.term

    def _ask_view(self, now_us: int) -> list[Effect]:
        if now_us - self._view_asked_at < _REPEAT_US:
            return []
        self._view_asked_at = now_us
        return [Send(COORDINATOR, FetchView(self._heard.chain.current.term))]

    def _is_near(self, positions: Positions) -> bool:
        """Whether the own copy needs only this many entries to be where a checkpoint is, and somebody may have them."""
        chain = self._heard.chain
        term, newest = _rank(self._applied)[0], _rank(positions)[0]
        if term >= newest or term not in chain:
            return term >= newest and self._lacks(positions) <= _NEAR_ENTRIES
        if not all(self._may_be_asked(between) for between in range(term, newest)):
            return False
        lacking = sum(split_position(position)[1] for position in positions.values())
        for between in range(term, newest):
            ends = [chain.end_of(between, log) or 0 for log in range(chain[between].log_count)]
            lacking += sum(ends)
        own = sum(
            split_position(position)[1] for position in self._applied.values() if split_position(position)[0] == term
        )
        return lacking - own <= _NEAR_ENTRIES

    def _may_be_asked(self, term: Term) -> bool:
        """Whether a sequencer of that term is registered: they are retired once a checkpoint covers their entries."""
        members = self._replicas.membership.of(Role.SEQUENCER) if self._replicas.membership is not None else ()
        return any(member.node in self._heard.chain[term].sequencers for member in members)

    def _lacks(self, positions: Positions) -> int:
        """Entries of the same term that the own copy has not applied."""
        return sum(max(0, position - self._applied.get(log, 0)) for log, position in positions.items())

    def _begin(self, now_us: int) -> list[Effect]:
        """The disk is as it should be: from here on this is an engine. Half a checkpoint is cleared away before."""
        if self._disk.get(LOADING_KEY):
            clear = [*(Delete(start, stop) for start, stop in INDEX_KEYS), Delete(LOADING_KEY, LOADING_KEY + b"\x00")]
            return [Store(clear, then=(Send(self._node, _Cleared()),))]
        self.engine = EngineCore(self._node, self._incarnation, self._disk, self._config)
        effects: list[Effect] = [Announce(EngineNews.BOOTED)]
        heard = self._heard
        for news in (heard.membership, heard.placement, InstallView(tuple(heard.chain))):
            if news is not None:
                effects += self.engine.receive(self._node, news, now_us)
        return [*effects, *self.engine.settle(now_us)]

    # loading

    def _fetch(self, source: _Found, now_us: int) -> list[Effect]:
        self._answers.clear()
        self._load = _Load(source, heard_at=now_us)
        text = f"an index up to {dict(source.positions)} is loaded from {source.node}"
        return [Trace(logging.INFO, text), *self._next_page(self._load, now_us)]

    def _next_page(self, load: _Load, now_us: int) -> list[Effect]:
        self._numbers += 1
        return self._ask_page(load, now_us)

    def _ask_page(self, load: _Load, now_us: int) -> list[Effect]:
        """Ask for the page, under the same number as before: a late answer to it is as good."""
        load.asked_at = now_us
        source = load.source
        return [
            Send(
                source.node,
                FetchCheckpoint(self._numbers, source.lineage, source.number, load.asked_key, _PAGE_BYTES),
            )
        ]

    def _go_on(self, load: _Load, now_us: int) -> list[Effect]:
        """Time has passed: repeat the question, or begin again with another node that answers."""
        if now_us - load.heard_at > _SILENCE_US:
            return self._start_over(now_us)
        if load.is_storing or now_us - load.asked_at < _REPEAT_US:
            return []
        return self._ask_page(load, now_us)

    def _start_over(self, now_us: int) -> list[Effect]:
        if self._load is not None and self._load.has_begun:
            self._own, self._applied = _Own.NOTHING, {}
        self._load = None
        self._asks_from = self._numbers + 1
        self._began_at = now_us
        self._asked_at = 0
        return []

    def _on_fetched(self, sender: NodeId, message: CheckpointFetched, now_us: int) -> list[Effect]:
        load = self._load
        if load is None:
            if message.request < self._asks_from:
                return []
            is_there = message.lineage > 0
            found = _Found(sender, message.lineage, message.number, message.positions) if is_there else None
            self._answers[sender] = found
            return []
        if message.request != self._numbers or sender != load.source.node or load.is_storing:
            return []
        source = load.source
        if message.lineage != source.lineage or message.number != source.number:
            self._withdrawn.add(source.copy)
            text = f"{source.node} does not have or cannot read its checkpoint {source.number} any more"
            return [Trace(logging.WARNING, text), *self._start_over(now_us)]
        load.heard_at = now_us
        load.is_storing = True
        writes: list[Put | Delete] = []
        if not load.has_begun:
            load.has_begun = True
            writes += [Put(LOADING_KEY, b"loading"), *(Delete(start, stop) for start, stop in INDEX_KEYS)]
        writes += [Put(key, value) for key, value in message.rows]
        if message.is_last:
            writes += [Delete(key, key + b"\x00") for key in (LOADING_KEY, STALE_KEY)]
        after_key = None if message.is_last else message.rows[-1][0]
        return [Store(writes, then=(Send(self._node, _PageStored(message.request, after_key)),))]

    def _on_stored(self, message: _PageStored, now_us: int) -> list[Effect]:
        load = self._load
        if load is None or message.request != self._numbers:
            return []
        load.is_storing = False
        if message.after_key is None:
            self._load = None
            return self._begin(now_us)
        load.asked_key = message.after_key
        return self._next_page(load, now_us)


def _rank(positions: Positions) -> tuple[Term, int]:
    """How far positions have come: comparable among those of one log's history."""
    places = [split_position(position) for position in positions.values()]
    term = max((place[0] for place in places), default=0)
    return term, sum(place[1] for place in places if place[0] == term)
