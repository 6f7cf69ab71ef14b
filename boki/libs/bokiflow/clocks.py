"""What time it is for workflows, and when to be called: the machine's clock, or the virtual one of a test."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Final, Protocol, TypeVar

from boki import Context
from boki.libs.bokiflow.step_threads import StepThreads
from boki.libs.bokiflow.stepping import check_may_wait

T = TypeVar("T")

_NOTHING: Final = nullcontext()
_MOST_THREADS: Final = 256
"""Of a worker, for the `def` steps of its workflows: as many as an engine runs workflows. They mostly wait, so the
loop's own executor, of a few threads more than there are cores, would hold steps up until they time out.
"""
_FEWEST_THREADS: Final = 8
_DATA_BYTES: Final = 32 << 20
"""What a worker may have of memory for each of these threads: a stack of 8 MiB takes a quarter of it."""


@cache
def _threads() -> StepThreads:
    """Of this process. Stacks count as memory, which may be bounded."""
    data_bytes, _ = resource.getrlimit(resource.RLIMIT_DATA)
    most = _MOST_THREADS if data_bytes < 0 else min(_MOST_THREADS, data_bytes // _DATA_BYTES)
    return StepThreads(max(_FEWEST_THREADS, most))


class FlowTimer(Protocol):
    """Something that is due at a moment."""

    def cancel(self) -> object:
        """It is not due any more."""


class FlowClock(Protocol):
    """Time, in microseconds since the epoch."""

    def now_us(self) -> int:
        """What time it is, about: records have the time of the log."""

    def call_at(self, due_us: int, callback: Callable[[], object]) -> FlowTimer:
        """Call `callback` at that time."""

    def run_in_thread(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run blocking code in a thread. Beyond 256 at once, or fewer with little memory, it waits. `NoThread`: there
        is none, and it does not run.
        """

    def in_loop(self, work: Coroutine[Any, Any, T], /) -> T:
        """Run the work in the loop, for a thread of `run_in_thread` that waits for it. See `check_may_wait`."""

    def waiting(self) -> AbstractContextManager[object]:
        """Around an `await` that only time, or somebody else's doing, can end."""


class WorkerClock:
    """The clock of a worker."""

    __slots__ = ("_loop", "_now_us")

    def __init__(self, ctx: Context) -> None:
        self._now_us = ctx.logbook.session.likely_time_us
        self._loop = asyncio.get_running_loop()

    def now_us(self) -> int:
        """See `FlowClock`."""
        return self._now_us()

    def call_at(self, due_us: int, callback: Callable[[], object]) -> FlowTimer:
        """See `FlowClock`."""
        return self._loop.call_later(max(0.0, (due_us - self._now_us()) / 1e6), callback)

    def run_in_thread(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """See `FlowClock`."""
        return self._loop.run_in_executor(_threads(), work)

    def in_loop(self, work: Coroutine[Any, Any, T], /) -> T:
        """See `FlowClock`."""
        check_may_wait(work)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def waiting(self) -> AbstractContextManager[object]:
        """See `FlowClock`."""
        return _NOTHING


class VirtualClock:
    """The clock of `boki.testing`: time passes at once when everything waits for it."""

    __slots__ = ("_clock", "_loop")

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()

    def now_us(self) -> int:
        """See `FlowClock`."""
        return int(self._clock.now_us)

    def call_at(self, due_us: int, callback: Callable[[], object]) -> FlowTimer:
        """See `FlowClock`."""
        timer: FlowTimer = self._clock.call_at(max(due_us, self._clock.now_us), callback)
        return timer

    def run_in_thread(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """See `FlowClock`. Time stops while it runs."""
        future = self._loop.run_in_executor(_threads(), work)
        self._clock.thread_started()
        future.add_done_callback(lambda _: self._clock.thread_stopped())
        return future

    def in_loop(self, work: Coroutine[Any, Any, T], /) -> T:
        """See `FlowClock`. Time may pass meanwhile."""
        check_may_wait(work)

        async def waited_for() -> T:
            self._clock.thread_stopped()
            try:
                return await work
            finally:
                self._clock.thread_started()

        return asyncio.run_coroutine_threadsafe(waited_for(), self._loop).result()

    def waiting(self) -> AbstractContextManager[object]:
        """See `FlowClock`."""
        waiting: AbstractContextManager[object] = self._clock.waiting()
        return waiting


def clock_of(ctx: Context) -> FlowClock:
    """The clock by which a call lives."""
    virtual = getattr(ctx, "clock", None)
    return WorkerClock(ctx) if virtual is None else VirtualClock(virtual)
