"""Schedules that are deleted, replaced and made again, and those who did it and were lost."""

from __future__ import annotations

import pytest

import boki.testing
from boki.libs.bokiflow import attending, flow, workflow
from boki.libs.bokiflow.refusals import NoSuchSchedule
from boki.libs.bokiflow.schedules.handle import Schedule
from boki.libs.bokiflow.schedules.spec import spec_of
from boki.libs.bokiflow.schedules.state import Defined, Fold
from tests.gateway.fake_backend import FakeBackend, run, serving

RAN: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    RAN.clear()


@workflow
async def report(seconds: float) -> str:
    if flow.id not in RAN:
        RAN.append(flow.id)
    await flow.sleep(seconds)
    return flow.id


async def lost(_: Schedule) -> None:
    """Whoever asked for it is lost before the attendant is ended."""


async def test_a_deleted_schedule_stays_deleted_when_its_state_is_saved(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole state did not say so: every 64th record brought a deleted schedule back."""
    ctx = boki_context
    monkeypatch.setattr(attending, "_KEPT_EVERY", 1)
    schedule = await report.schedule(ctx, 1, id="m", every_s=60)
    await ctx.clock.advance(61)
    with monkeypatch.context() as patch:
        patch.setattr(Schedule, "_end_attendant", lost)
        await schedule.delete()
    await ctx.clock.advance(600)
    assert len(RAN) == 1
    with pytest.raises(NoSuchSchedule):
        await schedule.state()


async def test_a_delete_that_was_cut_off_can_be_ended(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attendant was suspended forever: nobody could end it but who made the schedule again."""
    ctx = boki_context
    schedule = await report.schedule(ctx, 1, id="m", every_s=60)
    with monkeypatch.context() as patch:
        patch.setattr(Schedule, "_end_attendant", lost)
        await schedule.delete()
    assert await schedule._attendant() is not None
    with pytest.raises(NoSuchSchedule):
        await schedule.delete()
    assert await schedule._attendant() is None


def test_a_list_leaves_out_what_is_being_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of all schedules was refused, for as long as there was one such."""

    async def scenario() -> None:
        backend = FakeBackend()
        backend.functions["hang"] = backend.functions["hang"].used_by("bokiflow", {})
        async with serving(backend) as (_, _, http):
            for name in "ab":
                async with http.post(f"/flow-schedule/hang/{name}", json={"every_s": 3_600}) as response:
                    assert response.status == 200, await response.text()
            await backend.until(lambda: len(backend.hanging) == 2)
            with monkeypatch.context() as patch:
                patch.setattr(Schedule, "_end_attendant", lost)
                async with http.post("/flow-schedule/hang/a/delete") as response:
                    assert response.status == 200, await response.text()
            async with http.get("/flow-schedule") as response:
                assert [one["id"] for one in (await response.json())["schedules"]] == ["b"]

    run(scenario())


async def test_a_replacement_begins_when_it_is_made(boki_context: boki.testing.Context) -> None:
    """Ticks of the new times that had passed before were taken for missed ones, and made up for."""
    ctx = boki_context
    await report.schedule(ctx, 1, id="m", every_s=86_400)
    await ctx.clock.advance(600)
    await report.schedule(ctx, 1, id="m", every_s=60, overlap="allow", if_exists="replace")
    await ctx.clock.advance(60)
    assert RAN == ["m@2020-09-13T12:37:00Z"]


def test_a_replacement_with_the_same_times_makes_up_for_what_was_missed() -> None:
    """As at a deployment after a downtime, which says the same again."""
    fold = Fold("m")
    fold.apply(1, 0, Defined(spec_of(every_s=60)))
    fold.apply(2, 90_000_000, Defined(spec_of(every_s=60, overlap="allow")))
    assert fold.cursor_us == 0
    fold.apply(3, 90_000_000, Defined(spec_of(every_s=30, overlap="allow")))
    assert fold.cursor_us == 90_000_000
