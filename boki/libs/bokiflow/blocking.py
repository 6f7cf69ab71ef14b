"""`flow` for `def` workflows: what `boki.libs.bokiflow.flow` is for `async def` ones, without `await`.

::

    from boki.libs.bokiflow import step, workflow
    from boki.libs.bokiflow.blocking import flow

    @step
    def charge(cents: int) -> str: ...

    @workflow
    def subscription(cents: int) -> None:
        for month in range(12):
            charge(cents)
            flow.sleep(30 * 24 * 3600)

A `def` workflow does one thing after the other: what is to run at once belongs into an `async def` one. Handlers of
messages are `def`, too, and may do all that the workflow may: each runs in a thread of its own, while the workflow and
other handlers wait for something.

What waits takes `timeout_s`: after that time it raises `TimeoutError`, as `asyncio.timeout` does in an `async def`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, ParamSpec, Self, TypeVar, Unpack, overload
from uuid import UUID

from boki.extending import check_seconds
from boki.libs.bokiflow.flowing import Child as WaitingChild
from boki.libs.bokiflow.flowing import flow as waiting
from boki.libs.bokiflow.handles_blocking import Handle, Schedule
from boki.libs.bokiflow.locks.block import HeldLock as WaitingHeldLock
from boki.libs.bokiflow.state import in_block
from boki.libs.bokiflow.storing_blocking import LOG, STORE, FlowLog, FlowStore
from boki.libs.bokiflow.threads import Unwind, asked, in_thread
from boki.libs.bokiflow.work import CallOptions, ParentClose

if TYPE_CHECKING:
    from boki.libs.bokiflow.workflows import Workflow

__all__ = ["BlockingFlow", "Child", "Handle", "HeldLock", "Schedule", "flow"]

P = ParamSpec("P")
R = TypeVar("R")
Pay = TypeVar("Pay")
C = TypeVar("C")
"""The context of a function, of either kind."""


class TimedCallOptions(CallOptions, total=False):
    """Options of `flow.call`."""

    timeout_s: float | None
    """Seconds to wait for the result; None: as long as it takes."""


def within(
    request: Callable[[], Coroutine[Any, Any, R]], timeout_s: float | None
) -> Callable[[], Coroutine[Any, Any, R]]:
    """The request with a time limit: `TimeoutError`, and what it waits for is given up. None: without one."""
    if timeout_s is None:
        return request
    seconds = check_seconds(timeout_s, "timeout_s", positive=False)

    async def limited() -> R:
        async with asyncio.timeout(seconds):
            return await request()

    return limited


class Child(Generic[R]):
    """A call that a workflow has started: a child workflow, or a function."""

    def __init__(self, child: WaitingChild[R]) -> None:
        self._child = child

    @property
    def id(self) -> str:
        """The invocation id of the call."""
        return self._child.id

    def result(self, *, timeout_s: float | None = None) -> R:
        """What it returns, once it has ended; raises what it ended with. After a timeout it may be asked again."""
        return asked(within(self._child.result, timeout_s), "Child.result")


class HeldLock:
    """A lock that this workflow holds. `token` is the seqnum of the grant: higher for each later one of the key."""

    def __init__(self, held: WaitingHeldLock) -> None:
        self._held = held
        self.key = held.key
        self.token = held.token

    def unlock(self) -> None:
        """Leave the lock. Again: nothing happens."""
        asked(self._held.unlock, "unlock")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and issubclass(kind, Unwind):
            return  # the workflow continues elsewhere, or later
        self.unlock()


class BlockingFlow:
    """See the module; each method is that of `boki.libs.bokiflow.flow`."""

    @property
    def id(self) -> str:
        """See `Flow.id`."""
        return waiting.id

    @property
    def is_replaying(self) -> bool:
        """See `Flow.is_replaying`."""
        return waiting.is_replaying

    @property
    def store(self) -> FlowStore:
        """See `Flow.store`."""
        return STORE

    @property
    def log(self) -> FlowLog:
        """See `Flow.log`."""
        return LOG

    def now(self) -> datetime:
        """See `Flow.now`."""
        return waiting.now()

    def random(self) -> Random:
        """See `Flow.random`."""
        return waiting.random()

    def uuid(self) -> UUID:
        """See `Flow.uuid`."""
        return waiting.uuid()

    def sleep(self, seconds: float) -> None:
        """See `Flow.sleep`."""
        asked(lambda: waiting.sleep(seconds), "flow.sleep")

    def lock(self, key: str, *, timeout_s: float | None = None) -> HeldLock:
        """Take the lock of a key: `with flow.lock("room:7") as held:`. See `Flow.lock`.

        With `timeout_s` it leaves the queue for it after that time.
        """

        async def take() -> WaitingHeldLock:
            return await waiting.lock(key)

        return HeldLock(asked(within(take, timeout_s), "flow.lock"))

    @overload
    def run(self, step: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    def run(self, step: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def run(self, step: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a step of either kind and wait for it."""
        return asked(in_block(lambda: waiting.run(step, *args, **kwargs)), "flow.run")

    @overload
    def call(self, target: Workflow[None, R], /, **options: Unpack[TimedCallOptions]) -> R: ...

    @overload
    def call(self, target: Workflow[Pay, R], payload: Pay, /, **options: Unpack[TimedCallOptions]) -> R: ...

    @overload
    def call(self, target: Callable[[C], Coroutine[Any, Any, R]], /, **options: Unpack[TimedCallOptions]) -> R: ...

    @overload
    def call(
        self, target: Callable[[C, Pay], Coroutine[Any, Any, R]], payload: Pay, /, **options: Unpack[TimedCallOptions]
    ) -> R: ...

    @overload
    def call(self, target: Callable[[C], R], /, **options: Unpack[TimedCallOptions]) -> R: ...

    @overload
    def call(self, target: Callable[[C, Pay], R], payload: Pay, /, **options: Unpack[TimedCallOptions]) -> R: ...

    @overload
    def call(self, target: str, /, *payload: Any, **options: Unpack[TimedCallOptions]) -> Any: ...

    def call(
        self,
        target: Any,
        /,
        *payload: Any,
        id: str | None = None,  # noqa: A002 - as everywhere
        book: str | None = None,
        parent_close: ParentClose = "cancel",
        timeout_s: float | None = None,
    ) -> Any:
        """See `Flow.call`. A call that is given up after `timeout_s` is treated as `parent_close` says, at the end."""

        async def call() -> Any:
            return await waiting.call(target, *payload, id=id, book=book, parent_close=parent_close)

        return asked(in_block(within(call, timeout_s)), "flow.call")

    @overload
    def start(self, target: Workflow[None, R], /, **options: Unpack[CallOptions]) -> Child[R]: ...

    @overload
    def start(self, target: Workflow[Pay, R], payload: Pay, /, **options: Unpack[CallOptions]) -> Child[R]: ...

    @overload
    def start(self, target: Callable[[C], Coroutine[Any, Any, R]], /, **options: Unpack[CallOptions]) -> Child[R]: ...

    @overload
    def start(
        self, target: Callable[[C, Pay], Coroutine[Any, Any, R]], payload: Pay, /, **options: Unpack[CallOptions]
    ) -> Child[R]: ...

    @overload
    def start(self, target: Callable[[C], R], /, **options: Unpack[CallOptions]) -> Child[R]: ...

    @overload
    def start(self, target: Callable[[C, Pay], R], payload: Pay, /, **options: Unpack[CallOptions]) -> Child[R]: ...

    @overload
    def start(self, target: str, /, *payload: Any, **options: Unpack[CallOptions]) -> Child[Any]: ...

    def start(
        self,
        target: Any,
        /,
        *payload: Any,
        id: str | None = None,  # noqa: A002 - as everywhere
        book: str | None = None,
        parent_close: ParentClose = "cancel",
    ) -> Child[Any]:
        """See `Flow.start`."""
        return Child(
            asked(lambda: waiting.start(target, *payload, id=id, book=book, parent_close=parent_close), "flow.start")
        )

    def receive(self, signal: str, *, timeout_s: float | None = None) -> Any:
        """See `Flow.receive`."""
        return asked(within(lambda: waiting.receive(signal), timeout_s), "flow.receive")

    def promise(self, name: str, *, timeout_s: float | None = None) -> Any:
        """See `Flow.promise`. After a timeout it may be asked for again."""
        return asked(within(lambda: waiting.promise(name), timeout_s), "flow.promise")

    def wait_for(self, condition: Callable[[], bool], *, timeout_s: float | None = None) -> None:
        """See `Flow.wait_for`."""
        asked(within(lambda: waiting.wait_for(condition), timeout_s), "flow.wait_for")

    def on_signal(self, name: str, handler: Callable[[Any], Any]) -> None:
        """See `Flow.on_signal`; the handler is a `def`."""
        handle = in_thread(handler, name)

        async def register() -> None:
            waiting.on_signal(name, handle)

        asked(register, "flow.on_signal")

    def on_update(
        self, name: str, handler: Callable[[Any], Any], *, validator: Callable[[Any], object] | None = None
    ) -> None:
        """See `Flow.on_update`; the handler is a `def`."""
        handle = in_thread(handler, name)

        async def register() -> None:
            waiting.on_update(name, handle, validator=validator)

        asked(register, "flow.on_update")

    def all_handlers_finished(self) -> bool:
        """See `Flow.all_handlers_finished`."""
        return waiting.all_handlers_finished()

    def on_query(self, name: str, handler: Callable[[Any], Any]) -> None:
        """See `Flow.on_query`."""
        waiting.on_query(name, handler)

    def compensate(self, undo: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """See `Flow.compensate`."""
        waiting.compensate(undo, *args, **kwargs)

    def forget_compensations(self) -> None:
        """See `Flow.forget_compensations`."""
        waiting.forget_compensations()

    def patched(self, name: str) -> bool:
        """See `Flow.patched`."""
        return waiting.patched(name)

    def continue_if_long(self, *payload: Any) -> None:
        """See `Flow.continue_if_long`."""
        waiting.continue_if_long(*payload)

    def continue_as_new(self, *payload: Any) -> NoReturn:
        """See `Flow.continue_as_new`."""
        waiting.continue_as_new(*payload)


flow: Final = BlockingFlow()
