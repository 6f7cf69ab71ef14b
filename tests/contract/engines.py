"""Two engines over the log of one process: both with the index, or one of them with a relay to the other."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

from boki.config.loading import DevConfig
from boki.engine.core import EngineCore
from boki.engine.relay import RelayCore
from boki.engine.server.log_service import LogService
from boki.engine.server.port import EnginePort, answer_waiter
from boki.host.disk import Disk
from boki.host.host import Host
from boki.log.ids import NodeId
from boki.log.membership import Member, Membership, Role
from boki.log.metalog import VERSION, Positions
from boki.log.operations import Answer, Operation
from boki.node.local_log import ENGINE, LocalLog
from boki.protocol.call_messages import LogReply, LogRequest
from boki.protocol.effects import Announce, Core, EngineNews, RoleEffect
from boki.protocol.effects import Answer as Ended
from boki.protocol.follower import COORDINATOR
from boki.protocol.messages import InstallMembership, InstallView
from tests.contract.live import LoopThread

SECOND = NodeId("engine-2")
_LIFE = 1_000_000


class SecondEngine:
    """Another engine on the links of a local log."""

    def __init__(self, log: LocalLog, first: LogService, folder: Path, *, has_index: bool) -> None:
        self._log = log
        self._first = first
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._disk = Disk(folder / SECOND, self._loop, on_failure=lambda _error: None) if has_index else None
        core: EngineCore | RelayCore
        if self._disk is not None:
            core = EngineCore(SECOND, _LIFE, self._disk, log.engine_config)
        else:
            core = RelayCore(SECOND, _LIFE, buffer_bytes=log.config.append_buffer_bytes)
        self._host = self._attach(core)
        self.port = EnginePort()
        self.port.attach(self._host, core)
        self.service = LogService(self.port, core)
        self._serve_relays()
        indexing = {ENGINE: log.engine.incarnation} | ({SECOND: _LIFE} if has_index else {})
        members = tuple(
            Member(node=node, role=Role.ENGINE, incarnation=incarnation, has_index=True, entry_version=VERSION)
            for node, incarnation in indexing.items()
        )
        storage = tuple(
            Member(node=node, role=Role.STORAGE, incarnation=1, entry_version=VERSION)
            for node in log.engine.follower.chain.current.storage
        )
        for node in (ENGINE, SECOND):
            news = InstallMembership(Membership(number=1, members=members + storage))
            log.links.send(COORDINATOR, node, news)
        log.links.send(COORDINATOR, SECOND, InstallView(tuple(log.engine.follower.chain)))

    def _attach(self, core: Core[Any]) -> Host:
        return Host(SECOND, core, self._log.links, self._loop, disk=self._disk, carry_out=self._carry_out)

    def _carry_out(self, effect: RoleEffect) -> None:
        match effect:
            case Ended():
                answer_waiter(effect)
            case Announce(EngineNews.READY):
                self._ready.set()

    def _serve_relays(self) -> None:
        """Let the first engine's node answer a relay, as its shell does."""
        links, host = self._log.links, self._log.hosts[ENGINE]

        def deliver(sender: NodeId, message: Any) -> None:
            if not isinstance(message, LogRequest):
                host.deliver(sender, message)
                return

            def reply(answer: Answer, seen: Positions) -> None:
                links.send(ENGINE, sender, LogReply(message.request, seen, answer))

            self._first.submit(message.operation, message.positions, message.timeout_us, reply)

        links.detach(ENGINE)
        links.attach(ENGINE, deliver)

    async def start(self) -> None:
        await self._ready.wait()
        await self.service.start()

    async def stop(self) -> None:
        await self.service.stop()
        self._host.stop()
        if self._disk is not None:
            self._disk.close()


class Alternating:
    """A `LogPort` that asks one service after the other; the caller's positions tell the one what the other did."""

    def __init__(self, *services: LogService) -> None:
        self._turns = cycle(services)

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        return await next(self._turns).request(operation, positions, timeout_s)


@contextmanager
def two_engines(*, has_index: bool, **settings: Any) -> Iterator[tuple[LoopThread, Alternating]]:
    """A log in one process with two engines; the second one's index is its own, or none."""
    loop = LoopThread()
    with tempfile.TemporaryDirectory() as folder:
        log = loop.run(LocalLog.start(DevConfig(data=Path(folder) / "data", **settings)))

        async def open_both() -> tuple[LogService, SecondEngine]:
            first = LogService(log.port, log.engine)
            await first.start()
            second = SecondEngine(log, first, Path(folder), has_index=has_index)
            await second.start()
            return first, second

        first, second = loop.run(open_both())
        yield loop, Alternating(first, second.service)
        loop.run(second.stop())
        loop.run(first.stop())
        loop.run(log.stop())
    loop.close()
