"""Logged calls in the simulator: the loop in virtual time, the checks of what calls leave behind, and a whole run."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from boki.books.calls.ledger import Finished
from boki.protocol.calls import Call, Outcome, Payload
from boki.verify.sim.calls import Asked, CallClients
from boki.verify.sim.clockwork import START_US, Clockwork
from boki.verify.sim.loops import SimulatedLoop
from boki.verify.sim.options import Options
from boki.verify.sim.simulation import simulate

SECOND = 1_000_000


@pytest.fixture
def clock() -> Clockwork:
    return Clockwork(1)


def loop_of(clock: Clockwork, pauses: list[bool]) -> SimulatedLoop:
    return SimulatedLoop(clock, lambda: pauses[-1])  # type: ignore[abstract]


async def time_passes(seconds: float) -> None:
    await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=seconds)


def test_tasks_and_timers_run_in_virtual_time(clock: Clockwork) -> None:
    """Sleeps, timeouts and futures end when the clock of the run says so, and nothing waits for real."""
    loop, woken = loop_of(clock, [False]), list[tuple[str, int]]()

    async def sleeper() -> None:
        await time_passes(1.5)
        woken.append(("slept", clock.now_us - START_US))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await asyncio.get_running_loop().create_future()
        woken.append(("gave up", clock.now_us - START_US))

    loop.create_task(sleeper())
    assert woken == []
    clock.run_until(clock.now_us + 10 * SECOND)
    assert woken == [("slept", 1_500_000), ("gave up", 3_500_000)]
    assert loop.raised == []


def test_a_loop_of_a_paused_process_stands_still_and_that_of_a_dead_one_ends(clock: Clockwork) -> None:
    """What was due during a pause happens after it; what a dead process was doing is cancelled, and nobody else's."""
    pauses, woken = [True], list[int]()
    loop, other = loop_of(clock, pauses), loop_of(clock, [False])

    async def sleeper() -> None:
        await time_passes(1)
        woken.append(clock.now_us - START_US)

    loop.create_task(sleeper())
    clock.run_until(clock.now_us + 3 * SECOND)
    assert woken == []
    pauses.append(False)
    clock.run_until(clock.now_us + 3 * SECOND)
    assert len(woken) == 1
    assert woken[0] > 3 * SECOND
    doomed, spared = loop.create_task(sleeper()), other.create_task(sleeper())
    loop.end()
    clock.run_until(clock.now_us + 3 * SECOND)
    assert doomed.cancelled()
    assert spared.done()
    assert not spared.cancelled()


def asked(key: str, ids: set[str], outcomes: set[bytes], *, is_answered: bool = True, function: str = "body") -> Asked:
    return Asked(key, Call("1" * 32, function, Payload("json", b"null"), "effects", 1), ids, outcomes, is_answered)


@pytest.mark.parametrize(
    ("calls", "effects", "promises"),
    [
        ([asked("a", {"1"}, {b"x"})], ["1/5/1/0", "1/5/1/1", "1/7/2/0", "1/7/2/1"], []),
        ([asked("a", {"1", "2"}, {b"x"})], [], ["a key has one call"]),
        ([asked("a", {"1"}, {b"x", b"y"})], [], ["a call ends once"]),
        ([asked("a", set(), set(), is_answered=False)], [], ["accepted calls end"]),
        ([], ["1/5/1/0", "1/7/2/0", "1/5/1/1", "1/7/2/1"], ["who is fenced appends nothing"]),
        ([], ["1/5/1/0", "1/5/2/0", "1/5/1/1", "1/5/2/1"], ["who is fenced appends nothing"]),
        ([asked("a", {"1"}, {b"x"}, function="sleeping")], [f"{'1' * 32}/5/1/0"] * 2, ["a run begins once"]),
    ],
)
def test_what_calls_leave_behind_is_judged(
    clock: Clockwork, calls: list[Asked], effects: list[str], promises: list[str]
) -> None:
    """One call a key, one end a call, every call ends, and no start continues once another one has begun."""
    clients = CallClients(cast("Any", SimpleNamespace(clock=clock, nodes={})), 0)
    clients.asked = calls
    assert [each.promise for each in clients.check(effects, [])] == promises


def test_a_call_with_two_ends_in_the_log_is_noticed(clock: Clockwork) -> None:
    """Whatever its callers were told."""
    clients = CallClients(cast("Any", SimpleNamespace(clock=clock, nodes={})), 0)
    end = Finished("1" * 32, "body", "effects", Outcome(None, None), 1, 1, 1, 1)
    assert clients.check([], [end]) == []
    assert [each.promise for each in clients.check([], [end, end])] == ["a call has one end"]


def test_calls_that_fail_and_calls_that_are_cancelled_end_once() -> None:
    """While their engines crash: retries continue elsewhere, and what was cancelled stays so."""
    seen: Counter[str] = Counter()
    for seed in (4, 6):
        outcome = simulate(Options(seed=seed, engines=3, calls=3, call_trouble=0.6, faults={"crash": 1.5}))
        assert outcome.violations == []
        seen += outcome.seen
    assert seen["a call that had failed ran again at another engine"]
    assert seen["a running call was cancelled"]


def test_calls_of_engines_that_die_are_taken_over_and_end() -> None:
    """Engines crash while bodies run: others take the calls over, and everybody is told one outcome."""
    outcome = simulate(Options(seed=6, engines=3, calls=3, faults={"crash": 1.5}))
    assert outcome.violations == []
    assert outcome.seen["a call was taken over by another engine"]


def test_suspended_calls_wake_once_whatever_becomes_of_their_engines() -> None:
    """By time and by record, also by one that came first; engines that die leave them to others."""
    seen: Counter[str] = Counter()
    for seed in (1, 2, 4, 8, 19, 23):
        outcome = simulate(Options(seed=seed, engines=3, calls=3, call_sleep=0.8, faults={"crash": 1.5}))
        assert outcome.violations == []
        seen += outcome.seen
    assert seen["a suspended call was woken by a record"]
    assert seen["a record was there before its call was suspended"]
    assert seen["a suspended call was taken over by another engine"]
