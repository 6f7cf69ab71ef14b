"""`flow`: what the body of a workflow may ask of its workflow. Everything here is deterministic, or recorded.

::

    from boki.libs.bokiflow import flow, workflow

    @workflow
    async def remind(who: str) -> None:
        await flow.sleep(7 * 24 * 3600)            # no process waits
        answer = await flow.receive("answer")      # a signal, which may have come long before
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime
from random import Random
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, ParamSpec, TypeVar, Unpack, overload
from uuid import UUID

from boki import InvalidArgument, WrongState
from boki.extending import check_seconds
from boki.libs.bokiflow.body import body_of
from boki.libs.bokiflow.joining import call_in
from boki.libs.bokiflow.locks.block import FlowLock, check_lock_key
from boki.libs.bokiflow.state import open_transaction
from boki.libs.bokiflow.storing import LOG, STORE, FlowLog, FlowStore
from boki.libs.bokiflow.work import CallOptions, CallWork, ParentClose

if TYPE_CHECKING:
    from boki.libs.bokiflow.workflows import Workflow

P = ParamSpec("P")
R = TypeVar("R")
Pay = TypeVar("Pay")
C = TypeVar("C")
"""The context of a function, of either kind."""


class Child(Generic[R]):
    """A call that a workflow has started: a child workflow, or a function."""

    def __init__(self, work: CallWork) -> None:
        self._work = work

    @property
    def id(self) -> str:
        """The invocation id of the call."""
        return self._work.invocation_id

    async def result(self) -> R:
        """What it returns, once it has ended; raises what it ended with."""
        work = self._work
        waiting = CallWork(
            work.target,
            work.payload,
            work.invocation_id,
            work.call_name,
            starts=False,
            awaits=True,
            parent_close=work.parent_close,
            book=work.book,
        )
        body = body_of("Child.result")
        found: R = await body.awaited(waiting)
        return found


class Flow:
    """See the module. Its methods raise `InvalidArgument` outside of a workflow."""

    @property
    def id(self) -> str:
        """The id under which the workflow was started; its invocation id if it was started without one."""
        return body_of("flow.id").flow_id

    @property
    def is_replaying(self) -> bool:
        """Whether the body repeats what is recorded: for what must be said once, such as a line of a log."""
        machine = body_of("flow.is_replaying").machine
        return not (machine.is_live or machine.is_at_end)

    # time and chance

    def now(self) -> datetime:
        """The workflow's time (UTC): that of its last event."""
        return body_of("flow.now").now()

    def random(self) -> Random:
        """Random numbers that are the same in every replay: `flow.random().choice(...)`."""
        return body_of("flow.random").random

    def uuid(self) -> UUID:
        """A random UUID that is the same in every replay."""
        return body_of("flow.uuid").uuid()

    async def sleep(self, seconds: float) -> None:
        """Wait, up to years: a workflow that only waits has no process."""
        body_of("flow.sleep")
        await asyncio.sleep(check_seconds(seconds, "seconds", positive=False))

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition is true. It is looked at after each event of the workflow, and must only read."""
        await body_of("flow.wait_for").machine.when(condition)

    # steps and calls

    @overload
    async def run(self, step: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    async def run(self, step: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    async def run(self, step: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a step and wait for it. A `def` step runs in a thread, so that it blocks no other workflow."""
        return await body_of("flow.run").step(step, args, kwargs)

    @overload
    async def call(self, target: Workflow[None, R], /, **options: Unpack[CallOptions]) -> R: ...

    @overload
    async def call(self, target: Workflow[Pay, R], payload: Pay, /, **options: Unpack[CallOptions]) -> R: ...

    @overload
    async def call(self, target: Callable[[C], Coroutine[Any, Any, R]], /, **options: Unpack[CallOptions]) -> R: ...

    @overload
    async def call(
        self, target: Callable[[C, Pay], Coroutine[Any, Any, R]], payload: Pay, /, **options: Unpack[CallOptions]
    ) -> R: ...

    @overload
    async def call(self, target: Callable[[C], R], /, **options: Unpack[CallOptions]) -> R: ...

    @overload
    async def call(self, target: Callable[[C, Pay], R], payload: Pay, /, **options: Unpack[CallOptions]) -> R: ...

    @overload
    async def call(self, target: str, /, *payload: Any, **options: Unpack[CallOptions]) -> Any: ...

    async def call(
        self,
        target: Callable[..., Any] | str,
        /,
        *payload: Any,
        id: str | None = None,  # noqa: A002 - as everywhere
        book: str | None = None,
        parent_close: ParentClose = "cancel",
    ) -> Any:
        """Run a workflow or a function as a logged call of its own, once, and wait for its result.

        `id` names a child workflow; without it, it has an id of its own. A child that is no longer awaited when this
        workflow has ended is treated as `parent_close` says. Inside of a transaction, a workflow joins that: what it
        reads and writes in the store is part of the transaction.
        """
        body, txn = body_of("flow.call"), open_transaction()

        def call() -> CallWork:
            return body.call(target, payload, id, awaits=True, parent_close=parent_close, book=book)

        if txn is None or isinstance(target, str) or not hasattr(target, "is_workflow"):
            return await body.awaited(call())
        if id is not None:
            raise InvalidArgument("a child in a transaction has no id of its own: leave it out, or call it outside")
        return await call_in(body, txn, target, call)

    @overload
    async def start(self, target: Workflow[None, R], /, **options: Unpack[CallOptions]) -> Child[R]: ...

    @overload
    async def start(self, target: Workflow[Pay, R], payload: Pay, /, **options: Unpack[CallOptions]) -> Child[R]: ...

    @overload
    async def start(
        self, target: Callable[[C], Coroutine[Any, Any, R]], /, **options: Unpack[CallOptions]
    ) -> Child[R]: ...

    @overload
    async def start(
        self, target: Callable[[C, Pay], Coroutine[Any, Any, R]], payload: Pay, /, **options: Unpack[CallOptions]
    ) -> Child[R]: ...

    @overload
    async def start(self, target: Callable[[C], R], /, **options: Unpack[CallOptions]) -> Child[R]: ...

    @overload
    async def start(
        self, target: Callable[[C, Pay], R], payload: Pay, /, **options: Unpack[CallOptions]
    ) -> Child[R]: ...

    @overload
    async def start(self, target: str, /, *payload: Any, **options: Unpack[CallOptions]) -> Child[Any]: ...

    async def start(
        self,
        target: Callable[..., Any] | str,
        /,
        *payload: Any,
        id: str | None = None,  # noqa: A002 - as everywhere
        book: str | None = None,
        parent_close: ParentClose = "cancel",
    ) -> Child[Any]:
        """Start a workflow or a function as a logged call, and continue. See `call`."""
        body = body_of("flow.start")
        work = body.call(target, payload, id, awaits=False, parent_close=parent_close, book=book)
        body.children[work.invocation_id] = work
        await body.begin(work)
        return Child(work)

    # state

    @property
    def store(self) -> FlowStore:
        """The objects of the workflow's LogBook: reads need no record, writes happen once. See docs/workflows.md."""
        return STORE

    @property
    def log(self) -> FlowLog:
        """The records of the workflow's LogBook, as of the workflow's position."""
        return LOG

    def lock(self, key: str) -> FlowLock:
        """The lock of a key in the workflow's LogBook: `async with flow.lock("room:7") as held`.

        Workflows get it one after the other, in the order in which they asked. It is left with the block, and when the
        workflow ends in whatever way. `held.token` is a fencing token: higher for each later holder. `WouldDeadlock`:
        an older workflow waits for another lock of this one, so leave all locks and take them again.
        """
        body_of("flow.lock")
        return FlowLock(check_lock_key(key))

    # messages

    async def receive(self, signal: str) -> Any:
        """The payload of the next signal of that name. Signals that came before are kept, also over a restart."""
        return await body_of("flow.receive").machine.mailbox.receive(signal)

    async def promise(self, name: str) -> Any:
        """The value that the promise of that name is given from outside; raises the error that it is given."""
        return await asyncio.shield(body_of("flow.promise").machine.mailbox.promise(name))

    def on_signal(self, name: str, handler: Callable[[Any], Any]) -> None:
        """Have each signal of that name be given to `handler`, a `def` or `async def` with one parameter."""
        body_of("flow.on_signal").machine.mailbox.on_signal(name, handler)

    def on_update(
        self, name: str, handler: Callable[[Any], Any], *, validator: Callable[[Any], object] | None = None
    ) -> None:
        """Have each update of that name be answered with what `handler` returns or raises.

        `validator` is called first, and refuses the update by raising; it must only read.
        """
        body_of("flow.on_update").machine.mailbox.on_update(name, handler, validator)

    def all_handlers_finished(self) -> bool:
        """Whether no handler of a signal or an update is running: `await flow.wait_for(flow.all_handlers_finished)`
        before the workflow returns, or continues as new. Not from a handler, which would wait for itself.
        """
        return not body_of("flow.all_handlers_finished").machine.mailbox.running_handlers

    def on_query(self, name: str, handler: Callable[[Any], Any]) -> None:
        """Have each query of that name be answered with what `handler` returns: a `def` that only reads."""
        body_of("flow.on_query").on_query(name, handler)

    # the course of the workflow

    def compensate(self, undo: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Undo what was done: if the workflow fails or is cancelled from here on, `undo` is run, the latest first."""
        body_of("flow.compensate").compensate(undo, args, dict(kwargs))

    def forget_compensations(self) -> None:
        """What was done so far stays: from here on nothing of it is undone. For a point of no return."""
        body_of("flow.forget_compensations").forget_compensations()

    def patched(self, name: str) -> bool:
        """Whether the body is to do what it does since the change of that name.

        True for workflows that come here after the change was deployed; False for those that were past this point.
        """
        return bool(body_of("flow.patched").machine.decide(f"patch {name}", new=True, old=False))

    def continue_if_long(self, *payload: Any) -> None:
        """Begin again with this payload, as `continue_as_new` does, if the journal has become long; else continue.

        Long is `@workflow(continue_after=...)` steps, timers and calls; messages do not count, so a body that does
        nothing but take them calls `continue_as_new`. Call it where nothing is under way, as at the top of a loop:
        tasks that the body has started and not awaited are cancelled. It does nothing while a handler runs, and while
        compensations stand.
        """
        body = body_of("flow.continue_if_long")
        if body.is_long:
            self.continue_as_new(*payload)

    def continue_as_new(self, *payload: Any) -> NoReturn:
        """Begin again with this payload, under the same id, and with an empty journal.

        Messages that were not taken before are kept for that, also those that come while the body is unwound.
        `UnfinishedHandlers` while handlers are running: see `all_handlers_finished`. `WrongState` while
        compensations stand, which would be forgotten: see `forget_compensations`.
        """
        body = body_of("flow.continue_as_new")
        if body.joined is None and open_transaction() is not None:
            raise WrongState("a workflow cannot continue as new inside of a transaction, which would not be committed")
        body.continue_as_new(payload)


flow: Final = Flow()
