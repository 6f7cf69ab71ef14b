"""Who is told of calls as they end."""

from __future__ import annotations

import asyncio
from pathlib import Path

from boki.dispatch.call_watch import CallWatch
from boki.errors import FunctionFailed
from boki.log.operations import Failure
from boki.protocol.calls import Call, Outcome, Payload, Suspension
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


def test_a_try_is_told_only_if_it_was_the_run() -> None:
    """Else each workflow with an effect would begin with a call that was cancelled, or suspended."""
    failed = Outcome(None, Failure.of(FunctionFailed("it raised")))
    outcomes = [Outcome(Payload("json", b"1"), None), failed, Outcome(None, None, suspended=Suspension(1))]
    told: list[tuple[bool, Outcome]] = []
    for is_tried in (True, False):
        call = Call("c", "flow", Payload("json", b""), "b", 1, 0, {}, is_tried=is_tried)

        def on_call(call: Call, outcome: Outcome, _: int) -> None:
            told.append((call.is_tried, outcome))

        watch = CallWatch(on_call, lambda: 0)
        for ticket, outcome in enumerate(outcomes):
            watch.watched(ticket, call, lambda _: None)(outcome)
        watch.watched(9, call, lambda _: None)
        watch.cancelled(9)
    assert [outcome for is_tried, outcome in told if is_tried] == outcomes[:1]
    assert [outcome for is_tried, outcome in told if not is_tried][:3] == outcomes
    assert len(told) == 5
