"""A scenario: a gateway dies soon after it has come back, and engines take in the first requests of both incarnations.

They stall as soon as it has asked them something, and continue when it is back. Requests are known by the name of the
gateway and a number: if an incarnation began with the numbers of the one before, its first request would be taken for
that one's, and be given its answer.
"""

from __future__ import annotations

from random import Random
from typing import Final

from boki.verify.sim.gateways import GatewayNode
from boki.verify.sim.nodes import Node
from boki.verify.sim.scenarios import Cluster, Later, Scenario

_BACK_US: Final = 1_000
_ASKING_US: Final = 60_000
"""This long clients can ask before the gateway dies again."""
_RETURN_US: Final = 20_000
"""After this long it is back, and its first messages are at the engines."""


class ShortIncarnation(Scenario):
    """One gateway at a time."""

    def __init__(self, cluster: Cluster, later: Later) -> None:
        super().__init__(cluster, later)
        self._stopped: list[Node] = []

    def strike(self, rng: Random) -> None:
        """One of the gateways dies, and is back at once."""
        if not self.is_going:
            self.is_going = True
            self._gateway = rng.choice([node for node in self._cluster.nodes.values() if isinstance(node, GatewayNode)])
            self._gateway.crash()
            self._later(_BACK_US, self._gateway.start)
            self._later(_BACK_US, self._wait, self._sees_engines, self._stop_engines, 1_000_000)

    def _sees_engines(self) -> bool:
        return self._gateway.core is not None and bool(self._gateway.backend.registry.up)

    def _stop_engines(self) -> None:
        engines = [node for node in self._cluster.nodes.values() if node.name in self._gateway.backend.registry.up]
        self._stopped = [node for node in engines if node.is_up and not node.is_paused]
        for engine in self._stopped:
            engine.pause()
        self._later(_ASKING_US, self._fall_again)

    def _fall_again(self) -> None:
        self._clock.sometimes("a gateway died soon after it had come back")
        self._gateway.crash()
        self._later(_BACK_US, self._gateway.start)
        self._later(_BACK_US + _RETURN_US, self._end)

    def _end(self) -> None:
        for engine in self._stopped:
            engine.resume()
        self._stopped.clear()
        super()._end()
