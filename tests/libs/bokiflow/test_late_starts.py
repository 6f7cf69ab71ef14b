"""Requests to a workflow that was accepted and has not begun: they are acknowledged, so it obeys them."""

from __future__ import annotations

import pytest

import boki.testing
from boki import FunctionFailed
from boki.libs.bokiflow import step, workflow
from boki.log.metalog import Positions
from boki.log.operations import Answer, Operation, Read
from boki.testing.memory_port import MemoryPort

STEPS: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    STEPS.clear()


@step
async def say(word: str) -> None:
    STEPS.append(word)


@workflow
async def short(words: str) -> str:
    for word in words.split():
        await say(word)
    return "said"


async def test_a_cancellation_before_the_first_run(boki_context: boki.testing.Context) -> None:
    """A short workflow never comes to look at its inbox; it was run to its end an hour later."""
    handle = await short.start(boki_context, "one two", delay_s=3_600)
    await handle.cancel("not wanted")
    await boki_context.clock.advance(3_700)
    with pytest.raises(FunctionFailed, match="not wanted"):
        await handle.result()
    assert not STEPS


async def test_a_pause_before_the_first_run(boki_context: boki.testing.Context) -> None:
    """It begins when it is resumed."""
    handle = await short.start(boki_context, "one two", delay_s=3_600)
    await handle.pause("wait")
    await boki_context.clock.advance(3_700)
    assert ((await handle.status()).note, STEPS) == ("paused: wait", [])
    await handle.resume()
    assert (await handle.result(), STEPS) == ("said", ["one", "two"])


async def test_one_that_begins_at_once_reads_nothing(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual start is not to pay for the rare one."""
    reads, real = [], MemoryPort.request

    async def request(self: MemoryPort, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        reads.extend([operation.tag] if isinstance(operation, Read) else [])
        return await real(self, operation, positions, timeout_s)

    monkeypatch.setattr(MemoryPort, "request", request)
    assert await (await short.start(boki_context, "one")).result() == "said"
    assert not reads
