"""Controllers, sequencers and a coordinator in the deterministic world, with somebody who appends and reads all along.

`Writer` plays an engine and its only storage node: it opens a shard in each term, moves it on, and applies what it
hears. `History` checks what must hold whatever happens: one value for one place, and time that never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from boki.controller.core import ControllerConfig, ControllerCore
from boki.controller.inputs import Installed, Leadership, Placed
from boki.controller.lifecycle import Phase
from boki.log.ids import LogId, NodeId, Term, make_shard
from boki.log.membership import ClusterPlan, Member, Membership, Placement, Role
from boki.log.metalog import Cut, MetalogEntry, OpenShard
from boki.log.view import View
from boki.protocol.effects import Effect, ProposePlacement, ProposeView, Send
from boki.protocol.follower import COORDINATOR, MetalogFollower
from boki.protocol.messages import (
    FetchView,
    InstallMembership,
    InstallPlacement,
    InstallPlan,
    InstallView,
    Metalog,
    Ping,
    Pong,
    RequestEntry,
    ShardProgress,
)
from boki.sequencer.core import SequencerCore
from tests.world import EVERY_MESSAGE, World

WRITER = NodeId("storage-1")


class History:
    """Everything that anybody was told was committed."""

    def __init__(self) -> None:
        self.entries: dict[tuple[Term, LogId, int], MetalogEntry] = {}
        self.time_us: dict[LogId, int] = {}

    def add(self, term: Term, log: LogId, index: int, entry: MetalogEntry) -> None:
        assert self.entries.setdefault((term, log, index), entry) == entry, "one place, two values"


class Writer:
    """Appends to every log in every term, and applies what is committed."""

    HEARS = EVERY_MESSAGE

    def __init__(self, node: NodeId, incarnation: int, history: History) -> None:
        self.node = node
        self.incarnation = incarnation
        self.history = history
        self.follower = MetalogFollower({})
        self.stored: dict[tuple[Term, LogId], int] = {}
        self.applied = 0
        self.last_time_us: dict[LogId, int] = {}
        self.moved_at = 0
        self.longest_stall_us = 0

    def receive(self, sender: NodeId, message: Any, now_us: int) -> Iterable[Effect]:
        match message:
            case Ping(number):
                return (Send(sender, Pong(number, self.follower.term, self.incarnation)),)
            case InstallView(views):
                self.follower.install(views)
            case Metalog():
                self.follower.offer(message, now_us)
        return ()

    def settle(self, now_us: int) -> Iterable[Effect]:
        if not self.follower.chain:
            return ()
        while True:
            for log in self.follower.logs:
                while (found := self.follower.peek(log)) is not None:
                    self._apply(log, *found, now_us)
                    self.follower.advance(log)
            if self.follower.next_term() is None:
                break
        return [Send(to, fetch) for to, fetch in self.follower.fetches(now_us)]

    def _apply(self, log: LogId, index: int, entry: MetalogEntry, now_us: int) -> None:
        self.history.add(self.follower.term, log, index, entry)
        self.applied += 1
        if isinstance(entry, Cut):
            assert entry.time_us >= self.last_time_us.get(log, 0), "time goes back"
            self.last_time_us[log] = entry.time_us
            if self.moved_at:
                self.longest_stall_us = max(self.longest_stall_us, now_us - self.moved_at)
            self.moved_at = now_us

    def tick(self, now_us: int) -> Iterable[Effect]:
        effects = list(self.settle(now_us))
        if not self.follower.chain or self.follower.term != self.follower.chain.current.term:
            return effects
        view = self.follower.view
        for log in self.follower.logs:
            shard = make_shard(self.incarnation, view.term)
            stored = self.stored[view.term, log] = self.stored.get((view.term, log), 0) + 1
            primary = view.primaries[log]
            effects.append(Send(primary, RequestEntry(view.term, log, OpenShard(shard, self.node, (self.node,)))))
            effects.append(Send(primary, ShardProgress(view.term, log, shard, self.incarnation, stored, True)))
        return effects


class Coordinator:
    """Views, placement and plan by compare-and-set; what it installs everybody is told."""

    HEARS = EVERY_MESSAGE

    def __init__(self, world: Cluster) -> None:
        self.world = world
        self.views: list[View] = []
        self.placement = Placement()

    def receive(self, sender: NodeId, message: Any, now_us: int) -> Iterable[Effect]:
        if isinstance(message, FetchView):
            news = tuple(view for view in self.views if view.term > message.known_term)
            return (Send(sender, InstallView(news)),) if news else ()
        return ()

    def settle(self, now_us: int) -> Iterable[Effect]:
        return ()

    tick = settle

    def install(self, view: View) -> bool:
        if view.term <= len(self.views):
            return self.views[view.term - 1] == view
        assert view.term == len(self.views) + 1, "a chain has no gaps"
        self.views.append(view)
        return True

    def place(self, placement: Placement) -> bool:
        if placement.version != self.placement.version:
            return False
        self.placement = Placement(version=placement.version + 1, moved=placement.moved)
        return True


class Cluster(World):
    """A world with a coordinator. `plan` goes to all controllers; `members` to everybody."""

    def __init__(
        self,
        *,
        sequencers: int = 3,
        logs: int = 1,
        controllers: int = 1,
        config: ControllerConfig | None = None,
        **plan: Any,
    ) -> None:
        super().__init__()
        self.coordinator = Coordinator(self)
        self.add(COORDINATOR, self.coordinator)
        self.history = History()
        self.members: dict[NodeId, Member] = {}
        self.plan = ClusterPlan(
            version=1, logs=logs, sequencers=sequencers, **({"replicas": 1, "write_quorum": 1} | plan)
        )
        self.membership_number = 0
        self.config = config or ControllerConfig()
        self.dies_after: dict[NodeId, int] = {}
        """Nodes that die when they have had this many effects more."""
        self.paused: dict[NodeId, Any] = {}
        for number in range(1, sequencers + 1):
            self.start_sequencer(f"sequencer-{number}")
        self.start_writer()
        for number in range(1, controllers + 1):
            self.start_controller(f"controller-{number}", leads=number == 1)

    # nodes

    def start_sequencer(self, name: str, incarnation: int = 1) -> None:
        self.add(name, SequencerCore(NodeId(name), incarnation, self.disk(name)))
        self.register(name, Role.SEQUENCER, incarnation)

    def start_writer(self) -> Writer:
        self.writer = Writer(WRITER, 1, self.history)
        self.add(WRITER, self.writer)
        self.register(WRITER, Role.STORAGE, 1)
        return self.writer

    def start_controller(self, name: str, *, leads: bool) -> ControllerCore:
        core = ControllerCore(NodeId(name), 1, self.config)
        self.add(name, core)
        self.register(name, Role.CONTROLLER, 1)
        self.tell(name, InstallPlan(self.plan), COORDINATOR)
        self.tell(name, Leadership(leads, leads), COORDINATOR)
        return core

    def controller(self, name: str = "controller-1") -> ControllerCore:
        core = self.cores[NodeId(name)]
        assert isinstance(core, ControllerCore)
        return core

    def register(self, name: str, role: Role, incarnation: int) -> None:
        node = NodeId(name)
        self.members[node] = Member(node=node, role=role, incarnation=incarnation)
        self._tell_members()
        if self.coordinator.views:
            self.tell(name, InstallView(tuple(self.coordinator.views)), COORDINATOR)

    def unregister(self, name: str) -> None:
        self.members.pop(NodeId(name), None)
        self._tell_members()

    def _tell_members(self) -> None:
        self.membership_number += 1
        membership = Membership(
            number=self.membership_number, members=tuple(self.members.values()), draining=self.plan.draining
        )
        for node in self.cores:
            if node != COORDINATOR:
                self.tell(node, InstallMembership(membership), COORDINATOR)

    def want(self, **changes: Any) -> None:
        """The operator changes the plan."""
        values = {name: getattr(self.plan, name) for name in self.plan.__struct_fields__}
        self.plan = ClusterPlan(**(values | {"version": self.plan.version + 1} | changes))
        for node, core in self.cores.items():
            if isinstance(core, ControllerCore):
                self.tell(node, InstallPlan(self.plan), COORDINATOR)
        self._tell_members()

    def lead(self, name: str, leads: bool = True, connected: bool = True) -> None:
        self.tell(name, Leadership(leads, connected), COORDINATOR)

    def kill(self, name: str) -> None:
        """The process is gone, and soon its registration, too."""
        self.crash(name)
        self.unregister(name)

    def pause(self, name: str) -> None:
        """SIGSTOP: it neither hears nor says anything; what comes is lost."""
        self.paused[NodeId(name)] = self.cores.pop(NodeId(name))

    def resume(self, name: str) -> None:
        self.cores[NodeId(name)] = self.paused.pop(NodeId(name))

    # effects

    def perform(self, node: NodeId, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if node in self.dies_after:
                self.dies_after[node] -= 1
                if self.dies_after[node] < 0:
                    del self.dies_after[node]
                    self.crash(node)
                    return
            match effect:
                case ProposeView(view):
                    won = self.coordinator.install(view)
                    self.queue.append((COORDINATOR, node, Installed(view, won)))
                    if won:
                        for other in [*self.cores, *self.paused]:
                            if other != COORDINATOR:
                                self.perform(COORDINATOR, [Send(other, InstallView((view,)))])
                case ProposePlacement(placement):
                    won = self.coordinator.place(placement)
                    self.queue.append((COORDINATOR, node, Placed(placement.version, won)))
                    news = InstallPlacement(self.coordinator.placement)
                    for other in [*self.cores]:
                        if other != COORDINATOR:
                            self.perform(COORDINATOR, [Send(other, news)])
                case _:
                    super().perform(node, [effect])

    # waiting

    @property
    def term(self) -> int:
        return len(self.coordinator.views)

    @property
    def view(self) -> View:
        return self.coordinator.views[-1]

    def until_ready(self, ticks: int = 200) -> None:
        """Continue until the leader rests and the writer's appends move in the newest term."""
        for _ in range(ticks):
            self.tick()
            leaders = [c for c in self.cores.values() if isinstance(c, ControllerCore) and c.phase is Phase.WATCHING]
            if leaders and self.writer.follower.term == self.term and self.moves_everywhere():
                return
        raise AssertionError(f"not ready: {[c.status() for c in self.cores.values() if isinstance(c, ControllerCore)]}")

    def moves_everywhere(self) -> bool:
        """Whether a cut of the newest term has come in every log."""
        cuts = {
            log
            for (term, log, _), entry in self.history.entries.items()
            if term == self.term and isinstance(entry, Cut)
        }
        return self.term > 0 and cuts == set(range(self.view.log_count))

    def check(self) -> None:
        """A reader that begins again finds exactly what was told, and nothing of it is missing."""
        told = dict(self.history.entries)
        reader = Writer(NodeId("reader-1"), 99, History())
        self.add("reader-1", reader)
        reader.tick = reader.settle  # type: ignore[method-assign]
        self.tell("reader-1", InstallView(tuple(self.coordinator.views)), COORDINATOR)
        self.run()
        self.tick(60)
        assert told.items() <= reader.history.entries.items(), "something that was told is gone"
        self.crash("reader-1")
