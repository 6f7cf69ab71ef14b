"""The ZooKeeper client: the coordinator of a cluster, in which stands what all processes agree on.

```
/format             cluster id and data version            /views/0000000001    one view a term, written once
/incarnations       the last number given out              /placement, /plan    replaced by compare-and-set
/nodes/<name>       who is here (ephemeral)                /election, /index    ephemeral: who leads, who has an index
```

Every write is idempotent, or is read back when a lost connection left it in doubt: a view is written once and never
changed, so whoever finds its own there has won; placement and plan carry the token of whoever wrote them.

Who may stand under `/nodes` is decided in `boki.coordination.entries`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, TypeVar
from uuid import uuid4

import msgspec
from kazoo.exceptions import BadVersionError, NoAuthError, NodeExistsError, NoNodeError

from boki.config.loading import ZooKeeperAccess
from boki.coordination.claims import Claims
from boki.coordination.entries import Entries, Registration
from boki.coordination.refresher import Refresher
from boki.coordination.session import Node, SessionState, Unsure, ZooKeeperSession, quietly
from boki.coordination.values import decode, encode, writer_of
from boki.errors import ConfigError, VersionTooNew
from boki.log.ids import NodeId, Term
from boki.log.membership import ClusterPlan, Member, Membership, Placement
from boki.log.view import View
from boki.protocol.messages import InstallMembership, InstallPlacement, InstallPlan, InstallView

_log = logging.getLogger("boki.launch.zookeeper")
_FETCH_AT_ONCE: Final = 100
_FOLDERS: Final = ("/nodes", "/views", "/election", "/index")
_VALUES: Final = ("/format", "/incarnations", "/placement", "/plan")
_OPEN: Final = ZooKeeperAccess()
_T = TypeVar("_T")
News = InstallView | InstallMembership | InstallPlacement | InstallPlan


class _Format(msgspec.Struct, frozen=True):
    """What is fixed when a cluster is made."""

    cluster: str
    durability: str


class ZooKeeperCoordinator:
    """What one process knows and says of the cluster. Made by `connect`; `follow` begins to tell what changes.

    `tell` is given the messages that cores take (`InstallView` with new views only, membership, placement, plan),
    `on_leadership` whether this process leads the controllers, `on_session` the state of the session. All are called
    in the loop. After `SessionState.EXPIRED` nothing more comes: close this one and begin again.
    """

    def __init__(self, home: str) -> None:
        self.cluster_id = ""
        self.durability = ""
        self.home = home
        self.tell: Callable[[News], None] = _ignore
        self.on_leadership: Callable[[bool], None] = _ignore
        self.on_session: Callable[[SessionState], None] = _ignore
        self.on_failure: Callable[[Exception], None] = _ignore
        self._session: ZooKeeperSession
        self._claims: Claims
        self._entries: Entries
        self._session_s = 0.0
        self._views: dict[Term, View] = {}
        self._told_term: Term = 0
        self._registrations: dict[str, Registration] = {}
        self._membership = Membership(number=0)
        self._plan = ClusterPlan()
        self._is_leader = False
        self._registered: Registration | None = None
        self._entry = asyncio.Lock()
        """Held while this node's own entry is made again, or deleted."""
        self._following: list[Refresher] = []

    @classmethod
    async def connect(
        cls,
        hosts: str,
        chroot: str,
        *,
        home: str = "",
        durability: str = "fsync",
        session_s: float = 4.0,
        timeout_s: float = 20.0,
        access: ZooKeeperAccess = _OPEN,
    ) -> ZooKeeperCoordinator:
        """Open a session and learn the cluster's id; `home` names the data directory, "" for who registers nothing.

        Whoever comes first makes the cluster, with that durability; to others `coordinator.durability` tells it.
        `Unavailable` if ZooKeeper cannot be reached, `VersionTooNew` if a newer Boki has written there,
        `ConfigError` if the cluster has another digest.
        """
        self = cls(home or uuid4().hex)
        self._session_s = session_s
        root = "/" + chroot.strip("/")
        try:
            self._session = await ZooKeeperSession.open(
                hosts, root, session_s=session_s, timeout_s=timeout_s, on_state=self._hear, access=access
            )
            await self._begin(durability)
        except NoAuthError:
            raise ConfigError(
                f"ZooKeeper at {hosts} does not let this node read {root}: zookeeper_access.digest is not the digest "
                "of the cluster there",
                field="zookeeper_access.digest",
            ) from None
        return self

    async def _begin(self, durability: str) -> None:
        self._claims = Claims(self._session, self.home)
        self._entries = Entries(self._session, self.home, 2 * self._session_s + 1)
        try:
            for path in _FOLDERS:
                await self._session.ensure(path)
            stored = await self._create_once("/format", _Format(uuid4().hex, durability), _Format)
            self.cluster_id, self.durability = stored.cluster, stored.durability
            await self._create_once("/incarnations", 0, int)
            await self._create_once("/placement", Placement(), Placement)
            views = [f"/views/{name}" for name in await self._session.children("/views")]
            await self._session.protect([*_FOLDERS, *_VALUES, *views])
        except BaseException:
            await self.close()
            raise

    @property
    def state(self) -> SessionState:
        """Whether ZooKeeper hears this process."""
        return self._session.state

    @property
    def membership(self) -> Membership:
        """Who is registered, as last seen."""
        return self._membership

    async def rest(self) -> None:
        """Tell nothing any more, and keep the session for the next `follow`, which reports everything once."""
        self.tell = self.on_leadership = self.on_session = self.on_failure = _ignore
        for refresher in self._following:
            await refresher.stop()
        self._registered = None
        self._following, self._told_term, self._is_leader = [], 0, False
        self._registrations, self._membership = {}, Membership(number=0)

    async def close(self) -> None:
        """End the session: registration, candidacy and slot go with it. Nothing is told any more."""
        await self.rest()
        await self._session.close()

    # numbers and views

    async def next_incarnation(self) -> int:
        """A number that was never given out before."""
        while True:
            node, number = await self._get("/incarnations", int)
            try:
                await self._session.set("/incarnations", encode(number + 1), node.version)
            except (BadVersionError, Unsure):
                continue  # if the write in doubt has happened, its number is lost: there are enough
            return number + 1

    async def views(self) -> list[View]:
        """The chain of views, oldest first. Only those that have not been seen yet are fetched."""
        await self._fetch_views(None)
        return [self._views[term] for term in sorted(self._views)]

    async def install(self, view: View) -> bool:
        """Make `view` the current one; False if another of that term came first, or its predecessor is not there."""
        if view.term > 1 and view.term - 1 not in self._views:
            # Its predecessor alone is looked at: whatever else stands in the folder is no reason to fail.
            await self._session.sync("/views")
            if await self._find(_view_path(view.term - 1), View) is None:
                return False
        while True:
            try:
                await self._session.create(_view_path(view.term), encode(view))
            except NodeExistsError:
                stored = await self._readable(_view_path(view.term), View)
                return stored == view
            except Unsure:
                continue  # the next attempt finds what has become of this one
            return True

    async def _fetch_views(self, watch: Callable[[], None] | None) -> None:
        names = await self._session.children("/views", watch)
        missing = [name for name in names if int(name) not in self._views]
        for at in range(0, len(missing), _FETCH_AT_ONCE):
            page = missing[at : at + _FETCH_AT_ONCE]
            found = await asyncio.gather(*(self._get(f"/views/{name}", View) for name in page), return_exceptions=True)
            for name, view in zip(page, found, strict=True):
                if isinstance(view, BaseException):
                    raise view
                self._views[int(name)] = view[1]

    # placement and plan: compare-and-set

    async def placement(self) -> Placement:
        """Where closed shards have moved. Its `version` is the one that the next `place` must be based on."""
        node, placement = await self._get("/placement", Placement)
        return msgspec.structs.replace(placement, version=node.version)

    async def place(self, placement: Placement) -> bool:
        """Replace the placement if it still has `placement.version`; False if it has changed since."""
        return await self._compare_and_set("/placement", placement, placement.version)

    async def plan(self) -> ClusterPlan | None:
        """What the operator wants; None before anybody has said so."""
        try:
            node, plan = await self._get("/plan", ClusterPlan)
        except NoNodeError:
            return None
        return msgspec.structs.replace(plan, version=node.version)

    async def wait_for_plan(self) -> ClusterPlan:
        """The plan, as soon as a controller has made one."""
        changed = asyncio.Event()
        while True:
            changed.clear()
            if "plan" in await self._session.children("", changed.set) and (plan := await self.plan()) is not None:
                return plan
            await changed.wait()

    async def ensure_plan(self, plan: ClusterPlan) -> ClusterPlan:
        """The plan; `plan` becomes it if there is none."""
        await self._create_once("/plan", plan, ClusterPlan)
        current = await self.plan()
        assert current is not None, "plans are replaced, never removed"
        return current

    async def change_plan(self, plan: ClusterPlan) -> bool:
        """Replace the plan if it still has `plan.version`; False if it has changed since."""
        return await self._compare_and_set("/plan", plan, plan.version)

    async def _compare_and_set(self, path: str, value: Any, version: int) -> bool:
        writer = uuid4().hex
        data = encode(value, writer)
        is_unsure = False
        while True:
            try:
                await self._session.set(path, data, version)
            except Unsure:
                is_unsure = True  # the next attempt finds out
            except (BadVersionError, NoNodeError):
                if not is_unsure:
                    return False
                node = await self._session.get(path)
                try:
                    return node.version == version + 1 and writer_of(path, node.data) == writer
                except (ConfigError, VersionTooNew):
                    return False
            else:
                return True

    # who is here

    async def register(self, *members: Member) -> None:
        """Be seen by everybody in these roles of one node, or be seen again with other roles or properties.

        `ConfigError` if another node of that name, or one that plays one of these roles, stays for longer than a
        session. One from our own data directory cannot live any more: its entry is removed.
        """
        registration = Registration(self.home, members[0], members[1:])
        self._registered = None  # not before it stands there
        await self._entries.register(registration)
        self._registered = registration

    async def unregister(self) -> None:
        """Be seen no more, before the session ends."""
        async with self._entry:  # an entry that is just being made again must not outlive this
            was, self._registered = self._registered, None
            if was is not None:
                await self._entries.remove(was)

    async def claim_index_slot(self, node: NodeId, count: int) -> int | None:
        """One of `count` slots for engines that hold the index, for as long as the session lasts; None: all taken."""
        return await self._claims.take_slot(node, count)

    async def release_index_slots(self, nodes: Collection[NodeId]) -> list[NodeId]:
        """Free the slots of these engines, whatever they think; which of them had one."""
        return await self._claims.release_slots(nodes)

    async def watch_index_slots(self, on_change: Callable[[], None]) -> Callable[[], Awaitable[None]]:
        """Tell whenever a slot is taken or let go, and once at the start. → what ends that"""

        async def look(watch: Callable[[], None]) -> None:
            await self._session.children("/index", watch)
            on_change()

        refresher = Refresher(look, self._broken)
        self._following.append(refresher)
        await refresher.start()

        async def stop() -> None:
            if refresher in self._following:
                self._following.remove(refresher)
            await refresher.stop()

        return stop

    # who leads the controllers

    async def campaign(self, node: NodeId) -> None:
        """Stand for leader until the session ends, in the place of former incarnations from the same data directory.

        `follow` must have been called; `on_leadership` tells the rest.
        """
        await self._claims.stand(node)
        self._look_again()

    async def stand_down(self, node: NodeId) -> bool:
        """Let the other candidates lead first. False if there are none: nothing has changed."""
        has_others = await self._claims.stand_last(node)
        self._look_again()
        return has_others

    async def withdraw(self) -> None:
        """Be no candidate any more: another one leads at once, and not when this session has ended."""
        await self._claims.withdraw()
        self._look_again()

    # following

    async def follow(self, *, election: bool = False) -> None:
        """Tell what exists now, and from now on what changes. Returns when all has been told once."""
        self._following = [
            Refresher(self._refresh_views, self._broken),
            Refresher(self._refresh_plan, self._broken),
            Refresher(self._refresh_members, self._broken),
            Refresher(self._refresh_placement, self._broken),
        ]
        if election:
            self._following.append(Refresher(self._refresh_election, self._broken))
        for refresher in self._following:
            await refresher.start()

    async def _refresh_views(self, watch: Callable[[], None]) -> None:
        try:
            await self._fetch_views(watch)
        finally:
            news = tuple(self._views[term] for term in sorted(self._views) if term > self._told_term)
            if news:
                self._told_term = news[-1].term
                self.tell(InstallView(news))

    async def _refresh_members(self, watch: Callable[[], None]) -> None:
        mine = self._registered
        names = await self._session.children("/nodes", watch)
        found: dict[str, Registration] = {}
        owners: dict[str, int] = {}
        for name in names:
            try:
                registration = await self._find(f"/nodes/{name}", Registration, watch)
            except (ConfigError, VersionTooNew) as error:
                _log.error("%s: it counts as not registered", error)
                continue
            if registration is not None:
                owners[name], found[name] = registration[0].owner, registration[1]
        await self._stay_registered(mine, found)
        if self._plan.index_replicas:  # an engine whose slot was taken away does not know it yet
            slots = await self._claims.slot_owners(watch)
            found = {name: row if owners[name] in slots else row.without_index() for name, row in found.items()}
        if found != self._registrations or self._membership.number == 0:
            self._registrations = found
            self._tell_membership()

    async def _stay_registered(self, mine: Registration | None, found: dict[str, Registration]) -> None:
        """Restore this node's own entry after another client removed or changed it: it would be gone for all others.

        `mine`: what stood there before `found` was read, as far as this node knows. An entry of a later incarnation
        from the same data directory stays: this process has been succeeded, and no longer registers itself.
        """
        if mine is None or mine is not self._registered or found.get(mine.process) == mine:
            return
        _log.error("the entry of %s in ZooKeeper was removed or changed: it is made again", mine.process)
        async with self._entry:
            if mine is not self._registered or await self._entries.register(mine, unless_succeeded=True):
                return
            _log.error("a later incarnation of %s is registered: this one stays unregistered", mine.process)
            if mine is self._registered:
                self._registered = None

    def _tell_membership(self) -> None:
        members = tuple(member for _, row in sorted(self._registrations.items()) for member in row.members)
        self._membership = Membership(number=self._membership.number + 1, members=members, draining=self._plan.draining)
        self.tell(InstallMembership(self._membership))

    async def _refresh_placement(self, watch: Callable[[], None]) -> None:
        node, placement = await self._get("/placement", Placement, watch)
        self.tell(InstallPlacement(msgspec.structs.replace(placement, version=node.version)))

    async def _refresh_plan(self, watch: Callable[[], None]) -> None:
        try:
            node, plan = await self._get("/plan", ClusterPlan, watch)
        except NoNodeError:
            if "plan" in await self._session.children("", watch):  # it has just been made, or will be some time
                watch()
            return
        was, self._plan = self._plan, msgspec.structs.replace(plan, version=node.version)
        self.tell(InstallPlan(self._plan))
        if was.draining != self._plan.draining and self._membership.number:
            self._tell_membership()

    async def _refresh_election(self, watch: Callable[[], None]) -> None:
        is_leader = await self._claims.is_first(watch)
        if is_leader != self._is_leader:
            self._is_leader = is_leader
            self.on_leadership(is_leader)

    def _hear(self, state: SessionState) -> None:
        _log.log(logging.INFO if state is SessionState.CONNECTED else logging.WARNING, "ZooKeeper session: %s", state)
        self.on_session(state)
        if state is SessionState.CONNECTED:  # what changed while nobody told us
            self._look_again()

    def _look_again(self) -> None:
        for refresher in self._following:
            refresher.poke()

    def _broken(self, error: Exception) -> None:
        self.on_failure(error)

    # values

    async def _get(self, path: str, kind: type[_T], watch: Callable[[], None] | None = None) -> tuple[Node, _T]:
        node = await self._session.get(path, watch)
        return node, decode(path, node.data, kind)

    async def _find(self, path: str, kind: type[_T], watch: Callable[[], None] | None = None) -> tuple[Node, _T] | None:
        try:
            return await self._get(path, kind, watch)
        except NoNodeError:
            return None

    async def _readable(self, path: str, kind: type[_T]) -> _T | None:
        """What stands there; None, and a word in the log, if that cannot be read."""
        try:
            return (await self._get(path, kind))[1]
        except (ConfigError, VersionTooNew) as error:
            _log.error("%s", error)
            return None

    async def _create_once(self, path: str, value: _T, kind: type[_T]) -> _T:
        """What stands there; `value`, if nothing did."""
        while (found := await self._find(path, kind)) is None:
            await quietly(self._session.create(path, encode(value)))
        return found[1]


def _view_path(term: Term) -> str:
    return f"/views/{term:010d}"


def _ignore(*_arguments: Any) -> None:
    """The default listener: does nothing."""
