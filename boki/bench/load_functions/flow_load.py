"""The workflows of `boki bench flow`, and the load on them from inside a worker process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from boki import Context, Expect, function
from boki.bench.rounds import closed_loop, engine_pid
from boki.bench.rows import Round
from boki.libs.bokiflow import Handle, flow, step, workflow

BOOK = "bench-flow"
STEPS = 10
KEPT_S = 20.0
"""For how long histories and logged calls are kept in a soak."""
STARTING = 256
"""This many starts are in flight where many workflows are to be started."""
_LOOK_S = 0.05
_GROUPED = bytes(100)
BEATS = 50
"""Steps of a workflow that beats."""
BEAT_S = 0.2
"""Seconds that each of these steps sleeps."""
_A_DAY_S = 24 * 3_600.0
_SLEEP_S = 2.0


class FlowLoad(msgspec.Struct, frozen=True):
    """`callers` at once, each of which starts a workflow and waits for its end, again and again."""

    is_pure: bool = False
    callers: int = 1
    duration_s: float = 3.0
    steps: int = STEPS


class Many(msgspec.Struct, frozen=True):
    """`count` workflows whose ids begin with `prefix`; `marker` is a file that holds them up while it is there."""

    prefix: str
    count: int
    marker: str = ""


@step
async def effect(number: int) -> int:
    """An effect that costs nothing."""
    return number


@step(pure=True)
async def look(number: int) -> int:
    """Nothing outside of the workflow depends on it."""
    return number


@step
async def clock_us() -> int:
    """The machine's time."""
    return time.time_ns() // 1000


@step
async def hold(marker: str) -> None:
    """Ends when the file is gone."""
    while Path(marker).exists():  # noqa: ASYNC110, ASYNC240 - another process removes it
        await asyncio.sleep(_LOOK_S)


@workflow(book=BOOK)
async def effects(count: int) -> int:
    """The sum of the results of `count` steps with effects, one after the other."""
    return sum([await effect(number) for number in range(count)])


@workflow(book=BOOK, keep_s=KEPT_S)
async def short(count: int) -> int:
    """The same, whose history is trimmed soon."""
    return sum([await effect(number) for number in range(count)])


@workflow(book=BOOK)
async def pure_steps(count: int) -> int:
    """The same with steps without effects."""
    return sum([await look(number) for number in range(count)])


@workflow(book=BOOK)
async def first_step() -> int:
    """When its first step began."""
    return await clock_us()


@workflow(book=BOOK)
async def held(marker: str) -> int:
    """A workflow that is in the middle of its second step while the file is there."""
    done = await effect(1)
    await hold(marker)
    return done + await effect(2)


@step
async def beat() -> int:
    """The machine's time in microseconds, when the step ends."""
    await asyncio.sleep(BEAT_S)
    return time.time_ns() // 1000


@workflow(book=BOOK)
async def beating() -> list[int]:
    """The times of many beats."""
    return [await beat() for _ in range(BEATS)]


@workflow(book=BOOK)
async def sleeper() -> None:
    """A workflow that has nothing to do before tomorrow."""
    await flow.sleep(_A_DAY_S)


@workflow(book=BOOK)
async def alarm(more_s: float) -> int:
    """How many microseconds after its time a timer of two seconds and more was over."""
    began_us = round(flow.now().timestamp() * 1e6)
    await flow.sleep(_SLEEP_S + more_s)
    return await clock_us() - began_us - round((_SLEEP_S + more_s) * 1e6)


@function(book=BOOK, timeout_s=600)
async def flow_load(ctx: Context, load: FlowLoad) -> Round:
    """Start a workflow of some steps and wait for its end."""
    wanted = pure_steps if load.is_pure else effects

    async def run(_caller: int) -> None:
        handle = await wanted.start(ctx, load.steps)
        assert await handle.result() == sum(range(load.steps))

    return await closed_loop(run, load.callers, load.duration_s)


@function(book=BOOK, timeout_s=600)
async def group_load(ctx: Context, load: FlowLoad) -> Round:
    """Append groups of as many records as a whole workflow of pure steps has, under new tags, on conditions."""
    numbers = count()

    async def run(_caller: int) -> None:
        name = f"{ctx.invocation_id}:{next(numbers)}"
        call, journal = f"group-call:{name}", f"!group:{name}"
        records = [(_GROUPED, (call,)), *[(_GROUPED, (journal,))] * load.steps, (_GROUPED, (call,))]
        await ctx.logbook.append_many(records, when=[Expect(call, last_seqnum=0), Expect(journal, count=0)])

    return await closed_loop(run, load.callers, load.duration_s)


@function(book=BOOK, timeout_s=600)
async def flow_soak_load(ctx: Context, load: FlowLoad) -> Round:
    """Start workflows of two steps and wait for their ends."""

    async def run(_caller: int) -> None:
        await (await short.start(ctx, 2)).result()

    return await closed_loop(run, load.callers, load.duration_s)


@function(book=BOOK, timeout_s=600)
async def first_steps(ctx: Context, count: int) -> list[float]:
    """Seconds from a start to the beginning of the workflow's first step, one start after the other."""
    found = []
    for _ in range(count):
        began_us = time.time_ns() // 1000
        handle = await first_step.start(ctx)
        found.append((await handle.result() - began_us) / 1e6)
    return found


@function(book=BOOK, timeout_s=600)
async def start_held(ctx: Context, many: Many) -> None:
    """Start workflows that are held up."""
    await _start_many(many, lambda flow_id: held.start(ctx, many.marker, id=flow_id))


@function(book=BOOK, timeout_s=600)
async def end_held(ctx: Context, many: Many) -> int:
    """Wait for the ends of those workflows: how many came to the right one."""
    handles = [held.handle(ctx, f"{many.prefix}{number}") for number in range(many.count)]
    return sum([await handle.result() == 3 for handle in handles])


@function(book=BOOK, timeout_s=600)
async def start_beating(ctx: Context, many: Many) -> str:
    """Start workflows that beat: the process of the engine on which they run."""
    await _start_many(many, lambda flow_id: beating.start(ctx, id=flow_id))
    return engine_pid()


@function(book=BOOK, timeout_s=600)
async def end_beating(ctx: Context, many: Many) -> list[list[int]]:
    """Wait for their ends: the times of the beats of each, empty if one has not all of them, in order."""
    handles = [beating.handle(ctx, f"{many.prefix}{number}") for number in range(many.count)]
    found = [await handle.result() for handle in handles]
    return [times if len(times) == BEATS and times == sorted(times) else [] for times in found]


@function(book=BOOK, timeout_s=3_600)
async def start_sleepers(ctx: Context, many: Many) -> None:
    """Start workflows that sleep until tomorrow."""
    await _start_many(many, lambda flow_id: sleeper.start(ctx, id=flow_id))


@function(book=BOOK, timeout_s=600)
async def alarms(ctx: Context, count: int) -> list[float]:
    """Seconds that timers of workflows are late, which are over one after the other."""
    handles = [await alarm.start(ctx, number / 10) for number in range(count)]
    return [await handle.result() / 1e6 for handle in handles]


async def _start_many(many: Many, start: Callable[[str], Awaitable[Handle[Any]]]) -> None:
    names = iter([f"{many.prefix}{number}" for number in range(many.count)])

    async def start_until_the_end() -> None:
        for name in names:
            await start(name)

    await asyncio.gather(*(start_until_the_end() for _ in range(min(STARTING, many.count))))
