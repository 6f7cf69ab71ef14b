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
from boki.protocol.effects import Core, DiskRoom, DiskUnreadable, Effect, Load, Put, RoleEffect, Send, Store, Trace
from boki.protocol.follower import COORDINATOR
from boki.protocol.messages import FetchView, Ping, Pong
from boki.protocol.output_commit import IN_LOG, holds, split_early
from boki.sequencer.core import SequencerCore
from boki.storage.core import StorageCore
from boki.verify.histories.history import History
from boki.verify.sim.clockwork import Clockwork
from boki.verify.sim.coordinator import NAME as ZOOKEEPER
from boki.verify.sim.coordinator import Coordinator, News, Session
from boki.verify.sim.disks import SimulatedDisk
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


class WholeWorld(World, Protocol):
    """What the end of a run sees of the world: it adds nodes, asks clients' questions and takes nodes away."""

    history: History

    def of(self, role: Role) -> list[Node]:
        """The nodes of a role."""

    def add(self, kind: type[Node], name: str) -> Node:
        """A new node, which starts at once."""


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
        self.incarnation = 0
        self.is_up = False
        self.is_paused = False
        self.offset_us = 0
        """How wrong this node's clock is."""
        self.session: Session | None = None
        self._generation = 0
        self._inbox: list[tuple[NodeId, Any]] = []
        self._is_scheduled = False
        self._clock_us = 0

    # living and dying

    def start(self) -> None:
        """Boot, if it is down."""
        if not self.is_up:
            self.is_up = True
            self._generation += 1
            self.open_session(self._generation)

    def open_session(self, generation: int) -> None:
        """Come to the coordinator as soon as it can be reached, and continue from there."""
        if generation != self._generation or not self.is_up:
            return
        network = self.world.network
        if self.is_paused or network.is_cut(self.name, ZOOKEEPER) or network.is_cut(ZOOKEEPER, self.name):
            self.clock.after(100_000, self.open_session, generation)
            return
        self.session = self.world.coordinator.open(
            self.name,
            self.role,
            lambda news: self._if_alive(generation, self._on_news, news),
            lambda is_leader: self._if_alive(generation, self._on_leadership, is_leader),
            lambda state: self._if_alive(generation, self._on_state, state),
        )
        stored = self.disk.get(_INCARNATION_KEY) if self.HAS_DISK_LIFE else None
        if stored is not None:
            self._begin(generation, int(stored))
        else:
            ask = self.world.coordinator.next_incarnation
            self.world.coordinator.ask(
                self.session, ask, lambda number: self._if_alive(generation, self._begin, generation, number)
            )

    def _if_alive(self, generation: int, action: Callable[..., None], *arguments: Any) -> None:
        if generation == self._generation and self.is_up:
            action(*arguments)

    def _begin(self, generation: int, incarnation: int) -> None:
        if generation != self._generation or self.core is not None or self.session is None or self.session.is_over:
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
        self.world.coordinator.register(self.session, self.member())
        self.world.coordinator.follow(self.session)
        self.clock.after(int(self.clock.schedule_rng.random() * _TICK_US), self._tick, generation)

    def make_core(self) -> Core[Any] | None:
        """The role's core, over the disk."""
        return None

    def member(self) -> Member:
        """As whom others see this node."""
        host = NodeId(f"node-{self.name.rpartition('-')[2]}" if self.world.options.is_hosted else "")
        life, ahead = self.incarnation, bool(self.mates)
        return Member(
            node=self.name, role=self.role, incarnation=life, host=host, runs_ahead=ahead, entry_version=VERSION
        )

    def mate(self, role: Role) -> NodeId | None:
        """The node of that role that shares its log."""
        return next((mate.name for mate in self.mates.values() if mate.role is role), None)

    def share_log(self, guest: Node) -> None:
        """Let the other one's stores stand in this one's log, as in production where they are one process."""
        guest.disk.share_log(self.disk)
        self.mates = guest.mates = {self.name: self, guest.name: guest}

    def crash(self, *, keeps_some: bool = True) -> None:
        """Gone without a word; what the disk had not synced may be gone, too, or is. So are mates in its log."""
        for mate in self.mates.values():
            if mate is not self and mate.is_up:
                mate.crash_alone(keeps_some=keeps_some)
                self.clock.after(_RESTART_US, mate.start)
        self.crash_alone(keeps_some=keeps_some)

    def crash_alone(self, *, keeps_some: bool) -> None:
        """This role, of all that share its log."""
        if not self.is_up:
            return
        self.world.coverage.dies(self)
        lost = self.disk.crash(keeps_some=keeps_some)
        self.clock.note(f"{self.name} crashes, {lost} stores are lost")
        if lost:
            self.clock.sometimes("a crash lost what was not synced")
        self._die()
        if self.session is not None:
            self.world.coordinator.lose(self.session)

    def _die(self) -> None:
        self.is_up = self.is_paused = self._is_scheduled = False
        self._ahead_until = 0
        self._generation += 1
        self.core = None
        self._inbox.clear()

    def restart(self, why: str) -> None:
        """The process continues, the role begins again: fenced, or its session is over. So does who shares its log."""
        for mate in self.mates.values():
            if mate is not self and mate.is_up:
                mate.restart_alone(f"{self.name} does")
        self.restart_alone(why)

    def wipe(self) -> None:
        """Its disk is lost, and with it the newest writes of the one that kept them there."""
        self.disk.wipe()
        for mate in self.mates.values():
            if mate.disk.log is self.disk:
                mate.disk.wipe()

    def restart_alone(self, why: str) -> None:
        """This role, of all that share its log."""
        self.clock.note(f"{self.name} begins anew: {why}")
        self.disk.flush()
        self._die()
        if self.session is not None and not self.session.is_over:
            self.world.coordinator.close(self.session)
        self.clock.after(20_000, self.start)

    def save(self) -> None:
        """Checkpoint now what would be checkpointed some time."""

    @property
    def has_come(self) -> bool:
        """Whether it does what it is there for."""
        return self.core is not None

    def end(self) -> None:
        """The run is over: nothing of this node is to be left."""

    def stop(self) -> None:
        """SIGTERM: stop in good order, and come back."""
        if self.core is not None and not self.is_paused:
            self.save()
            self.restart("it was told to")

    def _on_disk_failure(self, what: str) -> None:
        self.clock.sometimes(what)
        for role in self.world.process_of(self):
            role.crash()
            self.clock.after(_RESTART_US, role.start)

    def _replace_disk(self) -> None:
        """The node has stopped, and does so at each start: somebody gives it an empty disk."""
        self.clock.sometimes("a disk that could not be read was replaced")
        self.crash()
        self.wipe()
        self.clock.note(f"{self.name} could not read its disk, and is given an empty one")
        self.clock.after(_RESTART_US, self.start)

    def pause(self) -> None:
        """SIGSTOP: everything waits; others see a silent node."""
        self.clock.note(f"{self.name} is stopped")
        self.is_paused = self.is_up

    def resume(self) -> None:
        """SIGCONT: what has gathered comes all at once."""
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
        if generation != self._generation or self.core is None:
            return
        if self.is_paused:
            self.clock.after(10_000, self._tick, generation)
            return
        self.clock.after(_TICK_US, self._tick, generation)
        self._run(self.core.tick, self.now_us())

    def deliver(self, sender: NodeId, message: Any) -> None:
        """A message has arrived; it is taken in a little later, with all that come until then."""
        if self.core is None:
            return
        self._inbox.append((sender, message))
        if not self._is_scheduled and not self.is_paused:
            self._schedule()

    def _schedule(self) -> None:
        self._is_scheduled = True
        self.clock.after(int(self.clock.schedule_rng.random() * 200), self._drain, self._generation)

    def _drain(self, generation: int) -> None:
        if generation != self._generation:
            return
        self._is_scheduled = False
        if self.is_paused or self.core is None:
            return
        inbox, self._inbox = self._inbox, []
        for sender, message in inbox:
            if generation != self._generation or self.core is None:
                return
            self._take(sender, message)
        if generation == self._generation and self.core is not None:
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
        generation = self._generation
        for effect in effects:
            if generation != self._generation:
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
        if not isinstance(message, IN_LOG):
            self._ahead_until = self.disk.log.queued
        self.deliver(sender, message)

    def is_ahead(self) -> bool:
        """Whether it was told of what is not durable yet."""
        return self._ahead_until > self.disk.log.durable

    def _stored(self, effects: Iterable[Effect]) -> None:
        generation = self._generation
        for effect in effects:
            if generation == self._generation:
                self._run(self._perform, effect)

    def send(self, to: NodeId, message: Any) -> None:
        """Give a message to the network, or to this very node."""
        if to == self.name:
            self.deliver(to, message)
        elif to == COORDINATOR:
            self._fetch_views(message)
        else:
            target = self.world.nodes.get(to)
            if target is not None:
                self.world.network.send(self.name, to, target.arrive, self.name, message, target.incarnation)

    def arrive(self, sender: NodeId, message: Any, incarnation: int) -> None:
        """A message for that incarnation of this node is here: mostly it is alone, sometimes it waits for others."""
        if incarnation != self.incarnation or self.core is None:
            return
        if self._is_scheduled or self.is_paused or self.clock.schedule_rng.random() < _GATHERING:
            self.deliver(sender, message)
            return
        generation = self._generation
        self._take(sender, message)
        if not isinstance(message, Ping | Pong) and generation == self._generation and self.core is not None:
            self._run(self.core.settle, self.now_us())

    def _fetch_views(self, message: FetchView) -> None:
        assert self.session is not None
        generation, term = self._generation, message.known_term

        def hear(news: News | None) -> None:
            if news is not None:
                self._if_alive(generation, self._on_news, news)

        self.world.coordinator.ask(self.session, lambda: self.world.coordinator.views_after(term), hear)

    # what happens around the core

    def carry_out(self, effect: RoleEffect) -> None:
        """What the core asks of its role's shell."""
        raise AssertionError(f"{self.name} has no use for {effect!r}")

    def _on_news(self, news: News) -> None:
        self.deliver(COORDINATOR, news)

    def _on_leadership(self, is_leader: bool) -> None:
        """This process leads the controllers, or does not."""

    def _on_state(self, state: str) -> None:
        if state == "expired":
            self.clock.sometimes("a session expired")
            self.restart("its session has expired")


class StorageNode(Node):
    """A storage node; its incarnation is its disk's."""

    role = Role.STORAGE
    HAS_DISK_LIFE = True

    def make_core(self) -> Core[Any]:
        """See `Node`."""
        self.storage = StorageCore(self.name, self.incarnation, self.disk, mate=self.mate(Role.SEQUENCER))
        return self.storage

    def save(self) -> None:
        """See `Node`."""
        if self.core is not None:
            self._run(lambda: [self.storage.checkpoint()])

    def set_room(self, room: DiskRoom) -> None:
        """The disk is (nearly) full, or no longer."""
        self.deliver(self.name, room)


class SequencerNode(Node):
    """A sequencer; its incarnation is its disk's."""

    role = Role.SEQUENCER
    HAS_DISK_LIFE = True

    def make_core(self) -> Core[Any]:
        """See `Node`."""
        return SequencerCore(self.name, self.incarnation, self.disk, self.mate(Role.STORAGE))
