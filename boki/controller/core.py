"""The controller ensures that the cluster stays able to append: it ends terms, fences, and repairs.

Every controller process pings everybody (`boki.controller.heartbeats`) and knows the views, the members, the plan and
the placement; only one that leads and is connected to the coordinator acts. Two that act at once are safe: whatever
they decide becomes true by a compare-and-set, or by an entry of the metalog that may be requested any number of times.
Nothing is remembered that another controller would need: each step can be redone from the state of the nodes.

What it hears stands in `boki.controller.inputs`. Of its own effects, `ProposeView` is answered by `Installed`, and
`ProposePlacement` by `Placed`. All may be repeated while the shell is at it; it does one of a kind at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, assert_never

from boki.controller.fences import Fences
from boki.controller.heartbeats import Heartbeats
from boki.controller.index_slots import IndexSlots
from boki.controller.inputs import ConnectionEnded, ControllerInput, ControllerNews, Installed, Leadership, Placed
from boki.controller.inventory import Inventory
from boki.controller.lifecycle import NEXT, Phase
from boki.controller.load import LogLoads
from boki.controller.plans import Sight, by_name, differs, first_plan, moves_near, next_plan
from boki.controller.repair import Repair, Storage
from boki.controller.term_change import TermChange
from boki.log.ids import NodeId, Term
from boki.log.membership import ClusterPlan, Membership, Placement, Role
from boki.log.view import View, ViewChain
from boki.protocol.effects import REST_US, Effect, ProposePlacement, ProposeView, Send, Trace, kinds
from boki.protocol.follower import COORDINATOR
from boki.protocol.messages import (
    Completed,
    EntriesDropped,
    FetchView,
    InstallMembership,
    InstallPlacement,
    InstallPlan,
    InstallView,
    Ping,
    Pong,
    Sealed,
    SealedEntries,
    ShardsFetched,
)

_IDLE_TIMEOUT_US: Final = 300_000
"""A primary that knows the view and does not lead for this long has been restarted, or its disk hangs."""
_DEAF_TIMEOUT_US: Final = 2_000_000
"""A primary that has not learnt of the view for this long is cut off from the coordinator."""
_CHANGE_TIMEOUT_US: Final = 5_000_000
"""A change that does not get on for longer is begun again, from what the nodes say then."""
_MIN_PAUSE_US: Final = 1_000_000
_MAX_PAUSE_US: Final = 16_000_000
_PROVEN_US: Final = 3_000_000
"""A term that was led for this long before it ended was worth its beginning."""
_INSTALL_REPEAT_US: Final = 500_000
_PLACE_REPEAT_US: Final = 2_000_000
_REMEMBERED_CHANGES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """How patient a controller is. Times in microseconds."""

    ping_interval_us: int = REST_US // 4
    """On every fourth ping cores that rest are ticked, too, so that a process is woken once for both."""
    failure_timeout_us: int = 500_000
    """A node that answers no ping for this long is taken for dead; sealing by mistake costs a pause, never data."""
    fence_grace_us: int = 10_000_000
    """An engine that is no longer registered is fenced after this long; at once if its name has registered again."""
    repair_after_us: int = 60_000_000
    """A node gone for this long is replaced by a spare one."""
    load_span_us: int = 10_000_000
    """See `LogLoads`."""
    move_primary_after_us: int = 300_000_000
    """A term that has lasted this long is ended so that a primary moves to where its log's records come from; 0: none
    is.
    """


@dataclass(frozen=True, slots=True)
class Change:
    """A change of terms that this controller has won: why, and how long it took from the first seal to the view."""

    term: Term
    reason: str
    duration_us: int


class ControllerCore:
    """One controller. `incarnation` names the run of this process."""

    HEARS: ClassVar[frozenset[type]] = kinds(ControllerInput)

    def __init__(self, node: NodeId, incarnation: int, config: ControllerConfig) -> None:
        self.node = node
        self.incarnation = incarnation
        self.phase = Phase.FOLLOWING
        self.chain = ViewChain()
        self.heartbeats = Heartbeats(config.ping_interval_us, config.failure_timeout_us)
        self.won: list[Change] = []
        """The last changes that this controller has won."""
        self._config = config
        self._membership = Membership(number=0)
        self._plan = ClusterPlan()
        self._has_plan = False
        self._draining_since = 0
        self._placement = Placement()
        self._leadership = Leadership(is_leader=False, is_connected=False)
        self._change: TermChange | None = None
        self.reason = ""
        """Why this controller has begun its last change of terms."""
        self._began_at = 0
        self._pause_us = _MIN_PAUSE_US
        self._led_at = 0
        self._rest_until = 0
        self._install_at = 0
        self._waiting = ""
        self._inventory = Inventory()
        self._fences = Fences(config.fence_grace_us)
        self._slots = IndexSlots()
        self._repair = Repair()
        self._loads = LogLoads(config.load_span_us)
        self._term_since = 0
        self._place_at = 0
        self._now_us = 0

    # events

    def receive(self, sender: NodeId, message: ControllerInput, now_us: int) -> Iterable[Effect]:
        """See `boki.protocol.effects.Core`."""
        match message:
            case Pong():
                return self._hear(sender, message, now_us)
            case Ping(number):
                return (Send(sender, Pong(number, self.chain.current.term if self.chain else 0, self.incarnation)),)
            case ShardsFetched():
                return self._inventory.take(sender, message, now_us)
            case _:
                return self._take(sender, message, now_us)

    def _take(self, sender: NodeId, message: ControllerNews, now_us: int) -> Iterable[Effect]:
        self.heartbeats.stir(now_us)
        match message:
            case Sealed() | SealedEntries() | Completed() | EntriesDropped():
                if self._change is not None:
                    return self._change.receive(sender, message, now_us)
            case Installed(view, won):
                return self._installed(view, won, now_us)
            case ConnectionEnded():
                pass  # that it is news is all
            case Placed():
                self._place_at = 0
            case Leadership():
                self._leadership = message
                return self._lead_or_follow()
            case InstallView(views):
                return self._take_views(views, now_us)
            case InstallMembership(membership):
                if membership.number > self._membership.number:
                    self._membership, self._inventory.wants_all = membership, True
                    self.heartbeats.register({member.node: member.incarnation for member in membership.members})
            case InstallPlan(plan):
                if not self._has_plan or plan.version > self._plan.version:
                    if plan.draining != self._plan.draining:
                        self._draining_since = now_us
                    self._plan, self._has_plan = plan, True
            case InstallPlacement(placement):
                if placement.version > self._placement.version:
                    self._placement, self._inventory.wants_all, self._place_at = placement, True, 0
            case _:
                assert_never(message)
        return ()

    def settle(self, now_us: int) -> Iterable[Effect]:  # noqa: ARG002 - the shape of every core
        """See `boki.protocol.effects.Core`."""
        return ()

    def tick(self, now_us: int) -> Iterable[Effect]:
        """See `boki.protocol.effects.Core`: ping, judge, and continue with what is under way."""
        self._now_us = now_us
        effects = self.heartbeats.tick(self._known_nodes(), now_us, leads=self.phase is not Phase.FOLLOWING)
        if self.chain:
            self.heartbeats.watch(self.chain.current, now_us)
        match self.phase:
            case Phase.FOLLOWING:
                pass
            case Phase.WATCHING if not self.chain:
                effects += self._form(now_us)
            case Phase.WATCHING:
                effects += self._judge(now_us)
            case Phase.FORMING:
                effects += self._propose_first(now_us)
            case Phase.CHANGING:
                effects += self._go_on(now_us)
            case Phase.RESTING:
                self._rest(now_us)
        if self.phase is not Phase.FOLLOWING and self.chain:
            effects += self._look_after_records(now_us)
        return effects

    def rests_until(self, now_us: int) -> int:
        """See `boki.protocol.effects.Resting`: one that leads does until it pings or judges."""
        match self.phase:
            case Phase.FOLLOWING:
                return now_us + REST_US
            case Phase.WATCHING if self.chain:
                return self.heartbeats.rests_until()
            case _:
                return now_us

    def _move(self, event: str) -> None:
        self.phase = NEXT[self.phase, event]

    def _known_nodes(self) -> dict[NodeId, NodeId]:
        """All nodes that concern this controller, and the process of each. Sequencers first: they have most to say."""
        members = {member.node: member.process for member in self._membership.members}
        nodes: dict[NodeId, NodeId] = {}
        if self.chain:
            view = self.chain.current
            nodes = {node: members.get(node, node) for node in (*view.sequencers, *view.storage)}
            nodes |= {node: members.get(node, node) for node in self._repair.progress.used}
        nodes |= members
        nodes.pop(self.node, None)
        return nodes

    def _lead_or_follow(self) -> Iterable[Effect]:
        acts = self._leadership.is_leader and self._leadership.is_connected
        if acts and self.phase is Phase.FOLLOWING:
            self._move("leads")
            return (Trace(logging.INFO, "leads the controllers"),)
        if not acts and self.phase is not Phase.FOLLOWING:
            # whoever leads next finds what this one has begun, on the sequencers
            self._move("stands down")
            self._change = None
            self._loads.forget()
            return (Trace(logging.INFO, "leads the controllers no more"),)
        return ()

    def _hear(self, sender: NodeId, pong: Pong, now_us: int) -> Iterable[Effect]:
        if self.heartbeats.hear(sender, pong, now_us):
            self._inventory.note_life(sender, pong.incarnation)
        known = self.chain.current.term if self.chain else 0
        return (Send(COORDINATOR, FetchView(known)),) if pong.term > known else ()

    # views

    def _take_views(self, views: Iterable[View], now_us: int) -> Iterable[Effect]:
        news = [v for v in views if (not self.chain or v.term >= self.chain.first_term) and self.chain.add(v)]
        self._term_since = now_us if news else self._term_since
        if not news or self.phase is Phase.FOLLOWING:
            return ()
        change, self._change = self._change, None
        self._move("new view")
        self._inventory.wants_all = True
        self._led_at = 0
        self._rest_until = now_us + self._pause_us
        self._pause_us = min(2 * self._pause_us, _MAX_PAUSE_US)
        if change is None:
            return ()
        if self.chain.current == change.proposed:
            return (self._remember_win(now_us),)
        return (Trace(logging.INFO, f"another view of term {change.last.term + 1} was installed first"),)

    def _remember_win(self, now_us: int) -> Trace:
        view = self.chain.current
        done = Change(view.term, self.reason, now_us - self._began_at)
        self.won = [*self.won[1 - _REMEMBERED_CHANGES :], done]
        return Trace(
            logging.WARNING, f"term {view.term} has begun after {done.duration_us / 1000:.0f} ms: {done.reason}"
        )

    def _installed(self, view: View, won: bool, now_us: int) -> Iterable[Effect]:
        """The coordinator decides which view stands. Its word may be about an earlier proposal of the same term."""
        if won and self._change is not None and self._change.proposed == view:
            return self._take_views((view,), now_us)
        return (Send(COORDINATOR, FetchView(self.chain.current.term if self.chain else 0)),)

    def _rest(self, now_us: int) -> None:
        view = self.chain.current if self.chain else None
        leads = view is not None and all(self.heartbeats.leads(node, view) for node in view.primaries)
        self._led_at = now_us if leads else self._led_at
        is_over = now_us >= self._rest_until
        if leads or is_over or (view and self.heartbeats.has_lost_primary(view, self._pause_us, now_us)):
            self._move("rested")

    # the first view

    def _form(self, now_us: int) -> Iterable[Effect]:
        if not self._has_plan or first_plan(self._sight(now_us)) is None:
            return ()
        self._move("enough nodes")
        self._install_at = 0
        return self._propose_first(now_us)

    def _propose_first(self, now_us: int) -> Iterable[Effect]:
        plan = first_plan(self._sight(now_us))
        if plan is None or now_us < self._install_at:
            return ()
        self._install_at = now_us + _INSTALL_REPEAT_US
        return (ProposeView(plan.first_view()),)

    # changing terms

    def _sight(self, now_us: int) -> Sight:
        """What is seen of the cluster right now."""
        members = self._membership.members
        named = self.chain.current.sequencers if self.chain else ()
        sequencers = {member.node for member in members if member.role is Role.SEQUENCER} | set(named)
        answers = {node: pong for node in sequencers if (pong := self.heartbeats.pong(node)) is not None}
        unfit = set()
        if self.chain:
            unfit = {
                node
                for node, pong in answers.items()
                if pong.wants_new_term or self.heartbeats.idle_for(node, now_us) > _IDLE_TIMEOUT_US
            } | (answers.keys() - self._membership.staying())  # their last answer is still young
        return Sight(
            wanted=self._plan if self._has_plan else self._as_it_is(),
            sequencers={node: pong.incarnation for node, pong in answers.items()},
            unfit=frozenset(unfit),
            mates=frozenset(mate.node for mate in self._membership.beside(self.node)),
            near=self._loads.near(self._membership),
            lost=self._lost(now_us),
            storage=tuple(member.node for member in members if member.role is Role.STORAGE),
            beside=self._membership.mates() if self._plan.speculative_cuts else {},
        )

    def _lost(self, now_us: int) -> frozenset[NodeId]:
        """Nodes that have been silent for so long that they are replaced."""
        timeout_us = self._config.repair_after_us
        return frozenset(n for n in self._known_nodes() if self.heartbeats.silent_for(n, now_us) > timeout_us)

    def _as_it_is(self) -> ClusterPlan:
        if not self.chain:
            return self._plan
        view = self.chain.current
        return ClusterPlan(
            logs=view.log_count,
            sequencers=len(view.sequencers),
            replicas=view.replicas,
            write_quorum=view.write_quorum,
            speculative_cuts=bool(view.beside),
        )

    def _judge(self, now_us: int) -> Iterable[Effect]:
        """Begin a change of terms if there is a reason for one, and if it can be carried out now."""
        view = self.chain.current
        sight = self._sight(now_us)
        plan, self._waiting = next_plan(view, sight)
        reason = self._trouble(view, now_us) or differs(view, plan, sight.mates)
        if not reason and (near := moves_near(view, plan, sight.near)) and self._is_calm(view, now_us):
            reason = near
        if not reason:
            return ()
        if not sight.has_majority(view.sequencers, view.incarnations):
            self._waiting = f"{reason}; but no majority of the sequencers answers, so the term cannot be ended"
            return ()
        if not sight.has_majority(plan.sequencers, plan.incarnations):
            self._waiting = f"{reason}; but no majority of the next term's sequencers answers"
            return ()
        if self._led_at and now_us - self._led_at >= _PROVEN_US:
            self._pause_us = _MIN_PAUSE_US
        self._led_at = 0
        self._move("change begun")
        self.reason, self._began_at = reason, now_us
        self._change = TermChange(view, plan, self.heartbeats.applied())
        trace = Trace(logging.WARNING, f"ends term {view.term}: {reason}")
        return (trace, *self._change.tick(now_us))

    def _is_calm(self, view: View, now_us: int) -> bool:
        """Whether a term may be ended for speed alone: it is old, no node comes or goes, and no shard is on its way."""
        pause_us, silent = self._config.move_primary_after_us, self.heartbeats.silent()
        wanted = {*view.sequencers, *(member.node for member in self._membership.members)}
        leaves = any(member.is_leaving for member in self._membership.members) or not wanted.isdisjoint(silent)
        is_old = 0 < pause_us <= now_us - self._term_since
        return is_old and not leaves and self._repair.progress.is_at_rest((*self._plan.draining, *silent))

    def _trouble(self, view: View, now_us: int) -> str:
        """Why the current term cannot continue, in words; empty if it can."""
        for node in view.sequencers:
            pong = self.heartbeats.pong(node)
            if pong is not None and pong.term == view.term and pong.is_sealed:
                return "it is sealed already"
        for node in dict.fromkeys(view.primaries):
            pong = self.heartbeats.pong(node)
            if self.heartbeats.silent_for(node, now_us):
                return f"its primary {node} does not answer"
            if pong is None or pong.term > view.term:
                continue
            if pong.incarnation != view.incarnations[node]:
                return f"its primary {node} has another disk"
            timeout_us = _IDLE_TIMEOUT_US if pong.term == view.term else _DEAF_TIMEOUT_US
            if self.heartbeats.idle_for(node, now_us) > timeout_us:
                return f"its primary {node} has been restarted, or cannot write"
            if pong.wants_new_term:
                return f"its primary {node} reaches no majority, or its log nears its last position"
        return ""

    def _go_on(self, now_us: int) -> Iterable[Effect]:
        change = self._change
        assert change is not None, "who is changing terms has a change under way"
        if now_us - max(self._began_at, change.moved_at) > _CHANGE_TIMEOUT_US:
            self._change = None
            self._move("given up")
            self._rest_until = now_us + self._pause_us
            self._pause_us = min(2 * self._pause_us, _MAX_PAUSE_US)
            return (Trace(logging.WARNING, f"the change from term {change.last.term} does not get on; tries again"),)
        sight = self._sight(now_us)
        plan, _ = next_plan(change.last, sight)
        # who was alive at the seal may not be any more; a view that nobody could lead is worse than a pause
        change.plan = plan if sight.has_majority(plan.sequencers, plan.incarnations) else None
        change.note_applied(self.heartbeats.applied())
        return change.tick(now_us)

    # records and engines

    def _storage(self, now_us: int) -> Storage:
        members = self._membership.of(Role.STORAGE)
        return Storage(
            live=frozenset(m.node for m in members if self.heartbeats.pong(m.node) is not None),
            lost=self._lost(now_us),
            draining=frozenset(self._plan.draining),
            replicas=self._plan.replicas if self._has_plan else self.chain.current.replicas,
            write_quorum=self._plan.write_quorum if self._has_plan else self.chain.current.write_quorum,
            draining_since=self._draining_since,
        )

    def _look_after_records(self, now_us: int) -> list[Effect]:
        """Ask who holds what, fence engines that are gone, and move shards that lack a replica."""
        view, storage = self.chain.current, self._storage(now_us)
        if self._repair.progress.is_busy:
            self._inventory.wants_all = True
        effects = self._inventory.tick(storage.live, view.term, now_us)
        effects += self._fences.tick(self._inventory, self._membership, view, now_us)
        effects += self._slots.tick(self.heartbeats, self._membership, self._plan, now_us)
        if self._inventory.has_news and not self._inventory.is_scanning and now_us >= self._place_at:
            self._inventory.has_news = False
            self._loads.note(self._inventory.shards(view.term), now_us)
            wanted = self._repair.decide(self._inventory, self._placement, storage)
            if wanted is not None:
                self._place_at = now_us + _PLACE_REPEAT_US
                effects.append(ProposePlacement(wanted))
        return effects

    # what others see

    @property
    def reaches_quorum(self) -> bool:
        """Whether a majority of the current view's sequencers answers: without it nobody can end a term."""
        sequencers = self.chain.current.sequencers if self.chain else ()
        return 2 * len(set(sequencers).intersection(self.heartbeats.silent())) < max(1, len(sequencers))

    def status(self) -> dict[str, Any]:
        """What it sees and does, as JSON values."""
        view = self.chain.current if self.chain else None
        change = self._change
        storage = self._storage(self._now_us) if view is not None else None
        repair = self._repair.status(self._inventory, self._placement, storage) if storage is not None else {}
        degraded = []
        if storage is not None and len(storage.live) < storage.replicas:
            degraded.append(f"{len(storage.live)} storage nodes answer, and {storage.replicas} replicas are wanted")
            if view is not None and len(storage.live) < view.write_quorum:
                degraded[-1] += f": nothing can be appended until {view.write_quorum} of them do"
        if repair and repair["shards_lacking_replicas"]:
            degraded.append(f"{repair['shards_lacking_replicas']} shards lack a replica: there is no node to put it on")
        return {
            "node": self.node,
            "is_leader": self._leadership.is_leader,
            "is_connected": self._leadership.is_connected,
            "phase": self.phase.value,
            "step": change.step.value if change is not None else "",
            "waiting": change.lost if change is not None and change.lost else self._waiting,
            "term": view.term if view is not None else 0,
            "sequencers": list(view.sequencers) if view is not None else [],
            "primaries": list(view.primaries) if view is not None else [],
            "former_sequencers_needed": self._still_needed(),
            "leading_engines": {str(log): engine for log, engine in self._loads.leaders.items()},
            "silent": self.heartbeats.silent(),
            "fencing": {str(incarnation): count for incarnation, count in self._fences.fencing.items()},
            "repair": repair,
            "degraded": degraded,
            "changes": [
                {"term": done.term, "reason": done.reason, "duration_ms": done.duration_us / 1000} for done in self.won
            ],
        }

    def _still_needed(self) -> list[NodeId]:
        """Sequencers that no view names any more but that keep ended terms which no checkpoint covers."""
        if not self.chain:
            return []
        current = self.chain.current
        pongs = [self.heartbeats.pong(node) for node in current.sequencers]
        kept_from = max((pong.kept_from_term for pong in pongs if pong is not None), default=0)
        named = {node for view in self.chain if view.term >= kept_from for node in view.sequencers}
        return by_name(named - set(current.sequencers))
