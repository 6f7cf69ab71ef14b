"""The loop of workflows: asyncio's tools mean the same in it, the same events give the same execution, and nothing
reaches out of it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any

import pytest

from boki.libs.bokiflow.loop import FlowLoop
from boki.libs.bokiflow.refusals import NotDeterministic
from tests.libs.bokiflow.crashes import timer

Body = Callable[[FlowLoop], Coroutine[Any, Any, Any]]


class Driver:
    """Runs a body and fires its timers in order, as the journal would."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self.loop = FlowLoop(self.arm)  # type: ignore[abstract]

    def arm(self, when: float, handle: asyncio.TimerHandle) -> None:
        self.timers.append((when, len(self.timers), handle))

    def run(self, body: Body) -> Any:
        task = self.loop.create_task(body(self.loop), context=copy_context())
        self.loop.run_until_quiet()
        while not task.done():
            due = [timer for timer in sorted(self.timers) if not timer[2].cancelled()]
            assert due, "the body waits for nothing that could come"
            self.timers.remove(due[0])
            self.loop.time_s = max(self.loop.time_s, due[0][0])
            self.loop.run_handle(due[0][2])
            self.loop.run_until_quiet()
        return task.result()


def test_it_runs_inside_of_another_loop() -> None:
    """The worker's loop and its task are the current ones again afterwards."""

    async def inner(loop: FlowLoop) -> tuple[bool, int]:
        await timer(1)
        return asyncio.get_running_loop() is loop, len(await asyncio.gather(timer(1), timer(2)))

    async def outer() -> None:
        before = (asyncio.get_running_loop(), asyncio.current_task())
        assert Driver().run(inner) == (True, 2)
        assert (asyncio.get_running_loop(), asyncio.current_task()) == before

    asyncio.run(outer())


def test_time_is_what_timers_make_of_it() -> None:
    """No second passes by itself, and none is waited for."""

    async def body(loop: FlowLoop) -> list[float]:
        times = [loop.time()]
        for _ in range(3):
            await timer(86_400)
            times.append(loop.time())
        return times

    assert Driver().run(body) == [0, 86_400, 172_800, 259_200]


def test_timeouts_cancel() -> None:
    """`asyncio.timeout` and `wait_for` end what takes too long, and nothing else."""

    async def body(loop: FlowLoop) -> list[str]:
        said = []
        for limit_s in (1, 3):
            try:
                async with asyncio.timeout(limit_s):
                    await timer(2)
                    said.append("in time")
            except TimeoutError:
                said.append("late")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.create_future(), 5)
        return said

    assert Driver().run(body) == ["late", "in time"]


def test_locks_queues_and_events() -> None:
    """Tasks take turns in the order in which they asked."""

    async def body(loop: FlowLoop) -> list[Any]:
        said: list[Any] = []
        lock, room, queue = asyncio.Lock(), asyncio.Semaphore(2), asyncio.Queue[int](1)
        event, gate = asyncio.Event(), asyncio.Condition()

        async def locked(name: int) -> None:
            async with room, lock:
                said.append(name)
                await timer(5 - name)
            await queue.put(name)

        async def take() -> list[int]:
            taken = [await queue.get() for _ in range(4)]
            event.set()
            return taken

        taker = asyncio.create_task(take())
        async with asyncio.TaskGroup() as group:
            for name in range(4):
                group.create_task(locked(name))
        await event.wait()
        async with gate:
            gate.notify_all()
        return [said, await taker]

    assert Driver().run(body) == [[0, 1, 2, 3], [0, 1, 2, 3]]


def order_of_cancellation(pad: int) -> list[int]:
    garbage = [object() for _ in range(pad)]

    async def body(loop: FlowLoop) -> list[int]:
        said: list[int] = []

        async def wait(name: int) -> None:
            try:
                await timer(100)
            finally:
                said.append(name)

        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                for name in range(50):
                    group.create_task(wait(name))
                await asyncio.sleep(0)
                raise ValueError
        tasks = [asyncio.create_task(wait(name)) for name in range(50, 100)]
        _, pending = await asyncio.wait(tasks, timeout=1)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        return said

    found: list[int] = Driver().run(body)
    assert garbage is not None
    return found


def test_sets_of_tasks_have_an_order() -> None:
    """A TaskGroup that fails, and `asyncio.wait`, go through their tasks in the same order in every process."""
    first = order_of_cancellation(0)
    assert sorted(first) == list(range(100))
    assert all(order_of_cancellation(pad) == first for pad in (1, 17, 1_000))


@pytest.mark.parametrize(
    "reach_out",
    [
        lambda: asyncio.to_thread(print),
        lambda: asyncio.open_connection("127.0.0.1", 1),
        lambda: asyncio.create_subprocess_exec("true"),
        lambda: asyncio.get_running_loop().getaddrinfo("localhost", 1),
        lambda: asyncio.get_running_loop().sock_sendto(None, b"", None),
    ],
    ids=["thread", "socket", "process", "name", "raw socket"],
)
def test_nothing_reaches_out(reach_out: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Threads, sockets and processes are refused with what to do instead."""

    async def body(loop: FlowLoop) -> None:
        await reach_out()

    with pytest.raises(NotDeterministic, match=r"a workflow cannot use \w+ of its event loop, .* step"):
        Driver().run(body)


def test_putting_away_does_nothing() -> None:
    """A body that is put away unwinds without a word: what it awaits in `finally` is not started."""
    said = []

    async def body(loop: FlowLoop) -> None:
        try:
            await timer(10)
        finally:
            said.append("unwound")
            await timer(20)
            said.append("went on")

    driver = Driver()
    driver.loop.create_task(body(driver.loop))
    driver.loop.run_until_quiet()
    driver.loop.put_away()
    driver.loop.run_until_quiet()
    assert said == ["unwound"]
    assert len(driver.timers) == 1


def test_many_tasks_are_looked_through_a_few_times() -> None:
    """With more than a thousand that run, each new one had the loop look at all of them."""
    loop, looks = FlowLoop(lambda _when, _handle: None), 0  # type: ignore[abstract]
    before = loop.tasks
    for _ in range(8_000):
        loop.create_task(asyncio.sleep(0))
        looks += loop.tasks is not before
        before = loop.tasks
    loop.run_until_quiet()
    assert looks <= 4
