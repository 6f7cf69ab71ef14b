"""A scenario: what asks a primary for a trim comes again, long after it was carried out.

Links may repeat any message, as late as they like. A trim reaches up to the log's end at its place in the order, so one
that is carried out twice takes what was appended in between.
"""

from __future__ import annotations

from random import Random
from typing import Final

from boki.log.ids import NodeId
from boki.log.metalog import Trims
from boki.protocol.messages import RequestEntry
from boki.verify.sim.nodes import Node
from boki.verify.sim.scenarios import Cluster, Later, Scenario

_SOONEST_US: Final = 100_000
_LATEST_US: Final = 1_500_000


class Echo(Scenario):
    """Each strike is about the next trim that comes."""

    def __init__(self, cluster: Cluster, later: Later) -> None:
        super().__init__(cluster, later)
        self._rng = Random(f"{cluster.options.seed}:scheme:echo:delays")
        cluster.coverage.on_request.append(self._on_request)

    def strike(self, rng: Random) -> None:  # noqa: ARG002 - the shape of every scenario
        """The next one comes twice."""
        self.is_going = True

    def _on_request(self, node: Node, sender: NodeId, message: RequestEntry) -> None:
        if not self.is_going or not isinstance(message.entry, Trims):
            return
        self.is_going = False
        self._later(self._rng.randint(_SOONEST_US, _LATEST_US), self._repeat, node, sender, message)

    def _repeat(self, node: Node, sender: NodeId, message: RequestEntry) -> None:
        self._clock.sometimes("a request for a trim came again, late")
        node.deliver(sender, message)
