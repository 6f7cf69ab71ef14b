"""What wakes a workflow that waits for a call which another caller has started."""

from __future__ import annotations

from collections import Counter
from typing import Any

from boki.libs.bokiflow import flow, workflow
from tests.libs.bokiflow.clustered import ALONE, run_clustered

RUNS: Counter[str] = Counter()
TICKS = 60


@workflow
async def partner(ids: list[str]) -> None:
    me, other = ids
    RUNS[me] += 1
    await flow.sleep(2)
    await flow.call(partner, [other, me], id=other)


@workflow
async def chatty(_: object) -> str:
    RUNS["chatty"] += 1
    for _ in range(TICKS):
        await flow.sleep(1)
    return "said all"


@workflow
async def listener() -> str:
    RUNS["listener"] += 1
    return await flow.call(chatty, None, id="chatty")


def test_two_that_wait_for_each_other_do_not_wake_each_other_for_ever() -> None:
    """Each run of a call is a record that wakes those who wait for it: each of them ran some two times a second."""
    RUNS.clear()

    async def work(ctx: Any) -> None:
        first = await partner.start(ctx, ["a", "b"], id="a")
        await partner.start(ctx, ["b", "a"], id="b")
        await ctx.clock.advance(120)
        state = await first.status()
        assert (state.status, state.wakes_us > 0) == ("suspended", True)

    run_clustered(work, ALONE)
    assert max(RUNS["a"], RUNS["b"]) <= 30


def test_a_call_that_runs_often_wakes_those_who_wait_for_it_a_few_times() -> None:
    """They replay with each run of it, and hear of its end all the same, a minute later at most."""
    RUNS.clear()

    async def work(ctx: Any) -> None:
        await chatty.start(ctx, None, id="chatty")
        waiting = await listener.start(ctx)
        await ctx.clock.advance(TICKS + 70)
        assert await waiting.result() == "said all"

    run_clustered(work, ALONE)
    assert RUNS["chatty"] > TICKS
    assert RUNS["listener"] <= 30
