"""Steps that are called as something else is."""

from __future__ import annotations

import boki.testing
from boki.libs.bokiflow import step, workflow


@step
async def lock(door: str) -> str:
    return f"{door} is locked"


@step
async def ring(door: str) -> str:
    return f"{door} rings"


async def test_a_step_that_is_called_lock_is_no_lock(boki_context: boki.testing.Context) -> None:
    """Whatever came behind it could not be rewound or forked: it was said to be inside of a lock without a name."""

    @workflow
    async def leave_home(door: str) -> list[str]:
        return [await lock(door), await ring(door)]

    handle = await leave_home.start(boki_context, "front", id="home")
    assert await handle.result() == ["front is locked", "front rings"]
    assert await handle.rewind(1) == 1
    assert await handle.result() == ["front is locked", "front rings"]
