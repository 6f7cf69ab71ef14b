"""The processes of a simulated cluster: what `boki.node.run` and `boki.node.coordination` are to the roles of a node.

A node is one process with one session with the coordinator. It plays one role, or several: these come and go together,
hand messages to each other by reference, and lose their session at once. One role alone begins again where the log has
shut it out, under the session of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, Protocol

from boki.log.ids import NodeId, Term
from boki.log.membership import STOP_ORDER, Member, Role
from boki.log.view import View
from boki.protocol.messages import InstallMembership, InstallPlacement, InstallPlan, InstallView
from boki.verify.sim.clockwork import Clockwork
from boki.verify.sim.coordinator import Coordinator, News, Session

_BACK_US: Final = 20_000
"""After this long what has ended by itself begins again."""
_AGAIN_US: Final = 100_000


class Played(Protocol):
    """A role as its host sees it."""

    role: ClassVar[Role]
    name: NodeId
    core: Any
    is_up: bool
    is_paused: bool
    generation: int

    def rise(self) -> None:
        """Begin a generation, if it is down."""

    def boot(self, generation: int) -> None:
        """The coordinator can be reached: become another incarnation."""

    def fall(self, *, keeps_some: bool) -> None:
        """It is gone without a word, if it was up."""

    def rest(self, why: str) -> None:
        """End this generation in good order."""

    def drain(self) -> None:
        """It is to stop: bring to an end what is under way, and say so (`NodeHost.stopped`)."""

    def member(self) -> Member:
        """As whom others see it."""

    def hear_news(self, news: News) -> None:
        """The coordinator tells something."""

    def hear_leadership(self, is_leader: bool) -> None:
        """The session of this process leads, or does not."""

    def hear_state(self, state: str) -> None:
        """The session's connection is broken, or is there again, or the session has expired."""


class NodeHost:
    """One process, through all its runs. `is_cut`: nothing goes between it and the coordinator now."""

    def __init__(self, clock: Clockwork, coordinator: Coordinator, name: str, is_cut: Callable[[str], bool]) -> None:
        self.name = NodeId(name)
        self.roles: list[Played] = []
        self.session: Session | None = None
        self._clock = clock
        self._coordinator = coordinator
        self._is_cut = is_cut
        self._run = 0
        """The number of its session; what is told by another one comes too late."""
        self._aboard: list[Played] = []
        """Roles that have begun under this session."""
        self._following: list[Played] = []
        self._views: dict[Term, View] = {}
        self._last: dict[type[News], News] = {}
        self._is_leader = False
        self._stopping: list[Played] | None = None
        """Roles that are still to stop; None: the process does not stop."""

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stopping is not None

    @property
    def is_paused(self) -> bool:
        """Whether the process is paused."""
        return any(role.is_paused for role in self.roles)

    # coming

    def start(self) -> None:
        """Start what is down."""
        if self._stopping is None:
            for role in self.roles:
                role.rise()

    def dismiss(self, role: Played) -> None:
        """Remove a role that is down; it never comes back."""
        assert not role.is_up
        self.roles.remove(role)

    def connect(self, role: Played, generation: int) -> None:
        """Bring a role to the coordinator as soon as that can be reached; it continues from there."""
        if generation != role.generation or not role.is_up:
            return
        session = self.session
        if session is not None and session.is_over and any(other is not role for other in self._aboard):
            self._expire()
            return
        if session is None or session.is_over or not session.is_reachable:
            if self.is_paused or self._is_cut(self.name):
                self._clock.after(_AGAIN_US, self.connect, role, generation)
                return
            self._open()
        self._aboard.append(role)
        role.boot(generation)

    def _open(self) -> None:
        run = self._run = self._run + 1
        self._leave_all()
        self.session = self._coordinator.open(
            self.name,
            frozenset(role.role for role in self.roles),
            lambda news: self._tell(run, news),
            lambda is_leader: self._tell_leadership(run, is_leader),
            lambda state: self._tell_state(run, state),
        )

    def _leave_all(self) -> None:
        self._aboard.clear()
        self._following.clear()
        self._views.clear()
        self._last.clear()
        self._is_leader = False

    def register(self, role: Played) -> None:
        """Let others see that role, also when it has changed."""
        if self.session is not None:
            self._coordinator.register(self.session, role.member())

    def follow(self, role: Played) -> None:
        """Tell that role what exists, and from now on what changes."""
        assert self.session is not None
        if self._views:
            role.hear_news(InstallView(tuple(view for _, view in sorted(self._views.items()))))
        for kind in (InstallPlan, InstallMembership, InstallPlacement):
            if kind in self._last:
                role.hear_news(self._last[kind])
        self._following.append(role)
        if not self.session.is_following:
            self._coordinator.follow(self.session)
        elif self._is_leader:
            role.hear_leadership(True)

    # what the coordinator tells

    def _tell(self, run: int, news: News) -> None:
        if run != self._run:
            return
        if len(self.roles) > 1:  # another role may begin later
            if isinstance(news, InstallView):
                self._views |= {view.term: view for view in news.views}
            else:
                self._last[type(news)] = news
        for role in list(self._following):
            role.hear_news(news)

    def _tell_leadership(self, run: int, is_leader: bool) -> None:
        if run == self._run:
            self._is_leader = is_leader
            for role in list(self._following):
                role.hear_leadership(is_leader)

    def _tell_state(self, run: int, state: str) -> None:
        if run != self._run:
            return
        if state == "expired":
            self._expire()
            return
        for role in list(self._aboard):
            role.hear_state(state)

    def _expire(self) -> None:
        """The session is over, and with it this run of all roles."""
        if len(self.roles) > 1:
            self._clock.sometimes("a session expired for all roles of a node")
        self._run += 1
        self._stopping = None
        self._leave_all()
        for role in self.roles:
            if role.is_up:
                role.hear_state("expired")
        self._clock.after(_BACK_US, self.start)

    # going

    def crash(self, *, keeps_some: bool) -> None:
        """All roles are gone without a word."""
        if not any(role.is_up for role in self.roles):
            return
        for role in self.roles:
            role.fall(keeps_some=keeps_some)
        self._stopping = None
        self._aboard.clear()
        if self.session is not None:
            self._coordinator.lose(self.session)

    def restart(self, role: Played, why: str) -> None:
        """One role begins again; the others continue."""
        if self._stopping is not None and role in self._stopping[:1]:
            self.stopped(role)
            return
        role.rest(why)
        self._leave(role)
        self._clock.after(_BACK_US, self._raise, role)

    def _leave(self, role: Played) -> None:
        self._aboard = [other for other in self._aboard if other is not role]
        self._following = [other for other in self._following if other is not role]
        if self.session is None or self.session.is_over:
            return
        if len(self.roles) == 1:
            self._coordinator.close(self.session)
            return
        self._coordinator.unregister(self.session, role.name)
        if self._stopping is None:
            self._clock.sometimes("a role of a node began again, and the others went on")

    def _raise(self, role: Played) -> None:
        """The process may have died meanwhile: then all its roles come back together."""
        is_there = self.roles == [role] or (role in self.roles and any(each.is_up for each in self.roles))
        if is_there and (self._stopping is None or role in self._stopping):
            role.rise()

    def stop(self) -> None:
        """SIGTERM: the roles stop one after the other, in the order of production, and then all come back."""
        if self.is_paused or self._stopping is not None:
            return
        if len(self.roles) == 1:
            if self.roles[0].core is not None:
                self.roles[0].drain()
            return
        roles = [role for kind in STOP_ORDER for role in self.roles if role.role is kind and role.is_up]
        if roles and self.session is not None:
            self._stopping = roles
            for role in self._aboard:
                if role.core is not None:
                    self.register(role)  # it is leaving
            self._stop_next(roles)

    def stopped(self, role: Played) -> None:
        """That role has ended what was under way, as it was told to."""
        if self._stopping is None:
            self.restart(role, "it was told to")
        elif role in self._stopping[:1]:
            del self._stopping[0]
            role.rest("it was told to")
            self._leave(role)
            self._stop_next(self._stopping)

    def _stop_next(self, stopping: list[Played]) -> None:
        if stopping is not self._stopping:
            return
        if self.is_paused:
            self._clock.after(_BACK_US, self._stop_next, stopping)
        elif not stopping:
            self._clock.sometimes("a node stopped, one role after the other")
            self._stopping = None
            if self.session is not None:
                self._coordinator.close(self.session)
            self._clock.after(_BACK_US, self.start)
        elif stopping[0].core is None:
            self.stopped(stopping[0])
        else:
            stopping[0].drain()
