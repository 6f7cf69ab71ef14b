"""An engine: the log's core with its index, and the functions beside it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, ClassVar, Final

import msgspec

from boki.calls import Call
from boki.cluster_config import EngineNodeConfig
from boki.controller.zookeeper import News
from boki.effects import Core
from boki.engine.core import CLOSED, FENCED, READY, SAVED, EngineConfig, EngineCore
from boki.engine.engine_service import EngineService
from boki.engine.ledger import Owner
from boki.engine.log_service import LogService
from boki.engine.logged_calls import LoggedCalls
from boki.engine.pools import FunctionHost
from boki.engine.server import EnginePort, answer_waiter
from boki.errors import NoSuchFunction
from boki.log.membership import Member, Role
from boki.messages import InstallMembership
from boki.node.life import Ending, NodeLife
from boki.remote import FOR_ENGINE_SHELL
from boki.runtime.frames import ConsoleLine

_log = logging.getLogger("boki.node")
_console = logging.getLogger("boki.functions")
_LAST_STEP_S: Final = 3.0
_FENCE_TIMEOUT_S: Final = 10.0


class EngineLife(NodeLife[EngineNodeConfig]):
    """An engine that holds the index of all logs."""

    role = Role.ENGINE
    DIVERTED: ClassVar[tuple[type, ...]] = FOR_ENGINE_SHELL

    def make_core(self) -> Core:
        """See `NodeLife`."""
        self._ready = asyncio.Event()
        self._saved = asyncio.Event()
        self._closed = asyncio.Event()
        self._is_open = False
        config = EngineConfig(
            index_memory_bytes=self.config.index_memory_bytes,
            cache_bytes=self.config.cache_bytes,
            aux_cache_bytes=self.config.aux_cache_bytes,
            append_buffer_bytes=self.config.append_buffer_bytes,
            batch_bytes=self.config.batch_bytes,
            limits=self.config.limits,
        )
        self.core = EngineCore(self.node, self.incarnation, self.open_disk(), config)
        self.port = EnginePort()
        return self.core

    async def prepare(self) -> None:
        """See `NodeLife`: the parts beside the core are there before anybody asks for them."""
        assert self.host is not None
        self.port.attach(self.host, self.core)
        self.service = LogService(self.port, self.core)
        self.functions = FunctionHost(
            self.config.functions,
            limits=self.config.limits,
            submit=self.service.submit,
            later=self._later,
            console=_print,
            reload=False,
            show_tracebacks=False,
        )
        self.calls = LoggedCalls(
            self.service,
            self.functions.call,
            me=Owner(self.node, self.incarnation),
            fence=self._fence,
            keep_s=self.config.keep_calls_s,
            limits=self.config.limits,
        )
        self.remote = EngineService(
            self.diversion,
            self.node,
            self.service,
            self.functions,
            self.calls,
            incarnation=self.incarnation,
            is_ready=lambda: self._is_open and self.port.is_ready,
            status=self.status,
        )
        for stop in (self.service.stop, lambda: self.functions.stop(0), lambda: self.calls.stop(0), self.remote.stop):
            self.parts.push_async_callback(stop)
        self.remote.start()
        await super().prepare()

    def on_news(self, news: News) -> None:
        """See `NodeLife`."""
        super().on_news(news)
        if isinstance(news, InstallMembership):
            self.calls.on_membership(news.membership)

    async def serve(self) -> None:
        """Wait until the index has caught up, then take calls."""
        await self.functions.start()
        await self._ready.wait()
        await self.service.start()
        await self.calls.start()
        self._is_open = True
        await self.register()

    def member(self) -> Member:
        """See `NodeLife`: until it has caught up it holds no index for others."""
        return msgspec.structs.replace(super().member(), has_index=self._is_open)

    def answer(self, token: Any, value: Any) -> None:
        """See `NodeLife`."""
        if token is READY:
            self._ready.set()
        elif token is SAVED:
            self._saved.set()
        elif token is CLOSED:
            self._closed.set()
        elif token is FENCED:
            self.end(Ending.FENCED)
        else:
            answer_waiter(token, value)

    async def _fence(self, incarnation: int) -> None:
        """Shut a lost engine incarnation out of the log, and see all that it had appended."""
        await self.port.fence(incarnation, _FENCE_TIMEOUT_S)

    async def _later(self, call: Call, delay_s: float, key: str | None) -> str:
        if call.function not in self.functions.functions:  # else only the log would ever learn of it
            raise NoSuchFunction(f"no function is named {call.function}")
        return await self.calls.accept(call, key=key, delay_s=delay_s)

    async def drain(self) -> None:
        """Calls that run may end, new ones go elsewhere; then the shards are closed and the index is saved, so that
        nobody waits for this engine's records and its next start is quick.
        """
        if not hasattr(self, "remote"):
            return
        await self.remote.drain(self.config.drain_s)
        await self.calls.stop(self.config.drain_s)
        await self.functions.stop(self.config.drain_s)
        await self.service.stop()
        if self._ready.is_set():
            for what, step in (
                ("its shards were not closed", self._close_shards),
                ("no index saved", self._save_index),
            ):
                try:
                    await asyncio.wait_for(step(), _LAST_STEP_S)
                except TimeoutError:
                    _log.warning("%s: %s within %g s: others do without", self.node, what, _LAST_STEP_S)

    async def _close_shards(self) -> None:
        assert self.host is not None
        self.core.close()
        self.host.settle_soon()
        await self._closed.wait()

    async def _save_index(self) -> None:
        assert self.host is not None
        for _ in range(2):  # the first may find that an earlier checkpoint is still being written
            self._saved.clear()
            self.host.perform(self.core.checkpoint())
            await self._saved.wait()

    def role_status(self) -> dict[str, Any]:
        """See `NodeLife`."""
        return {
            "ready": self._is_open and self.port.is_ready,
            "engine": self.core.status(),
            "functions": sorted(self.functions.functions),
            "pools": [msgspec.to_builtins(pool) for pool in self.functions.stats()],
            "calls": {"waiting": self.calls.waiting_count, "running": self.calls.running_count},
        }


def _print(line: ConsoleLine) -> None:
    _console.info("%s", line)
