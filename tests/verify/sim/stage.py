"""What scenarios are made of: a cluster without drawn faults, its nodes by their parts, and what can be done to it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from boki.verify.histories.history import Appending, Ordered
from boki.verify.sim.nodes import Node
from boki.verify.sim.options import Options
from boki.verify.sim.simulation import Outcome, Simulation

SECOND = 1_000_000
Script = Callable[[Simulation], None]


def play(script: Script, **options: object) -> tuple[Simulation, Outcome]:
    """Run a scenario; every promise must be kept."""
    settings = {"seed": 1, "chaos_us": 5 * SECOND, "pause_us": 30_000, "mix": {"trim": 0}} | options
    world = Simulation(Options(**settings), script=script)  # type: ignore[arg-type]
    outcome = world.run()
    assert not outcome.violations, outcome.violations
    assert outcome.operations > 100, "too few operations"
    return world, outcome


def primary(world: Simulation) -> Node:
    """The sequencer that orders log 0 now."""
    return world.nodes[world.coordinator.views[-1].primaries[0]]


def backups(world: Simulation) -> list[Node]:
    view = world.coordinator.views[-1]
    return [world.nodes[name] for name in view.sequencers if name != view.primaries[0]]


def names(nodes: list[Node]) -> list[str]:
    return [str(node.name) for node in nodes]


def later(world: Simulation, seconds: float, action: Callable[..., None], *arguments: object) -> None:
    world.clock.after(int(seconds * SECOND), action, *arguments)


def cut(world: Simulation, sources: list[str], targets: list[str], seconds: float) -> None:
    later(world, seconds, world.network.mend, world.network.cut(sources, targets))


def withhold(world: Simulation, sources: list[str], targets: list[str], what: type, seconds: float) -> None:
    """Messages of one type do not come through these links for a while."""
    pairs = [(source, target) for source in sources for target in targets]
    world.network.withheld |= dict.fromkeys(pairs, what)

    def let_through() -> None:
        for pair in pairs:
            world.network.withheld.pop(pair, None)

    later(world, seconds, let_through)


def nothing(_world: Simulation) -> None:
    """What the options draw is enough."""


def slowest_gap_us(world: Simulation) -> int:
    """The longest time without an acknowledged append."""
    ends = sorted(
        call.end_us
        for call in world.history.calls
        if isinstance(call.request, Appending) and isinstance(call.result, Ordered)
    )
    return max(after - before for before, after in pairwise(ends))
