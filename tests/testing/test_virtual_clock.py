"""Virtual time: it passes when everybody waits for it, in order, and never while somebody is at work."""

from __future__ import annotations

import asyncio
import threading

from boki.testing.virtual_clock import Clock


def test_advancing_fires_what_is_due_in_order() -> None:
    """Each at its own moment, also what is set up meanwhile; what was cancelled or is due later is not."""

    async def scenario() -> None:
        clock = Clock(start_us=0)
        fired: list[tuple[str, int]] = []

        def note(name: str) -> None:
            fired.append((name, clock.now_us))

        def note_and_go_on() -> None:
            note("first")
            clock.call_at(1_500_000, lambda: note("in between"))

        clock.call_at(2_000_000, lambda: note("second"))
        clock.call_at(1_000_000, note_and_go_on)
        clock.call_at(2_000_000, lambda: note("third"))
        clock.call_at(9_000_000, lambda: note("too late"))
        clock.call_at(1_200_000, lambda: note("cancelled")).cancel()
        await clock.advance(5)
        assert fired == [
            ("first", 1_000_000),
            ("in between", 1_500_000),
            ("second", 2_000_000),
            ("third", 2_000_000),
        ]
        assert clock.now_us == 5_000_000
        assert clock.time() == 5.0

    asyncio.run(scenario())


def test_tasks_that_are_woken_run_before_time_goes_on() -> None:
    """A chain of them, too."""

    async def scenario() -> None:
        clock = Clock(start_us=0)
        seen: list[int] = []

        async def chain() -> None:
            for _ in range(20):
                await asyncio.sleep(0)
            seen.append(clock.now_us)

        tasks: list[asyncio.Task[None]] = []
        for second in (1, 2):
            clock.call_at(second * 1_000_000, lambda: tasks.append(asyncio.ensure_future(chain())))
        await clock.advance(10)
        assert seen == [1_000_000, 2_000_000]

    asyncio.run(scenario())


def test_time_passes_by_itself_only_if_somebody_waits_for_it() -> None:
    """A timer alone is no reason; somebody who waits is."""

    async def scenario() -> None:
        clock = Clock(start_us=0)
        rung = asyncio.Event()
        clock.call_at(60_000_000, rung.set)
        for _ in range(500):
            await asyncio.sleep(0)
        assert clock.now_us == 0
        with clock.waiting():
            await rung.wait()
        assert clock.now_us == 60_000_000

    asyncio.run(scenario())


def test_time_stands_still_while_a_thread_is_busy() -> None:
    """However long that takes; then it passes."""

    async def scenario() -> None:
        clock = Clock(start_us=0)
        loop = asyncio.get_running_loop()
        rung, go_on = asyncio.Event(), threading.Event()
        seen: list[int] = []

        def work() -> None:
            go_on.wait()
            seen.append(clock.now_us)
            loop.call_soon_threadsafe(clock.thread_stopped)

        clock.call_at(60_000_000, rung.set)
        clock.thread_started()
        thread = threading.Thread(target=work)
        thread.start()
        with clock.waiting():
            for _ in range(500):
                await asyncio.sleep(0)
            assert not rung.is_set()
            go_on.set()
            await rung.wait()
        thread.join()
        assert seen == [0]
        assert clock.now_us == 60_000_000

    asyncio.run(scenario())


def test_time_does_not_run_ahead_while_it_is_advanced() -> None:
    """Somebody who waits for longer continues waiting."""

    async def scenario() -> None:
        clock = Clock(start_us=0)
        rung = asyncio.Event()
        clock.call_at(60_000_000, rung.set)

        async def wait() -> None:
            with clock.waiting():
                await rung.wait()

        waiting = asyncio.ensure_future(wait())
        await clock.advance(10)
        assert (clock.now_us, rung.is_set()) == (10_000_000, False)
        await waiting
        assert clock.now_us == 60_000_000

    asyncio.run(scenario())
