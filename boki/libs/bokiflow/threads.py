"""Bodies of `def` workflows: plain code in a thread of its own, which takes turns with the loop of its workflow.

The thread runs while the loop waits, and the loop runs while the thread waits, so there is one order of everything and
a replay repeats it. A handler of messages is code of that kind in one more thread, which takes turns likewise. What
they ask for (a step, a timer, a signal) is a coroutine that the loop runs for them. The worker's other workflows wait
as well while a thread computes: what takes long belongs into a step.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from functools import wraps
from inspect import iscoroutinefunction
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, NoReturn, TypeVar, cast

from boki import InvalidArgument
from boki.libs.bokiflow.refusals import NoThread, outside
from boki.libs.bokiflow.stepping import STARTER, Step

T = TypeVar("T")

Request = Callable[[], Coroutine[Any, Any, Any]]
Lose = Callable[[NoThread], Coroutine[Any, Any, NoReturn]]

_UNWIND_S: Final = 1.0
"""How long a body that is put away may take to unwind, before its thread is left alone."""


class Unwind(BaseException):
    """Raised in a body that is put away, at whatever it asks for."""


class BodyThread:
    """The thread of one body. Its methods are for the loop, `ask` is for the thread."""

    def __init__(self, fn: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._fn = fn
        self._arguments = arguments
        self._requests: SimpleQueue[Request | None] = SimpleQueue()
        """What the thread asks for; None: it has ended."""
        self._answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._result: Any = None
        self._error: BaseException | None = None
        self._is_closed = False
        context = copy_context()
        context.run(THREAD.set, self)
        context.run(STARTER.set, self._start_step)
        name = f"boki-flow-{getattr(fn, '__name__', 'body')}"
        self._thread = Thread(target=context.run, args=(self._run,), daemon=True, name=name)

    async def run(self, step: Callable[..., Coroutine[Any, Any, Any]], lose: Lose) -> Any:
        """The body from its beginning to its end. `step` runs a step in the workflow, `lose` ends its run."""
        self.step, self.lose = step, lose
        try:
            self._thread.start()
        except RuntimeError as error:  # no error of the code: in another run, or elsewhere, there is room for it
            await lose(NoThread(f"no thread for its code: {error}"))
        try:
            while (request := self._requests.get()) is not None:
                try:
                    value = await request()
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001 - it is raised in the thread
                    self._answers.put((None, error))
                else:
                    self._answers.put((value, None))
        finally:
            self._is_closed = True
            self._answers.put((None, Unwind()))
            self._thread.join(_UNWIND_S)
        if self._error is not None:
            raise self._error
        return self._result

    def ask(self, request: Request) -> Any:
        """Have the loop run a coroutine, and wait for what it returns. Only for the thread."""
        if self._is_closed:
            raise Unwind
        self._requests.put(request)
        value, error = self._answers.get()
        if error is not None:
            raise error
        return value

    def _start_step(self, step: Step[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.ask(lambda: self.step(step, args, kwargs))

    def _run(self) -> None:
        try:
            self._result = self._fn(*self._arguments)
        except BaseException as error:  # noqa: BLE001 - it is raised again in the loop
            self._error = error
        self._requests.put(None)


def in_thread(handler: Callable[[Any], Any], name: str) -> Callable[[Any], Coroutine[Any, Any, Any]]:
    """A handler of a `def` workflow, as the loop of the workflow runs it: in a thread for each message."""
    if iscoroutinefunction(handler):
        raise InvalidArgument(
            f"the handler of {name} is an async def, and its workflow is a def: make both of one kind", field="handler"
        )
    thread = THREAD.get()

    @wraps(handler)
    async def handle(payload: Any) -> Any:
        assert thread is not None, "it was registered by the thread of a body"
        return await BodyThread(handler, (payload,)).run(thread.step, thread.lose)

    handle.payload_of = handler  # type: ignore[attr-defined]  # the mailbox reads payloads as this one is annotated
    return handle


THREAD: ContextVar[BodyThread | None] = ContextVar("boki_flow_thread", default=None)
"""The thread whose code is running, in a `def` workflow."""


def asked(request: Callable[[], Coroutine[Any, Any, T]], what: str) -> T:
    """What the workflow's loop returns for the coroutine."""
    thread = THREAD.get()
    if thread is None:
        raise outside(what, "call it in a def function under @workflow; in an async def use bokiflow.flow")
    return cast("T", thread.ask(request))
