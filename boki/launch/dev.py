"""Boki in one process: the log, the functions and the gateway over one data directory. `boki dev` runs this.

The parts know each other by callables and small protocols only; this is the one place where they are put together.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, Final, NamedTuple

import msgspec

from boki.api.streaming import no_stream
from boki.books.calls.logged_calls import LoggedCalls
from boki.books.calls.waiting import Owner
from boki.config.loading import DevConfig
from boki.dispatch.server.pools import FunctionHost
from boki.dispatch.server.until_gone import run_until_gone
from boki.engine.server.log_service import LogService
from boki.errors import InvalidArgument, StoreFailed
from boki.gateway.backend import Deployments, EngineWatcher, StreamControl
from boki.gateway.config import GatewayConfig
from boki.gateway.core import Standing
from boki.gateway.server.http.function_lookup import no_such_function
from boki.gateway.server.listener import Gateway
from boki.host.call_lines import CallLines
from boki.host.lines import speaker
from boki.log.ids import NodeId
from boki.log.metalog import Positions
from boki.log.operations import Answer, Operation
from boki.node.local_log import ENGINE, LocalLog
from boki.protocol.calls import Begun, Call, CallChange, FunctionInfo, InvocationState, ModuleInfo, Outcome, TakeChunk
from boki.worker.frames import ConsoleLine

_log = logging.getLogger("boki")
_LOOK_S: Final = 0.25
"""How soon it is noticed that the log cannot continue."""


class Dev:
    """A running system. Make it with `start`; `stop` drains it. `url` is where it listens."""

    def __init__(
        self,
        config: DevConfig,
        gateway: GatewayConfig,
        log: LocalLog,
        console: Callable[[ConsoleLine], None],
        calls: CallLines | None,
    ) -> None:
        self.config = config
        self.log = log
        self.service = LogService(log.port, log.engine)
        self.functions = FunctionHost(
            config.functions,
            limits=config.limits,
            log=self.service,
            later=self._later,
            ask=self._ask,
            console=console,
            reload=config.reload,
            on_call=calls.ended if calls else None,
            log_level=config.log_level,
        )
        self.calls = LoggedCalls(
            self.service,
            partial(run_until_gone, self.functions),
            me=Owner(ENGINE, log.engine.incarnation),
            keep_s=config.keep_calls_s,
            limits=config.limits,
            replays=self.functions.replays,
        )
        self.gateway = Gateway(_Backend(self), gateway, on_refused=calls.refused if calls else None)
        self._call_lines = calls
        self.is_open = False

    @classmethod
    async def start(
        cls,
        config: DevConfig,
        console: Callable[[ConsoleLine], None] | None = None,
        calls: CallLines | None = None,
    ) -> Dev:
        """Start everything and listen. `console` is given each line that a function prints or logs, `calls` is told
        of each call and each refusal.
        """
        gateway = _gateway_config(config)  # refuses an open address before anything is touched
        log = await LocalLog.start(config, _on_failure)
        dev = cls(config, gateway, log, console or _print, calls)
        try:
            await dev.service.start()
            await dev.functions.start()
            await dev.calls.start()
            dev.is_open = True
            await dev.gateway.start()
        except BaseException:
            await dev.stop(0)
            raise
        return dev

    @property
    def url(self) -> str:
        """Where the gateway listens."""
        return self.gateway.url

    def status(self) -> dict[str, Any]:
        """What an operator wants to know, as JSON values."""
        return {
            "version": version("boki"),
            "pid": os.getpid(),
            "ready": self.is_ready,
            "url": self.url,
            "data": str(self.config.data),
            "functions": sorted(self.functions.functions),
            "modules": [
                {"module": module.module, "path": module.path, "error": module.error}
                for module in self.functions.modules
            ],
            "pools": [msgspec.to_builtins(pool) for pool in self.functions.stats()],
            "calls": {
                "waiting": self.calls.waiting_count,
                "running": self.calls.running_count,
                "suspended": self.calls.suspended_count,
            },
            "log": self.log.status(),
        }

    @property
    def is_ready(self) -> bool:
        """Whether calls would be carried out."""
        return self.is_open and self.log.port.is_ready and not self.log.outage

    async def wait_for_outage(self) -> str:
        """Return once the log cannot continue, with the reason."""
        while True:
            if outage := self.log.outage:
                return outage
            await asyncio.sleep(_LOOK_S)

    async def stop(self, drain_s: float) -> None:
        """Not ready any more; wait at most `drain_s` for what is under way; then stop every part."""
        self.is_open = False
        self.gateway.drain()
        deadline = asyncio.get_running_loop().time() + drain_s

        def left_s() -> float:
            return max(0.0, deadline - asyncio.get_running_loop().time())

        await self.gateway.stop(left_s())
        await self.calls.stop(left_s())
        await self.functions.stop(left_s())
        await self.service.stop()
        await self.log.stop()
        if self._call_lines is not None:
            self._call_lines.close()

    async def _later(self, call: Call, delay_s: float, key: str | None) -> Begun:
        if call.function not in self.functions.functions:  # else only the log would ever learn of it
            raise no_such_function(call.function, self.functions.functions)
        if self.functions.functions[call.function].streams:
            raise no_stream(call.function)
        return await self.calls.begin(call, key=key, delay_s=delay_s)

    async def _ask(self, invocation_id: str, wait_s: float, change: CallChange) -> InvocationState:
        return await self.calls.asked(invocation_id, wait_s, change)


class _Started(NamedTuple):
    """`boki.gateway.backend.StreamControl` of a call in this process."""

    functions: FunctionHost
    ticket: int

    def taken(self, count: int) -> None:
        self.functions.streams.taken(self.ticket, count)

    def stop(self) -> None:
        self.functions.cancel_call(self.ticket)


class _Backend:
    """`boki.gateway.backend.Backend` over the parts of this process."""

    def __init__(self, dev: Dev) -> None:
        self._dev = dev

    @property
    def ready(self) -> bool:
        return self._dev.is_ready

    @property
    def functions(self) -> Mapping[str, FunctionInfo]:
        return self._dev.functions.functions

    @property
    def knows_functions(self) -> bool:
        return self._dev.is_open

    @property
    def modules(self) -> Sequence[ModuleInfo]:
        return self._dev.functions.modules

    @property
    def ledger(self) -> LoggedCalls:
        return self._dev.calls

    @property
    def deployments(self) -> Deployments:
        raise InvalidArgument(
            "boki dev runs the functions of its folder and reloads them when they change: there is nothing to deploy. "
            "boki deploy is for a cluster, such as the one that boki up starts",
            field="deployment",
        )

    def watch(self, watcher: EngineWatcher) -> None:
        watcher.engine_changed(ENGINE, Standing())

    def start_call(
        self,
        engine: NodeId,  # noqa: ARG002
        call: Call,
        done: Callable[[Outcome], None],
        take: TakeChunk | None = None,
    ) -> StreamControl:
        return _Started(self._dev.functions, self._dev.functions.start_call(call, done, take=take))

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        return await self._dev.service.request(operation, positions, timeout_s)

    def check_positions(self, positions: Positions) -> None:
        self._dev.service.check_positions(positions)

    async def status(self) -> dict[str, Any]:
        return self._dev.status()


def _gateway_config(config: DevConfig) -> GatewayConfig:
    return GatewayConfig(
        host=config.host,
        port=config.port,
        token=config.token,
        insecure=config.insecure,
        cors=config.cors,
        limits=config.limits,
    )


def _on_failure(node: str, error: StoreFailed) -> None:
    _log.critical("%s has stopped: %s", node, error)


def _print(line: ConsoleLine) -> None:
    _log.log(line.level, "%s %s", speaker(line.module, line.function, line.invocation), line.text)
