"""Calls that are put into the log before they run: asynchronous or delayed ones, and those with an idempotency key.

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
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import msgspec

from boki.books.calls.call_book import CallBook
from boki.books.calls.chosen_ids import accept_chosen, copied
from boki.books.calls.housekeeping import Housekeeping
from boki.books.calls.inquiries import Inquiries
from boki.books.calls.ledger import Accepted, Entry, Finished, TakenOver, corrected_key, request_hash
from boki.books.calls.lives import check_size, pinned
from boki.books.calls.room import Room
from boki.books.calls.runner import Next, Origin, Run, Runner
from boki.books.calls.runs import Runs
from boki.books.calls.sleepers import Sleepers, WatchingPort
from boki.books.calls.takeover import Fence, Takeover
from boki.books.calls.trying import Trying
from boki.books.calls.waiting import NOBODY, Owner, PackedCall, Waiting
from boki.errors import (
    BokiError,
    DeadlineExceeded,
    KeyReused,
    Unavailable,
)
from boki.host.clock import now_us
from boki.log.ids import NodeId
from boki.log.limits import DEFAULT_LIMITS, Limits
from boki.log.membership import Membership
from boki.log.operations import Failure
from boki.protocol.calls import (
    Begun,
    Call,
    CallChange,
    CallFilter,
    CallPage,
    InvocationState,
    Move,
    Outcome,
    version_of,
)
from boki.retry import check_delay

_log = logging.getLogger("boki.protocol.calls")

_ACCEPT_TIMEOUT_S: Final = 30.0
_LONGEST_TIMER_S: Final = 3600.0
_SHORT_BYTES: Final = 16 * 1024
"""Longer results do not travel with the answer to a start: most callers do not ask for them."""

T = TypeVar("T")


class LoggedCalls:
    """The logged calls of one engine. `run` runs a body; `clock` is the log's time as well as it is known here.

    Without a `fence` there is no other engine, and earlier incarnations of this one have ended with their terms.
    """

    def __init__(
        self,
        port: WatchingPort,
        run: Run,
        *,
        me: Owner,
        fence: Fence | None = None,
        clock: Callable[[], int] = now_us,
        grace_s: float = 3.0,
        keep_s: float = 24 * 3600.0,
        max_running: int = 256,
        max_waiting: int = 200_000,
        max_suspended: int = 250_000,
        limits: Limits = DEFAULT_LIMITS,
        version: Callable[[str], int] = lambda _: 0,
        replays: Callable[[str], bool] = lambda _: False,
        tries: bool = True,
    ) -> None:
        """`version`: the one that a new call of a function is pinned to; 0: none. `replays`, `tries`: see `Trying`."""
        self._version = version
        self._limits = limits
        self._book = CallBook(port, me, limits, clock)
        self._inquiries = Inquiries(self._book, keep_s, clock)
        self._runner = Runner(self._book, run, clock)
        self._trying = Trying(self._book, run, clock, replays, is_on=tries)
        self._me = me
        self._takeover = Takeover(
            self._book,
            fence,
            grace_us=int(grace_s * 1e6),
            clock=clock,
            is_open=lambda: self._is_open,
            spawn=lambda work: self._spawn(work, in_background=True),
        )
        self._clock = clock
        self._max_running = max_running
        self._room = Room(self._book, max_waiting, max_suspended)
        self._sleepers = Sleepers(port, clock, self._woken)
        self._is_open = False
        self._accepting: dict[str, bool] = {}
        """Calls whose acceptance is under way, and whether they are to be started as soon as it is durable."""
        self._mine: dict[str, Origin] = {}
        """The calls that this engine runs or is going to run. It has those that are asleep, too."""
        self._queued: dict[str, int] = {}
        """When a call is due that is going to run. Other entries of the two queues are of lives that have ended."""
        self._ready: deque[tuple[int, str]] = deque()
        self._delayed: list[tuple[int, str]] = []
        self._running: set[str] = set()
        self._ends: dict[str, asyncio.Future[Outcome]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._background: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._housekeeping = Housekeeping(self._book, keep_s, clock, self._spawn)

    @property
    def waiting_count(self) -> int:
        """Calls that are accepted and not finished, those that run included."""
        return len(self._book.ledger.waiting)

    @property
    def suspended_count(self) -> int:
        """Calls that are suspended, at all engines."""
        return self._book.ledger.suspended_count

    def versions_in_use(self) -> frozenset[int]:
        """The versions that unfinished calls are pinned to."""
        return frozenset(version_of(call.attributes) for call in self._book.ledger.waiting.all_kept()) - {0}

    @property
    def running_count(self) -> int:
        """Calls whose body runs."""
        return len(self._running)

    def on_membership(self, membership: Membership) -> None:
        """Who is registered now: what engines leave behind that are gone is taken over."""
        self._takeover.on_membership(membership)

    async def start(self) -> None:
        """Read the book, and follow it from then on. Calls that lost engines have left are taken over, and run."""
        await self._book.recover()
        self._is_open = True
        if self.waiting_count:
            what = "1 logged call is" if self.waiting_count == 1 else f"{self.waiting_count} logged calls are"
            _log.info("%s unfinished", what)
        self._spawn(self._book.follow(self._on_entry, self._adopt_all), in_background=True)
        self._takeover.watch()
        self._housekeeping.start()

    async def stop(self, drain_s: float = 10.0) -> None:
        """Accept no more, wait for what runs at most `drain_s`. What is left runs after the next start."""
        self._is_open = False
        self._takeover.stop()
        self._sleepers.stop()
        self._housekeeping.stop()
        if self._timer is not None:
            self._timer.cancel()
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
        return (await self.begin(call, key=key, delay_s=delay_s)).id

    async def begin(self, call: Call, *, key: str | None = None, delay_s: float = 0.0) -> Begun:
        """See `accept`: with what has come of the call, if it has ended by then."""
        check_delay(delay_s)
        accept = self._accept(call, key, int(delay_s * 1e6), is_urgent=False)
        first, outcome = await self._shielded(accept, call.id, _ACCEPT_TIMEOUT_S)
        result = None if outcome is None else outcome.result
        return Begun(first.call.id, result if result is not None and len(result.data) <= _SHORT_BYTES else None)

    async def call_once(self, call: Call, key: str) -> tuple[str, Outcome]:
        """Run the call and wait for its end, at most its `timeout_us`: its id and its outcome.

        Under a key that was used for the same request within a day, those of the first call, after waiting for its end;
        for another request: see `accept`. Once it is accepted it continues, also if nobody waits any more.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + call.timeout_us / 1e6
        accept = self._accept(call, key, 0, is_urgent=True)
        first, outcome = await self._shielded(accept, call.id, call.timeout_us / 1e6)
        invocation_id = first.call.id
        if outcome is not None:
            return invocation_id, outcome
        try:
            async with asyncio.timeout_at(until):
                if self._has(invocation_id):
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
        return self._runner.refined(await self._inquiries.state(invocation_id, wait_s))

    async def page(self, wanted: CallFilter) -> CallPage:
        """A page of the calls that match, those that changed last first."""
        return await self._inquiries.page(wanted)

    async def cancel(self, invocation_id: str, life_us: int = 0) -> InvocationState:
        """End a call: one that has not begun never runs, the body of one that runs is cancelled, wherever that is.

        Again: the same answer. `WrongState` if it has ended, or was started or retried since it had that `life_us` (0:
        whichever it has). `NoSuchInvocation`.
        """
        state = await self._shielded(self._inquiries.cancel(invocation_id, life_us), invocation_id, _ACCEPT_TIMEOUT_S)
        if state.state == "cancelled" and invocation_id not in self._book.ledger.waiting:  # else it runs again already
            self._on_end(invocation_id, Outcome(None, state.failure))
        return state

    async def retry(self, invocation_id: str) -> InvocationState:
        """Run a call again that has failed or was cancelled, under its id. One that has not ended is left as it is.

        `WrongState` if it has ended well, `Trimmed` if its payload is gone, `NoSuchInvocation`, `Overloaded`.
        """
        self._check_room()
        state = await self._shielded(self._inquiries.accept_again(invocation_id), invocation_id, _ACCEPT_TIMEOUT_S)
        self._adopt_all(invocation_id)
        return state

    async def asked(self, invocation_id: str, wait_s: float, change: CallChange) -> InvocationState:
        """What a function asks: `state`, or what `change` names."""
        if change == "cancel":
            return await self.cancel(invocation_id)
        if change == "retry":
            return await self.retry(invocation_id)
        if isinstance(change, int):
            return await self.cancel(invocation_id, change)
        if isinstance(change, Move):
            return await self._shielded(self._inquiries.move(invocation_id, change), invocation_id, _ACCEPT_TIMEOUT_S)
        return await self.state(invocation_id, wait_s)

    def other_owner(self, invocation_id: str) -> NodeId | None:
        """The engine that runs this unfinished call, or is going to, if that is another one."""
        waiting = self._book.ledger.waiting.get(invocation_id)
        return None if waiting is None or waiting.owner in (self._me, NOBODY) else NodeId(waiting.owner.node)

    # Accepting

    async def _shielded(self, work: Coroutine[Any, Any, T], invocation_id: str, timeout_s: float) -> T:
        """Wait for work that continues if its caller leaves: a record that is under way may be in the log."""
        task = self._spawn(work)
        done, _ = await asyncio.wait([task], timeout=timeout_s)
        if not done:
            raise DeadlineExceeded(
                f"whether call {invocation_id} is in the log is not known: ask for its state, or repeat it under a key",
                invocation=invocation_id,
            )
        return task.result()

    def _check_room(self, call: Call | None = None) -> None:
        if not self._is_open:
            raise Unavailable("logged calls are not accepted now: starting or shutting down")
        self._room.check(len(self._accepting), call)

    async def _accept(
        self, call: Call, key: str | None, delay_us: int, *, is_urgent: bool
    ) -> tuple[Accepted, Outcome | None]:
        """The acceptance that counts, and how the call has ended, if it did so at once."""
        self._check_room(call)
        has_room = len(self._running) + sum(self._accepting.values()) < self._max_running and not self._ready
        begins = not delay_us and (is_urgent or has_room)
        if call.chosen is not None and call.chosen.copies:
            call = await copied(self._book, call, call.chosen.copies)
        is_tried = begins and call.id not in self._accepting and self._trying.may(call)
        call = pinned(call, self._version(call.function))
        entry = Accepted(call, request_hash(call, delay_us), delay_us, owner=self._me)
        if call.chosen is None or not call.chosen.copies:  # else an earlier version may have accepted the payload
            check_size(entry, self._limits.record_bytes)
        if begins:  # its first run is on record with it
            entry = msgspec.structs.replace(entry, starts=1, state="running", runs=Runs(1))
        self._accepting[call.id] = begins
        try:
            if is_tried:
                outcome = await self._trying.end_at_once(entry, key if call.chosen is None else None)
                if outcome is not None:
                    return entry, outcome
            if call.chosen is not None:
                first, accepted_us, waiting = await accept_chosen(self._book, entry, call.chosen)
            else:
                first, accepted_us, waiting = await self._book.accept(entry, key)
            logged_key = key
            while logged_key and first.request_hash != entry.request_hash and await self._was_refused(first.call.id):
                logged_key = corrected_key(logged_key, first.call.id)
                first, accepted_us, waiting = await self._book.accept(entry, logged_key)
        finally:
            self._accepting.pop(call.id, None)
        if first.request_hash != entry.request_hash:
            raise KeyReused(
                f"key {key!r} was used for another request, a call of {first.call.function!r}: use a new key",
                field="Idempotency-Key",
                invocation=first.call.id,
            )
        if waiting is not None and waiting.owner == self._me and not self._has(waiting.id):
            self._mine[waiting.id] = "accepted"
            if waiting.state == "running" and self._is_open:
                self._start_body(waiting.id, (first, accepted_us))
            else:
                self._queue(waiting.id, waiting.due_us)
                self._pump()
        return first, None

    async def _was_refused(self, invocation_id: str) -> bool:
        """Whether the call ended without having run, because its function does not take such a payload."""
        if invocation_id in self._book.ledger.waiting:
            return False
        last = await self._book.last(invocation_id)
        failure = last[0].outcome.failure if last is not None and isinstance(last[0], Finished) else None
        return failure is not None and failure.outcome == "not_applied"

    # Following, and taking over

    def _on_entry(self, entry: Entry, seqnum: int) -> None:
        """The next record of the book has been read and folded."""
        if isinstance(entry, TakenOver) and entry.heir == self._me:
            self._adopt_all()
        elif isinstance(entry, Accepted) and entry.owner == self._me and entry.call.id not in self._accepting:
            self._adopt_all(entry.call.id)  # the append had an answer that did not arrive
        elif isinstance(entry, Finished) and entry.id not in self._book.ledger.waiting:
            self._on_end(entry.id, entry.outcome)
        elif isinstance(entry, Finished):
            self._runner.cancel(entry.id, seqnum)  # it has begun again already, and would end with its old body
        elif isinstance(entry, Accepted | TakenOver):
            self._takeover.watch_soon()  # its owner may be gone already
        self._housekeeping.look()

    def _adopt_all(self, only: str | None = None, origin: Origin = "accepted") -> None:
        """Run what is this engine's and not known to be: all of it, which is claimed, or one call."""
        ledger = self._book.ledger
        found = ledger.owned_by(self._me) if only is None else [ledger.waiting.kept(only)]
        for call in found:
            if call is not None and call.owner == self._me and not self._has(call.id):
                if isinstance(call, PackedCall):
                    self._sleepers.inherit(call)
                else:
                    self._mine[call.id] = "claimed" if only is None else origin
                    # One that ran may be due at a time that has not come: that of a suspension that a record ended.
                    self._queue(call.id, 0 if call.state == "running" else call.due_us)
        self._pump()

    def _has(self, invocation_id: str) -> bool:
        """Whether this engine runs the call, is going to run it, or lets it sleep."""
        return invocation_id in self._mine or invocation_id in self._sleepers

    # Running

    def _queue(self, invocation_id: str, due_us: int) -> None:
        self._queued[invocation_id] = due_us
        if due_us > self._clock():
            heapq.heappush(self._delayed, (due_us, invocation_id))
        else:
            self._ready.append((due_us, invocation_id))

    def _woken(self, invocation_id: str) -> None:
        """What a suspended call waited for has come."""
        self._mine[invocation_id] = "accepted"
        self._queue(invocation_id, 0)
        self._pump()

    def _pump(self) -> None:
        """Start what is due, as far as there is room, and set the timer for what comes next."""
        if not self._is_open:
            return
        now = self._clock()
        while self._delayed and self._delayed[0][0] <= now:
            self._ready.append(heapq.heappop(self._delayed))
        while self._ready and len(self._running) < self._max_running:
            due_us, invocation_id = self._ready.popleft()
            if self._queued.get(invocation_id) == due_us:
                del self._queued[invocation_id]
                self._start_body(invocation_id, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._delayed:
            # never so far ahead that a clock that is set again could make it very late
            delay_s = min((self._delayed[0][0] - now) / 1e6, _LONGEST_TIMER_S)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._pump)

    def _start_body(self, invocation_id: str, known: tuple[Accepted, int] | None) -> None:
        self._running.add(invocation_id)
        self._spawn(self._run_body(invocation_id, known))

    async def _run_body(self, invocation_id: str, known: tuple[Accepted, int] | None) -> None:
        """One run of a call's body, and what follows from it."""
        then: Next = None
        try:
            waiting = self._book.ledger.waiting.get(invocation_id)
            if waiting is not None and waiting.owner == self._me:
                origin = self._mine.get(invocation_id, "accepted")
                then = await self._runner.run(waiting, known, origin=origin)
        except BokiError:
            _log.exception("call %s cannot be run or recorded: it will be tried at the next start", invocation_id)
            return
        finally:
            self._running.discard(invocation_id)
            if isinstance(then, int):
                self._queue(invocation_id, then)
            elif isinstance(then, Waiting) and self._is_open:
                self._forget_call(invocation_id)
                if isinstance(call := self._book.ledger.waiting.kept(invocation_id), PackedCall):
                    self._sleepers.arm(call)
            self._pump()
        if isinstance(then, Outcome):
            self._on_end(invocation_id, then)
        elif then is None:
            self._forget_call(invocation_id)
            if invocation_id in self._ends:
                self._spawn(self._tell_end(invocation_id), in_background=True)
            # While its body ended, it may be this engine's again: claimed once more, retried, or started again.
            found = self._book.ledger.waiting.kept(invocation_id)
            is_new = found is not None and waiting is not None and found.seqnum > waiting.seqnum
            self._adopt_all(invocation_id, "unknown" if is_new else "claimed")

    async def _tell_end(self, invocation_id: str) -> None:
        """Another engine runs the call now, or has ended it: tell those who wait here its outcome."""
        self._on_end(invocation_id, await self._book.outcome(invocation_id))

    def _forget_call(self, invocation_id: str) -> None:
        """The call is over, or another's."""
        self._mine.pop(invocation_id, None)
        self._queued.pop(invocation_id, None)
        self._runner.forget(invocation_id)

    def _on_end(self, invocation_id: str, outcome: Outcome) -> None:
        """The call is over, perhaps because it was cancelled: end its body, and tell those who wait for it."""
        self._runner.cancel(invocation_id)
        self._sleepers.disarm(invocation_id)
        if invocation_id not in self._running:
            self._forget_call(invocation_id)
        end = self._ends.pop(invocation_id, None)
        if end is not None and not end.done():
            end.set_result(outcome)

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
