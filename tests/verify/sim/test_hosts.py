"""Nodes with several roles are one process each, as `boki up` starts them: one session, one life, one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from msgspec.structs import replace

from boki.config.up import UpConfig
from boki.log.ids import NodeId
from boki.log.membership import Role
from boki.protocol.messages import InstallMembership, Ping
from boki.verify.sim.coordinator import NAME as ZOOKEEPER
from boki.verify.sim.engines import EngineNode
from boki.verify.sim.faults import Faults
from boki.verify.sim.mistakes import Mistake
from boki.verify.sim.nodes import Node
from boki.verify.sim.options import Options, as_up, draw_options
from boki.verify.sim.simulation import Simulation, simulate

SECOND = 1_000_000


@pytest.fixture(name="world")
def fixture_world() -> Iterator[Simulation]:
    """The cluster of `boki up`, without clients and faults, at work."""
    world = Simulation(as_up(Options(seed=1)))
    assert world.clock.run_until(world.clock.now_us + 10 * SECOND, lambda: is_at_work(world))
    yield world
    end(world)


def end(world: Simulation) -> None:
    """Nothing of it is left."""
    for node in world.nodes.values():
        node.end()
    world.clock.run_until(world.clock.now_us)


def is_at_work(world: Simulation) -> bool:
    return bool(world.coordinator.views) and all(node.has_come for node in world.nodes.values())


def roles_of(world: Simulation, host: str) -> list[Node]:
    return [node for node in world.nodes.values() if node.host.name == host]


def test_the_layout_is_that_of_boki_up() -> None:
    """Numbers of roles, replicas and logs are the defaults of the command, which nobody repeats here."""
    config, options = UpConfig(), as_up(draw_options(3))
    world = Simulation(options)
    counts = Counter(node.role for node in world.nodes.values())
    end(world)
    assert counts == config.counts
    assert (options.replicas, options.write_quorum, options.logs) == (config.replicas, config.write_quorum, config.logs)
    assert options.sequencers == config.sequencers
    assert options.speculates == config.speculative_cuts


def test_half_of_the_seeds_have_nodes_with_several_roles_and_half_of_these_are_boki_up() -> None:
    """Some of them lose a node with one log for two roles in the end; half of them have ordinary faults alone."""
    drawn = [draw_options(seed) for seed in range(1000)]
    hosted = [options for options in drawn if options.is_hosted]
    up = [options for options in hosted if options.is_up_layout]
    assert 450 < len(hosted) < 560
    assert 200 < len(up) < 300
    assert sum(options.has_decommission for options in up) > 15
    assert 90 < sum("ahead" in options.scenarios for options in up) < 160


def test_a_node_has_one_session_and_all_its_roles_lose_it_at_once(world: Simulation) -> None:
    """A controller's is the one that its node's storage node has; others keep theirs."""
    sessions = {host.name: host.session for host in world.hosts.values()}
    assert len({session.number for session in sessions.values() if session is not None}) == len(world.hosts) == 3
    before = {node.name: node.generation for node in world.nodes.values()}
    victim = world.hosts[NodeId("node-2")]
    assert victim.session is not None
    world.coordinator.expire(victim.session)
    assert not [name for name in world.coordinator.members if name.endswith("-2")]
    world.clock.run_until(world.clock.now_us + SECOND)
    begun = {name for name, generation in before.items() if world.nodes[name].generation > generation}
    assert begun == {node.name for node in roles_of(world, "node-2")}
    assert len(begun) == 5
    assert victim.session is not sessions[NodeId("node-2")]


def test_a_session_is_lost_when_any_link_of_its_process_to_the_coordinator_is_cut(world: Simulation) -> None:
    """There is one connection, whichever role a scenario means."""
    world.network.cut(["engine-3"], [ZOOKEEPER])
    session = world.hosts[NodeId("node-3")].session
    assert session is not None
    assert world.clock.run_until(world.clock.now_us + 2 * world.options.session_us, lambda: session.is_over)


def test_a_role_that_begins_again_keeps_the_session_of_the_others(world: Simulation) -> None:
    """An engine that was fenced leaves the registration, and comes back as another incarnation."""
    engine = world.nodes[NodeId("engine-1")]
    session, incarnation = engine.session, engine.incarnation
    engine.restart("it was fenced")
    assert engine.name not in world.coordinator.members
    assert NodeId("storage-1") in world.coordinator.members
    assert world.clock.run_until(world.clock.now_us + 5 * SECOND, lambda: engine.has_come)
    assert engine.session is session
    assert engine.incarnation > incarnation
    assert isinstance(engine, EngineNode)
    assert engine.name in world.coordinator.members


def test_a_node_dies_and_comes_back_with_all_its_roles(world: Simulation) -> None:
    """Whichever role a fault means."""
    roles = roles_of(world, "node-1")
    world.nodes[NodeId("gateway-1")].crash()
    assert not any(node.is_up for node in roles)
    assert all(node.is_up for node in world.nodes.values() if node not in roles)
    world.nodes[NodeId("sequencer-1")].start()
    assert all(node.is_up for node in roles)
    world.nodes[NodeId("storage-1")].pause()
    assert all(node.is_paused for node in roles)
    world.nodes[NodeId("controller-1")].resume()
    assert not any(node.is_paused for node in roles)


def test_a_node_that_stops_ends_its_roles_in_the_order_of_production(world: Simulation) -> None:
    """Whoever is asked goes before what it asks; others are told first, and then all come back."""
    lines: list[str] = []
    world.clock.tell = lines.append
    world.nodes[NodeId("storage-2")].stop()
    leaving = {member.node for _, member in world.coordinator.members.values() if member.is_leaving}
    assert leaving == {"engine-2", "controller-2", "storage-2", "sequencer-2"}  # the gateway has gone
    assert world.clock.run_until(
        world.clock.now_us + 20 * SECOND, lambda: not world.hosts[NodeId("node-2")].is_stopping
    )
    ended = [line.split()[1] for line in lines if "restarts: it was told to" in line]
    assert ended == ["gateway-2", "engine-2", "controller-2", "storage-2", "sequencer-2"]
    assert world.clock.run_until(world.clock.now_us + 20 * SECOND, lambda: is_at_work(world))
    assert not any(member.is_leaving for _, member in world.coordinator.members.values())


def test_what_roles_of_a_node_hand_to_each_other_is_never_lost_late_or_doubled() -> None:
    """Where links lose everything: the next turn has it, in order. What goes to another process is lost."""
    lossy = as_up(Options(seed=1, faults={"loss": 1.0, "repeat": 1.0, "delay": 1.0, "reorder": 1.0}))
    world = Simulation(lossy)
    world.clock.run_until(world.clock.now_us + SECOND // 10)
    storage, engine = world.nodes[NodeId("storage-1")], world.nodes[NodeId("engine-1")]
    heard: list[tuple[Node, int]] = []
    for node in (storage, world.nodes[NodeId("storage-2")]):
        world.coverage.looks[Ping] = lambda node, _sender, message: heard.append((node, message.number))
        for number in range(7, 17):
            engine.send(node.name, Ping(number))
    world.network.cut(["engine-1"], ["storage-1"])
    engine.send(storage.name, Ping(17))
    world.clock.run_until(world.clock.now_us + 200)
    assert heard == [(storage, number) for number in range(7, 18)]
    end(world)


def test_faults_between_processes_are_those_of_all_their_roles(world: Simulation) -> None:
    """A partition has whole nodes on either side of it, and one clock is wrong for all roles of a node."""
    faults = Faults(world)
    faults._rng = Random(3)
    for strike in (faults._partition, faults._one_way):
        before = set(world.network._cuts)
        strike()
        cut = {tuple(name.partition("-")[2] for name in pair) for pair in set(world.network._cuts) - before}
        for source, target in cut:
            sources = [n for n in world.nodes if n.endswith(f"-{source}")] if source else [ZOOKEEPER]
            targets = [n for n in world.nodes if n.endswith(f"-{target}")] if target else [ZOOKEEPER]
            assert all((a, b) in world.network._cuts for a in sources for b in targets)
        assert cut
    faults._set_clock(world.nodes[NodeId("engine-2")], 5)
    assert {node.offset_us for node in roles_of(world, "node-2")} == {5}
    assert {node.offset_us for node in roles_of(world, "node-1")} == {0}


@pytest.mark.parametrize("seed", [3, 4])
def test_a_node_with_one_log_for_two_roles_is_taken_away(seed: int) -> None:
    """Its storage node is drained, its sequencer replaced, and what it alone had is elsewhere by then."""
    outcome = simulate(as_up(Options(seed=seed, chaos_us=SECOND, clients=2, has_decommission=True)))
    assert outcome.violations == []
    assert outcome.seen["a node with one log for two roles was taken away"] >= 3
    assert outcome.seen["all that was not needed any more was taken away"]


def test_in_the_end_a_new_engine_reads_alone() -> None:
    """Three of five nodes stay, and start again without their engines: else these would help with what is missing."""
    options = Options(seed=1, is_hosted=True, storage=5, engines=3, replicas=2, chaos_us=SECOND, has_decommission=True)
    world = Simulation(options)
    assert world.run().violations == []
    up = {node.name for node in world.nodes.values() if node.role in (Role.ENGINE, Role.STORAGE) and node.is_up}
    assert len(up) == 4
    assert "engine-last" in up
    assert not any(name.startswith("engine-") for name in up - {"engine-last"})


@pytest.mark.parametrize(
    "options",
    [
        Options(seed=8, storage=3, replicas=1, write_quorum=1, sequencers=1, spare_sequencers=4),
        Options(seed=5, storage=4, replicas=3, spare_sequencers=0, shares_log=True, runs_ahead=False),
    ],
    ids=["drained", "lost"],
)
def test_the_node_of_the_only_controller_is_replaced(options: Options) -> None:
    """Though there are storage nodes and sequencers enough without it: without a controller nothing is repaired."""
    rest = {"is_hosted": True, "engines": 3, "controllers": 1, "chaos_us": SECOND, "has_decommission": True}
    world = Simulation(replace(options, **rest))
    assert world.run().violations == []
    assert not world.nodes[NodeId("controller-1")].is_up


def test_a_full_disk_ends_the_whole_node(world: Simulation) -> None:
    """A role that fails ends the process; all come back when there is space."""
    storage = world.nodes[NodeId("storage-3")]
    storage.disk.is_full = True
    assert world.clock.run_until(world.clock.now_us + 60 * SECOND, lambda: not storage.core)
    assert not any(node.core for node in roles_of(world, "node-3"))
    storage.disk.is_full = False
    assert world.clock.run_until(world.clock.now_us + 20 * SECOND, lambda: is_at_work(world))


def test_a_role_that_is_dismissed_does_not_come_back_with_the_others(world: Simulation) -> None:
    """Nor by a restart of its own that was under way: at the end of some runs a new engine reads alone."""
    engine, storage = world.nodes[NodeId("engine-1")], world.nodes[NodeId("storage-1")]
    engine.restart("it was fenced")
    engine.host.dismiss(engine)
    storage.crash()
    storage.start()
    world.clock.run_until(world.clock.now_us + 5 * SECOND)
    assert storage.has_come
    assert not engine.is_up


def test_an_engine_is_not_informed_whatever_its_process_is_called(world: Simulation) -> None:
    """The scenario of an engine that is presumed lost names the process: in a node with several roles, no role's."""
    mistake = Mistake(world, lambda _delay, _action, *_arguments: None)
    mistake.strike(Random(1))
    (uninformed,) = world.coordinator.uninformed
    told = world.nodes[NodeId(f"engine-{uninformed[-1]}")]
    numbers: list[int] = []
    told.hear_news = lambda news: numbers.append(type(news) is InstallMembership)  # type: ignore[method-assign]
    world.clock.run_until(world.clock.now_us + SECOND)
    assert not any(numbers)
    world.coordinator.uninformed.clear()
    world.clock.run_until(world.clock.now_us + SECOND)
    assert any(numbers)
