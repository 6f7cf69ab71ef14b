"""Which engines are up, and what each can do, as one gateway knows it: from membership and from their own word.

An engine is up once it has said, in the incarnation that is registered, that it is ready and what can be called. One
that has been silent for a while gets nothing new; one that is silent for long, is registered no more, or has come back
as another incarnation is lost: the outcome of its calls is unknown. It is polled on, and is up again when it answers.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from boki.gateway.core import Standing
from boki.log.ids import NodeId
from boki.log.membership import Membership, Role
from boki.protocol.beats import EARLY_US
from boki.protocol.call_messages import FetchFunctions, Load, TellFunctions
from boki.protocol.calls import FunctionInfo, ModuleInfo
from boki.protocol.effects import Send

POLL_US: Final = 250_000
"""How often each engine is asked whether it is there, while anything is asked of engines."""
IDLE_POLL_US: Final = 1_000_000
"""How often an engine that takes work and has answered is asked while nothing is: it says by itself what changes."""
QUIET_US: Final = 750_000
"""An engine that is silent for this long gets nothing new, and reads that wait for it are tried elsewhere."""
LOST_US: Final = 3_000_000
"""One that is silent for this long is lost."""
_FETCH_AGAIN_US: Final = 500_000


@dataclass(frozen=True, slots=True)
class Changed:
    """The engine is up and stands so."""

    engine: NodeId
    standing: Standing


@dataclass(frozen=True, slots=True)
class Quiet:
    """The engine, which is up, has not been heard of for a while."""

    engine: NodeId


@dataclass(frozen=True, slots=True)
class Lost:
    """The engine was up and is no longer."""

    engine: NodeId
    why: str


Happening = Send | Changed | Quiet | Lost


@dataclass(slots=True)
class _Engine:
    node: NodeId
    incarnation: int
    polled_at_us: int = 0
    heard_at_us: int = 0
    unanswered_since_us: int = 0
    """When the oldest poll left that it has said nothing after; 0: it has spoken since the last one."""
    fetched_at_us: int = -_FETCH_AGAIN_US
    load: Load | None = None
    told: TellFunctions | None = None
    is_up: bool = False
    is_quiet: bool = False
    is_near: bool = False
    is_leaving: bool = False

    def standing(self) -> Standing:
        assert self.load is not None and self.told is not None, "it is up"
        return Standing(
            self.load.running,
            self.load.capacity,
            self.load.has_index,
            self.takes_work,
            {info.name for info in self.told.functions},
            self.is_near,
            self.is_leaving,
        )

    def silence_us(self, now_us: int) -> int:
        """For how long it has said nothing, counted from one poll's interval before it was asked."""
        if not self.unanswered_since_us:
            return 0
        return now_us - max(self.heard_at_us, self.unanswered_since_us - POLL_US)

    def hear(self, now_us: int) -> None:
        """It has said something."""
        self.heard_at_us, self.unanswered_since_us = now_us, 0

    @property
    def is_well(self) -> bool:
        """Whether it takes work and owes no answer."""
        return self.is_up and self.takes_work and not self.unanswered_since_us

    def is_poll_due(self, now_us: int, idle_poll_us: int) -> bool:
        """Whether it is to be asked now; after `idle_poll_us` at the earliest if it is well."""
        return now_us - self.polled_at_us >= (idle_poll_us if self.is_well else POLL_US) - EARLY_US

    def owes_functions(self, now_us: int) -> bool:
        """Whether it may say within moments that there are other functions than it has said so far, if any."""
        if self.silence_us(now_us) > LOST_US:
            return False
        return self.load is None or self.told is None or self.told.functions_number < self.load.functions_number

    @property
    def takes_work(self) -> bool:
        load = self.load
        return load is not None and load.is_ready and not load.is_draining and not self.is_quiet


class EngineRegistry:
    """The engines of a cluster. Times are microseconds since the epoch."""

    def __init__(self, *, idle_poll_us: int = IDLE_POLL_US) -> None:
        self._idle_poll_us = idle_poll_us
        self.functions: dict[str, FunctionInfo] = {}
        """What can be called, by name: where engines differ, what the newest deployed version says."""
        self.modules: tuple[ModuleInfo, ...] = ()
        self._engines: dict[NodeId, _Engine] = {}
        self._number = -1
        self._hosts: dict[NodeId, NodeId] = {}
        """The node that plays each role, of those that play several."""
        self._primaries: tuple[NodeId, ...] = ()

    @property
    def up(self) -> list[NodeId]:
        """The engines that are up."""
        return [engine.node for engine in self._engines.values() if engine.is_up]

    def standings(self) -> list[tuple[NodeId, Standing]]:
        """The engines that are up, and how they stand."""
        return [(engine.node, engine.standing()) for engine in self._engines.values() if engine.is_up]

    def bundles(self) -> dict[NodeId, int]:
        """The engines that are up, and which deployed version runs at each; 0: none."""
        return {engine.node: engine.told.bundle for engine in self._engines.values() if engine.is_up and engine.told}

    @property
    def is_ready(self) -> bool:
        """Whether any engine takes work."""
        return any(engine.is_up and engine.takes_work for engine in self._engines.values())

    @property
    def is_calm(self) -> bool:
        """Whether all registered engines take work, and owe no answer."""
        return all(engine.is_well for engine in self._engines.values())

    def knows_functions(self, now_us: int) -> bool:
        """Whether `functions` is what can be called now, so that a name that is missing there belongs to no function.

        Not before an engine is up, not after the last one was lost, and not while one is about to tell.
        """
        return bool(self.up) and not any(engine.owes_functions(now_us) for engine in self._engines.values())

    # what is told

    def on_membership(self, membership: Membership, now_us: int) -> list[Happening]:
        """Who is registered now. An older membership than the last one is ignored."""
        if membership.number < self._number:
            return []
        self._number = membership.number
        happenings: list[Happening] = []
        members = {member.node: member for member in membership.of(Role.ENGINE)}
        for node in [node for node in self._engines if node not in members]:
            happenings += self._lose(self._engines.pop(node), "it is registered no longer")
        for node, member in members.items():
            engine = self._engines.get(node)
            if engine is None or member.incarnation > engine.incarnation:
                happenings += self._renew(node, member.incarnation, now_us)
                engine = self._engines[node]
            if engine.is_leaving != member.is_leaving:
                engine.is_leaving = member.is_leaving
                happenings += [Changed(node, engine.standing())] if engine.is_up else []
        self._hosts = {member.node: member.host for member in membership.members if member.host}
        return happenings + self._place()

    def on_primaries(self, primaries: tuple[NodeId, ...]) -> list[Happening]:
        """A new term has begun, in which these lead."""
        self._primaries = primaries
        return self._place()

    def _place(self) -> list[Happening]:
        """Notice which engines share a node with a primary: the cuts of what they append need no message to them."""
        near = {self._hosts[primary] for primary in self._primaries if primary in self._hosts}
        moved = [engine for engine in self._engines.values() if engine.is_near != self._is_in(engine, near)]
        for engine in moved:
            engine.is_near = not engine.is_near
        return [Changed(engine.node, engine.standing()) for engine in moved if engine.is_up]

    def _is_in(self, engine: _Engine, hosts: Container[NodeId]) -> bool:
        return engine.node in self._hosts and self._hosts[engine.node] in hosts

    def on_load(self, node: NodeId, load: Load, now_us: int) -> list[Happening]:
        """An engine has said how busy it is."""
        engine = self._engines.get(node)
        if engine is None or load.incarnation < engine.incarnation:
            return []  # what is not registered gets no work
        happenings: list[Happening] = []
        if load.incarnation > engine.incarnation:
            happenings += self._renew(node, load.incarnation, now_us)
            engine = self._engines[node]
        engine.load = load
        engine.hear(now_us)
        engine.is_quiet = False
        if engine.told is None or engine.told.functions_number != load.functions_number:
            happenings += self._fetch(engine, now_us)
        return happenings + self._consider(engine)

    def on_functions(self, node: NodeId, told: TellFunctions, now_us: int) -> list[Happening]:
        """An engine has said what can be called there."""
        engine = self._engines.get(node)
        if engine is None or told.incarnation != engine.incarnation:
            return []
        if engine.told is not None and told.functions_number < engine.told.functions_number:
            return []
        engine.told = told
        engine.hear(now_us)
        self._merge()
        return self._consider(engine)

    # time

    def tick(self, now_us: int) -> list[Happening]:
        """Who has been silent for too long."""
        happenings: list[Happening] = []
        for engine in self._engines.values():
            silence_us = engine.silence_us(now_us)
            if engine.is_up and silence_us > LOST_US:
                happenings += self._lose(engine, f"it has said nothing for {silence_us / 1e6:.1f} s")
            elif engine.is_up and not engine.is_quiet and silence_us > QUIET_US:
                engine.is_quiet = True
                happenings += [Changed(engine.node, engine.standing()), Quiet(engine.node)]
        return happenings

    def due_polls(self, now_us: int, *, is_idle: bool) -> list[NodeId]:
        """Who is to be asked now whether it is there. `is_idle`: nothing is asked of engines."""
        rest_us = self._idle_poll_us if is_idle else POLL_US
        due = [engine for engine in self._engines.values() if engine.is_poll_due(now_us, rest_us)]
        for engine in due:
            engine.polled_at_us = now_us
            engine.unanswered_since_us = engine.unanswered_since_us or now_us
        return [engine.node for engine in due]

    # who gets what

    def for_book(self, book: str, excluded: Container[NodeId]) -> NodeId | None:
        """The engine for an operation on the book: always the same while it is up, so that what it has just appended
        is in its cache; one with the index if there is one. None if no engine is left.
        """
        engines = [engine for engine in self._engines.values() if engine.is_up and engine.node not in excluded]
        best = max(engines, key=lambda engine: _fitness(engine, book), default=None)
        return None if best is None else best.node

    def near_primary(self, call: str) -> NodeId | None:
        """The engine that shares a node with a primary, and takes work: always the same for a call, of several. None:
        there is none.
        """
        near = [engine for engine in self._engines.values() if engine.is_up and engine.is_near and engine.takes_work]
        best = max((engine for engine in near if not engine.is_leaving), key=lambda e: _fitness(e, call), default=None)
        return None if best is None else best.node

    def _fetch(self, engine: _Engine, now_us: int) -> Iterable[Happening]:
        if now_us - engine.fetched_at_us < _FETCH_AGAIN_US:
            return ()
        engine.fetched_at_us = now_us
        return (Send(engine.node, FetchFunctions()),)

    def _consider(self, engine: _Engine) -> list[Happening]:
        if engine.load is None or engine.told is None or not (engine.is_up or engine.load.is_ready):
            return []
        if not engine.is_up:
            if engine.told.functions_number < engine.load.functions_number:
                return []  # what it can do is on its way: until then calls of it would be refused
            engine.is_up = True
            self._merge()
        return [Changed(engine.node, engine.standing())]

    def _renew(self, node: NodeId, incarnation: int, now_us: int) -> list[Happening]:
        old = self._engines.get(node)
        happenings = self._lose(old, "it has started again") if old is not None else []
        is_near = old is not None and old.is_near
        self._engines[node] = _Engine(node, incarnation, heard_at_us=now_us, is_near=is_near)
        return happenings

    def _lose(self, engine: _Engine, why: str) -> list[Happening]:
        if not engine.is_up:
            return []
        engine.is_up = False
        self._merge()
        return [Lost(engine.node, why)]

    def _merge(self) -> None:
        """The last engine that has gone leaves its functions behind: callers are told that no engine is up, and not
        that there is no such function.
        """
        told = [engine.told for engine in self._engines.values() if engine.is_up and engine.told is not None]
        if told:
            told.sort(key=lambda one: one.bundle)
            self.functions = {info.name: info for one in told for info in one.functions}
            self.modules = told[-1].modules


def engine_weight(engine: NodeId, book: str) -> bytes:
    """Rendezvous hashing: of equally fit engines, that with the highest weight gets the book's operations."""
    return blake2b(f"{engine}/{book}".encode(), digest_size=8).digest()


def _fitness(engine: _Engine, book: str) -> tuple[bool, bool, bytes]:
    has_index = engine.load is not None and engine.load.has_index
    return engine.takes_work, has_index, engine_weight(engine.node, book)
