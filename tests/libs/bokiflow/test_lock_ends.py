"""Locks that are left by several tasks at once."""

from __future__ import annotations

import asyncio

import boki.testing
from boki import WrongState
from boki.libs.bokiflow import flow, workflow


async def test_a_lock_is_left_by_two_tasks_at_once(boki_context: boki.testing.Context, each_mode: None) -> None:
    """The workflow failed with `KeyError`, also one that returned while a task of its own was leaving a lock."""

    @workflow
    async def twice() -> str:
        held = await flow.lock("room")
        await asyncio.gather(held.unlock(), held.unlock())
        held = await flow.lock("room")
        leaving = asyncio.create_task(held.unlock())
        await asyncio.sleep(0)
        return f"left: {leaving.done()}"

    assert await (await twice.start(boki_context)).result() == "left: False"


async def test_a_lock_that_is_taken_again_meanwhile_is_still_held(
    boki_context: boki.testing.Context, each_mode: None
) -> None:
    """The second of two tasks that left it made the workflow forget what it had taken since."""

    @workflow
    async def again() -> str:
        held = await flow.lock("room")
        both = [asyncio.create_task(held.unlock()) for _ in range(2)]
        await both[0]
        held = await flow.lock("room")
        await both[1]
        try:
            await flow.lock("room")
        except WrongState:
            return "held"
        return "forgotten"

    assert await (await again.start(boki_context)).result() == "held"
