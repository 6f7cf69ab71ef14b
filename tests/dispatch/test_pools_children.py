"""Functions that call functions: slots, depth, deadlines, failures and cancellation, across real processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from boki.dispatch.orders import Budget
from tests.engine.host import LIMITS, drive, hosting

KINDS = pytest.mark.parametrize("suffix", ["", "_blocking"], ids=["async", "blocking"])
MODULES = {
    "deep": """
    @function(concurrency=1, max_workers=1)
    async def down(ctx: Context, levels: int) -> int:
        return 1 + await ctx.invoke("down", levels - 1) if levels else 1

    @function(max_workers=1)
    def down_blocking(ctx: boki.blocking.Context, levels: int) -> int:
        return 1 + ctx.invoke("down_blocking", levels - 1) if levels else 1
    """,
    "m": """
    @function
    async def ask(ctx: Context, other: str) -> str:
        return await ctx.invoke(other, "hello")

    @function
    def ask_blocking(ctx: boki.blocking.Context, other: str) -> str:
        return ctx.invoke(other, "hello")

    @function
    async def echo(ctx: Context, text: str) -> str:
        await ctx.logbook.append(b"x")
        return f"{text} in {ctx.logbook.name}"

    @function
    async def fail(ctx: Context, text: str) -> str:
        raise ValueError(text)

    @function
    async def endless(ctx: Context, text: str) -> str:
        try:
            print("begun")
            begun.set()
            await asyncio.Event().wait()
        finally:
            print("ended")

    begun = asyncio.Event()

    @function
    async def impatient(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.2):
                await ctx.invoke("endless", "x")
        except TimeoutError:
            return "gave up"

    @function
    async def fan_out(ctx: Context, count: int) -> int:
        return len(await asyncio.gather(*(ctx.invoke("echo", str(i)) for i in range(count))))

    @function
    async def forgetful(ctx: Context) -> None:
        asyncio.get_running_loop().create_task(ctx.invoke("endless", "x"))
        await begun.wait()

    @function
    def crash(ctx: boki.blocking.Context, text: str) -> None:
        os._exit(4)

    @function
    async def family(ctx: Context) -> list:
        await ctx.invoke("echo", "x")
        return [ctx.positions[0]]
    """,
}


@KINDS
def test_a_function_may_call_itself_to_the_depth_bound_in_one_slot(tmp_path: Path, suffix: str) -> None:
    """One slot suffices for a chain as deep as the limit, because who waits holds none; one deeper is refused."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES, limits=LIMITS) as host:
            assert await host.result(f"down{suffix}", LIMITS.call_depth) == LIMITS.call_depth + 1
            failure = await host.failure(f"down{suffix}", LIMITS.call_depth + 1)
            assert failure.details["error_type"] == "CallTooDeep"
            assert failure.message.startswith(f"down{suffix}: CallTooDeep: this call of")
            assert failure.message.count("CallTooDeep") == failure.message.count("limits.call_depth is 4") == 1
            assert len(host.texts("error")) == 1
            assert await host.result(f"down{suffix}", 0) == 1

    drive(test())


def test_blocking_calls_beyond_the_cap_of_extra_workers_are_refused_plainly(tmp_path: Path) -> None:
    """A chain that needs more processes than may be is an overload error, not a wait until the deadline."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES, limits=LIMITS, budget=Budget(extra_workers=1)) as host:
            failure = await host.failure("down_blocking", 3)
            assert "wait for calls that their calls have made" in failure.message
            assert sum(pool.workers for pool in host.stats() if not pool.is_async) == 2
            assert await host.result("down_blocking", 1) == 2

    drive(test())


@KINDS
def test_a_child_gets_its_parents_book_and_returns_what_it_has_seen(tmp_path: Path, suffix: str) -> None:
    """Books are handed down, results and positions come back, and kinds may call each other."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            assert await host.result(f"ask{suffix}", "echo") == f"hello in ask{suffix}"
            assert await host.result("family") == [2]

    drive(test())


BOOKS = {
    "books": """
    @function(book="stock")
    async def named(ctx: Context) -> str:
        return ctx.logbook.name

    @function(book="blocking-stock")
    def named_blocking(ctx: boki.blocking.Context) -> str:
        return ctx.logbook.name

    @function
    async def unnamed(ctx: Context) -> str:
        return ctx.logbook.name

    @function
    async def parent(ctx: Context) -> list[str]:
        for child in (named, "named", unnamed, "unnamed", named_blocking):
            await ctx.invoke_later(child)
        await ctx.invoke_later(named, book="elsewhere")
        called = [await ctx.invoke(child) for child in (named, "named", unnamed, "unnamed", named_blocking)]
        return [*called, await ctx.invoke(named, book="elsewhere"), await ctx.invoke("unnamed", book="elsewhere")]

    @function
    def parent_blocking(ctx: boki.blocking.Context) -> list[str]:
        for child in (named, "named", unnamed, "unnamed", named_blocking):
            ctx.invoke_later(child)
        ctx.invoke_later(named, book="elsewhere")
        called = [ctx.invoke(child) for child in (named, "named", unnamed, "unnamed", named_blocking)]
        return [*called, ctx.invoke(named, book="elsewhere"), ctx.invoke("unnamed", book="elsewhere")]
    """
}


@KINDS
@pytest.mark.parametrize("book", ["", "shop"], ids=["default-book", "book-of-the-call"])
def test_a_childs_own_book_comes_before_its_callers(tmp_path: Path, suffix: str, book: str) -> None:
    """`book=` of the call, else of the child's `@function`, else the caller's: now and later, by object and by name."""

    async def test() -> None:
        async with hosting(tmp_path, BOOKS) as host:
            call = host.call_of(f"parent{suffix}")
            outcome = await host.call(msgspec.structs.replace(call, book=book))
            assert outcome.result is not None, outcome.failure
            callers = book or f"parent{suffix}"
            expected = ["stock", "stock", callers, callers, "blocking-stock", "elsewhere"]
            assert msgspec.json.decode(outcome.result.data) == [*expected, "elsewhere"]
            assert [later.book for later, _, _ in host.later_calls] == expected

    drive(test())


@KINDS
@pytest.mark.parametrize(
    ("child", "known"),
    [("fail", "ValueError: hello"), ("nobody", "no function is registered"), ("crash", "exited with status 4")],
)
def test_how_a_child_failed_is_raised_in_its_parent(tmp_path: Path, suffix: str, child: str, known: str) -> None:
    """A child that raises, is unknown or dies with its process is an exception where it was called."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            failure = await host.failure(f"ask{suffix}", child)
            assert failure.code == ("function_failed" if suffix == "" or child != "crash" else failure.code)
            assert known in failure.message

    drive(test())


def test_a_parent_may_wait_for_many_children_at_once(tmp_path: Path) -> None:
    """Children of one call run side by side, and it gets each one's result."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            assert await host.result("fan_out", 100) == 100

    drive(test())


def test_a_child_that_nobody_waits_for_is_cancelled(tmp_path: Path) -> None:
    """Giving up on a child, or ending without having waited for it, cancels it."""

    async def test() -> None:
        for way in ("impatient", "forgetful"):
            async with hosting(tmp_path / way, MODULES) as host:
                await host.run(way)
                await host.until(lambda: host.texts("stdout") == ["begun", "ended"])
                await host.until(lambda: host._dispatch.is_empty)

    drive(test())


@KINDS
def test_an_overdue_parent_takes_its_children_along(tmp_path: Path, suffix: str) -> None:
    """The child has no more time than its parent, and both are told; neither process dies for it."""

    async def test() -> None:
        async with hosting(tmp_path, MODULES) as host:
            failure = await host.failure(f"ask{suffix}", "endless", timeout_s=0.5)
            assert failure.code == "deadline_exceeded"
            await host.until(lambda: host.texts("stdout") == ["begun", "ended"])
            await host.until(lambda: host._dispatch.is_empty)
            assert not host.ended

    drive(test())


def test_whoever_waits_leaves_its_slot_to_others(tmp_path: Path) -> None:
    """While the one slot's call waits for a child, a second call runs in it."""
    modules = {
        "m": """
        arrived = asyncio.Event()

        @function(concurrency=1, max_workers=1)
        async def one_at_a_time(ctx: Context, role: str) -> str:
            if role == "parent":
                return await ctx.invoke("wait_for_guest")
            arrived.set()
            return "guest"

        @function(max_workers=1)
        async def wait_for_guest(ctx: Context) -> str:
            print("waiting")
            await arrived.wait()
            return "parent"
        """
    }

    async def test() -> None:
        async with hosting(tmp_path, modules) as host:
            parent = host.begin("one_at_a_time", "parent")
            await host.until(lambda: bool(host.texts("stdout")))
            assert await host.result("one_at_a_time", "guest") == "guest"
            assert (await asyncio.wait_for(parent, 30)).failure is None

    drive(test())
