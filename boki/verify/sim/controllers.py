"""Controllers as `boki.node.controller` has them, for a world with a virtual clock."""

from __future__ import annotations

from typing import Any

from boki.controller.core import ControllerConfig, ControllerCore, Installed, Leadership, Placed
from boki.log.membership import Placement, Role
from boki.log.view import View
from boki.protocol.effects import Core
from boki.protocol.follower import COORDINATOR
from boki.verify.sim.nodes import Node


class ControllerNode(Node):
    """A controller, as `boki.node.controller` has it."""

    role = Role.CONTROLLER

    def make_core(self) -> Core:
        """See `Node`."""
        self._is_leader = False
        self._is_connected = True
        self._writing: set[str] = set()
        config = ControllerConfig(ping_interval_us=200_000, fence_grace_us=2_000_000, repair_after_us=3_000_000)
        self.controller = ControllerCore(self.name, self.incarnation, config)
        return self.controller

    def _on_leadership(self, is_leader: bool) -> None:
        self._is_leader = is_leader
        self.deliver(self.name, Leadership(self._is_leader, self._is_connected))

    def _on_state(self, state: str) -> None:
        self._is_connected = state == "connected"
        super()._on_state(state)
        if self.core is not None:
            self.deliver(self.name, Leadership(self._is_leader, self._is_connected))

    def answer(self, token: Any, value: Any) -> None:
        """A view or a placement should be installed."""
        if token in self._writing or self.session is None:
            return
        self._writing.add(token)
        coordinator, life = self.world.coordinator, self._life

        def done(won: bool) -> None:
            if life == self._life:
                self._writing.discard(token)
                told = Installed(value, won) if isinstance(value, View) else Placed(value.version, won)
                self.deliver(COORDINATOR, told)

        if isinstance(value, View):
            self.clock.note(f"{self.name} wants term {value.term}", value)
            for hear in self.world.sightings.on_proposal:
                hear(self, value)
            coordinator.ask(self.session, lambda: coordinator.install(value), done)
        else:
            assert isinstance(value, Placement)
            coordinator.ask(self.session, lambda: coordinator.place(value), done)
