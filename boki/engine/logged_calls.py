"""Calls that are put into the log before they run: asynchronous ones, delayed ones, and those with a key.

What has been accepted runs, whatever happens to this process: after a restart the unfinished calls of the book are run
again under their ids. An outcome is recorded at most once, and whoever asks under the same key gets that one.

How much runs at once is bounded, and payloads of calls that wait stay in the log: memory holds some hundred bytes for
each. A call that somebody waits for (`call_once`) does not queue behind those, because the gateway has bounded it.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from boki.calls import Call, InvocationState, Outcome
from boki.engine.call_book import CallBook
from boki.engine.ledger import (
    Accepted,
    Finished,
    Progress,
    Waiting,
    accepted_at,
    corrected_key,
    due_at,
    request_hash,
    run_again_after,
    state_of,
)
from boki.errors import (
    BokiError,
    DeadlineExceeded,
    InvalidArgument,
    KeyReused,
    NoSuchInvocation,
    Overloaded,
    Unavailable,
)
from boki.host.clock import now_us
from boki.log.limits import DEFAULT_LIMITS, Limits
from boki.log.operations import Failure
from boki.runtime.port import LogPort

_log = logging.getLogger("boki.calls")

MAX_DELAY_S: Final = 365 * 24 * 3600.0
_ACCEPT_TIMEOUT_S: Final = 30.0
_LONGEST_TIMER_S: Final = 3600.0
_CHECKPOINT_EVERY: Final = 10_000
_TRIMS_PER_KEEP: Final = 24
_RETRY_AFTER_S: Final = 1

Run = Callable[[Call], Awaitable[Outcome]]
T = TypeVar("T")


class LoggedCalls:
    """The logged calls of one engine. `run` runs a body; `clock` is the log's time as well as it is known here."""

    def __init__(
        self,
        port: LogPort,
        run: Run,
        *,
        clock: Callable[[], int] = now_us,
        keep_s: float = 24 * 3600.0,
        max_running: int = 256,
        max_waiting: int = 200_000,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._book = CallBook(port, limits)
        self._run = run
        self._clock = clock
        self._keep_s = keep_s
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._is_open = False
        self._accepting = 0
        self._ready: deque[str] = deque()
        self._delayed: list[tuple[int, str]] = []
        self._running: set[str] = set()
        self._progress: dict[str, Progress] = {}
        self._ends: dict[str, asyncio.Future[Outcome]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._trimmer: asyncio.TimerHandle | None = None
        self._has_housekeeping = False

    @property
    def waiting_count(self) -> int:
        """Calls that are accepted and not finished, those that run included."""
        return len(self._book.ledger.waiting)

    @property
    def running_count(self) -> int:
        """Calls whose body runs."""
        return len(self._running)

    async def start(self) -> None:
        """Read the book; unfinished calls run again, delayed ones when they are due."""
        await self._book.recover()
        self._is_open = True
        for waiting in self._book.ledger.waiting.values():
            self._queue(waiting.id, waiting.due_us)
        if self.waiting_count:
            what = "1 logged call is" if self.waiting_count == 1 else f"{self.waiting_count} logged calls are"
            _log.info("%s unfinished: running what is due", what)
        self._pump()
        self._schedule_trim()

    async def stop(self, drain_s: float = 10.0) -> None:
        """Accept no more, wait for what runs at most `drain_s`. What is left runs after the next start."""
        self._is_open = False
        for timer in (self._timer, self._trimmer):
            if timer is not None:
                timer.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=drain_s)
        if self._book.appended_count:
            try:
                async with asyncio.timeout(2.0):
                    await self._book.checkpoint()
            except (BokiError, TimeoutError) as error:
                _log.info("no checkpoint of the logged calls was written: %s", error)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        left = Unavailable("shutting down: the call runs again after the next start", outcome="unknown")
        for end in self._ends.values():
            end.set_result(Outcome(None, Failure.of(left)))
        self._ends.clear()

    async def accept(self, call: Call, *, key: str | None = None, delay_s: float = 0.0) -> str:
        """Log the call, to be run after `delay_s` (by the log's time): its id, once that is durable.

        Under a key that was used for the same request within a day, the id of the first call; for another request:
        `KeyReused`, unless the first call was refused without having run: its corrected form takes over the key.
        `Overloaded` if too many calls wait.
        """
        if not 0 <= delay_s <= MAX_DELAY_S:
            raise InvalidArgument(f"delay_s must be from 0 to {MAX_DELAY_S:g} (a year), not {delay_s}", field="delay_s")
        accept = self._accept(call, key, int(delay_s * 1e6), is_urgent=False)
        first = await self._shielded(accept, call.id, _ACCEPT_TIMEOUT_S)
        return first.call.id

    async def call_once(self, call: Call, key: str) -> tuple[str, Outcome]:
        """Run the call and wait for its end, at most its `timeout_us`: its id and its outcome.

        Under a key that was used for the same request within a day, those of the first call, after waiting for its end;
        for another request: see `accept`. Once it is accepted it goes on, also if nobody waits any more.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + call.timeout_us / 1e6
        first = await self._shielded(self._accept(call, key, 0, is_urgent=True), call.id, call.timeout_us / 1e6)
        invocation_id = first.call.id
        try:
            async with asyncio.timeout_at(until):
                if invocation_id in self._book.ledger.waiting:
                    end = self._ends.setdefault(invocation_id, loop.create_future())
                    return invocation_id, await asyncio.shield(end)
                return invocation_id, await self._book.outcome(invocation_id)
        except TimeoutError:
            raise DeadlineExceeded(
                f"call {invocation_id} has not ended in time; it goes on, and the same key gives its outcome later",
                invocation=invocation_id,
            ) from None

    async def state(self, invocation_id: str, wait_s: float = 0.0) -> InvocationState:
        """What is known of a call, after waiting at most `wait_s` for its end. `NoSuchInvocation`"""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while True:
            found = await self._book.last(invocation_id) if _is_id(invocation_id) else None
            if found is None:
                raise NoSuchInvocation(
                    f"no logged call has the id {invocation_id[:64]!r}; results are kept for {self._keep_s:g} s",
                    field="id",
                )
            entry, record = found
            left_s = until - loop.time()
            if isinstance(entry, Finished) or left_s <= 0:
                return state_of(entry, record.time, self._progress.get(invocation_id))
            await self._book.wait_for_more(invocation_id, record, left_s)

    # Accepting

    async def _shielded(self, work: Coroutine[Any, Any, T], invocation_id: str, timeout_s: float) -> T:
        """Wait for work that goes on if its caller leaves: a record that is under way may be in the log."""
        task = self._spawn(work)
        done, _ = await asyncio.wait([task], timeout=timeout_s)
        if not done:
            raise DeadlineExceeded(
                f"whether call {invocation_id} is in the log is not known: ask for its state, or repeat it under a key",
                invocation=invocation_id,
            )
        return task.result()

    async def _accept(self, call: Call, key: str | None, delay_us: int, *, is_urgent: bool) -> Accepted:
        if not self._is_open:
            raise Unavailable("logged calls are not accepted now: starting or shutting down")
        if self.waiting_count + self._accepting >= self._max_waiting:
            raise Overloaded(
                f"{self._max_waiting} logged calls wait to be run, as many as are accepted",
                retry_after_s=_RETRY_AFTER_S,
                limit=self._max_waiting,
            )
        entry = Accepted(call, request_hash(call, delay_us), delay_us)
        self._accepting += 1
        try:
            first, accepted_us, waiting = await self._book.accept(entry, key)
            logged_key = key
            while logged_key and first.request_hash != entry.request_hash and await self._was_refused(first.call.id):
                logged_key = corrected_key(logged_key, first.call.id)
                first, accepted_us, waiting = await self._book.accept(entry, logged_key)
        finally:
            self._accepting -= 1
        if first.request_hash != entry.request_hash:
            raise KeyReused(
                f"key {key!r} was used for another request, a call of {first.call.function!r}: use a new key",
                field="Idempotency-Key",
                invocation=first.call.id,
            )
        if waiting is not None:
            self._begin(waiting, entry, accepted_us, is_urgent=is_urgent)
        return first

    async def _was_refused(self, invocation_id: str) -> bool:
        """Whether the call ended without having run, because its function does not take such a payload."""
        if invocation_id in self._book.ledger.waiting:
            return False
        failure = (await self._book.outcome(invocation_id)).failure
        return failure is not None and failure.outcome == "not_applied"

    def _begin(self, waiting: Waiting, entry: Accepted, accepted_us: int, *, is_urgent: bool) -> None:
        """Run a call at once if it may, so that its payload need not be read from the log again; else queue it."""
        is_due = waiting.due_us <= self._clock()
        has_room = len(self._running) < self._max_running and not self._ready
        if self._is_open and is_due and (is_urgent or has_room):
            self._start_body(waiting.id, (entry, accepted_us))
        else:
            self._queue(waiting.id, waiting.due_us)
            self._pump()
        if self._book.appended_count >= _CHECKPOINT_EVERY:
            self._keep_house(self._book.checkpoint)

    # Running

    def _queue(self, invocation_id: str, due_us: int) -> None:
        if due_us > self._clock():
            heapq.heappush(self._delayed, (due_us, invocation_id))
        else:
            self._ready.append(invocation_id)

    def _pump(self) -> None:
        """Start what is due, as far as there is room, and set the timer for what comes next."""
        if not self._is_open:
            return
        now = self._clock()
        while self._delayed and self._delayed[0][0] <= now:
            self._ready.append(heapq.heappop(self._delayed)[1])
        while self._ready and len(self._running) < self._max_running:
            self._start_body(self._ready.popleft(), None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._delayed:
            # never so far ahead that a clock that is set anew could make it very late
            delay_s = min((self._delayed[0][0] - now) / 1e6, _LONGEST_TIMER_S)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._pump)

    def _start_body(self, invocation_id: str, known: tuple[Accepted, int] | None) -> None:
        self._running.add(invocation_id)
        self._spawn(self._run_body(invocation_id, known))

    async def _run_body(self, invocation_id: str, known: tuple[Accepted, int] | None) -> None:
        """One start of a call's body, and what follows from its outcome."""
        try:
            waiting = self._book.ledger.waiting.get(invocation_id)
            if waiting is None:
                return
            entry, record_time_us = known or await self._book.load(waiting)
            progress = self._progress.setdefault(invocation_id, Progress())
            progress.starts += 1
            progress.started_us = progress.started_us or self._clock()
            outcome = await self._attempt(entry.call)
            again_us = run_again_after(outcome, progress)
            if again_us is not None:
                _log.info("call %s runs again in %.1f s: %s", invocation_id, again_us / 1e6, outcome.failure)
                heapq.heappush(self._delayed, (self._clock() + again_us, invocation_id))
                return
            await self._finish(entry, record_time_us, progress, outcome)
        except BokiError:
            _log.exception("call %s cannot be run or recorded: it will be tried at the next start", invocation_id)
        finally:
            self._running.discard(invocation_id)
            self._pump()

    async def _attempt(self, call: Call) -> Outcome:
        try:
            return await self._run(call)
        except BokiError as error:
            return Outcome(None, Failure.of(error))

    async def _finish(self, entry: Accepted, record_time_us: int, progress: Progress, outcome: Outcome) -> None:
        call = entry.call
        finished = Finished(
            call.id,
            call.function,
            call.book,
            outcome,
            accepted_at(entry, record_time_us),
            due_at(entry, record_time_us),
            progress.started_us,
            progress.starts,
        )
        recorded = await self._book.finish(finished)
        self._progress.pop(call.id, None)
        end = self._ends.pop(call.id, None)
        if end is not None and not end.done():
            end.set_result(recorded)

    # In the background

    def _schedule_trim(self) -> None:
        if self._is_open:
            interval_s = min(self._keep_s / _TRIMS_PER_KEEP, _LONGEST_TIMER_S)
            self._trimmer = asyncio.get_running_loop().call_later(interval_s, self._trim)

    def _trim(self) -> None:
        self._keep_house(lambda: self._book.trim(self._clock() - int(self._keep_s * 1e6)))
        self._schedule_trim()

    def _keep_house(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Trim or write a checkpoint, one at a time; what fails is done next time."""
        if not self._has_housekeeping:
            self._has_housekeeping = True
            self._spawn(self._housekeeping(work))

    async def _housekeeping(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except BokiError as error:
            _log.warning("keeping the book of logged calls in order failed, to be repeated: %s", error)
        finally:
            self._has_housekeeping = False

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, BokiError):  # those are answers, which somebody may have left
            _log.error("a bug in logged calls", exc_info=error)


def _is_id(text: str) -> bool:
    return len(text) == 32 and all(character in "0123456789abcdef" for character in text)
