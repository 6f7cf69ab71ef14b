"""Gateways without their HTTP: a relay that has every log operation carried out by an engine with the index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from boki.effects import Core
from boki.engine.core import READY, Answered
from boki.engine.relay import RelayCore
from boki.log.membership import Role
from boki.log.metalog import Positions
from boki.log.operations import Failure, Operation
from boki.sim.nodes import Node, World


class GatewayNode(Node):
    """A gateway. It never crashes, and keeps its requests over a lost session: its clients are those of the run."""

    role = Role.GATEWAY

    def __init__(self, world: World, name: str) -> None:
        self._relay: RelayCore | None = None
        super().__init__(world, name)

    def make_core(self) -> Core:
        """See `Node`."""
        if self._relay is None:
            self._relay = RelayCore(self.name, self.incarnation, buffer_bytes=self.world.options.buffer_bytes)
        self.incarnation = self._relay.incarnation
        return self._relay

    def submit(
        self, operation: Operation, positions: Positions, timeout_us: int, done: Callable[[Any, Positions], None]
    ) -> None:
        """Carry out an operation for a client."""
        assert self._relay is not None
        now_us = self.now_us()
        self.perform(self._relay.submit(operation, positions, now_us + timeout_us, done, now_us))

    def answer(self, token: Any, value: Any) -> None:
        """See `Node`."""
        if token is not READY:
            assert isinstance(value, Answered)
            answer = value.answer.error() if isinstance(value.answer, Failure) else value.answer
            token(answer, value.positions)
