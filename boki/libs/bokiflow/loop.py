"""A deterministic event loop for the bodies of workflows.

It is an `asyncio` loop without time and without I/O: it runs what is ready, in the order in which it became ready,
until nothing is, and then stops. What happens next is decided outside, by the history of the workflow or by the world,
and delivered one event at a time. So the same events give the same execution, and `gather`, `TaskGroup`, `timeout`,
`Lock`, `Semaphore`, `Event` and `Queue` of `asyncio` mean what they always mean. A timer is an event like others:
`call_at` asks for it, and the history says when it was over.

Futures and tasks are hashed by a number. asyncio keeps them in sets, whose order would otherwise depend on addresses:
with numbers `asyncio.wait` and a `TaskGroup` that cancels its tasks are deterministic, too.

Whatever would reach out of the workflow (sockets, threads, processes, signals) is refused: a step does that.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Final, NoReturn, TypeVar, TypeVarTuple

from boki.libs.bokiflow.refusals import NotDeterministic

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_log = logging.getLogger("boki.flow")

StartTimer = Callable[[float, asyncio.TimerHandle], None]
"""Takes the time at which a timer is due, in seconds of the loop, and the handle to run then."""


class FlowFuture(asyncio.Future[T]):
    """A future of a workflow."""

    def __init__(self, *, loop: FlowLoop) -> None:
        self.serial = loop.next_serial()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.serial

    def set_exception(self, exception: type[BaseException] | BaseException, /) -> None:
        """See `asyncio.Future.set_exception`, which refuses `StopIteration`: it is what a coroutine makes of that."""
        if isinstance(exception, StopIteration):
            error = RuntimeError("code of a workflow raised StopIteration")
            error.__cause__ = exception
            exception = error
        super().set_exception(exception)


class FlowTask(asyncio.Task[T]):
    """A task of a workflow."""

    def __init__(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        loop: FlowLoop,
        name: str | None = None,
        context: Context | None = None,
    ) -> None:
        self.serial = loop.next_serial()
        super().__init__(coro, loop=loop, name=name or f"flow-{self.serial}", context=context)
        # In asyncio's own set, tasks of many workflows with one number would be hard to find
        asyncio._unregister_task(self)  # noqa: SLF001 - documented for loops

    def __hash__(self) -> int:
        return self.serial


class FlowLoop(asyncio.AbstractEventLoop):
    """See the module. `start_timer` is told of timers; `time_s` is the workflow's time, which only events move."""

    def __init__(self, start_timer: StartTimer) -> None:
        self.time_s = 0.0
        self._ready: deque[asyncio.Handle] = deque()
        self._start_timer = start_timer
        self._serial = 0
        self._is_running = False
        self._is_closed = False
        self.tasks: list[FlowTask[Any]] = []
        """Tasks that may have to be ended when the workflow is put away."""
        self._most_tasks = _MANY_TASKS

    def next_serial(self) -> int:
        """The number of the next future or task."""
        self._serial += 1
        return self._serial

    def run_until_quiet(self) -> None:
        """Run what is ready, and what becomes ready by that, until nothing is."""
        ready = self._ready
        if not ready or self._is_running:
            return
        outer = events._get_running_loop()  # noqa: SLF001 - as every loop does
        self._is_running = True
        events._set_running_loop(self)  # noqa: SLF001
        outer_hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(None, self._finalize)  # else the worker's loop would run the rest of the generator
        try:
            while ready:
                handle = ready.popleft()
                if not handle._cancelled:  # noqa: SLF001
                    try:
                        handle._run()  # noqa: SLF001
                    except SystemExit:
                        continue  # the task has it as its error: it ends the workflow, no other one
        finally:
            sys.set_asyncgen_hooks(*outer_hooks)
            events._set_running_loop(outer)  # noqa: SLF001
            self._is_running = False

    def _finalize(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Nothing refers to an `async` generator that was not read to its end: its `finally` runs as a task."""
        if self._is_running and not self._is_closed:
            self.create_task(generator.aclose())

    def put_away(self) -> None:
        """End all tasks without letting them do anything: the workflow continues elsewhere, or later."""
        self._is_closed = True
        self._ready.clear()
        outer = events._get_running_loop()  # noqa: SLF001
        events._set_running_loop(self)  # noqa: SLF001
        try:
            for task in self.tasks:
                coroutine = task.get_coro()
                if not task.done() and isinstance(coroutine, Coroutine):
                    _close(coroutine)
        finally:
            events._set_running_loop(outer)  # noqa: SLF001
        self.tasks.clear()
        self._ready.clear()

    # what asyncio asks of a loop

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """See `asyncio.loop.call_soon`."""
        handle = asyncio.Handle(callback, args, self, context)
        if not self._is_closed:
            self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """A timer of the workflow: durable, however long it takes."""
        return self.call_at(self.time_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See `call_later`."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._is_closed:
            self._start_timer(when, handle)
        return handle

    def run_handle(self, handle: asyncio.Handle) -> None:
        """A timer is over: run its callback when the loop runs next."""
        if not handle.cancelled():
            self._ready.append(handle)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """See `asyncio.TimerHandle.cancel`; cancelled timers are left out when they are due."""

    def time(self) -> float:
        """Seconds since the workflow began, by its own time."""
        return self.time_s

    def create_future(self) -> FlowFuture[Any]:
        """See `asyncio.loop.create_future`."""
        return FlowFuture(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> FlowTask[T]:
        """See `asyncio.loop.create_task`."""
        task: FlowTask[T] = FlowTask(coro, loop=self, name=name, context=context)
        self.tasks.append(task)
        if len(self.tasks) > self._most_tasks:  # twice as many as run, or each one would look at all that do
            self.tasks = [known for known in self.tasks if not known.done()]
            self._most_tasks = max(_MANY_TASKS, 2 * len(self.tasks))
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What asyncio has to say of a task that nobody waits for is logged, unless the workflow was put away."""
        if self._is_closed:
            return
        error = context.get("exception")
        _log.error("%s", context.get("message", "an error in a workflow"), exc_info=error)

    def get_debug(self) -> bool:
        """Never: debug mode measures time."""
        return False

    def is_running(self) -> bool:
        """See `asyncio.loop.is_running`."""
        return self._is_running

    def is_closed(self) -> bool:
        """See `asyncio.loop.is_closed`."""
        return self._is_closed


_MANY_TASKS: Final = 1_000


def _close(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Unwind a coroutine; it may neither raise nor wait any more."""
    try:
        coroutine.close()
    except BaseException as error:  # noqa: BLE001 - what a body does while it is unwound has no effect
        _log.debug("a workflow that was put away raised: %r", error)


_REMEDIES: Final = {
    **dict.fromkeys(
        ("run_in_executor", "set_default_executor", "shutdown_default_executor"),
        "make it a `def` step, which runs in a thread of its own",
    ),
    "call_soon_threadsafe": "let the other thread signal the workflow",
    **dict.fromkeys(
        ("run_until_complete", "run_forever", "stop", "close", "shutdown_asyncgens"), "await, return or raise"
    ),
    **dict.fromkeys(
        ("set_task_factory", "get_task_factory", "set_debug", "set_exception_handler", "get_exception_handler"),
        "it is not there to be configured",
    ),
    "default_exception_handler": "log it",
    **dict.fromkeys(("add_signal_handler", "remove_signal_handler"), "take signals of the workflow by `flow.receive`"),
    **dict.fromkeys(("subprocess_exec", "subprocess_shell"), "start processes in a step"),
    **dict.fromkeys(
        (
            *("add_reader", "remove_reader", "add_writer", "remove_writer", "connect_accepted_socket"),
            *("connect_read_pipe", "connect_write_pipe", "create_connection", "create_datagram_endpoint"),
            *("create_server", "create_unix_connection", "create_unix_server", "getaddrinfo", "getnameinfo"),
            *("sendfile", "sock_accept", "sock_connect", "sock_recv", "sock_recv_into", "sock_recvfrom"),
            *("sock_recvfrom_into", "sock_sendall", "sock_sendfile", "sock_sendto", "start_tls"),
        ),
        "use sockets and files in a step",
    ),
}
"""Methods of a loop that reach out of the workflow, and what a workflow does instead."""


def _refusing(name: str, remedy: str) -> Callable[..., NoReturn]:
    def refuse(self: FlowLoop, *_args: object, **_kwargs: object) -> NoReturn:  # noqa: ARG001
        raise NotDeterministic(
            f"a workflow cannot use {name} of its event loop, because a replay could not repeat it: {remedy}"
        )

    refuse.__name__ = name
    refuse.__doc__ = "Refused."
    return refuse


for _name, _remedy in _REMEDIES.items():
    setattr(FlowLoop, _name, _refusing(_name, _remedy))
