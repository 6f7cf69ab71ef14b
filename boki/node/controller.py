"""A controller: its core decides, and what it decides goes to the coordinator by compare-and-set, one at a time."""

from __future__ import annotations

from typing import Any

from boki.cluster_config import ControllerNodeConfig
from boki.controller.core import ControllerConfig, ControllerCore, Installed, Leadership, Placed
from boki.controller.zookeeper_session import SessionState
from boki.effects import Core
from boki.follower import COORDINATOR
from boki.log.membership import Placement, Role
from boki.log.view import View
from boki.node.life import NodeLife


class ControllerLife(NodeLife[ControllerNodeConfig]):
    """A controller; of all that run, the coordinator lets one lead."""

    role = Role.CONTROLLER

    def make_core(self) -> Core:
        """See `NodeLife`."""
        self._is_leader = False
        self._is_writing: set[str] = set()
        config = ControllerConfig(
            failure_timeout_us=int(self.config.failure_timeout_s * 1_000_000),
            repair_after_us=int(self.config.repair_after_s * 1_000_000),
        )
        self.core = ControllerCore(self.node, self.incarnation, config)
        return self.core

    async def prepare(self) -> None:
        """See `NodeLife`; and a cluster without a plan gets the one of this configuration."""
        await self.coordinator.ensure_plan(self.config.plan)
        self.coordinator.on_leadership = self._on_leadership
        await self.coordinator.follow(election=True)

    async def serve(self) -> None:
        """Stand for leader."""
        self._tell_leadership()
        await self.coordinator.campaign(self.node)

    def on_session(self, state: SessionState) -> None:
        """See `NodeLife`. Whoever does not know whether it still leads does nothing."""
        super().on_session(state)
        self._tell_leadership()

    def _on_leadership(self, is_leader: bool) -> None:
        self._is_leader = is_leader
        self._tell_leadership()

    def _tell_leadership(self) -> None:
        if self.host is not None:
            is_connected = self.coordinator.state is SessionState.CONNECTED
            self.host.deliver(self.node, Leadership(self._is_leader, is_connected))

    def answer(self, token: Any, value: Any) -> None:
        """The core wants a view or a placement to be installed. It repeats itself while that is under way."""
        if token in self._is_writing:
            return
        self._is_writing.add(token)
        match value:
            case View():
                self.spawn(self._install(token, value))
            case Placement():
                self.spawn(self._place(token, value))
            case _:
                raise AssertionError(f"a controller does not ask for {value!r}")

    async def _install(self, token: str, view: View) -> None:
        try:
            won = await self.coordinator.install(view)
        finally:
            self._is_writing.discard(token)
        self._tell(Installed(view.term, won))

    async def _place(self, token: str, placement: Placement) -> None:
        try:
            won = await self.coordinator.place(placement)
        finally:
            self._is_writing.discard(token)
        self._tell(Placed(placement.version, won))

    def _tell(self, message: Installed | Placed) -> None:
        if self.host is not None:
            self.host.deliver(COORDINATOR, message)

    def role_status(self) -> dict[str, Any]:
        """See `NodeLife`."""
        return {"leader": self._is_leader, "controller": self.core.status()}
