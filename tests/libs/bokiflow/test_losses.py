"""Workflows whose processes die again and again: those that make progress continue, the others are paused."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest

import boki.testing
from boki.api.function import Function
from boki.api.suspension import Suspend
from boki.extending import Failure, encode_any
from boki.libs.bokiflow import flow, step, workflow
from boki.libs.bokiflow.history import life_of
from boki.libs.bokiflow.records import (
    CancelRequested,
    Done,
    Entry,
    Note,
    Paused,
    Result,
    Resumed,
    Signalled,
    encode_entry,
    encode_note,
    inbox_tag,
    journal_tag,
    message_of,
)
from boki.libs.bokiflow.run import MAX_LOSSES
from boki.protocol.calls import ChosenId
from tests.libs.bokiflow.crashes import RUN_ID, Death, Stuck, World, in_run

CALLS: Counter[str] = Counter()
RECORDED = Death(append=1, is_applied=True)
"""A process dies as soon as one record of it is in the log."""
NOT_RECORDED = Death(append=1)


@pytest.fixture(autouse=True)
def forget() -> None:
    CALLS.clear()


@step
async def add(a: int, b: int) -> int:
    CALLS["add"] += 1
    return a + b


@workflow
async def total(count: int) -> int:
    found = 0
    for n in range(count):
        found = await add(found, n)
    return found


async def test_a_workflow_that_makes_progress_is_never_paused() -> None:
    """However often its machine dies: each step is recorded, and done once."""
    world = World()
    await world.lose(total, 20, death=RECORDED, times=20)
    assert await world.run(total, 20) == sum(range(20))
    assert CALLS["add"] == 20


async def test_a_workflow_that_is_lost_without_end_is_paused_whatever_progress_it_makes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What kills its worker may stand beside what moves on, and the call would fail in the end."""
    monkeypatch.setattr("boki.libs.bokiflow.run.MAX_ATTEMPTS", 12)
    world = World()
    await world.lose(total, 20, death=RECORDED, times=12)
    with pytest.raises(Stuck, match="lost 12 times in a row: "):
        await world.run(total, 20)


async def test_losses_in_one_place_pause_a_workflow_that_had_made_progress() -> None:
    """The loss that came after the last record is the first of them; after it is resumed, they are counted again."""
    world = World()
    await world.lose(total, 20, death=RECORDED, times=10)
    await world.lose(total, 20, death=NOT_RECORDED, times=MAX_LOSSES - 1)
    with pytest.raises(Stuck, match="lost 8 times in a row without progress"):
        await world.run(total, 20)
    assert CALLS["add"] == 10 + MAX_LOSSES - 1
    await tell(world, Resumed())
    await world.lose(total, 20, death=NOT_RECORDED, times=MAX_LOSSES)
    with pytest.raises(Stuck, match="lost 8 times in a row without progress"):
        await world.run(total, 20)


async def tell(world: World, note: Note) -> None:
    """Send the workflow a message."""
    async with boki.testing.context(log=world.log) as ctx:
        await ctx.logbook.append(encode_note(note), [inbox_tag(RUN_ID)])


async def test_a_message_does_not_have_a_workflow_run_that_was_paused() -> None:
    """It would kill eight more workers. Only what ends a pause does; before that it is not even replayed."""
    for ends, outcome in [(Resumed(), str(sum(range(20)))), (CancelRequested(), "workflow total was cancelled")]:
        CALLS.clear()
        world = World()
        await world.lose(total, 20, death=RECORDED, times=1)
        await world.lose(total, 20, death=NOT_RECORDED, times=MAX_LOSSES - 1)
        for _ in range(3):
            with pytest.raises(Stuck, match="lost 8 times in a row without progress"):
                await world.run(total, 20)
            await tell(world, Signalled("news", encode_any(1, "news")))
        assert CALLS["add"] == MAX_LOSSES
        await tell(world, ends)
        (found,) = await asyncio.gather(world.run(total, 20), return_exceptions=True)
        assert str(found) == outcome


async def test_progress_between_losses_has_them_counted_anew() -> None:
    """One record is enough."""
    world = World()
    await world.lose(total, 20, death=RECORDED, times=1)
    for _ in range(3):
        await world.lose(total, 20, death=NOT_RECORDED, times=MAX_LOSSES - 2)
        await world.lose(total, 20, death=RECORDED, times=1)
    assert await world.run(total, 20) == sum(range(20))


@workflow
async def again_as_new(count: int) -> int:
    await add(count, 1)
    if count:
        flow.continue_as_new(count - 1)
    return CALLS["add"]


async def test_a_workflow_that_continues_as_new_makes_progress() -> None:
    """Its last record may be the one that says so."""
    world = World()
    await world.lose(again_as_new, 20, death=RECORDED, times=15)
    assert await world.run(again_as_new, 20) == 21


@step
async def read_pages(since: str) -> int:
    """Fails to come further than what it says first; what it had said, it may ignore."""
    begin = 0 if since == "the start" else step.details or 0
    step.heartbeat(begin + 1)
    await asyncio.Event().wait()
    return 0


@workflow
async def reading(since: str) -> int:
    for n in range(4):
        await add(n, n)
    return await read_pages(since)


async def test_a_step_that_repeats_its_heartbeats_makes_no_progress() -> None:
    """Nor has it the progress of the steps before it forgotten."""
    world = World()
    await world.lose(reading, "the start", death=RECORDED, times=4)
    await world.lose(reading, "the start", death=RECORDED, times=1 + MAX_LOSSES - 1)
    with pytest.raises(Stuck, match="lost 8 times in a row without progress"):
        await world.run(reading, "the start")


async def test_a_step_whose_heartbeats_say_something_new_makes_progress() -> None:
    """A step of hours, on machines that come and go."""
    world = World()
    await world.lose(reading, "the last page", death=RECORDED, times=4 + 3 * MAX_LOSSES)


async def test_the_progress_of_an_earlier_life_does_not_count() -> None:
    """The runs of a life have numbers of their own."""
    world = World()
    entry = Entry(1, 0, 0, 1, Done(0, "add", b"", Result()), began_us=1, life=5, progress_run=9)
    async with boki.testing.context(log=world.log) as ctx:
        await ctx.logbook.append(encode_entry(entry), [journal_tag(RUN_ID)])
        with pytest.raises(Suspend) as caught:
            await Function.of(total).run(in_run(ctx, 3, 9, attempt=9), 3)
    assert "lost 8 times in a row without progress" in caught.value.suspension.note


async def test_a_pause_of_an_earlier_life_does_not_hold_one_that_has_had_many_runs() -> None:
    """It came late: the workflow was begun again since it was looked at. Nothing would have ended that pause."""
    for life, is_held in [("before", False), ("now", True)]:
        async with boki.testing.context() as ctx:
            await ctx.logbook.append(encode_note(Paused("wait", life_of(life))), [inbox_tag(RUN_ID)])
            inner = in_run(ctx, 3, MAX_LOSSES + 1)
            inner._state.call = msgspec.structs.replace(inner._state.call, chosen=ChosenId(start="now"))
            (found,) = await asyncio.gather(Function.of(total).run(inner, 3), return_exceptions=True)
            assert isinstance(found, Suspend) == is_held, found


async def test_a_pause_for_losses_is_for_the_life_that_was_lost() -> None:
    """A run that is killed may still append it, behind what begins the next life."""
    async with boki.testing.context() as ctx:
        inner = in_run(ctx, 3, MAX_LOSSES + 1, attempt=MAX_LOSSES + 1)
        inner._state.call = msgspec.structs.replace(inner._state.call, chosen=ChosenId(start="now"))
        with pytest.raises(Suspend):
            await Function.of(total).run(inner, 3)
        last = await ctx.logbook.check_tail(inbox_tag(RUN_ID))
        assert last is not None
        message = message_of(last.data)
        assert message is not None
        assert isinstance(message.note, Paused)
        assert message.note.life == life_of("now")


def test_workflows_that_were_lost_together_do_not_all_begin_together() -> None:
    """Else those of a worker that one of them kills would be killed with it each time."""
    policy = Function.of(total).info.retry
    assert policy is not None
    loss = Failure("call_lost", "the worker was killed", "unknown", True)
    for losses in range(1, MAX_LOSSES):
        assert len({policy.delay_us(losses, str(n), loss) // 1_000 for n in range(40)}) > 10
