"""`def` steps at once: each has a thread, as many as wait for something."""

from __future__ import annotations

import asyncio
import threading
from threading import Barrier, Event

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


def test_work_for_which_there_is_no_other_thread_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's memory is bounded, and stacks are a part of it: the step was never done, and run all the same."""
    pool, released, start = clocks._Threads(4), Event(), threading.Thread.start

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    first = pool.submit(released.wait, 20)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    second = pool.submit(int, "2")
    released.set()
    assert (first.result(20), second.result(20)) == (True, 2)
    monkeypatch.setattr(threading.Thread, "start", start)
    pool.shutdown()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        clocks._Threads(4).submit(int, "2")
