"""`def` steps at once: each has a thread, as many as wait for something."""

from __future__ import annotations

import asyncio
from threading import Barrier

import boki.testing
from boki.libs.bokiflow import flow, step, workflow

COUNT = 64
ALL = Barrier(COUNT, timeout=20)


@step
def meets(n: int) -> int:
    ALL.wait()
    return n


@workflow
async def meeting() -> int:
    return sum(await asyncio.gather(*(flow.run(meets, n) for n in range(COUNT))))


async def test_steps_that_block_do_not_hold_up_each_other(boki_context: boki.testing.Context) -> None:
    """Each of them waits for all the others: with a few threads for all, none would ever end."""
    assert await (await meeting.start(boki_context)).result() == sum(range(COUNT))
