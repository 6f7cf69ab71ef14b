"""Real logs for the contract suite: the whole system in this process, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import uvloop

from boki.api.append_gatherer import AppendGatherer
from boki.api.deadline import Caller
from boki.api.logbook import LogBook, LogSession
from boki.api.port import LogPort
from boki.client import BlockingClient, Client
from boki.config.loading import DevConfig
from boki.dispatch.server.until_gone import run_until_gone
from boki.engine.server.log_service import LogService
from boki.launch.dev import Dev
from boki.node.local_log import LocalLog
from boki.protocol.calls import Call, Payload
from tests.contract.awaitable import AwaitableLogs

T = TypeVar("T")
Scenario = Callable[[Any], Awaitable[None]]
_TIMEOUT_S = 120


class LoopThread:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_TIMEOUT_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class EngineLogs:
    """What a scenario is given, straight over an engine's port."""

    def __init__(self, service: LogPort, book: str) -> None:
        self._access = LogSession(service, AppendGatherer(service), Caller())
        self.logbook = self._access.logbook(book)
        self.books = self._access.books

    def logbook_named(self, name: str) -> LogBook:
        return self._access.logbook(name)


@contextmanager
def local_log(*stopped: str, **settings: Any) -> Iterator[tuple[LoopThread, LogService]]:
    """A log in one process, with some of its nodes stopped."""
    loop = LoopThread()
    with tempfile.TemporaryDirectory() as folder:
        log = loop.run(LocalLog.start(DevConfig(data=Path(folder) / "data", **settings)))

        async def open_service() -> LogService:
            service = LogService(log.port, log.engine)
            await service.start()
            for node in stopped:
                log.stop_node(node)
            return service

        service = loop.run(open_service())
        yield loop, service
        loop.run(service.stop())
        loop.run(log.stop())
    loop.close()


FUNCTIONS = Path(__file__).parent / "functions"


@contextmanager
def dev_system(*stopped: str, **settings: Any) -> Iterator[tuple[LoopThread, Dev]]:
    """All of `boki dev` in this process, with the suite's functions in worker processes beside it."""
    loop = LoopThread()
    with tempfile.TemporaryDirectory() as folder:
        settings = {"functions": FUNCTIONS, "port": 0, "reload": False} | settings
        config = DevConfig(data=Path(folder) / "data", **settings)
        dev = loop.run(Dev.start(config))
        for node in stopped:
            dev.log.stop_node(node)
        yield loop, dev
        loop.run(dev.stop(5))
    loop.close()


async def run_in_worker(dev: Dev, function: str, scenario: str, book: str) -> None:
    """Run a scenario in a worker process; its traceback is the error."""
    payload = Payload("text", scenario.encode())
    outcome = await run_until_gone(dev.functions, Call(uuid4().hex, function, payload, book, 120_000_000))
    assert outcome.failure is None, outcome.failure
    assert outcome.result is not None
    assert not outcome.result.data, outcome.result.data.decode()


class ClientLogs:
    """What a scenario is given, over a client of either kind."""

    def __init__(self, client: Any, book: str) -> None:
        self.logbook = client.logbook(book)
        self.logbook_named = client.logbook
        self.books = client.books


async def run_through_client(dev: Dev, scenario: Scenario, book: str) -> None:
    """Run a scenario here, over HTTP."""
    async with Client(dev.url) as client:
        await scenario(ClientLogs(client, book))


def run_through_blocking_client(dev: Dev, scenario: Scenario, book: str) -> None:
    """The same over the blocking client, each call in a thread."""
    with BlockingClient(dev.url) as client, ThreadPoolExecutor(64) as threads:

        async def run() -> None:
            loop = asyncio.get_running_loop()
            logs = AwaitableLogs(ClientLogs(client, book), lambda call: loop.run_in_executor(threads, call))
            await scenario(logs)

        asyncio.run(run())
