"""Worker processes that run logged calls: their runs may end suspended, and functions ask for calls by their ids."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from boki.dispatch.orders import SendCancel
from boki.dispatch.server.until_gone import run_until_gone
from boki.log.operations import Appended
from boki.protocol.calls import ChosenId, InvocationState, Payload, Suspension, WakeOn
from tests.engine.host import Gate, drive, hosting

SUSPENDING = {
    "naps": """
    from boki.api.suspension import BlockingCallsById, CallsById, Suspend, WakeOn

    @function
    async def nap(ctx: Context, wake_us: int) -> str:
        if ctx.run_number < 2:
            try:
                raise Suspend(wake_us, [WakeOn("book", "!inbox", 7)], "a nap")
            except Exception:
                return "Suspend is no Exception"
        return f"run {ctx.run_number}"

    @function
    def nap_blocking(ctx: boki.blocking.Context, wake_us: int) -> str:
        if ctx.run_number < 2:
            raise Suspend(wake_us, [WakeOn("book", "!inbox", 7)], "a nap")
        return f"run {ctx.run_number}"

    @function
    async def look(ctx: Context, invocation: str) -> dict:
        calls = CallsById(ctx)
        await calls.start("ab" * 16, "nap", 5, if_running="fail", start="s")
        cancelled = await calls.cancel(invocation)
        return {"result": await ctx.result_of(invocation, wait_s=2), "state": cancelled.state}

    @function
    def look_blocking(ctx: boki.blocking.Context, invocation: str) -> dict:
        calls = BlockingCallsById(ctx)
        calls.start("ab" * 16, "nap", 5, if_running="fail", start="s")
        cancelled = calls.cancel(invocation)
        return {"result": ctx.result_of(invocation, wait_s=2), "state": cancelled.state}
    """
}


@pytest.mark.parametrize("suffix", ["", "_blocking"])
def test_the_run_of_a_logged_call_can_end_suspended(tmp_path: Path, suffix: str) -> None:
    """With what it waits for; the next run knows that it is not the first. A call that is not logged fails instead."""

    async def test() -> None:
        async with hosting(tmp_path, SUSPENDING) as host:
            outcome = await host.run("nap" + suffix, 5, run=1)
            assert (outcome.result, outcome.failure) == (None, None)
            assert outcome.suspended == Suspension(5, (WakeOn("book", "!inbox", 7),), "a nap")
            assert await host.result("nap" + suffix, 5, run=2) == "run 2"
            failure = await host.failure("nap" + suffix, 5)
            assert "raised Suspend, and only logged calls can be suspended" in failure.message

    drive(test())


@pytest.mark.parametrize("suffix", ["", "_blocking"])
def test_a_function_starts_asks_for_and_cancels_logged_calls_by_id(tmp_path: Path, suffix: str) -> None:
    """What the engine answers comes back: a state, or the error that refuses it."""

    async def test() -> None:
        async with hosting(tmp_path, SUSPENDING) as host:
            known = host.known_calls["cd" * 16] = InvocationState(
                id="cd" * 16,
                function="nap",
                book="",
                state="done",
                accepted_us=1,
                due_us=1,
                result=Payload("json", b"7"),
            )
            assert await host.result("look" + suffix, "cd" * 16) == {"result": 7, "state": known.state}
            call, _, _ = host.later_calls[0]
            assert (call.id, call.chosen) == ("ab" * 16, ChosenId("s", "fail", "use"))
            assert host.asked_calls == [("cd" * 16, 0, "cancel"), ("cd" * 16, 2, "")]
            failure = await host.failure("look" + suffix, "ef" * 16)
            assert "NoSuchInvocation: no logged call has the id ef" in failure.message

    drive(test())


COMPUTING = {
    "m": """
    @function
    def late(ctx: boki.blocking.Context, gate: str) -> None:
        wait_at(gate)
        while True:
            try:
                ctx.logbook.append(b"late")
            except boki.DeadlineExceeded:
                break

    @function
    async def append(ctx: Context, timeout_s: float) -> None:
        async with asyncio.timeout(timeout_s):
            await ctx.logbook.append(b"x")
    """
}


def test_a_run_that_is_cancelled_while_it_computes_ends_before_its_call_is_over_and_appends_no_more(
    tmp_path: Path,
) -> None:
    """The call may be run again then. A blocking worker looks for its cancellation before it asks for anything."""

    async def test() -> None:
        async with hosting(tmp_path, COMPUTING) as host:
            with Gate(tmp_path / "gate") as gate:
                running = asyncio.ensure_future(run_until_gone(host, host.call_of("late", gate.path)))
                await gate.arrived()
                running.cancel()
                await host.until(lambda: any(isinstance(effect, SendCancel) for effect in host.effects))
                (link,) = host._processes.links.values()
                for _ in range(3):  # what is sent leaves with these turns of the loop
                    await asyncio.sleep(0)
                assert not link._transport.get_write_buffer_size()
                assert not running.done()
                gate.open()
                with pytest.raises(asyncio.CancelledError):
                    await running
                assert host._dispatch.is_empty
                assert not host.operations

    drive(test())


def test_a_computing_run_that_is_cancelled_is_over_with_its_worker(tmp_path: Path) -> None:
    """It has a grace, and its caller waits for that."""

    async def test() -> None:
        async with hosting(tmp_path, COMPUTING) as host:
            with Gate(tmp_path / "gate") as gate:
                running = asyncio.ensure_future(run_until_gone(host, host.call_of("late", gate.path)))
                await gate.arrived()
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
                assert len(host.ended) == 1

    drive(test())


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_run_that_fails_is_over_when_its_appends_are_decided(tmp_path: Path, *, is_cancelled: bool) -> None:
    """A function may stop waiting for one; the next run must not begin before it. Later ones are not waited for."""

    async def test() -> None:
        async with hosting(tmp_path, COMPUTING) as host:
            host.holds_appends = True
            call = host.call_of("append", 60 if is_cancelled else 0.05)
            running = asyncio.ensure_future(run_until_gone(host, call))
            await host.until(lambda: len(host.unanswered) == 1)
            if is_cancelled:
                running.cancel()
            await host.until(lambda: host._dispatch.is_empty)
            for _ in range(3):
                await asyncio.sleep(0)
            assert not running.done()
            other = host.begin("append", 60)
            await host.until(lambda: len(host.unanswered) == 2)
            host.unanswered[0][1](Appended(1), {})
            await asyncio.wait([running])
            assert running.cancelled() if is_cancelled else running.result().failure
            host.unanswered[1][1](Appended(2), {})
            assert (await other).failure is None

    drive(test())
