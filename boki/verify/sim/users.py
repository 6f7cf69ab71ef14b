"""Users of a library: processes that begin behind a gateway or on an engine, die, stall, and begin again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final

from boki.errors import BokiError
from boki.verify.sim.engines import EngineNode
from boki.verify.sim.nodes import World
from boki.verify.sim.options import seconds_between
from boki.verify.sim.processes import Process

_MAX_PAUSE_US: Final = 2_000_000
_POLL_S: Final = 0.25

Live = Callable[[Process], Coroutine[Any, Any, None]]
"""What a process does in each of its incarnations."""
Reading = Callable[[Process], Coroutine[Any, Any, bool]]
"""Reads how everything has ended, if it has; whether it did."""


class Users:
    """The processes of one library in a run.

    `crashes`: how often each of them dies or stalls, per virtual second. `trouble`: how often one of its
    requests or answers is slow or lost, a probability.
    """

    def __init__(self, world: World, rng: Random, *, crashes: float, trouble: float, loses_reads: bool = True) -> None:
        self.processes: dict[str, Process] = {}
        self.is_calm = False
        self.is_ended = False
        self.has_read_ends = False
        self._world = world
        self._clock = world.clock
        self._rng = rng
        self._crashes = crashes
        self._trouble = trouble
        self._loses_reads = loses_reads

    def add(self, name: str, live: Live) -> None:
        """A process that begins again after each of its deaths, until `end`."""
        self._start(name, live)
        self._hurt_later(name)

    def begin(self, name: str, engine: EngineNode | None = None) -> Process:
        """One incarnation of a process, without an engine behind the gateways."""
        process = self.processes[name] = Process(self._world, name, self._rng, engine)
        return process

    def _start(self, name: str, live: Live) -> None:
        """Begin an incarnation: behind a gateway, or on an engine."""
        if self.is_ended:
            return
        engines = [node for node in self._world.nodes.values() if isinstance(node, EngineNode)]
        ready = [engine for engine in engines if engine.core is not None and engine.is_ready]
        engine = self._rng.choice(ready) if ready and self._rng.random() < 0.4 else None
        self._clock.note(f"{name} starts on {engine.name if engine is not None else 'its own'}")
        process = self.begin(name, engine)
        process.trouble = 0.0 if self.is_calm else self._trouble
        process.loses_reads = self._loses_reads
        process.on_death = lambda: self._clock.after(self._rng.randint(10_000, 500_000), self._start, name, live)
        process.loop.create_task(live(process))

    def _hurt_later(self, name: str) -> None:
        if self._crashes:
            self._clock.after(int(seconds_between(self._crashes, self._rng) * 1e6), self._hurt, name)

    def _hurt(self, name: str) -> None:
        """It dies, or stalls for a while: often for longer than leases last."""
        if self.is_calm:
            return
        process = self.processes[name]
        if self._rng.random() < 0.6:
            self._clock.note(f"{name} dies")
            process.die()
        elif not process.is_paused:
            hold_us = int(_MAX_PAUSE_US * self._rng.random() ** 2)
            self._clock.note(f"{name} stands still for {hold_us} us")
            process.is_paused = True
            self._clock.after(hold_us, self._resume, process)
        self._hurt_later(name)

    @staticmethod
    def _resume(process: Process) -> None:
        process.is_paused = False

    def calm(self) -> None:
        """Everything is healed, and no fault strikes any more."""
        self.is_calm = True
        for process in self.processes.values():
            process.is_paused = False
            process.trouble = 0.0

    def read_ends(self, name: str, read: Reading) -> Process:
        """A process that reads how everything has ended, as soon as it has. Then all processes end."""
        process = self.begin(name)
        process.loop.create_task(self._read_ends(process, name, read))
        return process

    async def _read_ends(self, process: Process, name: str, read: Reading) -> None:
        while True:
            try:
                if await read(process):
                    break
            except BokiError as error:
                self._clock.note(f"the {name} is refused: {error.code}")
            await asyncio.sleep(_POLL_S)
        self.has_read_ends = True
        self._clock.after(0, self.end)

    def end(self) -> None:
        """All processes end here, and none begins."""
        if self.is_ended:
            return
        self.is_ended = True
        for process in self.processes.values():
            process.on_death = None
            process.die()
