"""`def` workflows: plain code in a thread of its own means the same, with the same journal."""

from collections import Counter
from typing import Any

import pytest

import boki.testing
from boki import FunctionFailed
from boki.libs.bokiflow import StepFailed, step, workflow
from boki.libs.bokiflow.blocking import flow
from boki.libs.bokiflow.hooks import hooks
from tests.libs.bokiflow.crashes import World, all_deaths, count_moments

pytestmark = pytest.mark.usefixtures("each_mode")

CALLS: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def forget() -> None:
    CALLS.clear()


@step
def add(a: int, b: int) -> int:
    CALLS["add"] += 1
    return a + b


@step
async def slow_add(a: int, b: int) -> int:
    CALLS["slow_add"] += 1
    return a + b


@workflow
def total(count: int) -> int:
    found = 0
    for n in range(count):
        found = add(found, n)
    return found


async def test_n_steps_need_n_appends_and_no_read() -> None:
    """As in an `async def` workflow."""
    world = World()
    assert await world.run(total, 10) == 45
    assert (world.log.append_count, CALLS["add"]) == (10, 10)
    assert world.log.read_count == 0 or hooks().replays
    assert await world.run(total, 10) == 45
    assert (world.log.append_count, CALLS["add"]) == (0, 10)


@workflow
def both(count: int) -> list[Any]:
    begun = flow.now()
    first = add(1, 2) + flow.run(slow_add, 3, 4)
    flow.sleep(3600)
    try:
        fail()
    except StepFailed as error:
        return [first, (flow.now() - begun).total_seconds() >= 3600, error.error_type, count]
    return []


@step
def fail() -> None:
    raise KeyError("gone")


async def test_a_crash_at_every_append() -> None:
    """Steps of both kinds, a timer and an error: each outcome counts once. The first record says when it began."""
    appends, _ = await count_moments(lambda: (World(), both), 1)
    assert appends == [3, 2]
    for death in all_deaths(appends, 0):
        assert await World().run(both, 1, death=death) == [10, True, "KeyError", 1], death


@workflow
def talk(count: int) -> list[Any]:
    said = [flow.receive("word") for _ in range(count)]
    child = flow.start(total, 3)
    return [*said, child.result(), flow.call(total, 4), flow.promise("last")]


async def test_messages_and_children(boki_context: boki.testing.Context) -> None:
    """It waits without a process, and without a thread."""
    ctx = boki_context
    handle = await talk.start(ctx, 2)
    await handle.signal("word", "a")
    await ctx.clock.advance(10)
    assert (await handle.status()).status == "suspended"
    await handle.signal("word", "b")
    await ctx.clock.advance(10)
    await handle.resolve("last", 7)
    assert await handle.result() == ["a", "b", 3, 6, 7]


UNDONE: list[str] = []


@step
def undo(what: str) -> None:
    UNDONE.append(what)


@workflow
def booking() -> None:
    for what in ("hotel", "flight"):
        flow.compensate(undo, what)
    flow.sleep(1_000)


async def test_cancelling_undoes(boki_context: boki.testing.Context) -> None:
    """The thread is unwound by the cancellation, and its compensations run."""
    UNDONE.clear()
    handle = await booking.start(boki_context)
    await boki_context.clock.advance(10)
    await handle.cancel("no")
    with pytest.raises(FunctionFailed, match="WorkflowCancelled"):
        await handle.result()
    assert UNDONE == ["flight", "hotel"]


@workflow
def counting(n: int) -> int:
    add(n, 1)
    return n if n == 3 else flow.continue_as_new(n + 1)


async def test_continue_as_new() -> None:
    """With a thread for each."""
    assert await World().run(counting, 0) == 3
