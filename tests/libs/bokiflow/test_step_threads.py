"""`def` steps at once: each has a thread, as many as wait for something."""

from __future__ import annotations

import asyncio
import resource
import threading
from threading import Barrier, Event
from typing import Any

import pytest

import boki.testing
from boki.libs.bokiflow import clocks, flow, step, workflow
from boki.libs.bokiflow.refusals import NoThread
from boki.libs.bokiflow.step_threads import StepThreads

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
    assert clocks._threads.__wrapped__().most == count


class Full:
    """A process that can start no thread for a step, until it has room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_room = False
        self.refused = 0
        self._start = threading.Thread.start
        monkeypatch.setattr(threading.Thread, "start", lambda thread: self._begin(thread))

    def _begin(self, thread: threading.Thread) -> None:
        if thread.name.startswith("boki-step") and not self.has_room:
            self.refused += 1
            raise RuntimeError("can't start new thread")
        self._start(thread)


def test_work_that_is_refused_does_not_run_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor of the standard library keeps it in its queue, and runs it when it has a thread."""
    full, threads = Full(monkeypatch), StepThreads(4)
    ran: list[str] = []
    with pytest.raises(NoThread, match="can't start new thread"):
        threads.submit(ran.append, "refused")
    full.has_room = True
    threads.submit(ran.append, "accepted").result(20)
    assert ran == ["accepted"]


def test_work_for_which_there_is_no_other_thread_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it does if there are as many as there may be. An error is its own, and ends no thread."""
    full, threads, released = Full(monkeypatch), StepThreads(2), Event()
    full.has_room = True
    first = threads.submit(released.wait, 20)
    full.has_room = False
    second, third = threads.submit(int, "2"), threads.submit(int, "three")
    assert third.cancel() is True
    fourth = threads.submit(int, "four")
    released.set()
    assert (first.result(20), second.result(20)) == (True, 2)
    with pytest.raises(ValueError, match="four"):
        fourth.result(20)
    assert threads.submit(int, "5").result(20) == 5
    assert full.refused == 3


RAN: list[str] = []


@step
def pays() -> None:
    RAN.append("pays")


@step
async def reserves() -> None:
    RAN.append("reserves")


@step(at_most_once=True)
def mails() -> None:
    RAN.append("mails")


@workflow
async def order() -> str:
    await reserves()
    await flow.run(pays)
    return "paid"


@workflow
async def news() -> str:
    await reserves()
    await flow.run(mails)
    return "mailed"


@pytest.mark.parametrize(("body", "last", "status"), [(order, "pays", "suspended"), (news, "mails", "running")])
async def test_a_step_without_a_thread_waits_for_one(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch, body: Any, last: str, status: str
) -> None:
    """Where no thread can be started, it ran unseen later on, and its workflow waited forever. A step that may run
    once is on record before it runs, so this run tries again.
    """
    RAN.clear()
    full, threads = Full(monkeypatch), StepThreads(4)
    monkeypatch.setattr(clocks, "_threads", lambda: threads)
    handle = await body.start(boki_context)
    await boki_context.clock.advance(5.5)
    assert ((await handle.status()).status, RAN) == (status, ["reserves"])
    assert full.refused == 6
    full.has_room = True
    await boki_context.clock.advance(3)
    assert (await handle.status()).status == "done"
    assert ["reserves", last] == RAN
