"""Calls that are put into the log before they run: asynchronous ones, delayed ones, and those with a key.

What has been accepted runs, whatever happens to this engine: its unfinished calls are taken over by another one, or by
itself when it is there again, and run again under their ids. Before that the lost incarnation is fenced, so that bodies
of it which still run can append no more. An outcome is recorded at most once, and whoever asks under the same key, at
any engine, gets that one.

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

from boki.calls import MAX_DELAY_S, Call, InvocationState, Outcome
from boki.engine.calls.call_book import CallBook
from boki.engine.calls.ledger import (
    MAX_STARTS,
    NOBODY,
    Accepted,
    CallEntry,
    Entry,
    Finished,
    Owner,
    Progress,
    TakenOver,
    Waiting,
    accepted_at,
    corrected_key,
    due_at,
    id_of,
    lost_too_often,
    request_hash,
    run_again_after,
    state_of,
)
from boki.engine.calls.lost_owners import LostOwners
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
from boki.log.ids import NodeId
from boki.log.limits import DEFAULT_LIMITS, Limits
from boki.log.membership import Membership
from boki.log.operations import Failure
from boki.log.record import Record
from boki.runtime.port import LogPort

_log = logging.getLogger("boki.calls")

_ACCEPT_TIMEOUT_S: Final = 30.0
_LONGEST_TIMER_S: Final = 3600.0
_CHECKPOINT_EVERY: Final = 500
"""A start reads about so many records at most, each perhaps from another machine; or as many as calls wait."""
_TRIMS_PER_KEEP: Final = 24
_RETRY_AFTER_S: Final = 1

_WATCH_S: Final = 0.5
_TAKE_AGAIN_S: Final = 1.0

Run = Callable[[Call], Awaitable[Outcome]]
Fence = Callable[[int], Awaitable[None]]
"""Returns once an engine incarnation can append no more, and all that it has appended can be read here."""
T = TypeVar("T")


class LoggedCalls:
    """The logged calls of one engine. `run` runs a body; `clock` is the log's time as well as it is known here.

    Without a `fence` there is no other engine, and earlier incarnations of this one have ended with their terms.
    """

    def __init__(
        self,
        port: LogPort,
        run: Run,
        *,
        me: Owner,
        fence: Fence | None = None,
        clock: Callable[[], int] = now_us,
        grace_s: float = 3.0,
        keep_s: float = 24 * 3600.0,
        max_running: int = 256,
        max_waiting: int = 200_000,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._book = CallBook(port, me, limits)
        self._run = run
        self._me = me
        self._fence = fence
        self._lost = LostOwners(me, int(grace_s * 1e6))
        self._taking: set[Owner] = set()
        self._clock = clock
        self._keep_s = keep_s
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._is_open = False
        self._accepting: set[str] = set()
        self._mine: dict[str, bool] = {}
        """The calls that this engine runs or is going to run, and whether it has inherited them."""
        self._ready: deque[str] = deque()
        self._delayed: list[tuple[int, str]] = []
        self._running: set[str] = set()
        self._progress: dict[str, Progress] = {}
        self._ends: dict[str, asyncio.Future[Outcome]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._background: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._trimmer: asyncio.TimerHandle | None = None
        self._watcher: asyncio.TimerHandle | None = None
        self._has_housekeeping = False

    @property
    def waiting_count(self) -> int:
        """Calls that are accepted and not finished, those that run included."""
        return len(self._book.ledger.waiting)

    @property
    def running_count(self) -> int:
        """Calls whose body runs."""
        return len(self._running)

    def on_membership(self, membership: Membership) -> None:
        """Who is registered now: what engines leave behind that are gone is taken over."""
        self._lost.on_membership(membership)
        self._watch()

    async def start(self) -> None:
        """Read the book, and follow it from then on. Calls that lost engines have left are taken over, and run."""
        await self._book.recover()
        self._is_open = True
        if self.waiting_count:
            what = "1 logged call is" if self.waiting_count == 1 else f"{self.waiting_count} logged calls are"
            _log.info("%s unfinished", what)
        self._spawn(self._book.follow(self._on_entry, self._adopt_all), in_background=True)
        self._watch()
        self._schedule_trim()

    async def stop(self, drain_s: float = 10.0) -> None:
        """Accept no more, wait for what runs at most `drain_s`. What is left runs after the next start."""
        self._is_open = False
        for timer in (self._timer, self._trimmer, self._watcher):
            if timer is not None:
                timer.cancel()
        for task in self._background:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=drain_s)
        if self._book.unsaved_count:
            try:
                async with asyncio.timeout(2.0):
                    await self._book.checkpoint()
            except (BokiError, TimeoutError) as error:
                _log.info("no checkpoint of the logged calls was written: %s", error)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._background, return_exceptions=True)
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
            raise InvalidArgument(
                f"delay_s must be 0 to {MAX_DELAY_S:,.0f} seconds (a year), not {delay_s:,.15g}", field="delay_s"
            )
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
                if invocation_id in self._mine:
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
            found = await self._book.find(invocation_id) if _is_id(invocation_id) else None
            if found is None:
                raise NoSuchInvocation(
                    f"no logged call has the id {invocation_id[:64]!r}; results are kept for {self._keep_s:g} s",
                    field="id",
                )
            entry, record = found
            left_s = until - loop.time()
            if isinstance(entry, Finished) or left_s <= 0:
                return await self._state_of(entry, record)
            await self._book.wait_for_more(invocation_id, record, left_s)

    def other_owner(self, invocation_id: str) -> NodeId | None:
        """The engine that runs this unfinished call, or is going to, if that is another one."""
        waiting = self._book.ledger.waiting.get(invocation_id)
        if waiting is None or waiting.owner in (self._me, NOBODY):
            return None
        return NodeId(waiting.owner.node)

    async def _state_of(self, entry: CallEntry, record: Record) -> InvocationState:
        if isinstance(entry, Finished):
            return state_of(entry, record.time, None)
        progress = self._progress.get(id_of(entry))
        if isinstance(entry, Accepted):
            return state_of(entry, record.time, progress)
        accepted, accepted_us = await self._book.acceptance(entry)
        return state_of(accepted, accepted_us, progress or Progress(starts=entry.starts, started_us=record.time))

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
        if self.waiting_count + len(self._accepting) >= self._max_waiting:
            raise Overloaded(
                f"{self._max_waiting} logged calls wait to be run, as many as are accepted",
                retry_after_s=_RETRY_AFTER_S,
                limit=self._max_waiting,
            )
        entry = Accepted(call, request_hash(call, delay_us), delay_us, owner=self._me)
        self._accepting.add(call.id)
        try:
            first, accepted_us, waiting = await self._book.accept(entry, key)
            logged_key = key
            while logged_key and first.request_hash != entry.request_hash and await self._was_refused(first.call.id):
                logged_key = corrected_key(logged_key, first.call.id)
                first, accepted_us, waiting = await self._book.accept(entry, logged_key)
        finally:
            self._accepting.discard(call.id)
        if first.request_hash != entry.request_hash:
            raise KeyReused(
                f"key {key!r} was used for another request, a call of {first.call.function!r}: use a new key",
                field="Idempotency-Key",
                invocation=first.call.id,
            )
        if waiting is not None and waiting.owner == self._me and waiting.id not in self._mine:
            self._mine[waiting.id] = False
            self._begin(waiting, first, accepted_us, is_urgent=is_urgent)
        return first

    async def _was_refused(self, invocation_id: str) -> bool:
        """Whether the call ended without having run, because its function does not take such a payload."""
        if invocation_id in self._book.ledger.waiting:
            return False
        last = await self._book.last(invocation_id)
        failure = last[0].outcome.failure if last is not None and isinstance(last[0], Finished) else None
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

    # Following, and taking over

    def _on_entry(self, entry: Entry) -> None:
        """The next record of the book has been read and folded."""
        if isinstance(entry, TakenOver) and entry.heir == self._me:
            self._adopt_all()
        elif isinstance(entry, Accepted) and entry.owner == self._me and entry.call.id not in self._accepting:
            self._adopt_all(entry.call.id)  # the append had an answer that did not arrive
        elif isinstance(entry, Accepted | TakenOver):
            self._watch_soon()  # its owner may be gone already
        if self._book.unsaved_count >= max(_CHECKPOINT_EVERY, self.waiting_count):
            self._keep_house(self._book.checkpoint)

    def _adopt_all(self, only: str | None = None) -> None:
        """Run what is this engine's and not known to be: all of it, or one call."""
        ledger = self._book.ledger
        found = ledger.owned_by(self._me) if only is None else filter(None, (ledger.waiting.get(only),))
        for waiting in found:
            if waiting.id not in self._mine and waiting.owner == self._me:
                self._mine[waiting.id] = only is None
                self._queue(waiting.id, waiting.due_us)
        self._pump()

    def _watch(self) -> None:
        """Take over from whoever is lost; look again while there is anybody who may be."""
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None
        owners = [owner for owner in self._book.ledger.owners() if owner != self._me]
        if not owners or not self._is_open:
            return
        for owner in self._lost.among(owners, self._clock()):
            if owner not in self._taking:
                self._taking.add(owner)
                self._spawn(self._take_over(owner), in_background=True)
        if self._lost.has_missing or self._taking:
            self._watch_soon()

    def _watch_soon(self) -> None:
        if self._watcher is None:
            self._watcher = asyncio.get_running_loop().call_later(_WATCH_S, self._watch)

    async def _take_over(self, owner: Owner) -> None:
        _log.info("taking over the logged calls of engine %s, incarnation %d", *owner)
        try:
            if self._fence is not None and owner != NOBODY:
                await self._fence(owner.incarnation)
            await self._book.take_over(owner)
        except BokiError as error:
            _log.warning("taking over from engine %s failed, to be repeated: %s", owner.node, error)
        # not at once, so that meanwhile the fold learns who has taken over
        asyncio.get_running_loop().call_later(_TAKE_AGAIN_S, self._taking.discard, owner)

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
            loaded = known if waiting is None or known else await self._book.load(waiting)
            if waiting is None or waiting.owner != self._me or loaded is None:
                self._forget_call(invocation_id)
                return
            entry, record_time_us = loaded
            progress = self._progress.get(invocation_id)
            if progress is None:
                progress = self._progress[invocation_id] = Progress(starts=waiting.starts)
                if self._mine.get(invocation_id) and not await self._may_begin(waiting):
                    return
            progress.starts += 1
            progress.started_us = progress.started_us or self._clock()
            too_often = progress.starts > MAX_STARTS
            outcome = lost_too_often() if too_often else await self._attempt(entry.call)
            again_us = None if too_often else run_again_after(outcome, progress)
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

    async def _may_begin(self, waiting: Waiting) -> bool:
        """Record the start of an inherited call, unless it has had too many; False if it is no longer this engine's."""
        if waiting.starts >= MAX_STARTS or await self._book.begin(waiting) is not None:
            return True
        self._forget_call(waiting.id)
        return False

    def _forget_call(self, invocation_id: str) -> None:
        """The call is over, or another's."""
        self._mine.pop(invocation_id, None)
        self._progress.pop(invocation_id, None)

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
        self._forget_call(call.id)
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

    def _spawn(self, work: Coroutine[Any, Any, T], *, in_background: bool = False) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        (self._background if in_background else self._tasks).add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._background.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, BokiError):  # those are answers, which somebody may have left
            _log.error("a bug in logged calls", exc_info=error)


def _is_id(text: str) -> bool:
    return len(text) == 32 and all(character in "0123456789abcdef" for character in text)
