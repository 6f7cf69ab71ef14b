"""Forks that are refused, or whose process is lost, after a part of the history was copied."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import boki.testing
from boki import AlreadyExists, LogBook, Overloaded
from boki.libs.bokiflow import Handle, copying, flow, step, workflow
from boki.libs.bokiflow.beginning import Beginning, FunctionCalls
from boki.libs.bokiflow.records import inbox_tag, journal_tag

DONE: list[str] = []


@step
async def act(what: str) -> str:
    DONE.append(what)
    return f"{what} {DONE.count(what)}"


@workflow
async def talks() -> list[str]:
    """Its steps follow its messages."""
    found = [await act(await flow.receive("word")), await act(await flow.receive("word"))]
    return [*found, await flow.receive("more"), await act("last")]


@pytest.fixture(autouse=True)
def forget() -> None:
    DONE.clear()


class Lost(Exception):
    """The process is lost."""


async def _first(ctx: boki.testing.Context) -> Handle[list[str]]:
    handle = await talks.start(ctx, id="t")
    for word in ("one", "two"):
        await handle.signal("word", word)
        await ctx.clock.advance(1)
    return handle


async def _check(ctx: boki.testing.Context, fork: Handle[list[str]]) -> None:
    """It is as it would have been at the first try: with all that it keeps, once, and with what it is sent."""
    await fork.signal("more", "more")
    assert await fork.result() == ["one 1", "two 1", "more", "last 1"]
    inbox = await ctx.logbook.read(inbox_tag(fork.invocation_id))
    assert len(inbox.records) == 3


def _refused(monkeypatch: pytest.MonkeyPatch, times: int) -> list[Beginning]:
    """The first starts are refused. All that are asked for."""
    asked: list[Beginning] = []
    begin = FunctionCalls.begin

    async def refusing(calls: FunctionCalls, call: Beginning) -> None:
        asked.append(call)
        if len(asked) <= times:
            raise Overloaded("as many as are accepted")
        await begin(calls, call)

    monkeypatch.setattr(FunctionCalls, "begin", refusing)
    return asked


async def test_a_fork_that_was_refused_may_be_asked_for_again(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copies stand then. It was refused forever because of them, under that id."""
    ctx = boki_context
    handle = await _first(ctx)
    asked = _refused(monkeypatch, 2)
    for _ in range(2):
        with pytest.raises(Overloaded):
            await handle.fork(2, id="u")
        await ctx.clock.advance(100_000)
    await talks.handle(ctx, "u").signal("more", "more")
    fork = await handle.fork(2, id="u")
    assert len({call.start for call in asked}) == 1
    assert await fork.result() == ["one 1", "two 1", "more", "last 1"]
    with pytest.raises(AlreadyExists, match="it is done"):
        await handle.fork(2, id="u")


async def test_a_fork_without_an_id_that_was_refused_leaves_nothing(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows its id, so nothing would ever sweep it, and a client that tries again makes another one."""
    ctx = boki_context
    handle = await _first(ctx)
    asked = _refused(monkeypatch, 1)
    with pytest.raises(Overloaded):
        await handle.fork(2)
    for tag in (journal_tag(asked[0].invocation_id), inbox_tag(asked[0].invocation_id)):
        assert not (await ctx.logbook.read(tag)).records
    await _check(ctx, await handle.fork(2))


@pytest.mark.parametrize("is_carried_out", [False, True])
@pytest.mark.parametrize("moment", range(6))
async def test_a_fork_that_was_lost_may_be_asked_for_again(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch, moment: int, is_carried_out: bool
) -> None:
    """At each of its appends: of two messages, three records of the journal, and the start."""
    ctx = boki_context
    handle = await _first(ctx)
    monkeypatch.setattr(copying, "_AT_ONCE", 1)
    left = moment

    def losing(method: Callable[..., Any]) -> Callable[..., Any]:
        async def lose(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left >= 0:
                return await method(*arguments, **options)
            if is_carried_out:
                await method(*arguments, **options)
            raise Lost

        return lose

    with monkeypatch.context() as patch, pytest.raises(Lost):
        patch.setattr(LogBook, "append_many", losing(LogBook.append_many))
        patch.setattr(FunctionCalls, "begin", losing(FunctionCalls.begin))
        await handle.fork(2, id="u")
    if moment == 5 and is_carried_out:
        with pytest.raises(AlreadyExists):
            await handle.fork(2, id="u")
        await _check(ctx, talks.handle(ctx, "u"))
    else:
        await ctx.clock.advance(100_000)
        await _check(ctx, await handle.fork(2, id="u"))


async def test_one_fork_that_is_asked_for_twice_at_once(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both write the same records, each once."""
    ctx = boki_context
    handle = await _first(ctx)
    monkeypatch.setattr(copying, "_AT_ONCE", 1)
    both = await asyncio.gather(*(handle.fork(2, id="u") for _ in range(2)), return_exceptions=True)
    forks = [fork for fork in both if isinstance(fork, Handle)]
    assert forks
    assert all(isinstance(fork, Handle | AlreadyExists) for fork in both)
    await _check(ctx, forks[0])


async def test_what_else_stands_there_is_left_alone(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies for a fork at another step, and messages that were sent before one was made."""
    ctx = boki_context
    handle = await _first(ctx)
    _refused(monkeypatch, 1)
    with pytest.raises(Overloaded):
        await handle.fork(2, id="u")
    for other in (1, 0):
        with pytest.raises(AlreadyExists, match="fork to an id that is free"):
            await handle.fork(other, id="u")
    await talks.handle(ctx, "v").signal("more", "to v")
    with pytest.raises(AlreadyExists, match="fork to an id that is free"):
        await handle.fork(2, id="v")
    await _check(ctx, await handle.fork(2, id="u"))
