"""What leaves a workflow is certain before: time, chance and reads in the answers of updates, and in steps."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

import boki.testing
from boki.extending import Function, decode_any, encode_any
from boki.libs.bokiflow import Workflow, flow, step, workflow
from boki.libs.bokiflow.journal import JournalWriter
from boki.libs.bokiflow.records import Answered, Signalled, Updated, encode_note, inbox_tag, note_of
from tests.libs.bokiflow.crashes import RUN_ID, in_run

PUT: list[str] = []


@step(pure=True)
async def square(n: int) -> int:
    return n * n


@step(idempotent=True)
async def put(value: str) -> None:
    PUT.append(value)


@workflow
async def draws(_: int) -> str:
    drawn = f"{flow.uuid()} {flow.random().random()} {flow.now()}"
    flow.on_update("ask", lambda _: drawn)
    await flow.receive("end")
    return drawn


@workflow
async def reads(_: int) -> int:
    async def read(_: None) -> int:
        found: int = await flow.store.read("room", default=3)
        return found

    flow.on_update("ask", read)
    await flow.receive("end")
    return 0


@workflow
async def puts(_: int) -> None:
    await square(2)
    await put(str(flow.uuid()))


async def answers(ctx: boki.testing.Context) -> list[Any]:
    """What updates were answered with."""
    notes = [note_of(record.data) for record in (await ctx.logbook.read(inbox_tag(RUN_ID))).records]
    found = [note.result.value for note in notes if isinstance(note, Answered)]
    return [decode_any(value, "an answer") for value in found if value is not None]


async def say(ctx: boki.testing.Context, note: Signalled | Updated) -> None:
    """Send a message."""
    await ctx.logbook.append(encode_note(note), [inbox_tag(RUN_ID)])


async def end(task: asyncio.Task[Any]) -> None:
    """The process is lost."""
    task.cancel()
    await asyncio.wait([task])


def begin(ctx: boki.testing.Context, code: Workflow[int, Any], run: int) -> asyncio.Task[Any]:
    """A process that runs it."""
    return asyncio.ensure_future(Function.of(code).run(in_run(ctx, 1, run), 1))


async def test_chance_and_time_in_an_answer_are_those_after_a_crash(boki_context: boki.testing.Context) -> None:
    """Nothing else was recorded before the answer. The run after the crash begins later, and draws the same."""
    ctx = boki_context
    await say(ctx, Updated("ask", encode_any(None, "nothing"), "u"))
    first = begin(ctx, draws, 1)
    await ctx.clock.advance(0.2)
    assert len(await answers(ctx)) == 1
    await end(first)
    await ctx.clock.advance(60)
    await say(ctx, Signalled("end", encode_any(None, "nothing")))
    assert [await begin(ctx, draws, 2)] == await answers(ctx)


@pytest.mark.parametrize("code", [draws, reads])
async def test_an_answer_waits_for_what_makes_it_certain(
    boki_context: boki.testing.Context, code: Workflow[int, Any]
) -> None:
    """As long as the log does not take the record that it depends on, there is no answer."""
    ctx = boki_context
    await say(ctx, Updated("ask", encode_any(None, "nothing"), "u"))
    with patch.object(JournalWriter, "_append", lambda *_: None):
        first = begin(ctx, code, 1)
        await ctx.clock.advance(0.2)
        assert await answers(ctx) == []
    await end(first)
    second = begin(ctx, code, 2)
    await ctx.clock.advance(0.2)
    assert len(await answers(ctx)) == 1
    await end(second)


async def test_a_step_waits_for_the_start_time_that_a_pure_step_has_recorded(
    boki_context: boki.testing.Context,
) -> None:
    """The record of a pure step says when the workflow began, and nothing waits for that one as such."""
    PUT.clear()
    with patch.object(JournalWriter, "_append", lambda *_: None):
        first = begin(boki_context, puts, 1)
        await boki_context.clock.advance(0.2)
        assert PUT == []
    await end(first)
    await begin(boki_context, puts, 2)
    assert len(PUT) == 1
