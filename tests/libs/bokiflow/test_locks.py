"""Locks: one holder at a time, in the order of the log, left however the workflow ends, and no deadlock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import boki.testing
from boki import FunctionFailed, InvalidArgument
from boki.extending import CallsById
from boki.libs.bokiflow import LockLost, flow, step, workflow
from boki.libs.bokiflow.blocking import flow as blocking_flow
from boki.libs.bokiflow.face.queues import Place, Queues
from boki.libs.bokiflow.hooks import installed
from boki.libs.bokiflow.locks import watching
from boki.libs.bokiflow.locks.state import lock_tag
from boki.libs.bokistore import Store
from boki.testing import flows
from tests.libs.bokiflow.classes.state import two_locks
from tests.libs.bokiflow.crashes import NO_DEATH, AroundSteps, World, after_each_loss, all_deaths

INSIDE: list[str] = []
blocking_nap = blocking_flow.sleep
TOKENS: list[int] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    INSIDE.clear()
    TOKENS.clear()


@step
async def note(what: str) -> None:
    INSIDE.append(what)


@workflow
async def visitor(order: dict[str, Any]) -> int:
    """Takes the lock, stays for a while, and counts itself by a read and a write of their own."""
    async with flow.lock("room") as held:
        await note(f"{flow.id} in")
        seen = await flow.store.read("visits", default=0)
        await flow.sleep(order.get("stay_s", 5))
        if order.get("fails"):
            raise ValueError("it fails inside")
        await flow.store.write("visits", seen + 1)
        await note(f"{flow.id} out")
    return held.token


async def test_workflows_take_a_lock_one_after_the_other(boki_context: boki.testing.Context, each_mode: None) -> None:
    """In the order in which they asked, with a higher token each; no update of what it guards is lost."""
    ctx = boki_context
    handles = []
    for number in range(5):
        handles.append(await visitor.start(ctx, {}, id=str(number)))
        await ctx.clock.advance(1)
    tokens = [await handle.result() for handle in handles]
    assert tokens == sorted(set(tokens))
    assert list(dict.fromkeys(INSIDE)) == [f"{number} {way}" for number in range(5) for way in ("in", "out")]
    assert await Store(ctx).object("visits").get() == 5


async def test_who_waits_has_a_place(boki_context: boki.testing.Context) -> None:
    """From 1 on, behind the holder; it moves up when one in front leaves the queue."""
    ctx = boki_context
    handles = []
    for number in range(4):
        handles.append(await visitor.start(ctx, {"stay_s": 3_600}, id=str(number)))
        await ctx.clock.advance(1)
    calls, found = CallsById(ctx), []
    for _ in range(2):
        queues = Queues(ctx.logbook.session)
        found.append([await queues.place_of(await calls.state(one.invocation_id)) for one in handles])
        await handles[1].kill()
        await ctx.clock.advance(10)
    waits = [Place(place, 3) for place in (1, 2, 3)]
    assert found == [[None, *waits], [None, None, Place(1, 2), Place(2, 2)]]


async def test_who_waits_has_no_process_and_says_for_what(boki_context: boki.testing.Context) -> None:
    """It is suspended until a record comes, and its state names the lock and the holder."""
    ctx = boki_context
    await visitor.start(ctx, {"stay_s": 3_600}, id="one")
    await ctx.clock.advance(1)
    second = await visitor.start(ctx, {}, id="two")
    await ctx.clock.advance(600)
    state = await second.status()
    assert (state.status, state.wakes_us) == ("suspended", 0)
    assert state.note == "waits for lock room, which visitor one holds"
    assert await second.result() > 0


@pytest.mark.parametrize("way", ["fails", "cancel", "kill"])
@pytest.mark.parametrize("when", ["while another one waits", "before anyone asks"])
async def test_a_lock_is_left_however_its_workflow_ends(
    boki_context: boki.testing.Context, way: str, when: str, each_mode: None
) -> None:
    """Failed, cancelled or killed: the next one gets the lock."""
    ctx = boki_context
    first = await visitor.start(ctx, {"stay_s": 60, "fails": way == "fails"}, id="one")
    await ctx.clock.advance(2)
    if when == "while another one waits":
        second = await visitor.start(ctx, {}, id="two")
        await ctx.clock.advance(2)
    if way != "fails":
        await (first.cancel() if way == "cancel" else first.kill())
    await ctx.clock.advance(70)
    if when == "before anyone asks":
        second = await visitor.start(ctx, {}, id="two")
    assert await second.result() > 0
    assert await Store(ctx).object("visits").get() == 1


@workflow
async def starts_again(is_first: bool) -> str:
    if is_first:
        async with flow.lock("room"):
            await flow.sleep(3_600)
    await flow.receive("end")
    return "ended"


@pytest.mark.parametrize("when", ["while another one waits", "before anyone asks"])
async def test_a_lock_is_left_by_a_killed_workflow_that_is_started_again(
    boki_context: boki.testing.Context, when: str, each_mode: None
) -> None:
    """Its call runs again, for a life that does not hold the lock: the next in the queue waited for the end of that."""
    ctx = boki_context
    first = await starts_again.start(ctx, True, id="one")
    await ctx.clock.advance(2)
    if when == "while another one waits":
        second = await visitor.start(ctx, {}, id="two")
        await ctx.clock.advance(2)
    await first.kill()
    again = await starts_again.start(ctx, False, id="one", if_ended="again")
    await ctx.clock.advance(10)
    if when == "before anyone asks":
        second = await visitor.start(ctx, {}, id="two")
    await ctx.clock.advance(10)
    assert (await second.status()).status == "done"
    assert (await again.status()).status == "suspended"


async def test_a_lock_is_kept_by_a_workflow_that_was_rewound(boki_context: boki.testing.Context) -> None:
    """It has taken the lock again. That an earlier life has written to the journal of its call says nothing."""
    ctx = boki_context
    first = await starts_again.start(ctx, True, id="one")
    await ctx.clock.advance(2)
    await first.kill()
    await first.rewind(0)
    await ctx.clock.advance(10)
    second = await visitor.start(ctx, {}, id="two")
    await ctx.clock.advance(10)
    state = await second.status()
    assert (state.status, state.note) == ("suspended", "waits for lock room, which starts_again one holds")
    await first.signal("end")
    assert await second.result() > 0


async def test_a_waiter_that_is_killed_holds_up_nobody(boki_context: boki.testing.Context) -> None:
    """Each watches the one in front: of five, those in the middle are killed in any order."""
    ctx = boki_context
    handles = []
    for number in range(6):
        handles.append(await visitor.start(ctx, {"stay_s": 60}, id=str(number)))
        await ctx.clock.advance(2)
    for number in (2, 1, 3, 0):
        await handles[number].kill()
        await ctx.clock.advance(1)
    assert await handles[4].result() < await handles[5].result()
    assert await Store(ctx).object("visits").get() == 2


async def test_a_wait_that_is_given_up_leaves_the_queue(boki_context: boki.testing.Context, each_mode: None) -> None:
    """By a timeout of asyncio, which is durable: the one behind moves up."""

    @workflow
    async def impatient() -> str:
        try:
            async with asyncio.timeout(10), flow.lock("room"):
                return "inside"
        except TimeoutError:
            return "gave up"

    ctx = boki_context
    await visitor.start(ctx, {"stay_s": 60}, id="one")
    await ctx.clock.advance(1)
    second = await impatient.start(ctx)
    await ctx.clock.advance(1)
    third = await visitor.start(ctx, {}, id="three")
    assert await second.result() == "gave up"
    assert await third.result() > 0


async def test_workflows_that_take_locks_crosswise_do_not_deadlock(
    boki_context: boki.testing.Context, each_mode: None
) -> None:
    """The younger one is refused its second lock, with both locks named, and begins again; the older one continues."""
    ctx = boki_context
    older = await two_locks.start(ctx, ["a", "b"])
    await ctx.clock.advance(1)
    younger = await two_locks.start(ctx, ["b", "a"])
    assert await older.result() == []
    assert await younger.result() == ["b before a"]
    assert await Store(ctx).object("done").get() == 2


async def test_a_ring_of_workflows_always_comes_to_an_end(boki_context: boki.testing.Context) -> None:
    """Ten workflows, each of which holds what the next one wants."""
    ctx = boki_context
    handles = [await two_locks.start(ctx, [f"k{n}", f"k{(n + 1) % 10}"]) for n in range(10)]
    refused = [await handle.result() for handle in handles]
    assert await Store(ctx).object("done").get() == 10
    assert any(refused)


async def test_an_older_one_in_the_queue_does_not_disturb_a_holder_that_does_not_wait(
    boki_context: boki.testing.Context,
) -> None:
    """Nothing is taken from a holder: what it does under one lock comes to its end."""

    @workflow
    async def late() -> str:
        await flow.sleep(10)
        async with flow.lock("room"):
            return "inside"

    ctx = boki_context
    older = await late.start(ctx)
    await ctx.clock.advance(1)
    younger = await visitor.start(ctx, {"stay_s": 60}, id="young")
    assert await younger.result() > 0
    assert await older.result() == "inside"
    assert INSIDE == ["young in", "young out"]


@workflow
async def inner(key: str) -> str:
    """Waits for a lock for a minute only: its parent holds another one meanwhile."""
    async with asyncio.timeout(60), flow.lock(key):
        return key


@workflow
async def outer(keys: list[str]) -> int:
    """Holds one lock while its child wants another; how often that came to nothing."""
    refused = 0
    while True:
        try:
            async with flow.lock(keys[0]):
                await flow.sleep(1)
                await flow.call(inner, keys[1])
                return refused
        except FunctionFailed:
            refused += 1
            await flow.sleep(flow.random().uniform(1, 60))


async def test_parents_whose_children_take_locks_crosswise(boki_context: boki.testing.Context, each_mode: None) -> None:
    """No wound ends that circle, because those that wait for a lock hold none: the time of the children's waits does.
    The parents leave their locks by the error, and take them again.
    """
    ctx = boki_context
    handles = [await outer.start(ctx, keys) for keys in (["a", "b"], ["b", "a"])]
    assert any([await handle.result() for handle in handles])


@workflow
async def guarded(n: int) -> list[int]:
    """Everything that may crash: take, write, leave, and take again."""
    found = []
    for _ in range(2):
        async with flow.lock("k") as held:
            count = await flow.store.read("count", default=0)
            await flow.store.write("count", count + n)
            found.append(count + n)
            assert held.token
    return found


async def test_a_lock_survives_a_crash_at_each_append() -> None:
    """At every append, in the log or not, and at every boundary: the same result, and nobody holds the lock after."""
    first = World()
    with installed(AroundSteps(first)):
        assert await first.run(guarded, 3) == [3, 6]
    assert first.log.append_count == 6, "take, write and leave are one append each"
    deaths = all_deaths(first.appends, first.boundaries)
    assert len(deaths) >= 20
    for death in [NO_DEATH, *deaths]:
        world = World()
        with installed(AroundSteps(world)):
            assert await world.run(guarded, 3, death=death) == [3, 6], death
        async with boki.testing.context("test", log=world.log) as ctx:
            assert await Store(ctx).object("count").get() == 6, death
            assert (await visitor_alone(ctx, "k")) > 0


async def visitor_alone(ctx: boki.testing.Context, key: str) -> int:
    """The token of a workflow that takes this lock, which must be free."""

    @workflow
    async def alone(key: str) -> int:
        async with asyncio.timeout(5), flow.lock(key) as held:
            return held.token

    return await (await alone.start(ctx, key)).result()


async def test_every_crash_between_workflows_that_share_a_lock() -> None:
    """One of two that compete dies at each moment: both come to their end, one after the other."""
    moments = 0
    async for ctx in flows.every_crash():
        INSIDE.clear()
        one, two = [await visitor.start(ctx, {}, id=name) for name in ("one", "two")]
        assert len({await one.result(), await two.result()}) == 2
        assert await Store(ctx).object("visits").get() == 2
        moments += 1
    assert moments > 15


async def test_every_lost_append_of_workflows_that_share_a_lock() -> None:
    """Each append of two that compete is lost once, with and without its effect."""
    async for ctx in after_each_loss():
        one, two = [await visitor.start(ctx, {}, id=name) for name in ("one", "two")]
        assert len({await one.result(), await two.result()}) == 2
        assert await Store(ctx).object("visits").get() == 2


async def test_what_a_former_holder_writes_is_refused(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that continues after its workflow was killed writes nothing to the store under its lock."""
    ctx = boki_context
    found: list[BaseException] = []

    @step
    async def look_away() -> None:
        """Meanwhile the lock is taken for that of a workflow that has ended, and is granted to another one."""
        await visitor.start(ctx, {}, id="other")

        async def gone(*_: object) -> bool:
            return True

        monkeypatch.setattr(watching, "_has_ended", gone)
        await ctx.clock.advance(10)

    @workflow
    async def zombie() -> None:
        async with flow.lock("room"):
            await look_away()
            try:
                await flow.store.write("visits", 100)
            except LockLost as error:
                found.append(error)
                raise

    with pytest.raises(Exception, match="granted to another workflow"):
        await (await zombie.start(ctx)).result()
    assert found
    await ctx.clock.advance(10)
    assert await Store(ctx).object("visits").get() == 1


@workflow
def plain(n: int) -> int:
    with blocking_flow.lock("room") as held:
        blocking_nap(n)
        blocking_flow.store.write("plain", n)
    again = blocking_flow.lock("room")
    again.unlock()
    again.unlock()
    assert again.token > held.token
    return held.token


async def test_a_def_workflow_takes_locks(boki_context: boki.testing.Context, each_mode: None) -> None:
    """With `with`, or by `unlock`, which may come twice."""
    ctx = boki_context
    one, two = [await plain.start(ctx, n, id=str(n)) for n in (5, 6)]
    assert await one.result() < await two.result()


async def test_a_waiter_that_is_busy_is_not_held_up_by_the_dead(boki_context: boki.testing.Context) -> None:
    """It looked after the holder only when it had nothing else to do: after a step of two hours."""
    ctx = boki_context

    @step
    async def long() -> None:
        over = asyncio.Event()
        ctx.clock.call_at(ctx.clock.now_us + 7_200_000_000, over.set)
        with ctx.clock.waiting():
            await over.wait()

    @workflow
    async def busy() -> float:
        async def enter() -> float:
            async with flow.lock("room"):
                return (flow.now() - begun).total_seconds()

        begun = flow.now()
        return (await asyncio.gather(enter(), long()))[0]

    holder = await visitor.start(ctx, {"stay_s": 100_000}, id="h")
    await ctx.clock.advance(1)
    handle = await busy.start(ctx)
    await ctx.clock.advance(20)
    await holder.kill()
    assert 20 <= await handle.result() <= 31


async def test_what_a_lock_refuses(boki_context: boki.testing.Context) -> None:
    """A second time in one workflow, outside of one, and keys that are none."""

    @workflow
    async def twice() -> None:
        async with flow.lock("k"), flow.lock("k"):
            pass

    @workflow
    async def keyless(key: str) -> None:
        await flow.lock(key)

    with pytest.raises(Exception, match="holds lock 'k' already"):
        await (await twice.start(boki_context)).result()
    with pytest.raises(Exception, match="key must be 1 to 200 characters"):
        await (await keyless.start(boki_context, "")).result()
    with pytest.raises(Exception, match="has at most 200 bytes"):
        await (await keyless.start(boki_context, "ö" * 150)).result()
    with pytest.raises(InvalidArgument, match="outside of a workflow"):
        flow.lock("k")


async def test_a_workflow_that_continues_as_new_leaves_its_locks(boki_context: boki.testing.Context) -> None:
    """The next one in the queue has its turn in between."""

    @workflow
    async def rounds(left: int) -> None:
        await flow.lock("room")
        await note(f"round {left}")
        await flow.sleep(5)
        if left:
            flow.continue_as_new(left - 1)

    ctx = boki_context
    first = await rounds.start(ctx, 1)
    await ctx.clock.advance(1)
    second = await visitor.start(ctx, {}, id="v")
    await first.result()
    await second.result()
    assert INSIDE == ["round 1", "v in", "v out", "round 0"]


async def test_the_records_of_a_lock_are_trimmed(boki_context: boki.testing.Context) -> None:
    """However often a lock was taken, it has few records."""

    @workflow
    async def often(times: int) -> int:
        tokens = []
        for _ in range(times):
            async with flow.lock("room") as held:
                tokens.append(held.token)
        assert tokens == sorted(set(tokens))
        return len(tokens)

    ctx = boki_context
    assert await (await often.start(ctx, 100)).result() == 100
    assert len((await ctx.logbook.read(lock_tag("room"))).records) < 130
