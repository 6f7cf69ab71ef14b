"""Payloads that are about as large as a call may have."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

import boki.testing
from boki import TooLarge
from boki.extending import CallsById, Payload
from boki.libs.bokiflow import flow, step, workflow
from boki.libs.bokiflow.history import History
from boki.libs.bokiflow.records import Continued
from boki.libs.bokiflow.replaying import most_payload_bytes
from boki.log.limits import Limits

RECORD_BYTES = 1 << 16
SIZES = range(RECORD_BYTES - 4_096, 0, -64)
DONE: list[int] = []


@step
async def counts(text: str) -> int:
    return len(text)


@workflow
async def grows(text: str) -> int:
    for size in SIZES if not text else ():
        with suppress(TooLarge):
            flow.continue_as_new("x" * size)
    return await counts(text)


async def test_a_workflow_that_has_continued_with_as_much_as_it_may_can_be_forked() -> None:
    """The fork is a start with that payload, and was refused when all had been copied."""
    async with boki.testing.context(limits=Limits(record_bytes=RECORD_BYTES)) as ctx:
        handle = await grows.start(ctx, "")
        size = await handle.result()
        assert size > RECORD_BYTES // 2
        assert await (await handle.fork(0, id="f" * 100)).result() == size


async def test_what_was_handed_over_once_may_be_again(boki_context: boki.testing.Context) -> None:
    """An earlier version took more."""
    history, most = History(), most_payload_bytes(boki_context.logbook)
    for size, grown in ((most, 0), (most + 1, 16_384)):
        history.continued = Continued(Payload("json", b"x" * size), 0, 1)
        assert most_payload_bytes(boki_context.logbook, history) == most + grown


@workflow
async def report(text: str) -> None:
    DONE.append(len(text))


async def test_what_a_schedule_takes_its_workflows_take() -> None:
    """Their calls are larger than the one of the schedule: its attendant tried it every two seconds, forever."""
    DONE.clear()
    async with boki.testing.context(limits=Limits(record_bytes=RECORD_BYTES)) as ctx:
        for size in SIZES:
            try:
                await report.schedule(ctx, "x" * size, id=f"{size:🎫>120}", every_s=60)
            except TooLarge:
                continue
            break
        await ctx.clock.advance(61)
        assert [size] == DONE


async def test_a_workflow_that_is_too_large_for_its_schedule_is_left_out(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version has made the schedule. Each tick is tried once, and the log says that it has failed."""
    DONE.clear()
    start, asked = CallsById.start, []

    async def refuses(self: CallsById, call_id: str, *rest: Any, **options: Any) -> Any:
        if options.get("start", "").startswith("schedule "):
            asked.append(call_id)
            raise TooLarge("the call has too many bytes")
        return await start(self, call_id, *rest, **options)

    monkeypatch.setattr(CallsById, "start", refuses)
    schedule = await report.schedule(boki_context, "", id="m", every_s=60)
    await boki_context.clock.advance(130)
    assert (len(asked), len(set(asked)), DONE) == (2, 2, [])
    assert (await schedule.state()).running == ()
