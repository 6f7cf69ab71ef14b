"""Gateways in the simulator: production's routing over simulated links, in processes that die and stall."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from boki.errors import BokiError, ConnectionLost
from boki.log.chunk import Group, encode_chunk
from boki.log.ids import NodeId
from boki.log.metalog import Positions
from boki.log.operations import Append, Appended
from boki.verify.sim.gateways import GatewayNode
from boki.verify.sim.options import Options, draw_options
from boki.verify.sim.simulation import Simulation


class Asked:
    """What a client of the first gateway was told, and when."""

    def __init__(self, simulation: Simulation) -> None:
        node = simulation.nodes[NodeId("gateway-1")]
        assert isinstance(node, GatewayNode)
        self.gateway = node
        self.told: list[tuple[object, int]] = []
        self._clock = simulation.clock

    def done(self, answer: object, _positions: Positions) -> None:
        self.told.append((answer, self._clock.now_us))

    def append(self, ask: Callable[..., None]) -> None:
        chunk = encode_chunk("own", [Group([(b"row", ("tag",))], (), None)])
        ask(Append("own", chunk), {}, 1_000_000, self.done)


def in_a_run(act: Callable[[Asked, Any], None], relays: int = 0) -> tuple[Asked, Simulation]:
    """A run without faults but those that `act` brings about when the chaos begins."""
    asked: list[Asked] = []

    def script(simulation: Simulation) -> None:
        asked.append(Asked(simulation))
        act(asked[0], simulation)

    simulation = Simulation(Options(seed=3, clients=2, chaos_us=1_500_000, relays=relays), script=script)
    assert simulation.run().violations == []
    return asked[0], simulation


@pytest.mark.parametrize("way", ["submit", "call"])
def test_what_a_gateway_that_dies_was_asked_ends_as_unknown(way: str) -> None:
    """Its client sees the connection break at once; the next incarnation answers again."""

    def act(asked: Asked, simulation: Simulation) -> None:
        gateway, clock = asked.gateway, simulation.clock
        ask = getattr(gateway, way)
        clock.after(600_000, asked.append, ask)
        clock.after(600_050, gateway.crash)
        clock.after(600_100, asked.append, ask)
        clock.after(600_200, gateway.start)
        clock.after(1_400_000, asked.append, ask)

    asked, simulation = in_a_run(act)
    first, second, third = (answer for answer, _ in asked.told)
    for lost in (first, second):
        assert isinstance(lost, ConnectionLost)
        assert lost.outcome == "unknown"
    assert isinstance(third, Appended)
    assert simulation.clock.seen["a gateway died while clients waited for it"] == 1


def test_a_gateway_that_stands_still_goes_on_where_it_was() -> None:
    """What it was asked meanwhile it does afterwards."""

    def act(asked: Asked, simulation: Simulation) -> None:
        asked.gateway.pause()
        asked.append(asked.gateway.submit)
        simulation.clock.after(400_000, asked.told.append, ("resumed", 0))
        simulation.clock.after(400_000, asked.gateway.resume)

    asked, _ = in_a_run(act)
    assert asked.told[0] == ("resumed", 0)
    assert isinstance(asked.told[1][0], Appended)


def test_engines_without_the_index_serve_when_no_other_answers_the_gateway() -> None:
    """They are asked last, and have it done by one that has the index and that they reach."""

    def act(asked: Asked, simulation: Simulation) -> None:
        engines = [str(name) for name in simulation.nodes if name.startswith("engine")]
        clock, network = simulation.clock, simulation.network
        network.cut(engines, ["gateway-1"])
        clock.after(1_100_000, asked.append, asked.gateway.submit)

    asked, simulation = in_a_run(act, relays=1)
    answer = asked.told[0][0]
    assert isinstance(answer, Appended), answer.message if isinstance(answer, BokiError) else answer
    assert simulation.clock.seen["a gateway asked an engine without the index"]


def test_some_seeds_have_engines_without_the_index() -> None:
    """A quarter, and nothing else is drawn otherwise for it."""
    drawn = [draw_options(seed).relays for seed in range(400)]
    assert 60 < sum(drawn) < 140
    assert set(drawn) == {0, 1}
