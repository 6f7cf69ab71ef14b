"""A world for logged calls: a log in memory that can fail or stop at any operation, functions, and virtual time.

The event loop's clock jumps to the next timer whenever nothing is left to do, so back-offs and delays of a year take no
time, and the same test always runs the same way.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal, TypeVar

from boki.api.log_calls import records_of
from boki.books.calls.ledger import BOOK, CODEC, Entry, Finished
from boki.books.calls.logged_calls import LoggedCalls
from boki.books.calls.sleepers import Finish
from boki.books.calls.waiting import Owner
from boki.errors import BokiError, ConnectionLost, Unavailable
from boki.log.limits import DEFAULT_LIMITS, Limits
from boki.log.memory import MemoryLog
from boki.log.metalog import Positions
from boki.log.operations import Answer, Failure, Found, Operation, Read
from boki.log.record import Record
from boki.protocol.calls import Call, Outcome, Payload

T = TypeVar("T")
EPOCH_US = 1_700_000_000_000_000

Fault = Literal["refuse", "lose_request", "lose_answer", "halt_before", "halt_after"]


class _Jump(selectors.SelectSelector):
    """Waits for nothing: where a real selector would, time passes."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everybody waits, and nothing is going to happen")
        if timeout > 0:
            self.now_s += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now_s


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end in virtual time."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


def now_us() -> int:
    """Virtual time, as the log sees it."""
    return EPOCH_US + round(asyncio.get_running_loop().time() * 1e6)


async def time_passes(seconds: float) -> None:
    """Let virtual time pass, with all that is due meanwhile."""
    await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=seconds)


class WatchedLog(MemoryLog):
    """A log in memory that several engines share; who waits is woken by each change."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.changed = asyncio.Event()

    def answer(self, operation: Operation, now: int) -> Answer:
        """See `MemoryLog.answer`."""
        answer = super().answer(operation, now)
        if not isinstance(answer, Found):
            self.changed.set()
            self.changed = asyncio.Event()
        return answer


class FaultyPort:
    """A `LogPort` over a log in memory. `faults` says what goes wrong at which operation; a halt stops everything."""

    def __init__(self, log: WatchedLog, faults: dict[int, Fault] | None = None) -> None:
        self.log = log
        self.faults = faults or {}
        self.operations: list[Operation] = []
        self.watches: dict[tuple[str, str, Finish], asyncio.Task[None]] = {}
        self.is_halted = False
        self.halted = asyncio.Event()

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """See `boki.api.port.LogPort`."""
        fault = self.faults.get(len(self.operations))
        self.operations.append(operation)
        await asyncio.sleep(0)
        if fault == "halt_before":
            self._halt()
        if self.is_halted:
            await asyncio.get_running_loop().create_future()
        if fault == "refuse":
            raise Unavailable("refused")
        if fault == "lose_request":
            raise ConnectionLost("the request was lost")
        answer = await self._answer(operation)
        if fault == "halt_after":
            self._halt()
        if self.is_halted:
            await asyncio.get_running_loop().create_future()
        if fault == "lose_answer":
            raise ConnectionLost("the answer was lost")
        return answer

    async def _answer(self, operation: Operation) -> Answer:
        answer = self.log.answer(operation, now_us())
        if isinstance(answer, Found) and isinstance(operation, Read) and operation.wait_us and not answer.slabs:
            until = asyncio.get_running_loop().time() + operation.wait_us / 1e6
            while not answer.slabs and (left_s := until - asyncio.get_running_loop().time()) > 0:
                try:
                    async with asyncio.timeout(left_s):
                        await self.log.changed.wait()
                except TimeoutError:
                    break
                found = self.log.answer(operation, now_us())
                assert isinstance(found, Found)
                answer = found
        return answer

    def watch(self, book: str, tag: str, min_seqnum: int, finish: Finish) -> None:
        """See `boki.books.calls.sleepers.WatchingPort`."""
        task = asyncio.get_running_loop().create_task(self._watch(book, tag, min_seqnum, finish))
        self.watches[book, tag, finish] = task

    async def _watch(self, book: str, tag: str, min_seqnum: int, finish: Finish) -> None:
        while True:
            changed = self.log.changed
            found = self.log.answer(Read(book, tag, min_seqnum, limit=1), now_us())
            if isinstance(found, Found) and found.slabs and not self.is_halted:
                finish(found, {})
                return
            await changed.wait()

    def unwatch(self, book: str, tag: str, finish: Finish) -> None:
        """See `boki.books.calls.sleepers.WatchingPort`."""
        task = self.watches.pop((book, tag, finish), None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def _halt(self) -> None:
        self.is_halted = True
        self.halted.set()


Body = Callable[[Call], Awaitable[Outcome]]


class CallWorld:
    """One log, one process after the other. `bodies` are the functions; `ran` are the calls that were started."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self.log = WatchedLog(limits)
        self.ran: list[Call] = []
        self.bodies: dict[str, Body] = {}
        self.port = FaultyPort(self.log)
        self.incarnation = 0
        self.clock = now_us  # the engine's, which need not be the log's
        self.calls: LoggedCalls

    async def start(self, faults: dict[int, Fault] | None = None, **options: Any) -> LoggedCalls:
        """A process starts, on what the one before has left."""
        self.port = self.new_port(faults)
        self.incarnation += 1
        me = Owner("engine-1", self.incarnation)
        self.calls = LoggedCalls(self.port, self._run, me=me, clock=self.clock, limits=self.limits, **options)
        await self.calls.start()
        return self.calls

    def new_port(self, faults: dict[int, Fault] | None) -> FaultyPort:
        """A process's way to the log."""
        return FaultyPort(self.log, faults)

    async def kill(self) -> None:
        """The process is gone, with everything that it was doing."""
        self.port.is_halted = True
        for timer in (self.calls._timer, self.calls._housekeeping._timer, self.calls._takeover._timer):
            if timer is not None:
                timer.cancel()
        self.calls._is_open = False
        tasks = self._doomed()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _doomed(self) -> set[asyncio.Task[Any]]:
        """What dies with a process."""
        return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type] # None is no task

    async def _run(self, call: Call) -> Outcome:
        self.ran.append(call)
        return await self.bodies.get(call.function, echo)(call)

    def records(self) -> list[Record]:
        """The book, in order."""
        found = self.log.answer(Read(BOOK, limit=10_000), now_us())
        assert isinstance(found, Found)
        return list(records_of(found))

    def entries(self) -> list[Entry]:
        """What the book says, in order."""
        return [CODEC.decode(record.data) for record in self.records()]

    def finished(self) -> list[Finished]:
        """The outcomes that are recorded."""
        return [entry for entry in self.entries() if isinstance(entry, Finished)]


async def echo(call: Call) -> Outcome:
    """A function that returns its payload."""
    return Outcome(call.payload, None, {0: 7})


def a_call(number: int = 1, function: str = "echo", data: bytes = b'"hello"', timeout_s: float = 60.0) -> Call:
    """A call as the gateway makes it."""
    return Call(f"{number:032x}", function, Payload("json", data), "book", int(timeout_s * 1e6))


def failing(error: BokiError) -> Outcome:
    """How a call ends that failed."""
    return Outcome(None, Failure.of(error))


class Gate:
    """A function that runs until the test lets it end."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, call: Call) -> Outcome:
        self.started.set()
        await self.opened.wait()
        return Outcome(call.payload, None)
