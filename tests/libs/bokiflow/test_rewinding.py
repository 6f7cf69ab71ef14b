"""Workflows that go back: rewound to a step, and forked from one."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

import boki.testing
from boki import AlreadyExists, FunctionFailed, InvalidArgument, Retry, WrongState
from boki.libs.bokiflow import NoSuchWorkflow, StepFailed, flow, rewinding, step, workflow
from boki.testing import flows

pytestmark = pytest.mark.usefixtures("each_mode")

DONE: list[str] = []
KEYS: dict[str, list[str]] = {}
BROKEN: set[str] = set()


@pytest.fixture(autouse=True)
def forget() -> None:
    DONE.clear()
    KEYS.clear()
    BROKEN.clear()


@step
async def act(what: str) -> str:
    DONE.append(what)
    KEYS.setdefault(what, []).append(step.key)
    if what in BROKEN:
        raise ValueError(what)
    return f"{what} {DONE.count(what)}"


@workflow
async def trip(name: str) -> list[str]:
    found = [await act("hotel")]
    flow.compensate(act, "undo hotel")
    found.append(await act("flight"))
    await flow.sleep(3_600)
    found.append(await act("pay"))
    return found


async def test_a_failed_workflow_goes_on_with_the_step_that_failed(boki_context: boki.testing.Context) -> None:
    """What it had done before is not done again; the step is, under another key."""
    ctx = boki_context
    BROKEN.add("pay")
    handle = await trip.start(ctx, "Ada", id="t")
    with pytest.raises(FunctionFailed):
        await handle.result()
    assert DONE.count("undo hotel") == 1
    BROKEN.clear()
    assert await handle.rewind(3) == 3
    assert await handle.result() == ["hotel 1", "flight 1", "pay 2"]
    assert DONE.count("flight") == 1
    assert len(set(KEYS["pay"])) == 2


async def test_without_a_step_it_goes_on_with_the_last_failure(boki_context: boki.testing.Context) -> None:
    """Here the compensation has failed last: nothing before it is done again."""
    BROKEN.update({"pay", "undo hotel"})
    handle = await trip.start(boki_context, "Ada", id="t")
    with pytest.raises(FunctionFailed):
        await handle.result()
    BROKEN.clear()
    assert await handle.rewind() == 4
    with pytest.raises(FunctionFailed, match="pay"):
        await handle.result()
    assert (DONE.count("pay"), DONE.count("undo hotel")) == (1, 2)


async def test_one_that_has_ended_well_can_be_rewound(boki_context: boki.testing.Context) -> None:
    """Its timers begin again: an hour after the rewind, not after the first run."""
    ctx = boki_context
    handle = await trip.start(ctx, "Ada", id="t")
    assert await handle.result() == ["hotel 1", "flight 1", "pay 1"]
    await ctx.clock.advance(50_000)
    before_us = ctx.clock.now_us
    await handle.rewind(1)
    assert await handle.result() == ["hotel 1", "flight 2", "pay 2"]
    assert ctx.clock.now_us - before_us >= 3_600_000_000
    await handle.rewind(0)
    assert await handle.result() == ["hotel 2", "flight 3", "pay 3"]
    assert await trip.handle(ctx, "t").result() == ["hotel 2", "flight 3", "pay 3"]


async def test_one_that_is_paused_goes_on_by_a_rewind(boki_context: boki.testing.Context) -> None:
    """The pause is over, and what was recorded behind the step is forgotten."""
    ctx = boki_context
    handle = await trip.start(ctx, "Ada", id="t")
    await ctx.clock.advance(100)
    await handle.pause("wait")
    await ctx.clock.advance(100)
    assert (await handle.status()).status == "paused"
    await handle.rewind(1)
    assert await handle.result() == ["hotel 1", "flight 2", "pay 1"]


async def test_one_that_was_cancelled_is_not_cancelled_again(boki_context: boki.testing.Context) -> None:
    """The request stands before the rewind, and is forgotten with what it led to."""
    ctx = boki_context
    handle = await trip.start(ctx, "Ada", id="t")
    await ctx.clock.advance(100)
    await handle.cancel("no more")
    with pytest.raises(FunctionFailed):
        await handle.result()
    await handle.rewind(1)
    assert await handle.result() == ["hotel 1", "flight 2", "pay 1"]


async def test_one_that_was_cancelled_goes_on_with_what_it_waited_for(boki_context: boki.testing.Context) -> None:
    """What says that the request came before the end of the timer is forgotten with what it led to."""
    ctx = boki_context
    handle = await trip.start(ctx, "Ada", id="t")
    await ctx.clock.advance(100)
    await handle.cancel("no more")
    with pytest.raises(FunctionFailed):
        await handle.result()
    await handle.rewind(3)
    assert await handle.result() == ["hotel 1", "flight 1", "pay 1"]
    assert DONE.count("undo hotel") == 1


async def test_one_that_was_killed_can_be_rewound(boki_context: boki.testing.Context) -> None:
    """A kill leaves the journal as it is."""
    ctx = boki_context
    handle = await trip.start(ctx, "Ada", id="t")
    await ctx.clock.advance(100)
    await handle.kill()
    await handle.rewind()
    assert await handle.result() == ["hotel 1", "flight 1", "pay 1"]


async def test_rewound_again_and_again(boki_context: boki.testing.Context) -> None:
    """Each time other keys are drawn, also by `flow.uuid`."""
    drawn: list[Any] = []

    @step
    async def keep(value: str) -> str:
        drawn.append((value, step.key))
        return value

    @workflow
    async def draws() -> list[str]:
        return [await keep(str(flow.uuid())), await keep(str(flow.uuid()))]

    handle = await draws.start(boki_context, id="d")
    first = await handle.result()
    seen = [first]
    for _ in range(3):
        await handle.rewind(1)
        seen.append(await handle.result())
    assert {pair[0] for pair in seen} == {first[0]}
    assert len({pair[1] for pair in seen}) == 4
    assert len({key for _, key in drawn}) == 5


@workflow
async def talks() -> list[str]:
    found = [await flow.receive("word")]
    found.append(await act(found[0]))
    found.append(await flow.receive("word"))
    found.append(await act(found[-1]))
    return found


async def test_messages_that_came_later_are_given_again(boki_context: boki.testing.Context) -> None:
    """They belong to the id: each run is given them in the same order."""
    ctx = boki_context
    handle = talks.handle(ctx, "t")
    for word in ("one", "two"):
        await handle.signal("word", word)
    await talks.start(ctx, id="t")
    assert await handle.result() == ["one", "one 1", "two", "two 1"]
    await handle.rewind(1)
    assert await handle.result() == ["one", "one 1", "two", "two 2"]


async def test_a_fork_has_the_history_up_to_the_step(boki_context: boki.testing.Context) -> None:
    """It continues by itself, under keys of its own, while the first one runs on."""
    ctx = boki_context
    handle = await trip.start(ctx, "Ada", id="t", attributes={"customer": "Ada"})
    await ctx.clock.advance(100)
    forked = await handle.fork(1, id="u")
    assert await forked.result() == ["hotel 1", "flight 2", "pay 2"]
    assert await handle.result() == ["hotel 1", "flight 1", "pay 1"]
    assert len(set(KEYS["flight"])) == len(set(KEYS["pay"])) == 2
    state = await trip.handle(ctx, "u").status()
    assert state.attributes == {"customer": "Ada", "boki:forked_from": "t"}
    again = await forked.fork(3)
    assert await again.result() == ["hotel 1", "flight 2", "pay 3"]
    assert again.id not in ("t", "u")


async def test_a_fork_of_one_that_has_ended(boki_context: boki.testing.Context) -> None:
    """Of all that it did, or of nothing."""
    handle = await trip.start(boki_context, "Ada", id="t")
    await handle.result()
    assert await (await handle.fork(id="all")).result() == ["hotel 1", "flight 1", "pay 1"]
    assert DONE.count("pay") == 1
    assert await (await handle.fork(0, id="none")).result() == ["hotel 2", "flight 2", "pay 2"]


async def test_a_fork_has_the_messages_that_the_steps_followed(boki_context: boki.testing.Context) -> None:
    """They read as they did there, with their times; later ones are to be sent to it."""
    ctx = boki_context
    said: list[Any] = []

    @workflow
    async def timed() -> list[str]:
        word = await flow.receive("word")
        found = [await act(f"{word} {flow.now().isoformat()}")]
        await flow.sleep(10)
        found.append(await flow.receive("word"))
        said.append(found)
        return found

    handle = await timed.start(ctx, id="t")
    await ctx.clock.advance(100)
    await handle.signal("word", "one")
    await ctx.clock.advance(100)
    await handle.signal("word", "two")
    first = await handle.result()
    forked = await handle.fork(1, id="u")
    await ctx.clock.advance(1_000)
    assert (await forked.status()).status == "suspended"
    await forked.signal("word", "other")
    assert await forked.result() == [first[0], "other"]
    assert len([what for what in DONE if what.startswith("one")]) == 1


async def test_a_fork_of_what_continues_as_new_meanwhile_is_refused(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages are gone by then, and the steps had followed them."""
    ctx, check = boki_context, rewinding._check_children

    @workflow
    async def told(n: int) -> list[str]:
        found = [await act(await flow.receive("word"))]
        await flow.receive("more")
        if not n:
            flow.continue_as_new(1)
        return found

    async def slowly(*arguments: Any) -> None:
        await handle.signal("more")
        await ctx.clock.advance(10)
        await check(*arguments)

    handle = await told.start(ctx, 0, id="t")
    await handle.signal("word", "one")
    await ctx.clock.advance(10)
    monkeypatch.setattr(rewinding, "_check_children", slowly)
    with pytest.raises(WrongState, match="fork it again"):
        await handle.fork(id="u")
    monkeypatch.undo()
    assert (await handle.fork(id="v")).id == "v"


async def test_a_fork_reads_the_store_as_it_was(boki_context: boki.testing.Context) -> None:
    """Up to the step a replay sees what the first one had seen, whatever was written since."""
    ctx = boki_context

    @workflow
    async def reads() -> list[Any]:
        await flow.store.write("x", 1)
        first = await flow.store.read("x")
        await act(f"saw {first}")
        return [first, await flow.store.read("x")]

    handle = await reads.start(ctx, id="r")
    assert await handle.result() == [1, 1]
    await (await reads.start(ctx, id="other")).result()

    @workflow
    async def writes() -> None:
        await flow.store.write("x", 5)

    await (await writes.start(ctx)).result()
    assert await (await handle.fork(id="f")).result() == [1, 1]
    assert DONE.count("saw 1") == 2


async def test_after_a_rewind_it_may_continue_as_new(boki_context: boki.testing.Context) -> None:
    """A request to pause that the rewind has forgotten does not come back with a message that is still waiting."""
    ctx = boki_context

    @workflow
    async def rounds(count: int) -> str:
        await act(f"round {count}")
        await flow.sleep(100)
        if count == 2:
            return str(await flow.receive("kept"))
        return flow.continue_as_new(count + 1)

    handle = rounds.handle(ctx, "r")
    await handle.signal("kept", "yes")
    await rounds.start(ctx, 0, id="r")
    await ctx.clock.advance(10)
    await handle.pause("stop")
    await ctx.clock.advance(500)
    assert (await handle.status()).status == "paused"
    await handle.rewind(0)
    assert await handle.result() == "yes"
    assert Counter(DONE) == {"round 0": 2, "round 1": 1, "round 2": 1}


@workflow
async def parallel() -> list[str]:
    async def late(what: str, seconds: float) -> str:
        found = await act(what)
        await flow.sleep(seconds)
        return found

    found = await asyncio.gather(late("a", 20), late("b", 10), late("c", 30))
    return [*found, await act("last")]


async def test_steps_that_ran_at_the_same_time_go_together(boki_context: boki.testing.Context) -> None:
    """A step beside which an earlier one ended later cannot be named alone; the first of them can."""
    handle = await parallel.start(boki_context, id="p")
    await handle.result()
    with pytest.raises(InvalidArgument, match=r"ran at the same time as 3, which ended after it: name step 3"):
        await handle.rewind(4)
    assert await handle.rewind(3) == 3
    assert await handle.result() == ["a 1", "b 1", "c 1", "last 2"]
    assert await handle.rewind(1) == 1
    assert await handle.result() == ["a 1", "b 2", "c 2", "last 3"]


async def test_what_is_refused(boki_context: boki.testing.Context) -> None:
    """Each says what to do instead, and changes nothing."""
    ctx = boki_context
    handle = await trip.start(ctx, "Ada", id="t")
    await ctx.clock.advance(100)
    with pytest.raises(WrongState, match="pause it first, or kill it"):
        await handle.rewind(1)
    with pytest.raises(InvalidArgument, match=r"there is no step 7 that has ended: there are 0, 1, and 2 is behind"):
        await handle.fork(7)
    with pytest.raises(NoSuchWorkflow):
        await trip.handle(ctx, "nobody").rewind(1)
    await trip.handle(ctx, "told").signal("word", 1)
    for used in ("t", "told"):
        with pytest.raises(AlreadyExists, match="fork to an id that is free"):
            await handle.fork(1, id=used)
    assert await handle.result() == ["hotel 1", "flight 1", "pay 1"]


@workflow
async def slow(n: int) -> int:
    await flow.sleep(10_000)
    return n


@workflow
async def parent() -> int:
    await act("before")
    child = await flow.start(slow, 7, parent_close="abandon")
    await act("after")
    return int(await child.result())


async def test_children_that_run(boki_context: boki.testing.Context) -> None:
    """One that a rewind would start again has to end first; one that is kept continues. A fork takes none along."""
    ctx = boki_context
    handle = await parent.start(ctx, id="p")
    await ctx.clock.advance(100)
    with pytest.raises(WrongState, match=r"child slow .* of step 1 still runs, and reports to the workflow"):
        await handle.fork(2)
    await handle.pause()
    await ctx.clock.advance(10)
    with pytest.raises(WrongState, match=r"child slow .* of step 1 still runs, and the step would start another"):
        await handle.rewind(1)
    await handle.rewind(2)
    assert await handle.result() == 7
    assert DONE == ["before", "after", "after"]
    assert await (await handle.fork(2, id="f")).result() == 7


async def test_crashes_around_the_steps_of_a_rewound_one() -> None:
    """Wherever its process is lost, before the rewind or after it, it ends as it should."""
    async for ctx in flows.every_crash():
        forget_all()
        BROKEN.add("pay")
        handle = await trip.start(ctx, "Ada", id="t")
        with pytest.raises(FunctionFailed):
            await handle.result()
        BROKEN.clear()
        await handle.rewind(1)
        found = await handle.result()
        assert [word.split()[0] for word in found] == ["hotel", "flight", "pay"]
        assert len(set(KEYS["hotel"])) == 1
        assert len(set(KEYS["flight"])) == len(set(KEYS["pay"])) == 2


def forget_all() -> None:
    DONE.clear()
    KEYS.clear()
    BROKEN.clear()


async def test_a_caught_failure_is_redone(boki_context: boki.testing.Context) -> None:
    """The body takes another way, because the step's outcome is another."""
    BROKEN.add("pay")

    @workflow
    async def cautious() -> str:
        try:
            return await act("pay")
        except StepFailed:
            return await act("refuse")

    handle = await cautious.start(boki_context, id="c")
    assert await handle.result() == "refuse 1"
    BROKEN.clear()
    assert await handle.rewind() == 0
    assert await handle.result() == "pay 2"


async def test_locks(boki_context: boki.testing.Context) -> None:
    """A step inside of a lock cannot be named; one in front of it or behind it can, and a fork knows the old token."""

    @workflow
    async def locking() -> list[str]:
        async with flow.lock("room") as token:
            found = [await act(f"inside {token}")]
        return [*found, await act("behind")]

    handle = await locking.start(boki_context, id="l")
    first = await handle.result()
    with pytest.raises(InvalidArgument, match=r"step 1 is inside of the lock room, which step 0 has taken"):
        await handle.rewind(1)
    assert await (await handle.fork(3, id="f")).result() == [first[0], "behind 2"]
    assert await handle.rewind(3) == 3
    assert await handle.result() == [first[0], "behind 3"]
    await handle.rewind(0)
    again = await handle.result()
    assert again[0] != first[0]


@step(retry=Retry(first_s=30, max_s=30, jitter=0))
async def unready(what: str) -> str:
    """Is under way for a while, and succeeds when nothing is broken any more."""
    return await act.fn(what)


@workflow
async def beside() -> list[str]:
    drawn = [flow.random().random()]
    slowly = asyncio.ensure_future(unready("pay"))
    await asyncio.sleep(0)
    drawn.append(flow.random().random())
    found = [await act("quick")]
    await flow.sleep(10)
    found += [await slowly, await act("last")]
    return [*found, *map(str, drawn)]


async def test_a_fork_has_keys_of_its_own_for_steps_that_are_under_way(boki_context: boki.testing.Context) -> None:
    """The first workflow runs them, too: under one key they would have one effect, of whichever comes first. In each
    workflow a step keeps its key, also when the fork is rewound behind it. Random numbers are those of the history.
    """
    ctx = boki_context
    BROKEN.add("pay")
    handle = await beside.start(ctx, id="first")
    await ctx.clock.advance(15)
    fork = await handle.fork(id="second")
    await ctx.clock.advance(40)
    await fork.kill()
    await fork.rewind()
    await ctx.clock.advance(1)
    BROKEN.clear()
    assert (await handle.result())[3:] == (await fork.result())[3:]
    assert DONE.count("quick") == 1
    assert len(KEYS["pay"]) > 4
    assert len(set(KEYS["pay"])) == 2


async def test_a_fork_of_a_paused_workflow_runs(boki_context: boki.testing.Context) -> None:
    """A pause is for the workflow that it was sent to, however often it was read there."""
    ctx = boki_context
    handle = await trip.start(ctx, "Ada", id="t")
    await ctx.clock.advance(5)
    await handle.pause("the bank is closed")
    await ctx.clock.advance(5)
    fork = await handle.fork(id="f")
    await ctx.clock.advance(5)
    assert ((await handle.status()).status, (await fork.status()).status) == ("paused", "suspended")
    assert (await fork.result())[2] == "pay 1"
    await handle.resume()
    assert (await handle.result())[2] == "pay 2"
