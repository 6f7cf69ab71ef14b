"""`def` workflows: plain code in a thread of its own means what an `async def` body means."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from boki import FunctionFailed, Retry
from boki.libs.bokiflow import StepFailed, step, workflow
from boki.libs.bokiflow import flow as async_flow
from boki.libs.bokiflow.blocking import flow
from boki.libs.bokistore import Store
from boki.testing import Context
from tests.libs.bokiflow.classes import BODIES, DONE, case, do, done, ended_as, result_of, until


@step
def act(what: str) -> str:
    """An effect that takes a key, in plain code."""
    BODIES[what] += 1
    DONE.setdefault(step.key, what)
    return what


@step
def fail(what: str) -> None:
    """Cannot be done."""
    raise KeyError(what)


@step(retry=Retry(attempts=3, first_s=10, jitter=0))
def third_time() -> int:
    """Is done in its third attempt."""
    if step.attempt < 3:
        raise ConnectionError("try again")
    return step.attempt


@workflow
def chain(count: int) -> list[str]:
    """Some steps, one after the other."""
    return [act(f"step {number}") for number in range(count)]


@case("DBOS singleexec step_sequence: a sync workflow")
async def plain_steps_run_once_in_their_order(ctx: Context) -> None:
    assert await result_of(ctx, chain, 6) == [f"step {number}" for number in range(6)]
    assert list(DONE.values()) == [f"step {number}" for number in range(6)]


@case("DBOS should_retry, step errors: in a sync workflow")
async def plain_code_catches_what_a_step_ends_with(ctx: Context) -> None:
    @workflow
    def careful() -> list[Any]:
        try:
            fail("gone")
        except StepFailed as error:
            found = error.error_type
        return [found, third_time(), flow.run(do, "async")]

    assert await result_of(ctx, careful) == ["KeyError", 3, "async"]
    assert done() == {"async": 1}


@case("DBOS DBOS.sleep; dapr#8548: timers in plain code")
async def plain_code_sleeps(ctx: Context) -> None:
    @workflow
    def patient() -> list[float]:
        times = [flow.now().timestamp()]
        for number in range(3):
            flow.sleep(20)
            act(f"after {number}")
            times.append(flow.now().timestamp())
        return times

    handle = await patient.start(ctx)
    await ctx.clock.advance(5)
    assert done() == {}
    times = await handle.result()
    assert times[-1] - times[0] >= 60
    assert list(DONE.values()) == ["after 0", "after 1", "after 2"]


@case("DBOS random and time in a workflow: plain code gets the same ones")
async def chance_is_the_same_in_plain_code(ctx: Context) -> None:
    @workflow
    def gamble() -> list[Any]:
        first = [flow.random().random(), str(flow.uuid())]
        act(f"drew {first}")
        flow.sleep(10)
        act(f"still {first}")
        return first

    one, other = await result_of(ctx, gamble), await result_of(ctx, gamble)
    assert len({*one, *other}) == 4
    assert done() == {f"{word} {found}": 1 for found in (one, other) for word in ("drew", "still")}


@case("DBOS recv_consume_idempotent_on_db_retry")
async def plain_code_takes_signals_once(ctx: Context) -> None:
    @workflow
    def talk(count: int) -> list[Any]:
        said = []
        for _ in range(count):
            said.append(flow.receive("word"))
            act(f"heard {said[-1]}")
        return [*said, flow.promise("last")]

    handle = await talk.start(ctx, 4)
    for word in "abcd":
        await handle.signal("word", word)
        await ctx.clock.advance(2)
    assert (await handle.status()).status == "suspended"
    await handle.resolve("last", 7)
    assert await handle.result() == ["a", "b", "c", "d", 7]
    assert list(DONE.values()) == [f"heard {word}" for word in "abcd"]


@case("DBOS async_recovery_direct_child_no_thread_starvation")
async def plain_parents_wait_for_their_children(ctx: Context) -> None:
    @workflow
    def parent(depth: int) -> int:
        act(f"depth {depth}")
        if not depth:
            return len(flow.call(chain, 2))
        child = flow.start(parent, depth - 1)
        return int(flow.call(parent, 0, id=f"leaf {depth}")) + int(child.result())

    assert await result_of(ctx, parent, 3) == 8
    assert done() == {"depth 3": 1, "depth 2": 1, "depth 1": 1, "depth 0": 4, "step 0": 4, "step 1": 4}


@case("temporal cancellation: a body that is unwound; sagas")
async def cancelling_undoes_what_plain_code_has_done(ctx: Context) -> None:
    @workflow
    def booking() -> None:
        for what in ("hotel", "flight"):
            act(what)
            flow.compensate(act, f"undo {what}")
        try:
            flow.call(waiting, id="its child")
        finally:
            act("unwound")

    @workflow
    def waiting() -> None:
        flow.compensate(act, "undo child")
        flow.sleep(1_000)

    handle = await booking.start(ctx)
    await until(ctx, lambda: "flight" in done())
    await ctx.clock.advance(3)
    await handle.cancel("no")
    with pytest.raises(FunctionFailed, match="WorkflowCancelled"):
        await handle.result()
    assert await ended_as(waiting.handle(ctx, "its child")) == "WorkflowCancelled"
    assert done() == dict.fromkeys(["hotel", "flight", "undo flight", "undo hotel", "undo child", "unwound"], 1)
    order = list(DONE.values())
    assert order.index("unwound") < order.index("undo flight") < order.index("undo hotel")


@case("Temporal continue-as-new: in plain code")
async def plain_code_continues_as_new(ctx: Context) -> None:
    @workflow
    def turning(turn: int) -> str:
        act(f"turn {turn}")
        word = flow.receive("word")
        return str(word) if turn == 3 else flow.continue_as_new(turn + 1)

    handle = await turning.start(ctx, 0)
    for word in "abcd":
        await handle.signal("word", word)
    assert await handle.result() == "d"
    assert list(DONE.values()) == [f"turn {turn}" for turn in range(4)]


@case("Beldi twopl.go, exactly-once state: from plain code")
async def plain_code_has_state_and_locks(ctx: Context) -> None:
    @workflow
    def careful(stay_s: int) -> int:
        with flow.lock("room") as held:
            act(f"{flow.id} in")
            seen = flow.store.read("visits", default=0)
            flow.sleep(stay_s)
            flow.store.write("visits", seen + 1)
            assert not flow.store.cond_write("visits", 100, expected=seen)
            act(f"{flow.id} out")
        flow.receive("go")
        return held.token

    handles = []
    for number in range(3):
        handles.append(await careful.start(ctx, 5, id=f"n{number}"))
        await ctx.clock.advance(1)
    await until(ctx, lambda: "n2 out" in done())
    for handle in handles:
        await handle.signal("go")
    tokens = [await handle.result() for handle in handles]
    assert tokens == sorted(set(tokens))
    assert list(DONE.values()) == [f"n{number} {way}" for number in range(3) for way in ("in", "out")]
    assert await Store(ctx).object("visits").get() == 3


@case("DBOS: sync and async workflows in one application")
async def plain_and_async_workflows_call_each_other(ctx: Context) -> None:
    @workflow
    def inner(number: int) -> str:
        flow.sleep(1)
        return act(f"inner {number}")

    @workflow
    async def outer() -> list[str]:
        return list(await asyncio.gather(*(async_flow.call(inner, number) for number in range(4))))

    @workflow
    def outermost() -> list[str]:
        found: list[str] = flow.call(outer)
        return found

    assert await result_of(ctx, outermost) == [f"inner {number}" for number in range(4)]
    assert done() == {f"inner {number}": 1 for number in range(4)}
