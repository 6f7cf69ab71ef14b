"""Bodies that do odd things with asyncio: a workflow ends all the same, and in each replay alike."""

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

import boki.testing
from boki import FunctionFailed, InvalidArgument, Retry
from boki.libs.bokiflow import flow, step, workflow

pytestmark = pytest.mark.usefixtures("each_mode")

UNDONE: list[str] = []


@step
async def echo(value: int) -> int:
    return value


@step
async def undo(what: str) -> None:
    UNDONE.append(what)


@workflow
async def impatient(fails_at: int) -> str:
    looks = 0

    def is_met() -> bool:
        nonlocal looks
        looks += 1
        if looks == fails_at:
            raise LookupError("nothing to look at")
        return False

    tasks = [asyncio.create_task(timer_of(n)) for n in range(3)]
    try:
        await flow.wait_for(is_met)
    except LookupError as error:
        await asyncio.gather(*tasks)
        return str(error)
    return "met"


async def timer_of(n: int) -> None:
    await flow.sleep(n)


@pytest.mark.parametrize("fails_at", [1, 2])
async def test_a_condition_that_raises_is_an_error_of_the_wait(
    boki_context: boki.testing.Context, fails_at: int
) -> None:
    """It was an error of nobody, and the workflow waited forever."""
    handle = await impatient.start(boki_context, fails_at)
    assert await handle.result() == "nothing to look at"


@workflow
async def gives_up(how: str) -> None:
    flow.compensate(undo, how)
    await echo(1)
    task = asyncio.current_task()
    assert task is not None
    if how == "cancels itself":
        task.cancel()
        await flow.sleep(1)
    raise asyncio.CancelledError


@pytest.mark.parametrize("how", ["cancels itself", "raises"])
async def test_a_body_that_cancels_itself_has_ended(boki_context: boki.testing.Context, how: str) -> None:
    """Nobody else has cancelled it, so it never ended, and undid nothing."""
    UNDONE.clear()
    handle = await gives_up.start(boki_context, how)
    with pytest.raises(FunctionFailed, match=r"WorkflowCancelled: .*it cancelled itself, or awaited what was"):
        await handle.result()
    assert (await handle.status()).status == "cancelled"
    assert [how] == UNDONE


@workflow
async def rounds(count: int) -> str:
    if not count:
        return "the last one"

    async def begin_again() -> None:
        await echo(count)
        flow.continue_as_new(count - 1)

    async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
        outer.create_task(timer_of(1))
        inner.create_task(begin_again())
    return "not reached"


async def test_a_task_of_a_group_continues_as_new(boki_context: boki.testing.Context) -> None:
    """A group raises it in a group, which was no end of any kind."""
    assert await (await rounds.start(boki_context, 2)).result() == "the last one"


@workflow
async def both_ways() -> None:
    flow.compensate(undo, "both")

    async def fail() -> None:
        raise ValueError("no")

    async def begin_again() -> None:
        flow.continue_as_new()

    async with asyncio.TaskGroup() as group:
        group.create_task(fail())
        group.create_task(begin_again())


async def test_an_error_beside_a_continuation_counts(boki_context: boki.testing.Context) -> None:
    """A workflow that has failed does not begin again."""
    UNDONE.clear()
    with pytest.raises(FunctionFailed, match="ExceptionGroup"):
        await (await both_ways.start(boki_context)).result()
    assert UNDONE == ["both"]


@workflow
async def patient(seconds: float) -> str:
    async with asyncio.timeout(seconds or math.inf):
        await echo(1)
    waits = asyncio.create_task(asyncio.wait_for(asyncio.Event().wait(), seconds or math.inf))
    await flow.receive("go")
    waits.cancel()
    return "gone"


@pytest.mark.parametrize("seconds", [0, 1e18])
async def test_a_time_that_never_comes(boki_context: boki.testing.Context, seconds: float) -> None:
    """As in asyncio: the wait is endless, and no error."""
    handle = await patient.start(boki_context, seconds)
    await handle.signal("go")
    assert await handle.result(wait_s=100) == "gone"


@workflow
async def reads_some() -> list[int]:
    got = []

    async def numbers() -> AsyncIterator[int]:
        try:
            for n in range(5):
                yield await echo(n)
        finally:
            got.append(await echo(-1))

    async for n in numbers():
        got.append(n)
        if n == 1:
            break
    for n in (10, 11):
        got.append(await echo(n))
    return got


async def test_a_generator_that_is_left_cleans_up_in_the_workflow(boki_context: boki.testing.Context) -> None:
    """The worker's loop ran the rest of it, at a moment that no replay repeats."""
    found: Any = await (await reads_some.start(boki_context)).result()
    assert sorted(found) == [-1, 0, 1, 10, 11]


@step
async def exits_late() -> None:
    raise SystemExit(3)


@workflow
async def leaves(how: str) -> str:
    flow.compensate(undo, how)
    if how == "body":
        raise SystemExit("of the body")
    if how == "task":
        await asyncio.gather(asyncio.create_task(exit_in_a_task()), timer_of(1))
    await exits_late()
    return "not reached"


async def exit_in_a_task() -> None:
    await echo(1)
    raise SystemExit("of the task")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("body", r"raised SystemExit\('of the body'\)"),
        ("task", r"raised SystemExit\('of the task'\)"),
        ("step", "exits_late: SystemExit: 3"),
    ],
)
async def test_who_exits_fails_and_the_worker_does_not(boki_context: boki.testing.Context, how: str, said: str) -> None:
    """As with a function. It ended the worker process, with all other workflows in it, eight times."""
    UNDONE.clear()
    with pytest.raises(FunctionFailed, match=said):
        await (await leaves.start(boki_context, how)).result()
    assert [how] == UNDONE


@step(retry=Retry(attempts=2, first_s=1))
async def extend(words: list[str]) -> int:
    words.append("seen by nobody")
    if step.attempt == 1:
        raise ValueError("once more")
    return len(words)


@workflow
async def keeps_its_list() -> list[Any]:
    words: list[str] = []
    length = await extend(words)
    await echo(1)
    return [*words, length]


async def test_a_step_does_not_change_what_its_workflow_has(boki_context: boki.testing.Context) -> None:
    """A replay does not run the step, so the body came to something else after it, and nobody noticed."""
    assert await (await keeps_its_list.start(boki_context)).result() == [1]


@step(at_most_once=True)
async def once(value: int) -> int:
    return value


@workflow
async def takes_no_chances() -> int:
    return await once(1) + await once(2)


async def test_steps_that_run_once_are_replayed_by_force(boki_context: boki.testing.Context) -> None:
    """A replay between the record that a step begins and its body cut off each of them."""
    assert await (await takes_no_chances.start(boki_context)).result() == 3


@workflow
async def begins_in_a_transaction() -> str:
    async with flow.store.transaction() as txn:
        await txn.object("a").set("", 1)
        flow.continue_as_new()


async def test_a_transaction_is_left_before_a_new_beginning(boki_context: boki.testing.Context) -> None:
    """What it had written was undone without a word."""
    with pytest.raises(FunctionFailed, match="cannot continue as new inside of a transaction"):
        await (await begins_in_a_transaction.start(boki_context)).result()


@workflow
async def counts_far() -> str:
    try:
        await echo(1 << 200)
    except InvalidArgument as error:
        return str(error)
    return ""


async def test_a_number_that_no_record_holds_is_an_argument_that_is_wrong(boki_context: boki.testing.Context) -> None:
    """And says what to pass."""
    assert "pass numbers, text" in await (await counts_far.start(boki_context)).result()


@workflow
async def looks_for_the_next(_: str) -> str:
    values = iter([False])
    waiting = asyncio.create_task(flow.wait_for(lambda: next(values)))
    await echo(1)
    try:
        await waiting
    except RuntimeError as error:
        return type(error.__cause__).__name__
    return "found"


async def test_a_condition_with_nothing_more_to_look_at(boki_context: boki.testing.Context) -> None:
    """No future takes a `StopIteration`: that ended the workflow from outside, and undid nothing."""
    assert await (await looks_for_the_next.start(boki_context, "")).result() == "StopIteration"


@workflow
async def undoes_together(how: str) -> None:
    flow.compensate(lambda: asyncio.gather(undo(f"{how} 1"), undo(f"{how} 2")))
    flow.compensate(lambda: asyncio.ensure_future(undo(f"{how} 3")))
    raise ValueError(how)


async def test_compensations_that_give_futures_are_waited_for(boki_context: boki.testing.Context) -> None:
    """They were begun, and left behind with the workflow's end."""
    UNDONE.clear()
    with pytest.raises(FunctionFailed, match="ValueError"):
        await (await undoes_together.start(boki_context, "all")).result()
    assert UNDONE == ["all 3", "all 1", "all 2"]
