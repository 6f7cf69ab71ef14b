"""Workflows of schedules that make room for others."""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec
import pytest

import boki.testing
from boki.libs.bokiflow import flow, workflow
from boki.libs.bokiflow.schedules.spec import spec_of
from boki.libs.bokiflow.schedules.state import CODEC, Act, Decided, Defined, Fold

ENDED: list[str] = []


@workflow
async def tidy(seconds: float) -> None:
    """Takes ten minutes to end when it is asked to."""
    try:
        await flow.sleep(seconds)
    except asyncio.CancelledError:
        ENDED.append(flow.id)
        await flow.sleep(600)
        raise


async def test_what_is_allowed_beside_one_that_ends_is_not_ended(boki_context: boki.testing.Context) -> None:
    """The next run of the attendant ended all that ran."""
    ctx = boki_context
    ENDED.clear()
    schedule = await tidy.schedule(ctx, 10_000, id="m", every_s=3_600, overlap="cancel")
    await ctx.clock.advance(95 * 60)
    first = (await schedule.state()).running[0]
    assert dict.fromkeys(ENDED) == {first: None}
    for key in ("a", "b"):
        await schedule.trigger(key=key, overlap="allow")
        await ctx.clock.advance(30)
    assert dict.fromkeys(ENDED) == {first: None}
    assert set((await schedule.state()).running) == {first, "m@now-a", "m@now-b"}


def test_what_is_being_ended_is_saved() -> None:
    """An attendant that begins with the saved state ends these, and no others; of an earlier version all that run."""
    fold, spec = Fold("m"), spec_of(every_s=60, overlap="cancel")
    fold.apply(1, 0, Defined(spec))
    fold.apply(2, 0, Decided(0, 1, (Act("a", 1, "started"),)))
    fold.apply(3, 0, Decided(0, 2, (Act("b", 2, "queued"),), closed="cancel"))
    fold.apply(4, 0, Decided(0, 3, (Act("c", 3, "started"),)))
    assert (fold.closing, fold.leaving) == ("cancel", {"a"})
    for kept, leaving in ((fold.kept(), {"a"}), (msgspec.structs.replace(fold.kept(), leaving=()), {"a", "c"})):
        again = Fold("m")
        again.apply(4, 0, kept)
        assert (again.closing, again.leaving) == ("cancel", leaving)
    fold.apply(5, 0, Decided(0, 4, ended=("a",)))
    assert (fold.closing, fold.leaving) == ("", set())


async def test_one_that_has_ended_is_not_asked_to(boki_context: boki.testing.Context) -> None:
    """The request stayed in its inbox, and cancelled what somebody started under its id later."""
    ctx = boki_context
    schedule = await tidy.schedule(ctx, 1, id="m", cron="0 0 1 1 *", overlap="cancel")
    await (await tidy.start(ctx, 1, id="m@k")).result()
    for decided in (Decided(0, 1, (Act("k", 1, "started"),)), Decided(0, 2, closed="cancel")):
        await ctx.logbook.append(CODEC.encode(decided), [schedule._tag])
    await ctx.clock.advance(5)
    assert (await schedule.state()).running == ()
    again = await tidy.start(ctx, 1, id="m@k", if_ended="again")
    await again.result()


@pytest.mark.parametrize("overlap", ["cancel", "kill"])
async def test_a_workflow_that_somebody_began_under_its_id_is_left_alone(
    boki_context: boki.testing.Context, overlap: Literal["cancel", "kill"]
) -> None:
    """The one of the tick had ended while the attendant was lost, and the next one was ended in its place."""
    ctx = boki_context
    schedule = await tidy.schedule(ctx, 1, id="m", cron="0 0 1 1 *", overlap=overlap)
    later = await tidy.start(ctx, 1_000, id="m@k")
    for decided in (Decided(0, 1, (Act("k", 1, "started"),)), Decided(0, 2, closed=overlap)):
        await ctx.logbook.append(CODEC.encode(decided), [schedule._tag])
    await ctx.clock.advance(5)
    assert (await schedule.state()).running == ()
    assert (await later.status()).status == "suspended"
    await later.result()


@pytest.mark.parametrize("overlap", ["cancel", "kill"])
async def test_one_that_was_rewound_is_ended_as_well(
    boki_context: boki.testing.Context, overlap: Literal["cancel", "kill"]
) -> None:
    """It still is the workflow of its tick, in another life."""
    ctx = boki_context
    schedule = await tidy.schedule(ctx, 10_000, id="m", cron="0 0 1 1 *", overlap=overlap)
    await schedule.trigger(key="a")
    await ctx.clock.advance(5)
    first = tidy.handle(ctx, "m@now-a")
    await first.pause()
    await ctx.clock.advance(5)
    await first.rewind(0)
    await ctx.clock.advance(5)
    assert (await first.status()).status == "suspended"
    await schedule.trigger(key="b")
    await ctx.clock.advance(1_000)
    assert (await first.status()).status == "cancelled"
    assert (await schedule.state()).running == ("m@now-b",)
