"""A workflow may take longer than one of its runs may: before its deadline a run gives way to a new one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import boki.testing
from boki import DeadlineExceeded, FunctionFailed, Retry
from boki.libs.bokiflow import flow, step, workflow
from boki.libs.bokiflow.blocking import flow as blocking_flow
from boki.libs.bokiflow.journal import JournalWriter
from boki.libs.bokiflow.records import Done, journal_tag
from boki.libs.bokiflow.replaying import read_history
from tests.libs.bokiflow.test_rest import passes

blocking_nap = blocking_flow.sleep
RUNS: set[int] = set()
"""Numbers of the runs that steps were in."""
BODIES: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    RUNS.clear()
    BODIES.clear()


@step
async def work(what: str, seconds: int) -> str:
    """Takes these seconds, and does not let the workflow be idle."""
    ctx = step.ctx
    assert isinstance(ctx, boki.testing.Context)
    RUNS.add(ctx.run_number)
    BODIES.append(what)
    await passes(ctx, seconds)
    return what


@workflow(run_timeout_s=100)
async def busy(count: int) -> int:
    """Is never idle."""
    for number in range(count):
        await work(str(number), 3)
    return count


@pytest.mark.usefixtures("each_mode")
async def test_a_workflow_that_is_never_idle(boki_context: boki.testing.Context) -> None:
    """It continues in one run after the other; no step is run twice."""
    handle = await busy.start(boki_context, 200)
    assert await handle.result() == 200
    assert list(BODIES) == [str(number) for number in range(200)]
    assert len(RUNS) >= 6, "each is about half of what it may be"


@workflow(run_timeout_s=100)
async def again(count: int) -> int:
    """Is begun as new after each step."""
    await work(str(count), 3)
    return count if count == 100 else flow.continue_as_new(count + 1)


async def test_a_workflow_that_continues_as_new_and_is_never_idle(boki_context: boki.testing.Context) -> None:
    """All of these executions are of one run, unless it gives way."""
    handle = await again.start(boki_context, 1)
    assert await handle.result() == 100
    assert list(BODIES) == [str(number) for number in range(1, 101)]
    assert len(RUNS) >= 3


@workflow(run_timeout_s=100)
async def beside(kinds: list[Any]) -> list[str]:
    """Steps of these lengths, one after the other in each of the tasks."""

    async def task(name: str, seconds: int, count: int) -> str:
        for number in range(count):
            await work(f"{name}{number}", seconds)
        return name

    return await asyncio.gather(*(task(*kind) for kind in kinds))


async def test_steps_beside_each_other(boki_context: boki.testing.Context) -> None:
    """There is no moment without a step, so in its last quarter the run begins none. What it has begun comes to its
    end.
    """
    handle = await beside.start(boki_context, [["a", 20, 10], ["b", 7, 40], ["c", 13, 10]])
    assert await handle.result() == ["a", "b", "c"]
    assert len(BODIES) == len(set(BODIES)) == 60
    assert len(RUNS) >= 3


@step(retry=Retry(attempts=3, first_s=1, max_s=1, jitter=0))
async def long(lengths: list[int]) -> int:
    """Takes these seconds, one number for each attempt."""
    ctx = step.ctx
    assert isinstance(ctx, boki.testing.Context)
    BODIES.append(f"{step.attempt} after {step.details}")
    step.heartbeat(step.attempt)
    try:
        await passes(ctx, lengths[step.attempt - 1])
    except asyncio.CancelledError:
        await passes(ctx, 1)  # to clean up
        BODIES.append("clean")
        raise
    return step.attempt


@step
async def undo(what: str) -> None:
    BODIES.append(f"undo {what}")


@workflow(run_timeout_s=100)
async def careful(lengths: list[int]) -> int:
    flow.compensate(undo, "it")
    return await long(lengths)


async def test_an_attempt_that_is_longer_than_a_run(boki_context: boki.testing.Context) -> None:
    """It has timed out, and the step's policy makes another one, in another run, which knows how far it had come."""
    handle = await careful.start(boki_context, [150, 90])
    assert await handle.result() == 2
    assert BODIES == ["1 after None", "clean", "2 after 1"]


async def test_a_step_that_is_always_longer_than_a_run(boki_context: boki.testing.Context) -> None:
    """Its policy gives up; the workflow fails as after any step, and undoes what it had done."""
    handle = await careful.start(boki_context, [150, 150, 150])
    with pytest.raises(FunctionFailed, match=r"StepFailed: .*TimeoutError: .*run_timeout_s of the workflow is 100"):
        await handle.result()
    assert BODIES == ["1 after None", "clean", "2 after 1", "clean", "3 after 2", "clean", "undo it"]
    history = await read_history(boki_context.logbook, journal_tag(handle.invocation_id))
    assert [entry.fact.name for entry in history.entries if isinstance(entry.fact, Done)] == ["long", "undo"]


async def test_a_run_that_passes_its_deadline_is_lost(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one whose log cannot be had: the workflow begins again behind its last record, and does not fail."""
    ctx = boki_context
    rest = JournalWriter.rest
    until_us = ctx.clock.now_us + 130 * 1_000_000

    async def stuck(self: JournalWriter) -> None:
        while ctx.clock.now_us < until_us:
            await passes(ctx, 1)
        await rest(self)

    monkeypatch.setattr(JournalWriter, "rest", stuck)
    handle = await busy.start(ctx, 30)
    assert await handle.result() == 30
    assert BODIES[:30] == [str(number) for number in range(30)]
    assert len(RUNS) > 1


@workflow
async def late() -> None:
    """Raises what a run that is cut off ends with."""
    raise DeadlineExceeded("the train has left")


async def test_a_workflow_that_raises_such_an_error_itself_has_ended(boki_context: boki.testing.Context) -> None:
    """It is not begun again."""
    with pytest.raises(FunctionFailed, match="DeadlineExceeded: the train has left"):
        await (await late.start(boki_context)).result()


@workflow(run_timeout_s=100)
async def parent() -> str:
    child = await flow.start(sleeper, id="child")
    await work("beside it", 40)
    await work("and again", 40)
    await work("and once more", 40)
    return await child.result()


@workflow
async def sleeper() -> str:
    await flow.sleep(300)
    return "slept"


async def test_a_run_that_gives_way_leaves_children_alone(boki_context: boki.testing.Context) -> None:
    """The workflow has not ended."""
    assert await (await parent.start(boki_context)).result() == "slept"
    assert len(RUNS) > 1


@step(at_most_once=True)
async def once(what: str) -> str:
    BODIES.append(what)
    await passes(step.ctx, 3)  # type: ignore[arg-type] # that of a test
    return what


@workflow(run_timeout_s=100)
async def careful_steps(count: int) -> list[str]:
    return [await once(str(number)) for number in range(count)]


@pytest.mark.usefixtures("each_mode")
async def test_steps_that_run_at_most_once(boki_context: boki.testing.Context) -> None:
    """None of them is cut off between its intent and its outcome."""
    handle = await careful_steps.start(boki_context, 100)
    assert await handle.result() == [str(number) for number in range(100)]
    assert len(BODIES) == 100


@workflow(run_timeout_s=10)
def blocking(count: int) -> int:
    """Never waits for long enough to be suspended."""
    for _ in range(count):
        blocking_nap(0.2)
    return count


async def test_a_def_workflow_that_is_never_idle(boki_context: boki.testing.Context) -> None:
    """Its timers keep it busy."""
    handle = await blocking.start(boki_context, 200)
    assert await handle.result() == 200


@workflow(run_timeout_s=10)
async def account() -> int:
    total = 0

    async def deposit(cents: int) -> int:
        nonlocal total
        await work("deposit", 0)
        total += cents
        return total

    flow.on_update("deposit", deposit)
    await flow.receive("close")
    return total


async def test_updates_come_while_runs_give_way(boki_context: boki.testing.Context) -> None:
    """Each is answered once, in order, whichever run hears it."""
    ctx = boki_context
    handle = await account.start(ctx, id="a")
    for number in range(1, 151):
        await ctx.clock.advance(0.2)
        assert await handle.update("deposit", 1) == number
    await handle.signal("close")
    assert await handle.result() == 150
    assert BODIES == ["deposit"] * 150
    assert len(RUNS) >= 4


async def test_a_workflow_that_is_paused_when_its_run_gives_way(boki_context: boki.testing.Context) -> None:
    """It stays paused in the next run, and continues when it is told to."""
    ctx = boki_context
    handle = await beside.start(ctx, [["a", 40, 3]])
    await ctx.clock.advance(45)
    await handle.pause("lunch")
    await ctx.clock.advance(1_000)
    assert ((await handle.status()).status, BODIES) == ("paused", ["a0", "a1"])
    await handle.resume()
    assert await handle.result() == ["a"]
    assert BODIES == ["a0", "a1", "a2"]
