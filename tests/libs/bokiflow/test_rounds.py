"""What holds from round to round of a workflow that continues as new: pauses, children, answers, and its length."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

import boki.testing
from boki import Context, FunctionFailed, KeyReused, Trimmed
from boki.extending import CallsById, InvocationState
from boki.libs.bokiflow import flow, run, step, workflow
from boki.libs.bokiflow.closing import close_children
from boki.libs.bokiflow.records import updates_tag
from boki.libs.bokiflow.work import CHILD

pytestmark = pytest.mark.usefixtures("each_mode")

DAY_S = 24 * 3600
ROUNDS: list[int] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    ROUNDS.clear()


@step
async def add(a: int, b: int) -> int:
    return a + b


# pauses


async def test_a_pause_holds_across_a_continuation(boki_context: boki.testing.Context) -> None:
    """The step that runs comes to its end, and the next round does not begin before the resumption."""

    may_end = asyncio.Event()

    @step
    async def slow(turn: int) -> int:
        await may_end.wait()
        ROUNDS.append(turn)
        return turn + 1

    @workflow
    async def turning(turn: int) -> int:
        turn = await slow(turn)
        return turn if turn == 4 else flow.continue_as_new(turn)

    ctx = boki_context
    handle = await turning.start(ctx, 0, id="p")
    await ctx.clock.advance(2)
    await handle.pause("lunch")
    await ctx.clock.advance(100)
    may_end.set()
    await ctx.clock.advance(100)
    assert (await handle.status()).status == "paused"
    assert (await handle.status()).note == "paused: lunch"
    assert set(ROUNDS) == {0}
    await handle.signal("a word")  # wakes it, and is no reason to continue
    await ctx.clock.advance(100)
    assert (await handle.status()).status == "paused"
    await handle.resume()
    assert await handle.result() == 4
    assert set(ROUNDS) == {0, 1, 2, 3}


async def test_a_paused_continuation_can_be_cancelled(boki_context: boki.testing.Context) -> None:
    """Which ends the pause: the next round begins, and is cancelled."""
    may_end = asyncio.Event()

    @step
    async def slow(turn: int) -> int:
        await may_end.wait()
        return turn + 1

    @workflow
    async def turning(turn: int) -> None:
        ROUNDS.append(turn)
        turn = await slow(turn)
        flow.continue_as_new(turn)

    ctx = boki_context
    handle = await turning.start(ctx, 0, id="p")
    await ctx.clock.advance(2)
    await handle.pause()
    await ctx.clock.advance(5)
    may_end.set()
    await ctx.clock.advance(5)
    assert (await handle.status()).status == "paused"
    assert set(ROUNDS) == {0}
    await handle.cancel("enough")
    with pytest.raises(FunctionFailed, match="enough"):
        await handle.result()
    assert set(ROUNDS) == {0, 1}


async def test_short_rounds_hear_a_cancellation(boki_context: boki.testing.Context) -> None:
    """No round is long enough to read its inbox by itself."""

    @workflow
    async def hasty(turn: int) -> int:
        await flow.sleep(0.1)
        return turn if turn == 1_000 else flow.continue_as_new(turn + 1)

    ctx = boki_context
    handle = await hasty.start(ctx, 0, id="h")
    await ctx.clock.advance(3)
    await handle.cancel("enough")
    with pytest.raises(FunctionFailed, match="enough"):
        await handle.result()


# children


@workflow
async def leaf() -> None:
    await flow.receive("never")


@workflow
async def tree(plan: tuple[int, str, str]) -> str:
    """Starts children in its first round, and ends in the third as it is told."""
    turn, policy, end = plan
    if not turn:
        await flow.start(leaf, id="leaf", parent_close=policy)  # type: ignore[arg-type]
    if turn < 2:
        flow.continue_as_new((turn + 1, policy, end))
    if end == "cancelled":
        await flow.receive("never")
    if end == "failed":
        raise ValueError("wrong")
    return "done"


@pytest.mark.parametrize("end", ["done", "failed", "cancelled"])
@pytest.mark.parametrize("policy", ["cancel", "kill", "abandon"])
async def test_children_of_earlier_rounds_keep_their_policy(
    boki_context: boki.testing.Context, policy: str, end: str
) -> None:
    """However the workflow ends."""
    ctx = boki_context
    handle = await tree.start(ctx, (0, policy, end), id="t")
    await ctx.clock.advance(5)
    if end == "cancelled":
        assert (await leaf.handle(ctx, "leaf").status()).status == "suspended"
        await handle.cancel()
    await ctx.clock.advance(5)
    assert (await handle.status()).status == end
    expected = "suspended" if policy == "abandon" else "cancelled"
    assert (await leaf.handle(ctx, "leaf").status()).status == expected


@workflow
async def quick(number: int) -> int:
    if number < 0:
        raise ValueError("negative")
    return number


@workflow
async def often(turn: int) -> int:
    """Calls ten children a round, whose results it has."""
    await asyncio.gather(*(flow.call(quick, number) for number in range(10)))
    return turn if turn == 5 else flow.continue_as_new(turn + 1)


async def test_children_that_have_returned_are_not_looked_up(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A workflow that continues for months may have had thousands of them."""
    looks: list[str] = []
    state = CallsById.state

    async def counted(calls: CallsById, invocation_id: str, wait_s: float = 0) -> InvocationState:
        looks.append(invocation_id)
        return await state(calls, invocation_id, wait_s)

    async def closes(ctx: Context, keep_s: float, *, is_copy: bool) -> None:
        looks.clear()
        await close_children(ctx, keep_s, is_copy=is_copy)
        assert len(looks) <= 1

    monkeypatch.setattr(CallsById, "state", counted)
    monkeypatch.setattr(run, "close_children", closes)
    assert await (await often.start(boki_context, 0, id="o")).result() == 5


async def test_a_child_that_is_started_again_is_closed(boki_context: boki.testing.Context) -> None:
    """It has returned before. One that failed, was killed, or is not kept is looked up, and left alone."""

    @workflow
    async def short(turn: int) -> str:
        if turn:
            await flow.receive("never")
        return "done"

    @workflow
    async def parent(turn: int) -> None:
        if not turn:
            assert await flow.call(short, 0, id="s") == "done"
            with pytest.raises(FunctionFailed):
                await flow.call(quick, -1)
            await flow.start(leaf, id="leaf")
            flow.continue_as_new(1)
        await flow.receive("go")

    ctx = boki_context
    handle = await parent.start(ctx, 0, id="p")
    await ctx.clock.advance(5)
    await leaf.handle(ctx, "leaf").kill()
    mine = short.handle(ctx, "s")
    calls = CallsById(ctx)
    parent_id, attributes = handle.invocation_id, {CHILD: "0 cancel"}
    start = partial(calls.start, mine.invocation_id, short, 1, if_ended="again", name="s")
    await start(reports_to=parent_id, attributes=attributes)
    await ctx.clock.advance(5)
    assert (await mine.status()).status == "suspended"
    await handle.signal("go")
    await handle.result()
    await ctx.clock.advance(5)
    assert (await mine.status()).status == "cancelled"


# updates that are repeated


@workflow
async def counts(total: int) -> int:
    """Each update is a round."""
    got: list[int] = []

    def take(number: int) -> int:
        got.append(number)
        return total + number

    flow.on_update("add", take)
    await flow.wait_for(lambda: bool(got))
    return total + got[0] if got[0] == 0 else flow.continue_as_new(total + got[0])


async def test_a_repeated_update_gets_its_answer(boki_context: boki.testing.Context) -> None:
    """Also in a later round, which has trimmed it, and after the end."""
    ctx = boki_context
    handle = await counts.start(ctx, 0, id="c")
    assert await handle.update("add", 1, id="u") == 1
    assert await handle.update("add", 2, id="v") == 3
    before_us = ctx.clock.now_us
    for _ in range(2):
        assert await handle.update("add", 1, id="u") == 1
        assert await handle.update("add", 2, id="v") == 3
    assert ctx.clock.now_us - before_us < 1_000_000
    for other in (handle.update("add", 7, id="u"), handle.update("take", 1, id="u")):
        with pytest.raises(KeyReused, match="'u'"):
            await other
    assert await handle.update("add", 0, id="w") == 3
    assert await handle.result() == 3
    assert await handle.update("add", 1, id="u") == 1


async def test_an_answer_that_is_not_kept_is_a_clear_error(boki_context: boki.testing.Context) -> None:
    """An older Boki kept none: that is said at once."""
    ctx = boki_context
    handle = await counts.start(ctx, 0, id="c")
    assert await handle.update("add", 1, id="u") == 1
    assert await handle.update("add", 2, id="v") == 3
    tag = updates_tag(handle.invocation_id)
    last = await ctx.logbook.check_tail(tag)
    assert last is not None
    await ctx.logbook.trim(last.next_seqnum, tag=tag)
    before_us = ctx.clock.now_us
    with pytest.raises(Trimmed, match="answered before the workflow continued as new") as caught:
        await handle.update("add", 1, id="u")
    assert (caught.value.outcome, caught.value.update) == ("unknown", "u")
    assert ctx.clock.now_us - before_us < 1_000_000


async def test_answers_are_kept_as_long_as_ids(boki_context: boki.testing.Context) -> None:
    """A day; then a continuation trims them."""
    ctx = boki_context
    handle = await counts.start(ctx, 0, id="c")
    tag = updates_tag(handle.invocation_id)
    for number in range(1, 4):
        await handle.update("add", number, id=f"u{number}")
    await ctx.clock.advance(DAY_S / 2)
    await handle.update("add", 4, id="u4")
    assert len((await ctx.logbook.read(tag)).records) == 8
    await ctx.clock.advance(DAY_S / 2 + 60)
    await handle.update("add", 5, id="u5")
    await ctx.clock.advance(1)
    assert len((await ctx.logbook.read(tag)).records) == 4
    assert await handle.update("add", 4, id="u4") == 10


async def test_answers_are_trimmed_with_the_history(boki_context: boki.testing.Context) -> None:
    """After the time for which histories are kept. Another workflow that ends has its process look for such ones."""
    ctx = boki_context
    handle = await counts.start(ctx, 0, id="c")
    for number in (1, 2, 0):
        await handle.update("add", number)
    assert await handle.result() == 3
    tag = updates_tag(handle.invocation_id)
    assert len((await ctx.logbook.read(tag)).records) == 6
    await ctx.clock.advance(DAY_S + 120)
    other = await counts.start(ctx, 0, id="d")
    await other.update("add", 0)
    await ctx.clock.advance(1)
    assert not (await ctx.logbook.read(tag)).records
