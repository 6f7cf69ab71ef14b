"""`async` code over the port of blocking code: so the libraries, which are `async`, serve plain `def` functions too."""

from __future__ import annotations

import asyncio
from asyncio import events
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar, overload

from boki.api import blocking_context, blocking_logbook
from boki.api.append_gatherer import AppendGatherer
from boki.api.context import Context
from boki.api.lent_port import LentPort
from boki.api.logbook import LogBook, LogSession
from boki.api.port import BlockingCallPort, BlockingLogPort
from boki.errors import InvalidArgument
from boki.log.metalog import Positions, merge_positions
from boki.log.operations import Answer, Operation
from boki.protocol.calls import Call, CallChange, InvocationState, Outcome

T = TypeVar("T")
P = ParamSpec("P")

_THREADS: Final = 16
"""This many requests wait for their answers at once; more wait for their turn."""


class _Threads:
    """Where requests wait."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads

    async def _waited(self, request: Callable[P, T], *args: P.args, **_: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, request, *args)


class BorrowedPort(_Threads):
    """A `LogPort` whose requests wait in threads."""

    def __init__(self, port: BlockingLogPort, threads: ThreadPoolExecutor) -> None:
        super().__init__(threads)
        self._port = port

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """See `LogPort.request`."""
        seen = dict(positions)
        answer = await self._waited(self._port.request, operation, seen, timeout_s)
        merge_positions(positions, seen)
        return answer


class BorrowedCalls(_Threads):
    """A `CallPort` whose requests wait in threads."""

    def __init__(self, port: BlockingCallPort, threads: ThreadPoolExecutor) -> None:
        super().__init__(threads)
        self._port = port

    async def invoke(self, call: Call) -> Outcome:
        """See `CallPort.invoke`."""
        return await self._waited(self._port.invoke, call)

    async def invoke_later(self, call: Call, delay_s: float, key: str | None) -> str:
        """See `CallPort.invoke_later`."""
        return await self._waited(self._port.invoke_later, call, delay_s, key)

    async def ask_call(self, invocation_id: str, wait_s: float, change: CallChange) -> InvocationState:
        """See `CallPort.ask_call`."""
        return await self._waited(self._port.ask_call, invocation_id, wait_s, change)


@overload
def run(here: blocking_logbook.LogBook, work: Callable[[LogBook], Awaitable[T]]) -> T: ...


@overload
def run(here: blocking_context.Context, work: Callable[[Context], Awaitable[T]]) -> T: ...


def run(here: blocking_logbook.LogBook | blocking_context.Context, work: Callable[[Any], Awaitable[T]]) -> T:
    """Run code that is written for the `async` LogBook or Context, such as the libraries, over a blocking one; what it
    returns.

    ::

        run(ctx.logbook, lambda logbook: Queue(logbook, "orders").push("tea"))
        run(ctx, lambda ctx: travel.start(ctx, "Rome"))

    It has an event loop of its own, which ends with it: what is still under way then is cancelled, and what a library
    keeps in memory is read from the log again next time. So do in one run what belongs together. Not for a thread in
    which an event loop runs (`InvalidArgument`): there use the `async` side. Over a context that was lent to a thread
    by an event loop (`boki.extending.lend`) the work runs in that loop.
    """
    if events._get_running_loop() is not None:  # noqa: SLF001 - `get_running_loop` raises if there is none
        raise InvalidArgument(
            "blocking code was called in the thread of an event loop, which it would stop: in an async def function or "
            "step await the method of the same name with its context"
        )
    logbook = here.logbook if isinstance(here, blocking_context.Context) else here
    access = logbook.session
    if isinstance(access.port, LentPort):
        lent = access.port.ctx
        return access.port.run(work, lent if logbook is not here else lent.logbook_named(logbook.name))
    threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="boki")

    async def borrow() -> T:
        port = BorrowedPort(access.port, threads)
        appends = AppendGatherer(port, access.caller.limits)
        if isinstance(here, blocking_context.Context):
            calls = BorrowedCalls(here._calls, threads)  # noqa: SLF001 - the low-level side of a context
            return await work(Context(here._state, port, appends, calls))  # noqa: SLF001
        return await work(LogBook(logbook.name, LogSession(port, appends, access.caller)))

    try:
        return asyncio.run(borrow())
    finally:
        threads.shutdown(wait=False, cancel_futures=True)  # a read that nobody waits for any more ends by itself
