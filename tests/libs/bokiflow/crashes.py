"""Processes that die at a chosen moment: at an append (before or after it is in the log), or beside an effect.

A `World` outlives them: the log, and the effects of steps.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

import boki.testing
from boki import ConnectionLost, Unavailable
from boki.api.function import Function
from boki.api.suspension import Suspend
from boki.extending import Payload, encode_any
from boki.libs.bokiflow.hooks import Hooks, installed
from boki.log.memory import MemoryLog
from boki.log.operations import Answer, Append, Operation
from boki.protocol.calls import CALLS_BOOK
from boki.testing.virtual_clock import Clock

RUN_ID = "f" * 32

timer = asyncio.sleep
"""In a workflow: a timer of the log, in virtual time."""


@dataclass(frozen=True)
class Death:
    """Where a process dies: at its n-th append, without or with its effect on the log, or at the n-th boundary of all.

    `process`: which of those that the workflow needs if it is suspended, counted from 0.
    """

    append: int = 0
    is_applied: bool = False
    boundary: int = 0
    process: int = 0


NO_DEATH = Death()


class DyingLog(MemoryLog):
    """A log whose client dies at an append."""

    def __init__(self) -> None:
        super().__init__()
        self.death = NO_DEATH
        self.append_count = 0
        self.read_count = 0
        self.is_dead = False

    def begin(self, death: Death) -> None:
        """A new process."""
        self.death, self.append_count, self.read_count, self.is_dead = death, 0, 0, False

    def answer(self, operation: Operation, now_us: int) -> Answer:
        if self.is_dead:
            raise Unavailable("this process is dead")
        self.read_count += not isinstance(operation, Append)
        if isinstance(operation, Append):
            self.append_count += 1
            if self.append_count == self.death.append:
                self.is_dead = True
                if self.death.is_applied:
                    super().answer(operation, now_us)
                raise ConnectionLost("this process is dead")
        return super().answer(operation, now_us)


class LosingLog(MemoryLog):
    """A log that loses one append to a book of applications, or its answer; all who use it continue."""

    def __init__(self, lost: int = 0, *, is_applied: bool = False) -> None:
        super().__init__()
        self.append_count = 0
        self._lost = lost
        self._is_applied = is_applied
        self.wake: Callable[[], None] = lambda: None
        """Has those look who wait for records."""

    def answer(self, operation: Operation, now_us: int) -> Answer:
        if isinstance(operation, Append) and operation.book != CALLS_BOOK:
            self.append_count += 1
            if self.append_count == self._lost:
                if self._is_applied:
                    super().answer(operation, now_us)
                    self.wake()
                raise ConnectionLost("the answer was lost")
        return super().answer(operation, now_us)


async def _nothing(_ctx: boki.testing.Context) -> None:
    """Nothing is to be there."""


async def after_each_loss(
    prepare: Callable[[boki.testing.Context], Awaitable[None]] = _nothing,
) -> AsyncIterator[boki.testing.Context]:
    """Contexts of which each loses another append of what is done in the first one: without, or with its effect.

    Nothing is lost of what `prepare` does.
    """
    first = LosingLog()
    async with boki.testing.context(log=first) as ctx:
        await prepare(ctx)
        first.append_count = 0
        yield ctx
    for lost in range(1, first.append_count + 1):
        for is_applied in (False, True):
            log = LosingLog(lost, is_applied=is_applied)
            async with boki.testing.context(log=log) as ctx:
                log.wake = ctx._calls_made.port._answer_waiting
                log.append_count = -1_000_000
                await prepare(ctx)
                log.append_count = 0
                yield ctx


class Stuck(Exception):
    """The workflow is suspended until a message comes."""


@dataclass
class World:
    """What outlives processes. `effects` counts how often something was done, `keyed` holds what a key has done."""

    log: DyingLog = field(default_factory=DyingLog)
    effects: Counter[str] = field(default_factory=Counter)
    keyed: dict[str, str] = field(default_factory=dict)
    boundaries: int = 0
    runs: int = 0
    losses: int = 0
    """Number of processes that died since the workflow began, or was last suspended."""
    appends: list[int] = field(default_factory=list)
    """How many each process of the last run had."""
    now_us: int = 1_600_000_000_000_000

    async def do(self, what: str, key: str) -> None:
        """An effect; the process may die before and after it."""
        await self._boundary()
        self.effects[what] += 1
        self.keyed.setdefault(key, what)
        await self._boundary()

    async def _boundary(self) -> None:
        if self.pass_boundary():
            await asyncio.Event().wait()

    def pass_boundary(self) -> bool:
        """One moment at which the process may die; whether it is dead."""
        self.boundaries += 1
        if self.boundaries == self.log.death.boundary:
            self.log.is_dead = True
        return self.log.is_dead

    async def run(self, workflow: Callable[..., Any], *payload: Any, death: Death = NO_DEATH) -> Any:
        """Run the workflow in new processes until it comes to its end; one of them dies."""
        self.boundaries = 0
        self.appends = []
        while True:
            dies = not death.append or death.process == len(self.appends)
            self.log.begin(death if dies else NO_DEATH)
            self.runs += 1
            try:
                done, value = await self._process(Function.of(workflow), payload)
            finally:
                self.appends.append(self.log.append_count)
            if self.log.is_dead:
                death = NO_DEATH
            if done:
                return value

    async def lose(self, workflow: Callable[..., Any], *payload: Any, death: Death, times: int) -> None:
        """Run the workflow in that many processes, each of which dies so."""
        for _ in range(times):
            self.boundaries = 0
            self.log.begin(death)
            self.runs += 1
            done, _ = await self._process(Function.of(workflow), payload)
            assert not done
            assert self.log.is_dead

    async def _process(self, function: Function, payload: tuple[Any, ...]) -> tuple[bool, Any]:
        """One process: whether the workflow has ended, and what it returned."""
        async with boki.testing.context(function.info.book or "test", log=self.log) as outer:
            clock: Clock = outer.clock
            clock.now_us = self.now_us
            given = function.encode_payload(payload[0]) if payload else Payload("bytes", b"")
            call = msgspec.structs.replace(
                outer._state.call,
                id=RUN_ID,
                function=function.info.name,
                run=self.runs,
                attempt=self.losses + 1,
                payload=given,
            )
            ctx = boki.testing.Context(call, outer._calls_made)
            task = asyncio.ensure_future(function.run(ctx, *payload))
            while not task.done() and not self.log.is_dead:  # noqa: ASYNC110 - turns of the loop are what counts
                await asyncio.sleep(0)
            try:
                if self.log.is_dead:
                    self.losses += 1
                    task.cancel()
                    await asyncio.wait([task])
                    return False, None
                await clock.advance(0)  # what is still on its way to the log
                return True, await task
            except Suspend as suspend:
                self.losses = 0
                if not suspend.suspension.wake_us:
                    raise Stuck(suspend.suspension.note) from None
                clock.now_us = max(clock.now_us, suspend.suspension.wake_us)
                return False, None
            finally:
                self.now_us = clock.now_us + 1_000


def in_run(outer: boki.testing.Context, payload: object, run: int = 1, attempt: int = 1) -> boki.testing.Context:
    """The context of a logged call with that payload, made of a test's."""
    given = encode_any(payload, "payload")
    call = msgspec.structs.replace(outer._state.call, id=RUN_ID, run=run, attempt=attempt, payload=given)
    return boki.testing.Context(call, outer._calls_made)


class AroundSteps(Hooks):
    """Boundaries before and after the body of each step, for steps whose effects are not those of a `World`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def dies(self, moment: str, step: str) -> bool:
        return self._world.pass_boundary()


async def count_moments(make: Callable[[], tuple[World, Callable[..., Any]]], *payload: Any) -> tuple[list[int], int]:
    """How many appends an undisturbed run has in each of its processes, and how many boundaries in all."""
    world, workflow = make()
    await world.run(workflow, *payload)
    return world.appends, world.boundaries


def all_deaths(appends: list[int], boundaries: int) -> list[Death]:
    """Every moment at which a process may die."""
    at_appends = [
        Death(append=n, is_applied=applied, process=process)
        for process, count in enumerate(appends)
        for n in range(1, count + 1)
        for applied in (False, True)
    ]
    return at_appends + [Death(boundary=n) for n in range(1, boundaries + 1)]


async def after_each_death(workflow: Any, payload: Any) -> AsyncIterator[tuple[World, Any]]:
    """What it comes to with each death of a process, and the world that it leaves."""

    async def run(death: Death) -> tuple[World, Any]:
        world = World()
        with installed(AroundSteps(world)):
            return world, await world.run(workflow, payload, death=death)

    first, found = await run(NO_DEATH)
    yield first, found
    for death in all_deaths(first.appends, first.boundaries):
        yield await run(death)
