"""Takes the index slots of engines that do not answer, so that an engine without the index takes over.

A slot is an ephemeral entry of its engine's session, and a session outlives a halted process by seconds.
An engine that answers no ping for as long as a primary may be silent loses its slot at once, if another engine is
there to take it. If it continues, it finds its slot gone: it claims a free one, or restarts its role without the index.
"""

from __future__ import annotations

from typing import Final

from boki.controller.heartbeats import Heartbeats
from boki.log.membership import ClusterPlan, Membership, Role
from boki.protocol.effects import Effect, ReleaseSlots

_REPEAT_US: Final = 500_000


class IndexSlots:
    """Which slots are to be taken away. Where every engine holds the index, there are none."""

    def __init__(self) -> None:
        self._repeat_at = 0

    def tick(self, heartbeats: Heartbeats, membership: Membership, plan: ClusterPlan, now_us: int) -> list[Effect]:
        """Free the slots of engines that do not answer."""
        if not plan.index_replicas or now_us < self._repeat_at:
            return []
        self._repeat_at = now_us + _REPEAT_US
        engines = membership.of(Role.ENGINE)
        silent = tuple(member.node for member in engines if heartbeats.silent_for(member.node, now_us))
        has_taker = any(not member.has_index and heartbeats.pong(member.node) is not None for member in engines)
        return [ReleaseSlots(silent)] if silent and has_taker else []
