"""The outcome of the children of a workflow that is killed, or whose run is stopped."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

import boki.testing
from boki import Context, Unavailable, function
from boki.libs.bokiflow import closing, flow, step, workflow
from boki.libs.bokiflow.handles import Handle

pytestmark = pytest.mark.usefixtures("each_mode")

ENDED: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    ENDED.clear()


@workflow
async def leaf(name: str) -> str:
    try:
        await flow.sleep(1_000)
    except asyncio.CancelledError:
        ENDED.append(f"cancelled {name}")
        raise
    ENDED.append(f"done {name}")
    return name


@function(timeout_s=5_000)
async def work(ctx: Context, name: str) -> str:
    await ctx.logbook.read_next("never", wait_s=4_000)
    return name


@workflow
async def branch(policy: Any) -> None:
    await flow.start(leaf, "twig", id="twig", parent_close=policy)
    await flow.sleep(1_000)


@workflow
async def twigs(policy_and_name: list[Any]) -> None:
    policy, name = policy_and_name
    await flow.start(leaf, name, id=name, parent_close=policy)
    await flow.sleep(1_000)


@workflow
async def root(policy: Any) -> None:
    await flow.start(leaf, "leaf", id="leaf", parent_close=policy)
    await flow.start(branch, policy, id="branch", parent_close=policy)
    await flow.sleep(1_000)


async def statuses(ctx: Context) -> dict[str, str]:
    handles: dict[str, Handle[Any]] = {name: leaf.handle(ctx, name) for name in ("leaf", "twig")}
    handles["branch"] = branch.handle(ctx, "branch")
    return {name: (await handle.status()).status for name, handle in handles.items()}


@pytest.mark.parametrize("policy", ["cancel", "kill", "abandon"])
async def test_a_kill_closes_children(boki_context: boki.testing.Context, policy: Any) -> None:
    """As their policies say, and theirs in turn."""
    ctx = boki_context
    handle = await root.start(ctx, policy, id="r")
    await ctx.clock.advance(100)
    await handle.kill()
    await ctx.clock.advance(100)
    ended = {"cancel": "cancelled", "kill": "cancelled", "abandon": "suspended"}[policy]
    assert await statuses(ctx) == {"leaf": ended, "twig": ended, "branch": ended}
    assert set(ENDED) == ({"cancelled leaf", "cancelled twig"} if policy == "cancel" else set())
    if policy == "abandon":
        assert await leaf.handle(ctx, "twig").result() == "twig"


@pytest.mark.parametrize("policy", ["cancel", "kill"])
async def test_a_kill_closes_nothing_of_a_life_that_began_meanwhile(
    boki_context: boki.testing.Context, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The closer has looked at the workflow before it was begun again, and acts on what it saw."""
    ctx = boki_context
    killed, again = closing.kill_tree, []

    async def kill_tree(closer: Context, run: str, *life: int) -> None:
        if not again:
            again.append(await twigs.start(ctx, [policy, "second"], id="r", if_ended="again"))
            await ctx.clock.advance(1)
        await killed(closer, run, *life)

    monkeypatch.setattr(closing, "kill_tree", kill_tree)
    handle = await twigs.start(ctx, [policy, "first"], id="r")
    await ctx.clock.advance(100)
    await handle.kill()
    await ctx.clock.advance(100)
    assert (await again[0].status()).status == "suspended"
    assert (await leaf.handle(ctx, "first").status()).status == "cancelled"
    assert (await leaf.handle(ctx, "second").status()).status == "suspended"


async def test_a_kill_is_carried_on_by_the_log(boki_context: boki.testing.Context) -> None:
    """Whoever asked is lost right after the closer was accepted: the workflow and its children end all the same."""
    ctx = boki_context
    handle = await root.start(ctx, "kill", id="r")
    await ctx.clock.advance(100)

    async def lost(_invocation_id: str, _life_us: int) -> None:
        raise Unavailable("this process is dead")

    with patch.object(handle._calls, "cancel", lost), pytest.raises(Unavailable):
        await handle.kill()
    await ctx.clock.advance(100)
    assert (await handle.status()).status == "cancelled"
    assert set((await statuses(ctx)).values()) == {"cancelled"}


async def test_functions_are_ended(boki_context: boki.testing.Context) -> None:
    """They cannot be asked to cancel themselves."""

    @workflow
    async def calls() -> None:
        await flow.start(work, "w")
        await flow.sleep(100)

    ctx = boki_context
    handle = await calls.start(ctx)
    await ctx.clock.advance(50)
    await handle.kill()
    await ctx.clock.advance(50)
    assert {call.status for call in ctx._calls._logged.values() if call.call.function == "work"} == {"cancelled"}  # type: ignore[attr-defined]


async def test_one_that_is_started_anew_is_left_alone(boki_context: boki.testing.Context) -> None:
    """The closer looks twice, and the workflow of that id may be another one by then."""
    ctx = boki_context

    @workflow
    async def starts(name: str) -> None:
        await flow.start(leaf, name, id=name, parent_close="kill")
        await flow.sleep(1_000)

    await starts.start(ctx, "leaf", id="s")
    await ctx.clock.advance(100)
    again = await starts.start(ctx, "twig", id="s", if_running="kill")
    await ctx.clock.advance(100)
    assert (await again.status()).status == "suspended"
    assert (await leaf.handle(ctx, "leaf").status()).status == "cancelled"
    assert (await leaf.handle(ctx, "twig").status()).status == "suspended"


@step
async def stay(seconds: int) -> None:
    """Takes this long, so that the run is not suspended."""
    ctx, late = step.ctx, asyncio.Event()
    assert isinstance(ctx, boki.testing.Context)
    ctx.clock.call_at(ctx.clock.now_us + seconds * 1_000_000, late.set)
    with ctx.clock.waiting():
        await late.wait()


@pytest.mark.parametrize("policy", ["cancel", "kill"])
async def test_a_run_that_is_stopped_leaves_children_alone(boki_context: boki.testing.Context, policy: Any) -> None:
    """An engine that drains ends what still runs there, and another one continues with the workflow."""

    @workflow
    async def stays() -> str:
        child = await flow.start(leaf, "leaf", id="leaf", parent_close=policy)
        await stay(100)
        return str(await child.result())

    ctx = boki_context
    handle = await stays.start(ctx, id="s")
    await ctx.clock.advance(50)
    calls: Any = ctx._calls
    logged = calls._logged[handle.invocation_id]
    logged.task.cancel()
    await ctx.clock.advance(50)
    assert (await leaf.handle(ctx, "leaf").status()).status == "suspended"
    calls._start(calls._run_later(logged))
    assert await handle.result() == "leaf"
    assert set(ENDED) == {"done leaf"}


async def retried(ctx: boki.testing.Context, handle: Handle[Any]) -> None:
    """As `boki calls retry` does."""
    await ctx._calls.ask_call(handle.invocation_id, 0, "retry")


async def test_a_closer_leaves_a_retry_alone(boki_context: boki.testing.Context) -> None:
    """It looks once more some seconds after the kill, and the same call may run again by then."""
    ctx = boki_context
    handle = await twigs.start(ctx, ["kill", "leaf"], id="r")
    await ctx.clock.advance(100)
    await handle.kill()
    await ctx.clock.advance(1)
    await retried(ctx, handle)
    await ctx.clock.advance(100)
    assert (await handle.status()).status == "suspended"


async def test_a_second_kill_closes_what_a_retry_has_started(boki_context: boki.testing.Context) -> None:
    """Each life that is killed has a closer of its own, and a record of its end."""
    ctx = boki_context

    @workflow
    async def late() -> None:
        await flow.sleep(50)
        await flow.start(leaf, "leaf", id="leaf", parent_close="kill")
        await flow.sleep(1_000)

    handle = await late.start(ctx, id="r")
    await ctx.clock.advance(10)
    await handle.kill()
    await ctx.clock.advance(20)
    await retried(ctx, handle)
    await ctx.clock.advance(100)
    assert (await leaf.handle(ctx, "leaf").status()).status == "suspended"
    await handle.kill()
    await ctx.clock.advance(20)
    assert (await leaf.handle(ctx, "leaf").status()).status == "cancelled"


async def test_a_kill_of_what_was_started_again_meanwhile_closes_its_children(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who kills has looked at the life before. The one that ends has a closer, too."""
    ctx = boki_context
    handle = await twigs.start(ctx, ["kill", "first"], id="r")
    await ctx.clock.advance(100)
    begin, again = handle._calls.begin, []

    async def slowly(closer: Any) -> None:
        await begin(closer)
        if not again:
            again.append(await twigs.start(ctx, ["kill", "second"], id="r", if_running="kill"))
            await ctx.clock.advance(10)

    monkeypatch.setattr(handle._calls, "begin", slowly)
    await handle.kill()
    await ctx.clock.advance(20)
    assert (await handle.status()).status == "cancelled"
    for name in ("first", "second"):
        assert (await leaf.handle(ctx, name).status()).status == "cancelled"


@pytest.mark.parametrize("is_retry", [True, False])
async def test_a_closer_leaves_a_life_alone_that_begins_in_the_same_moment(
    boki_context: boki.testing.Context, *, is_retry: bool
) -> None:
    """No time passes in a test that waits for none."""
    ctx = boki_context
    handle = await twigs.start(ctx, ["abandon", "leaf"], id="r")
    await handle.kill()
    if is_retry:
        await retried(ctx, handle)
    else:
        await twigs.start(ctx, ["abandon", "leaf"], id="r", if_ended="again")
    await ctx.clock.advance(100)
    assert (await handle.status()).status == "suspended"
