"""What stands for gateways: a relay that has every log operation carried out by an engine with the index.

It is that of engines without the index; the routing of the real gateway (`boki/gateway`) is not in the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from boki.effects import Core
from boki.engine.core import READY, Answered
from boki.engine.relay import RelayCore
from boki.log.membership import Role
from boki.log.metalog import Positions
from boki.log.operations import Failure, Operation
from boki.sim.nodes import Node


class GatewayNode(Node):
    """A gateway. It never crashes, and goes on while it has no session: its clients are those of the run."""

    role = Role.GATEWAY

    def make_core(self) -> Core:
        """See `Node`."""
        self._relay = RelayCore(self.name, self.incarnation, buffer_bytes=self.world.options.buffer_bytes)
        return self._relay

    def begin_anew(self, why: str) -> None:
        """A new session as soon as one can be had; requests are not disturbed."""
        self.clock.note(f"{self.name} needs another session: {why}")
        self.clock.after(100_000, self.open_session, self._life)

    def submit(
        self, operation: Operation, positions: Positions, timeout_us: int, done: Callable[[Any, Positions], None]
    ) -> None:
        """Carry out an operation for a client."""
        now_us = self.now_us()
        self.perform(self._relay.submit(operation, positions, now_us + timeout_us, done, now_us))

    def answer(self, token: Any, value: Any) -> None:
        """See `Node`."""
        if token is not READY:
            assert isinstance(value, Answered)
            answer = value.answer.error() if isinstance(value.answer, Failure) else value.answer
            token(answer, value.positions)
