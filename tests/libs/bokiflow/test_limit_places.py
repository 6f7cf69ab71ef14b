"""Places under a limit are free again after each end, also of calls whose starts knew nothing of the limit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import boki.testing
from boki.extending import CallsById
from boki.libs.bokiflow import Limit, attending, flow, workflow
from boki.libs.bokiflow.gates.marks import gate_id_of
from boki.libs.bokiflow.gates.records import Admission, Asked, GateKept, GateNote, GateRecord, gate_tag
from boki.libs.bokiflow.gates.state import Gate
from boki.libs.bokiflow.records import CODEC

RAN: list[str] = []
ONE = Limit(concurrency=1)


@pytest.fixture(autouse=True)
def forget() -> None:
    RAN.clear()


@workflow(limit=ONE)
async def alone(seconds: float) -> str:
    await flow.sleep(seconds)
    RAN.append(flow.id)
    return flow.id


@workflow(book="orders", limit=ONE)
async def elsewhere(name: str) -> str:
    await flow.sleep(10)
    RAN.append(name)
    return name


@workflow
async def parent(is_named: bool) -> list[str]:
    target: Any = "elsewhere" if is_named else elsewhere
    return list(await asyncio.gather(*(flow.call(target, name) for name in ("a", "b", "c"))))


async def test_later_calls_of_a_limited_workflow_follow_each_other(boki_context: boki.testing.Context) -> None:
    """Their ends name no attendant, which waited for them forever."""
    ctx = boki_context
    calls = [await ctx.invoke_later(alone, 10) for _ in range(3)]
    await ctx.clock.advance(31)
    assert sorted(RAN) == sorted(calls)


async def test_a_later_call_that_is_killed_gives_its_place_back(boki_context: boki.testing.Context) -> None:
    """Its body can tell nobody."""
    ctx = boki_context
    call = await ctx.invoke_later(alone, 10_000)
    await ctx.clock.advance(1)
    handle = await alone.start(ctx, 1, id="next")
    await ctx.clock.advance(1)
    await CallsById(ctx).cancel(call)
    await ctx.clock.advance(2)
    assert (await handle.status()).status == "done"


@pytest.mark.parametrize("is_named", [False, True])
async def test_children_in_a_logbook_of_their_own_follow_each_other(is_named: bool) -> None:
    """A parent that calls one by its name takes it for one of its own LogBook."""
    async with boki.testing.context(functions=[elsewhere, parent]) as ctx:
        handle = await parent.start(ctx, is_named, book="parents")
        await ctx.clock.advance(31)
        assert (await handle.status()).status == "done"
        assert sorted(RAN) == ["a", "b", "c"]


async def test_more_of_them_than_a_suspended_call_has_tags(boki_context: boki.testing.Context) -> None:
    """The attendant looks at the others once in a while."""

    @workflow(limit=Limit(concurrency=20))
    async def twenty(seconds: float) -> None:
        await flow.sleep(seconds)

    ctx = boki_context
    for number in range(20):
        await ctx.invoke_later(twenty, 10_000 if number < 19 else 50)
        await ctx.clock.advance(1)
    handle = await twenty.start(ctx, 1)
    await ctx.clock.advance(65)
    assert (await handle.status()).status == "done"


async def test_a_call_that_nobody_knows_any_more_has_ended(boki_context: boki.testing.Context) -> None:
    """Calls are forgotten a day after their end; one that is unknown soon after it was let begin may be on its way."""
    ctx = boki_context
    gate_id = gate_id_of(alone.name, ctx.logbook.name)
    now_us = ctx.clock.now_us
    for note in (Asked("gone:0", "gone", "", 0, ONE), Admission(now_us, ("gone:0",))):
        await ctx.logbook.append(CODEC.encode(GateRecord(note)), [gate_tag(gate_id)])
    first = await alone.start(ctx, 1, id="first")
    await ctx.clock.advance(3_600)
    assert (await first.status()).status == "suspended"
    await ctx.clock.advance(24 * 3_600)
    await alone.start(ctx, 1, id="second")
    await ctx.clock.advance(10)
    assert RAN == ["first", "second"]


async def test_what_asks_while_the_state_is_saved_is_decided_on(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The save was refused, what had come was folded, and nothing woke the attendant for it."""
    ctx = boki_context
    append = attending.Attending._append
    late: list[Any] = []

    async def _append(self: attending.Attending[Any, Any], note: Any) -> bool:
        if isinstance(note, GateKept) and RAN and not late:  # no end comes that would wake the attendant
            late.append(await alone.start(ctx, 1, id="late"))
            tag = gate_tag(gate_id_of(alone.name, ctx.logbook.name))
            asked = (await ctx.logbook.check_tail(tag)).seqnum  # type: ignore[union-attr]
            await ctx.logbook.read_next(tag, min_seqnum=asked + 1, wait_s=1)
        return await append(self, note)

    monkeypatch.setattr(attending, "_KEPT_EVERY", 1)
    monkeypatch.setattr(attending.Attending, "_append", _append)
    await (await alone.start(ctx, 1, id="one")).result()
    await ctx.clock.advance(60)
    assert (await late[0].status()).status == "done"


def filled(limit: Limit, running: int, waiting: int) -> tuple[Gate, int]:
    """A gate where that many run and that many ask; and the seqnum of its last record."""
    gate, seqnum = Gate(), 0

    def apply(note: GateNote) -> None:
        nonlocal seqnum
        seqnum += 1
        gate.apply(seqnum, seqnum, note)

    for number in range(running):
        apply(Asked(f"r{number}", f"call r{number}", "", 0, limit))
        apply(Admission(seqnum, (f"r{number}",)))
    for number in range(waiting):
        apply(Asked(f"w{number}", f"call w{number}", "", 0, limit))
    return gate, seqnum


def test_many_are_cancelled_by_several_decisions() -> None:
    """A decision names no more workflows than its record has tags: one that did was refused again and again."""
    gate, seqnum = filled(Limit(concurrency=20, when_full="cancel_running"), 20, 20)
    cancelled: list[str] = []
    while (decided := gate.decide(10_000_000)) is not None:
        assert len(gate.calls_of(decided)) <= 12
        cancelled += [request for request, _ in decided.cancelled]
        seqnum += 1
        gate.apply(seqnum, 10_000_000, decided)
    assert cancelled == [f"r{number}" for number in range(20)]


def test_what_is_superseded_needs_no_place() -> None:
    """Of three starts that are debounced one begins, so one of the two that run is cancelled."""
    gate, _ = filled(Limit(concurrency=2, when_full="cancel_running", debounce_s=1.0), 2, 3)
    decided = gate.decide(10_000_000)
    assert decided is not None
    assert [request for request, _ in decided.refused] == ["w0", "w1"]
    assert [request for request, _ in decided.cancelled] == ["r0"]
