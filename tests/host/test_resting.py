"""A core in which nothing waits is ticked seldom, and as ever again as soon as something does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar, cast

from boki.host.host import TICK_S, Host
from boki.host.links import Links
from boki.log.ids import NodeId
from boki.protocol.beats import EARLY_US
from boki.protocol.effects import REST_US
from boki.protocol.messages import Ping

ME = NodeId("node")


class Timer:
    def __init__(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.delay_s = delay_s
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """A loop whose time stands, at first at a beat; `timers` were asked for, `jobs` are to run soon."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []
        self.jobs: list[Callable[[], None]] = []
        self.time_s = 100.0

    def time(self) -> float:
        return self.time_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(delay_s, callback))
        return self.timers[-1]

    def call_soon(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)

    @property
    def due(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.is_cancelled]


class Core:
    """It rests for as long as `rest_us` says."""

    HEARS: ClassVar[frozenset[type]] = frozenset({Ping})
    ticks = 0
    rest_us = 0

    def receive(self, *_: object) -> tuple[()]:
        return ()

    def settle(self, _now_us: int) -> tuple[()]:
        return ()

    def tick(self, _now_us: int) -> tuple[()]:
        self.ticks += 1
        return ()

    def rests_until(self, now_us: int) -> int:
        return now_us + self.rest_us


def made(core: Any) -> tuple[Host, Loop]:
    loop = Loop()
    return Host(ME, core, Links(), cast("asyncio.AbstractEventLoop", loop)), loop


def tick(loop: Loop) -> float:
    """Let the timer come. → the delay of the next one"""
    (timer,) = loop.due
    loop.timers.clear()
    timer.callback()
    (following,) = loop.due
    return round(following.delay_s, 6)


def test_a_core_that_rests_is_ticked_twice_a_second() -> None:
    """One that rests until its next ping is due is ticked at it, and meets those that rest at every fourth one."""
    core = Core()
    _, loop = made(core)
    assert tick(loop) == TICK_S
    core.rest_us = REST_US
    assert tick(loop) == REST_US / 1_000_000
    core.rest_us = REST_US // 2
    assert tick(loop) == REST_US / 2_000_000
    core.rest_us = REST_US // 4
    assert tick(loop) == REST_US / 4_000_000
    core.rest_us = REST_US // 4 - EARLY_US - 1
    assert tick(loop) == TICK_S
    core.rest_us = 0
    assert tick(loop) == TICK_S
    assert core.ticks == 7


def test_no_tick_comes_later_than_what_a_core_waits_for() -> None:
    """Wherever between two beats it is: a read that ends then must not wait for a beat of those that rest longer."""
    for phase_ms in range(0, 500, 7):
        for rest_ms in range(0, 600, 11):
            core = Core()
            core.rest_us = rest_ms * 1000
            _, loop = made(core)
            loop.time_s += phase_ms / 1000
            assert tick(loop) <= max((core.rest_us + EARLY_US) / 1_000_000, 1.5 * TICK_S)


def test_a_core_in_no_hurry_comes_to_the_beats_of_the_others() -> None:
    """What an idle primary repeats after 250 ms, and 750 ms at the latest, is sent at beats, wherever its last append
    has left it: else it and all who hear of it are woken twice as often.
    """

    class Repeating(Core):
        time_s = repeat_at_s = 0.0

        def tick(self, _now_us: int) -> tuple[()]:
            if self.time_s >= self.repeat_at_s - EARLY_US / 1_000_000:
                self.repeat_at_s = self.time_s + 0.25
            return super().tick(_now_us)

        def rests_until(self, now_us: int) -> int:
            return now_us + int((self.repeat_at_s + 0.5 - self.time_s) * 1_000_000)

    for phase_ms in range(0, 500, 7):
        core = Repeating()
        _, loop = made(core)
        loop.time_s += phase_ms / 1000
        delays_s = []
        for _ in range(8):
            core.time_s = loop.time_s
            delays_s.append(tick(loop))
            loop.time_s += delays_s[-1]
        assert delays_s[4:] == [0.5] * 4, (phase_ms, delays_s)
        assert round(loop.time_s / 0.5, 3).is_integer()


def test_what_is_heard_ends_the_rest_if_something_waits_then() -> None:
    """A ping alone does not."""
    core = Core()
    core.rest_us = REST_US
    host, loop = made(core)
    for rest_us, delay_s in ((REST_US, REST_US / 1_000_000), (0, TICK_S)):
        core.rest_us = rest_us
        host.deliver(NodeId("other"), Ping(1))
        loop.jobs.pop()()
        (timer,) = loop.due
        assert round(timer.delay_s, 6) == delay_s


def test_a_core_that_does_not_know_of_rests_is_ticked_as_ever() -> None:
    """Nothing is taken for a rest."""

    class Restless:
        HEARS: ClassVar[frozenset[type]] = frozenset()
        tick = settle = staticmethod(lambda _now_us: ())

    _, loop = made(Restless())
    assert tick(loop) == TICK_S
