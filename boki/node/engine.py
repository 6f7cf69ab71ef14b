"""An engine: functions, and their log: with the index of all logs, or through engines that have it.

How many engines hold the index is in the plan (`index_replicas`; 0: all). An engine that finds no slot free is a relay;
when a slot is let go it drains and begins again with the index. An engine that was halted for too long loses its slot
(`boki.controller.index_slots`). Logged calls run only where the index is.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any, ClassVar, Final, assert_never

import msgspec

from boki.api.streaming import no_stream
from boki.books.calls.logged_calls import LoggedCalls
from boki.books.calls.waiting import Owner
from boki.config.node import EngineNodeConfig
from boki.coordination.zookeeper import News
from boki.dispatch.server.deployed import DeployedFunctions
from boki.dispatch.server.pools import FunctionHost
from boki.engine.checkpoint.bootstrap import Bootstrap
from boki.engine.core import EngineConfig, EngineCore
from boki.engine.relay import RelayCore
from boki.engine.server.log_service import LogService
from boki.engine.server.port import EnginePort, answer_waiter
from boki.engine.server.remote_requests import EngineService
from boki.errors import NoSuchFunction
from boki.host.process import FreePages
from boki.log.ids import NodeId
from boki.log.membership import Member, Role
from boki.node.console import log_function_line, problem_lines
from boki.node.incarnation import Ending, RoleIncarnation
from boki.node.remote_ledger import RemoteLedger
from boki.protocol.call_messages import FOR_ENGINE_SHELL
from boki.protocol.calls import Begun, Call, CallChange, InvocationState
from boki.protocol.effects import (
    Announce,
    Answer,
    Core,
    EngineNews,
    ProposePlacement,
    ProposeView,
    ReleaseSlots,
    RoleEffect,
)
from boki.protocol.messages import InstallMembership

_log = logging.getLogger("boki.node")
_LAST_STEP_S: Final = 3.0
_FENCE_TIMEOUT_S: Final = 10.0
_OUTAGE_DRAIN_S: Final = 0.5
_LEAST_DRAIN_S: Final = 1.0
"""Also when the gateway of the node has used up `drain_s` with one long call: other calls began a moment ago."""


class EngineIncarnation(RoleIncarnation[EngineNodeConfig]):
    """An engine. What is made from `core` on is there once the index is, which `serve` waits for."""

    role = Role.ENGINE
    DIVERTED: ClassVar[tuple[type, ...]] = FOR_ENGINE_SHELL
    service: LogService | None = None
    """Of an engine with the index."""
    calls: LoggedCalls | None = None
    """The same."""
    remote: EngineService | None = None
    has_slot = False
    """Whether it is one of those that hold the index."""
    _index_replicas = 0
    """Of the plan as this incarnation found it: it does not change."""
    _has_index = False
    """Whether its index has caught up, so that others may ask it."""
    core: EngineCore | RelayCore | None = None
    _is_open = False

    async def choose(self) -> None:
        """See `RoleIncarnation`: whether there is a slot for one more index."""
        self._index_replicas = (await self.coordinator.wait_for_plan()).index_replicas
        self.has_slot = await self._claim()

    async def _claim(self) -> bool:
        count = self._index_replicas
        return not count or await self.coordinator.claim_index_slot(self.node, count) is not None

    def make_core(self) -> Core[Any]:
        """See `RoleIncarnation`."""
        self._ready = asyncio.Event()
        self._saved = asyncio.Event()
        self._free_pages = FreePages()
        self._closed = asyncio.Event()
        self.port = EnginePort()
        self._members: InstallMembership | None = None
        self.remote_ledger = RemoteLedger(self.port)
        if self.has_slot:
            self._booted = asyncio.Event()
            config = EngineConfig(
                index_memory_bytes=self.config.index_memory_bytes,
                cache_bytes=self.config.cache_bytes,
                aux_cache_bytes=self.config.aux_cache_bytes,
                append_buffer_bytes=self.config.append_buffer_bytes,
                batch_bytes=self.config.batch_bytes,
                limits=self.config.limits,
            )
            self._bootstrap = Bootstrap(self.node, self.incarnation, self.open_disk(), config)
            return self._bootstrap
        self.core = RelayCore(self.node, self.incarnation, buffer_bytes=self.config.append_buffer_bytes)
        return self.core

    def _make_parts(self) -> None:
        """What stands beside the core."""
        assert self.host is not None
        assert self.core is not None
        self.port.attach(self.host, self.core)
        log: LogService | EnginePort = self.port
        if isinstance(self.core, EngineCore):
            log = self.service = LogService(self.port, self.core)
            self.parts.push_async_callback(self.service.stop)
        runs_functions = self.config.functions_version != "none"
        problems = problem_lines(self.node)
        make_host = partial(
            FunctionHost,
            limits=self.config.limits,
            log=log,
            later=self._later,
            ask=self._ask,
            console=log_function_line,
            reload=False,
            on_call=problems.ended,
            log_level=self.config.log_level,
        )
        self.functions = make_host(self.config.functions if runs_functions else None)
        self.parts.callback(problems.close)
        self.parts.push_async_callback(self.functions.stop, 0)
        bundles = self._home.path / "bundles"
        self.deployed = DeployedFunctions(
            log,
            self.functions,
            bundles,
            self.config.limits,
            runs_at_start=runs_functions,
            make_host=partial(make_host, None),
        )
        self.parts.push_async_callback(self.deployed.stop)
        if self.service is not None:
            self.calls = self._make_calls(self.service)
            self.deployed.in_use = self.calls.versions_in_use
            self.parts.push_async_callback(self.calls.stop, 0)
        self.remote = EngineService(
            self.diversion,
            self.node,
            log,
            self.functions,
            self.calls,
            self.deployed,
            incarnation=self.incarnation,
            is_ready=lambda: self._is_open and self.port.is_ready,
            status=self.status,
        )
        self.parts.push_async_callback(self.remote.stop)
        self.remote.start()
        self.diversion.divert(self.divert)
        if self.calls is not None and self._members is not None:
            self.calls.on_membership(self._members.membership)

    def _make_calls(self, service: LogService) -> LoggedCalls:
        return LoggedCalls(
            service,
            self.deployed.run,
            me=Owner(self.node, self.incarnation),
            fence=self._fence,
            keep_s=self.config.keep_calls_s,
            limits=self.config.limits,
            version=self.deployed.version_to_pin,
            replays=self.functions.replays,
        )

    def divert(self, sender: NodeId, message: Any) -> None:
        """See `RoleIncarnation`."""
        if self.remote is not None:
            self.remote.deliver(sender, message)

    def on_news(self, news: News) -> None:
        """See `RoleIncarnation`."""
        super().on_news(news)
        if isinstance(news, InstallMembership):
            self._members = news
            if self.calls is not None:
                self.calls.on_membership(news.membership)

    async def serve(self) -> None:
        """Wait until there is an index, of its own or at others, and until it has caught up; then take calls."""
        if self.has_slot:
            await self._booted.wait()
            self.core = self._bootstrap.engine
        self._make_parts()
        if self.has_slot:
            self.spawn(self._keep_slot())
        else:
            _log.info("%s: all slots for an index are taken: it asks engines that have one", self.node)
            self.spawn(self._await_slot())
        await asyncio.gather(self.functions.start(), self._offer_index())
        await self.deployed.start()
        if self.calls is not None:  # it takes calls over, which need the functions that are deployed
            await self.calls.start()
        self._is_open = True
        await self.register()

    async def _offer_index(self) -> None:
        """Let others ask this engine as soon as its index has caught up: its functions may take longer to start."""
        await self._ready.wait()
        if self.service is not None:
            await self.service.start()
            self._has_index = True
            await self.register()

    async def _await_slot(self) -> None:
        """Begin again with the index as soon as a slot is free."""
        await self._claim_until(True)
        self.end(Ending.PROMOTED)

    async def _keep_slot(self) -> None:
        """Restart without the index if the slot was taken away during a halt, and none is free."""
        await self._claim_until(False)
        self.end(Ending.DEMOTED)

    async def _claim_until(self, has_slot: bool) -> None:
        """Claim a slot whenever one is taken or let go, also during a claim, until the answer is that."""
        changed = asyncio.Event()
        await self.coordinator.watch_index_slots(changed.set)
        while True:
            changed.clear()
            if await self._claim() is has_slot:
                return
            await changed.wait()

    def member(self) -> Member:
        """See `RoleIncarnation`: until it has caught up it holds no index for others."""
        return msgspec.structs.replace(super().member(), has_index=self._has_index)

    def carry_out(self, effect: RoleEffect) -> None:
        """See `RoleIncarnation`."""
        match effect:
            case Answer():
                answer_waiter(effect)
            case Announce(news):
                self._note(news)
            case ProposeView() | ProposePlacement() | ReleaseSlots():
                super().carry_out(effect)
            case _:
                assert_never(effect)

    def _note(self, news: EngineNews) -> None:
        match news:
            case EngineNews.BOOTED:
                self._booted.set()
            case EngineNews.READY:
                self._ready.set()
            case EngineNews.SAVED:
                self._saved.set()
                self._free_pages.give_back()  # of what was written, and of records that have left the cache
            case EngineNews.CLOSED:
                self._closed.set()
            case EngineNews.FENCED:
                self.end(Ending.FENCED)
            case EngineNews.STALE:
                self.end(Ending.STALE)
            case _:
                assert_never(news)

    async def _fence(self, incarnation: int) -> None:
        """Shut a lost engine incarnation out of the log, and see all that it had appended."""
        await self.port.fence(incarnation, _FENCE_TIMEOUT_S)

    async def _later(self, call: Call, delay_s: float, key: str | None) -> Begun:
        known = self.functions.functions.get(call.function)
        if known is None and not self.deployed.version_for(call):  # else only the log would ever learn of it
            raise NoSuchFunction(f"no function is named {call.function}")
        if known is not None and known.streams:
            raise no_stream(call.function)
        if self.calls is None:
            return Begun(await self.remote_ledger.accept(call, key=key, delay_s=delay_s))
        return await self.calls.begin(call, key=key, delay_s=delay_s)

    async def _ask(self, invocation_id: str, wait_s: float, change: CallChange) -> InvocationState:
        return await (self.calls or self.remote_ledger).asked(invocation_id, wait_s, change)

    async def drain(self) -> None:
        """Calls that run may end, new ones go elsewhere; then the shards are closed and the index is saved, so that
        no reader waits for this engine's records and its next start is quick.

        A call that still runs at the deadline is cut off: its worker is killed, and its caller is told.
        """
        if self.remote is None:
            return
        # Without any index calls wait for the log, and the log for this engine: it must not wait for them.
        drain_s = self.config.drain_s if self.port.is_ready else min(self.config.drain_s, _OUTAGE_DRAIN_S)
        left_s = partial(self.node_stop.left_s, self.node_stop.deadline_s(drain_s))
        least_s = min(drain_s, _LEAST_DRAIN_S)
        await self.remote.drain(left_s())
        if self.calls is not None:
            await self.calls.stop(max(left_s(), least_s))
        await self.deployed.stop(left_s())
        await self.functions.stop(max(left_s(), least_s))
        if self.service is not None:
            await self.service.stop()
        if not self._ready.is_set() or not isinstance(self.core, EngineCore):
            return
        for what, step in (("its shards were not closed", self._close_shards), ("no index saved", self._save_index)):
            try:
                await asyncio.wait_for(step(self.core), _LAST_STEP_S)
            except TimeoutError:
                _log.warning("%s: %s within %g s: others do without", self.node, what, _LAST_STEP_S)

    async def _close_shards(self, core: EngineCore) -> None:
        assert self.host is not None
        core.close()
        self.host.settle_soon()
        await self._closed.wait()

    async def _save_index(self, core: EngineCore) -> None:
        assert self.host is not None
        for _ in range(2):  # the first may find that an earlier checkpoint is still being written
            self._saved.clear()
            self.host.perform(core.checkpoint())
            await self._saved.wait()

    def role_status(self) -> dict[str, Any]:
        """See `RoleIncarnation`."""
        calls = self.calls
        if self.core is None or self.remote is None:
            return {"ready": False, "has_index": self.has_slot, "engine": {"is_loading": True}}
        return {
            "ready": self._is_open and self.port.is_ready,
            "has_index": self.has_slot,
            "engine": self.core.status(),
            "functions": sorted(self.functions.functions),
            "functions_version": self.deployed.number,
            "functions_held_back": self.deployed.is_held_back,
            "pools": [msgspec.to_builtins(pool) for pool in self.functions.stats()],
            "calls": {
                "waiting": calls.waiting_count if calls is not None else 0,
                "running": calls.running_count if calls is not None else 0,
                "suspended": calls.suspended_count if calls is not None else 0,
            },
        }
