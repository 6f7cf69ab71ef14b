"""Blocking code over the port of `async` code: so a thread of an event loop may do what the loop may.

It is the other direction of `boki.api.borrowed_port`: the requests are made in the loop, and the thread waits for them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from boki.api import blocking_context
from boki.api.context import Context
from boki.log.metalog import Positions
from boki.log.operations import Answer, Operation
from boki.protocol.calls import Call, CallChange, InvocationState, Outcome

T = TypeVar("T")
H = TypeVar("H")


class InLoop(Protocol):
    """Runs work in the loop of a context, for a thread that waits for it. It refuses the thread of a loop."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T:
        """What the work returns; raises what it raises."""


class LentPort:
    """A `BlockingLogPort` and `BlockingCallPort` over those of a context whose loop runs in another thread."""

    def __init__(self, ctx: Context, in_loop: InLoop) -> None:
        self.ctx = ctx
        """The context that is lent."""
        self._in_loop = in_loop
        self._log = ctx.logbook.session.port
        self._calls = ctx._calls  # noqa: SLF001 - the low-level side of a context

    def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """See `BlockingLogPort.request`."""
        return self._in_loop(self._log.request(operation, positions, timeout_s))

    def invoke(self, call: Call) -> Outcome:
        """See `BlockingCallPort.invoke`."""
        return self._in_loop(self._calls.invoke(call))

    def invoke_later(self, call: Call, delay_s: float, key: str | None) -> str:
        """See `BlockingCallPort.invoke_later`."""
        return self._in_loop(self._calls.invoke_later(call, delay_s, key))

    def ask_call(self, invocation_id: str, wait_s: float, change: CallChange) -> InvocationState:
        """See `BlockingCallPort.ask_call`."""
        return self._in_loop(self._calls.ask_call(invocation_id, wait_s, change))

    def run(self, work: Callable[[H], Awaitable[T]], here: H) -> T:
        """Run `async` code of the thread in the loop. See `boki.blocking.run`."""

        async def there() -> T:
            return await work(here)

        return self._in_loop(there())


def lend(ctx: Context, in_loop: InLoop) -> blocking_context.Context:
    """The context for a thread: what it asks for is done in the loop of the context."""
    port = LentPort(ctx, in_loop)
    return blocking_context.Context(ctx._state, port, port)  # noqa: SLF001
