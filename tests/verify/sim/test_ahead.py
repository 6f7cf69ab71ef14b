"""Rules of cuts that run ahead which no seed notices soon: each is needed in one order of events, which is made here.

Each scenario keeps every promise, and fails without the rule that it is about. See `docs/design/speculative-cuts.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from boki.log.membership import Role
from boki.protocol.messages import Sealed
from boki.verify.histories.history import Appending, Ordered
from boki.verify.sim.log_nodes import StorageNode
from boki.verify.sim.nodes import Node
from boki.verify.sim.options import Options, as_up
from boki.verify.sim.simulation import Simulation
from tests.verify.sim import ahead_ablations
from tests.verify.sim.stage import SECOND, backups, cut, later, play, primary, slowest_gap_us

UP = {
    name: getattr(as_up(Options(seed=1)), name)
    for name in Options.__struct_fields__
    if name not in ("seed", "chaos_us", "pause_us", "mix")
}
"""What makes a cluster that of `boki up`."""


SPREAD = {"storage": 5}
"""Two storage nodes without a sequencer: engines spread their shards over all five."""


def beside(world: Simulation, sequencer: Node) -> StorageNode:
    """The storage node of its process."""
    found = [node for node in sequencer.mates.values() if isinstance(node, StorageNode)]
    return found[0]


def lose_records(world: Simulation, storage: list[StorageNode], seconds: float) -> None:
    """These get no records from engines of other processes, nor can they fetch any."""
    engines = [str(node.name) for node in world.of(Role.ENGINE)]
    peers = [str(node.name) for node in world.of(Role.STORAGE)]
    cut(world, engines + peers, [str(node.name) for node in storage], seconds)


def a_primary_that_records_do_not_reach() -> None:
    """Rule 1. What its storage node lacks it does not cut by itself: the others tell it at their second tick."""

    def script(world: Simulation) -> None:
        later(world, 0.5, lambda: lose_records(world, [beside(world, primary(world))], 3.0))

    apart = {"engines": 1, "controllers": 1, "gateways": 1}  # on another node than the primary, which avoids that one
    world, _ = play(script, **UP | apart | {"chaos_us": 4 * SECOND})
    took = sorted(
        call.end_us - call.start_us
        for call in world.history.calls
        if isinstance(call.request, Appending) and isinstance(call.result, Ordered)
    )
    assert took[len(took) * 9 // 10] < 130_000  # two ticks; by what is repeated anyway it would be 200 ms


def records_that_reach_the_primary_alone() -> None:
    """Rule 3. No engine brings them to the backups for two seconds: these fetch what the cut in flight names."""

    def script(world: Simulation) -> None:
        engines = [str(node.name) for node in world.of(Role.ENGINE)]
        later(world, 0.5, lambda: cut(world, engines, [str(beside(world, n).name) for n in backups(world)], 2.0))

    world, _ = play(script, **UP | {"chaos_us": 4 * SECOND})
    assert slowest_gap_us(world) < SECOND


def most_backups_lack_the_records() -> None:
    """Rule 5. Of five, two storage nodes are a write quorum, and three sequencers a majority: one without the records
    must take the cut in.
    """

    def script(world: Simulation) -> None:
        later(world, 0.5, lambda: lose_records(world, [beside(world, node) for node in backups(world)[1:]], 3.0))

    five = {"storage": 5, "sequencers": 5, "replicas": 5, "engines": 2, "controllers": 2, "gateways": 2}
    world, _ = play(script, **UP | five | {"chaos_us": 4 * SECOND})
    assert slowest_gap_us(world) < SECOND


def a_shard_that_has_other_replicas() -> None:
    """Only shards whose replicas are the mates are cut ahead. Of this shard's replicas only the primary's mate gets the
    records. What a cut ahead named the mates of the backups would fetch, and it would be acknowledged; but readers and
    repair ask replicas alone. So after the loss of one disk, and of the engine's memory, the records would be nowhere.
    """
    struck: list[str] = []

    def script(world: Simulation) -> None:
        later(world, 0.5, begin, world)

    def begin(world: Simulation) -> None:
        first, view = primary(world), world.coordinator.views[-1]
        store = beside(world, first)
        shards = first.core._primaries[0]._shards.values()
        shard = next(one for one in shards if store.name in one.replicas and set(one.replicas) != set(view.beside))
        lacking = [world.nodes[name] for name in shard.replicas if name != store.name]
        lose_records(world, lacking, 2.0)
        later(world, 0.4, strike, world, store, world.nodes[shard.engine])

    def strike(world: Simulation, store: StorageNode, engine: Node) -> None:
        struck.append(str(store.name))
        engine.crash(keeps_some=False)
        store.crash()
        store.wipe()
        later(world, 0.02, store.start)
        later(world, 2.0, engine.start)

    play(script, **UP | SPREAD | {"chaos_us": 5 * SECOND})
    assert struck


class Change:
    """A primary dies, and the next term must begin within `LIMIT_US`. `world` is played with a `script` that says how.

    The controller that leads is beside neither the primary nor `holder`, so no session has to end first.
    """

    LIMIT_US = 3 * SECOND

    def __init__(self, world: Simulation) -> None:
        self.world = world
        self.primary = primary(world)
        self.term = world.coordinator.views[-1].term
        apart = [node for node in backups(world) if node.session is not None and not node.session.is_told_leader]
        self.holder = apart[0]
        self.other = next(node for node in backups(world) if node is not self.holder)
        self.took_us = 10 * self.LIMIT_US
        self._died_us = 0

    def kill_primary(self) -> None:
        self.primary.crash(keeps_some=False)
        self._died_us = self.world.clock.now_us

    def await_view(self, then: Callable[[], object]) -> None:
        """Look for the next view until there is one."""
        if self.world.coordinator.views[-1].term > self.term:
            self.took_us = self.world.clock.now_us - self._died_us
            then()
        else:
            later(self.world, 0.01, self.await_view, then)


def a_backup_that_was_away_for_long() -> None:
    """Rule 6. It lacks many records, and cannot fetch them soon. What is surely committed it takes in without."""
    changes: list[Change] = []

    def script(world: Simulation) -> None:
        later(world, 0.5, begin, world)

    def begin(world: Simulation) -> None:
        change = Change(world)
        changes.append(change)
        away = change.holder
        away.crash()
        names = [str(node.name) for node in world.nodes.values()]
        pairs = world.network.cut(names, [str(beside(world, away).name)])
        later(world, 2.0, change.kill_primary)
        later(world, 2.0, away.start)
        later(world, 2.0, change.await_view, lambda: world.network.mend(pairs))

    play(script, **UP | {"chaos_us": 8 * SECOND})
    assert changes[0].took_us < Change.LIMIT_US


def a_holder_that_cannot_give_its_records() -> None:
    """If it cannot be completed, another majority is tried. A cut is on one backup alone, whose disk cannot read the
    records; it and another one answer first.
    """
    changes: list[Change] = []

    def script(world: Simulation) -> None:
        later(world, 0.5, begin, world)

    def begin(world: Simulation) -> None:
        change = Change(world)
        changes.append(change)
        store, spared = beside(world, change.other), [str(change.other.name)]
        names = [str(node.name) for node in world.nodes.values()]
        pairs = world.network.cut(names, [str(store.name)]) + world.network.cut([str(change.primary.name)], spared)
        for role in change.primary.mates.values():
            role.disk.stalled_until_us = world.clock.now_us + 2 * SECOND
        later(world, 0.3, strike, world, change, pairs)

    def strike(world: Simulation, change: Change, pairs: list[tuple[str, str]]) -> None:
        store = beside(world, change.holder)
        store.disk.unreadable.update(store.disk._with(b"b"))
        slow_down(world, change.primary)
        change.kill_primary()
        change.primary.start()
        change.await_view(lambda: world.network.mend(pairs))

    play(script, **UP | {"chaos_us": 8 * SECOND})
    assert changes[0].took_us < Change.LIMIT_US


def slow_down(world: Simulation, node: Node) -> None:
    """What it answers to a seal comes after the answers of all others."""
    send = world.network.send

    def late(source: str, target: str, deliver: Callable[..., None], *arguments: Any) -> None:
        is_late = source == node.name and any(isinstance(each, Sealed) for each in arguments)
        world.clock.after(SECOND // 10 if is_late else 0, send, source, target, deliver, *arguments)

    world.network.send = late  # type: ignore[method-assign]


PAIRS = [
    (a_primary_that_records_do_not_reach, ahead_ablations.no_reports_of_what_no_cut_covers),
    (records_that_reach_the_primary_alone, ahead_ablations.no_fetch_of_what_is_needed),
    (most_backups_lack_the_records, ahead_ablations.no_word_of_reports),
    (a_shard_that_has_other_replicas, ahead_ablations.no_regard_for_replicas),
    (a_backup_that_was_away_for_long, ahead_ablations.no_knowledge_of_what_is_committed),
    (a_holder_that_cannot_give_its_records, ahead_ablations.no_other_majority),
]


@pytest.mark.parametrize(("scenario", "switch_off"), PAIRS)
def test_a_rule_is_needed(scenario: Callable[[], None], switch_off: Callable[[], Any]) -> None:
    """The cluster gets on in time, and without the rule it does not."""
    scenario()
    with switch_off(), pytest.raises(AssertionError):
        scenario()
