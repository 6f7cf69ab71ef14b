"""Ports over a `MemoryLog` in virtual time: what a LogBook sits on in a unit test.

The log itself never waits; this file holds the reads that do. A waiting read is answered in the same moment in which
its record is appended, so nothing that is trimmed right afterwards can be missed by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from threading import Thread
from typing import Any, Final, TypeVar

import msgspec

from boki.errors import DeadlineExceeded, Unavailable
from boki.log.checks import check_request
from boki.log.limits import DEFAULT_LIMITS, Limits
from boki.log.memory import MemoryLog
from boki.log.metalog import Positions, make_position, merge_positions
from boki.log.operations import Answer, Append, Found, Operation, Read
from boki.testing.virtual_clock import START_US, Clock

T = TypeVar("T")

ENDLESS_S: Final = 100 * 365 * 24 * 3600.0
"""`longest_poll_s` of a test: a subscription waits once, and is no reason for time to pass."""
_CLOSED: Final = "the test's context is closed"
_ENDLESS_US: Final = 365 * 24 * 3600 * 1_000_000


class MemoryPort:
    """A `LogPort` over a `MemoryLog`. It belongs to the running event loop."""

    def __init__(
        self, log: MemoryLog | None = None, clock: Clock | None = None, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self.log = log or MemoryLog(limits)
        self.clock = clock or Clock(max(START_US, self.log.time_us))
        self.limits = limits
        self._waiting: dict[asyncio.Future[Found], tuple[Read, Found]] = {}
        self._watches: list[tuple[Read, Callable[[], None]]] = []
        self._change_count = 0
        self._is_closed = False
        self._loop = asyncio.get_running_loop()

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """See `boki.api.port.LogPort`."""
        check_request(operation, self.limits)
        self.clock.note_activity()
        await asyncio.sleep(0)  # an answer never comes in the turn of its request
        if self._is_closed:
            raise Unavailable(_CLOSED)
        answer = self.log.answer(operation, self.clock.now_us)
        if isinstance(answer, Found) and isinstance(operation, Read):
            if not answer.slabs and operation.wait_us:
                answer = await self._wait(operation, answer, timeout_s)
        else:
            self._change_count += 1
            self._answer_waiting()
        merge_positions(positions, {0: make_position(1, self._change_count)})
        return answer

    async def _wait(self, read: Read, nothing: Found, timeout_s: float) -> Found:
        future: asyncio.Future[Found] = self._loop.create_future()
        self._waiting[future] = (read, nothing)
        timeout_us = round(timeout_s * 1e6)
        timer = None
        if read.wait_us < _ENDLESS_US:
            due_us = self.clock.now_us + min(read.wait_us, timeout_us)
            timer = self.clock.call_at(due_us, lambda: _answer(future, nothing))
        try:
            with self.clock.waiting():
                found = await future
        finally:
            del self._waiting[future]
            if timer is not None:
                timer.cancel()
        if not found.slabs and timeout_us < read.wait_us:
            raise DeadlineExceeded(f"no record of book {read.book!r} came before the deadline", outcome="not_applied")
        return found

    def _answer_waiting(self) -> None:
        for future, (read, nothing) in list(self._waiting.items()):
            found = self.log.answer(read, self.clock.now_us)
            if isinstance(found, Found) and found.slabs:
                # it was there before the record was, so no trim has taken anything away from it
                _answer(future, msgspec.structs.replace(found, first_seqnum=nothing.first_seqnum))

        for read, wake in list(self._watches):
            if (read, wake) in self._watches and self._has(read):
                self._watches.remove((read, wake))
                wake()

    def record(self, operation: Append) -> None:
        """Append as the runtime does, which alone writes its books."""
        self.log.answer(operation, self.clock.now_us)
        self._change_count += 1
        self._answer_waiting()

    def _has(self, read: Read) -> bool:
        found = self.log.answer(read, self.clock.now_us)
        return isinstance(found, Found) and bool(found.slabs)

    def watch(self, book: str, tag: str, min_seqnum: int, wake: Callable[[], None]) -> None:
        """Call `wake` once, maybe before returning, when the tag has a record at or above `min_seqnum`."""
        read = Read(book, tag, min_seqnum, limit=1)
        if self._has(read):
            wake()
        else:
            self._watches.append((read, wake))

    def unwatch(self, wake: Callable[[], None]) -> None:
        """End the watches of that `wake`."""
        self._watches = [watch for watch in self._watches if watch[1] != wake]

    def close(self) -> None:
        """End the reads that wait, and answer no more: the test is over. Its time has passed for the log, too."""
        self._is_closed = True
        self.log.time_us = max(self.log.time_us, self.clock.now_us)
        for future in self._waiting:
            if not future.done():
                future.set_exception(Unavailable(_CLOSED))

    # blocking code, in threads

    def bridge(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work in the port's loop and wait for it. For a thread of `run_in_thread`: it counts as waiting."""
        return asyncio.run_coroutine_threadsafe(self._for_thread(work), self._loop).result()

    async def _for_thread(self, work: Coroutine[Any, Any, T]) -> T:
        self.clock.thread_stopped()
        try:
            return await work
        finally:
            self.clock.thread_started()

    async def run_in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run blocking code that reaches the log by `bridge`. A thread each, since one may wait for another."""
        future: asyncio.Future[T] = self._loop.create_future()

        def settle(error: BaseException | None, result: Any) -> None:
            self.clock.thread_stopped()
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def run() -> None:
            try:
                result = function(*arguments)
            except BaseException as error:  # noqa: BLE001 - it is raised again where the thread is waited for
                self._loop.call_soon_threadsafe(settle, error, None)
            else:
                self._loop.call_soon_threadsafe(settle, None, result)

        self.clock.thread_started()
        Thread(target=run, daemon=True, name=f"boki-test-{getattr(function, '__name__', 'call')}").start()
        return await future


def _answer(future: asyncio.Future[Found], found: Found) -> None:
    if not future.done():
        future.set_result(found)


class BlockingMemoryPort:
    """The same log for blocking code in a thread."""

    def __init__(self, port: MemoryPort) -> None:
        self._port = port

    def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """See `boki.api.port.BlockingLogPort`."""
        return self._port.bridge(self._port.request(operation, positions, timeout_s))
