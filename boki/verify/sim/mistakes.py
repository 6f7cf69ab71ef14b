"""A scenario: an engine that lives is presumed lost, and another one takes over what it runs.

It has just come back, the other engine's news of who is registered are late, and logged calls of an owner that is not
known there are those of a lost one. It is fenced, then; if it were not, or if it did not mind, its runs would append
beside those that were begun again elsewhere.
"""

from __future__ import annotations

from random import Random
from typing import Final

from boki.log.ids import NodeId
from boki.log.membership import Role
from boki.protocol.messages import Seal
from boki.verify.sim.engines import EngineNode
from boki.verify.sim.scenarios import Cluster, Later, Scenario

_GRACE_US: Final = 1_500_000
"""By then the other engine has begun the calls again."""
_HALT_US: Final = 40_000
_BREATH_US: Final = 10_000


class Mistake(Scenario):
    """One engine restarts, another one does not hear of it."""

    def __init__(self, cluster: Cluster, later: Later) -> None:
        super().__init__(cluster, later)
        self._other = NodeId("")

    def strike(self, rng: Random) -> None:
        """Begin, if that is possible."""
        found = [node for node in self._cluster.of(Role.ENGINE) if isinstance(node, EngineNode)]
        engines = [node for node in found if node.logged is not None and node.logged.is_open]
        if self.is_going or len(engines) < 2:
            return
        self.is_going = True
        self._engine, other = rng.sample(engines, 2)
        self._other = other.host.name
        self._cluster.coordinator.uninformed.add(self._other)
        self._clock.note(f"{other.name} is not to hear that {self._engine.name} comes back")
        self._engine.crash()
        self._engine.start()
        self._wait(self._runs_a_call, self._keep_silent, 3_000_000)

    def _runs_a_call(self) -> bool:
        logged = self._engine.logged
        return logged is not None and logged.calls.running_count > 0

    def _keep_silent(self) -> None:
        """What the engine appends is ordered, and it does not hear of it: its calls stall."""
        self._incarnation = self._engine.incarnation
        sequencers = [str(node.name) for node in self._cluster.of(Role.SEQUENCER)]
        self._cut("metalog", sequencers, [str(self._engine.name)])
        ends_us = self._clock.now_us + _GRACE_US
        self._halt_primaries(ends_us)
        self._wait(lambda: self._is_fenced() or self._clock.now_us >= ends_us, self._let_go_on, 2 * _GRACE_US, 10_000)

    def _halt_primaries(self, ends_us: int) -> None:
        """Again and again for a moment: so they hear of the fence together with what the engine has just appended."""
        if self._is_fenced() or self._clock.now_us >= ends_us:
            return
        for name in self._cluster.coordinator.views[-1].primaries:
            node = self._cluster.nodes[name]
            if not node.is_paused:
                node.pause()
                self._clock.after(_HALT_US, node.resume)
        self._clock.after(_HALT_US + _BREATH_US, self._halt_primaries, ends_us)

    def _is_fenced(self) -> bool:
        """Whether the logs know that the engine is shut out."""
        primaries = [
            primary
            for node in self._cluster.of(Role.SEQUENCER)
            for primary in getattr(node.core, "_primaries", {}).values()
        ]
        return bool(primaries) and all(self._incarnation in primary._fenced for primary in primaries)  # noqa: SLF001

    def _let_go_on(self) -> None:
        self._later(200_000, self._mend, "metalog")
        self._later(400_000, self._end_term)

    def _end_term(self) -> None:
        """In the next term everybody may open shards again who was not shut out."""
        if self._engine.incarnation != self._incarnation or self._engine.core is None:
            self._clock.sometimes("an engine that was taken for lost stopped itself")
        view = self._cluster.coordinator.views[-1]
        for name in view.sequencers:
            self._cluster.nodes[name].deliver(NodeId("nobody"), Seal(view.term))
        self._later(1_000_000, self._end)

    def _end(self) -> None:
        self._cluster.coordinator.uninformed.discard(self._other)
        super()._end()
