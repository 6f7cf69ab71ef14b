"""Pauses that come while something is about to begin: nothing begins in them, and all begins after them.

Appends to journals take 0.2 s here, so that a message may come before the record for which a step waits is durable.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import boki.testing
from boki import Retry
from boki.libs.bokiflow import flow, step, workflow
from boki.log.metalog import Positions
from boki.log.operations import Answer, Append, Operation
from boki.testing.memory_port import MemoryPort
from tests.libs.bokiflow.test_rest import passes

STEPS: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    STEPS.clear()


@pytest.fixture(name="slowly")
def fixture_slowly(boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    real = MemoryPort.request

    async def request(self: MemoryPort, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        if isinstance(operation, Append) and "!fj:" in repr(operation):
            late = asyncio.Event()
            boki_context.clock.call_at(boki_context.clock.now_us + 200_000, late.set)
            with boki_context.clock.waiting():
                await late.wait()
        return await real(self, operation, positions, timeout_s)

    monkeypatch.setattr(MemoryPort, "request", request)


@step
async def quick(name: str) -> None:
    STEPS.append(name)


@step
async def lasts(seconds: int) -> None:
    assert isinstance(step.ctx, boki.testing.Context)
    await passes(step.ctx, seconds)


@step(at_most_once=True)
async def once() -> str:
    STEPS.append("once")
    return "done"


@step(retry=Retry(attempts=50, first_s=1, max_s=1, jitter=0))
async def fails_until(number: int) -> int:
    STEPS.append(f"attempt {step.attempt}")
    if step.attempt < number:
        raise ValueError("again")
    return step.attempt


@workflow
async def launches() -> str:
    flow.on_signal("listens", STEPS.append)
    return await once()


@workflow
async def beside(seconds: int) -> None:
    flow.on_signal("listens", STEPS.append)
    lasting = asyncio.ensure_future(lasts(seconds))
    await quick("first")
    await quick("second")
    await lasting


@workflow
async def persistent(seconds: int) -> list[Any]:
    flow.on_signal("listens", STEPS.append)
    return await asyncio.gather(lasts(seconds), fails_until(6))


@pytest.mark.usefixtures("slowly")
async def test_a_step_that_was_announced_runs_though_a_pause_comes(boki_context: boki.testing.Context) -> None:
    """Else the next run finds the intent to run it at most once, and has to say that its outcome is unknown."""
    handle = await launches.start(boki_context)
    await boki_context.clock.advance(0.05)
    await handle.pause()
    await boki_context.clock.advance(5)
    assert (await handle.result(), STEPS) == ("done", ["once"])


@pytest.mark.usefixtures("slowly")
async def test_what_a_pause_has_held_begins_when_it_ends(boki_context: boki.testing.Context) -> None:
    """The record for which it waited became durable in the pause, so nothing but the end of the pause can begin it."""
    handle = await beside.start(boki_context, 1_000)
    await boki_context.clock.advance(0.05)
    await handle.pause()
    await boki_context.clock.advance(1)
    assert STEPS == ["first"]
    await handle.resume()
    await boki_context.clock.advance(1)
    assert STEPS == ["first", "second"]
    await boki_context.clock.advance(1_000)
    assert (await handle.status()).status == "done"


@pytest.mark.parametrize("lasts_s", [20, 1])
async def test_no_attempt_begins_in_a_pause(boki_context: boki.testing.Context, lasts_s: int) -> None:
    """Neither while another step keeps the run, nor later; after the pause the next attempt is the next one."""
    handle = await persistent.start(boki_context, lasts_s)
    await boki_context.clock.advance(3.5)
    await handle.pause()
    await boki_context.clock.advance(10)
    assert [f"attempt {n}" for n in range(1, 5)] == STEPS
    await handle.resume()
    await boki_context.clock.advance(20)
    assert await handle.result() == [None, 6]
    assert [f"attempt {n}" for n in range(1, 7)] == STEPS


async def test_an_attempt_that_fails_in_a_pause_is_followed_by_none(boki_context: boki.testing.Context) -> None:
    """Its delay began in the pause."""
    handle = await fails_late.start(boki_context)
    await boki_context.clock.advance(1)
    await handle.pause()
    await boki_context.clock.advance(30)
    assert STEPS == ["late 1"]
    await handle.resume()
    await boki_context.clock.advance(30)
    assert (await handle.result(), STEPS) == (2, ["late 1", "late 2"])


@step(retry=Retry(attempts=50, first_s=1, max_s=1, jitter=0))
async def late() -> int:
    STEPS.append(f"late {step.attempt}")
    assert isinstance(step.ctx, boki.testing.Context)
    await passes(step.ctx, 5)
    if step.attempt == 1:
        raise ValueError("again")
    return step.attempt


@workflow
async def fails_late() -> int:
    flow.on_signal("listens", STEPS.append)
    found, _ = await asyncio.gather(late(), lasts(20))
    return found
