"""`boki.testing`: what users of the library test their functions with, in virtual time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest

import boki.testing
from boki import (
    CallTooDeep,
    ConfigError,
    Context,
    DeadlineExceeded,
    Expect,
    FunctionFailed,
    InvalidArgument,
    KeyReused,
    NoSuchFunction,
    NoSuchInvocation,
    blocking,
    function,
)
from boki.log.limits import Limits
from boki.log.memory import MemoryLog

HOUR_S = 3600.0


class Guest(msgspec.Struct):
    name: str
    visits: int = 0


@function(book="guests")
async def greet(ctx: Context, name: str) -> str:
    await ctx.logbook.append(name.encode(), tags=[f"guest:{name}"])
    page = await ctx.logbook.read(f"guest:{name}")
    return f"Hello {name}, this is visit number {len(page.records)}!"


@function
def greet_blocking(ctx: blocking.Context, guest: Guest) -> Guest:
    ctx.logbook.append(guest.name.encode(), tags=["blocking"])
    greeting = ctx.invoke(greet, guest.name)
    assert greeting.startswith("Hello")
    return Guest(guest.name, guest.visits + 1)


@function
async def fails(ctx: Context, what: str) -> None:
    raise ValueError(what)


@function
def fails_blocking(ctx: blocking.Context) -> None:
    ctx.invoke(fails, "inside")


@function
async def returns_rubbish(ctx: Context) -> int:
    return "rubbish"  # type: ignore[return-value]


@function(timeout_s=10)
async def waits(ctx: Context, tag: str) -> str:
    record = await ctx.logbook.read_next(tag, wait_s=HOUR_S)
    return "nothing" if record is None else record.data.decode()


@function
async def hangs(ctx: Context) -> None:
    await asyncio.Event().wait()


@function
def waits_blocking(ctx: blocking.Context, tag: str) -> str:
    record = ctx.logbook.read_next(tag, wait_s=HOUR_S)
    return "nothing" if record is None else record.data.decode()


@function
async def sink(ctx: Context, depth: int) -> int:
    return await ctx.invoke(sink, depth + 1)


@function
async def counts_down(ctx: Context, left: int) -> str:
    await ctx.logbook.append(b"%d" % left, tags=["countdown"])
    if left:
        await ctx.invoke_later(counts_down, left - 1, delay_s=60)
    return f"{left} left"


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a scenario; virtual time must not take real time."""
    started = time.monotonic()
    asyncio.run(work)
    assert time.monotonic() - started < 20


def test_a_function_is_called_as_plain_python() -> None:
    """With a context, and what it logs can be read."""

    async def scenario() -> None:
        async with boki.testing.context(book="guests") as ctx:
            assert await greet(ctx, "Ada") == "Hello Ada, this is visit number 1!"
            assert await greet(ctx, "Ada") == "Hello Ada, this is visit number 2!"
            record = await ctx.logbook.check_tail("guest:Ada")
            assert record is not None
            assert record.data == b"Ada"
            assert (ctx.logbook.name, ctx.function_name) == ("guests", "test")

    run(scenario())


def test_functions_call_functions() -> None:
    """By object or by name, of both kinds, with checked payloads and results, in the book that is theirs."""

    async def scenario() -> None:
        async with boki.testing.context(functions=[greet_blocking]) as ctx:
            assert await ctx.invoke(greet, "Ada") == "Hello Ada, this is visit number 1!"
            assert await ctx.invoke("greet_blocking", {"name": "Bob"}) == {"name": "Bob", "visits": 1}
            assert await ctx.invoke(greet_blocking, Guest("Bob", 1)) == Guest("Bob", 2)
            assert await ctx.invoke("greet", "Bob", book="elsewhere") == "Hello Bob, this is visit number 1!"
            assert [record.data for record in (await ctx.logbook.read("blocking")).records] == [b"Bob", b"Bob"]
            with pytest.raises(NoSuchFunction, match="functions="):
                await ctx.invoke("no_such_function")
            with pytest.raises(InvalidArgument, match=r"payload of greet_blocking.*missing required field `name`"):
                await ctx.invoke("greet_blocking", {"nme": "Bob"})
            with pytest.raises(InvalidArgument, match="payload of greet must be str"):
                await ctx.invoke(greet, 7)  # type: ignore[call-overload]
            with pytest.raises(InvalidArgument, match="needs a payload"):
                await ctx.invoke(greet)  # type: ignore[call-overload]

    run(scenario())


def test_failures_come_back() -> None:
    """Type and message, also through a blocking parent; a result that does not fit is the function's failure."""

    async def scenario() -> None:
        async with boki.testing.context() as ctx:
            with pytest.raises(FunctionFailed, match="fails: ValueError: boom") as caught:
                await ctx.invoke(fails, "boom")
            assert (caught.value.error_type, caught.value.outcome) == ("ValueError", "failed")
            with pytest.raises(FunctionFailed, match="fails_blocking: FunctionFailed: fails: ValueError: inside"):
                await ctx.invoke(fails_blocking)
            with pytest.raises(FunctionFailed, match="does not return what it is annotated with"):
                await ctx.invoke(returns_rubbish)

    run(scenario())


def test_calls_are_nested_so_deep() -> None:
    """Endless recursion is refused by the limit."""

    async def scenario() -> None:
        async with boki.testing.context(limits=Limits(call_depth=5)) as ctx:
            with pytest.raises(FunctionFailed) as caught:
                await ctx.invoke(sink, 0)
            assert (caught.value.error_type, caught.value.error_code) == (CallTooDeep.__name__, CallTooDeep.code)
            assert "nested 5 deep" in caught.value.message
            assert caught.value.message.count("CallTooDeep") == 1
            assert "FunctionFailed" not in caught.value.message

    run(scenario())


def test_waits_pass_in_virtual_time() -> None:
    """To the second, and in no time; a record that comes meanwhile ends them."""

    async def scenario() -> None:
        async with boki.testing.context() as ctx:
            start = ctx.clock.time()
            assert await ctx.logbook.read_next("t", wait_s=HOUR_S) is None
            assert ctx.clock.time() - start == HOUR_S
            waiting = asyncio.ensure_future(ctx.logbook.read_next("t", wait_s=HOUR_S))
            await ctx.clock.advance(60)
            assert not waiting.done()
            seqnum = await ctx.logbook.append(b"x", tags=["t"])
            record = await waiting
            assert record is not None
            assert record.seqnum == seqnum
            assert ctx.clock.time() - start == HOUR_S + 60

    run(scenario())


def test_several_who_wait_meet_in_time() -> None:
    """The clock goes from one moment to the next; whoever is due first goes first."""

    async def scenario() -> None:
        async with boki.testing.context() as ctx:
            seen: list[str] = []

            async def wait(name: str, wait_s: float) -> None:
                await ctx.logbook.read_next("never", wait_s=wait_s)
                await ctx.logbook.append(name.encode())
                seen.append(name)

            await asyncio.gather(wait("c", 30), wait("a", 10), wait("b", 20))
            assert seen == ["a", "b", "c"]
            first, *_, last = (await ctx.logbook.read()).records
            assert last.time - first.time == 20_000_000

    run(scenario())


def test_deadlines_are_kept_in_virtual_time() -> None:
    """A child has its own timeout or what is left; its waits end before, and what hangs is ended."""

    async def scenario() -> None:
        async with boki.testing.context() as ctx:
            start = ctx.clock.time()
            assert await ctx.invoke(waits, "t") == "nothing"
            assert 9 < ctx.clock.time() - start <= 10
            assert await ctx.invoke(waits, "t", timeout_s=2) == "nothing"
            assert 10 < ctx.clock.time() - start <= 12
            assert await ctx.invoke(waits_blocking, "t", timeout_s=5) == "nothing"
            hanging = asyncio.ensure_future(ctx.invoke(hangs, timeout_s=7))
            await ctx.clock.advance(8)
            with pytest.raises(DeadlineExceeded, match="hangs was not done after 7 s of virtual time and was ended"):
                await hanging

    run(scenario())


@function
async def sleeps(ctx: boki.Context) -> str:
    """Wait for what is not the log's time."""
    loop = asyncio.get_running_loop()
    waited: asyncio.Future[str] = loop.create_future()
    loop.call_later(0.01, waited.set_result, "slept")
    return await waited


def test_virtual_time_that_passes_a_real_wait_is_named() -> None:
    """A later call that sleeps is ended by a deadline that was a minute ahead: its error says why."""

    async def scenario() -> None:
        async with boki.testing.context() as ctx:
            assert await ctx.invoke(sleeps) == "slept"
            call = await ctx.invoke_later(sleeps)
            with pytest.raises(DeadlineExceeded) as refused:
                await ctx.result_of(call)
            assert refused.value.message == (
                "sleeps was not done after 60 s of virtual time and was ended: that time passes at once when all wait, "
                "also for asyncio.sleep, a socket or a thread of its own"
            )

    run(scenario())


def test_the_book_of_a_child_is_its_own_else_its_callers() -> None:
    """As when deployed: `book=` of the call, else of the child's `@function`, else the caller's."""

    async def scenario() -> None:
        @function(book="stock")
        async def named(ctx: Context) -> str:
            return ctx.logbook.name

        @function
        async def unnamed(ctx: Context) -> str:
            return ctx.logbook.name

        async with boki.testing.context(book="mine", functions=[named, unnamed]) as ctx:
            called = [await ctx.invoke(child) for child in (named, "named", unnamed, "unnamed")]
            assert called == ["stock", "stock", "mine", "mine"]
            assert await ctx.invoke(named, book="other") == "other"
            ids = [await ctx.invoke_later(child) for child in (named, "named", unnamed, "unnamed")]
            ids.append(await ctx.invoke_later(named, book="other"))
            assert [await ctx.result_of(call) for call in ids] == ["stock", "stock", "mine", "mine", "other"]

    run(scenario())


def test_a_child_has_what_its_parent_has_left() -> None:
    """Deadlines, ids, traces and books as the child sees them."""

    async def scenario() -> None:
        seen: list[tuple[float, str, str, str]] = []

        @function
        async def child(ctx: Context) -> None:
            seen.append((ctx.remaining_s, ctx.invocation_id, ctx.traceparent, ctx.logbook.name))
            assert ctx.deadline == pytest.approx(test.clock.time() + ctx.remaining_s)

        @function
        async def parent(ctx: Context) -> None:
            await ctx.logbook.read_next("never", wait_s=15)
            seen.append((ctx.remaining_s, ctx.invocation_id, ctx.traceparent, ctx.logbook.name))
            await ctx.invoke(child)
            await ctx.invoke(child, timeout_s=1, book="other")

        async with boki.testing.context(book="mine") as test:
            await test.invoke(parent, timeout_s=20)
        (left_s, parent_id, trace, _), (child_s, child_id, child_trace, book), (short_s, *_, other) = seen
        assert (left_s, child_s, short_s) == (5, 5, 1)
        assert (book, other) == ("mine", "other")
        assert len({parent_id, child_id}) == 2
        assert trace.split("-")[1] == child_trace.split("-")[1]
        assert child_trace.split("-")[2] == child_id[:16]

    run(scenario())


def test_later_calls_run_when_they_are_due() -> None:
    """Delays pass in virtual time, chains of them too, and results can be had."""

    async def scenario() -> None:
        async with boki.testing.context(functions=[counts_down]) as ctx:
            call = await ctx.invoke_later("counts_down", 3, delay_s=60)
            await ctx.clock.advance(59)
            assert await ctx.logbook.check_tail("countdown") is None
            assert await ctx.result_of(call) == "3 left"
            await ctx.clock.advance(180)
            assert [record.data for record in (await ctx.logbook.read("countdown")).records] == [b"3", b"2", b"1", b"0"]
            last = await ctx.logbook.read_next("countdown", min_seqnum=1, wait_s=HOUR_S)
            assert last is not None
            with pytest.raises(NoSuchInvocation):
                await ctx.result_of("0" * 32)

    run(scenario())


def test_waiting_for_what_a_later_call_writes() -> None:
    """The clock goes to the delay's end because somebody waits."""

    async def scenario() -> None:
        async with boki.testing.context() as ctx:
            await ctx.invoke_later(counts_down, 0, delay_s=HOUR_S)
            async for record in ctx.logbook.subscribe("countdown"):
                assert record.data == b"0"
                break
            assert ctx.clock.time() * 1e6 == record.time

    run(scenario())


def test_later_calls_with_a_key_run_once() -> None:
    """The same key with another request is refused; after a day it is as new."""

    async def scenario() -> None:
        async with boki.testing.context(functions=[greet]) as ctx:
            first = await ctx.invoke_later("greet", "Ada", key="k", delay_s=1)
            assert await ctx.invoke_later("greet", "Ada", key="k", delay_s=1) == first
            with pytest.raises(KeyReused):
                await ctx.invoke_later("greet", "Bob", key="k", delay_s=1)
            assert await ctx.result_of(first) == "Hello Ada, this is visit number 1!"
            await ctx.clock.advance(24 * HOUR_S)
            assert await ctx.invoke_later("greet", "Bob", key="k") != first

    run(scenario())


def test_a_later_call_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody may be waiting for it; who does gets the error."""

    async def scenario() -> None:
        async with boki.testing.context() as ctx:
            call = await ctx.invoke_later(fails, "boom")
            with pytest.raises(FunctionFailed, match="boom"):
                await ctx.result_of(call)

    run(scenario())
    assert "fails: ValueError: boom" in caplog.text


def test_what_a_context_leaves_behind() -> None:
    """The log may be given to the next one: a process that starts again."""

    async def scenario() -> None:
        log = MemoryLog()
        async with boki.testing.context(log=log) as ctx:
            seqnum = await ctx.logbook.append(b"x", tags=["t"], when=Expect("t", 0))
        async with boki.testing.context(log=log) as ctx:
            assert (await ctx.logbook.get(seqnum)).data == b"x"

    run(scenario())


def test_two_functions_of_one_name_are_refused() -> None:
    """No system could have both."""

    @function(name="greet")
    async def other(ctx: Context) -> None: ...

    async def scenario() -> None:
        async with boki.testing.context(functions=[greet]) as ctx:
            with pytest.raises(InvalidArgument, match="two functions are named 'greet'"):
                await ctx.invoke(other)

    run(scenario())


def test_log_lines_say_who_wrote_them(caplog: pytest.LogCaptureFixture) -> None:
    """Function and invocation, beside what the caller adds."""

    @function
    async def speaks(ctx: Context) -> str:
        ctx.log.warning("hello %s", "there", extra={"colour": "red"})
        return ctx.invocation_id

    async def scenario() -> None:
        async with boki.testing.context() as ctx:
            invocation = await ctx.invoke(speaks)
        (line,) = [record for record in caplog.records if record.name == "boki.function.speaks"]
        assert line.getMessage() == "hello there"
        assert vars(line)["function"] == "speaks"
        assert vars(line)["invocation"] == invocation
        assert vars(line)["colour"] == "red"

    with caplog.at_level(logging.INFO):
        run(scenario())


def test_blocking_functions_are_called_as_plain_python() -> None:
    """With the blocking context, from a thread without a loop."""
    with boki.testing.blocking_context(book="guests", functions=[greet, counts_down]) as ctx:
        assert greet_blocking(ctx, Guest("Ada")) == Guest("Ada", 1)
        assert ctx.invoke("greet", "Ada") == "Hello Ada, this is visit number 2!"
        assert ctx.invoke(greet_blocking, Guest("Ada", 5)).visits == 6
        with pytest.raises(FunctionFailed, match="ValueError: x"):
            ctx.invoke(fails, "x")
        start = ctx.clock.time()
        assert ctx.logbook.read_next("never", wait_s=HOUR_S) is None
        assert ctx.clock.time() - start == HOUR_S
        call = ctx.invoke_later("counts_down", 1, delay_s=60)
        ctx.clock.advance(59)
        assert ctx.logbook.check_tail("countdown") is None
        assert ctx.result_of(call) == "1 left"
        ctx.clock.advance(60)
        assert [record.data for record in ctx.logbook.read("countdown").records] == [b"1", b"0"]
        for record in ctx.logbook.subscribe("countdown"):
            if record.data == b"0":
                break


def test_a_blocking_wait_is_ended_by_what_another_call_does() -> None:
    """A delayed call is due while the test's own thread waits."""
    with boki.testing.blocking_context(functions=[counts_down]) as ctx:
        ctx.invoke_later("counts_down", 0, delay_s=60)
        record = ctx.logbook.read_next("countdown", wait_s=HOUR_S)
        assert record is not None
        assert record.data == b"0"


def test_errors_in_a_test_come_through() -> None:
    """A context that is left by an error ends what still waits."""

    async def scenario() -> None:
        with pytest.raises(ConfigError):
            async with boki.testing.context() as ctx:
                waiting = asyncio.ensure_future(anext(aiter(ctx.logbook.subscribe())))
                calling = asyncio.ensure_future(ctx.invoke(hangs))
                await asyncio.sleep(0)
                raise ConfigError("of the test")
        outcomes = await asyncio.gather(waiting, calling, return_exceptions=True)
        assert all(isinstance(outcome, BaseException) for outcome in outcomes)

    run(scenario())
    with pytest.raises(ConfigError), boki.testing.blocking_context():
        raise ConfigError("of the test")


def test_a_context_may_have_an_http_request() -> None:
    """As if its function had been called over HTTP; children have none."""

    @function
    async def child(ctx: Context) -> bool:
        return ctx.request is None

    async def scenario() -> None:
        headers = {"User-Agent": "me"}
        request = boki.Request("GET", "/u/x", query={"q": "1"}, headers=headers, path_values={"code": "x"})
        async with boki.testing.context(request=request) as ctx:
            assert ctx.request is not None
            assert (ctx.request.method, ctx.request.query["q"], ctx.request.headers["user-agent"]) == ("GET", "1", "me")
            assert ctx.request.path_values["code"] == "x"
            assert await ctx.invoke(child)
        async with boki.testing.context() as ctx:
            assert ctx.request is None

    asyncio.run(scenario())
