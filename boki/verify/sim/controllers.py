"""Controllers as `boki.node.controller` has them, for a world with a virtual clock."""

from __future__ import annotations

from functools import partial
from typing import Any

from boki.controller.core import ControllerConfig, ControllerCore
from boki.controller.inputs import Installed, Leadership, Placed
from boki.controller.plans import NEAR
from boki.log.membership import Role
from boki.log.view import View
from boki.protocol.effects import Core, ProposePlacement, ProposeView, RoleEffect
from boki.protocol.follower import COORDINATOR
from boki.verify.sim.nodes import Node


class ControllerNode(Node):
    """A controller, as `boki.node.controller` has it."""

    role = Role.CONTROLLER

    def make_core(self) -> Core[Any]:
        """See `Node`."""
        self._is_leader = False
        self._is_connected = True
        self._writing: set[type[RoleEffect]] = set()
        config = ControllerConfig(
            ping_interval_us=200_000,
            fence_grace_us=2_000_000,
            repair_after_us=3_000_000,
            load_span_us=500_000,
            move_primary_after_us=2_000_000,
        )
        self.controller = ControllerCore(self.name, self.incarnation, config)
        return self.controller

    def hear_leadership(self, is_leader: bool) -> None:
        """See `Played`."""
        self._is_leader = is_leader
        self.deliver(self.name, Leadership(self._is_leader, self._is_connected))

    def hear_state(self, state: str) -> None:
        """See `Played`."""
        self._is_connected = state == "connected"
        super().hear_state(state)
        if self.core is not None:
            self.deliver(self.name, Leadership(self._is_leader, self._is_connected))

    def carry_out(self, effect: RoleEffect) -> None:
        """See `Node`: one proposal of a kind at a time."""
        if type(effect) in self._writing or self.session is None:
            return
        self._writing.add(type(effect))
        coordinator, generation = self.world.coordinator, self.generation

        def done(told: Installed | Placed) -> None:
            if generation == self.generation:
                self._writing.discard(type(effect))
                self.deliver(COORDINATOR, told)

        match effect:
            case ProposeView(view):
                self.clock.note(f"{self.name} wants term {view.term}", view)
                for hear in self.world.coverage.on_proposal:
                    hear(self, view)
                ask = partial(self._install, view, is_near=NEAR in self.controller.reason)
                coordinator.ask(self.session, ask, lambda won: done(Installed(view, won)))
            case ProposePlacement(placement):
                ask = partial(coordinator.place, placement)
                coordinator.ask(self.session, ask, lambda won: done(Placed(placement.version, won)))
            case _:
                super().carry_out(effect)

    def _install(self, view: View, *, is_near: bool) -> bool:
        """Ask the coordinator for it. `is_near`: because of where records come from."""
        views = self.world.coordinator.views
        count = len(views)
        has_won = self.world.coordinator.install(view)
        if is_near and len(views) > count and view.primaries != views[-2].primaries:
            self.clock.sometimes("a primary moved to where records come from")
        return has_won
