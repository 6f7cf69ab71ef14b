"""A model of ZooKeeper as the processes' coordinator sees it, at the level of `boki.coordination.zookeeper`.

Writes are linearizable compare-and-sets. What is wrong with it is what is wrong with the real one: a session is lost
when nothing was heard of its process for a while; a connection can break with a write done or not done, and the answer
then comes after a reconnection; watches come late, and what they show may be old. Leadership is told late, so two
controllers may believe that they lead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from boki.log.ids import NodeId
from boki.log.membership import ClusterPlan, Member, Membership, Placement, Role
from boki.log.view import View
from boki.protocol.messages import InstallMembership, InstallPlacement, InstallPlan, InstallView
from boki.verify.sim.clockwork import Clockwork

News = InstallView | InstallMembership | InstallPlacement | InstallPlan
NAME: Final = "zookeeper"


@dataclass(slots=True)
class Session:
    """One process's session, whatever roles it plays.

    `hear` takes news; `on_leadership` and `on_state` what their names say.
    """

    number: int
    node: NodeId
    hear: Callable[[News], None]
    on_leadership: Callable[[bool], None]
    on_state: Callable[[str], None]
    roles: frozenset[Role]
    is_over: bool = False
    is_reachable: bool = True
    silent_since_us: int = 0
    told_terms: int = 0
    told: dict[str, int] = field(default_factory=dict)
    is_following: bool = False
    is_candidate: bool = False
    is_told_leader: bool = False
    pending: set[str] = field(default_factory=set)


class Coordinator:
    """The ensemble, which never fails as a whole. `is_cut(node)`: it does not hear that node, nor the node it."""

    def __init__(
        self,
        clock: Clockwork,
        plan: ClusterPlan,
        is_cut: Callable[[str], bool],
        session_us: int,
        doubt: float,
        stale: float,
    ) -> None:
        self.clock = clock
        self.views: list[View] = []
        self.placement = Placement()
        self.plan = plan
        self.members: dict[NodeId, tuple[int, Member]] = {}
        self.membership_number = 0
        self.doubt = doubt
        self.stale = stale
        self.slow_us = 0
        """So much longer everything takes that is asked for: the ensemble's disks are slow."""
        self.uninformed: set[NodeId] = set()
        """Names of processes that are not told of changes of the membership, until they are removed here."""
        self.on_placement: list[Callable[[], None]] = []
        """Called when closed shards are to be on other nodes than before."""
        self._is_cut = is_cut
        self._session_us = session_us
        self._sessions: dict[int, Session] = {}
        self._session_number = 0
        self._incarnation = 0
        self._watch()

    # sessions

    def open(
        self,
        node: NodeId,
        roles: frozenset[Role],
        hear: Callable[[News], None],
        on_leadership: Callable[[bool], None],
        on_state: Callable[[str], None],
    ) -> Session:
        """A process comes; it must be able to reach the ensemble."""
        self._session_number += 1
        session = Session(self._session_number, node, hear, on_leadership, on_state, roles)
        self._sessions[session.number] = session
        return session

    def close(self, session: Session) -> None:
        """The process ends its session in good order."""
        self._end(session)

    def lose(self, session: Session) -> None:
        """The process has died: nobody will say so, the session ends by its timeout."""
        session.hear, session.on_leadership, session.on_state = _ignore, _ignore, _ignore
        session.is_reachable = False
        session.silent_since_us = session.silent_since_us or self.clock.now_us

    def expire(self, session: Session) -> None:
        """The ensemble gives up the session, justified or not."""
        if not session.is_over:
            self._end(session)
            self.clock.after(self._delay(), self._tell_expiry, session)

    def lose_touch(self, session: Session) -> None:
        """The connection breaks at this moment; both are silent until they hear each other again."""
        if not session.is_over and not session.silent_since_us:
            session.silent_since_us = self.clock.now_us
            session.on_state("suspended")

    def _end(self, session: Session) -> None:
        session.is_over = True
        self._sessions.pop(session.number, None)
        gone = [node for node, (number, _) in self.members.items() if number == session.number]
        for node in gone:
            del self.members[node]
        if gone:
            self._changed("membership")
        self._elect()

    def _watch(self) -> None:
        """What the ensemble hears of its sessions, 20 times a second."""
        self.clock.after(50_000, self._watch)
        for session in list(self._sessions.values()):
            is_heard = session.is_reachable and not self._is_cut(session.node)
            if is_heard:
                if session.silent_since_us:
                    session.silent_since_us = 0
                    session.on_state("connected")
                    self._tell_all(session)
            elif not session.silent_since_us:
                session.silent_since_us = self.clock.now_us
                session.on_state("suspended")
            elif self.clock.now_us - session.silent_since_us > self._session_us:
                self._end(session)
                self._tell_expiry(session)

    def _tell_expiry(self, session: Session) -> None:
        """A process learns that its session has ended when it is heard again."""
        if session.is_reachable and self._is_cut(session.node):
            self.clock.after(100_000, self._tell_expiry, session)
        else:
            session.on_state("expired")

    def _delay(self) -> int:
        return 500 + int(self.clock.schedule_rng.random() * 5_000)

    # asking

    def next_incarnation(self) -> int:
        """A number that was never given out before."""
        self._incarnation += 1
        return self._incarnation

    def register(self, session: Session, member: Member) -> None:
        """Let the process be seen."""
        if not session.is_over:
            self.members[member.node] = (session.number, member)
            self._changed("membership")

    def unregister(self, session: Session, node: NodeId) -> None:
        """One of the session's roles is not to be seen any more."""
        if self.members.get(node, (0, None))[0] == session.number:
            del self.members[node]
            self._changed("membership")

    def ask(self, session: Session, request: Callable[[], Any], answer: Callable[[Any], None]) -> None:
        """Carry out a request, which may be repeated without harm, and answer it as long as the session lives.

        If the connection breaks, the request was carried out or not; it is repeated after the reconnection.
        """
        if session.is_over:
            return
        if session.silent_since_us or not session.is_reachable:
            self.clock.after(100_000, self.ask, session, request, answer)
            return
        rng = self.clock.schedule_rng
        # controllers write, where doubt hurts most
        doubt = 2 * self.doubt if Role.CONTROLLER in session.roles else self.doubt
        if doubt and rng.random() < min(doubt, 0.8):
            is_done = rng.random() < 0.5
            self.clock.note(f"what {session.node} asks of {NAME} is {'' if is_done else 'not '}done, and not answered")
            if is_done:
                self.clock.sometimes("coordinator write in doubt was done")
                request()
            self.clock.after(int(rng.random() * 1_500_000), self.ask, session, request, answer)
            return
        self.clock.after(self._delay() + self.slow_us, self._carry_out, session, request, answer)

    def _carry_out(self, session: Session, request: Callable[[], Any], answer: Callable[[Any], None]) -> None:
        if session.is_over:
            return
        value = request()
        self.clock.after(self._delay(), self._answer, session, answer, value)

    def _answer(self, session: Session, answer: Callable[[Any], None], value: Any) -> None:
        if session.is_over or not session.is_reachable:
            return
        if session.silent_since_us:
            self.clock.after(100_000, self._answer, session, answer, value)
        else:
            answer(value)

    # the requests

    def install(self, view: View) -> bool:
        """Make the view the current one; False if another of that term came first, or the one before is missing."""
        if view.term == len(self.views) + 1:
            self.views.append(view)
            self._changed("views")
            return True
        if view.term <= len(self.views) and self.views[view.term - 1] == view:
            return True
        self.clock.sometimes("a view lost the compare-and-set")
        return False

    def place(self, placement: Placement) -> bool:
        """Replace the placement if it has not changed since."""
        if placement.version == self.placement.version:
            if not self.plan.draining:
                self.clock.sometimes("a shard that lacked a replica was given another node")
            self.placement = msgspec.structs.replace(placement, version=placement.version + 1)
            self._changed("placement")
            for hear in list(self.on_placement):
                hear()
            return True
        # a repeated write finds its own
        return placement.version + 1 == self.placement.version and placement.moved == self.placement.moved

    def change_plan(self, **changes: Any) -> None:
        """The operator wants something else."""
        self.clock.note(f"the plan changes: {', '.join(changes)}", changes)
        self.plan = msgspec.structs.replace(self.plan, version=self.plan.version + 1, **changes)
        self._changed("plan")
        if "draining" in changes:
            self._changed("membership")

    def views_after(self, term: int) -> InstallView | None:
        """What a process that knows that term has missed."""
        news = tuple(self.views[term:])
        return InstallView(news) if news else None

    # telling

    def _changed(self, what: str) -> None:
        if what == "membership":
            self.membership_number += 1
        for session in self._sessions.values():
            self._schedule(session, what)

    def follow(self, session: Session) -> None:
        """Tell the process all there is, and from now on what changes."""
        session.is_following = True
        self._tell_all(session)
        session.is_candidate = Role.CONTROLLER in session.roles
        self._elect()

    def _tell_all(self, session: Session) -> None:
        for what in ("views", "membership", "placement", "plan"):
            self._schedule(session, what)

    def _schedule(self, session: Session, what: str) -> None:
        if what in session.pending or session.silent_since_us or not session.is_following:
            return
        session.pending.add(what)
        delay_us = self._delay()
        if self.stale and self.clock.schedule_rng.random() < self.stale:
            delay_us += int(self.clock.schedule_rng.random() ** 2 * 2_000_000)
        self.clock.after(delay_us, self._tell, session, what)

    def _tell(self, session: Session, what: str) -> None:
        if what == "membership" and session.node in self.uninformed:
            self.clock.after(50_000, self._tell, session, what)
            return
        session.pending.discard(what)
        if session.is_over or not session.is_reachable or session.silent_since_us:
            return
        match what:
            case "views":
                news: News | None = self.views_after(session.told_terms)
                session.told_terms = len(self.views)
            case "membership":
                news = InstallMembership(self.membership())
            case "placement":
                news = InstallPlacement(self.placement)
            case _:
                news = InstallPlan(self.plan)
        if news is not None:
            session.hear(news)

    def membership(self) -> Membership:
        """Who is registered."""
        members = tuple(member for _, (_, member) in sorted(self.members.items()))
        return Membership(number=self.membership_number, members=members, draining=self.plan.draining)

    # leadership

    def _elect(self) -> None:
        """The controller whose session is the oldest leads; each learns of it in its own time."""
        first = min((s.number for s in self._sessions.values() if s.is_candidate), default=0)
        for session in self._sessions.values():
            if session.is_candidate and session.is_told_leader != (session.number == first):
                session.is_told_leader = session.number == first
                self.clock.after(self._delay(), self._tell_leader, session)

    @staticmethod
    def _tell_leader(session: Session) -> None:
        if not session.is_over:
            session.on_leadership(session.is_told_leader)


def _ignore(*_arguments: Any) -> None:
    """Nobody listens."""
