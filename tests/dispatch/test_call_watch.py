"""Who is told of calls as they end."""

from __future__ import annotations

import asyncio
from pathlib import Path

from boki.protocol.calls import Call, Outcome
from tests.engine.host import drive, hosting


def test_every_call_is_told_with_its_outcome(tmp_path: Path) -> None:
    """Child calls before the call that made them, refusals and failures too, and what was given up."""
    module = """
        @function
        async def add(ctx: Context, n: int) -> int:
            return n + 1

        @function
        async def twice(ctx: Context, n: int) -> int:
            return await ctx.invoke("add", await ctx.invoke(add, n))
    """
    told: list[tuple[str, str]] = []

    def on_call(call: Call, outcome: Outcome, elapsed_us: int) -> None:
        assert elapsed_us >= 0
        told.append((call.function, outcome.failure.code if outcome.failure else "ok"))

    async def test() -> None:
        async with hosting(tmp_path, {"m": module}, on_call=on_call) as host:
            assert await host.result("twice", 1) == 3
            await host.failure("add", "text")
            await host.failure("nothing", 1)

    drive(test())
    assert told == [
        ("add", "ok"),
        ("add", "ok"),
        ("twice", "ok"),
        ("add", "invalid_argument"),
        ("nothing", "no_such_function"),
    ]


def test_a_call_that_is_cancelled_is_told(tmp_path: Path) -> None:
    """Else whoever watches sees a call begin that never ends."""
    module = """
        import asyncio

        @function
        async def wait(ctx: Context) -> None:
            print("waits")
            await asyncio.Event().wait()
    """
    told: list[tuple[str, str, str]] = []

    def on_call(call: Call, outcome: Outcome, elapsed_us: int) -> None:
        assert outcome.failure is not None
        told.append((call.function, outcome.failure.code, outcome.failure.message))

    async def test() -> None:
        async with hosting(tmp_path, {"m": module}, on_call=on_call) as host:
            call = host.begin("wait")
            await host.until(lambda: host.texts("stdout") == ["waits"])
            call.cancel()
            await asyncio.wait([call])

    drive(test())
    assert told == [("wait", "call_cancelled", "nobody waits for it any more")]
