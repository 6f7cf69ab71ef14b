"""An event loop in virtual time: the async shells that sessions of functions need run on the heap of the run."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from math import ceil
from typing import Any, TypeVar

from boki.errors import BokiError
from boki.log.metalog import Positions, merge_positions
from boki.log.operations import Answer, Failure
from boki.verify.sim.clockwork import START_US, Clockwork

T = TypeVar("T")
_PAUSED_US = 10_000


class SimulatedLoop(asyncio.AbstractEventLoop):
    """As much of a loop as tasks, futures and timers need. `is_paused` says whether the process stalls.

    There is one for each incarnation of a process, which ends with `end`: tasks are cancelled, those first that began
    first.
    """

    def __init__(self, clock: Clockwork, is_paused: Callable[[], bool]) -> None:
        self._clock = clock
        self._is_paused = is_paused
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._ready: deque[asyncio.Handle] = deque()
        self._has_turn = False
        self._is_over = False
        self.raised: list[str] = []
        """What no task and no callback has caught: bugs."""

    @property
    def has_turn(self) -> bool:
        """Whether anything is ready that has not run yet, as where the process stalls."""
        return self._has_turn

    def time(self) -> float:
        """Virtual seconds since the run began."""
        return (self._clock.now_us - START_US) / 1e6

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """See `asyncio`."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if not self._has_turn:
            self._has_turn = True
            self._clock.after(0, self._turn)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """See `asyncio`. There are no threads here."""
        return self.call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See `asyncio`."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._is_over:
            self._clock.after(max(0, ceil((when - self.time()) * 1e6)), self._ring, handle)  # never too early
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See `asyncio`."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        """See `asyncio`."""
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        """See `asyncio`."""
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def end(self) -> None:
        """The process has died, and with it all that it did."""
        self._is_over = True
        for task in list(self._tasks):
            task.cancel()

    def get_debug(self) -> bool:
        """See `asyncio`."""
        return False

    def is_running(self) -> bool:
        """See `asyncio`."""
        return True

    def is_closed(self) -> bool:
        """See `asyncio`."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """See `asyncio`."""
        self.raised.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing to do: what is cancelled does nothing when its time has come."""

    def _turn(self) -> None:
        """Run what is ready now; what becomes ready meanwhile is for the next turn."""
        if self._is_paused() and not self._is_over:
            self._clock.after(_PAUSED_US, self._turn)
            return
        ready = self._ready
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                self._run(handle)
        self._has_turn = bool(ready)
        if ready:
            self._clock.after(0, self._turn)

    def _ring(self, handle: asyncio.Handle) -> None:
        """A timer has run out."""
        if handle.cancelled() or self._is_over:
            return
        if self._is_paused():
            self._clock.after(_PAUSED_US, self._ring, handle)
        else:
            self._run(handle)

    def _run(self, handle: asyncio.Handle) -> None:
        # a run may be started from inside another loop's callback, as tests do
        outer = asyncio._get_running_loop()  # noqa: SLF001 - this is how loops are told apart
        asyncio._set_running_loop(self)  # noqa: SLF001
        try:
            handle._run()  # noqa: SLF001 - what every loop does with its handles
        finally:
            asyncio._set_running_loop(outer)  # noqa: SLF001


Answered = Callable[[object, Positions], None]
"""Takes what a node answers to an operation."""


async def answer_of(
    loop: SimulatedLoop,
    begin: Callable[[Answered], None],
    positions: Positions,
    abandon: Callable[[Answered], None],
) -> Answer:
    """What a node answers to the operation that `begin` hands to it; the error that it answers is raised.

    `positions` are raised to what was seen then. `abandon` is told if nobody waits for the answer any more.
    """
    future: asyncio.Future[tuple[object, Positions]] = loop.create_future()

    def done(answer: object, seen: Positions) -> None:
        if not future.done():
            future.set_result((answer, seen))

    begin(done)
    try:
        answer, seen = await future
    except asyncio.CancelledError:
        abandon(done)
        raise
    merge_positions(positions, seen)
    if isinstance(answer, Failure):
        raise answer.error()
    if isinstance(answer, BokiError):
        raise answer
    return answer  # type: ignore[return-value]
