"""A signal that nobody takes, of a workflow that continues as new again and again: what it costs, and that it is kept.

Each round read the inbox from it on, and its record named all that had been taken since: both grew with each message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import pytest

import boki.testing
from boki import DeadlineExceeded, FunctionFailed, Record, TooLarge
from boki.libs.bokiflow import Handle, execution, flow, step, workflow
from boki.libs.bokiflow.face.looking import look
from boki.libs.bokiflow.history import History
from boki.libs.bokiflow.records import inbox_tag, journal_tag
from boki.libs.bokiflow.replaying import read_history
from boki.testing import flows

COUNT = 12


@step
async def noted(number: int) -> int:
    return number


@workflow
async def turning(got: list[int]) -> list[Any]:
    """It takes two at a time; what it was sent first, it asks for last."""
    for _ in range(2):
        got.append(await noted(await flow.receive("x")))
    if len(got) < COUNT:
        flow.continue_as_new(got)
    return [*got, await flow.receive("stray"), await flow.receive("stray")]


async def _signalled(ctx: boki.testing.Context, handle: Handle[Any], numbers: Sequence[int]) -> None:
    for number in numbers:
        await handle.signal("x", number)
        await ctx.clock.advance(1)


async def _inbox(ctx: boki.testing.Context, handle: Handle[Any]) -> list[Record]:
    return list((await ctx.logbook.read(inbox_tag(handle.invocation_id), limit=1_000)).records)


async def _history(ctx: boki.testing.Context, handle: Handle[Any]) -> History:
    return await read_history(ctx.logbook, journal_tag(handle.invocation_id))


async def test_it_costs_the_same_in_each_round(boki_context: boki.testing.Context) -> None:
    """The inbox is trimmed up to what was read, and the record names the signals that were left, and no others."""
    handle = turning.handle(boki_context, "t")
    await handle.signal("stray", "first")
    await turning.start(boki_context, [], id="t")
    await _signalled(boki_context, handle, range(3))
    await handle.signal("stray", "second")
    for number in range(3, COUNT - 2, 2):
        await _signalled(boki_context, handle, range(number, number + 2))
        history = await _history(boki_context, handle)
        assert history.continued is not None
        assert len(history.continued.kept) + len(history.continued.taken) <= 2
        assert len(await _inbox(boki_context, handle)) <= 3
        seen = await look(boki_context.logbook, handle.invocation_id)
        assert [span.name for span in seen.spans].count("signal stray") == 2, "it is still shown as one that waits"
    await _signalled(boki_context, handle, range(COUNT - 1, COUNT))
    assert await handle.result() == [*range(COUNT), "first", "second"]


async def test_it_is_kept_whatever_crashes() -> None:
    """Before and after each record: each signal once, in the order sent."""
    async for ctx in flows.every_crash():
        handle = turning.handle(ctx, "t")
        await handle.signal("stray", "first")
        await turning.start(ctx, [], id="t")
        await _signalled(ctx, handle, range(COUNT - 1))
        await handle.signal("stray", "second")
        await handle.signal("x", COUNT - 1)
        assert await handle.result() == [*range(COUNT), "first", "second"]


@step
async def dated(at: str) -> str:
    return at


@workflow
async def dating(rounds: int) -> str:
    for _ in range(3):
        await flow.receive("x")
    if rounds:
        flow.continue_as_new(rounds - 1)
    found = await dated(flow.now().isoformat())
    return found + await flow.receive("stray")


async def test_a_fork_has_the_time_of_what_it_keeps(boki_context: boki.testing.Context) -> None:
    """The copy of a signal that went with a record had the time of the fork, in front of all that the fork keeps."""
    ctx = boki_context
    handle = dating.handle(ctx, "t")
    await handle.signal("stray", "!")
    await dating.start(ctx, 1, id="t")
    await _signalled(ctx, handle, range(6))
    wanted = await handle.result()
    await ctx.clock.advance(3_600)
    assert await (await handle.fork(id="u")).result() == wanted
    assert await (await handle.fork(1, id="v")).result() == wanted


LARGE = "x" * 70_000


@workflow
async def heaping(state: tuple[int, int]) -> int:
    rounds, total = state
    for _ in range(3):
        total += await flow.receive("x")
    return total if rounds == 1 else flow.continue_as_new((rounds - 1, total))


@pytest.mark.parametrize("what", ["many signals", "a promise"])
async def test_the_record_of_a_continuation_does_not_grow(boki_context: boki.testing.Context, what: str) -> None:
    """Signals and results of promises that nobody takes go with it, and nothing else is named."""
    ctx, rounds = boki_context, 6
    handle = heaping.handle(ctx, "t")
    if what == "a promise":
        await handle.resolve("stray", 1)
    for number in range(5 if what == "many signals" else 0):
        await handle.signal("stray", number)
    await heaping.start(ctx, (rounds, 0), id="t")
    for number in range(3 * (rounds - 1)):
        await _signalled(ctx, handle, [number])
        continued = (await _history(ctx, handle)).continued
        if continued is not None:
            assert len(continued.kept) + len(continued.taken) <= 8
            assert len(await _inbox(ctx, handle)) <= 3 or number < 6
    await _signalled(ctx, handle, range(3 * (rounds - 1), 3 * rounds))
    assert await handle.result() == sum(range(3 * rounds))


@workflow
async def pausing(rounds: int) -> list[int]:
    """One round takes what has come, the next one hears nothing new, and the last one asks for more."""
    if rounds == 2:
        for _ in range(3):
            await flow.receive("x")
    if rounds:
        await flow.sleep(1)
        flow.continue_as_new(rounds - 1)
    got: list[int] = []
    flow.on_signal("x", got.append)
    await flow.sleep(5)
    return got


@pytest.mark.parametrize("what", ["an update", "a large signal", "a signal"])
async def test_a_round_that_hears_nothing_gives_nothing_back(boki_context: boki.testing.Context, what: str) -> None:
    """What one round has taken no later one is given, whatever is left beside it."""
    ctx, handle = boki_context, pausing.handle(boki_context, "t")
    if what == "an update":
        with pytest.raises(DeadlineExceeded):
            await handle.update("stray", 1, wait_s=0.001)
    else:
        await handle.signal("stray", LARGE if what == "a large signal" else "")
    await _signalled(ctx, handle, range(3))
    await pausing.start(ctx, 2, id="t")
    await ctx.clock.advance(20)
    assert await handle.result() == []


@workflow
async def sleeping() -> None:
    await flow.sleep(86_400)


@workflow
async def parent(_: int) -> None:
    await flow.start(sleeping, id="kid", parent_close="kill")
    flow.continue_as_new(1)


async def test_a_continuation_that_cannot_be_recorded_ends_the_workflow_like_an_error(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its children are closed."""

    async def refuse(*_: object) -> NoReturn:
        raise TooLarge("the record is too large")

    monkeypatch.setattr(execution, "record_continuation", refuse)
    handle = await parent.start(boki_context, 0, id="p")
    with pytest.raises(FunctionFailed, match="TooLarge"):
        await handle.result()
    await boki_context.clock.advance(60)
    assert (await sleeping.handle(boki_context, "kid").status()).status == "cancelled"


async def test_a_fork_and_a_rewind_have_it(boki_context: boki.testing.Context) -> None:
    """It is no longer in the inbox, but in the journal, which a fork has a copy of and a rewind continues."""
    ctx = boki_context
    handle = turning.handle(ctx, "t")
    for text in ("first", "second"):
        await handle.signal("stray", text)
    await turning.start(ctx, [], id="t")
    await _signalled(ctx, handle, range(COUNT))
    wanted = [*range(COUNT), "first", "second"]
    assert await handle.result() == wanted
    assert (await _history(ctx, handle)).kept, "it is in the record"
    fork = await handle.fork(1, id="u")
    await fork.signal("x", COUNT - 1)  # it is given what came before that step
    assert await fork.result() == wanted
    assert await handle.rewind(1) == 1
    assert await handle.result() == wanted


async def test_another_life_of_the_id_is_not_given_it(boki_context: boki.testing.Context) -> None:
    """As of what stands in an inbox, it is given nothing that a life before it has heard."""
    ctx = boki_context
    handle = turning.handle(ctx, "t")
    for text in ("first", "second", "third"):
        await handle.signal("stray", text)
    await turning.start(ctx, [], id="t")
    await _signalled(ctx, handle, range(COUNT))
    assert await handle.result() == [*range(COUNT), "first", "second"]
    again = await turning.start(ctx, [], id="t", if_ended="again")
    await _signalled(ctx, handle, range(COUNT))
    for text in ("fourth", "fifth"):
        await handle.signal("stray", text)
    assert await again.result() == [*range(COUNT), "fourth", "fifth"]
