"""Children and functions that workflows call, and the ids under which workflows are started."""

import asyncio
from typing import Any

import pytest

import boki.testing
from boki import AlreadyExists, Context, FunctionFailed, InvalidArgument, KeyReused, Response, function
from boki.libs.bokiflow import flow, step, workflow

pytestmark = pytest.mark.usefixtures("each_mode")

CALLED: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    CALLED.clear()


@workflow
async def doubled(n: int) -> int:
    CALLED.append(f"doubled {n}")
    await flow.sleep(100)
    if n == 1313:
        raise ValueError("unlucky")
    return n * 2


@function
async def length(ctx: Context, word: str) -> int:
    CALLED.append(word)
    return len(word)


@workflow
async def family(count: int) -> list[int]:
    found = await asyncio.gather(*(flow.call(doubled, n) for n in range(count)))
    return [*found, await flow.call(length, "four")]


async def test_children_and_functions(boki_context: boki.testing.Context) -> None:
    """Each runs once; the parent has no process while it waits."""
    handle = await family.start(boki_context, 3)
    await boki_context.clock.advance(50)
    assert (await handle.status()).status == "suspended"
    assert await handle.result() == [0, 2, 4, 4]
    assert CALLED.count("four") == 1


async def test_many_children(boki_context: boki.testing.Context) -> None:
    """More than a suspended call may wait for tags: they report under one."""
    assert await (await family.start(boki_context, 40)).result() == [*range(0, 80, 2), 4]


async def test_a_child_that_fails(boki_context: boki.testing.Context) -> None:
    """Its error is the parent's to catch, the same in every replay."""

    @workflow
    async def parent() -> str:
        try:
            await flow.call(doubled, 1313)
        except FunctionFailed as error:
            await flow.sleep(10)
            return str(error.error_type)
        return "no error"

    assert await (await parent.start(boki_context)).result() == "ValueError"


@workflow
async def hasty() -> str:
    starting = asyncio.ensure_future(flow.start(doubled, 1))
    await asyncio.sleep(0)
    starting.cancel()
    return "left"


async def test_a_start_that_was_given_up_leaves_nothing_to_close(boki_context: boki.testing.Context) -> None:
    """A body may end before a child that it begins is accepted: then there is no such call, and that is no error."""
    assert await (await hasty.start(boki_context)).result() == "left"


@pytest.mark.parametrize("policy", ["cancel", "kill", "abandon"])
async def test_parent_close_policies(boki_context: boki.testing.Context, policy: Any) -> None:
    """A child that is left behind is cancelled, killed, or continues."""

    @workflow
    async def parent() -> str:
        child = await flow.start(doubled, 1, id=f"left {policy}", parent_close=policy)
        await flow.sleep(1)
        return child.id

    ctx = boki_context
    child_id = await (await parent.start(ctx)).result()
    child = doubled.handle(ctx, f"left {policy}")
    assert child.invocation_id == child_id
    await ctx.clock.advance(300)
    state = await child.status()
    assert state.status == {"cancel": "cancelled", "kill": "cancelled", "abandon": "done"}[policy]


async def test_started_children_are_awaited_later(boki_context: boki.testing.Context) -> None:
    """`start` returns when the child is logged; `result` waits for its end."""

    @workflow
    async def parent() -> list[int]:
        children = [await flow.start(doubled, n) for n in range(3)]
        return [await child.result() for child in reversed(children)]

    assert await (await parent.start(boki_context)).result() == [4, 2, 0]
    assert set(CALLED) == {"doubled 0", "doubled 1", "doubled 2"}


async def test_a_workflow_is_not_called_in_a_workflow(boki_context: boki.testing.Context) -> None:
    """inngest-py#179: a workflow called as a step is an error that says what to write."""

    @workflow
    async def wrong() -> int:
        found: int = await doubled(3)
        return found

    with pytest.raises(FunctionFailed, match=r"write await flow\.call\(doubled, payload\)"):
        await (await wrong.start(boki_context)).result()


async def test_ids_are_keys(boki_context: boki.testing.Context) -> None:
    """Two starts of one id are one workflow; with another payload the second is refused."""
    ctx = boki_context
    first = await doubled.start(ctx, 4, id="one")
    again = await doubled.start(ctx, 4, id="one")
    assert first.invocation_id == again.invocation_id
    with pytest.raises(KeyReused):
        await doubled.start(ctx, 5, id="one")
    with pytest.raises(AlreadyExists):
        await doubled.start(ctx, 4, id="one", if_running="fail")
    assert await again.result() == 8
    assert len(set(CALLED)) == 1


async def test_ids_of_workflows_that_have_ended(boki_context: boki.testing.Context) -> None:
    """They are used, refused, or begun again with an empty journal."""
    ctx = boki_context
    assert await (await doubled.start(ctx, 4, id="one")).result() == 8
    assert await (await doubled.start(ctx, 4, id="one")).result() == 8
    with pytest.raises(AlreadyExists):
        await doubled.start(ctx, 4, id="one", if_ended="fail")
    handle = await doubled.start(ctx, 6, id="one", if_ended="again")
    assert (await handle.status()).status == "accepted"
    assert await handle.result() == 12
    with pytest.raises(FunctionFailed):
        await (await doubled.start(ctx, 1313, id="one", if_ended="again")).result()
    assert await (await doubled.start(ctx, 7, id="one", if_ended="again_if_failed")).result() == 14


async def test_killing_the_one_that_runs(boki_context: boki.testing.Context) -> None:
    """The new one begins again."""
    ctx = boki_context
    await doubled.start(ctx, 4, id="one")
    await ctx.clock.advance(50)
    handle = await doubled.start(ctx, 5, id="one", if_running="kill")
    assert await handle.result() == 10


async def test_a_start_that_kills_begins_again_what_it_has_killed(boki_context: boki.testing.Context) -> None:
    """`if_ended` is about workflows that had ended before. One that was killed before is begun again by default: it may
    have been this start, whose answer was lost.
    """
    ctx = boki_context
    await doubled.start(ctx, 4, id="one")
    await ctx.clock.advance(50)
    assert await (await doubled.start(ctx, 5, id="one", if_running="kill", if_ended="fail")).result() == 10
    assert await (await doubled.start(ctx, 5, id="one", if_running="kill")).result() == 10
    with pytest.raises(KeyReused):
        await doubled.start(ctx, 6, id="one", if_running="kill")
    with pytest.raises(AlreadyExists):
        await doubled.start(ctx, 5, id="one", if_running="kill", if_ended="fail")
    handle = await doubled.start(ctx, 6, id="one", if_ended="again")
    await ctx.clock.advance(10)
    await handle.kill()
    with pytest.raises(AlreadyExists):
        await doubled.start(ctx, 7, id="one", if_running="kill", if_ended="fail")
    assert await (await doubled.start(ctx, 7, id="one", if_running="kill")).result() == 14


@pytest.mark.boki(functions=[doubled])
async def test_workflows_are_logged_calls(boki_context: boki.testing.Context) -> None:
    """A plain call would be forgotten with its process."""
    with pytest.raises(FunctionFailed, match=r"must be a logged call"):
        await boki_context.invoke("doubled", 3)


async def test_determinism(boki_context: boki.testing.Context) -> None:
    """Time, random numbers and UUIDs are the same in a replay."""
    said: list[Any] = []

    @workflow
    async def chance() -> None:
        said.append([flow.now(), flow.random().random(), flow.uuid(), flow.id])
        await flow.sleep(60)
        said.append([flow.now(), flow.random().random(), flow.uuid(), flow.is_replaying])
        await flow.sleep(60)

    await (await chance.start(boki_context, id="c")).result()
    assert len(said) > 3
    assert all(first == said[0] for first in said if len(first) == 4 and first[3] == "c")
    assert len({str(one[:3]) for one in said}) == 2


@step
async def old(n: int) -> int:
    return n


@step
async def new(n: int) -> int:
    return n


async def test_patches(boki_context: boki.testing.Context) -> None:
    """A workflow that was past the point keeps the old way; one that comes to it takes the new way, and keeps to it."""
    is_deployed = False

    @workflow
    async def changing() -> str:
        if is_deployed and flow.patched("better"):
            await new(1)
            said = "new"
        else:
            await old(1)
            said = "old"
        await flow.sleep(100)
        await flow.sleep(100)
        return said

    ctx = boki_context
    before = await changing.start(ctx)
    await ctx.clock.advance(50)
    is_deployed = True
    after = await changing.start(ctx)
    assert await before.result() == "old"
    assert await after.result() == "new"


async def test_outside_of_a_workflow() -> None:
    """`flow` says where it belongs."""
    with pytest.raises(InvalidArgument, match=r"flow\.now was called outside of a workflow"):
        flow.now()


@function
async def refusal(ctx: Context, why: str) -> Response:
    return Response(why, status=409)


@workflow
async def refused(known_as: str) -> list[Any]:
    found = await (flow.call("refusal", "full") if known_as == "name" else flow.call(refusal, "full"))
    await flow.sleep(1)
    return [found.status, found.body]


@pytest.mark.parametrize("known_as", ["name", "object"])
async def test_a_function_may_return_a_response(boki_context: boki.testing.Context, known_as: str) -> None:
    """As for `ctx.invoke`: by its name alone, what it had done was an error of the one that called it."""
    await boki_context.invoke(refusal, "the context knows it by its name from here on")
    assert await (await refused.start(boki_context, known_as)).result() == [409, "full"]
