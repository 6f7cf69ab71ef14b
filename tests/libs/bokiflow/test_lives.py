"""Workflows that are started again under their id: what was asked of the life before is not asked of the new one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import boki.testing
from boki import BokiError
from boki.extending import Payload
from boki.libs.bokiflow import flow, step, workflow
from boki.libs.bokiflow import run as runs
from boki.libs.bokiflow.history import History
from boki.libs.bokiflow.records import Began, Continued, Ended, Entry, encode_entry
from tests.libs.bokiflow.test_rest import passes


@step(pure=True)
async def square(n: int) -> int:
    return n * n


@workflow
async def waits(n: int) -> str:
    """Its last record, of a step that nothing waits for, was made before it is cancelled."""
    await square(n)
    await flow.receive("go")
    return "went"


@workflow
async def stubborn(n: int) -> str:
    """Does not end when it is cancelled, and has continued as new before."""
    if n < 3:
        flow.continue_as_new(n + 1)
    said = "not asked"
    try:
        await flow.receive("go")
    except asyncio.CancelledError:
        said = "asked to end"
    await flow.receive("go on")
    return said


async def test_a_request_that_ended_a_life_does_not_end_the_next(boki_context: boki.testing.Context) -> None:
    """The end of the life before says what it was given, if nothing else was to be recorded."""
    ctx = boki_context
    for _ in range(2):
        handle = await waits.start(ctx, 2, id="w", if_ended="again")
        await handle.cancel("enough")
        with pytest.raises(BokiError, match="enough"):
            await handle.result()
    handle = await waits.start(ctx, 2, id="w", if_ended="again")
    await handle.signal("go")
    assert await handle.result() == "went"


async def test_a_request_to_one_that_was_killed_then_is_not_for_the_next(boki_context: boki.testing.Context) -> None:
    """It stands in front of the last record of the life before. That stays so when the new one continues as new."""
    ctx = boki_context
    handle = await stubborn.start(ctx, 0, id="s")
    await ctx.clock.advance(5)
    await handle.cancel("enough")
    await ctx.clock.advance(5)
    await handle.kill()
    await ctx.clock.advance(10)
    handle = await stubborn.start(ctx, 0, id="s", if_ended="again")
    await ctx.clock.advance(5)
    await handle.signal("go")
    await handle.signal("go on")
    assert await handle.result() == "not asked"


def test_what_an_earlier_life_was_asked_is_forgotten() -> None:
    """Up to its last record, whether that counts or not, and alike before and behind the new life's first one."""
    history = History(2)
    history.fold(encode_entry(Entry(1, 0, 4, 1, Began(), 1, 1)), 10)
    history.fold(encode_entry(Entry(0, -1, 0, 0, Ended())), 30)
    history.settle()
    assert (history.cursor, history.forgotten, history.has_begun) == (4, [(4, 30, 0)], False)
    history.fold(encode_entry(Entry(2, 2, 0, 5, Began(), 5, 2)), 40)
    history.settle()
    assert (history.cursor, history.forgotten, history.has_begun) == (4, [(4, 30, 0)], True)


def test_ends_of_earlier_versions_hide_all_that_stands_in_front_of_them() -> None:
    """As they did for what has run since."""
    for until_us, cursor in ((0, 20), (7, 4)):
        history = History(2)
        history.fold(encode_entry(Entry(1, 0, 4, 1, Began(), 1, 1)), 10)
        history.fold(encode_entry(Entry(1, 0, 4, 7, Ended(until_us), 0, 1)), 20)
        history.settle()
        assert (history.cursor, history.forgotten) == (cursor, [] if not until_us else [(4, 20, 7)])


@workflow
async def hurries(n: int) -> list[int]:
    """Takes a signal beside one that it leaves, then continues as new twice, without a look at its messages."""
    if n == 0:
        await flow.receive("taken")
    if n < 2:
        flow.continue_as_new(n + 1)
    await flow.receive("left")
    found: list[int] = []
    flow.on_signal("taken", found.append)
    await flow.receive("end")
    return found


async def test_what_was_taken_stays_taken_over_two_continuations(boki_context: boki.testing.Context) -> None:
    """The second one has read no messages, and passes on which of them were taken."""
    ctx = boki_context
    handle = hurries.handle(ctx, "h")
    for name in ("left", "taken"):
        await handle.signal(name, 7)
    await hurries.start(ctx, 0, id="h")
    await ctx.clock.advance(5)
    await handle.signal("end")
    assert await handle.result() == []


@workflow
async def with_child() -> str:
    await flow.start(waiting_child)
    await flow.receive("go")
    return "ended"


@workflow
async def waiting_child() -> None:
    await flow.sleep(1_000)


async def test_a_request_to_a_life_that_closes_its_children_is_no_request_to_the_next(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To close children takes a while. What was sent meanwhile was sent to the life that ends."""
    close = runs._clean_up
    is_slow = [True]

    async def close_slowly(ctx: Any, workflow: Any, body: Any) -> None:
        if workflow.name == "with_child" and is_slow:
            is_slow.clear()
            await passes(ctx, 1)
            await with_child.handle(boki_context, "a").cancel("for the first life")
            await passes(ctx, 1)
        await close(ctx, workflow, body)

    monkeypatch.setattr(runs, "_clean_up", close_slowly)
    for _ in range(2):
        handle = await with_child.start(boki_context, id="a", if_ended="again")
        await boki_context.clock.advance(3)
        await handle.signal("go")
        assert await handle.result() == "ended"


@workflow
async def one_round(n: int) -> list[int]:
    """Takes a signal beside one that it leaves, continues as new, and ends; another life tells what it is given."""
    found: list[int] = []
    if n < 2:
        await flow.receive("taken")
        flow.continue_as_new(n + 2)
    if n == 3:
        flow.on_signal("taken", found.append)
        await flow.receive("end")
    return found


async def test_what_a_life_took_beside_a_message_that_it_left_is_not_for_the_next(
    boki_context: boki.testing.Context,
) -> None:
    """The life before had continued as new, so its journal says no more than which messages it took."""
    ctx = boki_context
    handle = one_round.handle(ctx, "h")
    for name in ("left", "taken"):
        await handle.signal(name, 7)
    assert await (await one_round.start(ctx, 0, id="h")).result() == []
    await one_round.start(ctx, 3, id="h", if_ended="again")
    await ctx.clock.advance(5)
    await handle.signal("taken", 8)
    await handle.signal("end")
    assert await handle.result() == [8]


def test_what_an_earlier_life_has_taken_is_known_to_the_next() -> None:
    """As far as it stands behind what that one begins to read from, also once it has a record of its own."""
    history = History(2)
    history.fold(encode_entry(Entry(1, 3, 9, 1, Continued(Payload("bytes", b""), 3, 1, (12, 14)), 1, 1)), 20)
    history.fold(encode_entry(Entry(1, 3, 12, 7, Ended(7), 0, 1)), 21)
    history.settle()
    assert (history.cursor, 14 in history.taken) == (12, True)
    history.fold(encode_entry(Entry(2, 5, 0, 9, Began(), 9, 2)), 30)
    history.settle()
    assert (history.cursor, 14 in history.taken) == (12, True)
