"""One session with the coordinator for all roles of a node.

The first role that follows begins the reading; one that comes later, or begins again, is first told what is known. The
roles of a node stand in one registration, which is written again whenever one of them comes, changes or goes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from boki.coordination.session import SessionEnded, SessionState
from boki.coordination.zookeeper import News, ZooKeeperCoordinator
from boki.log.ids import NodeId, Term
from boki.log.membership import Member, Role
from boki.log.view import View
from boki.protocol.messages import InstallMembership, InstallPlacement, InstallPlan, InstallView

WRITE_S: Final = 2.0
"""How long a node that stops tries to say so: its registration goes with its session anyway."""


class SharedCoordinator:
    """The session of one node, and what it has told. `on_news` hears everything once, before the roles do."""

    def __init__(self, coordinator: ZooKeeperCoordinator, *, election: bool, on_news: Callable[[News], None]) -> None:
        self.coordinator = coordinator
        self._election = election
        self._on_news = on_news
        self._roles: list[RoleCoordinator] = []
        self._members: dict[NodeId, Member] = {}
        self._writing = asyncio.Lock()
        self._following: asyncio.Future[None] | None = None
        self._views: dict[Term, View] = {}
        self._last: dict[type[News], News] = {}
        self._is_leader = False
        self._is_leaving = False
        self._changed = asyncio.Event()
        coordinator.tell = self._tell
        coordinator.on_leadership = self._on_leadership
        coordinator.on_session = self._on_session
        coordinator.on_failure = self._on_failure

    def join(self) -> RoleCoordinator:
        """What one incarnation of a role sees of this."""
        made = RoleCoordinator(self)
        self._roles.append(made)
        return made

    async def leave(self, role: RoleCoordinator) -> None:
        """Tell that incarnation nothing more, and remove it from the registration, with or without ZooKeeper."""
        self._roles.remove(role)
        if role.member is None or self.coordinator.state is not SessionState.CONNECTED:
            return  # the entry goes with the session, or is written again by the role's next incarnation
        self._members.pop(role.member.node, None)
        with contextlib.suppress(TimeoutError, SessionEnded):
            async with asyncio.timeout(WRITE_S):
                await self._write()

    async def announce_end(self) -> None:
        """Tell the other nodes that this one stops, so that those that do the same wait for each other."""
        self._is_leaving = True
        if self._members and self.coordinator.state is SessionState.CONNECTED:
            with contextlib.suppress(TimeoutError, SessionEnded):
                async with asyncio.timeout(WRITE_S):
                    await self._write()

    async def engines_left(self, timeout_s: float) -> None:
        """Wait until no other node that stops has an engine any more: it needs what keeps the log until it is gone.

        Nodes that are stopped one after the other do not wait, nor does one that hears of no other any more.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.coordinator.state is not SessionState.EXPIRED and any(
                    member.role is Role.ENGINE and member.is_leaving and member.node not in self._members
                    for member in self.coordinator.membership.members
                ):
                    self._changed.clear()
                    await self._changed.wait()

    async def _write(self) -> None:
        async with self._writing:
            members = [
                msgspec.structs.replace(member, is_leaving=True) if self._is_leaving else member
                for member in self._members.values()
            ]
            if members:
                await self.coordinator.register(*members)
            else:
                await self.coordinator.unregister()

    async def follow(self, role: RoleCoordinator) -> None:
        """Tell that incarnation what exists, and from now on what changes."""
        if self._views:
            role.tell(InstallView(tuple(view for _, view in sorted(self._views.items()))))
        for kind in (InstallPlan, InstallMembership, InstallPlacement):
            if kind in self._last:
                role.tell(self._last[kind])
        role.is_following = True
        if self._following is None:
            self._following = asyncio.ensure_future(self.coordinator.follow(election=self._election))
        await asyncio.shield(self._following)

    async def register(self, role: RoleCoordinator, member: Member) -> None:
        """Name that role, too, in the registration."""
        role.member = self._members[member.node] = member
        await self._write()

    @property
    def is_leader(self) -> bool:
        """Whether this node's controller leads."""
        return self._is_leader

    async def close(self) -> None:
        """End the session."""
        if self._following is not None and not self._following.done():
            self._following.cancel()
        await self.coordinator.close()

    def _tell(self, news: News) -> None:
        if isinstance(news, InstallView):
            self._views |= {view.term: view for view in news.views}
        else:
            self._last[type(news)] = news
        self._changed.set()
        self._on_news(news)
        for role in list(self._roles):
            if role.is_following:
                role.tell(news)

    def _on_leadership(self, is_leader: bool) -> None:
        self._is_leader = is_leader
        for role in list(self._roles):
            role.on_leadership(is_leader)

    def _on_session(self, state: SessionState) -> None:
        self._changed.set()
        for role in list(self._roles):
            role.on_session(state)

    def _on_failure(self, error: Exception) -> None:
        for role in list(self._roles):
            role.on_failure(error)


class RoleCoordinator:
    """The coordinator for one incarnation of one role: as `boki.coordination.zookeeper.ZooKeeperCoordinator`, but
    shared.
    """

    def __init__(self, shared: SharedCoordinator) -> None:
        self.tell: Callable[[News], None] = ignore
        self.on_leadership: Callable[[bool], None] = ignore
        self.on_session: Callable[[SessionState], None] = ignore
        self.on_failure: Callable[[Exception], None] = ignore
        self.member: Member | None = None
        """As whom this incarnation stands in the registration; None: it does not."""
        self.is_following = False
        self.shared = shared
        self._watches: list[Callable[[], Awaitable[None]]] = []
        coordinator = shared.coordinator
        self.next_incarnation = coordinator.next_incarnation
        self.views = coordinator.views
        self.install = coordinator.install
        self.place = coordinator.place
        self.wait_for_plan = coordinator.wait_for_plan
        self.ensure_plan = coordinator.ensure_plan
        self.claim_index_slot = coordinator.claim_index_slot
        self.release_index_slots = coordinator.release_index_slots
        self.campaign = coordinator.campaign
        self.stand_down = coordinator.stand_down
        self.withdraw = coordinator.withdraw

    @property
    def cluster_id(self) -> str:
        """See `ZooKeeperCoordinator`."""
        return self.shared.coordinator.cluster_id

    @property
    def state(self) -> SessionState:
        """See `ZooKeeperCoordinator`."""
        return self.shared.coordinator.state

    async def follow(self) -> None:
        """See `ZooKeeperCoordinator.follow`."""
        await self.shared.follow(self)
        self.on_leadership(self.shared.is_leader)

    async def register(self, member: Member) -> None:
        """See `ZooKeeperCoordinator.register`."""
        await self.shared.register(self, member)

    async def watch_index_slots(self, on_change: Callable[[], None]) -> None:
        """See `ZooKeeperCoordinator.watch_index_slots`; the watch ends with this incarnation."""
        self._watches.append(await self.shared.coordinator.watch_index_slots(on_change))

    async def leave(self) -> None:
        """End: the incarnation hears nothing any more and is in no registration."""
        self.tell = self.on_leadership = self.on_session = self.on_failure = ignore
        for stop in self._watches:
            await stop()
        await self.shared.leave(self)


def ignore(*_arguments: Any) -> None:
    """The default listener: does nothing."""
