"""One incarnation of one role: from its start under a session with the coordinator to the end of that session, or
earlier.

What all roles share stands here: the disk around the core, what the coordinator tells on its way to the core, the
registration, the status, and the watch over it all. What differs is in the methods that roles override. Links and
session are the node's (`boki.node.run`), which may play several roles.

An incarnation ends in one of these ways. *Stopped*: it was told to, and has drained. *Expired*: the coordinator gave it
up, so others may act as if it were dead. *Fenced*: the log itself has shut this incarnation out. *Stale*: what its
index lacks is no longer kept anywhere, and a newer one must be taken. After these three the role begins again, as
another incarnation where that is one of the process. *Promoted*, *demoted*: it has drained, and begins again as
something more, or less. *Failed*: its disk, or its code; the process ends, with all roles of the node.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import asdict
from enum import StrEnum
from importlib.metadata import version
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

import msgspec

from boki.config.node import NodeConfig
from boki.coordination.refresher import UNREADABLE
from boki.coordination.session import SessionEnded, SessionState
from boki.coordination.zookeeper import News
from boki.errors import StoreFailed
from boki.host.clock import beat_delay_s
from boki.host.disk import Disk
from boki.host.host import Host
from boki.host.links import Diversion, NodeLinks
from boki.host.redo import RedoMissing
from boki.host.rocksdb import memory_of
from boki.log.ids import NodeId
from boki.log.membership import Member, Role
from boki.log.metalog import VERSION as ENTRY_VERSION
from boki.net.notices import LaneCounts
from boki.net.traffic import Lane
from boki.node.common_log import CommonLog
from boki.node.coordination import RoleCoordinator, ignore
from boki.node.home import Home
from boki.node.stopping import NodeStop
from boki.node.watchdog import StallWatch
from boki.protocol.call_messages import AskStatus, TellStatus
from boki.protocol.effects import Core, DiskUnreadable, Put, RoleEffect
from boki.protocol.follower import COORDINATOR
from boki.protocol.messages import FetchView, InstallView

_log = logging.getLogger("boki.node")
_INCARNATION_KEY: Final = b"n"
_WATCH_S: Final = 0.5
ConfigType = TypeVar("ConfigType", bound=NodeConfig)


class Ending(StrEnum):
    """How an incarnation has ended."""

    STOPPED = "stopped"
    EXPIRED = "expired"
    FENCED = "fenced"
    STALE = "stale"
    PROMOTED = "promoted"
    DEMOTED = "demoted"
    FAILED = "failed"


class PeerLinks(NodeLinks, Protocol):
    """Links to other processes."""

    lanes: dict[str, str]
    """Where this process listens, by lane."""
    machine: str
    """What machine that is, for others that run there, too."""
    counts: dict[Lane, LaneCounts]
    """What each lane has done."""
    on_lost: Callable[[], None]
    """Is called when a connection to another process has ended."""

    def join(self, node: NodeId, incarnation: int) -> None:
        """Speak and be heard as that node, too."""

    def queued_bytes(self, lane: Lane) -> int:
        """What waits for others."""


class RoleIncarnation(Generic[ConfigType]):
    """One incarnation. `run` begins it and returns how it has ended; `close` must be called in any case."""

    role: ClassVar[Role]
    DIVERTED: ClassVar[tuple[type, ...]] = (AskStatus,)
    """Messages to this node that are for its shell and not for its core."""
    HAS_DISK_INCARNATION: ClassVar[bool] = False
    """Whether the incarnation is that of the disk, and not of the process."""

    def __init__(
        self,
        config: ConfigType,
        home: Home,
        coordinator: RoleCoordinator,
        links: PeerLinks,
        host: NodeId,
        common_log: CommonLog | None,
        node_stop: NodeStop,
    ) -> None:
        """`host`: the node that plays this role among others; empty: it plays no other."""
        self.config = config
        self.node = config.node
        self.coordinator = coordinator
        self.incarnation = 0
        self.is_registered = False
        self.is_at_work = False
        self.disk: Disk | None = None
        self.host: Host | None = None
        self.links = links
        self.common_log = common_log
        self.node_stop = node_stop
        self.diversion = Diversion(links, self.DIVERTED, {COORDINATOR: self._on_question})
        self._host_name = host
        self._home = home
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[Ending] = self._loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_fetching_views = False
        self._is_closing = False
        self.parts = AsyncExitStack()
        """What is to be closed in the end."""
        self.parts.callback(self._close_disk)
        self.parts.push_async_callback(coordinator.leave)
        self._stalls = StallWatch(self.node, config.stall_s)

    # what roles override

    def make_core(self) -> Core[Any] | None:
        """The role's core over `self.disk`; None for a role without one."""
        return None

    def carry_out(self, effect: RoleEffect) -> None:
        """What the core asks of its role's shell."""
        raise AssertionError(f"{self.node} has no use for {effect!r}")

    def divert(self, sender: NodeId, message: Any) -> None:
        """A message of `DIVERTED`."""
        if isinstance(message, AskStatus):
            status = msgspec.json.encode(self.status(), enc_hook=str)
            self.links.send(self.node, sender, TellStatus(message.request, status))

    def member(self) -> Member:
        """As whom others see this node."""
        return Member(
            node=self.node,
            role=self.role,
            incarnation=self.incarnation,
            lanes=dict(self.links.lanes),
            machine=self.links.machine,
            host=self._host_name,
            entry_version=ENTRY_VERSION,
        )

    async def serve(self) -> None:
        """What the role does once it is registered. Returns when it is fully at work."""

    async def drain(self) -> None:
        """Stop in good order: what is under way ends, what would be missed is saved."""

    def role_status(self) -> dict[str, Any]:
        """What an operator wants to know of the role, as JSON values."""
        return {}

    def on_news(self, news: News) -> None:
        """The coordinator tells something."""
        if self.host is not None:
            self.host.deliver(COORDINATOR, news)

    def on_session(self, state: SessionState) -> None:
        """The session with the coordinator has changed. While it is suspended all continues in the current view."""
        if state is SessionState.EXPIRED:
            self.end(Ending.EXPIRED)

    # the course of an incarnation

    async def run(self, stop: asyncio.Event) -> Ending:
        """Begin, take part until `stop` is set or something ends the incarnation, and drain."""
        stopping: asyncio.Future[Any] = asyncio.create_task(stop.wait())
        begun: asyncio.Future[Any] = asyncio.create_task(self._begin())
        ended: asyncio.Future[Any] = self._ended
        try:
            await asyncio.wait({begun, stopping, ended}, return_when=asyncio.FIRST_COMPLETED)
            if begun.done():
                begun.result()
                await asyncio.wait({stopping, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not self._ended.done():
                begun.cancel()
                await self.drain()
                return Ending.STOPPED
            if self._ended.result() in (Ending.PROMOTED, Ending.DEMOTED):
                await self.drain()
            return self._ended.result()
        except SessionEnded:
            return Ending.EXPIRED
        except StoreFailed as error:
            _log.critical("%s: %s", self.node, error)
            return Ending.FAILED
        except RedoMissing as error:
            _log.critical(
                "%s does not start: %s. Do not move %s away: nothing in it is damaged, and what it lacks here may be "
                "nowhere else. See docs/operations.md, 'From separate roles to nodes'",
                self.node,
                error,
                self._home.path,
            )
            return Ending.FAILED
        except DiskUnreadable as error:
            _log.critical(
                "%s does not start: its disk cannot be read (%s). If other nodes have what it held, move %s away and "
                "start it again, one node at a time: it begins with an empty directory, and they fill it. See "
                "docs/operations.md, 'A damaged disk'",
                self.node,
                error,
                self._home.path,
            )
            return Ending.FAILED
        finally:
            for task in (begun, stopping):
                task.cancel()
            await asyncio.gather(begun, stopping, return_exceptions=True)

    def end(self, ending: Ending) -> None:
        """The incarnation is over; the first reason counts."""
        if not self._ended.done():
            self._ended.set_result(ending)

    async def _begin(self) -> None:
        self.coordinator.on_session = self.on_session
        self.coordinator.on_failure = self._on_coordinator_failure
        if self.coordinator.state is SessionState.EXPIRED:
            raise SessionEnded("the session has ended before the node began")
        self._home.bind(self.coordinator.cluster_id)
        await self.choose()
        await self._open_disk()
        self.links.join(self.node, self.incarnation)
        self.parts.callback(self.links.detach, self.node)
        self.diversion.divert(self.divert)
        core = self.make_core() if self.disk is None else self.disk.restore(self.make_core)
        if core is not None:
            self.host = Host(self.node, core, self.diversion, self._loop, disk=self.disk, carry_out=self.carry_out)
            self.parts.callback(self.host.stop)
        self.parts.push_async_callback(self._cancel_tasks)
        self.coordinator.tell = self.on_news
        await self.prepare()
        await self.register()
        self.spawn(self._watch())
        _log.info("%s: incarnation %d takes part", self.node, self.incarnation)
        await self.serve()
        self.is_at_work = True
        _log.info("%s: at work", self.node)

    async def choose(self) -> None:
        """What must be known before the core is made."""

    async def prepare(self) -> None:
        """Learn from the coordinator what exists, before anybody learns of this node."""
        await self.coordinator.follow()

    async def register(self) -> None:
        """Be seen by the others, or be seen again with other properties."""
        await self.coordinator.register(self.member())
        self.is_registered = True

    async def _open_disk(self) -> None:
        if not self.HAS_DISK_INCARNATION:
            self.incarnation = await self.coordinator.next_incarnation()
            return
        disk = self.open_disk(synced=self.config.durability == "fsync")
        stored = disk.get(_INCARNATION_KEY)
        if stored is None:
            self.incarnation = await self.coordinator.next_incarnation()
            disk.store_now([Put(_INCARNATION_KEY, str(self.incarnation).encode())])
        else:
            self.incarnation = int(stored)

    def open_disk(self, *, synced: bool = True) -> Disk:
        """Open the node's database. `DiskUnreadable` if that fails."""
        return self.make_disk(synced=synced)

    def make_disk(
        self,
        *,
        synced: bool,
        reserve_bytes: int = 0,
        has_guests: bool = False,
        beside: Disk | None = None,
        shares_log: bool = False,
    ) -> Disk:
        """What `open_disk` opens: see `Disk`."""
        self.disk = Disk(
            self._home.disk,
            self._loop,
            on_failure=self._on_disk_failure,
            reserve_bytes=reserve_bytes,
            synced=synced,
            has_guests=has_guests,
            beside=beside,
            shares_log=shares_log,
            memory=memory_of(self.role.value, self.config.write_buffer_bytes),
        )
        return self.disk

    async def close(self) -> None:
        """Take part in nothing any more, and drop everything: the last made goes first, whatever fails."""
        self._is_closing = True
        self.coordinator.tell = ignore
        try:
            await self.parts.aclose()
        except Exception:  # noqa: BLE001 - parts of all kinds; what failed is in the log, and the rest is closed
            _log.exception("%s: not everything could be closed", self.node)

    async def _cancel_tasks(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _close_disk(self) -> None:
        if self.disk is not None:
            self.disk.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a background task; it ends with the incarnation."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None or isinstance(error, SessionEnded):
            return
        _log.critical("%s has stopped: %r", self.node, error, exc_info=error)
        self.end(Ending.FAILED)

    # what goes wrong

    def _on_disk_failure(self, error: StoreFailed) -> None:
        if self.host is not None:
            self.host.fail(error)
        else:
            _log.critical("%s: %s", self.node, error)
        self.end(Ending.FAILED)

    def _on_coordinator_failure(self, error: Exception) -> None:
        _log.critical("%s has stopped: %s", self.node, error)
        self.end(Ending.FAILED)

    async def _watch(self) -> None:
        while True:
            if self.host is not None:
                if self.host.stopped and not self._is_closing:
                    self.end(Ending.FAILED)  # it has said why
                    return
                self._stalls.look(getattr(self.host.core, "follower", None), self._loop.time())
            await asyncio.sleep(beat_delay_s(self._loop.time(), _WATCH_S))

    # what the core asks of the coordinator

    def _on_question(self, _sender: NodeId, message: Any) -> None:
        if isinstance(message, FetchView) and not self._is_fetching_views:
            self._is_fetching_views = True
            self.spawn(self._fetch_views(message.known_term))

    async def _fetch_views(self, known_term: int) -> None:
        try:
            views = await self.coordinator.views()
        except UNREADABLE as error:
            _log.error("%s: views cannot be read: %r", self.node, error)
            return
        finally:
            self._is_fetching_views = False
        news = tuple(view for view in views if view.term > known_term)
        if news and self.host is not None:
            self.host.deliver(COORDINATOR, InstallView(news))

    # status

    def status(self) -> dict[str, Any]:
        """What an operator wants to know of this node, as JSON values."""
        status: dict[str, Any] = {
            "node": self.node,
            "role": self.role,
            "incarnation": self.incarnation,
            "pid": os.getpid(),
            "version": version("boki"),
            "at_work": self.is_at_work,
            "registered": self.is_registered and self.coordinator.state is not SessionState.EXPIRED,
            "zookeeper": self.coordinator.state,
            "links": {
                lane.name.lower(): asdict(counts) | {"queued_bytes": self.links.queued_bytes(lane)}
                for lane, counts in self.links.counts.items()
            },
        }
        if self.disk is not None:
            status["disk"] = {
                "free_bytes": self.disk.free_bytes,
                "has_room": self.disk.find_room().has_room,
                "syncs": self.disk.sync_count,
            }
        follower = getattr(self.host.core, "follower", None) if self.host is not None else None
        if follower is not None:
            status |= self._stalls.describe(follower)
        return status | self.role_status()
