"""`def` steps at once: each has a thread, as many as wait for something."""

from __future__ import annotations

import asyncio
import resource
from threading import Barrier

import pytest

import boki.testing
from boki.libs.bokiflow import clocks, flow, step, workflow

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


@pytest.mark.parametrize(
    ("data_bytes", "count"), [(resource.RLIM_INFINITY, 256), (2 << 30, 64), (1 << 40, 256), (64 << 20, 8)]
)
def test_stacks_take_at_most_a_quarter_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, data_bytes: int, count: int
) -> None:
    """Of what a worker may have, so that its steps find some; a few run at once in any case."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (data_bytes, data_bytes))
    assert clocks._threads.__wrapped__()._max_workers == count
