"""A backend for the gateway's tests: functions that do what the test says, over a log in memory; and a running gateway.

Nothing here waits for time: a read that waits is answered by an append, or when the test says that its time is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import aiohttp

from boki.books.calls.logged_calls import LoggedCalls
from boki.books.calls.sleepers import Finish
from boki.books.calls.waiting import Owner
from boki.errors import BokiError, InvalidArgument
from boki.gateway.backend import EngineWatcher, StreamControl
from boki.gateway.config import GatewayConfig, Timeouts
from boki.gateway.core import Standing
from boki.gateway.remote_stream import RemoteStream
from boki.gateway.server.listener import Gateway
from boki.log.ids import NodeId
from boki.log.limits import DEFAULT_LIMITS, Limits
from boki.log.memory import MemoryLog
from boki.log.metalog import Positions, make_position, merge_positions, split_position
from boki.log.operations import Answer, Failure, Found, Operation, Read
from boki.protocol.calls import Call, FunctionInfo, ModuleInfo, Outcome, Payload

T = TypeVar("T")

FUNCTIONS = (
    FunctionInfo(name="echo", module="app", is_async=True, payload_schema={}, result_schema={}, doc="Says it again."),
    FunctionInfo(name="text", module="app", is_async=True, payload_encoding="text", result_encoding="text"),
    FunctionInfo(name="raw", module="app", is_async=True, payload_encoding="bytes", result_encoding="bytes"),
    FunctionInfo(name="fail", module="app", is_async=True),
    FunctionInfo(name="hang", module="app", is_async=True, timeout_s=30.0),
    FunctionInfo(name="shelf", module="app", is_async=False, book="books.shelf"),
)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a scenario to its end."""
    return asyncio.run(work)


class FakeBackend:
    """See `boki.gateway.backend.Backend`. `started` are the calls it was given; `hanging` those not answered yet."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self.ready = True
        self.knows_functions = True
        self.engines = (NodeId("engine-1"),)
        self.functions = {info.name: info for info in FUNCTIONS}
        self.modules = (ModuleInfo(module="app", path="app.py", functions=FUNCTIONS), BROKEN)
        self.log = MemoryLog(limits)
        self.now_us = 1_700_000_000_000_000
        self.started: list[Call] = []
        self.engines_asked: list[NodeId] = []
        self.hanging: dict[str, Callable[[Outcome], None]] = {}
        self.refusal: BokiError | None = None
        self.operations: list[tuple[Operation, Positions, float]] = []
        self.failures: list[BokiError] = []
        self.fails: type = object
        """What kind of operation takes the next of `failures`."""
        self.change_count = 0
        self.changed = asyncio.Event()
        self._waits = 0
        self._expired = asyncio.Event()
        self._woken = asyncio.Event()
        self.ledger = LoggedCalls(
            _LedgerPort(self), self.run_logged, me=Owner("engine-1", 1), clock=lambda: self.now_us, limits=limits
        )

    def start_call(
        self, engine: NodeId, call: Call, done: Callable[[Outcome], None], take: Callable[..., None] | None = None
    ) -> StreamControl:
        if self.refusal is not None:
            raise self.refusal
        self.started.append(call)
        self.engines_asked.append(engine)
        self._wake()
        if call.function == "hang":
            self.hanging[call.id] = done
        else:
            done(outcome_of(call))
        return RemoteStream(lambda _: None, 0, take)

    def watch(self, watcher: EngineWatcher) -> None:
        for engine in self.engines:
            watcher.engine_changed(engine, Standing())

    async def run_logged(self, call: Call) -> Outcome:
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.start_call(self.engines[0], call, lambda outcome: None if future.done() else future.set_result(outcome))
        return await future

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        self.operations.append((operation, dict(positions), timeout_s))
        self._wake()
        await asyncio.sleep(0)
        if self.failures and isinstance(operation, self.fails):
            raise self.failures.pop(0)
        answer = self.log.answer(operation, self.now_us)
        if not isinstance(answer, Found):
            self.change_count += 1
            self.changed.set()
            self.changed = asyncio.Event()
        elif isinstance(operation, Read) and operation.wait_us:
            while not answer.slabs and not await self._wait_for_change():
                found = self.log.answer(operation, self.now_us)
                assert isinstance(found, Found)
                answer = found
        merge_positions(positions, {0: make_position(1, self.change_count)})
        return answer

    async def _wait_for_change(self) -> bool:
        """True if the waiting is over instead."""
        self._waits += 1
        self._wake()
        tasks = [asyncio.create_task(event.wait()) for event in (self.changed, self._expired)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return tasks[1].done()
        finally:
            self._waits -= 1
            for task in tasks:
                task.cancel()

    def expire_waits(self) -> None:
        """The time of all reads that wait is over."""
        self._expired.set()
        self._expired = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds; it is looked at whenever something reaches the backend."""
        async with asyncio.timeout(20):
            while not condition():
                self._woken = asyncio.Event()
                await self._woken.wait()

    async def until_waiting(self, count: int = 1) -> None:
        """Return once this many reads wait."""
        await self.until(lambda: self._waits >= count)

    def _wake(self) -> None:
        self._woken.set()

    def check_positions(self, positions: Positions) -> None:
        for log, position in positions.items():
            if log > 0 or split_position(position)[0] > 1:
                raise InvalidArgument("there is no such log or term", field="Boki-Position")

    async def status(self) -> dict[str, Any]:
        return {"version": "1", "term": 1}


class _LedgerPort:
    """The ledger's own way to the log: it follows its book, which no test means when it speaks of waiting reads."""

    def __init__(self, backend: FakeBackend) -> None:
        self._backend = backend

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """See `boki.api.port.LogPort`."""
        is_follower = isinstance(operation, Read) and operation.tag is None and operation.wait_us > 0
        if not is_follower:
            return await self._backend.request(operation, positions, timeout_s)
        while True:
            changed = self._backend.changed
            answer = self._backend.log.answer(operation, self._backend.now_us)
            assert isinstance(answer, Found)
            if answer.slabs:
                return answer
            await changed.wait()

    def watch(self, book: str, tag: str, min_seqnum: int, finish: Finish) -> None:
        """Nothing here is suspended for a record."""

    def unwatch(self, book: str, tag: str, finish: Finish) -> None:
        """See `watch`."""


BROKEN = ModuleInfo(module="broken", path="broken.py", error="broken.py:3: SyntaxError: invalid syntax")


def outcome_of(call: Call) -> Outcome:
    """What the functions do."""
    if call.function == "fail":
        details = {"error_type": "ValueError", "traceback": "Traceback: line 7 of secret.py"}
        return Outcome(None, Failure("function_failed", "fail: ValueError: no", "failed", False, details), {0: 5 << 43})
    if call.function in {"text", "raw"}:
        return Outcome(Payload("text" if call.function == "text" else "bytes", call.payload.data), None)
    return Outcome(Payload("json", call.payload.data or b"null"), None, {0: make_position(1, 9)})


@asynccontextmanager
async def serving(
    backend: FakeBackend | None = None, **settings: Any
) -> AsyncIterator[tuple[Gateway, FakeBackend, aiohttp.ClientSession]]:
    """A gateway that listens, its backend, and a session whose relative URLs lead to it."""
    limits = settings.get("limits", DEFAULT_LIMITS)
    backend = backend or FakeBackend(limits)
    await backend.ledger.start()
    settings["timeouts"] = replace(settings.get("timeouts", Timeouts()), linger_s=0.02)
    gateway = Gateway(backend, GatewayConfig(**{"port": 0, **settings}))
    await gateway.start()
    try:
        async with aiohttp.ClientSession(gateway.url) as session:
            yield gateway, backend, session
    finally:
        await gateway.stop(0)
        await backend.ledger.stop(0)


async def turns_until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until the condition holds, as often as it takes for a few packets to arrive."""
    for _ in range(1_000_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")


async def refused(response: aiohttp.ClientResponse, status: int, code: str) -> dict[str, Any]:
    """The body of an error answer, which has all its fields, with that status and code."""
    body: dict[str, Any] = await response.json()
    assert (response.status, body["code"]) == (status, code), body
    assert set(body) == {"code", "message", "outcome", "retryable", "details"}
    assert body["message"]
    return body


def stream_ended(core: Any) -> asyncio.Event:
    """Set when a stream of server-sent events has ended."""
    event = asyncio.Event()
    end_stream = core.end_stream

    def end() -> None:
        end_stream()
        event.set()

    core.end_stream = end
    return event
