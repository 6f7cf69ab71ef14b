"""The contexts of `boki.testing`, and their calls: functions run in this process, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import msgspec

from boki.api import blocking_context as blocking
from boki.api import context as asynchronous
from boki.api.append_gatherer import AppendGatherer
from boki.api.call_state import AnyWorkflow, CallState
from boki.api.failures import failure_of
from boki.api.function import Function
from boki.api.log_calls import append_operation
from boki.api.suspension import Suspend, not_logged
from boki.errors import (
    BokiError,
    CallCancelled,
    CallTooDeep,
    DeadlineExceeded,
    InvalidArgument,
    KeyReused,
    NoSuchInvocation,
    WrongState,
)
from boki.log.chunk import Group
from boki.log.operations import Failure
from boki.protocol.calls import (
    CALLS_BOOK,
    Call,
    CallChange,
    ChosenId,
    InvocationState,
    Move,
    Outcome,
    Suspension,
    ends_tag,
)
from boki.retry import LOSSES_ONLY, Retry
from boki.testing.memory_calls import (
    LaterCall,
    LaterRequest,
    begins_too_soon,
    later_call,
    no_such_function,
    stands_for,
    start_tags,
    with_copied_payload,
)
from boki.testing.memory_port import ENDLESS_S, BlockingMemoryPort, MemoryPort

_logger = logging.getLogger("boki.testing")


class Context(asynchronous.Context):
    """A `boki.Context` for tests, with the clock and the results of later calls."""

    __slots__ = ("_calls_made", "clock")

    def __init__(self, call: Call, calls: Calls) -> None:
        super().__init__(_State(call, calls), calls.port, calls.appends, calls)
        self._calls_made = calls
        self.clock = calls.port.clock
        """Virtual time: `await ctx.clock.advance(seconds)`."""


class BlockingContext(blocking.Context):
    """A `boki.blocking.Context` for tests, with the clock and the results of later calls."""

    __slots__ = ("_calls_made", "clock")

    def __init__(self, call: Call, calls: Calls) -> None:
        super().__init__(_State(call, calls), BlockingMemoryPort(calls.port), BlockingCalls(calls))
        self._calls_made = calls
        self.clock = BlockingClock(calls.port)
        """Virtual time: `ctx.clock.advance(seconds)`."""


class BlockingClock:
    """The clock for blocking code."""

    def __init__(self, port: MemoryPort) -> None:
        self._port = port

    def time(self) -> float:
        """Seconds since the epoch."""
        return self._port.clock.time()

    def advance(self, seconds: float) -> None:
        """Let time pass, with all that is due meanwhile."""
        self._port.bridge(self._port.clock.advance(seconds))


class _State(CallState):
    """A call's state in virtual time, which tells the functions that it sees to those who run them."""

    __slots__ = ("_known",)

    def __init__(self, call: Call, calls: Calls) -> None:
        clock = calls.port.clock.time
        super().__init__(call, limits=calls.port.limits, clock=clock, wall_clock=clock, longest_poll_s=ENDLESS_S)
        self._known = calls

    def child(
        self, function: Callable[..., Any] | str, payload: Any, timeout_s: float | None, book: str | None
    ) -> Call:
        if not isinstance(function, str):
            self._known.learn(function)
        return super().child(function, payload, timeout_s, book)

    def later(
        self,
        function: Callable[..., Any] | AnyWorkflow | str,
        payload: Any,
        delay_s: float,
        key: str | None,
        book: str | None,
        retry: Retry | None = None,
        chosen: tuple[str, ChosenId] | None = None,
    ) -> Call:
        if not isinstance(function, str):
            self._known.learn(function)
        return super().later(function, payload, delay_s, key, book, retry, chosen)


class Calls:
    """A `CallPort` that runs functions in this process: async ones as tasks, blocking ones in threads."""

    def __init__(self, port: MemoryPort, functions: Iterable[Callable[..., Any]]) -> None:
        self.port = port
        self.appends = AppendGatherer(port, port.limits)
        self._functions: dict[str, Function] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._logged: dict[str, LaterCall] = {}
        self._keys: dict[str, tuple[str, LaterRequest, int]] = {}
        for function in functions:
            self.learn(function)

    def learn(self, function: object) -> None:
        """Have the function be known by its name from now on."""
        known = Function.of(function)
        other = self._functions.setdefault(known.info.name, known)
        if other is not known:
            raise InvalidArgument(
                f"two functions are named {known.info.name!r}: at {other.place} and at {known.place}", field="function"
            )

    async def invoke(self, call: Call) -> Outcome:
        """See `boki.api.port.CallPort`."""
        known = self._functions.get(call.function)
        if known is not None:
            timeout_us = min(call.timeout_us, round(known.info.timeout_s * 1e6))
            call = msgspec.structs.replace(call, timeout_us=timeout_us, book=known.info.book_of(call))
        task = self._start(self._run(call))
        timer = self.port.clock.call_at(self.port.clock.now_us + call.timeout_us, task.cancel)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                error = DeadlineExceeded(
                    f"{call.function} was not done after {call.timeout_us / 1e6:g} s of virtual time and was ended: "
                    "that time passes at once when all wait, also for asyncio.sleep, a socket or a thread of its own"
                )
                return Outcome(None, Failure.of(error))
            task.cancel()
            raise
        finally:
            timer.cancel()

    async def invoke_later(self, call: Call, delay_s: float, key: str | None) -> str:
        """See `boki.api.port.CallPort`."""
        clock = self.port.clock
        clock.note_activity()
        call = later_call(self._functions.get(call.function), call, delay_s, self.port.limits)
        request = (call.function, call.book, call.payload, delay_s)
        if key is not None:
            earlier = self._keys.get(key)
            if earlier is not None and clock.now_us < earlier[2] + self.port.limits.key_window_s * 1e6:
                if earlier[1] != request:
                    raise KeyReused(f"key {key!r} came with another call before", key=key)
                return earlier[0]
            self._keys[key] = (call.id, request, clock.now_us)
        if call.chosen is not None and stands_for(self._logged.get(call.id), call.chosen, request):
            return call.id
        call = with_copied_payload(call, self._logged)
        self._record(call.id, start_tags(call))
        delay_us = round(delay_s * 1e6)
        clock.now_us += begins_too_soon(self._logged.get(call.id), clock.now_us + delay_us)
        logged = self._logged[call.id] = LaterCall(call, request, clock.now_us, delay_us)
        clock.call_at(logged.due_us, lambda: self._start(self._run_later(logged)) if not logged.is_over else None)
        return call.id

    async def _run_later(self, logged: LaterCall) -> None:
        """Run a later call, and again as its policy says, or when what it is suspended for has come."""
        clock = self.port.clock
        call = logged.call
        policy = call.retry or self._functions[call.function].info.retry or LOSSES_ONLY
        logged.begin(clock.now_us)
        numbers = {"run": logged.run, "attempt": logged.attempts, "accepted_us": logged.accepted_us}
        logged.task = self._start(self.invoke(msgspec.structs.replace(call, **numbers)))
        outcome = await logged.task
        if logged.is_over:  # cancelled meanwhile
            return
        for append in outcome.appends:
            with suppress(BokiError):  # the log of a test may lose it; an engine repeats it
                self.port.record(append)
        if outcome.suspended is not None:
            logged.suspend(outcome.suspended)
            self._arm(logged, outcome.suspended)
            return
        failure = outcome.failure
        elapsed_us = clock.now_us - logged.round_us
        again_us = policy.again_us(failure, logged.attempts, call.id, elapsed_us) if failure is not None else None
        if again_us is not None:
            logged.next_us = clock.now_us + again_us
            logged.status = "retrying"
            clock.call_at(logged.next_us, lambda: self._start(self._run_later(logged)) if not logged.is_over else None)
            return
        outcome = logged.fitted(outcome, self.port.limits)
        if outcome.failure is not None:
            _logger.error("later call %s of %s: %s", call.id, call.function, outcome.failure.message)
        logged.end(outcome, clock.now_us)
        self._report(logged)

    def _arm(self, logged: LaterCall, suspension: Suspension) -> None:
        """Run the call again at its time, or when a record is there."""
        clock, port = self.port.clock, self.port
        run = logged.run

        def wake() -> None:
            if logged.run == run and logged.status == "suspended":
                logged.status = "accepted"
                port.unwatch(wake)
                logged.round_us = clock.now_us
                self._start(self._run_later(logged))

        if suspension.wake_us:
            clock.call_at(suspension.wake_us, wake)
        for each in suspension.wakes:
            if logged.status == "suspended":
                port.watch(each.book, each.tag, each.min_seqnum, wake)

    def _report(self, logged: LaterCall) -> None:
        """Record the end where a call that waits for it sees it."""
        waiters = filter(None, (chosen.reports_to, chosen.watcher)) if (chosen := logged.call.chosen) else ()
        state = [] if logged.status == "done" else [str(logged.status)]
        self._record(logged.call.id, ["finished", *map(ends_tag, waiters), *state])

    def _record(self, call_id: str, tags: list[str]) -> None:
        """Leave a record of a call in the runtime's book."""
        group = Group([(b"", (f"id:{call_id}", *tags))])
        self.port.record(append_operation(CALLS_BOOK, [group], self.port.limits))

    async def ask_call(self, invocation_id: str, wait_s: float, change: CallChange) -> InvocationState:
        """See `boki.api.port.CallPort`."""
        clock = self.port.clock
        clock.note_activity()
        await asyncio.sleep(0)
        logged = self._logged.get(invocation_id)
        if logged is None:
            raise NoSuchInvocation(f"no later call has the id {invocation_id!r:.80}")
        if isinstance(change, int) and logged.state().life_us != change:
            raise WrongState(f"call {invocation_id} was started again since", state="changed")
        if (change == "cancel" or isinstance(change, int)) and logged.status != "cancelled":
            if logged.is_over:
                raise WrongState(f"call {invocation_id} has ended ({logged.status})", state=logged.status)
            ended = CallCancelled("the call was cancelled", outcome="unknown" if logged.run else "not_applied")
            logged.end(Outcome(None, Failure.of(ended)), clock.now_us, "cancelled")
            self._report(logged)
            if logged.task is not None:
                logged.task.cancel()
        elif isinstance(change, Move):
            logged.move(change)
        elif change == "retry" and logged.is_over:
            clock.now_us += begins_too_soon(logged, clock.now_us)
            logged.accept_again(clock.now_us)
            self._start(self._run_later(logged))
        elif not logged.is_over and wait_s:
            with clock.waiting():
                timer = clock.call_at(clock.now_us + round(wait_s * 1e6), logged.changed.set)
                while not logged.is_over and timer.callback is not None:
                    logged.changed.clear()
                    await logged.changed.wait()
                timer.cancel()
        return logged.state()

    async def _run(self, call: Call) -> Outcome:
        known = self._functions.get(call.function)
        try:
            if known is None:
                raise no_such_function(call.function)
            if call.depth > self.port.limits.call_depth:
                raise CallTooDeep(f"calls may be nested {self.port.limits.call_depth} deep: {call.function} is deeper")
            arguments = known.arguments_of(call)
        except BokiError as error:
            return Outcome(None, Failure.of(error), call.positions)
        return await self._run_known(known, call, arguments)

    async def _run_known(self, known: Function, call: Call, arguments: tuple[Any, ...]) -> Outcome:
        context = Context(call, self) if known.info.is_async else BlockingContext(call, self)
        left = context._state.caller.last_appends = [] if call.run else None  # noqa: SLF001 - its own context
        outcome = await self._end_of(known, call, context, arguments)
        if not left or outcome.suspended is not None:
            return outcome
        return msgspec.structs.replace(outcome, appends=tuple(left))

    async def _end_of(
        self, known: Function, call: Call, context: Context | BlockingContext, arguments: tuple[Any, ...]
    ) -> Outcome:
        try:
            if isinstance(context, Context):
                result = await known.run(context, *arguments)
            else:
                result = await self.port.run_in_thread(known.run, context, *arguments)
        except Suspend as suspend:
            if call.run:
                return Outcome(None, None, context.positions, suspend.suspension)
            return Outcome(None, failure_of(known.info.name, not_logged(known.info.name)), context.positions)
        except Exception as error:  # noqa: BLE001 - whatever the user's function raises is its outcome
            return Outcome(None, failure_of(known.info.name, error, with_traceback=True), context.positions)
        try:
            return Outcome(known.encode_result(result), None, context.positions)
        except BokiError as error:
            return Outcome(None, Failure.of(error), context.positions)

    def _start(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """End what still runs; later calls that are not due are forgotten."""
        self.port.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class BlockingCalls:
    """The same for blocking functions in a thread."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def invoke(self, call: Call) -> Outcome:
        """See `boki.api.port.BlockingCallPort`."""
        return self._calls.port.bridge(self._calls.invoke(call))

    def invoke_later(self, call: Call, delay_s: float, key: str | None) -> str:
        """See `boki.api.port.BlockingCallPort`."""
        return self._calls.port.bridge(self._calls.invoke_later(call, delay_s, key))

    def ask_call(self, invocation_id: str, wait_s: float, change: CallChange) -> InvocationState:
        """See `boki.api.port.BlockingCallPort`."""
        return self._calls.port.bridge(self._calls.ask_call(invocation_id, wait_s, change))
