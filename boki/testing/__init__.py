"""Test your functions without a server: contexts over a log in memory, in virtual time.

A function is plain Python, so a test calls it::

    import boki.testing
    from app import greet, remind              # @function async def ...

    async def test_greeting_is_logged() -> None:
        async with boki.testing.context(book="guests") as ctx:
            assert await greet(ctx, "Ada") == "Hello Ada, this is visit number 1!"
            record = await ctx.logbook.check_tail("guest:Ada")
            assert record is not None and record.data == b"Ada"

    async def test_reminder_comes_after_an_hour() -> None:
        async with boki.testing.context(functions=[remind]) as ctx:
            call = await ctx.invoke_later("remind", "Ada", delay_s=3600)
            await ctx.clock.advance(3599)
            assert await ctx.logbook.check_tail() is None
            assert await ctx.result_of(call) == "reminded"          # waits that hour, in no time

Blocking functions get a blocking context, and no `await`::

    def test_blocking_greeting() -> None:
        with boki.testing.blocking_context(book="guests") as ctx:
            assert greet_blocking(ctx, "Ada").startswith("Hello Ada")
            ctx.clock.advance(60)

With pytest, the fixtures `boki_context` and `boki_blocking_context` are such contexts (see `pytest_boki`).

`ctx.invoke` runs other functions for real, of both kinds: those passed as objects, and by name those given in
`functions` or seen as objects before. Waits (`wait_s`), delays, deadlines and the 24 hours of a key pass at once when
nothing else runs, so wait for the log or the clock rather than with `asyncio.sleep`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from threading import Thread
from types import ModuleType
from typing import Any

from boki.api.call_state import UNHURRIED_US, new_invocation_id
from boki.api.function import Function
from boki.api.http.request import Request
from boki.api.payloads.values import NO_PAYLOAD
from boki.errors import WrongType
from boki.log.limits import DEFAULT_LIMITS, Limits
from boki.log.memory import MemoryLog
from boki.protocol.calls import Call
from boki.testing.contexts import BlockingClock, BlockingContext, Calls, Context
from boki.testing.memory_port import MemoryPort
from boki.testing.unopened import UnopenedBlockingContext, UnopenedContext
from boki.testing.virtual_clock import Clock

__all__ = ["BlockingClock", "BlockingContext", "Clock", "Context", "MemoryLog", "blocking_context", "context"]


def context(
    book: str = "test",
    *,
    functions: Iterable[Callable[..., Any]] = (),
    log: MemoryLog | None = None,
    limits: Limits = DEFAULT_LIMITS,
    request: Request | None = None,
) -> UnopenedContext[Context]:
    """A context for `async def` functions, whose LogBook is `book`. `log`: what an earlier context left behind.

    `request` is its `ctx.request`, as if it had been called over HTTP.
    """
    return UnopenedContext(_opened(book, functions, log, limits, request), "boki.testing.context()")


@asynccontextmanager
async def _opened(
    book: str,
    functions: Iterable[Callable[..., Any]],
    log: MemoryLog | None,
    limits: Limits,
    request: Request | None,
) -> AsyncIterator[Context]:
    functions = _checked_parts(functions, log, limits, request)
    calls = Calls(MemoryPort(log, limits=limits), functions)
    try:
        yield Context(_first_call(book, request), calls)
    finally:
        await calls.close()


def blocking_context(
    book: str = "test",
    *,
    functions: Iterable[Callable[..., Any]] = (),
    log: MemoryLog | None = None,
    limits: Limits = DEFAULT_LIMITS,
    request: Request | None = None,
) -> UnopenedBlockingContext[BlockingContext]:
    """A context for `def` functions, to be used in the thread that entered it."""
    opened = _blocking_opened(book, functions, log, limits, request)
    return UnopenedBlockingContext(opened, "boki.testing.blocking_context()")


@contextmanager
def _blocking_opened(
    book: str,
    functions: Iterable[Callable[..., Any]],
    log: MemoryLog | None,
    limits: Limits,
    request: Request | None,
) -> Iterator[BlockingContext]:
    functions = _checked_parts(functions, log, limits, request)
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, daemon=True, name="boki-test-log")
    thread.start()

    async def open_calls() -> Calls:
        calls = Calls(MemoryPort(log, limits=limits), functions)
        calls.port.clock.thread_started()  # the test itself
        return calls

    calls = asyncio.run_coroutine_threadsafe(open_calls(), loop).result()
    try:
        yield BlockingContext(_first_call(book, request), calls)
    finally:
        asyncio.run_coroutine_threadsafe(calls.close(), loop).result()
        asyncio.run_coroutine_threadsafe(loop.shutdown_asyncgens(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _checked_parts(functions: object, log: object, limits: object, request: object) -> list[Callable[..., Any]]:
    """The functions. `WrongType` for what no context can be made of: type checkers do not see pytest's markers."""
    if not isinstance(functions, Iterable) or isinstance(functions, str):
        raise WrongType("functions must be a list of functions: write functions=[...]", field="functions")
    functions = list(functions)
    for at, one in enumerate(functions):
        if isinstance(one, (str, ModuleType)):
            name = one if isinstance(one, str) else one.__name__
            what = "the name" if isinstance(one, str) else "the module"
            raise WrongType(
                f"functions[{at}] is {what} {name!r:.80}: give the functions themselves, without quotes, as in "
                "functions=[greet, remind]",
                field="functions",
            )
        Function.of(one)  # here, before anything is started
    parts: list[tuple[str, object, type]] = [("log", log, MemoryLog), ("limits", limits, Limits)]
    for name, value, kind in [*parts, ("request", request, Request)]:
        if not isinstance(value, kind) and not (value is None and name != "limits"):
            raise WrongType(f"{name} must be a {kind.__name__}, not {type(value).__name__}", field=name)
    return functions


def _first_call(book: str, request: Request | None) -> Call:
    head = None if request is None else request.head()
    return Call(new_invocation_id(), "test", NO_PAYLOAD, book, UNHURRIED_US, request=head)
