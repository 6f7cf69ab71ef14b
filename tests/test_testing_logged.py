"""`boki.testing` with logged calls that are suspended, and calls under ids that their callers choose."""

from __future__ import annotations

import pytest

import boki.testing
from boki import (
    AlreadyExists,
    CallCancelled,
    Context,
    DeadlineExceeded,
    FunctionFailed,
    InvalidArgument,
    KeyReused,
    blocking,
    function,
)
from boki.api.suspension import CallsById, Suspend, WakeOn, invocation_id_of
from tests.test_testing import HOUR_S, counts_down, run


@function
async def naps(ctx: Context, what: str) -> str:
    """Sleeps an hour, then until a record comes, then fails once."""
    if ctx.run_number <= 1:
        raise Suspend(round((ctx.deadline - ctx.remaining_s + HOUR_S) * 1e6), note="an hour")
    if ctx.run_number == 2:
        raise Suspend(wakes=[WakeOn("test", "!inbox", 1)])
    return f"{what} in run {ctx.run_number}"


@function
def naps_blocking(ctx: blocking.Context, what: str) -> str:
    if ctx.run_number <= 1:
        raise Suspend(wakes=[WakeOn("test", "!inbox", 1)])
    return f"{what} in run {ctx.run_number}"


def test_suspended_calls_wake_in_virtual_time() -> None:
    """By the clock and by a record, of both kinds of functions; they can be looked at and cancelled."""

    async def scenario() -> None:
        async with boki.testing.context(functions=[naps, naps_blocking]) as ctx:
            calls = CallsById(ctx)
            start = ctx.clock.time()
            call = await ctx.invoke_later(naps, "done")
            other = await ctx.invoke_later(naps_blocking, "done")
            cancelled = await ctx.invoke_later(naps, "never")
            await ctx.clock.advance(1)
            state = await calls.state(call)
            assert (state.state, state.attempts, state.suspension and state.suspension.note) == (
                "suspended",
                1,
                "an hour",
            )
            assert state.next_us == round((start + HOUR_S) * 1e6)
            assert (await calls.cancel(cancelled)).state == "cancelled"
            await ctx.clock.advance(2 * HOUR_S)
            assert (await calls.state(call)).attempts == 2
            await ctx.logbook.append(b"news", tags=["!inbox"])
            assert await ctx.result_of(call) == "done in run 3"
            assert await ctx.result_of(other) == "done in run 2"
            with pytest.raises(CallCancelled):
                await ctx.result_of(cancelled)
            with pytest.raises(FunctionFailed, match="only logged calls can be suspended"):
                await ctx.invoke(naps, "x")

    run(scenario())


def test_a_call_that_waits_for_ever_is_not_waited_for() -> None:
    """`result_of` says what the call waits for when its time is over."""

    async def scenario() -> None:
        async with boki.testing.context(functions=[naps_blocking]) as ctx:
            call = await ctx.invoke_later("naps_blocking", "x")
            with pytest.raises(DeadlineExceeded, match=r"has not ended .it is suspended."):
                await ctx.result_of(call, wait_s=HOUR_S)

    run(scenario())


def test_calls_start_once_under_a_chosen_id() -> None:
    """As in an engine: a start is repeated, stands for the call that is there, is refused, or begins again."""

    async def scenario() -> None:
        async with boki.testing.context(functions=[counts_down]) as ctx:
            calls = CallsById(ctx)
            chosen = invocation_id_of("counter", "1")
            assert (await calls.start(chosen, "counts_down", 0)).id == chosen
            assert (await calls.start(chosen, "counts_down", 0)).id == chosen
            with pytest.raises(KeyReused):
                await calls.start(chosen, "counts_down", 1)
            with pytest.raises(AlreadyExists):
                await calls.start(chosen, "counts_down", 0, if_running="fail")
            assert await ctx.result_of(chosen) == "0 left"
            with pytest.raises(AlreadyExists):
                await calls.start(chosen, "counts_down", 0, if_ended="fail")
            await calls.start(chosen, "counts_down", 0, if_ended="again_if_failed")
            for _ in range(2):
                await calls.start(chosen, "counts_down", 1, if_ended="again", start="s")
            assert await ctx.result_of(chosen) == "1 left"
            with pytest.raises(InvalidArgument, match="32 hex digits"):
                await calls.start("mine", "counts_down", 0)

    run(scenario())
