"""A controller: its core decides, and what it decides goes to the coordinator by compare-and-set, one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any, Final, assert_never

from boki.config.node import ControllerNodeConfig
from boki.controller.core import ControllerConfig, ControllerCore
from boki.controller.inputs import ConnectionEnded, Installed, Leadership, Placed
from boki.coordination.session import SessionEnded, SessionState
from boki.log.ids import NodeId
from boki.log.membership import Placement, Role
from boki.log.view import View
from boki.node.coordination import WRITE_S
from boki.node.incarnation import RoleIncarnation
from boki.protocol.effects import Announce, Answer, Core, Note, ProposePlacement, ProposeView, ReleaseSlots, RoleEffect
from boki.protocol.follower import COORDINATOR

_log = logging.getLogger("boki.node")
_LOOK_S: Final = 1.0
_MAX_LOOKS: Final = 5
"""A leader whose links are cut, or refused for its keys, holds its session with the coordinator all the same."""


class ControllerIncarnation(RoleIncarnation[ControllerNodeConfig]):
    """A controller; of all that run, the coordinator lets one lead."""

    role = Role.CONTROLLER

    def make_core(self) -> Core[Any]:
        """See `RoleIncarnation`."""
        self._is_leader = False
        self._is_writing: set[type[RoleEffect]] = set()
        config = ControllerConfig(
            failure_timeout_us=int(self.config.failure_timeout_s * 1_000_000),
            repair_after_us=int(self.config.repair_after_s * 1_000_000),
            move_primary_after_us=int(self.config.move_primary_after_s * 1_000_000),
        )
        self.core = ControllerCore(self.node, self.incarnation, config)
        return self.core

    async def prepare(self) -> None:
        """See `RoleIncarnation`; and a cluster without a plan gets the one of this configuration."""
        await self.coordinator.ensure_plan(self.config.plan)
        self.coordinator.on_leadership = self._on_leadership
        self.links.on_lost = self._on_lost
        await self.coordinator.follow()

    async def serve(self) -> None:
        """Stand for leader."""
        self._tell_leadership()
        await self.coordinator.campaign(self.node)
        self.spawn(self._stand_down_if_cut_off())

    async def drain(self) -> None:
        """Another controller leads from now on: the other roles of this node stop next, and are to be replaced."""
        if self.coordinator.state is SessionState.CONNECTED:
            with contextlib.suppress(TimeoutError, SessionEnded):
                async with asyncio.timeout(WRITE_S):
                    await self.coordinator.withdraw()

    async def _stand_down_if_cut_off(self) -> None:
        """A leader that hears no majority of the sequencers can replace none: let a controller try that may hear it."""
        looks = 0
        while True:
            await asyncio.sleep(_LOOK_S)
            leads = self._is_leader and self.coordinator.state is SessionState.CONNECTED
            looks = looks + 1 if leads and not self.core.reaches_quorum else 0
            if looks < _MAX_LOOKS:
                continue
            looks = 0
            if await self.coordinator.stand_down(self.node):
                _log.warning("%s hears no majority of the sequencers: another controller is to lead", self.node)

    def on_session(self, state: SessionState) -> None:
        """See `RoleIncarnation`. A controller that does not know whether it still leads does nothing."""
        super().on_session(state)
        self._tell_leadership()

    def _on_lost(self) -> None:
        if self.host is not None:
            self.host.deliver(self.node, ConnectionEnded())

    def _on_leadership(self, is_leader: bool) -> None:
        self._is_leader = is_leader
        self._tell_leadership()

    def _tell_leadership(self) -> None:
        if self.host is not None:
            is_connected = self.coordinator.state is SessionState.CONNECTED
            self.host.deliver(self.node, Leadership(self._is_leader, is_connected))

    def carry_out(self, effect: RoleEffect) -> None:
        """See `RoleIncarnation`. The core repeats itself while that is under way: one of a kind at a time."""
        if type(effect) in self._is_writing:
            return
        self._is_writing.add(type(effect))
        match effect:
            case ProposeView(view):
                self.spawn(self._write(effect, self._install(view)))
            case ProposePlacement(placement):
                self.spawn(self._write(effect, self._place(placement)))
            case ReleaseSlots(engines):
                self.spawn(self._write(effect, self._release(engines)))
            case Answer() | Announce():
                super().carry_out(effect)
            case _:
                assert_never(effect)

    async def _write(self, effect: RoleEffect, work: Coroutine[Any, Any, Note | None]) -> None:
        try:
            told = await work
        finally:
            self._is_writing.discard(type(effect))
        if told is not None and self.host is not None:
            self.host.deliver(COORDINATOR, told)

    async def _install(self, view: View) -> Installed:
        return Installed(view, await self.coordinator.install(view))

    async def _place(self, placement: Placement) -> Placed:
        return Placed(placement.version, await self.coordinator.place(placement))

    async def _release(self, nodes: tuple[NodeId, ...]) -> None:
        for node in await self.coordinator.release_index_slots(nodes):
            _log.warning("%s does not answer: another engine is to hold the index in its place", node)

    def role_status(self) -> dict[str, Any]:
        """See `RoleIncarnation`."""
        return {"leader": self._is_leader, "controller": self.core.status()}
