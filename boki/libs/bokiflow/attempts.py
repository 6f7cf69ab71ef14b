"""Carries out one call of a step: its attempts, one after the other, until one counts.

An attempt runs in the worker's own loop (an `async def` step) or in a thread (a `def` step), where everything is
allowed. It ends with a value, an error, or by timing out; then the step's policy decides about another one. An
`async def` step that awaits nothing runs without a task: a task costs two turns of the loop.
"""

from __future__ import annotations

import asyncio
import dis
import inspect
from collections.abc import Callable, Coroutine
from contextvars import Context as Variables
from copy import deepcopy
from functools import lru_cache, partial
from types import CodeType, FunctionType
from typing import Any, Final

from boki import Context, InvalidArgument, TooLarge
from boki.extending import Failure, Payload
from boki.libs.bokiflow.clocks import FlowClock, FlowTimer
from boki.libs.bokiflow.machine import Command
from boki.libs.bokiflow.records import Result, Retrying
from boki.libs.bokiflow.refusals import NoThread
from boki.libs.bokiflow.stepping import ATTEMPT, STARTER, Attempt
from boki.libs.bokiflow.work import StepWork
from boki.libs.fold.current_step import CURRENT_STEP

_ENTRY_BYTES: Final = 4_096
"""What a record of a step's result needs beside the result, at most."""

NO_THREAD_US: Final = 1_000_000
"""How long what has found no thread waits for one."""

_CANCELLED: Final = "the step cancelled itself, or what it awaited was cancelled"

Ended = Callable[["Attempts", Result], None]
Waiting = Callable[[], None]
Beating = Callable[["Attempts", Payload], None]


_is_coroutine_function: Final = lru_cache(maxsize=1_024)(inspect.iscoroutinefunction)


def _is_async(body: Callable[..., Any]) -> bool:
    try:
        return _is_coroutine_function(body)
    except TypeError:  # it cannot be hashed
        return inspect.iscoroutinefunction(body)


def _awaits_nothing(body: Callable[..., Any]) -> bool:
    """Whether it is an `async def` whose code has no `await`, `async for` or `async with`: it ends where it begins."""
    return isinstance(body, FunctionType) and _is_quick(body.__code__)


@lru_cache(maxsize=1_024)
def _is_quick(code: CodeType) -> bool:
    is_coroutine = code.co_flags & inspect.CO_COROUTINE  # and not what is only marked as one
    return bool(is_coroutine) and all(instruction.opname != "SEND" for instruction in dis.get_instructions(code))


class _Exit:
    """The end of an attempt that has raised `SystemExit`, which a task would pass on to the loop."""

    def __init__(self, error: SystemExit) -> None:
        self.error = error


async def _contained(body: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """A step that exits fails: the worker has other workflows."""
    try:
        return await body()
    except SystemExit as error:
        return _Exit(error)


def _in_thread(body: Callable[[], Any]) -> Any:
    """What a `def` step returns. Its future takes no `StopIteration`, so that it would never be done."""
    try:
        return body()
    except StopIteration as error:
        raise RuntimeError("the step raised StopIteration") from error


def _run_at_once(
    body: Callable[..., Coroutine[Any, Any, Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, BaseException | None]:
    """What a step that awaits nothing has returned, and what it has raised, as its task would have it."""
    try:
        body(*args, **kwargs).send(None)
    except StopIteration as end:
        return end.value, None
    except KeyboardInterrupt:
        raise
    except asyncio.CancelledError:
        return None, asyncio.CancelledError(_CANCELLED)
    except BaseException as error:  # noqa: BLE001 - it is the user's, and the step's end
        return None, error
    raise AssertionError("its code awaits nothing")


class Attempts:
    """The attempts at one command that is a step.

    `ended` is called once, unless it is stopped; `waiting` whenever an attempt has failed and another one is due later.
    """

    __slots__ = (
        "_beating",
        "_beats",
        "_clock",
        "_context",
        "_ctx",
        "_ended",
        "_failure",
        "_future",
        "_is_stopped",
        "_key",
        "_late",
        "_loop",
        "_said",
        "_timer",
        "_waiting",
        "beat_place",
        "began_us",
        "command",
        "count",
        "due_us",
        "ends_at_once",
        "most_bytes",
        "work",
    )

    def __init__(
        self,
        command: Command,
        work: StepWork,
        key: str,
        clock: FlowClock,
        context: Variables,
        ended: Ended,
        waiting: Waiting,
        beating: Beating,
        ctx: Context,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._loop = loop
        self.command = command
        self.work = work
        before = command.retrying
        self.count = before.attempts if before is not None else 0
        """Number of attempts that were begun."""
        self.began_us = before.began_us if before is not None else clock.now_us()
        self._said: Payload | None = command.said.details if command.said is not None else None
        self._key = key
        self._clock = clock
        self._context = context
        self._ended = ended
        self._waiting = waiting
        self._beating = beating
        self._ctx = ctx
        self.most_bytes = ctx.logbook.session.caller.limits.record_bytes - _ENTRY_BYTES
        """Of what a record holds of a result, a failure or a heartbeat."""
        self.beat_place = 0
        """The place in the journal behind its last heartbeat."""
        self._beats = 0
        """The number of the attempt whose heartbeats count: the one that runs; 0: there is none."""
        self.due_us = 0
        """When the next attempt is due; 0: it is not waited for."""
        self.ends_at_once = work.step.options.timeout_s is None and _awaits_nothing(work.step.body)
        """Whether an attempt runs to its end where it begins, so that the body of the workflow must be able to run."""
        self._failure: Failure | None = None
        """Of the last attempt, until it is recorded."""
        self._future: asyncio.Future[Any] | None = None
        self._timer: FlowTimer | None = None
        self._late = ""
        """Why the attempt under way counts as late; "": it does not."""
        self._is_stopped = False

    def take_retrying(self) -> Retrying | None:
        """What is to be recorded, so that another run continues after the attempts of this one; once for each."""
        failure, self._failure = self._failure, None
        if not self.due_us or failure is None:
            return None
        work = self.work
        return Retrying(self.command.n, self.count, self.due_us, self.began_us, failure, work.name, work.digest)

    @property
    def is_running(self) -> bool:
        """Whether the body of the step runs now, or must be run by this execution."""
        return self._future is not None or self._must_begin

    @property
    def _must_begin(self) -> bool:
        """Whether it waits for a thread after it was recorded as begun: another run would not begin it any more."""
        return self.due_us > 0 and self.work.step.options.at_most_once

    def begin(self) -> None:
        """Begin the first attempt, or the next one that the journal knows to be due."""
        refusal = self.work.step.refusal()
        if refusal is not None:
            self._ended(self, Result(None, refusal))
            return
        before = self.command.retrying
        if before is not None and not self.count_is_new and before.next_us > self._clock.now_us():
            self.due_us = before.next_us
            self._timer = self._clock.call_at(self.due_us, self._attempt)
        else:
            self._attempt()

    @property
    def count_is_new(self) -> bool:
        """Whether an attempt was begun by this execution."""
        return self.command.retrying is None or self.count > self.command.retrying.attempts

    def stop(self) -> asyncio.Future[Any] | None:
        """The outcome is not wanted any more; what to wait for until nothing of it is left."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._future is not None:
            self._future.cancel()
        return self._future

    def hold(self) -> None:
        """Begin no other attempt: another run does, when it is due; or this one, after `rearm`."""
        if self.due_us and self._timer is not None and not self._must_begin:
            self._timer.cancel()
            self._timer = None

    def rearm(self) -> None:
        """Begin the next attempt when it is due, after all."""
        if self.due_us and self._timer is None:
            self._timer = self._clock.call_at(self.due_us, self._attempt)

    def cut_off(self, why: str) -> asyncio.Future[Any] | None:
        """The run cannot wait for the attempt under way, which has timed out. What to wait for as in `stop`: it may
        have to clean up.
        """
        future = self._future
        if future is not None:
            self._late = why
            future.cancel()
            self._on_done(future)
        return future

    def _attempt(self) -> None:
        step = self.work.step
        self.count += 1
        self._beats = self.count
        self._late = ""
        self.due_us = 0
        context = self._context.copy()
        context.run(self._enter)
        args, kwargs = self.work.args, self.work.kwargs
        is_last = self.work.is_own and self.count >= step.policy.attempts
        if not is_last and not self.work.is_fixed:
            # What a step changes of its arguments is not in its record: another attempt, or a replay, does not see it.
            try:
                args, kwargs = deepcopy((args, kwargs))
            except Exception as error:  # noqa: BLE001 - classes of the arguments may raise anything
                self._failed(error)
                return
        if self.ends_at_once:
            self._settle(*context.run(_run_at_once, step.body, args, kwargs))
            return
        if _is_async(step.body):
            coroutine = _contained(partial(step.body, *args, **kwargs))
            future: asyncio.Future[Any] = self._loop.create_task(coroutine, context=context)
        else:
            body = partial(context.run, _in_thread, partial(step.body, *args, **kwargs))
            try:
                future = self._clock.run_in_thread(body)
            except NoThread:
                self._put_off()
                return
        self._future = future
        timeout_s = step.options.timeout_s
        if timeout_s is not None:
            self._timer = self._clock.call_at(self._clock.now_us() + round(timeout_s * 1e6), self._expire)
        future.add_done_callback(self._on_done)

    def _put_off(self) -> None:
        """There is no thread for the attempt, which was not begun: it is due soon, here or in another process."""
        self.count -= 1
        self._beats = 0
        self.due_us = self._clock.now_us() + NO_THREAD_US
        self._timer = self._clock.call_at(self.due_us, self._attempt)
        self._waiting()

    def _enter(self) -> None:
        """In the context of the attempt."""
        if STARTER.get() is not None:
            STARTER.set(None)
        CURRENT_STEP.set(f"{self.command.n} {self.work.name}")
        beat = partial(self._on_beat, self.count)
        ATTEMPT.set(Attempt(self._key, self.count, self._said, beat, self._ctx, self._clock.in_loop))

    def _on_beat(self, number: int, details: Payload) -> None:
        if number != self._beats:  # its attempt has timed out: what it says is not what a later one has done
            return
        if len(details.data) > self.most_bytes:
            raise TooLarge(
                f"details of a heartbeat may have {self.most_bytes:,} bytes, not {len(details.data):,}: write them "
                "elsewhere, and give where they are",
                field="details",
                limit=self.most_bytes,
            )
        self._said = details
        self._beating(self, details)

    def _expire(self) -> None:
        """The attempt has timed out. A thread cannot be ended: it is left alone, and its result is dropped."""
        future = self._future
        if future is None:
            return
        self._late = f"the attempt took more than {self.work.step.options.timeout_s:g} s"
        if not future.cancel() or not isinstance(future, asyncio.Task):
            self._on_done(future)

    def _on_done(self, future: asyncio.Future[Any]) -> None:
        if future is not self._future:  # it was late: a thread, or what was cut off
            if not future.cancelled():
                future.exception()  # else asyncio would say that nobody wants to know
            return
        self._future = None
        self._beats = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_stopped:
            if not future.cancelled() and future.done():
                future.exception()  # nobody wants to know
            return
        if self._late:
            self._failed(TimeoutError(self._late))
        elif future.cancelled():
            self._failed(asyncio.CancelledError(_CANCELLED))
        else:
            error = future.exception()
            self._settle(future.result() if error is None else None, error)

    def _settle(self, result: Any, error: BaseException | None) -> None:
        """The attempt has returned, or raised."""
        if isinstance(result, _Exit):
            error = result.error
        if error is not None:
            self._failed(error)
            return
        try:
            encoded = self.work.step.encode(result)
        except Exception as broken:  # noqa: BLE001 - the value's classes may raise anything, and the step must end
            encoded = Result(None, self._failure_of(broken))
        self._ended(self, encoded)

    def _failure_of(self, error: BaseException) -> Failure:
        step = self.work.step
        try:
            return step.bounded_failure(step.failure(error), self.most_bytes)
        except Exception:  # noqa: BLE001 - its class is the user's, and the step must end
            return step.failure_without_text(error)

    def _failed(self, error: BaseException) -> None:
        step = self.work.step
        failure = self._failure_of(error)
        elapsed_us = self._clock.now_us() - self.began_us
        again_us = step.policy.again_us(failure, self.count, self._key, elapsed_us)
        try:
            is_wanted = again_us is not None and _is_wanted(step.policy.should_retry, error)
        except Exception as broken:  # noqa: BLE001 - it is the user's, and the step must end
            is_wanted = False
            said = f"should_retry raised {broken!r:.200} about {error!r:.200}: have it return whether to try again"
            failure = step.failure(InvalidArgument(said, field="should_retry"))
        if again_us is not None and is_wanted:
            self._failure = failure
            self.due_us = self._clock.now_us() + again_us
            self._timer = self._clock.call_at(self.due_us, self._attempt)
            self._waiting()
        else:
            self._ended(self, Result(None, failure))


def _is_wanted(should_retry: Callable[[Exception], bool] | None, error: BaseException) -> bool:
    return should_retry is None or (isinstance(error, Exception) and bool(should_retry(error)))
