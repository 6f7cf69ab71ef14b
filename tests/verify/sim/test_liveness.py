"""What is demanded of a healed cluster notices when nothing is ordered any more, or not what one engine asks for."""

from __future__ import annotations

import pytest

from boki.log.ids import shard_incarnation
from boki.log.metalog import MetalogEntry
from boki.sequencer.primary import Primary
from boki.verify.sim import simulation
from boki.verify.sim.faults import Faults
from boki.verify.sim.options import Options
from boki.verify.sim.simulation import Simulation
from tests.verify.sim.stage import SECOND


@pytest.mark.parametrize("whose", ["everybody's", "one engine's"])
def test_a_cluster_that_orders_nothing_more_once_it_is_healed_is_noticed(
    monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """Reads continue all the same, and clients need not happen to choose that engine."""
    world = Simulation(Options(seed=3, chaos_us=SECOND, engines=3, clients=1, books=1))
    cuts, end, healed = Primary._cuts, Faults.end, list[int]()

    def barren(self: Primary, now_us: int) -> list[MetalogEntry]:
        if not healed:
            return cuts(self, now_us)
        shards = self._shards
        is_one = whose == "one engine's"
        self._shards = {number: shard for number, shard in shards.items() if is_one and not _is_of(number, healed[0])}
        try:
            return cuts(self, now_us)
        finally:
            self._shards = shards

    def healing(self: Faults) -> None:
        end(self)
        healed.append(next(node.incarnation for name, node in world.nodes.items() if name == "engine-1"))

    monkeypatch.setattr(simulation, "_TIMEOUT_US", 3 * SECOND)
    monkeypatch.setattr(Primary, "_cuts", barren)
    monkeypatch.setattr(Faults, "end", healing)
    violations = world.run().violations
    assert "liveness" in {violation.promise for violation in violations}
    assert any("engine-1" in violation.text or "clients" in violation.text for violation in violations)


def _is_of(number: int, incarnation: int) -> bool:
    return shard_incarnation(number) == incarnation
