"""Nodes: what stands around a core in production (`boki.host`, `boki.node`), for a world with a virtual clock.

A node boots as a process does: a session with the coordinator, its incarnation, the core over what the disk holds, the
registration, and then the news. It dies in every way there is: crashed, fenced, its session expired, its disk failed.
Between the core and the world there is nothing but `boki.protocol.effects`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final, Protocol

from boki.log.ids import NodeId, Term
from boki.log.membership import Member, Role
from boki.log.metalog import VERSION, Positions
from boki.log.operations import Operation
from boki.log.view import View
from boki.protocol.effects import Core, DiskUnreadable, Effect, Load, Put, RoleEffect, Send, Store, Trace
from boki.protocol.follower import COORDINATOR
from boki.protocol.messages import FetchView, IndexBatch, Ping, Pong
from boki.protocol.output_commit import IN_LOG, holds, split_early
from boki.verify.histories.history import History
from boki.verify.sim.clockwork import Clockwork
from boki.verify.sim.coordinator import Coordinator, News, Session
from boki.verify.sim.disks import SimulatedDisk
from boki.verify.sim.hosts import NodeHost
from boki.verify.sim.network import Network
from boki.verify.sim.options import Options

_TICK_US: Final = 50_000
_RESTART_US: Final = 300_000
_GATHERING: Final = 0.3
"""This many messages that come to an idle node do not find it awake: it takes in at once all that come meanwhile."""
_INCARNATION_KEY: Final = b"n"

Done = Callable[[Any, Positions], None]
"""Takes an engine's answer to an operation."""
Look = Callable[["Node", NodeId, Any], Callable[[], None] | None]
"""`look(node, sender, message)`, before the node takes the message in; what it returns is called when it has."""


class Observer(Protocol):
    """What counts rare situations: `boki.verify.sim.coverage`."""

    looks: dict[type, Look]
    """By the type of a message, what looks at it before a node takes it in."""
    on_proposal: list[Callable[[Node, View], None]]

    def dies(self, node: Node) -> None:
        """The node is about to lose all that it has in memory."""

    def across_terms(self, operation: Operation, term: Term, done: Done) -> Done:
        """See the outcome of an operation that an engine takes in during that term, and hand it on to `done`."""


class World(Protocol):
    """What a node sees of the world."""

    clock: Clockwork
    network: Network
    coordinator: Coordinator
    options: Options
    nodes: dict[NodeId, Node]
    raised: list[str]
    """What cores have raised: bugs, whatever the checkers say."""
    late_subscriptions: list[str]
    """Subscriptions that engines took although what they wait for was settled."""
    workflow_engines: dict[str, str]
    """By invocation id, the engine that a workflow ran on first."""

    @property
    def coverage(self) -> Observer:
        """What looks at every message."""

    def process_of(self, node: Node) -> Sequence[Node]:
        """The roles that are one process with it, itself among them: they are lost together."""

    def host_of(self, node: Node) -> NodeHost:
        """The process of a new role, which joins it."""


class WholeWorld(World, Protocol):
    """What the end of a run sees of the world: it adds nodes, asks clients' questions and takes nodes away."""

    history: History

    def of(self, role: Role) -> list[Node]:
        """The nodes of a role."""

    def add(self, kind: type[Node], name: str) -> Node:
        """A new node, which starts at once."""

    def add_node(self, name: str) -> list[Node]:
        """A new node with several roles, which starts at once."""


class Node:
    """One node, through all its incarnations. Subclasses are the roles."""

    role: ClassVar[Role]
    HAS_DISK_LIFE: ClassVar[bool] = False

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.clock = world.clock
        self._looks = world.coverage.looks
        self.name = NodeId(name)
        self.disk = SimulatedDisk(world.clock, name, world.options.sync_us)
        self.disk.on_failure = self._on_disk_failure
        self.mates: dict[NodeId, Node] = {}
        """The nodes that share its write-ahead log, itself among them; none: it has one of its own."""
        self._ahead_until = 0
        self.core: Core[Any] | None = None
        self.host = world.host_of(self)
        """Its process."""
        self.incarnation = 0
        self.is_up = False
        self.is_paused = False
        self.offset_us = 0
        """How wrong this node's clock is."""
        self.generation = 0
        self._inbox: list[tuple[NodeId, Any]] = []
        self._is_scheduled = False
        self._clock_us = 0

    # living and dying

    @property
    def session(self) -> Session | None:
        """With the coordinator: that of its process."""
        return self.host.session

    def start(self) -> None:
        """Boot, with all roles of its process that are down."""
        self.host.start()

    def rise(self) -> None:
        """See `Played`."""
        if not self.is_up:
            self.is_up = True
            self.generation += 1
            self.host.connect(self, self.generation)

    def boot(self, generation: int) -> None:
        """See `Played`: the incarnation is the disk's, or a new one."""
        stored = self.disk.get(_INCARNATION_KEY) if self.HAS_DISK_LIFE else None
        if stored is not None:
            self._begin(generation, int(stored))
            return
        assert self.session is not None
        ask = self.world.coordinator.next_incarnation
        self.world.coordinator.ask(
            self.session, ask, lambda number: self._if_alive(generation, self._begin, generation, number)
        )

    def _if_alive(self, generation: int, action: Callable[..., None], *arguments: Any) -> None:
        if generation == self.generation and self.is_up:
            action(*arguments)

    def _begin(self, generation: int, incarnation: int) -> None:
        if generation != self.generation or self.core is not None or self.session is None or self.session.is_over:
            return
        if self.disk.is_full:  # a database that is opened writes what it recovers
            self._on_disk_failure("a write found no space")
            return
        self.incarnation = incarnation
        if self.HAS_DISK_LIFE:
            self.disk.store_now([Put(_INCARNATION_KEY, str(incarnation).encode())])
        self.clock.note(f"{self.name} begins as incarnation {incarnation}")
        try:
            self.core = self.make_core()
        except DiskUnreadable:
            self._replace_disk()
            return
        except Exception as error:  # noqa: BLE001 - what the disk holds keeps it from starting
            self._raised(error)
            return
        self.host.register(self)
        self.host.follow(self)
        self.clock.after(int(self.clock.schedule_rng.random() * _TICK_US), self._tick, generation)

    def make_core(self) -> Core[Any] | None:
        """The role's core, over the disk."""
        return None

    def member(self) -> Member:
        """As whom others see this node."""
        return Member(
            node=self.name,
            role=self.role,
            incarnation=self.incarnation,
            host=self.host.name if self.world.options.is_hosted else NodeId(""),
            runs_ahead=bool(self.mates),
            entry_version=VERSION,
            is_leaving=self.host.is_stopping,
        )

    def mate(self, role: Role) -> NodeId | None:
        """The node of that role that shares its log."""
        return next((mate.name for mate in self.mates.values() if mate.role is role), None)

    def share_log(self, guest: Node) -> None:
        """Let the other one's stores stand in this one's log, as in production where they are one process."""
        guest.disk.share_log(self.disk)
        self.mates = guest.mates = {self.name: self, guest.name: guest}

    def crash(self, *, keeps_some: bool = True) -> None:
        """Gone without a word, with all roles of its process; what disks had not synced may be gone, too, or is."""
        self.host.crash(keeps_some=keeps_some)

    def fall(self, *, keeps_some: bool) -> None:
        """See `Played`."""
        if not self.is_up:
            return
        self.world.coverage.dies(self)
        lost = self.disk.crash(keeps_some=keeps_some)
        self.clock.note(f"{self.name} crashes, {lost} stores are lost")
        if lost:
            self.clock.sometimes("a crash lost what was not synced")
        self._die()

    def _die(self) -> None:
        self.is_up = self.is_paused = self._is_scheduled = False
        self._ahead_until = 0
        self.generation += 1
        self.core = None
        self._inbox.clear()

    def restart(self, why: str) -> None:
        """The process continues, the role begins again: it was fenced, or told to stop."""
        self.host.restart(self, why)

    def rest(self, why: str) -> None:
        """See `Played`."""
        self.clock.note(f"{self.name} restarts: {why}")
        self.disk.flush()
        self._die()

    def wipe(self) -> None:
        """Its disk is lost, and with it the newest writes of the one that kept them there."""
        self.disk.wipe()
        for mate in self.mates.values():
            if mate.disk.log is self.disk:
                mate.disk.wipe()

    def save(self) -> None:
        """Checkpoint now what would be checkpointed some time."""

    @property
    def has_come(self) -> bool:
        """Whether it does what it is there for."""
        return self.core is not None

    def end(self) -> None:
        """The run is over: nothing of this node is to be left."""

    def stop(self) -> None:
        """SIGTERM: stop in good order, with all roles of its process, and come back."""
        self.host.stop()

    def drain(self) -> None:
        """See `Played`."""
        self.save()
        self.host.stopped(self)

    def _on_disk_failure(self, what: str) -> None:
        self.clock.sometimes(what)
        self.crash()
        self.clock.after(_RESTART_US, self.start)

    def _replace_disk(self) -> None:
        """The node has stopped, and does so at each start: somebody gives it an empty disk."""
        self.clock.sometimes("a disk that could not be read was replaced")
        self.crash()
        self.wipe()
        self.clock.note(f"{self.name} could not read its disk, and is given an empty one")
        self.clock.after(_RESTART_US, self.start)

    def pause(self) -> None:
        """SIGSTOP of its process: everything waits; others see a silent node."""
        for role in self.world.process_of(self):
            self.clock.note(f"{role.name} is stopped")
            role.is_paused = role.is_up

    def resume(self) -> None:
        """SIGCONT: what has gathered comes all at once."""
        for role in self.world.process_of(self):
            role.go_on()

    def go_on(self) -> None:
        """This role continues."""
        if self.is_paused:
            self.clock.note(f"{self.name} goes on, and takes in {len(self._inbox)} messages")
            self.is_paused = False
            if self._inbox and not self._is_scheduled:
                self._schedule()

    # time and messages

    def now_us(self) -> int:
        """This node's own clock, which never goes back within a run of it."""
        now_us = self.clock.now_us + self.offset_us
        if now_us > self._clock_us:
            self._clock_us = now_us
        return self._clock_us

    def _tick(self, generation: int) -> None:
        if generation != self.generation or self.core is None:
            return
        if self.is_paused:
            self.clock.after(10_000, self._tick, generation)
            return
        self.clock.after(_TICK_US, self._tick, generation)
        if self._inbox and not self._is_scheduled:  # what could wait for a tick
            self._take_inbox(generation)
        if self.core is not None and generation == self.generation:
            self._run(self.core.tick, self.now_us())

    def deliver(self, sender: NodeId, message: Any) -> None:
        """A message has arrived; it is taken in a little later, with all that come until then."""
        if self.core is None:
            return
        self._inbox.append((sender, message))
        if not self._is_scheduled and not self.is_paused:
            self._schedule()

    def hand(self, sender: NodeId, message: Any) -> None:
        """A role of this process hands a message over by reference: it is here at once, and is never lost."""
        if self.core is None:
            return
        if isinstance(message, IndexBatch) and message.may_wait:
            self._inbox.append((sender, message))
        else:
            self.deliver(sender, message)

    def _schedule(self) -> None:
        self._is_scheduled = True
        self.clock.after(int(self.clock.schedule_rng.random() * 200), self._take_inbox, self.generation)

    def _take_inbox(self, generation: int) -> None:
        if generation != self.generation:
            return
        self._is_scheduled = False
        if self.is_paused or self.core is None:
            return
        inbox, self._inbox = self._inbox, []
        for sender, message in inbox:
            if generation != self.generation or self.core is None:
                return
            self._take(sender, message)
        if generation == self.generation and self.core is not None:
            self._run(self.core.settle, self.now_us())

    def _take(self, sender: NodeId, message: Any) -> None:
        assert self.core is not None
        self.clock.note(f"{sender} > {self.name}: {type(message).__name__}", message)
        look = self._looks.get(type(message))
        judge = look(self, sender, message) if look is not None else None
        if type(message) in self.core.HEARS:
            self._run(self.core.receive, sender, message, self.now_us())
        if judge is not None:
            judge()

    def _run(self, method: Callable[..., Iterable[Effect] | None], *arguments: Any) -> None:
        try:
            effects = method(*arguments)
            if effects:
                self.perform(effects)
        except DiskUnreadable:
            self._replace_disk()
        except Exception as error:  # noqa: BLE001 - whatever it is, a process would have died of it
            self._raised(error)

    def _raised(self, error: Exception) -> None:
        """As in production: what the core knows may be half changed, so the node stops, and is started again."""
        self.clock.note(f"the core of {self.name} raises", repr(error))
        self.world.raised.append(f"{self.name}: {error!r}")
        self.crash()
        self.clock.after(_RESTART_US, self.start)

    def perform(self, effects: Iterable[Effect]) -> None:
        """Carry effects out, in order, until the node dies of one; as `boki.host.host` does it."""
        generation = self.generation
        for effect in effects:
            if generation != self.generation:
                return
            if self._ahead_until and self.is_ahead() and holds(effect):
                self.clock.sometimes("a message waited for the sync that it ran ahead of")
                self.disk.store(Store((), then=(effect,)), self._stored)
            else:
                self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            self.send(effect.to, effect.message)  # what can wait is late now and then, as all messages are
        elif isinstance(effect, Store):
            early: Sequence[Send] = ()
            if self.mates:
                early, effect = split_early(effect, self.mates, runs_ahead=self.world.options.runs_ahead)
            self.disk.store(effect, self._stored, can_wait=effect.can_wait and bool(early))
            for send in early:
                self.mates[send.to].hear_early(self.name, send.message)
        elif isinstance(effect, Load):
            self.deliver(self.name, self.disk.load(effect))
        elif isinstance(effect, Trace):
            self.clock.note(f"{self.name} says", effect.text)
        else:
            self.carry_out(effect)

    def hear_early(self, sender: NodeId, message: Any) -> None:
        """See `boki.host.host.Host`."""
        if isinstance(message, IN_LOG):
            if self.core is not None:
                self._inbox.insert(0, (sender, message))  # what has come meanwhile may be cuts of these very records
                if not self._is_scheduled and not self.is_paused:
                    self._schedule()
            return
        self._ahead_until = self.disk.log.queued
        self.deliver(sender, message)

    def is_ahead(self) -> bool:
        """Whether it was told of what is not durable yet."""
        return self._ahead_until > self.disk.log.durable

    def _stored(self, effects: Iterable[Effect]) -> None:
        generation = self.generation
        for effect in effects:
            if generation == self.generation:
                self._run(self._perform, effect)

    def send(self, to: NodeId, message: Any) -> None:
        """Give a message to the network, or to this very node."""
        if to == self.name:
            self.deliver(to, message)
        elif to == COORDINATOR:
            self._fetch_views(message)
        else:
            target = self.world.nodes.get(to)
            if target is not None and target.host is self.host:
                target.hand(self.name, message)
            elif target is not None:
                self.world.network.send(self.name, to, target.arrive, self.name, message, target.incarnation)

    def arrive(self, sender: NodeId, message: Any, incarnation: int) -> None:
        """A message for that incarnation of this node is here: mostly it is alone, sometimes it waits for others."""
        if incarnation != self.incarnation or self.core is None:
            return
        if self._is_scheduled or self.is_paused or self._inbox or self.clock.schedule_rng.random() < _GATHERING:
            self.deliver(sender, message)
            return
        generation = self.generation
        self._take(sender, message)
        if not isinstance(message, Ping | Pong) and generation == self.generation and self.core is not None:
            self._run(self.core.settle, self.now_us())

    def _fetch_views(self, message: FetchView) -> None:
        assert self.session is not None
        generation, term = self.generation, message.known_term

        def hear(news: News | None) -> None:
            if news is not None:
                self._if_alive(generation, self.hear_news, news)

        self.world.coordinator.ask(self.session, lambda: self.world.coordinator.views_after(term), hear)

    # what happens around the core

    def carry_out(self, effect: RoleEffect) -> None:
        """What the core asks of its role's shell."""
        raise AssertionError(f"{self.name} has no use for {effect!r}")

    def hear_news(self, news: News) -> None:
        """See `Played`."""
        self.deliver(COORDINATOR, news)

    def hear_leadership(self, is_leader: bool) -> None:
        """See `Played`."""

    def hear_state(self, state: str) -> None:
        """See `Played`."""
        if state == "expired":
            self.clock.sometimes("a session expired")
            self.rest("its session has expired")
