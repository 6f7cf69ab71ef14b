"""Processes that use the log from beside the nodes: programs behind a gateway, and functions on an engine.

Each has an event loop in virtual time and the LogBook of `async` code, down to the gathering of appends; what it asks
for goes to a gateway, each time to any, or to the engine that it runs on, whose end is its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

from boki.api.append_gatherer import AppendGatherer
from boki.api.deadline import Caller, Deadline
from boki.api.logbook import LogBook, LogSession
from boki.errors import ConnectionLost
from boki.log.metalog import Positions
from boki.log.operations import Answer, Append, Operation, Read
from boki.verify.sim.engines import EngineNode
from boki.verify.sim.gateways import GatewayNode
from boki.verify.sim.loops import SimulatedLoop, answer_of
from boki.verify.sim.nodes import World

_LONGEST_POLL_S: Final = 5.0
_SLOW_S: Final = 1.5
_HOLDS: Final = 75


class Process:
    """One incarnation of a process. With an `engine` it is a function there, and dies with it; otherwise a client."""

    def __init__(self, world: World, name: str, rng: Random, engine: EngineNode | None) -> None:
        self.name = name
        self.is_dead = False
        self.is_paused = False
        self.holds_appends: Callable[[], bool] | None = None
        """While this is so, what this process appends is on its way; but not forever."""
        self.loses_reads = True
        self.loses_next_append = False
        """The next append of this process is carried out, and nobody hears of it."""
        self.trouble = 0.0
        """How often a request or an answer is slow on its way, or lost: a probability."""
        self.on_death: Callable[[], object] | None = None
        self.on_term_waited: Callable[[], object] | None = None
        """Called when a term has changed while a read of this process waited for a record."""
        self._world = world
        self._rng = rng
        self._engine = engine
        self._gateways = [node for node in world.nodes.values() if isinstance(node, GatewayNode)]
        self.loop = SimulatedLoop(world.clock, self._stands_still)  # type: ignore[abstract] # no sockets in there
        self.loop.raised = world.raised
        appends = AppendGatherer(self)
        caller = Caller(deadline=Deadline(clock=self.loop.time), longest_poll_s=_LONGEST_POLL_S)
        self._access = LogSession(self, appends, caller)
        if engine is not None:
            engine.on_death.append(self.die)

    def _stands_still(self) -> bool:
        return self.is_paused or (self._engine is not None and self._engine.is_paused)

    def logbook(self, name: str) -> LogBook:
        """The LogBook of that name, as this process reaches it."""
        return self._access.logbook(name)

    def die(self) -> None:
        """It is gone, with everything that it was doing."""
        if not self.is_dead:
            self.is_dead = True
            self.loop.end()
            if self.on_death is not None:
                self.on_death()

    async def _travel(self, operation: Operation) -> None:
        """A message may be slow on its way; between a program and its gateway it may be lost."""
        for _ in range(_HOLDS if isinstance(operation, Append) else 0):
            if self.holds_appends is None or not self.holds_appends():
                break
            await asyncio.sleep(_SLOW_S / _HOLDS)
        if self.trouble and self._rng.random() < self.trouble:
            await asyncio.sleep(_SLOW_S * self._rng.random() ** 2)
            may_lose = self._engine is None and (self.loses_reads or isinstance(operation, Append))
            if may_lose and self._rng.random() < 0.5:
                raise ConnectionLost("the connection broke")

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """See `boki.api.port.LogPort`. Nobody here is more patient than the other clients of the run."""
        target = self._engine or self._rng.choice(self._gateways)
        if self.is_dead or target.core is None:
            raise ConnectionLost("this process is dead, or nobody is there whom it could ask")
        wait_us = operation.wait_us if isinstance(operation, Read) else 0
        timeout_us = min(int(timeout_s * 1e6), wait_us + self._world.options.deadline_us)
        terms = len(self._world.coordinator.views)
        try:
            await self._travel(operation)
            answer = await answer_of(
                self.loop,
                lambda done: target.submit(operation, dict(positions), timeout_us, done),
                positions,
                target.abandon,
            )
            await self._travel(operation)
            if self.loses_next_append and isinstance(operation, Append):
                self.loses_next_append = False
                raise ConnectionLost("the connection broke before the answer")
            return answer
        finally:
            if self.on_term_waited is not None and wait_us and len(self._world.coordinator.views) > terms:
                self.on_term_waited()
