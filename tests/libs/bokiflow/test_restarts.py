"""A workflow that is begun again under its id hears nothing of what an earlier life has heard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest

from boki import FunctionFailed
from boki.extending import CallsById, InvocationState, encode_any
from boki.libs.bokiflow import flow, journal, step, workflow
from boki.libs.bokiflow.closing import record_end
from boki.libs.bokiflow.execution import Execution
from boki.libs.bokiflow.hooks import Hooks, hooks, installed
from boki.libs.bokiflow.records import (
    CancelRequested,
    Ended,
    Entry,
    Signalled,
    encode_entry,
    encode_note,
    inbox_tag,
    journal_tag,
    uncounted,
)
from boki.testing import context, flows

RAN: list[str] = []


@pytest.fixture(autouse=True)
def none_ran() -> Iterator[None]:
    RAN.clear()
    yield


@step
async def act(what: str) -> str:
    RAN.append(what)
    return what


@workflow
async def listener(_name: str) -> str:
    await act("begun")
    return f"heard {await flow.receive('go')}"


async def test_a_signal_that_an_earlier_life_has_taken_is_not_taken_again() -> None:
    """One that was sent before the first life is."""
    async with context() as ctx:
        await listener.handle(ctx, "1").signal("go", "early")
        first = await listener.start(ctx, "x", id="1")
        assert await first.result() == "heard early"
        second = await listener.start(ctx, "x", id="1", if_ended="again")
        await ctx.clock.advance(5)
        assert (await second.status()).status == "suspended"
        await second.signal("go", "late")
        assert await second.result() == "heard late"


async def test_an_earlier_lifes_request_to_cancel_does_not_cancel_the_next_one() -> None:
    """Nor the one after that."""
    async with context() as ctx:
        for _ in range(2):
            one = await listener.start(ctx, "x", id="1", if_ended="again")
            await ctx.clock.advance(1)
            await one.cancel("no more")
            with pytest.raises(FunctionFailed, match=r"WorkflowCancelled: .* no more"):
                await one.result()
        last = await listener.start(ctx, "x", id="1", if_ended="again")
        await last.signal("go", "now")
        assert await last.result() == "heard now"
    assert RAN == ["begun"] * 3


async def test_an_earlier_lifes_pause_does_not_pause_the_next_one() -> None:
    """Where the earlier one was killed in its pause."""
    async with context() as ctx:
        one = await listener.start(ctx, "x", id="1")
        await ctx.clock.advance(1)
        await one.pause("for a while")
        await ctx.clock.advance(1)
        await one.kill()
        await ctx.clock.advance(10)
        again = await listener.start(ctx, "x", id="1", if_ended="again")
        await again.signal("go", "now")
        assert await again.result() == "heard now"


async def test_the_end_of_a_killed_life_takes_no_place_of_the_next_one() -> None:
    """What was begun again under the id would be overtaken by that record, and run its step again."""
    async with context() as ctx:
        await listener.start(ctx, "x", id="1")
        await ctx.clock.advance(1)
        run = listener.handle(ctx, "1").invocation_id
        state = await CallsById(ctx).state(run)
        before = await ctx.logbook.check_tail(journal_tag(run))
        await record_end(ctx, run, msgspec.structs.replace(state, due_us=state.due_us - 1), 60.0)
        assert await ctx.logbook.check_tail(journal_tag(run)) == before
        await record_end(ctx, run, state, 60.0)
        after = await ctx.logbook.check_tail(journal_tag(run))
        assert before is not None
        assert after is not None
        assert after.seqnum > before.seqnum


async def test_an_end_that_is_late_hides_nothing_that_was_sent_to_the_next_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The record of the first end comes to stand behind a signal and a request to end, both acknowledged, which the
    second life has not read."""
    held: list[tuple[Any, ...]] = []

    def hold(*append: Any) -> bool:
        held.append(append)
        return True

    monkeypatch.setattr(journal, "leave_append", hold)
    async with context() as ctx:
        for said in ("signal", "cancel"):
            held.clear()
            first = await listener.start(ctx, "x", id=said)
            await ctx.clock.advance(1)
            await first.signal("go", "early")
            assert await first.result() == "heard early"
            await ctx.clock.advance(1)
            second = await listener.start(ctx, "x", id=said, if_ended="again", delay_s=10)
            await (second.signal("go", "late") if said == "signal" else second.cancel("no more"))
            _, (data, *_), tags, when = held.pop(0)
            await ctx.logbook.append(data, tags, when=when)
            await ctx.clock.advance(20)
            state = await second.status()
            assert state.status == ("done" if said == "signal" else "cancelled"), state
        assert await listener.handle(ctx, "signal").result() == "heard late"


@pytest.mark.parametrize("late_us", [0, 1])
async def test_only_requests_until_its_end_were_for_a_killed_life(late_us: int) -> None:
    """Its closer says when that was, in a record that may come to stand behind requests to the next life."""
    async with context() as ctx:
        one = await listener.start(ctx, "x", id="1")
        await ctx.clock.advance(1)
        await one.kill()
        run, ended_us = one.invocation_id, (await one.status()).finished_us
        two = await listener.start(ctx, "x", id="1", if_ended="again", delay_s=100)
        for note in (CancelRequested("no more"), Signalled("go", encode_any("now", "it"))):
            await ctx.logbook.append(encode_note(note, ended_us + late_us), [inbox_tag(run)])
        end = encode_entry(Entry(0, uncounted(7), 0, 0, Ended(ended_us)))
        await ctx.logbook.append(end, [journal_tag(run)])
        await ctx.clock.advance(200)
        assert (await two.status()).status == ("cancelled" if late_us else "done")


class _Counting(Hooks):
    def __init__(self, *, replays: bool = False) -> None:
        self.replays = replays
        self.asked = 0

    def dies(self, moment: str, step: str) -> bool:
        self.asked += 1
        return False


def test_hooks_that_are_installed_together_all_take_hold() -> None:
    """So that crashes and forced replays can be tried at once, in either order."""
    outer, inner = _Counting(), _Counting(replays=True)
    with installed(outer), installed(inner):
        assert hooks().replays
        assert not hooks().dies("before", "act")
    assert (outer.asked, inner.asked) == (1, 1)
    assert not hooks().replays


async def test_every_crash_is_tried_under_forced_replay_as_without() -> None:
    """As the documentation combines them."""
    crashes = {"alone": 0, "replayed": 0}
    async for ctx in flows.every_crash():
        crashes["alone"] += 1
        await (await listener.start(ctx, "x", id="1")).signal("go", 1)
        assert await listener.handle(ctx, "1").result() == "heard 1"
    async for ctx in flows.every_crash():
        crashes["replayed"] += 1
        with flows.forced_replay():
            await (await listener.start(ctx, "x", id="1")).signal("go", 1)
            assert await listener.handle(ctx, "1").result() == "heard 1"
    assert crashes["replayed"] == crashes["alone"] > 1


@step
async def take(data: object) -> int:
    return len(bytes(data))  # type: ignore[call-overload]


@workflow
async def uncopied(size: int) -> int:
    return await take(memoryview(bytes(size)))


async def test_arguments_that_cannot_be_copied_fail_their_step() -> None:
    """The workflow does not stay as it is, with an error that only a log knows."""
    async with context() as ctx:
        with pytest.raises(FunctionFailed, match="take: TypeError: cannot pickle"):
            await (await uncopied.start(ctx, 3, id="1")).result()


async def test_a_mock_may_stand_for_a_step() -> None:
    """What has no code is run as a task."""
    async with context() as ctx:
        with flows.stub(act, AsyncMock(return_value="mocked")):
            one = await listener.start(ctx, "x", id="1")
            await one.signal("go", 1)
            assert await one.result() == "heard 1"
        with flows.stub(act, AsyncMock(side_effect=ValueError("refused"))):
            two = await listener.start(ctx, "x", id="2")
            with pytest.raises(FunctionFailed, match="StepFailed: act: ValueError: refused"):
                await two.result()


@workflow
async def approved(name: str) -> str:
    said = await flow.receive("approve")
    return await act(f"{name} by {said}")


@pytest.mark.parametrize("how", ["approved", "cancelled", "paused"])
async def test_a_life_whose_predecessors_call_is_forgotten_is_given_none_of_its_messages(how: str) -> None:
    """The call is forgotten at another time than the history, and the first run of a call does not look for one. It
    acted on what the earlier life was given, before the log told it of that one."""
    async with context() as ctx:
        one = await approved.start(ctx, "first", id="1")
        await ctx.clock.advance(1)
        if how == "approved":
            await one.signal("approve", "Ada")
            await one.result()
        elif how == "cancelled":
            await one.cancel("no more")
            with pytest.raises(FunctionFailed):
                await one.result()
        else:
            await one.pause()
            await ctx.clock.advance(1)
            await one.kill()
        await ctx.clock.advance(100)
        RAN.clear()
        del ctx._calls._logged[one.invocation_id]  # type: ignore[attr-defined]
        two = await approved.start(ctx, "second", id="1")
        await ctx.clock.advance(10)
        assert (await two.status()).status == "suspended"
        assert RAN == []
        await two.signal("approve", "Bob")
        assert await two.result() == "second by Bob"
    assert RAN == ["second by Bob"]


@pytest.mark.parametrize("what", ["cancel", "pause"])
async def test_a_request_that_comes_after_the_end_is_not_for_the_next_life(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workflow ran when it was looked at, and ended before the request came. It is for the life that ran."""
    async with context() as ctx:
        one = await listener.start(ctx, "x", id="1")
        await ctx.clock.advance(1)
        look, again = one._state, []

        async def then_it_ends(wait_s: float = 0.0) -> InvocationState:
            found = await look(wait_s)
            if not again:
                again.append("")
                await listener.handle(ctx, "1").signal("go")
                await ctx.clock.advance(1)
            return found

        monkeypatch.setattr(one, "_state", then_it_ends)
        await getattr(one, what)("no more")
        await ctx.clock.advance(1)
        two = await listener.start(ctx, "x", id="1", if_ended="again")
        await ctx.clock.advance(5)
        assert (await two.status()).status == "suspended"
        await two.signal("go", "late")
        assert await two.result() == "heard late"


async def test_an_execution_whose_messages_are_not_for_it_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was delayed reads its inbox first. Where that is an earlier life's, its body began beside the next
    execution, after all of it was closed, and it read the inbox as long as the worker lived."""
    begun = []
    begin = Execution._begin

    def counted(execution: Execution) -> None:
        begun.append(execution.has_ended)
        begin(execution)

    monkeypatch.setattr(Execution, "_begin", counted)
    async with context() as ctx:
        one = await approved.start(ctx, "first", id="1")
        await one.signal("approve", "Ada")
        await one.result()
        del ctx._calls._logged[one.invocation_id]  # type: ignore[attr-defined]
        begun.clear()
        two = await approved.start(ctx, "second", id="1", delay_s=10)
        await ctx.clock.advance(20)
        assert begun == [False]
        await two.signal("approve", "Bob")
        assert await two.result() == "second by Bob"
