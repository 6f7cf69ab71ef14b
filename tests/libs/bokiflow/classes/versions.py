"""Code that changes while workflows run: pinned, patched, moved and refused."""

from __future__ import annotations

from typing import Any

import pytest

from boki.libs.bokiflow import Diverged, Handle, flow, workflow
from boki.testing import Context
from tests.libs.bokiflow.classes import case, do, done
from tests.libs.bokiflow.classes.deployed import deployed


@workflow(name="trip")
async def old(city: str) -> str:
    """The first version."""
    flow.on_query("code", lambda _: "old")
    await do(f"hotel in {city}")
    return f"old {await flow.receive('go')}"


@workflow(name="trip")
async def longer(city: str) -> str:
    """Does more, behind a patch and behind what the first version has recorded where it waits."""
    flow.on_query("code", lambda _: "longer")
    if flow.patched("insured"):
        await do(f"insurance for {city}")
    await do(f"hotel in {city}")
    word = await flow.receive("go")
    await do(f"flight to {city}")
    return f"longer {word}"


@workflow(name="trip")
async def other(city: str) -> str:
    """Has another first step: it diverges from what the first version has recorded."""
    flow.on_query("code", lambda _: "other")
    await do(f"tent in {city}")
    return f"other {await flow.receive('go')}"


async def begun(ctx: Context, flow_id: str = "first") -> Handle[str]:
    """A trip that waits for its signal."""
    handle = await old.start(ctx, "Rome", id=flow_id)
    await ctx.clock.advance(5)
    assert (await handle.status()).status == "suspended"
    return handle


async def goes(handle: Handle[str]) -> str:
    """What it returns when it is told to go."""
    await handle.signal("go", "now")
    return await handle.result()


@case("Restate UpgradeTest.inFlightInvocation; Temporal features deployment_versioning routing_pinned")
async def a_pinned_workflow_ends_by_the_code_it_began_with(ctx: Context) -> None:
    with deployed(old, other) as deployment:
        handle = await begun(ctx)
        deployment.number = 2
        later = await old.start(ctx, "Oslo", id="later")
        assert [await goes(handle), await goes(later)] == ["old now", "other now"]
        assert [(await one.status()).version for one in (handle, later)] == [1, 2]
    assert done() == {"hotel in Rome": 1, "tent in Oslo": 1}


@case("DBOS worker_concurrency_across_versions: children run the code of their parent")
async def a_child_has_the_version_of_its_parent(ctx: Context) -> None:
    @workflow
    async def parent(city: str) -> Any:
        await flow.receive("begin")
        return await flow.call(old, city, id="its child")

    with deployed(old, other) as deployment:
        handle = await parent.start(ctx, "Rome")
        await ctx.clock.advance(5)
        deployment.number = 2
        await handle.signal("begin")
        await old.handle(ctx, "its child").signal("go", "now")
        assert await handle.result() == "old now"


@case("Temporal query: answered by the worker that has the code of the workflow")
async def a_query_is_answered_by_the_pinned_code(ctx: Context) -> None:
    with deployed(old, longer) as deployment:
        handle = await begun(ctx)
        deployment.number = 2
        asked = longer.handle(ctx, "first")  # its code replays what the other one did, and has another handler
        assert await asked.query("code") == "old"
        assert await goes(handle) == "old now"
        assert await asked.query("code") == "old"


@case("durabletask versioning strict, reject: a version that does not fit")
async def an_upgrade_that_would_diverge_is_refused(ctx: Context) -> None:
    with deployed(old, other) as deployment:
        handle = await begun(ctx)
        deployment.number = 2
        for dry_run in (True, False):
            with pytest.raises(Diverged, match=r"stays with version 1: with 2, recorded was do#0, and the code"):
                await handle.upgrade(2, dry_run=dry_run)
        assert await goes(handle) == "old now"
        assert (await handle.status()).version == 1
    assert done() == {"hotel in Rome": 1}


@case("Temporal patch_activation: patched code takes over what began before the patch")
async def an_upgrade_moves_what_is_patched(ctx: Context) -> None:
    with deployed(old, longer) as deployment:
        handle = await begun(ctx)
        deployment.number = 2
        later = await old.start(ctx, "Oslo", id="later")
        assert (await handle.upgrade(2, dry_run=True)).is_moved is False
        found = await handle.upgrade(2)
        assert (found.before, found.version, found.is_moved) == (1, 2, True)
        assert (await handle.status()).version == 2
        assert [await goes(handle), await goes(later)] == ["longer now", "longer now"]
    oslo = ["insurance for Oslo", "hotel in Oslo", "flight to Oslo"]
    assert done() == dict.fromkeys(["hotel in Rome", "flight to Rome", *oslo], 1)


@case("Restate PauseResumeChangingDeployment")
async def a_paused_workflow_is_moved_and_resumed(ctx: Context) -> None:
    with deployed(old, longer) as deployment:
        handle = await begun(ctx)
        await handle.pause("the code is wrong")
        await ctx.clock.advance(5)
        deployment.number = 2
        await handle.upgrade(2)
        await handle.signal("go", "on")
        await ctx.clock.advance(5)
        assert ((await handle.status()).status, done()) == ("paused", {"hotel in Rome": 1})
        await handle.resume()
        assert await handle.result() == "longer on"
    assert done() == {"hotel in Rome": 1, "flight to Rome": 1}


@case("Temporal deployment_versioning auto_upgrade: only by hand, also when it continues as new")
async def a_continuation_stays_with_its_version(ctx: Context) -> None:
    @workflow(name="rounds")
    async def first(turn: int) -> str:
        await flow.receive("next")
        return f"first {turn}" if turn == 2 else flow.continue_as_new(turn + 1)

    @workflow(name="rounds")
    async def second(turn: int) -> str:
        await flow.receive("next")
        await do(f"round {turn}")
        return f"second {turn}" if turn == 2 else flow.continue_as_new(turn + 1)

    with deployed(first, second) as deployment:
        handles = [await first.start(ctx, 0, id=flow_id) for flow_id in ("stays", "moves")]
        await ctx.clock.advance(5)
        deployment.number = 2
        for handle in handles:
            await handle.signal("next")
        await ctx.clock.advance(5)
        assert (await handles[1].upgrade(2)).is_moved
        for handle in handles * 2:
            await handle.signal("next")
        assert [await handle.result() for handle in handles] == ["first 2", "second 2"]
    assert done() == {"round 1": 1, "round 2": 1}


@case("Temporal replayer_workflow_nondeterministic: the code is corrected, and it goes on")
async def code_that_is_corrected_goes_on(ctx: Context) -> None:
    with deployed(old, other, longer, pins=False) as deployment:
        handle = await begun(ctx)
        deployment.number = 2
        await handle.signal("go", "on")
        await ctx.clock.advance(5)
        state = await handle.status()
        assert state.status == "paused"
        assert "do#0" in state.note
        deployment.number = 3
        await handle.resume()
        assert await handle.result() == "longer on"
    assert done() == {"hotel in Rome": 1, "flight to Rome": 1}


@case("DBOS fork_from_failure: the fork runs the code that corrects it")
async def a_fork_runs_what_is_deployed(ctx: Context) -> None:
    with deployed(old, longer) as deployment:
        handle = await begun(ctx)
        deployment.number = 2
        forked = await handle.fork(1, id="fork")
        assert (await forked.status()).version == 2
        assert [await goes(forked), await goes(handle)] == ["longer now", "old now"]
    assert done() == {"hotel in Rome": 1, "flight to Rome": 1}
