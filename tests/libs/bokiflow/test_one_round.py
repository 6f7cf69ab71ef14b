"""What looks at a workflow while that continues as new: it sees one round, and not the journal of one and the inbox of
the next.
"""

from __future__ import annotations

from typing import Any

import pytest

import boki.testing
from boki import WrongState
from boki.libs.bokiflow import flow, rewinding, step, workflow
from boki.libs.bokiflow.inbox import InboxReader
from boki.libs.bokiflow.recorded import record


@step
async def noted(word: str) -> str:
    return word


@workflow
async def counting(total: int) -> int:
    """Its state comes from messages alone."""
    state = {"total": total, "seen": 0}

    def add(number: int) -> None:
        state["total"] += number
        state["seen"] += 1

    flow.on_signal("add", add)
    flow.on_query("total", lambda _: state["total"])
    await flow.wait_for(lambda: state["seen"] == 3)
    return flow.continue_as_new(state["total"])


@workflow
async def noting(words: list[str]) -> list[str]:
    """Its steps follow its messages."""
    flow.on_query("words", lambda _: words)
    words = [*words, await noted(await flow.receive("word"))]
    await flow.receive("more")
    return flow.continue_as_new(words)


class _Racing:
    """Sends messages in front of the next reading of an inbox."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ctx: boki.testing.Context) -> None:
        self._ctx = ctx
        self.messages: list[tuple[Any, str, Any]] = []
        read_to_end = InboxReader.read_to_end

        async def slowly(reader: InboxReader) -> None:
            await self.send()
            await read_to_end(reader)

        monkeypatch.setattr(InboxReader, "read_to_end", slowly)

    async def send(self) -> None:
        """Send them."""
        messages, self.messages = self.messages, []
        for handle, name, payload in messages:
            await handle.signal(name, payload)
            await self._ctx.clock.advance(1)


@pytest.fixture
def racing(boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch) -> _Racing:
    return _Racing(monkeypatch, boki_context)


async def test_a_query_answers_from_one_round(boki_context: boki.testing.Context, racing: _Racing) -> None:
    """It had answered from the round's beginning, without what its messages had brought: less than before."""
    handle = await counting.start(boki_context, 0, id="c")
    racing.messages = [(handle, "add", 1), (handle, "add", 10)]
    await racing.send()
    assert await handle.query("total") == 11
    racing.messages = [(handle, "add", 100)]
    assert await handle.query("total") == 111
    assert not racing.messages


async def test_a_query_of_steps_that_follow_messages(boki_context: boki.testing.Context, racing: _Racing) -> None:
    """It had said that the code has changed."""
    handle = await noting.start(boki_context, [], id="n")
    racing.messages = [(handle, "word", "one")]
    await racing.send()
    racing.messages = [(handle, "more", None)]
    assert await handle.query("words") == ["one"]


async def test_what_is_recorded_for_a_check_is_of_one_round(
    boki_context: boki.testing.Context, racing: _Racing
) -> None:
    """With the journal of one round and the inbox of the next, the file is of no workflow that ever was."""
    ctx = boki_context
    handle = await noting.start(ctx, [], id="n")
    racing.messages = [(handle, "word", "one")]
    await racing.send()
    racing.messages = [(handle, "more", None)]
    found = await record(ctx.logbook, "noting", "n", handle.invocation_id, has_ended=False, code=noting)
    assert found.history().continued is not None
    assert found.reads is not None


async def test_a_fork_has_all_messages_of_its_steps_or_is_refused(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch, racing: _Racing
) -> None:
    """Of two messages that came together only the second one is named by a step, and that one was still there."""
    ctx, check = boki_context, rewinding._check_children
    handle = noting.handle(ctx, "n")
    await handle.signal("word", "one")
    await handle.signal("stray")
    await noting.start(ctx, [], id="n")
    await ctx.clock.advance(1)
    racing.messages = [(handle, "more", None)]

    async def slowly(*arguments: Any) -> None:
        await racing.send()
        await check(*arguments)

    monkeypatch.setattr(rewinding, "_check_children", slowly)
    with pytest.raises(WrongState, match="fork it again"):
        await handle.fork(id="f")
