"""The whole replicated log in one process: storage nodes, sequencers, a controller and an engine over in-process links.

Each node has a directory and a RocksDB of its own, and runs the core that it would run alone on a machine. Where there
is one storage node and one sequencer they share a write-ahead log, so that an append is one sync (`shares_log`).
Every start ends the last term and begins the next one: the controller seals what is on the sequencers' disks, completes
it and installs the next view, and the engine opens new shards.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from boki.config.loading import DevConfig
from boki.controller.plans import Plan
from boki.controller.term_change import TermChange
from boki.coordination.coordinator import LocalCoordinator
from boki.engine.core import EngineConfig, EngineCore
from boki.engine.server.port import EnginePort, answer_waiter
from boki.errors import StoreFailed, Unavailable
from boki.host.data_directory import DataDirectory
from boki.host.disk import Disk
from boki.host.host import Host
from boki.host.links import Links
from boki.host.process import FreePages
from boki.host.redo import REDO_PREFIX
from boki.host.rocksdb import memory_of
from boki.log.ids import NodeId
from boki.log.quorum import majority
from boki.log.view import View
from boki.node.local_entries import LocalEntries
from boki.protocol.effects import Announce, Answer, Core, DiskUnreadable, EngineNews, ProposeView, Put, RoleEffect
from boki.protocol.follower import COORDINATOR
from boki.protocol.messages import FetchView, InstallView
from boki.sequencer.core import SequencerCore
from boki.storage.core import StorageCore
from boki.storage.lacking import find_lacking

_log = logging.getLogger("boki")
_INCARNATION_KEY = b"n"
_START_TIMEOUT_S = 60.0
_SAVE_TIMEOUT_S = 10.0
_LOOK_S = 0.25
_TIMEOUT_S = 2.0
"""How long a stopped node, or records that no node has, may hold up a start before it is given up."""
_SEE = "See docs/operations.md, 'A damaged disk'"
_Result = TypeVar("_Result")
ENGINE = NodeId("engine-1")
CONTROLLER = NodeId("controller-1")


def shares_log(config: DevConfig) -> bool:
    """Whether storage node and sequencer share a write-ahead log: where each of them is alone, and so both quorums."""
    return config.replicas == 1 and config.sequencers == 1


class LocalLog:
    """A running log. Make it with `start`. `port` takes log operations; `stop_node` takes a replica away."""

    def __init__(self, config: DevConfig, on_failure: Callable[[str, StoreFailed], None]) -> None:
        self.config = config
        self.port = EnginePort()
        self.links = Links()
        self.hosts: dict[NodeId, Host] = {}
        self._entries = LocalEntries(self.hosts)
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._directory = DataDirectory(config.data)
        self._disks: dict[str, Disk] = {}
        self._ready = asyncio.Event()
        self._saved = asyncio.Event()
        self._free_pages = FreePages()
        self._installing: asyncio.Future[View] = self._loop.create_future()
        self._change: TermChange | None = None
        self._unreadable: dict[NodeId, str] = {}
        """Nodes that stay away, and what is wrong with their disks."""

    @classmethod
    async def start(cls, config: DevConfig, on_failure: Callable[[str, StoreFailed], None] | None = None) -> LocalLog:
        """Open the data directory, end its last term, begin the next one, and wait until the engine has caught up.

        `on_failure(node, error)` is called when a disk has failed and its node has stopped.
        """
        local = cls(config, on_failure or (lambda _node, _error: None))
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await local._start()
        except TimeoutError:
            local.close()
            raise Unavailable(
                f"the log was not ready within {_START_TIMEOUT_S:g} s{local._what_is_missing()}"
            ) from None
        except BaseException:
            local.close()
            raise
        return local

    async def _start(self) -> None:
        coordinator, views = self._open_coordinator()
        storage = self._nodes("storage", self.config.replicas)
        sequencers = self._nodes("sequencer", self.config.sequencers)
        incarnations = {node: self._try_node(node, coordinator, is_first=not views) for node in [*storage, *sequencers]}
        self._share_logs()
        named = tuple(sequencers[: self.config.sequencers])
        live = [node for node in named if node in self.hosts]
        self._refuse_without_quorums(views[-1] if views else None, named)
        plan = Plan(
            log_count=self.config.logs,
            sequencers=named,
            incarnations={node: incarnations[node] for node in sequencers},
            storage=tuple(storage[: self.config.replicas]),
            replicas=self.config.replicas,
            write_quorum=self.config.write_quorum,
            primaries=tuple(live[log % len(live)] for log in range(self.config.logs)),
        )
        self._broadcast(views)
        engine = self._make_engine(coordinator)
        view = await self._end_term(views[-1], plan, engine) if views else plan.first_view()
        if not coordinator.install(view):
            raise Unavailable("the next term's view could not be installed: another start came first")
        self._broadcast([view])
        self._start_engine(engine, coordinator)
        await self._until(asyncio.ensure_future(self._ready.wait()))
        self._warn_of_lacking()

    def _open_coordinator(self) -> tuple[LocalCoordinator, list[View]]:
        try:
            disk = self._open_disk("coordinator")
            coordinator = LocalCoordinator(disk)
            return coordinator, disk.restore(coordinator.views)
        except DiskUnreadable as failure:
            raise StoreFailed(
                f"the coordinator cannot start: its disk cannot be read ({failure}). It holds which terms there were, "
                f"and nothing else has that: put {self.config.data / 'coordinator'} back from a backup. {_SEE}"
            ) from failure

    def _try_node(self, node: NodeId, coordinator: LocalCoordinator, *, is_first: bool) -> int:
        """Start a node. One whose disk cannot be read stays away. → its incarnation, a new one if it stays away"""
        try:
            incarnation, is_used = self._start_node(node, coordinator)
        except DiskUnreadable as failure:
            self._unreadable[node] = str(failure)
            _log.critical(
                "%s does not start: its disk cannot be read (%s). If other nodes have what it held, stop, move %s away "
                "and start again: it begins with an empty directory, and they fill it",
                node,
                failure,
                self.config.data / node,
            )
            return coordinator.next_incarnation()
        if is_first and is_used:
            raise StoreFailed(
                f"{node} has data, and the coordinator knows of no term: {self.config.data / 'coordinator'} is empty. "
                f"Put it back from a backup. {_SEE}"
            )
        return incarnation

    def _refuse_without_quorums(self, last: View | None, named: tuple[NodeId, ...]) -> None:
        """`StoreFailed` if too few nodes are here to end the last term, to begin the next, or to have all records."""
        away = [f"{node}: its disk cannot be read ({why})" for node, why in sorted(self._unreadable.items())]
        wiped = []
        if last is not None:
            for node in last.sequencers:
                core = self.hosts[node].core if node in self.hosts else None
                if isinstance(core, SequencerCore) and core.incarnation != last.incarnations[node]:
                    wiped.append(node)
                    away.append(
                        f"{node}: {self.config.data / node} is not the directory that it had in term {last.term}"
                    )
        for names in (last.sequencers if last is not None else (), named):
            present = [node for node in names if node in self.hosts and (names is named or node not in wiped)]
            if names and len(present) < majority(len(names)):
                raise StoreFailed(
                    f"the log cannot start: {len(present)} of {len(names)} sequencers are there, and a majority is "
                    f"needed for what was acknowledged. {'; '.join(away)}. {_SEE}"
                )
        lost = [node for node in self._unreadable if node.startswith("storage-")]
        if len(lost) > self.config.replicas - self.config.write_quorum:
            raise StoreFailed(
                f"the log cannot start: {len(lost)} of {self.config.replicas} storage nodes are away, and acknowledged "
                f"records may be on these alone. {'; '.join(away)}. {_SEE}"
            )

    def _nodes(self, role: str, count: int) -> list[NodeId]:
        """The nodes of a role that are wanted, and those that were here before: they may hold what others lack."""
        wanted = [f"{role}-{number}" for number in range(1, count + 1)]
        return [NodeId(name) for name in wanted + [name for name in self._directory.nodes(role) if name not in wanted]]

    def _open_disk(self, name: str, *, reserve_bytes: int = 0) -> Disk:
        role, _, number = name.partition("-")
        self._disks[name] = Disk(
            self.config.data / name,
            self._loop,
            on_failure=lambda error: self._fail(NodeId(name), error),
            reserve_bytes=reserve_bytes,
            synced=self.config.durability == "fsync",
            has_guests=role == "storage" and shares_log(self.config),
            beside=self._disks.get(f"storage-{number}") if role == "sequencer" else None,
            shares_log=shares_log(self.config),
            memory=memory_of(role, self.config.write_buffer_bytes),
        )
        return self._disks[name]

    def _share_logs(self) -> None:
        """Hosts over one write-ahead log run ahead of its syncs."""
        for disk in self._disks.values():
            mates = {node: host for node, host in self.hosts.items() if host.disk and host.disk.log is disk.log}
            if len(mates) > 1:
                for host in mates.values():
                    host.share_log(mates, runs_ahead=True)

    def _fail(self, node: NodeId, error: StoreFailed) -> None:
        if node in self.hosts:
            self.hosts[node].fail(error)
        self._on_failure(node, error)

    def _start_node(self, node: NodeId, coordinator: LocalCoordinator) -> tuple[int, bool]:
        """→ the incarnation of its disk, and whether it had taken part in a term before"""
        is_storage = node.startswith("storage-")
        disk = self._open_disk(node, reserve_bytes=self.config.disk_reserve_bytes if is_storage else 0)
        stored = disk.get(_INCARNATION_KEY)
        others = (b"", _INCARNATION_KEY), (_INCARNATION_KEY + b"\x00", REDO_PREFIX)
        is_used = any(next(disk.scan(*rows), None) is not None for rows in others)
        if stored is None and is_used:
            raise DiskUnreadable(f"{disk.path}: it holds data, and not whose it is")
        incarnation = int(stored) if stored is not None else coordinator.next_incarnation()
        if stored is None:
            disk.store_now([Put(_INCARNATION_KEY, str(incarnation).encode())])

        def make() -> Core[Any]:
            if is_storage:
                return StorageCore(node, incarnation, disk, is_alone=True)
            return SequencerCore(node, incarnation, disk)

        core = disk.restore(make)
        self.hosts[node] = Host(node, core, self.links, self._loop, disk=disk)
        return incarnation, is_used

    async def _end_term(self, last: View, plan: Plan, engine: EngineCore) -> View:
        applied = [
            (node, host.core.witnessed) for node, host in self.hosts.items() if isinstance(host.core, StorageCore)
        ]
        self._change = TermChange(last, plan, [*applied, (ENGINE, engine.index.applied)])
        host = Host(CONTROLLER, self._change, self.links, self._loop, carry_out=self._on_install)
        view = await self._until(self._installing)
        self._change.installed(won=True)
        host.stop()
        return view

    def _on_install(self, effect: RoleEffect) -> None:
        assert isinstance(effect, ProposeView), effect
        if not self._installing.done():
            self._installing.set_result(effect.view)

    def _make_engine(self, coordinator: LocalCoordinator) -> EngineCore:
        try:
            disk = self._open_disk(ENGINE)
            return disk.restore(lambda: EngineCore(ENGINE, coordinator.next_incarnation(), disk, self.engine_config))
        except DiskUnreadable as failure:
            raise StoreFailed(
                f"{ENGINE} cannot start: its disk cannot be read ({failure}). It holds a copy of the index: move "
                f"{self.config.data / ENGINE} away and start again, and the log is read instead, unless anything was "
                f"trimmed away since. {_SEE}"
            ) from failure

    def _start_engine(self, core: EngineCore, coordinator: LocalCoordinator) -> None:
        disk = self._disks[ENGINE]
        host = self.hosts[ENGINE] = Host(ENGINE, core, self.links, self._loop, disk=disk, carry_out=self._carry_out)
        self.engine = core
        self.port.attach(host, core)
        host.deliver(COORDINATOR, InstallView(tuple(coordinator.views())))

    async def _until(self, awaited: asyncio.Future[_Result]) -> _Result:
        """Wait for a step of the start. `StoreFailed` as soon as it is certain that it cannot be taken."""
        try:
            began_at = self._loop.time()
            while not (await asyncio.wait({awaited}, timeout=_LOOK_S))[0]:
                if self._change is not None and self._change.lost:
                    raise StoreFailed(f"the log cannot start: {self._change.lost}. {_SEE}")
                stopped = [f"{node}: {host.failure}" for node, host in sorted(self.hosts.items()) if host.failure]
                if self._loop.time() - began_at > _TIMEOUT_S and (why := "; ".join(stopped) or self._lacking()):
                    raise StoreFailed(f"the log cannot start: {why}. {_SEE}")
            return awaited.result()
        finally:
            awaited.cancel()

    def _lacking(self) -> str:
        """Which ordered records no storage node of this process has, in words; empty if there are none."""
        found = find_lacking([host.core for host in self.hosts.values() if isinstance(host.core, StorageCore)])
        return "" if found is None else str(found)

    def _warn_of_lacking(self) -> None:
        """The index no longer needs them; readers do."""
        if lacking := self._lacking():
            _log.critical("%s: they cannot be read. %s", lacking, _SEE)

    @property
    def engine_config(self) -> EngineConfig:
        """The engine's budgets."""
        return EngineConfig(
            index_memory_bytes=self.config.index_memory_bytes,
            cache_bytes=self.config.cache_bytes,
            aux_cache_bytes=self.config.aux_cache_bytes,
            append_buffer_bytes=self.config.append_buffer_bytes,
            batch_bytes=self.config.batch_bytes,
            limits=self.config.limits,
        )

    def _carry_out(self, effect: RoleEffect) -> None:
        match effect:
            case Answer():
                answer_waiter(effect)
            case Announce(EngineNews.READY):
                self._ready.set()
            case Announce(EngineNews.SAVED):
                self._saved.set()
                self._free_pages.give_back()  # of what was written, and of records that have left the cache
                if not self._unreadable:
                    self._entries.on_saved(self.engine.checkpoints.positions)
            case _:
                raise AssertionError(f"the engine of one process has no use for {effect!r}")

    def _broadcast(self, views: list[View]) -> None:
        for node in list(self.hosts):
            self.links.send(COORDINATOR, node, InstallView(tuple(views)))

    def _on_coordinator(self, coordinator: LocalCoordinator, sender: NodeId, message: Any) -> None:
        if isinstance(message, FetchView):
            views = tuple(view for view in coordinator.views() if view.term > message.known_term)
            self.links.send(COORDINATOR, sender, InstallView(views))

    def stop_node(self, name: str) -> None:
        """Stop one node at once, as if its machine were switched off: it sends and stores nothing more."""
        self.hosts[NodeId(name)].stop()

    @property
    def outage(self) -> str:
        """Why the log cannot continue until the process is started again: too many of its nodes have stopped. "": it
        can.

        What each of them stopped for is in the log.
        """
        view = self.engine.follower.chain.current
        stopped = [node for node, host in sorted(self.hosts.items()) if host.stopped]
        spare = view.replicas - view.write_quorum
        is_out = (
            ENGINE in stopped
            or len([node for node in stopped if node in view.storage]) > spare
            or 2 * len([node for node in stopped if node in view.sequencers]) > len(view.sequencers)
        )
        return f"{', '.join(stopped)} stopped, and the log cannot go on without" if is_out else ""

    def status(self) -> dict[str, Any]:
        """Nodes, term, and how far each log is, as JSON values."""
        follower = self.engine.follower
        view = follower.chain.current
        return {
            "term": view.term,
            "logs": view.log_count,
            "replicas": view.replicas,
            "write_quorum": view.write_quorum,
            "durability": self.config.durability,
            "nodes": {node: "stopped" if host.stopped else "up" for node, host in sorted(self.hosts.items())},
            "metalog_entries": {log: follower.position(log) & ((1 << 43) - 1) for log in follower.logs},
            "free_bytes": self._disks["coordinator"].free_bytes,
            "syncs": {name: disk.sync_count for name, disk in sorted(self._disks.items())},
            "engine": self.engine.status(),
        }

    async def stop(self) -> None:
        """Save the index, so that the next start is quick, and stop every node."""
        host = self.hosts.get(ENGINE)
        if host is not None and not host.stopped:
            with contextlib.suppress(TimeoutError):  # it is a cache: without it the next start only takes longer
                async with asyncio.timeout(_SAVE_TIMEOUT_S):
                    await self._save_index(host)
        for node, storage in self.hosts.items():
            if isinstance(storage.core, StorageCore) and not storage.stopped:
                storage.perform([storage.core.checkpoint()])
                _log.debug("%s: checkpoint", node)
        self.close()

    def _what_is_missing(self) -> str:
        damage = self.engine.strays.damage if hasattr(self, "engine") else ""
        why = [*([damage] if damage else []), *(f"{node}: {text}" for node, text in sorted(self._unreadable.items()))]
        if lacking := self._lacking():
            why.append(lacking)
        return f": {'; '.join(why)}" if why else ", and no node has said why"

    async def _save_index(self, host: Host) -> None:
        for _ in range(2):  # the first may find that an earlier checkpoint is still being written
            self._saved.clear()
            host.perform(self.engine.checkpoint())
            await self._saved.wait()

    def close(self) -> None:
        """Stop every node at once; what their disks were given is written."""
        for host in self.hosts.values():
            host.stop()
        for disk in self._disks.values():
            disk.close()
        self._directory.close()
